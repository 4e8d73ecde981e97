"""
Calibration beside the collector: every cycle becomes rows, rows become fits, and predictions are settled.

The hook of a cycle only takes differences; fitting happens in a thread of its own. `calibrator()` gives the one of
the running runtime and starts it at the first asking, with the minutes already in memory.

Read next: `calibration_book` (what was seen), `calibration_in_use` (what it gives), `calibration_versions`.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from collectors import calibration_versions as kept
from collectors.calibration_book import CalibrationBook, backfilled_samples
from collectors.calibration_outputs import outputs_at
from collectors.calibration_reserves import Measured, MeasuredReserves
from collectors.calibration_state import CalibrationState, KindRows, KindState
from collectors.errors import KvscopeError
from collectors.judging import reserve_of
from collectors.runtime import Runtime, get_runtime
from scoring.calibration_error import JudgedFit, Quantity, judged_fit, summarize
from scoring.calibration_in_use import InUse, KindSeen, OutputsInUse, Version, parts_in_use
from scoring.calibration_reserve import CalibratedReserve, needed_count
from scoring.model import FleetSnapshot, FloatArray
from scoring.service import ServiceProfile

REFIT_EVERY_S: Final = 20.0
FIRST_REASON: Final = "first fit"
GROWN_REASON: Final = "more or better rows"
GROWN_FACTOR: Final = 4
"""A fit that no person has chosen gives way to one of four times its rows, whose intervals are half as wide."""
DRIFT_REASON: Final = "predictions drifted"
IN_USE_S: Final = 5.0
"""What is given to whoever decides stands for so long: workers are held against their coefficients as often."""
_log = logging.getLogger(__name__)


class Calibrator:
    """
    The learner of one runtime. Thread-safe.

    Args:
        runtime: The running collector.
        refit_every_s: Between fits, by the clock of the cycles.
    """

    def __init__(self, runtime: Runtime, *, refit_every_s: float = REFIT_EVERY_S) -> None:
        self._runtime = runtime
        self._refit_every_s = refit_every_s
        self._lock = threading.RLock()
        self._book = CalibrationBook(lambda name: kept.applied(runtime.store, name))
        self._fitted_at_s: float | None = None
        self._reserves = MeasuredReserves(lambda: reserve_of(runtime.settings))
        self._outputs: OutputsInUse | None = None
        self._in_use: InUse | None = None
        self._problem = ""
        self._wake = threading.Event()
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self._remove: Callable[[], None] | None = None

    # Life.

    def start(self) -> "Calibrator":
        """Take the minutes in memory and every cycle from now on; a second call does nothing."""
        with self._lock:
            if self._thread is not None:
                return self
            self._remove = self._runtime.on_cycle(self.take)
            self._thread = threading.Thread(target=self._work, name="kvscope-calibration", daemon=True)
            self._thread.start()
        return self

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop learning; what was kept stays in the store."""
        if self._remove is not None:
            self._remove()
        self._is_ending = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Say whether it learns, and from a runtime that runs."""
        return self._thread is not None and not self._is_ending and self._runtime.is_running

    def _work(self) -> None:
        self._try(self._backfill)
        self._try(self.refit)
        while not self._is_ending:
            self._wake.wait(timeout=5.0)
            self._wake.clear()
            if not self._runtime.is_running:
                return
            if self._is_due():
                self._try(self.refit)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except KvscopeError as error:
            self._problem = str(error)
        except Exception as error:  # noqa: BLE001 # shown on the page; collecting and predicting go on
            self._problem = f"{type(error).__name__}: {error}"
            _log.warning("calibration: %s", self._problem)
        else:
            self._problem = ""

    def _is_due(self) -> bool:
        at_s = self._book.at_s
        if at_s is None or self._is_ending:
            return False
        return self._fitted_at_s is None or not 0.0 <= at_s - self._fitted_at_s < self._refit_every_s

    def _backfill(self) -> None:
        histories = self._runtime.histories()
        most = backfilled_samples(histories)
        for history in histories:
            if len(history.at_s) >= 3:
                with self._lock:
                    self._book.backfill(history, most)

    # Learning.

    def take(self, fleet: FleetSnapshot) -> None:
        """Take one cycle; called in the writer thread."""
        with self._lock:
            self._book.take(fleet)
        if self._is_due():
            self._wake.set()

    def refit(self) -> None:
        """
        Fit every kind anew, and measure what the reserve rests on.

        The first fit of a kind is kept and used; one after a drift is kept, and using it is a choice.
        """
        with self._lock:
            self._fitted_at_s = self._book.at_s
            work = [
                (rows, tuple(rows.decode), tuple(rows.prefill), tuple(rows.transfer), tuple(rows.traffic))
                for rows in self._book.kinds.values()
            ]
        for rows, decode, prefill, transfer, traffic in work:
            recent = traffic[-600:]
            judged = judged_fit(
                rows.kind,
                decode,
                prefill,
                transfer,
                prior=rows.version.profile if rows.version is not None else None,
                bytes_per_token=rows.bytes_per_token,
                hit_tokens=sum(each.hit_tokens or 0.0 for each in recent),
                query_tokens=sum(each.query_tokens or 0.0 for each in recent if each.hit_tokens is not None),
            )
            with self._lock:
                rows.judged = judged
        for rows, *_ in work:
            self._look_after(rows)
        self._measure()

    def _look_after(self, rows: KindRows) -> None:
        judged, at_s = rows.judged, self._book.at_s
        if judged is None or at_s is None or not judged.fit.is_made:
            return
        has_own = judged.fit.decode.is_made or (judged.fit.prefill.is_made and not judged.fit.prefill.is_rough)
        reason = ""
        if rows.version is None:
            reason = FIRST_REASON if has_own else ""
        elif not rows.is_chosen and not rows.drift.is_drifting and self._has_grown(rows, judged):
            reason = GROWN_REASON
        if reason:
            number = self._keep(rows, at_s, reason)
            self._use(rows, kept.apply(self._runtime.store, rows.kind.name, number, at_s), is_chosen=False)
        elif rows.drift.is_drifting and rows.drift_kept_at_s is None:
            self._keep(rows, at_s, DRIFT_REASON)
            rows.drift_kept_at_s = at_s

    @staticmethod
    def _has_grown(rows: KindRows, judged: JudgedFit) -> bool:
        version = rows.version
        assert version is not None
        if version.reason not in (FIRST_REASON, GROWN_REASON):
            return False
        if version.is_rough and judged.fit.prefill.is_made and not judged.fit.prefill.is_rough:
            return True
        pairs = [("decode", judged.fit.decode), ("prefill", judged.fit.prefill), ("transfer", judged.fit.transfer)]
        return any(
            fit.is_made and fit.row_count >= GROWN_FACTOR * max(int(version.rows.get(part, 0)), 1)
            for part, fit in pairs
        )

    def _keep(self, rows: KindRows, at_s: float, reason: str) -> int:
        profile = self._profile(rows)
        assert profile is not None
        assert rows.judged is not None
        return kept.keep(self._runtime.store, rows.judged.fit, profile, at_s, reason)

    def _profile(self, rows: KindRows) -> ServiceProfile | None:
        fits = [each.judged.fit for each in self._book.kinds.values() if each.judged is not None]
        return None if rows.judged is None else rows.judged.fit.profile(fits)

    def _measure(self) -> None:
        """Measure the reserve anew; what has moved is put to use, and kept in the store."""
        with self._lock:
            at_s, samples = self._book.at_s, self._book.samples
            ages: FloatArray = np.array(self._book.ages_s, dtype=np.float64)
        if at_s is None:
            return
        store = self._runtime.store
        self._outputs = outputs_at(store, at_s)
        measured = Measured(
            ages_s=ages,
            histories=self._runtime.histories(),
            summaries=summarize(samples),
            outputs=None if self._outputs is None else self._outputs.table,
        )
        self._reserves.measure(store, measured, at_s)
        with self._lock:
            self._in_use = None

    # What readers ask and do.

    @property
    def promise_ratio(self) -> float:
        """Return the share of the time that the fleet file promises: `[reserve] growth_quantile_ratio`."""
        return self._reserves.promise_ratio

    def state(self) -> CalibrationState:
        """Return everything at this moment; StoreError when versions cannot be read."""
        found = kept.versions(self._runtime.store)
        with self._lock:
            book, live = self._book, self._book.live
            kinds = tuple(
                KindState(
                    kind=rows.kind,
                    judged=rows.judged,
                    profile=self._profile(rows),
                    version=rows.version,
                    versions=tuple(each for each in found if each.name == name),
                    decode=tuple(rows.decode),
                    prefill=tuple(rows.prefill),
                    transfer=tuple(rows.transfer),
                    skipped=dict(rows.skipped),
                    pools=tuple(sorted(rows.pools)),
                    drift=rows.drift,
                )
                for name, rows in sorted(book.kinds.items())
            )
            samples = book.samples
            counts = (live.exhausted_count, live.averted_count, live.missed_count)
            at_s, problem = book.at_s, self._problem
        return CalibrationState(
            at_s=at_s,
            kinds=kinds,
            samples=samples,
            summaries=summarize(samples),
            exhausted_count=counts[0],
            averted_count=counts[1],
            missed_count=counts[2],
            problem=problem,
        )

    def reserve(self, promise_ratio: float | None = None) -> CalibratedReserve:
        """
        Return the knobs for a promise kept `promise_ratio` of the time, as last measured; the one in use when None.

        Raises:
            KeyError: A promise that is not on offer (PROMISES and the fleet file's).
        """
        return self._reserves.of(promise_ratio)

    def in_use(self) -> InUse:
        """Return what whoever decides is given now; the same object for IN_USE_S, or until an act changes it."""
        with self._lock:
            book, known = self._book, self._in_use
            if known is not None and (known.at_s == book.at_s or _is_young(known.at_s, book.at_s)):
                return known
            parts, profiles, bandwidths = parts_in_use([_seen(rows) for rows in book.kinds.values()])
            errors = self._step_errors()
            workers = {pool.rpartition("/")[0]: rows for rows in book.kinds.values() for pool in rows.pools}
            steps = {worker: errors[rows.kind.name] for worker, rows in workers.items() if rows.kind.name in errors}
            found = InUse(
                at_s=book.at_s,
                parts=parts,
                profiles=profiles,
                bandwidths_bytes_per_s=bandwidths,
                step_error_ratios=steps,
                reserve=self.reserve(),
                reserve_since_at_s=self._reserves.since_at_s,
                outputs=self._outputs,
            )
            self._in_use = found
            return found

    def _step_errors(self) -> dict[str, float]:
        """Return kind -> |error| of a decode step at the promise, for kinds with enough settled ones."""
        sizes: dict[str, list[float]] = {}
        for each in self._book.samples:
            if each.quantity is Quantity.STEP:
                sizes.setdefault(each.subject, []).append(abs(each.error_ratio))
        needed = needed_count(self.promise_ratio)
        return {
            name: float(np.quantile(found, self.promise_ratio)) for name, found in sizes.items() if len(found) >= needed
        }

    def keep(self, name: str, reason: str) -> int:
        """
        Keep the newest fit of a kind as its next version and return the number.

        Raises:
            ValueError: No such kind, or nothing fitted yet.
        """
        rows = self._known(name)
        if rows.judged is None or not rows.judged.fit.is_made:
            raise ValueError(f"{name}: nothing is fitted yet")
        return self._keep(rows, self._book.at_s or 0.0, reason)

    def apply(self, name: str, version: int) -> None:
        """Put a version to use; its errors and its drift begin anew. StoreError when there is none."""
        rows = self._known(name)
        self._use(rows, kept.apply(self._runtime.store, name, version, self._book.at_s or 0.0))

    def roll_back(self, name: str) -> None:
        """Go back to the version in use before; StoreError when there was none."""
        rows = self._known(name)
        self._use(rows, kept.roll_back(self._runtime.store, name, self._book.at_s or 0.0))

    def _use(self, rows: KindRows, version: Version, *, is_chosen: bool = True) -> None:
        with self._lock:
            self._book.use(rows, version, is_chosen=is_chosen)
            self._in_use = None
        if is_chosen:
            self._measure()

    def _known(self, name: str) -> KindRows:
        with self._lock:
            rows = self._book.kinds.get(name)
            if rows is None:
                raise ValueError(f"no kind {name!r}; there are {', '.join(sorted(self._book.kinds)) or 'none yet'}")
            return rows


def _is_young(made_at_s: float | None, now_s: float | None) -> bool:
    return made_at_s is not None and now_s is not None and 0.0 <= now_s - made_at_s < IN_USE_S


def _seen(rows: KindRows) -> KindSeen:
    fit = None if rows.judged is None else rows.judged.fit
    missing = (
        {}
        if fit is None
        else {
            "decode": fit.decode.missing_count,
            "prefill": fit.prefill.missing_count,
            "transfer": fit.transfer.missing_count,
        }
    )
    return KindSeen(
        kind=rows.kind,
        version=rows.version,
        worker_ids=tuple(sorted({pool.rpartition("/")[0] for pool in rows.pools})),
        decode=rows.decode,
        prefill=rows.prefill,
        missing=missing,
    )


_guard = threading.Lock()
_current: list[tuple[Runtime, Calibrator]] = []


def calibrator(runtime: Runtime | None = None) -> Calibrator | None:
    """Return the learner of the running collector, started at the first asking; None when nothing runs."""
    running = runtime or get_runtime()
    if running is None or not running.is_running:
        return None
    with _guard:
        if _current and _current[0][0] is running and _current[0][1].is_alive:
            return _current[0][1]
        for _, old in _current:
            old.stop()
        started = Calibrator(running).start()
        _current[:] = [(running, started)]
        return started


def learner_of(runtime: object) -> Calibrator | None:
    """Return the learner of this runtime where one learns already; None else. Starts nothing."""
    with _guard:
        return next((each for known, each in _current if known is runtime and each.is_alive), None)


def stop_learning() -> None:
    """Stop the learner, if one runs."""
    with _guard:
        for _, old in _current:
            old.stop()
        _current.clear()

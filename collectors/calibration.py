"""
Calibration beside the collector: every cycle becomes rows, rows become fits, and predictions are settled.

The hook of a cycle only takes differences; fitting happens in a thread of its own. `calibrator()` gives the one of
the running runtime and starts it at the first asking, with the minutes already in memory.

Read next: `calibration_live`, `calibration_versions`, `scoring.calibration_service`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from collectors import calibration_versions as kept
from collectors.calibration_live import LivePredictions
from collectors.calibration_state import CalibrationState, KindRows, KindState
from collectors.errors import KvscopeError
from collectors.runtime import Runtime, get_runtime
from scoring.calibration_error import (
    ErrorSample,
    JudgedFit,
    Quantity,
    judged_fit,
    prefill_errors,
    step_errors,
    summarize,
    transfer_errors,
)
from scoring.calibration_reserve import CalibratedReserve, growth_departures_ratio, reserve_for_slo
from scoring.calibration_windows import (
    Kind,
    PairWindows,
    TrafficWindow,
    consecutive_windows,
    kind_of,
    pair_windows,
    readings_of,
)
from scoring.drift import drift_step, seeded
from scoring.model import FleetSnapshot, FloatArray, PoolReading, PoolSnapshot, Role, pool_id
from scoring.reserve import ReserveSettings
from scoring.service import ServiceProfile

SAMPLES_KEPT: Final = 5000
AGES_KEPT: Final = 2000
REFIT_EVERY_S: Final = 20.0
BACKFILL_SAMPLES: Final = 300
"""Samples a pool taken from memory at the start; a fleet of thousands takes fewer."""
BACKFILL_PAIRS: Final = 60_000
SEED_ROWS: Final = 200
"""Rows that tell the drift test how errors scatter when coefficients are put to use."""
FIRST_REASON: Final = "first fit"
GROWN_REASON: Final = "more or better rows"
GROWN_FACTOR: Final = 4
"""A fit that no person has chosen gives way to one of four times its rows, whose intervals are half as wide."""
DRIFT_REASON: Final = "predictions drifted"
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
        self._kinds: dict[str, KindRows] = {}
        self._last: dict[str, PoolReading] = {}
        self._samples: deque[ErrorSample] = deque(maxlen=SAMPLES_KEPT)
        self._ages: deque[float] = deque(maxlen=AGES_KEPT)
        self._live = LivePredictions()
        self._at_s: float | None = None
        self._fitted_at_s: float | None = None
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
        at_s = self._at_s
        if at_s is None or self._is_ending:
            return False
        return self._fitted_at_s is None or not 0.0 <= at_s - self._fitted_at_s < self._refit_every_s

    def _backfill(self) -> None:
        histories = self._runtime.histories()
        most = min(BACKFILL_SAMPLES, BACKFILL_PAIRS // max(len(histories), 1))
        for history in histories:
            if len(history.at_s) < 3:
                continue
            readings = readings_of(history)[-most:]
            with self._lock:
                rows = self._rows(kind_of(history.last, history.labels))
                name = pool_id(history.last.worker_id, history.last.dp_rank)
                known = self._last.get(name)
                # Cycles may have come in meanwhile: only what was before them is added.
                earlier = [each for each in readings if known is None or each.received_at_s <= known.received_at_s]
                rows.pools.add(name)
                for found in consecutive_windows(earlier):
                    rows.take(found)

    # Learning.

    def take(self, fleet: FleetSnapshot) -> None:
        """Take one cycle; called in the writer thread."""
        with self._lock:
            traffic: dict[str, TrafficWindow] = {}
            profiles: dict[str, ServiceProfile] = {}
            for pool in fleet.pools:
                rows = self._take_pool(pool, traffic)
                if rows is not None and rows.version is not None:
                    profiles[pool.worker_id] = rows.version.profile
            self._samples.extend(self._live.take(fleet, traffic, profiles, self._transfer_s()))
            self._at_s = fleet.at_s
        if self._is_due():
            self._wake.set()

    def _rows(self, kind: Kind) -> KindRows:
        rows = self._kinds.get(kind.name)
        if rows is None:
            rows = self._kinds[kind.name] = KindRows(kind)
            rows.version = kept.applied(self._runtime.store, kind.name)
        return rows

    def _take_pool(self, pool: PoolSnapshot, traffic: dict[str, TrafficWindow]) -> KindRows | None:
        reading = pool.reading
        if pool.received_at_s is None or reading.role is Role.UNKNOWN or reading.usable_tokens is None:
            return None
        rows = self._rows(kind_of(reading, pool.labels))
        before = self._last.get(pool.pool_id)
        if before is not None and before.received_at_s == reading.received_at_s:
            return rows
        self._last[pool.pool_id] = reading
        rows.pools.add(pool.pool_id)
        rows.bytes_per_token = pool.bytes_per_token.value or rows.bytes_per_token
        if pool.age_s is not None and pool.state.is_scored:
            self._ages.append(pool.age_s)
        if before is None:
            return rows
        found = pair_windows(before, reading)
        rows.take(found)
        if found.traffic is not None:
            traffic[pool.pool_id] = found.traffic
        self._settle_rows(rows, found)
        return rows

    def _settle_rows(self, rows: KindRows, found: PairWindows) -> None:
        version = rows.version
        if version is None:
            return
        name, profile = rows.kind.name, version.profile
        settled: list[ErrorSample] = []
        if found.decode is not None and version.rows.get("decode"):
            settled += step_errors([found.decode], profile, name, is_held_out=True)
        if found.prefill is not None and version.rows.get("prefill"):
            settled += prefill_errors([found.prefill], profile, name, is_held_out=True)
        if found.transfer is not None and version.bandwidth_bytes_per_s:
            settled += transfer_errors(
                [found.transfer],
                profile.transfer_latency_s,
                version.bandwidth_bytes_per_s,
                name,
                is_held_out=True,
            )
        for each in settled:
            if each.quantity in (Quantity.STEP, Quantity.PREFILL):
                rows.drift = drift_step(rows.drift, each.at_s, each.error_ratio)
        self._samples.extend(settled)

    def _transfer_s(self) -> float | None:
        """Return the mean of the newest hand-overs, None without any."""
        total, count = 0.0, 0.0
        for rows in self._kinds.values():
            for window in list(rows.transfer)[-20:]:
                total, count = total + window.latency_s, count + window.transfer_count
        return total / count if count else None

    def refit(self) -> None:
        """Fit every kind anew; keep and use the first fit of a kind, keep one after a drift (using it is a choice)."""
        with self._lock:
            self._fitted_at_s = self._at_s
            work = [
                (rows, tuple(rows.decode), tuple(rows.prefill), tuple(rows.transfer), tuple(rows.traffic))
                for rows in self._kinds.values()
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

    def _look_after(self, rows: KindRows) -> None:
        judged, at_s = rows.judged, self._at_s
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
        fits = [each.judged.fit for each in self._kinds.values() if each.judged is not None]
        return None if rows.judged is None else rows.judged.fit.profile(fits)

    # What readers ask and do.

    def state(self) -> CalibrationState:
        """Return everything at this moment; StoreError when versions cannot be read."""
        found = kept.versions(self._runtime.store)
        with self._lock:
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
                for name, rows in sorted(self._kinds.items())
            )
            samples = tuple(self._samples)
            live = self._live
            counts = (live.exhausted_count, live.averted_count, live.missed_count)
            at_s, problem = self._at_s, self._problem
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

    def reserve(self, quantile_ratio: float, base: ReserveSettings | None = None) -> CalibratedReserve:
        """Return the reserve's knobs for a promise kept `quantile_ratio` of the time, from what was measured."""
        with self._lock:
            ages: FloatArray = np.array(self._ages, dtype=np.float64)
            samples = tuple(self._samples)
        delay_s = max(float(np.quantile(ages, quantile_ratio)) if len(ages) else 1.0, 0.5)
        departures = [
            growth_departures_ratio(history, delay_s)
            for history in self._runtime.histories()
            if history.last.role in (Role.DECODE, Role.UNIFIED)
        ]
        together = np.concatenate(departures) if departures else np.empty(0)
        return reserve_for_slo(
            quantile_ratio, ages_s=ages, departures_ratio=together, summaries=summarize(samples), base=base
        )

    def profiles(self) -> dict[str, ServiceProfile]:
        """Return worker -> coefficients in use, for whoever decides."""
        with self._lock:
            return {
                pool.rpartition("/")[0]: rows.version.profile
                for rows in self._kinds.values()
                if rows.version is not None
                for pool in rows.pools
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
        return self._keep(rows, self._at_s or 0.0, reason)

    def apply(self, name: str, version: int) -> None:
        """Put a version to use; its errors and its drift begin anew. StoreError when there is none."""
        rows = self._known(name)
        self._use(rows, kept.apply(self._runtime.store, name, version, self._at_s or 0.0))

    def roll_back(self, name: str) -> None:
        """Go back to the version in use before; StoreError when there was none."""
        rows = self._known(name)
        self._use(rows, kept.roll_back(self._runtime.store, name, self._at_s or 0.0))

    def _use(self, rows: KindRows, version: kept.Version, *, is_chosen: bool = True) -> None:
        with self._lock:
            rows.version = version
            rows.is_chosen = is_chosen
            rows.drift = seeded(_recent_errors(rows, version.profile))
            rows.drift_kept_at_s = None

    def _known(self, name: str) -> KindRows:
        with self._lock:
            rows = self._kinds.get(name)
            if rows is None:
                raise ValueError(f"no kind {name!r}; there are {', '.join(sorted(self._kinds)) or 'none yet'}")
            return rows


def _recent_errors(rows: KindRows, profile: ServiceProfile) -> list[float]:
    """Return the errors of a profile on the newest rows of a kind: what the drift test watches."""
    newest = [
        *step_errors(list(rows.decode)[-SEED_ROWS:], profile, rows.kind.name, is_held_out=False),
        *prefill_errors(list(rows.prefill)[-SEED_ROWS:], profile, rows.kind.name, is_held_out=False),
    ]
    return [each.error_ratio for each in newest]


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


def stop_learning() -> None:
    """Stop the learner, if one runs."""
    with _guard:
        for _, old in _current:
            old.stop()
        _current.clear()

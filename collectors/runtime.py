"""
Everything that runs: collector (thread or child process), store, recent histories, judged snapshots; exactly one a
process. Pages, routes, alerts and calibration read from here and never start anything themselves.

`start_runtime(settings)` and `get_runtime()` are the only way to it; they live in this imported module, since app.py
is loaded twice by Streamlit and would hold two.
"""

import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import httpx

from collectors.child import ChildCollector
from collectors.collector import CYCLE_JOB, Collector, CycleReport
from collectors.discovery import ListReport
from collectors.errors import StoreError
from collectors.judging import judge_settings, links_of
from collectors.recent_book import RecentBook
from collectors.runtime_stats import RuntimeStats, StatsBook
from collectors.settings import ProcessMode, Settings
from collectors.sources import SourceBook, SourceView
from collectors.store import CycleBatch, ExportRequest, Retention, Store, WorkerRecord, open_store
from scoring.leases import LeaseLedger
from scoring.model import FleetSnapshot, FloatArray, PoolHistory, RouterWorker
from scoring.snapshot import judge_fleet

CycleHook = Callable[[FleetSnapshot], None]

_WAITING_CYCLES: Final = 16
"""Cycles that may wait for the store; more, and polling slows down instead of losing them."""
_FORGET_EVERY_CYCLES: Final = 60
_PAST_KEPT: Final = 8
_log = logging.getLogger(__name__)


class Runtime:
    """
    A running collector and what it has seen. Thread-safe.

    Args:
        settings: The fleet.
        transport: Makes the HTTP transport in thread mode; the real one when None.
        clock: Our wall clock, epoch seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.leases = LeaseLedger()
        self._clock = clock
        self._transport = transport
        self._judge = judge_settings(settings)
        self._links = links_of(settings)
        self._store: Store | None = None
        self._collector: Collector | None = None
        self._child: ChildCollector | None = None
        self._writer: threading.Thread | None = None
        self._waiting: queue.Queue[CycleReport | None] = queue.Queue(maxsize=_WAITING_CYCLES)
        self._book = SourceBook()
        self._stats = StatsBook(settings.poll.interval_s)
        self._lists: tuple[ListReport, ...] = ()
        self._routers: dict[str, tuple[float, tuple[RouterWorker, ...]]] = {}
        self._recent = RecentBook(settings, self._book, clock)
        self._hooks: list[CycleHook] = []
        self._generation = 0
        self._judging = threading.Lock()
        self._judged: tuple[int, FleetSnapshot] | None = None
        self._past: OrderedDict[float, FleetSnapshot] = OrderedDict()
        self._lifecycle = threading.RLock()

    # Life.

    @property
    def is_running(self) -> bool:
        """Say whether it is started and not stopped."""
        return self._writer is not None

    def start(self) -> "Runtime":
        """
        Open the store and begin to poll; a second call does nothing.

        Raises:
            RuntimeError: Another Runtime runs in this process.
            StoreError: The store cannot be opened, for example because another process holds it.
        """
        with self._lifecycle:
            if self.is_running:
                return self
            _claim(self)
            try:
                store = self.settings.store
                self._store = open_store(
                    store.path,
                    retention=Retention(
                        raw_s=store.retention_raw_s,
                        tier_10s_s=store.retention_10s_s,
                        tier_1min_s=store.retention_1min_s,
                        tier_10min_s=store.retention_10min_s,
                        polls_s=store.retention_polls_s,
                        events_s=store.retention_events_s,
                    ),
                    wait_s=store.lock_wait_s,
                )
                self._writer = threading.Thread(target=self._write, name="kvscope-writer", daemon=True)
                self._writer.start()
                self._start_collector()
            except BaseException:
                self.stop()
                raise
        return self

    def _start_collector(self) -> None:
        poll = self.settings.poll
        is_large = len(self.settings.workers) > poll.child_above_workers
        if poll.process is ProcessMode.CHILD or (poll.process is ProcessMode.AUTO and is_large):
            self._child = ChildCollector(self.settings, self._offer)
            self._child.start()
        else:
            self._collector = Collector(self.settings, self._offer, transport=self._transport)
            self._collector.start()

    def _consider_child(self, target_count: int) -> None:
        """Move polling to a child process when lists have made the fleet larger than the fleet file said."""
        poll = self.settings.poll
        is_wanted = poll.process is ProcessMode.AUTO and target_count > poll.child_above_workers
        if is_wanted and self._collector is not None and self._transport is None:
            # Not in the writer thread: stopping waits for a cycle that may wait for the writer.
            threading.Thread(target=self._move_to_child, name="kvscope-move", daemon=True).start()

    def _move_to_child(self) -> None:
        with self._lifecycle:
            if not self.is_running or self._collector is None:
                return
            self._collector.stop()
            self._collector = None
            self._child = ChildCollector(self.settings, self._offer)
            self._child.start()

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop polling, store what was polled, close the store, join every thread; a second call does nothing."""
        with self._lifecycle:
            if self._collector is not None:
                self._collector.stop(timeout_s)
            if self._child is not None:
                self._child.stop(timeout_s)
            if self._writer is not None:
                self._waiting.put(None)
                self._writer.join(timeout=timeout_s)
                self._writer = None
            if self._store is not None:
                self._store.close()
                self._store = None
            self._collector = self._child = None
            _release(self)

    @property
    def collector_pid(self) -> int | None:
        """Return the process that polls: the child's, or our own; None when nobody polls."""
        if self._child is not None:
            return self._child.pid
        return os.getpid() if self._collector is not None else None

    # What the collector brings.

    def _offer(self, report: CycleReport) -> bool:
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            return False
        return True

    def _write(self) -> None:
        """Be the writer thread: take reports in order until the end is asked for."""
        is_ending = False
        while not is_ending:
            reports = [self._waiting.get()]
            with suppress(queue.Empty):
                while reports[-1] is not None:
                    reports.append(self._waiting.get_nowait())
            is_ending = reports[-1] is None
            self._take([report for report in reports if report is not None])

    def _take(self, reports: Sequence[CycleReport]) -> None:
        """
        Take what has come in: into memory first, then into the store, then the newest state is judged once.

        A slow disk or a slow judge then delays neither what pages draw nor the cycles behind it.
        """
        remembered = [report for report in reports if self._try(report, self._remember)]
        for report in remembered:
            self._try(report, self._keep)
        if remembered and self._hooks:
            self._call_hooks()

    def _try(self, report: CycleReport, act: Callable[[CycleReport], None]) -> bool:
        try:
            act(report)
        except Exception as error:  # noqa: BLE001 # one bad cycle must not end collecting; it is counted and shown
            self._stats.problem(f"cycle at {report.result.cycle_at_s:.3f} lost: {type(error).__name__}: {error}")
            _log.warning("a cycle could not be taken: %s: %s", type(error).__name__, error)
            return False
        return True

    def _remember(self, report: CycleReport) -> None:
        result = report.result
        if report.targets is not None:
            self._book.set_targets(report.targets)
            self._consider_child(len(report.targets))
        if report.lists is not None:
            self._lists = report.lists
        self._book.take(result.polls, result.details, result.skipped)
        self._recent.take(result.readings)
        if self._generation % _FORGET_EVERY_CYCLES == 0:
            self._recent.forget()
        for router in {name for name, _ in result.router_workers}:
            rows = tuple(row for name, row in result.router_workers if name == router)
            self._routers[router] = (result.cycle_at_s, rows)
        self._generation += 1

    def _keep(self, report: CycleReport) -> None:
        result = report.result
        workers = tuple(
            WorkerRecord(worker_id=target.worker_id, url=target.url, labels=target.labels)
            for target in report.targets or ()
        )
        batch = CycleBatch(
            cycle_at_s=result.cycle_at_s,
            duration_s=result.duration_s,
            is_overrun=report.is_overrun,
            skipped_count=report.lost_tick_count,
            polls=result.polls,
            readings=result.readings,
            findings=result.findings,
            router_workers=result.router_workers,
            workers=workers,
        )
        began = time.perf_counter()
        try:
            if self._store is not None:
                self._store.append_cycle(batch)
        except StoreError as error:
            # Live pages go on from memory; the problem is shown until a cycle is stored again.
            self._stats.store_problem(str(error))
        else:
            self._stats.stored(time.perf_counter() - began)
        self._stats.cycle(report, self._waiting.qsize())

    def _call_hooks(self) -> None:
        try:
            fleet = self.snapshot()
        except Exception as error:  # noqa: BLE001 # shown on the Sources page; collecting goes on
            self._stats.problem(f"the fleet could not be judged: {type(error).__name__}: {error}")
            return
        for hook in tuple(self._hooks):
            try:
                hook(fleet)
            except Exception as error:  # noqa: BLE001 # a colleague's defect must not stop collecting; it is counted
                name = getattr(hook, "__qualname__", repr(hook))
                self._stats.problem(f"after-cycle hook {name} failed: {type(error).__name__}: {error}")
                _log.warning("after-cycle hook %s failed: %s: %s", name, type(error).__name__, error)

    def on_cycle(self, hook: CycleHook) -> Callable[[], None]:
        """
        Call `hook(snapshot)` in the writer thread after what came in is stored: once a cycle, or once for several
        where storing and judging took longer than an interval.

        What it raises is recorded in `cycle_stats().problems`. Returns a function that takes it off again.
        """
        self._hooks = [*self._hooks, hook]

        def remove() -> None:
            self._hooks = [other for other in self._hooks if other is not hook]

        return remove

    # What readers ask.

    @property
    def store(self) -> Store:
        """Return the open store; StoreError when the runtime is not running."""
        store = self._store
        if store is None:
            raise StoreError("store: the collector is not running; start it with kvscope serve or kvscope collect")
        return store

    def histories(self) -> list[PoolHistory]:
        """
        Return the recent past of every pool, from memory, ascending by worker and rank.

        A worker that never gave a pool and is no router has one history without samples, so that it is not overlooked.
        """
        return self._recent.histories()

    def snapshot(self, at_s: float | None = None) -> FleetSnapshot:
        """
        Return the fleet as judged now: the same object for everybody until the next cycle or, if none comes, until
        an interval has passed, so that ages go on growing when collecting stands still. With `at_s`: `snapshot_at`.
        """
        if at_s is not None:
            return self.snapshot_at(at_s)
        with self._judging:
            now_s = self._clock()
            generation = self._generation
            if self._judged is not None:
                known, fleet = self._judged
                if known == generation and now_s - fleet.at_s < max(1.0, self.settings.poll.interval_s):
                    return fleet
            self.leases.expire(now_s)
            fleet = self._judge_now(self.histories(), now_s, self.leases)
            self._judged = (generation, fleet)
            return fleet

    def snapshot_at(self, at_s: float) -> FleetSnapshot:
        """Return the fleet as judged from the store at a past instant, leases unknown; StoreError when it fails."""
        with self._judging:
            if at_s in self._past:
                self._past.move_to_end(at_s)
                return self._past[at_s]
        window_s = max(self.settings.view.rate_window_s, self.settings.freshness.stale_after_s) * 2
        fleet = self._judge_now(self.store.latest_histories(at_s, window_s), at_s, None)
        with self._judging:
            if at_s < self._clock() - self.settings.freshness.stale_after_s:
                self._past[at_s] = fleet
                while len(self._past) > _PAST_KEPT:
                    self._past.popitem(last=False)
        return fleet

    def _judge_now(self, histories: Sequence[PoolHistory], at_s: float, leases: LeaseLedger | None) -> FleetSnapshot:

        return judge_fleet(histories, at_s, self._judge, links=self._links, leases=leases)

    def history(
        self, pool: str, start_s: float, end_s: float, signals: Sequence[str], max_points: int = 500
    ) -> Mapping[str, FloatArray]:
        """Return one pool's columns with `at_s` over [start_s, end_s) from the store; see `Store.pool_series`."""
        worker_id, _, rank = pool.rpartition("/")
        if not rank.isdigit():
            raise ValueError(f"pool: {pool!r} is not worker/rank")
        return self.store.pool_series(worker_id, int(rank), start_s, end_s, signals, max_points)

    def fleet_series(
        self, signals: Sequence[str], start_s: float, end_s: float, max_points: int = 500
    ) -> Mapping[str, Mapping[str, FloatArray]]:
        """Return every pool's columns on one time grid from the store; see `Store.fleet_series`."""
        return self.store.fleet_series(signals, start_s, end_s, max_points)

    def sources(self) -> tuple[SourceView, ...]:
        """Return one view a source, ascending by name."""
        return self._book.views()

    def lists(self) -> tuple[ListReport, ...]:
        """Return one report for each list of workers that is read while running."""
        return self._lists

    def router_views(self) -> dict[str, tuple[float, tuple[RouterWorker, ...]]]:
        """Return router's worker id -> (when it said so, how it sees each worker)."""
        return dict(self._routers)

    def cycle_stats(self) -> RuntimeStats:
        """Return how collecting and storing goes, since the start."""
        collector, child, store = self._collector, self._child, self._store
        return self._stats.view(
            counts=collector.schedule.counts(CYCLE_JOB) if collector is not None else None,
            restart_count=child.restart_count if child is not None else 0,
            is_child=child is not None,
            store_bytes=store.size_bytes() if store is not None else None,
            maintenance_problem=store.maintenance_problem if store is not None else None,
            recent_bytes=self._recent.held_bytes,
        )

    def export_bytes(self, request: ExportRequest) -> bytes:
        """Return the file that `request` asks for; StoreError when it cannot be made."""
        return self.store.export_bytes(request)


_guard = threading.Lock()
_running: list[Runtime] = []


def _claim(runtime: Runtime) -> None:
    with _guard:
        if _running and _running[0] is not runtime:
            raise RuntimeError("a Runtime runs in this process already; stop it first, or ask get_runtime()")
        _running[:] = [runtime]


def _release(runtime: Runtime) -> None:
    with _guard:
        if _running and _running[0] is runtime:
            _running.clear()


def get_runtime() -> Runtime | None:
    """Return the runtime of this process, None when none runs."""
    with _guard:
        return _running[0] if _running and _running[0].is_running else None


def start_runtime(settings: Settings) -> Runtime:
    """Start the runtime of this process, or return it when it runs with these settings already; see `Runtime.start`."""
    running = get_runtime()
    if running is not None and running.settings == settings:
        return running
    return Runtime(settings).start()

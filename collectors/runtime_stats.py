"""How collecting and storing goes: counters of the running process, for pages, `/metrics` and `kvscope collect`."""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from collectors.collector import CycleReport
from collectors.schedule import JobCounts

_KEPT_CYCLES: Final = 600
_KEPT_PROBLEMS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """
    Counters since the start; durations over the newest 600 cycles.

    Attributes:
        interval_s: The poll interval.
        cycle_count: Cycles taken.
        lost_tick_count: Ticks without a cycle, for whatever reason (overlap, late loop, pause of the process).
        overlap_count: Of these, ticks the scheduler left out because a cycle was still running (thread mode).
        overrun_count: Cycles longer than the interval.
        skipped_poll_count: Workers passed over at a tick because they were still being asked.
        poll_count: Polls that ended.
        failed_poll_count: Polls not understood.
        reading_count: Readings taken.
        byte_count: Body bytes received.
        last_cycle_at_s: Begin of the newest cycle.
        last_duration_s: Its duration.
        median_duration_s: Of cycles.
        max_duration_s: Of cycles.
        median_store_s: Of storing a cycle.
        max_store_s: Of storing a cycle.
        stored_count: Cycles stored.
        store_problem: Why the newest cycle was not stored, "" when it was.
        waiting_count: Cycles waiting for the store when the newest was taken.
        problem_count: Problems so far (hooks that failed, cycles that could not be taken).
        problems: The newest of them, oldest first.
        is_child: Polling runs in a child process.
        restart_count: Times it died and was started again.
        collector_cpu_s: CPU seconds of the collecting process (of this one in thread mode).
        collector_rss_bytes: Its resident memory.
        store_bytes: Size of the store on disk.
        recent_bytes: Memory of the recent histories.
        maintenance_problem: Why rollups or retention failed last, or None.
    """

    interval_s: float
    cycle_count: int = 0
    lost_tick_count: int = 0
    overlap_count: int = 0
    overrun_count: int = 0
    skipped_poll_count: int = 0
    poll_count: int = 0
    failed_poll_count: int = 0
    reading_count: int = 0
    byte_count: int = 0
    last_cycle_at_s: float | None = None
    last_duration_s: float | None = None
    median_duration_s: float | None = None
    max_duration_s: float | None = None
    median_store_s: float | None = None
    max_store_s: float | None = None
    stored_count: int = 0
    store_problem: str = ""
    waiting_count: int = 0
    problem_count: int = 0
    problems: tuple[str, ...] = ()
    is_child: bool = False
    restart_count: int = 0
    collector_cpu_s: float = 0.0
    collector_rss_bytes: int = 0
    store_bytes: int | None = None
    recent_bytes: int = 0
    maintenance_problem: str | None = None


class StatsBook:
    """Counts what the writer thread tells it; `view` may be called from any thread."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._durations: deque[float] = deque(maxlen=_KEPT_CYCLES)
        self._stores: deque[float] = deque(maxlen=_KEPT_CYCLES)
        self._problems: deque[str] = deque(maxlen=_KEPT_PROBLEMS)
        self._problem_count = self._stored_count = 0
        self._cycles = self._lost = self._overruns = self._skipped = 0
        self._polls = self._failed = self._readings = self._bytes = 0
        self._waiting = 0
        self._store_problem = ""
        self._last: CycleReport | None = None

    def cycle(self, report: CycleReport, waiting_count: int) -> None:
        """Count one cycle."""
        result = report.result
        with self._lock:
            self._cycles += 1
            self._lost += report.lost_tick_count
            self._overruns += report.is_overrun
            self._skipped += len(result.skipped)
            self._polls += len(result.polls)
            self._failed += sum(poll.error_kind is not None for poll in result.polls)
            self._readings += len(result.readings)
            self._bytes += sum(poll.byte_count for poll in result.polls)
            self._durations.append(result.duration_s)
            self._waiting = waiting_count
            self._last = report

    def stored(self, duration_s: float) -> None:
        """Count one stored cycle."""
        with self._lock:
            self._stored_count += 1
            self._stores.append(duration_s)
            self._store_problem = ""

    def store_problem(self, text: str) -> None:
        """Remember why a cycle was not stored."""
        with self._lock:
            self._store_problem = text
            self._add(text)

    def problem(self, text: str) -> None:
        """Remember a problem."""
        with self._lock:
            self._add(text)

    def _add(self, text: str) -> None:
        self._problem_count += 1
        if not self._problems or self._problems[-1] != text:
            self._problems.append(text)

    def view(
        self,
        *,
        counts: JobCounts | None,
        restart_count: int,
        is_child: bool,
        store_bytes: int | None,
        maintenance_problem: str | None,
        recent_bytes: int,
    ) -> RuntimeStats:
        """Return the counters as they stand."""
        with self._lock:
            last = self._last
            return RuntimeStats(
                interval_s=self._interval_s,
                cycle_count=self._cycles,
                lost_tick_count=self._lost,
                overlap_count=counts.overlap_count if counts is not None else 0,
                overrun_count=self._overruns,
                skipped_poll_count=self._skipped,
                poll_count=self._polls,
                failed_poll_count=self._failed,
                reading_count=self._readings,
                byte_count=self._bytes,
                last_cycle_at_s=last.result.cycle_at_s if last is not None else None,
                last_duration_s=last.result.duration_s if last is not None else None,
                median_duration_s=_median(self._durations),
                max_duration_s=max(self._durations, default=None),
                median_store_s=_median(self._stores),
                max_store_s=max(self._stores, default=None),
                stored_count=self._stored_count,
                store_problem=self._store_problem,
                waiting_count=self._waiting,
                problem_count=self._problem_count,
                problems=tuple(self._problems),
                is_child=is_child,
                restart_count=restart_count,
                collector_cpu_s=last.cpu_s if last is not None else 0.0,
                collector_rss_bytes=last.rss_bytes if last is not None else 0,
                store_bytes=store_bytes,
                recent_bytes=recent_bytes,
                maintenance_problem=maintenance_problem,
            )


def _median(values: "deque[float]") -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None

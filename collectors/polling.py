"""
Asking every worker once a cycle, all at once, each on its own.

A cycle starts one task a worker at the worker's own offset within the interval, so that a thousand do not start in
one instant and a worker keeps its rhythm. A worker that is still being asked is not asked again: the tick is counted
as skipped and its late answer is taken by the cycle in which it comes. Nothing a worker sends can raise out of here;
a failed poll is a `PollOutcome` with one of `exchange.FAILURE_KINDS`.

Read next: `worker_poll` (one worker: which questions are due, which dialect speaks), `exchange` (one question).
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import httpx

from collectors.discovery import Target
from collectors.engines import ENGINES, identify
from collectors.engines.contract import Dialect
from collectors.exchange import Clock
from collectors.poll_types import PollLimits, SourceDetail, WorkerResult, offset_ratio
from collectors.settings import PollSettings, read_secret
from collectors.store.batch import PollOutcome
from collectors.worker_poll import Identify, WorkerPoll
from scoring.model import Finding, PoolReading, RouterWorker

CYCLE_SHARE: Final = 0.9
"""Share of the interval a cycle waits for answers; what comes later is taken by the next one."""


EVERY_POLL_WORKERS: Final = 50
"""Workers up to which /metrics is read at every poll by default: an SGLang body is 95 KB (measured)."""
LONGEST_METRICS_S: Final = 15.0
WARM_UP_WORKERS_PER_S: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """
    What came of one cycle, in the order the answers came.

    Attributes:
        cycle_at_s: Our clock when the cycle began.
        duration_s: Until its last answer, or until it stopped waiting.
        skipped: Workers that were not asked because an earlier question was still open.
        polls: One outcome for each poll that ended since the previous cycle.
        readings: One a pool of every poll that was understood.
        findings: (worker_id, finding).
        router_workers: (worker_id of the router, its view of one worker).
        details: What changed about how a worker is asked.
    """

    cycle_at_s: float
    duration_s: float
    skipped: tuple[str, ...] = ()
    polls: tuple[PollOutcome, ...] = ()
    readings: tuple[PoolReading, ...] = ()
    findings: tuple[tuple[str, Finding], ...] = ()
    router_workers: tuple[tuple[str, RouterWorker], ...] = ()
    details: tuple[SourceDetail, ...] = ()


def joined(cycle: CycleResult, results: Sequence[WorkerResult]) -> CycleResult:
    """Return `cycle` with what `results` bring added."""
    return replace(
        cycle,
        polls=(*cycle.polls, *(result.poll for result in results)),
        readings=(*cycle.readings, *(reading for result in results for reading in result.readings)),
        findings=(*cycle.findings, *((result.poll.worker_id, f) for result in results for f in result.findings)),
        router_workers=(
            *cycle.router_workers,
            *((result.poll.worker_id, worker) for result in results for worker in result.router_workers),
        ),
        details=(*cycle.details, *(result.detail for result in results if result.detail is not None)),
    )


class Poller:
    """
    Polls a set of targets. Lives in one event loop; not thread-safe.

    Args:
        settings: How workers are asked.
        transport: How they are reached; closed by `aclose`.
        down_after_failures: Failures in a row that make a worker down.
        engines: Dialects by name.
        identify_engine: Which dialect recognises a set of answers.
        clock: Our wall clock, epoch seconds.
        steady_clock: A clock that is never set, for rhythms.
    """

    def __init__(
        self,
        settings: PollSettings,
        transport: httpx.AsyncBaseTransport,
        *,
        down_after_failures: int = 3,
        engines: Mapping[str, Dialect] = ENGINES,
        identify_engine: Identify = identify,
        clock: Clock = time.time,
        steady_clock: Clock = time.monotonic,
    ) -> None:
        self._steady_clock = steady_clock
        self._settings = settings
        self._transport = transport
        self._down_after_failures = down_after_failures
        self._engines = engines
        self._identify = identify_engine
        self._clock = clock
        self._workers: dict[str, WorkerPoll] = {}
        self._open: dict[str, asyncio.Task[None]] = {}
        self._finished: list[WorkerResult] = []
        self._spread_s = settings.interval_s * min(settings.jitter_ratio, CYCLE_SHARE)

    @property
    def open_count(self) -> int:
        """Return how many workers are being asked right now."""
        return len(self._open)

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Poll these from the next cycle on; a worker that stays keeps what is known of it, vanished ones are left."""
        wanted = {target.worker_id: target for target in targets if target.vanished_at_s is None}
        limits = self._limits(len(wanted))
        kept: dict[str, WorkerPoll] = {}
        for name, target in wanted.items():
            before = self._workers.get(name)
            if before is not None and before.target == target:
                kept[name] = before
                before.set_limits(limits)
                continue
            kept[name] = WorkerPoll(
                target,
                transport=self._transport,
                limits=limits,
                token=read_secret(target.token_env),
                engines=self._engines,
                identify_engine=self._identify,
                clock=self._clock,
                steady_clock=self._steady_clock,
            )
            if before is not None and before.target.url == target.url and before.target.engine == target.engine:
                kept[name].take_over(before)
        for name in set(self._workers) - set(wanted):
            task = self._open.get(name)
            if task is not None:
                task.cancel()
        self._workers = kept

    def _limits(self, worker_count: int) -> PollLimits:
        settings = self._settings
        metrics_s = settings.metrics_interval_s
        if metrics_s is None:
            metrics_s = 0.0 if worker_count <= EVERY_POLL_WORKERS else worker_count / EVERY_POLL_WORKERS
            metrics_s = min(LONGEST_METRICS_S, metrics_s)
        return PollLimits(
            timeout_s=settings.timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
            metrics_interval_s=metrics_s,
            max_body_bytes=int(settings.max_body_bytes),
            down_after_failures=self._down_after_failures,
            warm_up_s=0.0 if worker_count <= EVERY_POLL_WORKERS else worker_count / WARM_UP_WORKERS_PER_S,
        )

    async def cycle(self, at_s: float) -> CycleResult:
        """Ask every worker that is not being asked; return what ended since the previous cycle. `at_s`: our clock."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        skipped = []
        started = []
        for name, worker in self._workers.items():
            if name in self._open:
                skipped.append(name)
                continue
            if not worker.is_due():
                continue
            task = loop.create_task(self._poll(worker, began + offset_ratio(name) * self._spread_s))
            self._open[name] = task
            started.append(task)
        wait_s = max(0.0, self._settings.interval_s * CYCLE_SHARE)
        if started:
            await asyncio.wait(started, timeout=wait_s)
        else:
            await asyncio.sleep(0)
        return self._drain(at_s, loop.time() - began, tuple(skipped))

    def _drain(self, at_s: float, duration_s: float, skipped: tuple[str, ...]) -> CycleResult:
        finished, self._finished = self._finished, []
        # A worker that left the list while it was asked has no name any more.
        finished = [result for result in finished if result.poll.worker_id in self._workers]
        return joined(CycleResult(cycle_at_s=at_s, duration_s=duration_s, skipped=skipped), finished)

    async def _poll(self, worker: WorkerPoll, start_at: float) -> None:
        loop = asyncio.get_running_loop()
        name = worker.target.worker_id
        try:
            delay_s = start_at - loop.time()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            result = await worker.poll()
            # Looked up only now: a cycle may have taken the list while this poll was open.
            self._finished.append(result)
        finally:
            if self._open.get(name) is asyncio.current_task():
                del self._open[name]

    async def aclose(self) -> None:
        """Give up every open question and close the connections."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        self._open.clear()
        await self._transport.aclose()

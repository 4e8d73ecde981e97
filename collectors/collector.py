"""
The collecting half: discovery, poller and schedule together, handing one `CycleReport` a cycle to a sink.

The same code runs as a thread of the server or as a child process (`child`); only the sink differs.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from collectors.discovery import Discovery, ListReport, Target
from collectors.poll_types import WorkerResult
from collectors.polling import CycleResult, Poller, joined
from collectors.prometheus_poll import PrometheusPoll
from collectors.schedule import Schedule
from collectors.settings import Settings
from collectors.transport import FleetTransport

CYCLE_JOB: Final = "cycle"
DISCOVERY_JOB: Final = "discovery"
PROMETHEUS_JOB: Final = "prometheus"
_SINK_PAUSE_S: Final = 0.05
_PAGE_BYTES: Final = resource.getpagesize()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """
    One cycle as the collector hands it on.

    Attributes:
        result: What the poller got.
        lost_tick_count: Ticks without a cycle since the previous one, for whatever reason.
        is_overrun: The cycle did not end before the next tick.
        targets: Who is polled; None when that is as before.
        lists: What became of reading the lists; None when that is as before.
        cpu_s: CPU seconds the collecting process has used so far.
        rss_bytes: Its resident memory.
    """

    result: CycleResult
    lost_tick_count: int = 0
    is_overrun: bool = False
    targets: tuple[Target, ...] | None = None
    lists: tuple[ListReport, ...] | None = None
    cpu_s: float = 0.0
    rss_bytes: int = 0


Sink = Callable[[CycleReport], bool]
"""Takes a report, or returns False when it has no room at the moment; the collector then waits."""


def lost_ticks(before_s: float | None, now_s: float, interval_s: float) -> int:
    """Return how many ticks passed without a cycle between two cycle begins."""
    if before_s is None:
        return 0
    return max(0, round((now_s - before_s) / interval_s) - 1)


def own_rss_bytes() -> int:
    """Return this process's resident memory; its peak where the system does not tell the present."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Collector:
    """
    Polls the fleet of `settings` and hands each cycle to `sink`, in the thread of its own loop.

    Args:
        settings: The fleet.
        sink: See `Sink`.
        transport: Makes the transport; called in the collector's loop, twice (workers, lists).
    """

    def __init__(
        self, settings: Settings, sink: Sink, *, transport: Callable[[], httpx.AsyncBaseTransport] | None = None
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._make_transport = transport or self._fleet_transport
        self._schedule = Schedule("kvscope-collector")
        self._poller: Poller | None = None
        self._discovery: Discovery | None = None
        self._client: httpx.AsyncClient | None = None
        self._prometheus: PrometheusPoll | None = None
        self._found: list[WorkerResult] = []
        self._polled_targets: tuple[Target, ...] | None = None
        self._sent_targets: tuple[Target, ...] | None = None
        self._sent_lists: tuple[ListReport, ...] | None = None
        self._last_began: float | None = None

    @property
    def schedule(self) -> Schedule:
        """Return the schedule, for its counts."""
        return self._schedule

    def start(self) -> None:
        """Start polling; the first cycle begins at once with the fleet file's workers, lists follow."""
        self._schedule.start(self._set_up)
        self._schedule.every(CYCLE_JOB, self._settings.poll.interval_s, self._cycle)
        discovery = self._settings.discovery
        if discovery.has_lists:
            self._schedule.every(DISCOVERY_JOB, discovery.refresh_s, self._discover)
        if self._settings.prometheus is not None:
            self._schedule.every(PROMETHEUS_JOB, self._settings.prometheus.interval_s, self._ask_prometheus)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Let the running cycle end, close the connections, join the thread; say whether that went in time."""
        return self._schedule.stop(self._tear_down, timeout_s=timeout_s)

    def _fleet_transport(self) -> httpx.AsyncBaseTransport:
        return FleetTransport(self._settings.tls, max_open_connections=self._settings.poll.max_open_connections)

    async def _set_up(self) -> None:
        poll = self._settings.poll
        lists = self._make_transport()
        self._client = httpx.AsyncClient(
            transport=lists, timeout=poll.timeout_s, trust_env=False, follow_redirects=False
        )
        self._discovery = Discovery(self._settings, lists)
        if self._settings.prometheus is not None:
            self._prometheus = PrometheusPoll(self._settings.prometheus, self._client, time.time)
        self._poller = Poller(
            poll, self._make_transport(), down_after_failures=self._settings.freshness.down_after_failures
        )

    async def _tear_down(self) -> None:
        if self._poller is not None:
            await self._poller.aclose()
        if self._client is not None:
            await self._client.aclose()

    async def _discover(self) -> None:
        if self._discovery is not None:
            await self._discovery.refresh(time.time())

    async def _ask_prometheus(self) -> None:
        if self._prometheus is not None:
            self._found += await self._prometheus.poll()

    async def _cycle(self) -> None:
        if self._poller is None or self._discovery is None:
            return
        polled = self._discovery.targets
        if polled != self._polled_targets:
            self._poller.set_targets(polled)
            self._polled_targets = polled
        began = asyncio.get_running_loop().time()
        interval_s = self._settings.poll.interval_s
        lost = lost_ticks(self._last_began, began, interval_s)
        self._last_began = began
        result = await self._poller.cycle(time.time())
        targets = polled
        if self._prometheus is not None:
            # A worker that is polled directly is not taken a second time.
            direct = {target.worker_id for target in polled}
            targets = (*polled, *(t for t in self._prometheus.targets if t.worker_id not in direct))
            found, self._found = self._found, []
            result = joined(result, [each for each in found if each.poll.worker_id not in direct])
        lists = self._discovery.reports
        usage = resource.getrusage(resource.RUSAGE_SELF)
        report = CycleReport(
            result=result,
            lost_tick_count=lost,
            is_overrun=result.duration_s > interval_s,
            targets=None if targets == self._sent_targets else targets,
            lists=None if lists == self._sent_lists else lists,
            cpu_s=usage.ru_utime + usage.ru_stime,
            rss_bytes=own_rss_bytes(),
        )
        self._sent_targets, self._sent_lists = targets, lists
        while not self._sink(report):
            # The store is behind: better to poll later, and count it, than to drop what was polled.
            await asyncio.sleep(_SINK_PAUSE_S)

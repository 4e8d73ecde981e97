"""The recent past of the whole fleet in memory: readings in, histories out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from collectors.discovery import Target
from collectors.recent import NO_COLUMNS, NO_SAMPLES, RecentPool, samples_that_fit
from collectors.settings import Settings
from collectors.sources import SourceBook
from scoring.model import FloatArray, PoolHistory, PoolReading

_FORGET_POOL_S: Final = 3600.0
"""A pool that gave no reading for this long leaves memory (chosen); the store keeps it."""


class RecentBook:
    """
    Recent readings of every pool. Written by one thread, read by any.

    Args:
        settings: How much to keep.
        sources: Who the workers are and how their polls went.
        clock: Our wall clock, epoch seconds.
    """

    def __init__(self, settings: Settings, sources: SourceBook, clock: Callable[[], float]) -> None:
        self._wanted_samples = round(settings.view.history_s / settings.poll.interval_s)
        self._max_bytes = settings.view.history_max_bytes
        self._sources = sources
        self._clock = clock
        self._pools: dict[tuple[str, int], RecentPool] = {}

    @property
    def held_bytes(self) -> int:
        """Return the memory held."""
        return sum(pool.held_bytes for pool in list(self._pools.values()))

    def take(self, readings: Sequence[PoolReading]) -> None:
        """Take the readings of a cycle."""
        for reading in readings:
            key = (reading.worker_id, reading.dp_rank)
            pool = self._pools.get(key)
            if pool is None:
                # A first cycle brings most pools at once: its size tells how many will share the memory.
                count = max(len(self._pools) + 1, len(readings))
                pool = RecentPool(samples_that_fit(self._wanted_samples, count, self._max_bytes))
                self._pools[key] = pool
            pool.append(reading)

    def forget(self) -> None:
        """Drop pools whose worker no list names, and pools long silent."""
        limit_s = self._clock() - _FORGET_POOL_S
        kept = {}
        for key, pool in self._pools.items():
            view = pool.view()
            if self._sources.target(key[0]) is not None and view is not None and view.last.received_at_s > limit_s:
                kept[key] = pool
        self._pools = kept

    def histories(self) -> list[PoolHistory]:
        """Return one history a pool, and one without samples for each worker that never gave a pool."""
        found = []
        for (worker_id, _), pool in list(self._pools.items()):
            view = pool.view()
            target = self._sources.target(worker_id)
            if view is not None and target is not None:
                found.append((target, view.last, view.at_s, view.columns))
        for target in self._sources.without_pools():
            silent = PoolReading(worker_id=target.worker_id, role=target.role)
            found.append((target, silent, NO_SAMPLES, NO_COLUMNS))
        histories = [self._history(target, last, at_s, columns) for target, last, at_s, columns in found]
        return sorted(histories, key=lambda history: (history.last.worker_id, history.last.dp_rank))

    def _history(
        self, target: Target, last: PoolReading, at_s: FloatArray, columns: Mapping[str, FloatArray]
    ) -> PoolHistory:
        polled_at_s, state, reason = self._sources.poll_state(target.worker_id)
        return PoolHistory(
            last=last,
            at_s=at_s,
            columns=columns,
            polled_at_s=polled_at_s,
            poll_state=state,
            poll_detail=reason,
            labels=target.labels,
        )

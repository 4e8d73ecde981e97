"""
Where the demo sends a request: the plain policies people run, so that the imbalance they cause arises.

Prefill: a conversation stays with one worker (its prefix is there) unless that worker has far more requests than the
least loaded one. Decode: the worker with the fewest requests in flight, counted by this router alone, and its ranks
in turn. Neither knows tokens, memory or links.

Read next: `traffic` (what arrives) and `fleet` (who asks).
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from demo.plan import FleetPlan
from demo.scenarios import Phase
from demo.traffic import DemoRequest
from scoring.model import Role

SPILL_ABSOLUTE_COUNT: Final = 8
SPILL_RELATIVE: Final = 1.5
"""Spill a conversation when its worker has this many more and this many times the requests of the least loaded."""
UNIFIED_RATIO_PER_WORKER: Final = 0.06
"""Chosen: share of the traffic that each unified worker draws."""


class Router:
    """A seeded router with its own in-flight counts."""

    def __init__(self, plan: FleetPlan, seed: int, is_up: Callable[[str], bool]) -> None:
        self._plan = plan
        self._random = np.random.default_rng([seed, 2])
        self._is_up = is_up
        self._prefill = plan.named(Role.PREFILL)
        self._decode = plan.named(Role.DECODE)
        self._unified = plan.named(Role.UNIFIED)
        self._turn = 0
        self._rank_turn = dict.fromkeys(plan.pool_indices, 0)
        self.in_flight = dict.fromkeys(plan.pool_indices, 0)
        """Worker -> requests sent and not answered yet, this router's own count."""

    def choose(self, request: DemoRequest, phase: Phase) -> tuple[int, int] | None:
        """Return the pools (prefill, decode) of a request, equal on a unified worker; None when nobody is up."""
        unified = self._up(self._unified)
        # Drawn in any case, so that a death does not shift every later draw.
        lot, hot_lot = self._random.random(), self._random.random()
        if unified and lot < UNIFIED_RATIO_PER_WORKER * len(unified):
            worker = self._fewest(unified)
            pool = self._rank(worker)
            return pool, pool
        prefill, decode = self._up(self._prefill), self._up(self._decode)
        if not prefill or not decode:
            return None
        source = self._rank(self._prefill_worker(request, prefill))
        if phase.hot_pool is not None and hot_lot < phase.hot_ratio:
            target = self._plan.spec.index_of(phase.hot_pool)
            if self._is_up(self._plan.spec.pools[target].worker):
                return source, target
        return source, self._rank(self._fewest(decode))

    def count(self, pool: int, step: int) -> None:
        """Count a request in (`step` 1) or out (-1) at the worker of a pool."""
        self.in_flight[self._plan.spec.pools[pool].worker] += step

    def _up(self, workers: Sequence[str]) -> list[str]:
        return [worker for worker in workers if self._is_up(worker)]

    def _fewest(self, workers: Sequence[str]) -> str:
        return min(workers, key=lambda worker: self.in_flight[worker])

    def _rank(self, worker: str) -> int:
        pools = self._plan.pool_indices[worker]
        self._rank_turn[worker] += 1
        return pools[self._rank_turn[worker] % len(pools)]

    def _prefill_worker(self, request: DemoRequest, up: Sequence[str]) -> str:
        if request.session < 0:
            self._turn += 1
            return up[self._turn % len(up)]
        home = up[request.session % len(up)]
        least = self._fewest(up)
        excess = self.in_flight[home] - self.in_flight[least]
        if excess > SPILL_ABSOLUTE_COUNT and self.in_flight[home] > SPILL_RELATIVE * self.in_flight[least]:
            return least
        return home

"""
The demo fleet: the simulation brought to now, its pools published as the real scheduler would, scenario by scenario.

No network here: `serving` opens the ports. Time comes in as an argument, so a test can drive a fleet by an injected
clock and get the same bytes from the same seed. Virtual time moves on a fixed grid of ticks, whatever the machine
is doing.

Read next: `simulation.live` (the pools), `traffic`, `routing`, `scenarios`, `looks`, `publish`, `requests`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from aiohttp import web

from demo.control import UnknownScenarioError
from demo.looks import itl_histogram, rank_state
from demo.plan import FleetPlan, default_plan, two_node_plan
from demo.publish import Publisher
from demo.requests import RequestBook
from demo.routing import Router
from demo.scenarios import SCENARIOS, Phase, Scenario, scaled
from demo.traffic import HASH_BLOCK_TOKENS, DemoRequest, Traffic
from demo.worker import Worker
from simulation.layout import ITL_BINS
from simulation.live import LiveFleet, LiveRequest, PoolView
from simulation.traffic import IntArray

TICK_S: Final = 0.05
"""Wall seconds between two looks: the engine's stall refresh, the shortest interval at which it publishes."""
MAX_LAG_S: Final = 1.0
"""Chosen: a fleet further from its clock than this (a laptop that slept, a speed the machine cannot keep) skips."""
ITL_EVERY_TICKS: Final = 20
MOST_TRAFFIC: Final = 10.0
"""Chosen: a fleet of thousands is for counting pollers' work; its traffic stops at ten times the default's."""
MOST_LOOKS: Final = 128
"""Chosen: pools looked at in one tick; in a larger fleet they take turns."""

Scheduled = tuple[float, DemoRequest, tuple[int, int] | None]


class DemoFleet:
    """
    A simulated fleet on a clock.

    Attributes:
        plan: What it is made of.
        workers: The answering side, in plan order.
        book: Requests and what became of them.
        skipped_s: Wall seconds that were not lived because the fleet was too far behind.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 1,
        speed: float = 1.0,
        worker_count: int | None = None,
        clock: Callable[[], float],
        extra_routes: Callable[[web.Application], None] | None = None,
        max_lag_s: float | None = MAX_LAG_S,
    ) -> None:
        if scenario.fleet == "two-node":
            self.plan = two_node_plan()
        else:
            self.plan = default_plan() if worker_count is None else default_plan(worker_count)
        self._check_playable(scenario)
        is_default_kind = scenario.fleet == "default"
        self._factor = (
            min(self.plan.decode_tokens / default_plan().decode_tokens, MOST_TRAFFIC) if is_default_kind else 1.0
        )
        self._stride = -(-len(self.plan.spec.pools) // MOST_LOOKS)
        self._clock, self._seed, self._speed, self._max_lag_s = clock, seed, speed, max_lag_s
        self._scenario = scaled(scenario, self._factor)
        self._scenario_start_s = 0.0
        self._at: tuple[int, int] | None = None
        self._live = LiveFleet(self.plan.spec, seed=seed, hash_block_tokens=HASH_BLOCK_TOKENS)
        self._traffic = Traffic(seed)
        self._router = Router(self.plan, seed, self.is_up)
        self._down: set[str] = set()
        self._uprooted: set[str] = set()
        self._slow: dict[str, float] = {}
        self._pending: list[Scheduled] = []
        self._tick_count = 0
        self._origin_s = 0.0
        self.skipped_s = 0.0
        self.workers = [Worker(plan, clock, extra_routes=extra_routes) for plan in self.plan.workers]
        self._by_name = {worker.name: worker for worker in self.workers}
        self._since: dict[int, PoolView] = {}
        self._since_itl: dict[int, IntArray] = {}
        self._publishers = [Publisher() for _ in self.plan.spec.pools]
        self.book = RequestBook(self.plan, self._by_name, speed, self._router.count)

    # Time.

    @property
    def virtual_s(self) -> float:
        """Where the simulation stands."""
        return self._tick_count * TICK_S * self._speed

    def wall_s(self, virtual_s: float) -> float:
        """Return the wall time of a virtual time."""
        return self._origin_s + virtual_s / self._speed

    def begin(self) -> None:
        """Live the scenario's preroll, shorter in a larger fleet, and stand at the clock's now."""
        preroll_s = self._scenario.preroll_s / max(self._factor, 1.0)
        ticks = round(preroll_s / (TICK_S * self._speed))
        self._origin_s = self._clock() - ticks * TICK_S
        for _ in range(ticks + 1):
            self._tick()
        # The preroll has taken time of its own: what was published on the way is moved with the clock.
        late_s = self._clock() - self.wall_s(self.virtual_s)
        self._origin_s += late_s
        for worker in self.workers:
            for state in worker.published:
                state.at_s += late_s if state.at_s > 0.0 else 0.0

    def advance(self, now_s: float, most_ticks: int | None = None) -> bool:
        """
        Bring the fleet to `now_s`, wall time, or `most_ticks` nearer; return whether a worker died or came back.

        `skipped_s` grows by what was too far behind (or ahead of a clock set back) to be lived.
        """
        lag_s = now_s - self.wall_s(self.virtual_s)
        if self._max_lag_s is not None and abs(lag_s) > self._max_lag_s:
            self._origin_s += lag_s
            self.skipped_s += abs(lag_s)
        down = set(self._down)
        ticks = 0
        while self.wall_s(self.virtual_s) + TICK_S <= now_s + 1e-9 and (most_ticks is None or ticks < most_ticks):
            self._tick()
            ticks += 1
        return down != self._down

    def _tick(self) -> None:
        start_s = self.virtual_s
        self._tick_count += 1
        end_s = self.virtual_s
        phase = self._enter(start_s)
        arrivals: list[Scheduled] = [(r.arrival_s, r, None) for r in self._traffic.until(end_s, phase.mix)]
        due = [row for row in self._pending if row[0] <= end_s]
        self._pending = [row for row in self._pending if row[0] > end_s]
        for arrival_s, request, pools in sorted(arrivals + due, key=lambda row: row[0]):
            self._pass(max(arrival_s, self._live.now_s))
            self._send(request, pools or self._router.choose(request, phase))
        self._pass(end_s)
        self.book.watch(self._live, end_s)
        self._publish(end_s)

    def _pass(self, until_s: float) -> None:
        for done in self._live.advance(until_s):
            if done.request_id in self._uprooted:
                self._uprooted.discard(done.request_id)
                self._send_again(self.book.live_request(done.request_id))
            else:
                self.book.close(done)

    def _send(self, request: DemoRequest, pools: tuple[int, int] | None) -> None:
        if pools is None:
            self.book.refuse()
            return
        self._live.submit(self.book.open(request, pools), *pools)

    # Scenario.

    def _check_playable(self, scenario: Scenario) -> None:
        needed = {name for phase in scenario.phases for name in (*phase.down, *phase.slow)}
        needed |= {c.prefill for p in scenario.phases for c in p.cohorts}
        needed |= {c.decode for p in scenario.phases for c in p.cohorts}
        needed |= {p.hot_pool.rpartition("/")[0] for p in scenario.phases if p.hot_pool is not None}
        missing = sorted(needed - set(self.plan.pool_indices))
        if missing:
            known = ", ".join(name for name in SCENARIOS if _fits(SCENARIOS[name], self.plan))
            raise UnknownScenarioError(
                f"scenario {scenario.name} needs {', '.join(missing)}, which this fleet has not; it can play {known}"
            )

    def switch(self, name: str) -> None:
        """
        Begin another scenario now.

        Raises:
            UnknownScenarioError: There is none of that name, or it needs workers that this fleet has not.
        """
        if name not in SCENARIOS:
            raise UnknownScenarioError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
        self._check_playable(SCENARIOS[name])
        self._scenario = scaled(SCENARIOS[name], self._factor)
        self._scenario_start_s = self.virtual_s
        self._at = None
        self._pending = []

    def _enter(self, now_s: float) -> Phase:
        elapsed_s = now_s - self._scenario_start_s
        at = self._scenario.at(elapsed_s)
        phase = self._scenario.phases[at[1]]
        if at != self._at:
            self._at = at
            self._schedule(phase, now_s)
            self._apply(phase)
        return phase

    def _schedule(self, phase: Phase, now_s: float) -> None:
        for cohort in phase.cohorts:
            pools = (self.plan.pool_indices[cohort.prefill][0], self.plan.pool_indices[cohort.decode][0])
            for number in range(cohort.count):
                at_s = now_s + cohort.spread_s * number / cohort.count
                output = cohort.output_tokens + number * cohort.output_step_tokens
                request = self._traffic.exact(at_s, cohort.class_name, cohort.prompt_tokens, output)
                self._pending.append((at_s, request, pools))

    def _apply(self, phase: Phase) -> None:
        for name, worker in self._by_name.items():
            pools = self.plan.pool_indices[name]
            rate = phase.slow.get(name, self.plan.spec.pools[pools[0]].bandwidth_bytes_per_s)
            if rate != self._slow.get(name, self.plan.spec.pools[pools[0]].bandwidth_bytes_per_s):
                self._live.set_bandwidth(name, rate)
                self._slow[name] = rate
            if name in phase.down and name not in self._down:
                self._kill(name)
            elif name not in phase.down and name in self._down:
                self._down.discard(name)
                self._live.revive(name)
                for pool in pools:
                    self._since[pool] = self._live.look(pool)
                    self._since_itl[pool] = self._live.itl_counts(pool)
                    self._publishers[pool] = Publisher()
                worker.restart()

    def _kill(self, name: str) -> None:
        self._down.add(name)
        lost = self._live.kill(name)
        # A prompt that a living prefill worker is computing for the dead one ends its iteration first: told to stop,
        # it shows up as cancelled, and goes elsewhere then.
        for request_id in sorted(self.book.open_at(self.plan.pool_indices[name]) - {r.request_id for r in lost}):
            self._live.cancel(request_id)
            self._uprooted.add(request_id)
        for request in lost:
            self._send_again(request)

    def _send_again(self, lost: LiveRequest) -> None:
        pools = self._router.choose(self.book.lost(lost.request_id), self._scenario.phases[(self._at or (0, 0))[1]])
        if pools is None:
            self.book.drop(lost.request_id)
            return
        self.book.move(lost.request_id, pools)
        self._live.submit(lost, *pools)

    @property
    def router_in_flight(self) -> Mapping[str, int]:
        """Worker -> requests that the demo's router believes under way."""
        return self._router.in_flight

    def is_up(self, name: str) -> bool:
        """Whether a worker lives."""
        return name not in self._down

    # What readers see.

    def _publish(self, now_s: float) -> None:
        at_s = self.wall_s(now_s)
        for worker in self.workers:
            if worker.name in self._down:
                continue
            pools = self.plan.pool_indices[worker.name]
            for rank, pool in enumerate(pools):
                if (self._tick_count + pool) % self._stride:
                    continue
                view = self._live.look(pool)
                publisher = self._publishers[pool]
                state = rank_state(view, self._since.get(pool), mode=worker.plan.mode, speed=self._speed, at_s=at_s)
                self.book.note_transfers(worker, rank, pool, view, state)
                state.idle_s_total = publisher.newest.idle_s_total
                if view.running_count + view.computing_count + state.waiting_count == 0:
                    state.idle_s_total += TICK_S * self._stride
                if publisher.look(state):
                    worker.published[rank] = state
            if worker.plan.mode != "prefill" and (self._tick_count + pools[0]) % (ITL_EVERY_TICKS * self._stride) == 0:
                self._note_itl(worker, pools)

    def _note_itl(self, worker: Worker, pools: tuple[int, ...]) -> None:
        counts = np.zeros(ITL_BINS, np.int64)
        for pool in pools:
            counts += self._live.itl_counts(pool)
            if pool in self._since_itl:
                counts -= self._since_itl[pool]
        worker.timings.itl_s = itl_histogram(counts, self._speed)

    def describe(self) -> dict[str, Any]:
        """Return the current scenario and those this fleet can play."""
        at = self._at or (0, 0)
        return {
            "scenario": self._scenario.name,
            "summary": self._scenario.summary,
            "elapsed_s": self.virtual_s - self._scenario_start_s,
            "round": at[0],
            "phase": at[1],
            "speed": self._speed,
            "scenarios": {s.name: s.summary for s in SCENARIOS.values() if _fits(s, self.plan)},
        }

    def truth(self) -> dict[str, Any]:
        """Return the true state: requests, every pool in virtual seconds, and the coefficients it obeys."""
        pools = []
        for pool, spec in enumerate(self.plan.spec.pools):
            profile = asdict(spec.profile)
            facts = {"bandwidth_bytes_per_s": self._slow.get(spec.worker, spec.bandwidth_bytes_per_s)}
            facts |= {"reserve_tokens": spec.reserve_tokens, "block_size_tokens": spec.block_size_tokens}
            pools.append({**asdict(self._live.look(pool)), "role": str(spec.role), **facts, "profile": profile})
        return {
            "virtual_s": self.virtual_s,
            "wall_s": self.wall_s(self.virtual_s),
            "speed": self._speed,
            "skipped_s": self.skipped_s,
            "seed": self._seed,
            "scenario": self.describe(),
            "requests": self.book.counts(),
            "router_in_flight": dict(self._router.in_flight),
            "workers_down": sorted(self._down),
            "pools": pools,
        }


def _fits(scenario: Scenario, plan: FleetPlan) -> bool:
    names = {name for phase in scenario.phases for name in (*phase.down, *phase.slow)}
    names |= {name for phase in scenario.phases for c in phase.cohorts for name in (c.prefill, c.decode)}
    names |= {phase.hot_pool.rpartition("/")[0] for phase in scenario.phases if phase.hot_pool is not None}
    return names <= set(plan.pool_indices)

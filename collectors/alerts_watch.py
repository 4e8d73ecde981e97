"""
The saturation chains of a running fleet: one state a pool, stepped after each cycle, changes stored as events.

A fleet larger than the time a cycle has is looked at in turns: pools in trouble each time, the rest as time allows.

Read next: `scoring.chain`, `alerts`.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from collectors.alerts_thresholds import Thresholds
from collectors.store import Event
from scoring.alarm import AlarmSettings
from scoring.alarm_threshold import Threshold
from scoring.calibration_in_use import InUse
from scoring.calibration_reserve import uncalibrated
from scoring.chain import ChainEvent, ChainSettings, ChainState, step
from scoring.chain_evidence import Stage
from scoring.chain_look import StepModel
from scoring.chain_reserve import ReserveParts, reserves
from scoring.model import FleetSnapshot, PoolHistory, PoolSnapshot, pool_id
from scoring.reserve import ReserveSettings

EVENT_WATCH: Final = "saturation-watch"
FORGET_S: Final = 3600.0
TURN_S: Final = 0.25
"""Time a cycle may take for well pools (chosen: a quarter of the default interval)."""
NEAR_RATIO: Final = 0.5
"""Pools committed beyond this are looked at each cycle, whatever the size of the fleet (chosen)."""
TRAIL_S: Final = 900.0


class ChainWatch:
    """
    The chains of a fleet. Written by one thread; `states`, `reserves` and `trails` may be read from any.

    Attributes:
        settings: Of every chain, but for the threshold of the alarm, which is each pool's own.
        states: Pool id -> its chain.
        reserves: Pool id -> its safety reserve at the newest look.
        in_use: What calibration gave the newest look; the reserves follow from it.
    """

    def __init__(
        self,
        settings: ChainSettings | None = None,
        reserve_settings: ReserveSettings | None = None,
        *,
        given: Callable[[], InUse | None] = lambda: None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Begin with nothing known.

        Args:
            settings: Of every chain.
            reserve_settings: Knobs of the reserve where calibration has none.
            given: Asked at each look for what calibration has in use; None while it has nothing.
            steady: Clock of the time a look may take, seconds.
        """
        self.settings = settings or ChainSettings(alarm=AlarmSettings())
        base = reserve_settings or ReserveSettings()
        self._given = given
        self._nothing = InUse(at_s=None, reserve=uncalibrated(base))
        self.in_use = self._nothing
        self.alarms = Thresholds(self.settings.alarm, self.settings.forecast.source)
        self._steady = steady
        self.states: Mapping[str, ChainState] = {}
        self.reserves: Mapping[str, ReserveParts] = {}
        self._trails: dict[str, deque[tuple[float, float, float, float, float]]] = {}
        self._next = 0
        self.skipped_count = 0

    def look(self, fleet: FleetSnapshot, histories: Sequence[PoolHistory]) -> list[ChainEvent]:
        """Step the chains of a fleet and return what began and ended."""
        by_id = {pool_id(item.last.worker_id, item.last.dp_rank): item for item in histories}
        given = self._given() or self._nothing
        kept = reserves(fleet, given.reserve.settings)
        promise_ratio = given.reserve.quantile_ratio
        states = dict(self.states)
        events: list[ChainEvent] = []
        urgent, well = self._order(fleet, states)
        end_s = self._steady() + TURN_S
        for place, pool in enumerate((*urgent, *well)):
            if place >= len(urgent) and self._steady() > end_s:
                self.skipped_count += len(urgent) + len(well) - place
                self._next += place - len(urgent)
                break
            history = by_id.get(pool.pool_id)
            if history is None:
                continue
            parts = kept.get(pool.pool_id)
            before = states.get(pool.pool_id, ChainState())
            settings = replace(self.settings, alarm=self.alarms.settings(pool.pool_id, promise_ratio))
            safety_tokens = parts.tokens if parts is not None else None
            after, found = step(before, pool, history, settings, safety_tokens, _steps(given, pool))
            states[pool.pool_id] = after
            events += found
            events += self.alarms.look(pool, after)
            self._note(pool, after)
        present = {pool.pool_id for pool in fleet.pools}
        for name, state in list(states.items()):
            if name not in present and (state.last_at_s is None or fleet.at_s - state.last_at_s > FORGET_S):
                del states[name]
                self._trails.pop(name, None)
                self.alarms.forget(name)
        self.states, self.reserves, self.in_use = states, kept, given
        return events

    @property
    def thresholds(self) -> Mapping[str, Threshold]:
        """Return pool id -> where its alarm goes on and off."""
        return self.alarms.now

    def _order(
        self, fleet: FleetSnapshot, states: Mapping[str, ChainState]
    ) -> tuple[list[PoolSnapshot], list[PoolSnapshot]]:
        urgent: list[PoolSnapshot] = []
        well: list[PoolSnapshot] = []
        for pool in fleet.pools:
            state = states.get(pool.pool_id)
            is_well = state is not None and state.stage is Stage.HEALTHY and not state.alarm.is_on
            committed, usable = pool.composition.committed_tokens.value, pool.composition.usable_tokens.value
            is_near = committed is not None and bool(usable) and committed > NEAR_RATIO * (usable or math.inf)
            (well if is_well and not is_near else urgent).append(pool)
        turn = self._next % len(well) if well else 0
        return urgent, [*well[turn:], *well[:turn]]

    def _note(self, pool: PoolSnapshot, state: ChainState) -> None:
        trail = self._trails.setdefault(pool.pool_id, deque())
        queue = state.at.queue_count
        row = (
            pool.at_s,
            float(state.stage),
            _or_nan(state.risk.committed_ratio),
            _or_nan(queue),
            _or_nan(state.at.step_s),
        )
        trail.append(row)
        while trail and (trail[0][0] < pool.at_s - TRAIL_S or trail[0][0] > pool.at_s):
            trail.popleft()

    def trail(self, name: str) -> list[tuple[float, float, float, float, float]]:
        """Return (at_s, stage, committed ratio, queue, step seconds) of a pool's last minutes, oldest first."""
        return list(self._trails.get(name, ()))


def _steps(given: InUse, pool: PoolSnapshot) -> StepModel | None:
    """Return the calibrated coefficients of a pool's decode steps, None where none are in use for it."""
    profile, error = given.profiles.get(pool.worker_id), given.step_error_ratios.get(pool.worker_id)
    if profile is None or error is None or not math.isfinite(profile.decode_base_s):
        return None
    return StepModel(profile=profile, error_ratio=error)


def as_event(event: ChainEvent) -> Event:
    """Return a chain event as the store keeps it."""
    return Event(at_s=event.at_s, kind=event.kind, subject=event.pool_id, text=event.text, details=dict(event.details))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value

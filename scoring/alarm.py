"""
The saturation alarm of one pool: how likely it runs out of room soon, and whether somebody should be told.

Two views of the same past. The walk (`risk`) takes what is left as a drifted Brownian motion: probabilities of touching
empty and of eating into the reserve, and the time until then, with an interval; it needs nothing but a gauge. The
forecast (`alarm_forecast`) reads what the walk cannot know: who holds the room, and for how long already.

Pure: `step_alarm` takes the state before and gives the state after. Read next: `alarm_threshold` (at what probability
it goes on), `chain`.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scoring.alarm_forecast import FORECAST, Forecast, forecast_inputs
from scoring.chain_flows import Flows
from scoring.model import PoolHistory
from scoring.risk import (
    STEPS_MIN,
    Exhaustion,
    Walk,
    exhaustion,
    expected_exhaustion_s,
    fit_walk,
    high_water_mark,
    high_water_s,
    passage_probability,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSettings:
    """
    Knobs of risk and alarm.

    Attributes:
        horizon_s: How far the walk looks ahead.
        half_life_s: Age at which a step of the walk weighs half.
        on_probability: The alarm goes on at this probability of the forecast ...
        on_dwell_s: ... once it has held for so long.
        off_probability: It goes off below this ...
        off_dwell_s: ... once that has held for so long.
        certain_s: Whatever the forecast says: on when growth alone, nothing given back, is full within it.
        walk_on_probability: The same where only the walk can be told (no counters); stricter, since it knows less.
        walk_off_probability: The same.
        high_water_quantile: The pool's own high-water mark: this quantile of its known past.
        high_water_long_s: Time above it that counts as long.
        fast_fill_s: Growth is fast when net growth alone would fill what is left within so long.
        little_reclaimable_s: Reclaimable is little when growth would eat the evictable prefix within so long.
    """

    horizon_s: float = 30.0
    half_life_s: float = 10.0
    on_probability: float = 0.7
    on_dwell_s: float = 2.0
    off_probability: float = 0.28
    off_dwell_s: float = 10.0
    certain_s: float = 12.0
    walk_on_probability: float = 0.9
    walk_off_probability: float = 0.4
    high_water_quantile: float = 0.9
    high_water_long_s: float = 15.0
    fast_fill_s: float = 60.0
    little_reclaimable_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse knobs that would make the alarm flap or never end."""
        for low, high in (("off_probability", "on_probability"), ("walk_off_probability", "walk_on_probability")):
            if not 0.0 < getattr(self, low) < getattr(self, high) < 1.0:
                raise ValueError(f"{low} {getattr(self, low)} must be above 0 and below {high} {getattr(self, high)}")
        for name in ("horizon_s", "half_life_s", "certain_s", "fast_fill_s", "little_reclaimable_s"):
            if not 0.0 < getattr(self, name) <= 3600.0:
                raise ValueError(f"{name} is {getattr(self, name)}: must be above 0 and at most 3600")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRisk:
    """
    How near a pool is to running out of room. None is unknown; `reason` says why.

    Attributes:
        certain_s: Seconds until growth alone is full, where next to nothing is given back; None while something is.
        exhausted_probability: P(available reaches 0 within the horizon), by the walk.
        thin_probability: P(available less reserved falls below the safety reserve within the horizon), by the walk.
        retraction_probability: The forecast; None without the counters it needs, or outside what it was fitted on.
        drift_tokens_per_s, spread_tokens: Of what is left, per second and per square root of a second.
        room_tokens, offset_s: Where the walk to empty begins, and after how long: an engine that keeps room back for
            each admitted request lets nobody in once only that is left, and from there on only growth counts.
        headroom_tokens: Available - reserved - safety reserve; may be negative.
        committed_ratio: Committed / usable; may exceed 1.
        mark_ratio: The pool's own high-water mark of it.
        high_water_s: Time above it in the window looked at.
        danger: High water for long, fast net growth, little reclaimable; each True, False or None (unknown).
    """

    exhausted_probability: float | None = None
    thin_probability: float | None = None
    retraction_probability: float | None = None
    drift_tokens_per_s: float | None = None
    spread_tokens: float | None = None
    room_tokens: float | None = None
    offset_s: float = 0.0
    certain_s: float | None = None
    headroom_tokens: float | None = None
    available_tokens: float | None = None
    committed_ratio: float | None = None
    mark_ratio: float | None = None
    high_water_s: float | None = None
    danger: tuple[bool | None, bool | None, bool | None] = (None, None, None)
    reason: str = ""

    @property
    def exhaustion(self) -> Exhaustion | None:
        """Return the time until available reaches 0, with its interval; None when not known."""
        if self.room_tokens is None or self.drift_tokens_per_s is None or self.spread_tokens is None:
            return None
        found = exhaustion(self.room_tokens, self.drift_tokens_per_s, self.spread_tokens)
        if found is None or not self.offset_s:
            return found

        def later(at_s: float | None) -> float | None:
            return None if at_s is None else at_s + self.offset_s

        expected_s, low_s, high_s = later(found.expected_s), later(found.low_s), later(found.high_s)
        return replace(found, expected_s=expected_s, low_s=low_s, high_s=high_s)

    @property
    def expected_exhaustion_s(self) -> float | None:
        """Return the mean of `exhaustion` alone, which costs no search: for whoever asks it of every pool."""
        if self.room_tokens is None or self.drift_tokens_per_s is None or self.spread_tokens is None:
            return None
        expected_s = expected_exhaustion_s(self.room_tokens, self.drift_tokens_per_s)
        return None if expected_s is None else expected_s + self.offset_s

    @property
    def is_danger(self) -> bool:
        """Say whether all three signs of the danger triple are there."""
        return all(sign is True for sign in self.danger)


def pool_risk(
    flows: Flows,
    history: PoolHistory,
    safety_tokens: float | None,
    settings: AlarmSettings,
    forecast: Forecast = FORECAST,
) -> PoolRisk:
    """
    Return the risk of one pool from its flows; everything unknown, with the reason, where the past says too little.

    `safety_tokens` is the safety reserve, None when unknown.
    """
    if not flows.at_s.size:
        return PoolRisk(reason="no sample in the window")
    available, usable = float(flows.available_tokens[-1]), float(flows.usable_tokens[-1])
    if not (math.isfinite(available) and usable > 0):
        return PoolRisk(reason="what is available is not known: the source does not say what is used or usable")
    reserved = float(np.nan_to_num(flows.reserved_tokens[-1]))
    headroom = None if safety_tokens is None else available - reserved - safety_tokens
    committed = (flows.used_tokens + np.nan_to_num(flows.reserved_tokens)) / flows.usable_tokens
    mark = high_water_mark(committed, settings.high_water_quantile)
    base = PoolRisk(
        headroom_tokens=headroom,
        available_tokens=available,
        committed_ratio=float(committed[-1]),
        mark_ratio=mark,
        high_water_s=None if mark is None else high_water_s(flows.at_s, committed, mark),
    )
    part = flows.last(math.inf)
    samples = slice(part.start, part.stop + 1)
    walk = fit_walk(flows.at_s[samples], flows.available_tokens[samples], half_life_s=settings.half_life_s)
    if walk is None:
        return replace(base, reason="too few samples since the start, a gap or a restart")

    gate = _gate(flows, available, reserved, walk, settings.horizon_s)

    def touch(distance: float, drift_per_s: float, spread: float, horizon_s: float) -> float:
        values = (distance, drift_per_s, spread, horizon_s)
        return float(passage_probability(*(np.array(value) for value in values)))

    inputs = forecast_inputs(flows, history)
    forecasted = math.nan if inputs is None else float(forecast.probability(inputs))
    return replace(
        base,
        exhausted_probability=touch(
            gate.room_tokens, gate.drift_per_s, gate.spread, max(settings.horizon_s - gate.offset_s, 0.0)
        ),
        thin_probability=None
        if headroom is None
        else touch(headroom, walk.drift_per_s, walk.spread_per_sqrt_s, settings.horizon_s),
        retraction_probability=forecasted if math.isfinite(forecasted) else None,
        certain_s=_certain_s(flows, available),
        drift_tokens_per_s=gate.drift_per_s,
        spread_tokens=gate.spread,
        room_tokens=gate.room_tokens,
        offset_s=gate.offset_s,
        danger=_danger(base, float(flows.prefix_tokens[-1]), walk.drift_per_s, settings),
    )


@dataclass(frozen=True, slots=True)
class _Gate:
    room_tokens: float
    drift_per_s: float
    spread: float
    offset_s: float = 0.0


GATE_PAST_S: Final = 20.0


def _gate(flows: Flows, available: float, reserved: float, walk: Walk, horizon_s: float) -> _Gate:
    """
    Return the walk to empty: the plain one, or behind the gate of an engine that keeps room back for the admitted.

    Such an engine admits nobody once only the reserve of those inside is left. Until then the plain walk leads to the
    gate; from there the room is the reserve, and what drives it is growth less release, without admissions.
    """
    plain = _Gate(available, walk.drift_per_s, walk.spread_per_sqrt_s)
    part = flows.last(GATE_PAST_S)
    step_s, net = flows.step_s[part], (flows.released_tokens - flows.grown_tokens)[part]
    if reserved <= 0 or not flows.is_counted or len(step_s) < STEPS_MIN or not np.isfinite(net).all():
        return plain
    drift = float(net.sum() / step_s.sum())
    spread = float(np.sqrt(np.mean((net - drift * step_s) ** 2 / step_s)))
    if available <= reserved:
        return _Gate(available, drift, spread)
    to_gate_s = (available - reserved) / -walk.drift_per_s if walk.drift_per_s < 0 else math.inf
    # Too far away to be reached by then: what is left now, without those who may still come.
    return _Gate(reserved, drift, spread, to_gate_s) if to_gate_s < horizon_s else _Gate(available, drift, spread)


CERTAIN_PAST_S: Final = 10.0
KEPT_RATIO: Final = 0.05
"""Given back below this share of what grows is next to nothing (chosen: no request ended)."""


def _certain_s(flows: Flows, available: float) -> float | None:
    """Return when a pool that only grows is full; None where it gives back, does not grow, or too little was seen."""
    if not flows.is_counted or float(np.nansum(flows.step_s[flows.last(CERTAIN_PAST_S)])) < 0.7 * CERTAIN_PAST_S:
        return None
    grown = flows.rate_per_s(flows.grown_tokens, 4.0)
    released = flows.rate_per_s(flows.released_tokens, CERTAIN_PAST_S)
    if grown is None or released is None or grown <= 0 or released > KEPT_RATIO * grown:
        return None
    return available / (grown - released)


def _danger(
    base: PoolRisk, prefix_tokens: float, drift_per_s: float, settings: AlarmSettings
) -> tuple[bool | None, bool, bool | None]:
    """Return the danger triple: thresholds are times at the pool's own pace and its own high-water mark."""
    available = base.available_tokens or 0.0
    growth_per_s = max(-drift_per_s, 0.0)
    is_long = None if base.high_water_s is None else base.high_water_s >= settings.high_water_long_s
    is_fast = growth_per_s > 0 and available <= growth_per_s * settings.fast_fill_s
    is_little = prefix_tokens <= growth_per_s * settings.little_reclaimable_s if math.isfinite(prefix_tokens) else None
    return is_long, is_fast, is_little


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmState:
    """
    Where the alarm of one pool stands.

    Attributes:
        is_on: Somebody should be told.
        since_at_s: When it went on, or off; None before the first look.
        pending_at_s: Since when the opposite has been indicated.
        probability: Newest one it was judged by, None when not known.
        basis: "forecast", "walk", or "growth" (nothing is given back and it is full within `certain_s`).
    """

    is_on: bool = False
    since_at_s: float | None = None
    pending_at_s: float | None = None
    probability: float | None = None
    basis: str = ""


def step_alarm(state: AlarmState, risk: PoolRisk, at_s: float, settings: AlarmSettings) -> AlarmState:
    """
    Return the alarm after one look.

    Unknown risk changes nothing and lets nothing ripen: there is no alarm from missing data.
    """
    is_certain = risk.certain_s is not None and risk.certain_s <= settings.certain_s
    is_forecast = is_certain or risk.retraction_probability is not None
    value = risk.retraction_probability if is_forecast else risk.exhausted_probability
    value = 1.0 if is_certain else value
    if value is None:
        return replace(state, pending_at_s=None, probability=None)
    on, off = (
        (settings.on_probability, settings.off_probability)
        if is_forecast
        else (settings.walk_on_probability, settings.walk_off_probability)
    )
    basis = "growth" if is_certain else "forecast" if is_forecast else "walk"
    seen = replace(state, probability=value, basis=basis)
    wants_change = value < off if state.is_on else value >= on
    if not wants_change:
        return replace(seen, pending_at_s=None)
    pending = state.pending_at_s if state.pending_at_s is not None and state.pending_at_s <= at_s else at_s
    dwell_s = settings.off_dwell_s if state.is_on else settings.on_dwell_s
    if at_s - pending < dwell_s:
        return replace(seen, pending_at_s=pending)
    return replace(seen, is_on=not state.is_on, since_at_s=at_s, pending_at_s=None)

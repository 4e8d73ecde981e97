"""
The saturation chain of one pool as a state machine: thin headroom -> admission stalls -> eviction and retraction ->
recompute and swap work -> slower release -> tail latency, and back.

`step` takes the state before, one judged look at the pool and its recent past, and gives the state after with what
began and what ended. A stage lights after its sign has held for a while and goes out after it has been gone for
longer; a sign the source does not show changes nothing. Missing data never lights a stage: it is its own state,
CANNOT_SEE. Pure: the clock is the snapshot's.

Read next: `chain_evidence` (the signs), `alarm` (probabilities), `alert_rules` (who is told).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scoring.alarm import AlarmState, PoolRisk, pool_risk, step_alarm
from scoring.chain_evidence import STAGES, Sign, Stage, signs
from scoring.chain_flows import GAP_S, flows_of
from scoring.chain_look import Look, StepModel, look
from scoring.chain_state import (
    EVENT_ALARM,
    EVENT_BREAK,
    EVENT_SIGN,
    EVENT_STAGE,
    ChainEvent,
    ChainSettings,
    ChainState,
    Light,
    Mean,
    alarm_event,
    sign_event,
)
from scoring.histogram import Buckets
from scoring.model import PoolHistory, PoolSnapshot

__all__ = [
    "EVENT_ALARM",
    "EVENT_BREAK",
    "EVENT_SIGN",
    "EVENT_STAGE",
    "ChainEvent",
    "ChainSettings",
    "ChainState",
    "Light",
    "Mean",
    "step",
]

HISTOGRAM_S: Final = 20.0
"""Tails are taken over about so long."""
_LEARNT: Final = ("queue_count", "release_share_per_s", "evicted_tokens_per_s", "ttft_s", "itl_s")


def step(
    state: ChainState,
    pool: PoolSnapshot,
    history: PoolHistory,
    settings: ChainSettings,
    safety_tokens: float | None = None,
    steps: StepModel | None = None,
) -> tuple[ChainState, tuple[ChainEvent, ...]]:
    """
    Return the state after one look at a pool, and what began or ended with it.

    `safety_tokens`: the pool's safety reserve (`chain_reserve`), None when unknown. `steps`: calibrated coefficients of
    its decode steps, None where none are in use. The same look twice is one look.
    """
    at_s = pool.at_s
    state = replace(state, pool_id=pool.pool_id)
    why_blind = _why_blind(pool)
    if why_blind is not None:
        return _blind(state, at_s, why_blind, settings)
    events: list[ChainEvent] = []
    state = _after_break(state, pool, events)
    newest = float(history.at_s[-1]) if len(history.at_s) else None
    flows = flows_of(history, at_s, settings.past_s)
    risk = pool_risk(flows, history, safety_tokens, settings.alarm, settings.forecast)
    before = next(((ttft, itl) for _, ttft, itl in state.histograms), (None, None))
    is_begun = _is_begun(state, at_s, settings)
    # Only while work is retracted can a slow step be repeated work, and holding it against coefficients costs.
    at = look(pool, history, flows, before, steps if is_begun else None)
    is_thin = state.lights[0].is_lit or (risk.headroom_tokens is not None and risk.headroom_tokens <= 0)
    normal = state.normal(settings.learn_least_s)
    is_retracted = state.light(Stage.RETRACTION).is_lit
    found = signs(
        pool,
        at,
        risk,
        normal,
        is_thin=is_thin,
        is_begun=is_begun,
        is_retracted=is_retracted,
        least_tail_s=settings.least_tail_s,
    )
    lights = tuple(
        _lit(light, sign, at_s, settings, events, pool.pool_id) for light, sign in zip(state.lights, found, strict=True)
    )
    alarm = _alarm(state, risk, at_s, settings, events)
    stage = max((s for s, light in zip(STAGES, lights, strict=True) if light.is_lit), default=Stage.HEALTHY)
    is_new = newest is not None and newest != state.newest_at_s
    step_s = at_s - state.last_at_s if state.last_at_s is not None else 0.0
    learnt = state.learnt
    is_well = stage <= Stage.THIN_HEADROOM and not any(sign.is_seen for sign in found[1:])
    if is_new and is_well and 0.0 < step_s <= GAP_S:
        learnt = _learn(learnt, at, step_s, settings.learn_half_life_s)
    has_begun = any(light.is_lit for light in lights[1:3])
    after = replace(
        state,
        last_at_s=at_s,
        newest_at_s=newest,
        lights=lights,
        alarm=alarm,
        risk=risk,
        at=at,
        blind_at_s=None,
        blind_reason="",
        begun_at_s=at_s if has_begun else state.begun_at_s,
        learnt=learnt,
        histograms=_histograms(state, pool, at_s) if is_new else state.histograms,
        usable_tokens=pool.composition.usable_tokens.value,
        counted=_counted(pool),
    )
    return _staged(after, stage, at_s, _stage_text(stage, lights, state), events)


def _why_blind(pool: PoolSnapshot) -> str | None:
    if not pool.state.is_scored:
        return f"{pool.state.value.replace('_', ' ')}: {pool.state_reason}".rstrip(": ")
    if pool.composition.usable_tokens.value is None:
        return "what the pool can hold is not known"
    if pool.composition.used_tokens.value is None:
        return "what is held is not known"
    return None


def _blind(
    state: ChainState, at_s: float, reason: str, settings: ChainSettings
) -> tuple[ChainState, tuple[ChainEvent, ...]]:
    since = state.blind_at_s if state.blind_at_s is not None and state.blind_at_s <= at_s else at_s
    held = replace(
        state,
        blind_at_s=since,
        blind_reason=reason,
        last_at_s=at_s,
        # What was ripening may not ripen unseen.
        lights=tuple(replace(light, pending_at_s=None) for light in state.lights),
        alarm=replace(state.alarm, pending_at_s=None, probability=None),
    )
    if state.stage is Stage.CANNOT_SEE or (at_s - since < settings.blind_dwell_s and state.since_at_s is not None):
        return held, ()
    events: list[ChainEvent] = []
    gone = replace(_dark(held, at_s, f"cannot be seen any more: {reason}", events), risk=PoolRisk(reason=reason))
    return _staged(gone, Stage.CANNOT_SEE, at_s, f"cannot see: {reason}", events)


def _dark(state: ChainState, at_s: float, text: str, events: list[ChainEvent]) -> ChainState:
    """Return the state with every light and the alarm put out, for a reason that is no sign of health."""
    lights = []
    for stage, light in zip(STAGES, state.lights, strict=True):
        if light.is_lit:
            events.append(sign_event(at_s, state.pool_id, stage, is_lit=False, text=text, sign=None))
        lights.append(Light(since_at_s=light.since_at_s))
    if state.alarm.is_on:
        events.append(alarm_event(at_s, state.pool_id, is_on=False, text=text, probability=None))
    return replace(state, lights=tuple(lights), alarm=AlarmState(since_at_s=at_s), begun_at_s=None)


def _counted(pool: PoolSnapshot) -> float | None:
    """Return a counter that only a restart makes fall: what was generated and computed."""
    reading = pool.reading
    known = [
        value
        for value in (reading.decode_generated_tokens_total, reading.prefill_uncached_tokens_total)
        if value is not None
    ]
    return sum(known) if known else reading.generated_tokens_total


def _after_break(state: ChainState, pool: PoolSnapshot, events: list[ChainEvent]) -> ChainState:
    """Return the state after what breaks a series: a restart, another capacity, a clock set back, a gap."""
    at_s, usable, counted = pool.at_s, pool.composition.usable_tokens.value, _counted(pool)
    if state.last_at_s is None:
        return state
    text = None
    if state.counted is not None and counted is not None and counted < state.counted:
        text = f"restarted: its counters fell from {state.counted:.0f} to {counted:.0f}"
    elif state.usable_tokens is not None and usable is not None and usable != state.usable_tokens:
        text = f"capacity changed from {state.usable_tokens:.0f} to {usable:.0f} tokens"
    if text is not None:
        # What was normal before says nothing of what is there now.
        fresh = _dark(state, at_s, text, events)
        events.append(ChainEvent(at_s=at_s, pool_id=pool.pool_id, kind=EVENT_BREAK, text=text))
        return replace(fresh, learnt={}, histograms=(), last_at_s=None)
    if at_s < state.last_at_s or at_s - state.last_at_s > GAP_S:
        jump = at_s - state.last_at_s
        text = f"the clock went back {-jump:.1f} s" if jump < 0 else f"not looked at for {jump:.0f} s"
        events.append(ChainEvent(at_s=at_s, pool_id=pool.pool_id, kind=EVENT_BREAK, text=text))
        return replace(
            state,
            lights=tuple(replace(light, pending_at_s=None) for light in state.lights),
            alarm=replace(state.alarm, pending_at_s=None),
            histograms=(),
            begun_at_s=None if state.begun_at_s is None else min(state.begun_at_s, at_s),
        )
    return state


def _is_begun(state: ChainState, at_s: float, settings: ChainSettings) -> bool:
    if any(light.is_lit for light in state.lights[1:3]):
        return True
    return state.begun_at_s is not None and 0.0 <= at_s - state.begun_at_s <= settings.memory_s


def _lit(
    light: Light, sign: Sign, at_s: float, settings: ChainSettings, events: list[ChainEvent], pool_id: str
) -> Light:
    if sign.is_seen is None or sign.is_seen == light.is_lit:
        return replace(light, sign=sign, pending_at_s=None)
    pending = light.pending_at_s if light.pending_at_s is not None and light.pending_at_s <= at_s else at_s
    dwell_s = settings.off_dwell_s if light.is_lit else settings.on_dwell_s
    if at_s - pending < dwell_s:
        return replace(light, sign=sign, pending_at_s=pending)
    began = None if light.is_lit else sign
    events.append(sign_event(at_s, pool_id, sign.stage, is_lit=not light.is_lit, text=sign.text, sign=sign))
    return Light(is_lit=not light.is_lit, since_at_s=at_s, sign=sign, began=began)


def _alarm(
    state: ChainState, risk: PoolRisk, at_s: float, settings: ChainSettings, events: list[ChainEvent]
) -> AlarmState:
    alarm = step_alarm(state.alarm, risk, at_s, settings.alarm)
    if alarm.is_on != state.alarm.is_on:
        what = {
            "forecast": f"P(retraction within {settings.forecast.horizon_s:.0f} s)",
            "walk": f"P(exhausted within {settings.alarm.horizon_s:.0f} s)",
        }
        text = f"{what.get(alarm.basis, '')} is {alarm.probability or 0.0:.0%}"
        if alarm.basis == "growth":
            text = f"full in {risk.certain_s or 0.0:.0f} s by growth alone, nothing is given back"
        knobs = settings.alarm
        on = {"forecast": knobs.on_probability, "walk": knobs.walk_on_probability}.get(alarm.basis)
        events.append(
            alarm_event(at_s, state.pool_id, is_on=alarm.is_on, text=text, probability=alarm.probability, on=on)
        )
    return alarm


def _learn(learnt: Mapping[str, Mean], at: Look, step_s: float, half_life_s: float) -> Mapping[str, Mean]:
    taught = dict(learnt)
    for name in _LEARNT:
        value = getattr(at, name)
        if value is not None and math.isfinite(value):
            taught[name] = taught.get(name, Mean()).taught(float(value), step_s, half_life_s)
    return taught


def _histograms(
    state: ChainState, pool: PoolSnapshot, at_s: float
) -> tuple[tuple[float, Buckets | None, Buckets | None], ...]:
    ttft, itl = pool.reading.ttft_buckets, pool.reading.itl_buckets
    if ttft is None and itl is None:
        return state.histograms
    kept = [row for row in state.histograms if at_s - HISTOGRAM_S <= row[0] <= at_s]
    # A row every two seconds is enough for a window of twenty.
    if not kept or at_s - kept[-1][0] >= 2.0:
        kept.append((at_s, ttft, itl))
    return tuple(kept)


def _stage_text(stage: Stage, lights: tuple[Light, ...], before: ChainState) -> str:
    if stage is not Stage.HEALTHY:
        sign = lights[stage - 1].sign
        return f"{stage.word}: {sign.text}" if sign is not None else stage.word
    if before.stage is Stage.CANNOT_SEE:
        return "can be seen again, and is well"
    ended = before.light(before.stage).sign if before.stage > Stage.HEALTHY else None
    return f"well again; last: {ended.text}" if ended is not None else "well"


def _staged(
    state: ChainState, stage: Stage, at_s: float, text: str, events: list[ChainEvent]
) -> tuple[ChainState, tuple[ChainEvent, ...]]:
    if stage is state.stage and state.since_at_s is not None:
        return state, tuple(events)
    details: dict[str, Any] = {"stage": stage.word, "level": int(stage), "previous": state.stage.word}
    if state.since_at_s is not None:
        details["previous_s"] = round(max(0.0, at_s - state.since_at_s), 3)
    for name in ("committed_ratio", "exhausted_probability", "retraction_probability", "headroom_tokens"):
        value = getattr(state.risk, name)
        if value is not None and math.isfinite(value):
            details[name] = value
    events.append(ChainEvent(at_s=at_s, pool_id=state.pool_id, kind=EVENT_STAGE, text=text, details=details))
    return replace(state, stage=stage, since_at_s=at_s), tuple(events)

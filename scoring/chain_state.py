"""
What the saturation chain remembers of one pool: its lights, what is normal for it, and what began or ended.

Read next: `chain`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scoring.alarm import AlarmSettings, AlarmState, PoolRisk
from scoring.alarm_forecast import FORECAST, Forecast
from scoring.chain_evidence import LEAST_TAIL_S, STAGES, Normal, Sign, Stage
from scoring.chain_look import Look
from scoring.histogram import Buckets

EVENT_STAGE: Final = "saturation-stage"
EVENT_SIGN: Final = "saturation-sign"
EVENT_ALARM: Final = "saturation-alarm"
EVENT_BREAK: Final = "saturation-break"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """
    Knobs of the chain.

    Attributes:
        on_dwell_s: A sign must hold for so long to light its stage.
        off_dwell_s: It must be gone for so long to put it out.
        blind_dwell_s: Nothing can be seen for so long before the pool is CANNOT_SEE.
        memory_s: Late stages (recompute, release, tail) count while stage 2 or 3 is lit or was within so long.
        learn_half_life_s: How fast what is normal follows the pool, while it is well.
        learn_least_s: Time of being well before anything is normal.
        past_s: Past that flows and walks look at.
        least_tail_s: Time to first token that the stated SLO allows: nobody is told of a tail below it.
    """

    on_dwell_s: float = 2.0
    off_dwell_s: float = 8.0
    blind_dwell_s: float = 10.0
    memory_s: float = 60.0
    learn_half_life_s: float = 300.0
    learn_least_s: float = 15.0
    past_s: float = 120.0
    least_tail_s: float = LEAST_TAIL_S
    alarm: AlarmSettings = field(default_factory=AlarmSettings)
    forecast: Forecast = FORECAST

    def __post_init__(self) -> None:
        """Refuse knobs under which the chain could not work."""
        for name in ("blind_dwell_s", "memory_s", "learn_half_life_s", "past_s", "least_tail_s"):
            if not 0.0 < getattr(self, name) <= 86_400.0:
                raise ValueError(f"{name} is {getattr(self, name)}: must be above 0 and at most 86400")
        for name in ("on_dwell_s", "off_dwell_s", "learn_least_s"):
            if not 0.0 <= getattr(self, name) <= 86_400.0:
                raise ValueError(f"{name} is {getattr(self, name)}: must be from 0 to 86400")


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """
    One stage of one pool.

    Attributes:
        is_lit: It counts.
        since_at_s: When it began or ended last; None if never.
        pending_at_s: Since when the opposite has been indicated.
        sign: The newest sign.
        began: The sign that lit it.
    """

    is_lit: bool = False
    since_at_s: float | None = None
    pending_at_s: float | None = None
    sign: Sign | None = None
    began: Sign | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean that learns, with its spread and the seconds it has learnt from."""

    value: float = 0.0
    variance: float = 0.0
    weight_s: float = 0.0

    def taught(self, value: float, step_s: float, half_life_s: float) -> "Mean":
        """Return the mean after `value` has stood for `step_s`; early values weigh by their own time."""
        keep = 0.5 ** (step_s / half_life_s)
        weight = self.weight_s * keep + step_s
        gain = step_s / weight
        delta = value - self.value
        mean = self.value + gain * delta
        return Mean(value=mean, variance=(1 - gain) * (self.variance + gain * delta * delta), weight_s=weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEvent:
    """
    Something that began or ended.

    Attributes:
        kind: EVENT_STAGE (the pool's stage changed), EVENT_SIGN (one stage lit or went out), EVENT_ALARM or
            EVENT_BREAK (restart, changed capacity, clock set back, gap).
        text: A sentence with the numbers: what triggered it or what ended it.
        details: Finite numbers and words only, for the store.
    """

    at_s: float
    pool_id: str
    kind: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """
    What is remembered of one pool.

    Attributes:
        stage: Furthest lit stage, HEALTHY, or CANNOT_SEE.
        since_at_s: When it became so; None before the first look.
        lights: One a stage, in order.
        alarm: See `alarm`.
        risk: Of the newest look.
        blind_at_s: Since when nothing can be seen, None while it can.
        begun_at_s: When admission last stalled or work was last retracted; None if never.
        learnt: What is normal, by name of `Normal`'s figures.
        histograms: (at_s, TTFT buckets, ITL buckets), oldest first, of the last HISTOGRAM_S.
    """

    pool_id: str = ""
    stage: Stage = Stage.HEALTHY
    since_at_s: float | None = None
    last_at_s: float | None = None
    lights: tuple[Light, ...] = (Light(),) * len(STAGES)
    alarm: AlarmState = field(default_factory=AlarmState)
    risk: PoolRisk = field(default_factory=PoolRisk)
    at: Look = field(default_factory=Look)
    blind_at_s: float | None = None
    blind_reason: str = ""
    begun_at_s: float | None = None
    learnt: Mapping[str, Mean] = field(default_factory=dict)
    histograms: tuple[tuple[float, Buckets | None, Buckets | None], ...] = ()
    usable_tokens: float | None = None
    newest_at_s: float | None = None
    counted: float | None = None

    def light(self, stage: Stage) -> Light:
        """Return the light of one of the six stages."""
        return self.lights[stage - 1]

    @property
    def lit(self) -> tuple[Stage, ...]:
        """Return the lit stages, in order."""
        return tuple(stage for stage, light in zip(STAGES, self.lights, strict=True) if light.is_lit)

    def normal(self, least_s: float) -> Normal:
        """Return what is normal, as far as enough was seen."""
        known = {name: mean for name, mean in self.learnt.items() if mean.weight_s >= least_s}
        values: dict[str, float] = {name: mean.value for name, mean in known.items()}
        if "queue_count" in known:
            values["queue_spread"] = math.sqrt(max(known["queue_count"].variance, 0.0))
        return Normal(**values)


def sign_event(at_s: float, pool_id: str, stage: Stage, *, is_lit: bool, text: str, sign: Sign | None) -> ChainEvent:
    """Return the event of a stage that lit or went out; `sign`: what speaks for it, None where nothing is seen."""
    details: dict[str, Any] = {"stage": stage.word, "level": int(stage), "is_lit": is_lit}
    for name in ("value", "threshold") if sign is not None else ():
        value = getattr(sign, name)
        if value is not None and math.isfinite(value):
            details[name] = value
    if sign is not None and sign.rests:
        details["rests"] = sign.rests
    return ChainEvent(at_s=at_s, pool_id=pool_id, kind=EVENT_SIGN, text=text, details=details)


def alarm_event(
    at_s: float, pool_id: str, *, is_on: bool, text: str, probability: float | None, on: float | None = None
) -> ChainEvent:
    """Return the event of an alarm that went on or off; `on`: the threshold it was held against, None without one."""
    details: dict[str, Any] = {"is_on": is_on}
    if probability is not None:
        details["probability"] = probability
    if on is not None:
        details["on_probability"] = on
    return ChainEvent(at_s=at_s, pool_id=pool_id, kind=EVENT_ALARM, text=text, details=details)

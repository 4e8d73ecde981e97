"""
The safety reserve that an SLO asks for, from what was measured: how old figures are, how far growth departs from its
trend, how far lengths and times are off.

Nothing here adds a new formula of the reserve: it sets the knobs of `reserve.ReserveSettings` and the error spreads
that `policy.DecideSettings` takes, each with what it rests on. What-if, the saturation chain, alerts and the
Calibration page all take theirs from here.

Read next: `alarm_threshold` (when to tell somebody).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scoring.calibration_error import ALL, ErrorSummary, Quantity
from scoring.model import FloatArray, PoolHistory
from scoring.quantile_table import MIN_SAMPLES, QuantileTable
from scoring.reserve import ReserveSettings

MIN_STEPS: Final = 30
"""Fewer ages, or departures of growth, than this give no quantile (chosen)."""
MIN_ERRORS: Final = 8
"""Fewer settled predictions than this have no spread (`calibration_error`)."""
NORMAL_95: Final = 1.6449
LEAST_SPREAD_RATIO: Final = 0.02
MOST_SPREAD_RATIO: Final = 10.0
"""Predictions are never trusted to better than 2 % (chosen), and beyond ten times they say nothing anyway."""
MOVED_RATIO: Final = 0.1
"""A knob that moved by less than a tenth of itself leaves the one in use as it is, so that limits do not tremble
(chosen)."""

PROMISES: Final = (0.9, 0.95, 0.99)
"""Shares of the time a promise may hold that the Calibration page offers, beside the one the fleet file states."""
RESERVE_KNOBS: Final = ("growth_quantile_ratio", "telemetry_delay_s", "error_buffer_ratio", "output_error_ratio")
RISK_KNOBS: Final = ("ttft_error_ratio", "tpot_error_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """
    One knob and what it rests on.

    Attributes:
        name: Of RESERVE_KNOBS (a field of `ReserveSettings`) or RISK_KNOBS.
        value: What to use, in the unit of the name. None: the age each pool shows (delay), or whoever decides uses
            what it was given (risk).
        chosen: What is used without calibration; None as above.
        is_calibrated: It follows from what was measured; the growth quantile, from the promise stated.
        sample_count: Ages, departures, settled predictions or requests behind it.
        needed_count: Fewest that are taken.
    """

    name: str
    value: float | None
    chosen: float | None
    is_calibrated: bool
    sample_count: int
    needed_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedReserve:
    """
    Knobs for a stated SLO.

    Attributes:
        quantile_ratio: Share of the time the promise is to hold.
        base: What stays where nothing was measured, and the knobs that calibration leaves alone.
        knobs: RESERVE_KNOBS, then RISK_KNOBS.
    """

    quantile_ratio: float
    base: ReserveSettings
    knobs: tuple[Knob, ...]

    def knob(self, name: str) -> Knob:
        """Return one of the knobs; KeyError when there is none of that name."""
        found = next((each for each in self.knobs if each.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def settings(self) -> ReserveSettings:
        """Return the knobs of the reserve."""
        values = {name: self.knob(name).value for name in RESERVE_KNOBS}
        return replace(self.base, **values)  # type: ignore[arg-type] # only the delay may be None

    @property
    def ttft_error_ratio(self) -> float | None:
        """Return the relative spread of predicted TTFT; None where too little was settled."""
        return self.knob("ttft_error_ratio").value

    @property
    def tpot_error_ratio(self) -> float | None:
        """Return the same of step time."""
        return self.knob("tpot_error_ratio").value

    @property
    def is_calibrated(self) -> bool:
        """Say whether anything but the stated promise follows from what was measured."""
        return any(each.is_calibrated for each in self.knobs if each.name != "growth_quantile_ratio")

    def has_moved(self, other: "CalibratedReserve") -> bool:
        """Say whether the other one differs by so much that it should take this one's place."""
        if (self.quantile_ratio, self.base) != (other.quantile_ratio, other.base):
            return True
        return any(_has_moved(mine, its) for mine, its in zip(self.knobs, other.knobs, strict=True))


def _has_moved(before: Knob, after: Knob) -> bool:
    if before.is_calibrated != after.is_calibrated or (before.value is None) != (after.value is None):
        return True
    if before.value is None or after.value is None:
        return False
    return abs(after.value - before.value) > MOVED_RATIO * max(abs(before.value), 1e-9)


def uncalibrated(base: ReserveSettings, promise_ratio: float | None = None) -> CalibratedReserve:
    """Return the knobs where nothing was measured: the base's own but for the promise, where one is given."""
    promise = base.growth_quantile_ratio if promise_ratio is None else promise_ratio
    return reserve_for_slo(promise, ages_s=(), departures_ratio=np.empty(0), base=base)


def growth_departures_ratio(history: PoolHistory, delay_s: float) -> FloatArray:
    """
    Return how far a pool's used gauge departed from its trend over `delay_s`, as shares of usable.

    The trend of the stretch of equal length before is what a snapshot would have said. Shape (m,), maybe empty.
    """
    used = history.columns.get("used_tokens")
    usable = history.last.usable_tokens
    if used is None or not usable or delay_s <= 0:
        return np.empty(0)
    known = np.isfinite(used)
    at_s, held = np.asarray(history.at_s)[known], np.asarray(used)[known]
    if len(at_s) < 3:
        return np.empty(0)
    middle = at_s[(at_s >= at_s[0] + delay_s) & (at_s <= at_s[-1] - delay_s)]
    before, now, after = (np.interp(middle + shift, at_s, held) for shift in (-delay_s, 0.0, delay_s))
    return np.asarray(((after - now) - (now - before)) / usable)


def needed_count(quantile_ratio: float, least: int = MIN_STEPS) -> int:
    """Return how many samples tell a quantile: one beyond it at least, and never fewer than `least`."""
    return max(least, math.ceil(1.0 / max(1.0 - quantile_ratio, 1e-6) - 1e-9))


def reserve_for_slo(
    quantile_ratio: float,
    *,
    ages_s: Sequence[float] | FloatArray,
    departures_ratio: FloatArray,
    summaries: Sequence[ErrorSummary] = (),
    outputs: QuantileTable | None = None,
    base: ReserveSettings | None = None,
) -> CalibratedReserve:
    """
    Return the knobs with which the promise holds `quantile_ratio` of the time.

    Args:
        quantile_ratio: 0.5 up to 0.999999.
        ages_s: Ages of figures when they were used.
        departures_ratio: Of growth from its trend over that age, shares of usable (`growth_departures_ratio`).
        summaries: Errors; held-out ones count.
        outputs: Output quantiles, for the spread of output length.
        base: What stays where nothing was measured.
    """
    chosen = base or ReserveSettings()
    promise = min(max(quantile_ratio, 0.5), 0.999999)
    needed = needed_count(promise)
    ages = np.asarray(ages_s, dtype=np.float64)
    ages = ages[np.isfinite(ages)]
    delay_s = float(np.quantile(ages, promise)) if len(ages) >= needed else None
    buffer = None
    if len(departures_ratio) >= needed:
        buffer = float(np.clip(np.quantile(departures_ratio, promise), 0.0, 1.0))
    spread, requests = (None, 0) if outputs is None else _output_spread(outputs)
    knobs = [
        Knob(
            name="growth_quantile_ratio",
            value=promise,
            chosen=chosen.growth_quantile_ratio,
            is_calibrated=True,
            sample_count=0,
            needed_count=0,
        ),
        _knob("telemetry_delay_s", delay_s, chosen.telemetry_delay_s, len(ages), needed),
        _knob("error_buffer_ratio", buffer, chosen.error_buffer_ratio, len(departures_ratio), needed),
        _knob("output_error_ratio", spread, chosen.output_error_ratio, requests, MIN_SAMPLES),
    ]
    for name, quantity in zip(RISK_KNOBS, (Quantity.TTFT, Quantity.STEP), strict=True):
        value, count = _spread(summaries, quantity)
        knobs.append(_knob(name, value, None, count, MIN_ERRORS))
    return CalibratedReserve(quantile_ratio=quantile_ratio, base=chosen, knobs=tuple(knobs))


def _knob(name: str, measured: float | None, chosen: float | None, count: int, needed: int) -> Knob:
    return Knob(
        name=name,
        value=chosen if measured is None else measured,
        chosen=chosen,
        is_calibrated=measured is not None,
        sample_count=count,
        needed_count=needed,
    )


def _output_spread(outputs: QuantileTable) -> tuple[float | None, int]:
    """Return the relative spread of output length, (95th percentile / median - 1) in standard deviations, and of how
    many requests; None where no bucket has enough of its own."""
    found = []
    for cell in outputs.cells:
        points = {point.quantile: point.value for point in cell.points}
        if cell.slo_class == ALL and not cell.taken_from and points.get(0.5) and 0.95 in points:
            found.append(((points[0.95] / points[0.5] - 1.0) / NORMAL_95, cell.sample_count))
    if not found:
        return None, 0
    values, counts = zip(*found, strict=True)
    spread = float(np.average(values, weights=counts))
    return min(max(spread, LEAST_SPREAD_RATIO), MOST_SPREAD_RATIO), int(sum(counts))


def _spread(summaries: Sequence[ErrorSummary], quantity: Quantity) -> tuple[float | None, int]:
    """Return bias and spread of the held-out errors together, root of squares, and how many there are."""
    for each in summaries:
        is_whole = each.slo_class == ALL and each.bucket == float("inf")
        if each.quantity is quantity and each.is_held_out and is_whole:
            if each.spread_ratio is None:
                return None, each.sample_count
            spread = float(np.hypot(each.bias_ratio, each.spread_ratio))
            return min(max(spread, LEAST_SPREAD_RATIO), MOST_SPREAD_RATIO), each.sample_count
    return None, 0

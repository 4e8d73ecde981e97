"""
The safety reserve that an SLO asks for, from what was measured: how old figures are, how far growth departs from its
trend, how far lengths and times are off.

Nothing here adds a new formula of the reserve: it sets the knobs of `reserve.ReserveSettings` and the error spreads
that `policy.DecideSettings` takes, each with the sentence that says where it comes from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.calibration_error import ALL, ErrorSummary, Quantity
from scoring.model import FloatArray, PoolHistory
from scoring.quantile_table import QuantileTable
from scoring.reserve import ReserveSettings

MIN_STEPS: Final = 30
"""Fewer departures of growth than this give no quantile (chosen)."""
NORMAL_95: Final = 1.6449
LEAST_SPREAD_RATIO: Final = 0.02
"""Predictions are never trusted to better than 2 % (chosen)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedReserve:
    """
    Knobs for a stated SLO.

    Attributes:
        quantile_ratio: Share of the time the promise is to hold.
        settings: Knobs of the reserve.
        ttft_error_ratio: Relative spread of predicted TTFT; None where nothing was measured.
        tpot_error_ratio: The same of step time.
        reasons: One sentence a knob, the measured ones and those that stay chosen.
    """

    quantile_ratio: float
    settings: ReserveSettings
    ttft_error_ratio: float | None
    tpot_error_ratio: float | None
    reasons: tuple[str, ...]


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
    ages = np.asarray(ages_s, dtype=np.float64)
    ages = ages[np.isfinite(ages)]
    reasons = [f"growth is covered at the {quantile_ratio:.1%} quantile that the SLO states"]
    delay_s = chosen.telemetry_delay_s
    if len(ages):
        delay_s = float(np.quantile(ages, quantile_ratio))
        reasons.append(f"figures were up to {delay_s:.2f} s old at that quantile ({len(ages)} ages)")
    else:
        reasons.append("no ages measured: the delay of figures stays as chosen")
    buffer_ratio = chosen.error_buffer_ratio
    if len(departures_ratio) >= MIN_STEPS:
        buffer_ratio = float(np.clip(np.quantile(departures_ratio, quantile_ratio), 0.0, 1.0))
        reasons.append(f"growth departed from its trend by up to {buffer_ratio:.1%} of usable at that quantile")
    else:
        reasons.append(
            f"{len(departures_ratio)} departures of growth measured, {MIN_STEPS} needed: the buffer stays as chosen"
        )
    output_ratio = chosen.output_error_ratio
    spread = None if outputs is None else _output_spread(outputs)
    if spread is not None:
        output_ratio = float(np.clip(spread, LEAST_SPREAD_RATIO, 10.0))
        reasons.append(f"output lengths spread {output_ratio:.0%} about their median (finished requests)")
    else:
        reasons.append("no request log: the spread of output length stays as chosen")
    ttft, tpot = (_spread(summaries, each) for each in (Quantity.TTFT, Quantity.STEP))
    for name, value in (("TTFT", ttft), ("step time", tpot)):
        reasons.append(
            f"{name} was off by {value:.1%} (held out)" if value is not None else f"{name}: nothing held out yet"
        )
    settings = ReserveSettings(
        growth_quantile_ratio=min(max(quantile_ratio, 0.5), 0.999999),
        telemetry_delay_s=delay_s,
        decision_delay_s=chosen.decision_delay_s,
        failure_count=chosen.failure_count,
        failure_share_ratio=chosen.failure_share_ratio,
        error_buffer_ratio=buffer_ratio,
        output_error_ratio=output_ratio,
        growth_horizon_s=chosen.growth_horizon_s,
        evictable_share_ratio=chosen.evictable_share_ratio,
    )
    return CalibratedReserve(
        quantile_ratio=quantile_ratio,
        settings=settings,
        ttft_error_ratio=ttft,
        tpot_error_ratio=tpot,
        reasons=tuple(reasons),
    )


def _output_spread(outputs: QuantileTable) -> float | None:
    """Return the relative spread of output length: (95th percentile / median - 1) in standard deviations."""
    found = []
    for cell in outputs.cells:
        points = {point.quantile: point.value for point in cell.points}
        if cell.slo_class == ALL and not cell.taken_from and points.get(0.5) and 0.95 in points:
            found.append(((points[0.95] / points[0.5] - 1.0) / NORMAL_95, cell.sample_count))
    if not found:
        return None
    values, counts = zip(*found, strict=True)
    return float(np.average(values, weights=counts))


def _spread(summaries: Sequence[ErrorSummary], quantity: Quantity) -> float | None:
    """Return bias and spread of the held-out errors together, root of squares; None without any."""
    for each in summaries:
        is_whole = each.slo_class == ALL and each.bucket == float("inf")
        if each.quantity is quantity and each.is_held_out and is_whole and each.spread_ratio is not None:
            return max(float(np.hypot(each.bias_ratio, each.spread_ratio)), LEAST_SPREAD_RATIO)
    return None

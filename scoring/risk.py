"""
How likely a pool runs out of room, and when: first passage of a drifted random walk.

What is left of a pool (its distance to a barrier, in tokens) is taken as a Brownian motion with drift `drift`
(tokens per second, negative while the pool fills) and standard deviation `spread` per square root of a second. Both
come from the pool's own recent history, never from a constant. All functions are elementwise over numpy arrays; an
unknown input (NaN) gives an unknown output.

Source of the formulas: the reflection principle for Brownian motion with drift; the first passage time follows an
inverse Gaussian law when the drift points at the barrier (e.g. Borodin and Salminen, Handbook of Brownian Motion,
2.1.1.4).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import optimize, special

from scoring.model import FloatArray

DISCRETE_SHIFT: Final = 0.5826
"""
Barrier shift in units of one step's standard deviation when the walk is only looked at once a step:
-zeta(1/2)/sqrt(2 pi) (Broadie, Glasserman and Kou 1997). A polled pool can dip and recover between two polls.
"""


STRAIGHT_RATIO: Final = 1e-9
"""A spread over the whole horizon below this share of the distance is a straight line to double precision."""


def passage_probability(
    distance: FloatArray, drift_per_s: FloatArray, spread_per_sqrt_s: FloatArray, horizon_s: FloatArray
) -> FloatArray:
    """
    Return P(the walk touches the barrier within the horizon).

    Args:
        distance: Tokens above the barrier now; at or below 0 the barrier is touched already.
        drift_per_s: Mean change of the distance, tokens per second.
        spread_per_sqrt_s: Standard deviation of the change over one second, tokens; 0 is a straight line.
        horizon_s: How far to look, seconds.

    Computed in logarithms: the second term of the reflection formula is a huge number times a tiny one.
    """
    distance, drift, spread, horizon = np.broadcast_arrays(
        *(np.asarray(value, float) for value in (distance, drift_per_s, spread_per_sqrt_s, horizon_s))
    )
    is_known = np.isfinite(distance) & np.isfinite(drift) & np.isfinite(spread) & (spread >= 0) & (horizon >= 0)
    with np.errstate(all="ignore"):
        root = spread * np.sqrt(horizon)
        first = special.ndtr((-distance - drift * horizon) / root)
        log_second = -2.0 * (drift / spread) * (distance / spread) + special.log_ndtr(
            (-distance + drift * horizon) / root
        )
        walked = first + np.exp(np.minimum(log_second, 0.0))
        straight = np.where(distance + np.minimum(drift, 0.0) * horizon <= 0, 1.0, 0.0)
        probability = np.where(root > STRAIGHT_RATIO * np.abs(distance), np.clip(walked, 0.0, 1.0), straight)
    probability = np.where(distance <= 0, 1.0, probability)
    return np.where(is_known, probability, np.nan)


def discrete_distance(distance: FloatArray, spread_per_sqrt_s: FloatArray, step_s: float) -> FloatArray:
    """Return the distance to use when the walk only counts as past the barrier at looks `step_s` apart."""
    return np.asarray(distance + DISCRETE_SHIFT * spread_per_sqrt_s * np.sqrt(step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """
    When the barrier is reached, given the drift stays.

    Attributes:
        expected_s: Mean first passage time, distance / -drift; None when the pool does not fill.
        low_s: The barrier is reached before it with probability (1 - coverage) / 2; None when never so likely.
        high_s: The same with probability (1 + coverage) / 2; None when never so likely.
        coverage: Of the interval.
        ever_probability: P(the barrier is ever reached); below 1 when the pool drains.
    """

    expected_s: float | None
    low_s: float | None
    high_s: float | None
    coverage: float
    ever_probability: float


HORIZON_LIMIT_S: Final = 86_400.0
"""Beyond a day the drift of the last minutes says nothing; such times are told as none."""


def exhaustion(
    distance: float, drift_per_s: float, spread_per_sqrt_s: float, *, coverage: float = 0.8
) -> Exhaustion | None:
    """
    Return the time to exhaustion with an interval, or None when an input is unknown.

    Raises:
        ValueError: coverage is not between 0 and 1.
    """
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage is {coverage}: must be between 0 and 1")
    if not all(np.isfinite(value) for value in (distance, drift_per_s, spread_per_sqrt_s)) or spread_per_sqrt_s < 0:
        return None
    if distance <= 0:
        return Exhaustion(expected_s=0.0, low_s=0.0, high_s=0.0, coverage=coverage, ever_probability=1.0)
    expected_s = distance / -drift_per_s if drift_per_s < 0 else None
    if spread_per_sqrt_s == 0:
        ever = 1.0 if drift_per_s < 0 else 0.0
    else:
        ever = float(np.exp(min(0.0, -2.0 * drift_per_s * distance / spread_per_sqrt_s**2)))

    def quantile(share: float) -> float | None:
        if ever <= share:
            return None
        if spread_per_sqrt_s == 0:
            return expected_s

        def excess(log_time: float) -> float:
            found = passage_probability(
                np.array(distance), np.array(drift_per_s), np.array(spread_per_sqrt_s), np.array(np.exp(log_time))
            )
            return float(found) - share

        low, high = np.log(1e-6), np.log(HORIZON_LIMIT_S)
        if excess(high) < 0:
            return None
        if excess(low) > 0:
            return 0.0
        return float(np.exp(optimize.brentq(excess, low, high, xtol=1e-6)))

    low_s, high_s = quantile((1.0 - coverage) / 2.0), quantile((1.0 + coverage) / 2.0)
    is_near = expected_s is not None and expected_s <= HORIZON_LIMIT_S
    return Exhaustion(
        expected_s=expected_s if is_near else None,
        low_s=low_s,
        high_s=high_s,
        coverage=coverage,
        ever_probability=ever,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """
    Drift and spread of a pool's remaining room.

    Attributes:
        drift_per_s: Tokens per second, weighted towards the present.
        spread_per_sqrt_s: Tokens per square root of a second, robust against single jumps.
        sample_count: Steps used.
        span_s: Time they cover.
    """

    drift_per_s: float
    spread_per_sqrt_s: float
    sample_count: int
    span_s: float


STEPS_MIN: Final = 8
"""Fewer steps than this say nothing about a spread. Chosen: the median of eight has half the error of one."""
MAD_TO_STD: Final = 1.4826
"""Standard deviation of a normal law over its median absolute deviation."""


def fit_walk(
    at_s: FloatArray, remaining_tokens: FloatArray, *, half_life_s: float = 10.0, gap_s: float = 10.0
) -> Walk | None:
    """
    Fit the walk to a history of remaining room, or None when there are too few steps.

    Steps over a gap (more than `gap_s`), out of order, or next to an unknown value are left out; the drift is an
    exponentially weighted mean of the step rates, the spread the larger of the robust and the plain weighted one, so
    that a quiet pool with rare jumps is not taken for a sure one.

    Args:
        at_s: Instants, ascending. Shape (n,).
        remaining_tokens: Available less reserved, tokens; NaN where unknown. Shape (n,).
        half_life_s: Age at which a step weighs half.
        gap_s: Longer steps are gaps, not changes.
    """
    step_s = np.diff(at_s)
    change = np.diff(remaining_tokens)
    is_used = np.isfinite(change) & (step_s > 0) & (step_s <= gap_s)
    if np.count_nonzero(is_used) < STEPS_MIN:
        return None
    step_s, change, ends = step_s[is_used], change[is_used], at_s[1:][is_used]
    weight = step_s * np.exp2(-(ends[-1] - ends) / half_life_s)
    weight = weight / weight.sum()
    drift = float(np.sum(weight * change / step_s))
    scaled = (change - drift * step_s) / np.sqrt(step_s)
    plain = float(np.sqrt(np.sum(weight * scaled**2)))
    robust = MAD_TO_STD * float(np.median(np.abs(scaled - np.median(scaled))))
    return Walk(
        drift_per_s=drift,
        spread_per_sqrt_s=max(plain, robust),
        sample_count=len(change),
        span_s=float(ends[-1] - ends[0]),
    )


def high_water_s(at_s: FloatArray, committed_ratio: FloatArray, mark_ratio: float, *, gap_s: float = 10.0) -> float:
    """Return seconds spent above the pool's own high-water mark; gaps and unknown samples count as not seen."""
    step_s = np.diff(at_s)
    is_seen = (step_s > 0) & (step_s <= gap_s) & np.isfinite(committed_ratio[:-1])
    return float(np.sum(step_s[is_seen & (committed_ratio[:-1] > mark_ratio)]))


def high_water_mark(committed_ratio: FloatArray, quantile: float = 0.95) -> float | None:
    """Return the pool's own high-water mark: a quantile of its known past, None when there is none."""
    known = committed_ratio[np.isfinite(committed_ratio)]
    return float(np.quantile(known, quantile)) if len(known) >= STEPS_MIN else None

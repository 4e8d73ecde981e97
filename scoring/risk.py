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

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

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

_SOONEST_S: Final = 1e-6
_ROUND_POINTS: Final = 64
_ROUNDS: Final = 5
"""Each round narrows a quantile's bracket by `_ROUND_POINTS` - 1: five leave less than 1e-7 of the time."""


def expected_exhaustion_s(distance: float, drift_per_s: float) -> float | None:
    """
    Return the mean first passage time distance / -drift, seconds.

    None where an input is unknown, where the pool does not fill and where it is further than `HORIZON_LIMIT_S`.
    """
    if not (math.isfinite(distance) and math.isfinite(drift_per_s)):
        return None
    if distance <= 0:
        return 0.0
    if drift_per_s >= 0 or distance > -drift_per_s * HORIZON_LIMIT_S:
        return None
    return distance / -drift_per_s


def exhaustion(
    distance: float, drift_per_s: float, spread_per_sqrt_s: float, *, coverage: float = 0.8
) -> Exhaustion | None:
    """
    Return the time to exhaustion with an interval, or None when an input is unknown.

    Who needs the mean alone asks `expected_exhaustion_s`: the interval has no closed form and costs a search.

    Raises:
        ValueError: coverage is not between 0 and 1.
    """
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage is {coverage}: must be between 0 and 1")
    if not all(math.isfinite(value) for value in (distance, drift_per_s, spread_per_sqrt_s)) or spread_per_sqrt_s < 0:
        return None
    if distance <= 0:
        return Exhaustion(expected_s=0.0, low_s=0.0, high_s=0.0, coverage=coverage, ever_probability=1.0)
    expected_s = expected_exhaustion_s(distance, drift_per_s)
    if spread_per_sqrt_s == 0:
        low_s = high_s = expected_s
        ever = 1.0 if drift_per_s < 0 else 0.0
    else:
        ever = math.exp(min(0.0, -2.0 * drift_per_s * distance / spread_per_sqrt_s**2))
        shares = ((1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0)
        low_s, high_s = _passage_quantiles_s(distance, drift_per_s, spread_per_sqrt_s, shares)
    return Exhaustion(
        expected_s=expected_s,
        low_s=low_s,
        high_s=high_s,
        coverage=coverage,
        ever_probability=ever,
    )


def _passage_quantiles_s(
    distance: float, drift_per_s: float, spread_per_sqrt_s: float, shares: tuple[float, float]
) -> tuple[float | None, ...]:
    """
    Return the times by which the barrier is touched with each of `shares`; None when not within the horizon limit.

    A probability of time only grows, so a grid over log time brackets each quantile; grids within brackets narrow
    them together, in few calls on arrays rather than many on numbers.
    """
    wanted = np.array(shares)
    low = np.full(len(shares), math.log(_SOONEST_S))
    high = np.full(len(shares), math.log(HORIZON_LIMIT_S))
    steps = np.linspace(0.0, 1.0, _ROUND_POINTS)
    is_reached = is_at_once = np.zeros(len(shares), bool)
    for done in range(_ROUNDS):
        log_times = low[:, None] + (high - low)[:, None] * steps
        found = passage_probability(
            np.array(distance), np.array(drift_per_s), np.array(spread_per_sqrt_s), np.exp(log_times)
        )
        is_past = found >= wanted[:, None]
        if not done:
            is_reached, is_at_once = is_past[:, -1], is_past[:, 0]
        first = np.clip(is_past.argmax(axis=1), 1, None)[:, None]
        low = np.take_along_axis(log_times, first - 1, axis=1)[:, 0]
        high = np.take_along_axis(log_times, first, axis=1)[:, 0]
    times = np.where(is_at_once, 0.0, np.exp(0.5 * (low + high)))
    return tuple(float(time) if known else None for time, known in zip(times, is_reached, strict=True))


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

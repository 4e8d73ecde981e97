"""First passage: equal to Monte Carlo, monotone, never overflowing; unknown stays unknown."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.risk import (
    discrete_distance,
    exhaustion,
    expected_exhaustion_s,
    fit_walk,
    high_water_mark,
    high_water_s,
    passage_probability,
)


def probability(distance: float, drift: float, spread: float, horizon: float) -> float:
    """Return one probability as a float."""
    return float(passage_probability(*(np.array(value) for value in (distance, drift, spread, horizon))))


@pytest.mark.parametrize(
    ("distance", "drift", "spread", "horizon"),
    [
        (1000.0, -30.0, 200.0, 30.0),
        (5000.0, -200.0, 500.0, 30.0),
        (500.0, 20.0, 150.0, 30.0),
        (3000.0, 0.0, 400.0, 60.0),
        (100.0, 50.0, 50.0, 10.0),
    ],
)
def test_first_passage_equals_monte_carlo(distance: float, drift: float, spread: float, horizon: float) -> None:
    """Simulated walks looked at every 0.05 s touch the barrier as often as the formula says, within 0.01."""
    rng = np.random.default_rng(1)
    paths, step = 40_000, 0.05
    position = np.full(paths, distance)
    touched = np.zeros(paths, bool)
    for _ in range(int(horizon / step)):
        position += drift * step + spread * np.sqrt(step) * rng.standard_normal(paths)
        touched |= position <= 0
    looked = float(discrete_distance(np.array(distance), np.array(spread), step))
    assert probability(looked, drift, spread, horizon) == pytest.approx(touched.mean(), abs=0.01)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.floats(1e-3, 1e9), st.floats(-1e7, 1e7), st.floats(0.0, 1e7), st.floats(0.0, 1e5), st.floats(1.0, 10.0))
def test_it_is_a_probability_and_monotone(
    distance: float, drift: float, spread: float, horizon: float, factor: float
) -> None:
    """More room never raises it, more time never lowers it, a stronger fill never lowers it; always within 0 and 1."""
    base = probability(distance, drift, spread, horizon)
    slack = 1e-9
    assert 0.0 <= base <= 1.0
    assert probability(distance * factor, drift, spread, horizon) <= base + slack
    assert probability(distance, drift, spread, horizon * factor) >= base - slack
    assert probability(distance, drift - abs(drift) * (factor - 1), spread, horizon) >= base - slack


def test_degenerate_walks() -> None:
    """No room left is certain; a straight line is 0 or 1; an unknown input is unknown, not 0."""
    assert probability(0.0, 5.0, 1.0, 1.0) == 1.0
    assert probability(100.0, -10.0, 0.0, 9.9) == 0.0
    assert probability(100.0, -10.0, 0.0, 10.0) == 1.0
    assert probability(100.0, 10.0, 0.0, 1e6) == 0.0
    assert np.isnan(probability(float("nan"), 1.0, 1.0, 1.0))
    assert np.isnan(probability(1.0, float("nan"), 1.0, 1.0))
    assert exhaustion(float("nan"), 1.0, 1.0) is None


def test_time_to_exhaustion_covers_at_its_rate() -> None:
    """Simulated passage times lie in the stated interval as often as stated, and have the stated mean."""
    distance, drift, spread = 2000.0, -50.0, 150.0
    found = exhaustion(distance, drift, spread, coverage=0.8)
    assert found is not None
    rng = np.random.default_rng(2)
    # The passage time of a drifted Brownian motion is inverse Gaussian: drawn here by numpy, not by our formula.
    times = rng.wald(distance / -drift, distance**2 / spread**2, 200_000)
    assert found.expected_s == pytest.approx(times.mean(), rel=0.01)
    inside = np.mean((times >= found.low_s) & (times <= found.high_s))
    assert inside == pytest.approx(0.8, abs=0.01)


def test_a_draining_pool_has_no_expected_time() -> None:
    """With room growing there is no expected time, and the chance of ever running out is below 1."""
    found = exhaustion(1000.0, 10.0, 50.0)
    assert found is not None
    assert found.expected_s is None
    assert 0.0 < found.ever_probability < 1.0
    assert found.high_s is None


@given(
    st.floats(1.0, 1e6),
    st.floats(-1e4, 1e3),
    st.floats(0.1, 1e5),
    st.sampled_from([0.5, 0.8, 0.98]),
)
def test_the_interval_inverts_the_probability(distance, drift, spread, coverage) -> None:
    """By its ends the barrier is touched with the stated shares; an end is absent exactly when it never is."""
    found = exhaustion(distance, drift, spread, coverage=coverage)
    assert found is not None
    assert found.expected_s == expected_exhaustion_s(distance, drift)
    for time_s, share in ((found.low_s, (1 - coverage) / 2), (found.high_s, (1 + coverage) / 2)):
        if time_s is None:
            assert probability(distance, drift, spread, 86_400.0) < share
        elif time_s == 0.0:
            assert probability(distance, drift, spread, 1e-6) >= share
        else:
            assert probability(distance, drift, spread, time_s * (1 - 1e-6)) <= share + 1e-9
            assert probability(distance, drift, spread, time_s * (1 + 1e-6)) >= share - 1e-9


def test_the_fit_recovers_drift_and_spread() -> None:
    """A long walk of known drift and spread is fitted to within its sampling error, whatever the polling rhythm."""
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.uniform(0.5, 1.5, 4000))
    steps = np.diff(at_s, prepend=at_s[0])
    remaining = 1e6 + np.cumsum(-40.0 * steps + 120.0 * np.sqrt(steps) * rng.standard_normal(4000))
    walk = fit_walk(at_s, remaining, half_life_s=2000.0)
    assert walk is not None
    assert walk.drift_per_s == pytest.approx(-40.0, abs=8.0)
    assert walk.spread_per_sqrt_s == pytest.approx(120.0, rel=0.05)


def test_gaps_restarts_and_clock_jumps_are_no_steps() -> None:
    """A gap, a backward clock and unknown samples add no step; too few steps give no walk at all."""
    at_s = np.arange(60.0)
    remaining = 1e5 - 10.0 * at_s
    plain = fit_walk(at_s, remaining)
    assert plain is not None
    jumped_at, jumped = at_s.copy(), remaining.copy()
    jumped_at[30:] += 1000.0
    jumped[30:] -= 5e4
    with_gap = fit_walk(jumped_at, jumped)
    assert with_gap is not None
    assert with_gap.drift_per_s == pytest.approx(plain.drift_per_s)
    assert with_gap.spread_per_sqrt_s == pytest.approx(plain.spread_per_sqrt_s, abs=1e-6)
    holes = remaining.copy()
    holes[10:20] = np.nan
    assert fit_walk(at_s, holes).drift_per_s == pytest.approx(-10.0)
    assert fit_walk(at_s[:5], remaining[:5]) is None
    assert fit_walk(at_s, np.full(60, np.nan)) is None


def test_a_constant_series_is_sure_and_not_filling() -> None:
    """Nothing moves: drift and spread are 0, and no exhaustion is predicted."""
    at_s = np.arange(30.0)
    walk = fit_walk(at_s, np.full(30, 777.0))
    assert (walk.drift_per_s, walk.spread_per_sqrt_s) == (0.0, 0.0)
    assert probability(777.0, walk.drift_per_s, walk.spread_per_sqrt_s, 1e4) == 0.0


def test_high_water_counts_only_what_was_seen() -> None:
    """Time above the mark adds up over seen steps; a gap is not counted as high."""
    at_s = np.array([0.0, 1.0, 2.0, 50.0, 51.0])
    ratio = np.array([0.5, 0.9, 0.9, 0.9, 0.2])
    assert high_water_s(at_s, ratio, 0.8) == pytest.approx(2.0)
    assert high_water_mark(np.array([np.nan, 0.5])) is None

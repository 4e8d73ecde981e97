"""
Laws of the terms: monotone where the world is, bounded or unbounded where they say so, unknown in is unknown out, and
the same number whether called on floats, on arrays or compiled.
"""

import inspect
import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring import cost, service

FUNCTIONS = [each for _, each in inspect.getmembers(cost, inspect.isfunction) if each.__module__ == "scoring.cost"]
SIZES = st.floats(0, 1e7)
RATES = st.floats(-1e5, 1e5)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_compiled_and_vectorised_agree_with_plain(function: object) -> None:
    """One formula, three uses: floats, arrays and numba give the same values, NaN and inf included."""
    count = len(inspect.signature(function).parameters)
    rng = np.random.default_rng(5)
    rows = rng.choice([0.0, 1.0, -1.0, 0.5, 3.7, 1e3, 1e6, np.nan, np.inf], size=(40, count))
    compiled = numba.njit(function)
    with np.errstate(all="ignore"):
        plain = np.array([float(function(*map(float, row))) for row in rows])
        together = np.asarray(function(*rows.T), dtype=np.float64)
        fast = np.array([compiled(*map(float, row)) for row in rows])
    np.testing.assert_allclose(together, plain, rtol=1e-12)
    np.testing.assert_allclose(fast, plain, rtol=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_an_unknown_input_is_an_unknown_term(function: object) -> None:
    """NaN in gives NaN or, where the other inputs alone decide it, the value they decide; never a free 0."""
    names = list(inspect.signature(function).parameters)
    for index in range(len(names)):
        scale = 0.1 if function is cost.kv_pressure_ratio else 1.0  # From U = 1 on pressure is infinite whatever else.
        arguments = [scale * (2.0 + place) for place in range(len(names))]
        arguments[index] = math.nan
        with np.errstate(all="ignore"):
            value = float(function(*arguments))
        if function is cost.effective_bandwidth_bytes_per_s:
            assert value > 0.0  # One unknown side leaves the other.
        elif function is cost.slot_wait_s and names[index] == "finished_per_s":
            continue  # Whether a slot is free does not depend on it; see below.
        else:
            assert math.isnan(value)


def test_slot_wait_needs_a_finish_rate_only_when_slots_are_short() -> None:
    """A free slot is a free slot; without one an unknown finish rate leaves the wait unknown, a zero one unbounded."""
    assert cost.slot_wait_s(3.0, 0.0, 8.0, math.nan) == 0.0
    assert math.isnan(cost.slot_wait_s(8.0, 0.0, 8.0, math.nan))
    assert cost.slot_wait_s(8.0, 0.0, 8.0, 0.0) == math.inf
    assert cost.slot_wait_s(8.0, 3.0, 8.0, 2.0) == 2.0


def test_prefill_wait_is_unbounded_without_a_rate() -> None:
    """A pool that computes next to nothing has an unbounded wait, not an empty queue (field case P14)."""
    assert cost.prefill_wait_s(21_000.0, 15_000.0) == pytest.approx(1.4)
    assert cost.prefill_wait_s(0.0, 0.0) == math.inf
    assert cost.prefill_wait_s(0.0, 0.3) == math.inf
    assert cost.prefill_wait_s(0.0, 1.0) == 0.0


@given(st.floats(100, 1e5), st.floats(10, 1e5), st.floats(0, 0.1), st.floats(0, 1e-8), st.floats(1, 2e5))
@settings(max_examples=60, deadline=None)
def test_linear_prefill_reproduces_the_measured_rate(
    rate: float, mean: float, base: float, square: float, n: float
) -> None:
    """At the mean prompt the whole formula gives the measured rate; it is positive and rises with the prompt."""
    linear = cost.linear_prefill_s(rate, mean, base, square)
    assert linear > 0.0
    if linear > 0.11 / rate:
        assert service.prefill_s(mean, 0.0, base, linear, square) == pytest.approx(mean / rate, rel=1e-9)
    assert service.prefill_s(n, 0.0, base, linear, square) < service.prefill_s(n * 1.5, 0.0, base, linear, square)


def test_bandwidth_is_the_lower_of_line_and_proof() -> None:
    """An idle link is not a slow link; a busy one is as fast as it moved; a broken gauge never enters."""
    assert cost.effective_bandwidth_bytes_per_s(50e9, 18.87e9, 1.0) == 18.87e9
    assert cost.effective_bandwidth_bytes_per_s(50e9, 1e9, 0.02) == 50e9
    assert cost.effective_bandwidth_bytes_per_s(math.nan, 1e9, 0.5) == 2e9
    assert math.isnan(cost.effective_bandwidth_bytes_per_s(math.nan, math.nan, 1.0))


@given(SIZES, SIZES, RATES, st.floats(0, 100), st.floats(0, 1e6))
@settings(max_examples=80, deadline=None)
def test_room_wait_is_monotone(demand: float, available: float, net: float, start: float, more: float) -> None:
    """More demand never waits less, more room never waits more; what fits at the start waits nothing."""
    wait = cost.room_wait_s(demand, available, net, start)
    assert wait >= 0.0
    assert cost.room_wait_s(demand + more, available, net, start) >= wait
    assert cost.room_wait_s(demand, available + more, net, start) <= wait
    short = demand - available + net * start
    if short < -1e-6:
        assert wait == 0.0
    elif short > 1e-6 and net >= 0.0:
        assert wait == math.inf


@given(SIZES, RATES, st.floats(0, 1e4), st.floats(1, 1e7))
@settings(max_examples=60, deadline=None)
def test_projection_is_bounded(committed: float, net: float, horizon: float, usable: float) -> None:
    """committed(t) stays between 0 and usable, and is committed itself at t = 0."""
    projected = cost.projected_tokens(committed, net, horizon, usable)
    assert 0.0 <= projected <= max(usable, committed)
    assert cost.projected_tokens(committed, net, 0.0, usable) == committed


@given(st.floats(0, 0.999), st.floats(0, 0.6), st.floats(0, 0.2))
@settings(max_examples=80, deadline=None)
def test_pressure_is_zero_then_convex_then_unbounded(ratio: float, reserve: float, step: float) -> None:
    """Zero while the reserve is untouched, never falling, convex, without bound towards 1 and infinite from there."""
    pressure = cost.kv_pressure_ratio(ratio, reserve)
    if 1.0 - ratio > reserve + 1e-9:
        assert pressure == 0.0
    assert cost.kv_pressure_ratio(min(ratio + step, 1.0), reserve) >= pressure
    low, high = max(ratio - step, 0.0), min(ratio + step, 0.999)
    middle = 0.5 * (low + high)
    average = 0.5 * (cost.kv_pressure_ratio(low, reserve) + cost.kv_pressure_ratio(high, reserve))
    assert cost.kv_pressure_ratio(middle, reserve) <= average + 1e-9
    assert cost.kv_pressure_ratio(1.0, reserve) == math.inf
    if reserve > 0.01:
        assert cost.kv_pressure_ratio(1.0 - 1e-9, reserve) > 1e6


@given(st.floats(0, 1e4), st.floats(0.01, 100), st.floats(0.01, 2), st.floats(0, 100))
@settings(max_examples=80, deadline=None)
def test_breach_is_a_probability_that_rises_with_the_prediction(
    pred: float, budget: float, error: float, more: float
) -> None:
    """Between 0 and 1, a half exactly on the budget, never falling as the prediction grows."""
    chance = cost.breach_probability(pred, budget, error)
    assert 0.0 <= chance <= 1.0
    assert cost.breach_probability(pred + more, budget, error) >= chance
    assert cost.breach_probability(budget, budget, error) == pytest.approx(0.5)
    assert cost.breach_probability(math.inf, budget, 0.3) > 0.99


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_either_breach_is_a_breach(first: float, second: float) -> None:
    """The risk of either is at least each alone and at most their sum; it does not matter which comes first."""
    both = cost.slo_risk_ratio(first, second)
    assert max(first, second) - 1e-12 <= both <= min(1.0, first + second) + 1e-12
    assert both == pytest.approx(cost.slo_risk_ratio(second, first))


def test_equal_weights_price_exactly_the_uncached_work() -> None:
    """With w2 = w3 = w7 the score of compute, transfer and benefit is the uncached compute and missing transfer."""
    whole = service.prefill_s(10_000.0, 0.0, 0.01, 1e-4, 1e-9)
    uncached = service.prefill_s(4_000.0, 6_000.0, 0.01, 1e-4, 1e-9)
    benefit = cost.prefix_benefit_s(whole, uncached, 0.2)
    score = cost.pair_score(0.0, whole, 0.5, 0.0, 0.0, 0.0, benefit, 1, 1, 1, 1, 1, 1, 1)
    assert score == pytest.approx(uncached + 0.3)

"""Laws of steadiness: seeded choices repeat, ties spread, bands hold, unknown signals move nothing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.slo import SLO_CLASSES, SloClass, Weights, slo_class, with_weights
from scoring.steadiness import (
    Ewma,
    Hysteresis,
    keep_choice,
    pick_best,
    pick_near_tie,
    pick_of_two,
    pick_random,
    rng_of,
)

SCORES = st.lists(st.one_of(st.floats(-10, 10), st.just(math.inf), st.just(math.nan)), min_size=1, max_size=12)


@given(SCORES, st.integers(0, 2**40), st.floats(0, 3))
@settings(max_examples=100, deadline=None)
def test_picks_are_finite_and_repeatable(values: list[float], seed: int, band: float) -> None:
    """Every way to pick returns a finite score or None when there is none, the same for the same seed."""
    scores = np.array(values)
    picks = (
        lambda: pick_best(scores),
        lambda: pick_random(scores, rng_of(seed)),
        lambda: pick_of_two(scores, rng_of(seed)),
        lambda: pick_near_tie(scores, rng_of(seed), band=band),
        lambda: keep_choice(scores, 0, band=band),
    )
    has_any = bool(np.isfinite(scores).any())
    for pick in picks:
        first, second = pick(), pick()
        assert first == second
        assert (first is not None) == has_any
        if first is not None:
            assert np.isfinite(scores[first])
    near = pick_near_tie(scores, rng_of(seed), band=band)
    if near is not None:
        assert scores[near] <= scores[pick_best(scores)] + band


def test_two_choices_never_take_the_worst_and_spread_the_rest() -> None:
    """Of n pools the best is taken with probability 2/n, the worst never (Mitzenmacher 2001)."""
    scores = np.arange(8.0)
    counts = np.bincount([pick_of_two(scores, rng_of(seed)) for seed in range(2_000)], minlength=8)
    assert counts[7] == 0
    assert counts[0] == pytest.approx(2_000 * 2 / 8, rel=0.12)
    assert list(counts) == sorted(counts, reverse=True)


def test_near_ties_are_taken_in_order_of_nearness() -> None:
    """Nearer scores are more likely; what is outside the band is never taken."""
    scores = np.array([1.0, 1.05, 1.09, 2.0])
    counts = np.bincount([pick_near_tie(scores, rng_of(seed), band=0.1) for seed in range(1_500)], minlength=4)
    assert counts[3] == 0
    assert counts[0] > counts[1] > counts[2] > 0


def test_ewma_forgets_by_half_lives_and_ignores_the_unknown() -> None:
    """One half-life moves half way; None and times that go back change nothing."""
    mean = Ewma(half_life_s=10.0)
    assert mean.update(None, 0.0) is None
    assert mean.update(4.0, 0.0) == 4.0
    assert mean.update(8.0, 10.0) == pytest.approx(6.0)
    assert mean.update(None, 20.0) == pytest.approx(6.0)
    assert mean.update(100.0, 5.0) == pytest.approx(6.0)
    split = Ewma(half_life_s=10.0)
    for at_s in (0.0, 3.0, 7.0, 10.0):
        split.update(4.0 if at_s == 0.0 else 8.0, at_s)
    assert split.value == pytest.approx(6.0)  # However often it is sampled.


@given(st.lists(st.one_of(st.floats(0, 1), st.none()), min_size=1, max_size=60), st.floats(0, 10))
@settings(max_examples=60, deadline=None)
def test_hysteresis_holds_its_state_for_the_dwell(signals: list[float | None], dwell_s: float) -> None:
    """Two changes are never closer than the dwell, and every change crosses its own threshold."""
    gate = Hysteresis(accept_at=0.4, refuse_at=0.7, dwell_s=dwell_s)
    last_change_s, state = None, True
    for second, signal in enumerate(signals):
        now = gate.update(signal, float(second))
        if now != state:
            assert signal is not None
            assert signal >= 0.7 if not now else signal <= 0.4
            if last_change_s is not None:
                assert second - last_change_s >= dwell_s
            last_change_s, state = second, now


def test_hysteresis_refuses_a_band_inside_out() -> None:
    """accept_at must lie below refuse_at."""
    with pytest.raises(ValueError, match=r"accept_at 0.8 must be below refuse_at 0.7"):
        Hysteresis(accept_at=0.8, refuse_at=0.7, dwell_s=1.0)


def test_sticking_lets_go_of_what_is_gone() -> None:
    """A previous choice that is refused or far behind is not kept."""
    scores = np.array([1.0, 1.2, math.inf])
    assert keep_choice(scores, 1, band=0.5) == 1
    assert keep_choice(scores, 1, band=0.1) == 0
    assert keep_choice(scores, 2, band=9.0) == 0
    assert keep_choice(scores, 7, band=9.0) == 0


def test_classes_are_looked_up_and_weights_bounded() -> None:
    """An unknown class or term lists the known ones; a weight outside 0 to 1,000 is refused."""
    assert slo_class("batch") is SLO_CLASSES["batch"]
    with pytest.raises(ValueError, match="known are batch, interactive, long_context"):
        slo_class("gold")
    changed = with_weights(SLO_CLASSES["batch"], {"transfer": 3.0})
    assert changed.weights.transfer == 3.0
    assert changed.weights.kv_pressure == SLO_CLASSES["batch"].weights.kv_pressure
    with pytest.raises(ValueError, match="weight 'speed' is not known; known are decode_wait"):
        with_weights(SLO_CLASSES["batch"], {"speed": 1.0})
    for bad in (-0.1, 1_001.0, math.nan):
        with pytest.raises(ValueError, match="allowed is "):
            with_weights(SLO_CLASSES["batch"], {"transfer": bad})
    with pytest.raises(ValueError, match="ttft_s is 0"):
        SloClass(name="x", ttft_s=0, tpot_s=0.1, quantile=0.5, weights=Weights())

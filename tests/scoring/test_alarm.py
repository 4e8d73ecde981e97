"""The alarm: no flapping, nothing from missing data, better told than a line where the line cannot know."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.alarm import AlarmSettings, AlarmState, PoolRisk, pool_risk, step_alarm
from scoring.alarm_forecast import FEATURES, FORECAST, forecast_inputs
from scoring.chain_flows import flows_of
from scoring.model import PoolHistory, PoolReading, Role

SETTINGS = AlarmSettings()


def _history(
    used: np.ndarray, *, running: float = 30.0, usable: float = 100_000.0, **columns: np.ndarray
) -> PoolHistory:
    at_s = np.arange(len(used), dtype=float)
    last = PoolReading(
        worker_id="d",
        role=Role.DECODE,
        engine="sglang",
        usable_tokens=usable,
        used_tokens=float(used[-1]),
        running_count=running,
        reserved_per_request_tokens=512.0,
    )
    base = {
        "usable_tokens": np.full(len(used), usable),
        "used_tokens": used,
        "running_count": np.full(len(used), running),
    }
    return PoolHistory(last=last, at_s=at_s, columns={**base, **columns})


def _risk(history: PoolHistory, safety: float | None = 2_000.0) -> PoolRisk:
    return pool_risk(flows_of(history, float(history.at_s[-1])), history, safety, SETTINGS)


def test_a_constant_pool_has_no_risk_and_no_time_to_exhaustion() -> None:
    """Nothing moves: no probability, no time, however full it is."""
    risk = _risk(_history(np.full(60, 99_000.0)))
    assert risk.exhausted_probability == 0.0
    assert risk.exhaustion is not None
    assert risk.exhaustion.expected_s is None


def test_a_straight_fill_is_full_when_a_ruler_says_so() -> None:
    """A pool that fills by the same amount each second is full in what is left over that amount."""
    risk = _risk(_history(50_000.0 + 500.0 * np.arange(60)))
    assert risk.drift_tokens_per_s == pytest.approx(-500.0)
    assert risk.exhaustion.expected_s == pytest.approx((100_000 - 79_500) / 500.0)
    assert risk.exhausted_probability == 0.0  # 41 s are beyond the horizon of 30 s.
    later = _risk(_history(60_000.0 + 500.0 * np.arange(60)))
    assert later.exhausted_probability == 1.0


def test_more_left_is_never_more_risk() -> None:
    """The same past with more capacity lowers every probability and lengthens the time."""
    rng = np.random.default_rng(3)
    used = 50_000.0 + np.cumsum(300.0 + 900.0 * rng.standard_normal(90))
    small, large = _risk(_history(used, usable=100_000.0)), _risk(_history(used, usable=120_000.0))
    assert small.exhausted_probability > large.exhausted_probability
    assert small.exhaustion.expected_s < large.exhaustion.expected_s


def test_probability_that_the_reserve_is_touched_is_never_below_that_of_exhaustion() -> None:
    """The reserve lies before empty."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        used = 60_000.0 + np.cumsum(200.0 + 800.0 * rng.standard_normal(90))
        risk = _risk(_history(np.clip(used, 0.0, 100_000.0)))
        assert risk.thin_probability >= risk.exhausted_probability


def test_a_restart_a_gap_or_a_new_capacity_is_no_flow() -> None:
    """A fall of used with falling counters, a hole of a minute, half the capacity: no drift over the break."""
    used = np.r_[np.linspace(10_000.0, 90_000.0, 60), np.full(12, 1_000.0)]
    counter = np.r_[np.linspace(0.0, 80_000.0, 60), np.linspace(0.0, 100.0, 12)]
    restarted = flows_of(_history(used, decode_generated_tokens_total=counter), 71.0)
    assert np.isnan(restarted.step_s[59])
    assert restarted.last(math.inf) == slice(60, 71)
    smaller = _history(used)
    smaller.columns["usable_tokens"][40:] = 95_000.0
    assert np.isnan(flows_of(smaller, 71.0).step_s[39])
    gap = _history(used)
    at_s = gap.at_s.copy()
    at_s[30:] += 60.0
    assert np.isnan(flows_of(replace(gap, at_s=at_s), float(at_s[-1]), 1e3).step_s[29])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 2_000), st.floats(0, 2_000)), min_size=2, max_size=40))
def test_flows_keep_the_books(steps: list[tuple[float, float, float]]) -> None:
    """What was grown and let in less what was given back is the change of what is held, at every step."""
    used, counter = [20_000.0], [0.0]
    for grown, admitted, released in steps:
        used.append(max(0.0, used[-1] + grown + admitted - released))
        counter.append(counter[-1] + grown)
    flows = flows_of(_history(np.array(used), decode_generated_tokens_total=np.array(counter)), 1e3, 1e4)
    assert flows.is_counted
    balance = flows.grown_tokens + flows.admitted_tokens - flows.released_tokens
    assert balance == pytest.approx(np.diff(used), abs=1e-6)
    assert (flows.admitted_tokens >= 0).all()
    assert (flows.released_tokens >= 0).all()


def test_the_same_figures_polled_twice_are_one_sample() -> None:
    """An engine that publishes every other second gives half the steps, not half of them without change."""
    used = np.repeat(np.linspace(10_000.0, 40_000.0, 30), 2)
    stamps = np.repeat(np.arange(30, dtype=float) * 2.0, 2)
    flows = flows_of(_history(used, reported_at_s=stamps), 60.0)
    assert len(flows.at_s) == 30
    assert flows.released_tokens == pytest.approx(np.zeros(29))


def test_many_young_sequences_are_worse_than_few_old_ones_at_the_same_use() -> None:
    """The forecast's claim over a line: use alone does not tell; how many share the room, and how young, does."""
    seconds = np.arange(60)
    wave = np.clip(seconds - 44, 0, 5) * 10_000.0  # Forty-five come within five seconds ...
    grown = np.cumsum(np.where(seconds > 46, 1_500.0, 100.0))  # ... and all of them generate.
    young = _history(
        12_000.0 + wave + grown - 100.0 * np.minimum(seconds, 46), running=48.0, decode_generated_tokens_total=grown
    )
    held = float(young.columns["used_tokens"][-1])
    old = _history(np.full(60, held), running=8.0, decode_generated_tokens_total=100.0 * seconds.astype(float))
    assert _risk(young).retraction_probability > 0.5
    assert _risk(old).retraction_probability < 0.1


def test_growth_that_nothing_gives_back_is_certain_whatever_the_forecast_says() -> None:
    """Few long sequences that only grow are full when a ruler says so, though the forecast has not seen their like."""
    used = 40_000.0 + 1_000.0 * np.arange(50)
    risk = _risk(_history(used, running=6.0, decode_generated_tokens_total=1_000.0 * np.arange(50.0)))
    assert risk.certain_s == pytest.approx(11.0, rel=0.05)
    state = step_alarm(AlarmState(), risk, 0.0, SETTINGS)
    state = step_alarm(state, risk, 2.0, SETTINGS)
    assert state.is_on
    assert state.basis == "growth"
    giving = used - 800.0 * np.arange(50)
    assert _risk(_history(giving, decode_generated_tokens_total=1_000.0 * np.arange(50.0))).certain_s is None


def test_outside_what_it_was_fitted_on_the_forecast_is_silent() -> None:
    """A pool a hundred times smaller than any it has seen gives no forecast; the walk judges."""
    history = _history(
        np.linspace(500.0, 900.0, 60), usable=1_000.0, decode_generated_tokens_total=np.arange(60, dtype=float)
    )
    flows = flows_of(history, 59.0)
    inputs = forecast_inputs(flows, history)
    assert inputs is not None
    assert inputs[FEATURES.index("sequences")] > FORECAST.highs[FEATURES.index("sequences")]
    risk = _risk(history)
    assert risk.retraction_probability is None
    assert risk.exhausted_probability is not None
    state = step_alarm(AlarmState(), risk, 60.0, SETTINGS)
    assert state.basis == "walk"


def test_behind_the_engines_gate_only_growth_counts() -> None:
    """A burst of admissions towards a gate that keeps room back is no exhaustion while what runs gives back as much."""
    seconds = np.arange(40)
    used = np.clip(seconds - 30, 0, 10) * 4_000.0 + 20_000.0 + 200.0 * (seconds % 2)
    grown = 200.0 * seconds.astype(float)
    open_ = _history(used, running=0.0, decode_generated_tokens_total=grown)
    gated = _history(used, running=60.0, decode_generated_tokens_total=grown)
    assert _risk(open_).exhausted_probability > 0.9
    assert _risk(gated).exhausted_probability < 0.1


def test_without_counters_there_is_a_walk_and_no_forecast() -> None:
    """An engine that counts nothing it generates is judged by its gauge alone."""
    risk = _risk(_history(50_000.0 + 500.0 * np.arange(60)))
    assert risk.retraction_probability is None
    assert risk.exhausted_probability is not None


def _alarms(values: list[float | None], every_s: float = 1.0) -> list[bool]:
    state, found = AlarmState(), []
    for place, value in enumerate(values):
        state = step_alarm(state, PoolRisk(retraction_probability=value), place * every_s, SETTINGS)
        found.append(state.is_on)
    return found


def test_a_value_on_the_edge_does_not_flap() -> None:
    """Crossing the threshold each second never raises it; once on, dips shorter than the dwell never end it."""
    assert not any(_alarms([0.9, 0.1] * 60))
    on = _alarms([0.9] * 5 + [0.1, 0.1, 0.9] * 40)
    assert all(on[2:])
    assert not any(_alarms([0.9] * 5 + [0.1] * 40)[20:])


def test_unknown_neither_raises_nor_ends() -> None:
    """A hole in the middle of ripening begins it anew; a hole while on leaves it on."""
    assert not any(_alarms([0.9, 0.9, None, 0.9, 0.9, None] * 10))
    assert all(_alarms([0.9] * 4 + [None] * 60)[3:])
    assert not any(_alarms([None] * 20))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=80))
def test_changes_of_the_alarm_are_never_closer_than_their_dwell(values: list[float | None]) -> None:
    """On lasts at least the dwell of going off, whatever comes."""
    found = _alarms(values)
    changes = [place for place in range(1, len(found)) if found[place] != found[place - 1]]
    for first, second in pairwise(changes):
        dwell_s = SETTINGS.off_dwell_s if found[first] else SETTINGS.on_dwell_s
        assert second - first >= dwell_s


def test_thresholds_that_would_flap_are_refused() -> None:
    """Off must lie below on, both inside 0 and 1."""
    with pytest.raises(ValueError, match="off_probability"):
        AlarmSettings(on_probability=0.5, off_probability=0.5)
    with pytest.raises(ValueError, match="horizon_s"):
        AlarmSettings(horizon_s=0.0)


@pytest.mark.parametrize(
    ("room", "drift", "offset"), [(4000.0, -50.0, 0.0), (4000.0, -50.0, 7.0), (0.0, 3.0, 0.0), (9.0, 3.0, 0.0)]
)
def test_the_expected_time_is_that_of_the_whole_answer(room, drift, offset) -> None:
    """The mean asked for alone and the mean with its interval are one number."""
    risk = PoolRisk(room_tokens=room, drift_tokens_per_s=drift, spread_tokens=20.0, offset_s=offset)
    assert risk.exhaustion is not None
    assert risk.expected_exhaustion_s == risk.exhaustion.expected_s
    assert PoolRisk(drift_tokens_per_s=drift, spread_tokens=20.0).expected_exhaustion_s is None

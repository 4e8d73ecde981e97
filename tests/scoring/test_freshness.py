"""Laws of age: independent of the engine's clock, never negative, growing with time, and a state for everything."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.check import history_of
from scoring.freshness import FreshnessThresholds, clock_offset_s, frozen_since, judge_age
from scoring.model import Finding, PoolReading, SourceState


def history(received, reported=None, answered=None, **columns):
    """A history of one pool by its stamps."""
    rows = []
    for index, at in enumerate(received):
        more = {name: column[index] for name, column in columns.items()}
        rows.append(
            PoolReading(
                worker_id="w",
                received_at_s=at,
                reported_at_s=None if reported is None else reported[index],
                answered_at_s=None if answered is None else answered[index],
                **more,
            )
        )
    return history_of(rows)


@given(st.floats(-1e5, 1e5), st.floats(0.0, 20.0), st.floats(0.0, 0.2))
@settings(deadline=None)
def test_age_does_not_depend_on_the_engine_s_clock(offset_s, lag_s, trip_s):
    """Shift the engine's clock by anything: the age stays the true one, within the trip of the answer."""
    received = [1e6 + i for i in range(5)]
    answered = [t - trip_s - offset_s for t in received]
    reported = [a - lag_s for a in answered]
    _, age_s, _ = judge_age(history(received, reported, answered), received[-1])
    assert age_s == pytest.approx(lag_s, abs=1e-3)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=8), st.floats(0, 100), st.floats(0, 100))
@settings(deadline=None)
def test_age_grows_with_time_and_is_never_negative(lags, early_s, more_s):
    """Without new answers a pool ages by exactly the time that passes."""
    received = [1000.0 + i for i in range(len(lags))]
    past = history(received, [t - lag for t, lag in zip(received, lags, strict=True)])
    _, first, _ = judge_age(past, received[-1] + early_s)
    _, later, _ = judge_age(past, received[-1] + early_s + more_s)
    assert first >= 0
    assert later - first == pytest.approx(more_s, abs=1e-6)


@pytest.mark.parametrize(
    ("age_s", "state"),
    [
        (0.0, SourceState.FRESH),
        (3.0, SourceState.FRESH),
        (3.1, SourceState.LATE),
        (10.0, SourceState.LATE),
        (10.1, SourceState.STALE),
    ],
)
def test_states_follow_the_age(age_s, state):
    """Fresh, late and stale at their limits; only the first two are scored."""
    judged, _, reason = judge_age(history([1000.0], [1000.0], [1000.0]), 1000.0 + age_s)
    assert judged is state
    assert reason
    assert judged.is_scored == (state is not SourceState.STALE)


@pytest.mark.parametrize("state", [SourceState.DOWN, SourceState.UNAUTHORISED, SourceState.NOT_UNDERSTOOD])
def test_the_last_poll_outranks_old_figures(state):
    """A worker that cannot be read now is in that state whatever its last figures' age; the reason is the poll's."""
    past = replace(history([1000.0], [1000.0]), poll_state=state, poll_detail="no route")
    judged, age_s, reason = judge_age(past, 1001.0)
    assert (judged, reason) == (state, "no route")
    assert age_s == pytest.approx(1.0)


def test_nothing_published_is_neither_fresh_nor_empty():
    """A slot that nothing was published into has no age and is not scored."""
    past = history([1000.0])
    published = replace(past, last=replace(past.last, findings=(Finding(code="nothing-published-yet", text="x"),)))
    judged, age_s, _ = judge_age(published, 1000.0)
    assert (judged, age_s) == (SourceState.NOTHING_YET, None)
    by_poll, _, _ = judge_age(replace(past, poll_state=SourceState.NOTHING_YET), 1000.0)
    assert by_poll is SourceState.NOTHING_YET


def test_a_failed_poll_makes_fresh_figures_late():
    """One failed poll is not down yet, and not fresh either."""
    judged, _, _ = judge_age(replace(history([1000.0], [1000.0]), poll_state=SourceState.LATE), 1001.0)
    assert judged is SourceState.LATE


BUSY = {"running_count": [3.0] * 30, "waiting_count": [4.0] * 30, "used_tokens": [500.0] * 30}


def test_figures_that_rest_while_requests_wait_are_frozen():
    """No engine time: unchanged for k polls with requests waiting is frozen since the first of them, then stale."""
    times = [1000.0 + i for i in range(30)]
    past = history(times, **BUSY)
    assert frozen_since(past, 5) == 1000.0
    judged, age_s, reason = judge_age(past, 1029.0)
    assert (judged, age_s) == (SourceState.STALE, pytest.approx(29.0))
    assert "frozen" in reason


def test_figures_that_move_or_idle_are_not_frozen():
    """One counter that moves, or nobody running and waiting, or too few polls: not frozen."""
    times = [1000.0 + i for i in range(30)]
    moving = history(times, **BUSY, prompt_tokens_total=[float(i) for i in range(30)])
    idle = history(times, running_count=[0.0] * 30, waiting_count=[0.0] * 30, used_tokens=[500.0] * 30)
    assert frozen_since(moving, 5) is None
    assert frozen_since(idle, 5) is None
    assert frozen_since(history(times[:4], **{k: v[:4] for k, v in BUSY.items()}), 5) is None
    for past in (moving, idle):
        assert judge_age(past, 1029.5)[0] is SourceState.FRESH


def test_frozen_counts_from_the_last_change():
    """Frozen since the last change, not since the first sample."""
    times = [1000.0 + i for i in range(30)]
    used = [100.0 + min(i, 10) for i in range(30)]
    assert frozen_since(history(times, running_count=[1.0] * 30, used_tokens=used), 5) == 1010.0


def test_a_frozen_snapshot_seen_from_the_start_is_no_clock():
    """Figures already old when first seen, and resting: their lag is age, not an offset between clocks."""
    times = [1000.0 + i for i in range(8)]
    past = history(times, [900.0] * 8)
    assert clock_offset_s(past) == 0.0
    assert judge_age(past, 1007.0)[0] is SourceState.STALE


def test_a_steady_lag_of_moving_figures_is_a_clock():
    """An hour behind and moving second by second: the clock is behind, the figures are fresh."""
    times = [1000.0 + i for i in range(8)]
    past = history(times, [t - 3600.0 for t in times])
    assert clock_offset_s(past) == pytest.approx(3600.0)
    assert judge_age(past, 1007.0)[0] is SourceState.FRESH


def test_a_clock_ahead_is_seen_at_once():
    """Figures from the future prove the offset with one sample."""
    past = history([1000.0], [1050.0])
    assert clock_offset_s(past) == pytest.approx(-50.0)
    assert judge_age(past, 1000.0)[0] is SourceState.FRESH


def test_stamps_of_two_nodes_are_not_one_clock():
    """Figures reported after the answer was built come from another node's clock: that offset is not used."""
    past = history([1000.0], [1030.0], [1000.0])
    assert clock_offset_s(past) == pytest.approx(-30.0)


def test_no_engine_time_has_no_offset():
    """Unknown stays unknown."""
    assert clock_offset_s(history([1000.0])) is None


@pytest.mark.parametrize(
    "bad", [{"late_after_s": 10.0, "stale_after_s": 3.0}, {"late_after_s": 0.0}, {"frozen_after_polls": 1}]
)
def test_limits_that_leave_a_state_out_are_refused(bad):
    """Thresholds must leave room for every state."""
    with pytest.raises(ValueError):
        FreshnessThresholds(**bad)

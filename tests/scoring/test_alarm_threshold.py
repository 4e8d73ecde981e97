"""When the alarm goes on: from the stated promise, by what retractions were foretold with; never from missing data."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.alarm_threshold import (
    FORECAST_BASIS,
    LEAD_S,
    LEAST_ON,
    LEAST_QUIET_COUNT,
    MOST_ON,
    OFF_SHARE,
    SIMULATED,
    WALK_BASIS,
    WINDOW_S,
    Foretold,
    Record,
    level_of_promise,
    step_record,
    threshold,
)

DWELL_S = 2.0
levels_ = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200)


def _walk(
    probabilities: list[float | None], retracted: list[float | None] | None = None, basis: str = FORECAST_BASIS
) -> tuple[Record, list[Foretold]]:
    """Return the record after one look a second, and what it settled."""
    record, settled = Record(), []
    counts = retracted or [0.0] * len(probabilities)
    for second, (probability, count) in enumerate(zip(probabilities, counts, strict=True)):
        record, found = step_record(
            record, float(second), pool="d/0", probability=probability, basis=basis, retracted=count, dwell_s=DWELL_S
        )
        settled += [] if found is None else [found]
    return record, settled


def _rising(at: int, length: int) -> list[float | None]:
    return [0.0] * at + [1.0] * (length - at)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(levels_, levels_)
def test_a_stricter_promise_never_waits_for_more(levels: list[float], quiet: list[float]) -> None:
    """The threshold falls or stays as the promise rises, whatever was seen, as long as the source is the same."""
    found = [threshold(FORECAST_BASIS, promise, levels, quiet, 0.7) for promise in (0.5, 0.8, 0.9, 0.95, 0.99)]
    for source in ("calibrated", "simulated"):
        on = [each.on for each in found if each.source == source]
        assert on == sorted(on, reverse=True)
    for each in found:
        assert LEAST_ON <= each.on <= MOST_ON
        assert each.off == pytest.approx(OFF_SHARE * each.on)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.floats(LEAST_ON, MOST_ON), min_size=20, max_size=300), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_promise_is_kept_on_what_it_was_calibrated_by(levels: list[float], promise: float) -> None:
    """Of the retractions seen, at least the promised share stood at the threshold in time."""
    found = threshold(FORECAST_BASIS, promise, levels, [], 0.7)
    assert found.source == "calibrated"
    assert found.kept_ratio is not None
    assert found.kept_ratio >= promise - 1e-9


def test_too_few_retractions_leave_it_to_simulated_runs() -> None:
    """Nineteen of twenty are not enough for 95 %: what simulated runs say stands, and how many are wanted is told."""
    levels = [0.4] * 19
    few = threshold(FORECAST_BASIS, 0.95, levels, [], 0.7)
    assert (few.source, few.event_count, few.needed_count) == ("simulated", 19, 20)
    assert few.on == level_of_promise(SIMULATED, 0.95)
    assert threshold(FORECAST_BASIS, 0.95, [*levels, 0.4], [], 0.7).on == pytest.approx(0.4)
    assert threshold(WALK_BASIS, 0.95, [], [], 0.9).source == "chosen"


def test_a_pool_whose_quiet_minutes_stand_high_raises_its_own_threshold() -> None:
    """Until calibrated, what nothing came of is no alarm: the threshold is where quiet minutes come once an hour."""
    quiet = [0.85] * 59 + [0.9]
    raised = threshold(FORECAST_BASIS, 0.95, [], quiet, 0.7)
    assert (raised.source, raised.on) == ("history", pytest.approx(0.9))
    assert raised.false_per_hour == pytest.approx(1.0)
    calm = threshold(FORECAST_BASIS, 0.95, [], [0.1] * 60, 0.7)
    assert calm.source == "simulated"
    assert calm.quiet_level == pytest.approx(0.1)
    assert threshold(FORECAST_BASIS, 0.95, [], quiet[: LEAST_QUIET_COUNT - 1], 0.7).source == "simulated"


def test_a_retraction_is_settled_at_the_level_that_stood_in_time() -> None:
    """A probability that stood 10 s before counts, one that came later does not."""
    length = 80
    counts: list[float | None] = [0.0] * (length - 1) + [1.0]
    early = _walk(_rising(length - 1 - int(LEAD_S) - int(DWELL_S), length), counts)[1]
    late = _walk(_rising(length - int(LEAD_S), length), counts)[1]
    assert [(each.level, each.at_s, each.basis) for each in early] == [(1.0, length - 1.0, FORECAST_BASIS)]
    assert [each.level for each in late] == [0.0]


def test_a_flicker_is_no_level() -> None:
    """A probability must stand for the dwell: one second of certainty foretells nothing."""
    length = 60
    flicker: list[float | None] = [1.0 if second == 30 else 0.0 for second in range(length)]
    assert [each.level for each in _walk(flicker, [0.0] * (length - 1) + [1.0])[1]] == [0.0]


def test_only_the_first_of_a_row_is_settled() -> None:
    """Retractions within a minute of the one before belong to it; after a minute without, the next is a first one."""
    gap = int(WINDOW_S) + 5
    counts = [0.0] * 30 + [1.0, 2.0, 3.0] + [3.0] * gap + [4.0]
    assert len(_walk([0.5] * len(counts), counts)[1]) == 2


def test_quiet_minutes_are_those_that_nothing_followed() -> None:
    """Four minutes of calm hold three that a whole minute without retraction followed; one before a retraction none."""
    calm, _ = _walk([0.2] * 241)
    assert calm.quiet == (0.2, 0.2, 0.2)
    counts: list[float | None] = [0.0] * 100 + [1.0] + [1.0] * 50
    assert _walk([0.9] * len(counts), counts)[0].quiet == ()


@pytest.mark.parametrize("basis", ["", FORECAST_BASIS])
def test_what_is_not_known_settles_nothing(basis: str) -> None:
    """No probability, or no report of retractions: neither an event nor a quiet minute."""
    length = 200
    none: list[float | None] = [None] * length
    counts: list[float | None] = [0.0] * (length - 1) + [1.0]
    unknown, settled = _walk(none, counts, basis)
    assert (unknown.quiet, settled) == ((), [])
    silent, settled = _walk([0.9] * length, none)
    assert (silent.quiet, settled) == ((), [])
    assert _walk([math.nan] * length, counts)[1] == []


def test_a_restart_a_clock_set_back_and_a_hole_begin_anew() -> None:
    """A counter that falls is no retraction when it rises again to where it was; nothing is settled across a hole."""
    counts: list[float | None] = [5.0] * 40 + [0.0] * 5 + [1.0]
    assert _walk([0.9] * len(counts), counts)[1] == []
    record, _ = _walk([0.9] * 60)
    after, found = step_record(
        record, 200.0, pool="d/0", probability=0.9, basis=FORECAST_BASIS, retracted=1.0, dwell_s=DWELL_S
    )
    assert found is None
    assert after.levels == ()
    back, _ = step_record(
        record, 10.0, pool="d/0", probability=0.9, basis=FORECAST_BASIS, retracted=0.0, dwell_s=DWELL_S
    )
    assert back.began_at_s == 10.0


def test_a_queue_of_retracted_requests_may_empty() -> None:
    """Where only the queue is reported, its fall is no restart, and its next rise within a minute no first one."""
    record, settled = Record(), 0
    for second, queued in enumerate([0.0] * 40 + [2.0] * 3 + [0.0] * 10 + [1.0]):
        record, found = step_record(
            record,
            float(second),
            pool="d/0",
            probability=0.6,
            basis=FORECAST_BASIS,
            retracted=queued,
            is_counter=False,
            dwell_s=DWELL_S,
        )
        settled += found is not None
    assert settled == 1


def test_the_simulated_levels_are_what_the_docs_say() -> None:
    """Ascending, 80 of them; 95 % of the simulated retractions stood at the default threshold in time."""
    assert list(SIMULATED) == sorted(SIMULATED)
    found = threshold(FORECAST_BASIS, 0.95, [], [], 0.7)
    assert np.mean(np.array(SIMULATED) >= found.on) >= 0.95
    assert found.on == pytest.approx(0.671)

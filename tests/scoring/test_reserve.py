"""Laws of the safety reserve and of admission: every part is at least 0 and grows with what it covers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring import admission, reserve
from scoring.demand import RequestView, known_output
from scoring.model import Role
from scoring.policy import DecideSettings, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool
from scoring.reserve import ReserveSettings

REQUEST = RequestView(prompt_tokens=4_000, output=known_output(500))


@given(st.floats(-1e4, 1e4), st.floats(0, 1e4), st.floats(0, 60), st.floats(0, 60))
@settings(max_examples=60, deadline=None)
def test_older_telemetry_never_needs_less(net: float, std: float, first: float, second: float) -> None:
    """For a pool that grows on balance, the growth part never falls with the delay; it is never negative."""
    low, high = sorted((first, second))
    parts = [reserve.delay_growth_tokens(net, std, delay, 1.645) for delay in (low, high)]
    assert min(parts) >= 0.0
    if net >= 0.0:
        assert parts[1] >= parts[0]


def test_the_largest_peer_is_shared_by_capacity_and_never_by_itself() -> None:
    """Survivors inherit in proportion to usable; the parts add up to the dead worker's load times the share."""
    pools = [
        sketch_pool("a/0", Role.DECODE, used_tokens=300_000),
        sketch_pool("a/1", Role.DECODE, used_tokens=500_000),
        sketch_pool("b/0", Role.DECODE, used_tokens=100_000),
        sketch_pool("c/0", Role.DECODE, used_tokens=100_000, usable_tokens=3_000_000),
        sketch_pool("p/0", Role.PREFILL, used_tokens=900_000),
    ]
    own = DecideSettings(reserve=ReserveSettings(failure_share_ratio=1.0))
    decision = decide(REQUEST, sketch_fleet(pools), settings=own)
    shares = {name: decision.gate(name).reserve_failure_share_tokens for name in ("b/0", "c/0", "a/0", "p/0")}
    assert shares["b/0"] + shares["c/0"] == pytest.approx(800_000)  # a dies whole, with both its ranks
    assert shares["c/0"] == pytest.approx(3 * shares["b/0"])
    assert shares["a/0"] < 800_000  # a itself inherits from b or c, not from its own other rank
    assert shares["p/0"] == 0.0  # no prefill peer


def test_each_part_is_shown_and_they_add_up_to_the_gate() -> None:
    """reserve = growth + failure share + prediction error, and the gate is open exactly when the inequality holds."""
    pool = sketch_pool("u/0", Role.UNIFIED, used_tokens=600_000, net_tokens_per_s=2_000, net_std_tokens_per_s=500)
    decision = decide(REQUEST, sketch_fleet([pool, sketch_pool("v/0", Role.UNIFIED, used_tokens=200_000)]))
    gate = decision.gate("u/0")
    assert gate.reserve_tokens == pytest.approx(
        gate.reserve_delay_growth_tokens + gate.reserve_failure_share_tokens + gate.reserve_prediction_error_tokens
    )
    assert min(gate.reserve_delay_growth_tokens, gate.reserve_failure_share_tokens) > 0.0
    assert gate.headroom_tokens == pytest.approx(gate.available_tokens - gate.reserved_tokens - gate.reserve_tokens)
    assert gate.is_open


@given(st.integers(0, 999), st.integers(1, 400_000))
@settings(max_examples=60, deadline=None)
def test_the_gate_is_the_inequality(used_thousands: int, prompt: int) -> None:
    """No universal 80 % line: a pool admits exactly what available less growth and reserve covers."""
    pool = sketch_pool("u/0", Role.UNIFIED, used_tokens=1_000 * used_thousands, block_size_tokens=1)
    decision = decide(replace(REQUEST, prompt_tokens=prompt), sketch_fleet([pool]))
    gate = decision.gate("u/0")
    fits = gate.available_tokens >= np.ceil(gate.demand_tokens + gate.growth_tokens + gate.reserve_tokens)
    assert gate.is_open == fits
    assert gate.is_open == (not [each for each in decision.rejections if each.filter in ("no-room", "too-large")])


def test_evictable_prefix_counts_as_far_as_the_policy_lets_go() -> None:
    """Keeping half of the prefix cache takes half of it from what a demand can draw on."""
    pool = sketch_pool("u/0", Role.UNIFIED, used_tokens=100_000, prefix_tokens=800_000)
    for ratio, available in ((1.0, 900_000), (0.5, 500_000), (0.0, 100_000)):
        own = DecideSettings(reserve=ReserveSettings(evictable_share_ratio=ratio))
        assert decide(REQUEST, sketch_fleet([pool]), settings=own).gate("u/0").available_tokens == available


def test_requests_ahead_claim_their_room_first() -> None:
    """An engine that reports waiting requests and no backlog has not said nothing: they count at the mean held."""
    assert admission.queued_need_tokens(0.0, 24.0, 2_500.0) == 60_000.0
    assert admission.queued_need_tokens(90_000.0, 24.0, 2_500.0) == 90_000.0
    assert admission.queued_need_tokens(7.0, np.nan, np.nan) == 7.0
    assert np.isnan(admission.queued_need_tokens(np.nan, np.nan, 5.0))
    full = sketch_pool("u/0", Role.UNIFIED, used_tokens=900_000, running_count=100, waiting_count=24)
    assert decide(REQUEST, sketch_fleet([full])).rejections[0].filter == "no-room"


@pytest.mark.parametrize(
    ("field", "value"),
    [("growth_quantile_ratio", 1.0), ("decision_delay_s", -1.0), ("failure_share_ratio", 1.1), ("failure_count", -1)],
)
def test_absurd_knobs_are_refused(field: str, value: float) -> None:
    """A knob outside its range is refused by name, value and range."""
    with pytest.raises(ValueError, match=f"{field} is {value}; allowed is "):
        ReserveSettings(**{field: value})

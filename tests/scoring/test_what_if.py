"""
Laws of what-if: a neutral scenario changes nothing, every flip really flips and nothing nearer does, a placement's
parts add up to usable, many requests conserve, and asking never books.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.demand import RequestView, known_output
from scoring.leases import LeaseLedger
from scoring.model import Role
from scoring.policy import DecideSettings
from scoring.policy.sketch import sketch_fleet, sketch_pool, two_node_case
from scoring.sensitivity import input_flips, weight_flips
from scoring.what_if import (
    Question,
    Scenario,
    apply,
    every_policy,
    place_many,
    placement,
    weighted,
)

REQUEST = RequestView(prompt_tokens=64_000, output=known_output(2_000))
QUESTION = Question(request=REQUEST, fleet=two_node_case())


def trade_off() -> Question:
    """Return a fleet with a real trade: a fast prefill pool behind a queue, a slow one without."""
    pools = [
        sketch_pool("fast/0", Role.PREFILL, prefill_tokens_per_s=40_000, uncached_tokens=60_000, waiting_count=2),
        sketch_pool("slow/0", Role.PREFILL, prefill_tokens_per_s=15_000),
        sketch_pool("d0/0", Role.DECODE, used_tokens=500_000),
    ]
    request = RequestView(prompt_tokens=30_000, output=known_output(500), slo_class="long_context")
    return Question(request=request, fleet=sketch_fleet(pools))


def test_a_neutral_scenario_changes_nothing() -> None:
    """The defaults give back the very same fleet; each knob changes what it names."""
    fleet = two_node_case()
    assert apply(Scenario(), fleet) is fleet
    slower = apply(Scenario(bandwidth_factor=0.5), fleet)
    assert [link.bandwidth_bytes_per_s for link in slower.links] == [12.5e9, 12.5e9]
    assert slower.pools == fleet.pools
    older = apply(Scenario(extra_age_s=4.0), fleet)
    assert [pool.age_s for pool in older.pools] == [pool.age_s + 4.0 for pool in fleet.pools]
    without = apply(Scenario(without_workers=frozenset({"D-B"})), fleet)
    assert [pool.pool_id for pool in without.pools] == ["D-A/0", "P-1/0"]
    assert replace(QUESTION, fleet=without).ask().chosen.decode == "D-A/0"
    with pytest.raises(ValueError, match="bandwidth_factor is 0"):
        Scenario(bandwidth_factor=0)


def test_weight_flips_are_exact() -> None:
    """At the value given the two pairs tie; just beyond it the other one wins, just before it the choice stands."""
    question = trade_off()
    decision = question.ask()
    flips = [flip for flip in weight_flips(decision) if flip.at is not None]
    assert flips
    for flip in flips:
        term = flip.name.removeprefix("weight.")
        beyond = flip.at + (flip.at - flip.now) * 1e-3
        before = flip.at - (flip.at - flip.now) * 1e-3
        for value, is_flipped in ((beyond, True), (before, False)):
            settings_ = weighted(DecideSettings(), "long_context", {term: max(value, 0.0)})
            chosen = replace(question, settings=settings_).ask().chosen
            assert (chosen != decision.chosen) == is_flipped
            if is_flipped:
                assert (chosen.prefill, chosen.decode) == (flip.prefill, flip.decode)


def test_input_flips_really_flip() -> None:
    """Asking again at the value given changes the choice to what is said, and asking a little nearer does not."""
    decision = QUESTION.ask()
    flips = {flip.name: flip for flip in input_flips(QUESTION, decision)}
    prompt = flips["prompt_tokens"]
    assert prompt.at is not None
    at = replace(QUESTION, request=replace(REQUEST, prompt_tokens=round(prompt.at) + 2)).ask().chosen
    assert (at.prefill, at.decode) == (prompt.prefill, prompt.decode)
    near = replace(QUESTION, request=replace(REQUEST, prompt_tokens=round(prompt.at) - 64)).ask().chosen
    assert near == decision.chosen
    for flip in flips.values():
        low, high = flip.range_
        assert flip.at is None or low <= flip.at <= high


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-5_000, 5_000), st.floats(0, 60), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_a_placement_adds_up(used: float, prefix: float, net: float, horizon_s: float, count: int) -> None:
    """held + reserved + demand + prefix + free = usable + what does not fit, whatever the fleet does meanwhile."""
    pool = sketch_pool(
        "u/0",
        Role.UNIFIED,
        used_tokens=round(used * 1_000_000),
        prefix_tokens=round(prefix * (1_000_000 - round(used * 1_000_000))),
        net_tokens_per_s=net,
    )
    decision = Question(request=REQUEST, fleet=sketch_fleet([pool])).ask()
    placed = placement(decision, "u/0", horizon_s, count)
    parts = (
        placed.held_tokens + placed.reserved_tokens + placed.demand_tokens + placed.prefix_tokens + placed.free_tokens
    )
    assert parts - placed.over_tokens == pytest.approx(placed.usable_tokens, rel=1e-9)
    assert min(placed.prefix_tokens, placed.free_tokens, placed.over_tokens) >= 0.0
    assert (placed.over_tokens > 0.0) <= (placed.prefix_tokens == 0.0)
    if count == 0 and horizon_s == 0.0:
        assert placed.utilization_ratio == pytest.approx(round(used * 1_000_000) / 1_000_000)


def test_an_unknown_pool_has_no_placement() -> None:
    """Where capacity or use is not known there is nothing to draw."""
    decision = Question(request=REQUEST, fleet=sketch_fleet([sketch_pool("u/0", Role.UNIFIED, used_tokens=None)])).ask()
    assert placement(decision, "u/0") is None


def test_many_conserve_and_spread() -> None:
    """Placed and refused add up; each sees the leases of those before, so no pool is promised more than it admits."""
    many = place_many(QUESTION, 20)
    assert sum(many.by_pair.values()) + many.refused_count == 20
    assert many.refused_count > 0
    assert len(many.by_pair) == 2
    demand = 66_000
    for (_, decode), count in many.by_pair.items():
        gate = QUESTION.ask().gate(decode)
        assert count * demand <= gate.available_tokens
    with pytest.raises(ValueError, match="count is 0; allowed is 1 to 1000"):
        place_many(QUESTION, 0)


def test_asking_never_books() -> None:
    """What-ifs of every kind leave the caller's ledger as it was."""
    ledger = LeaseLedger()
    question = replace(QUESTION, leases=ledger)
    place_many(question, 3)
    every_policy(question)
    input_flips(question, question.ask())
    assert ledger.totals().granted_count == 0


def test_every_policy_is_judged_by_the_joint_score() -> None:
    """In the two-node case the policies that look at utilization pay what the joint score says D-A costs more."""
    rows = {each.policy: each for each in every_policy(QUESTION)}
    lowest, joint = rows["lowest-utilization"], rows["joint"]
    assert lowest.joint_score - joint.joint_score == pytest.approx(joint.decision.margin)
    assert rows["mooncake-min-ttft"].joint_score is None

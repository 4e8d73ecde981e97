"""Service profiles in a decision: taken as they are where they come first, never where they are not known."""

import math
from dataclasses import fields, replace

import pytest

from scoring.demand import RequestView, known_output
from scoring.model import Role, measured, unknown
from scoring.policy import DecideSettings, Decision, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool, two_node_case
from scoring.service import ServiceProfile, decode_step_s, prefill_s

AT_S = 1_780_000_000.0
REQUEST = RequestView(prompt_tokens=48_000, output=known_output(1_000))
PROFILE = ServiceProfile(
    name="mine",
    source="a test",
    prefill_base_s=0.02,
    prefill_per_token_s=4e-5,
    prefill_per_token2_s=1e-9,
    decode_base_s=0.011,
    decode_per_sequence_s=5e-5,
    decode_per_token_s=2e-8,
)
COEFFICIENTS = [each.name for each in fields(ServiceProfile) if each.name.startswith(("prefill_", "decode_"))]


def _decision(**settings: object) -> Decision:
    return decide(REQUEST, two_node_case(AT_S), settings=DecideSettings(**settings))  # type: ignore[arg-type]


def _seconds(decision: Decision) -> dict[str, float]:
    return {term.name: term.scored_s for term in decision.terms}


def test_profiles_that_come_first_are_the_times_and_not_the_windows_mean() -> None:
    """Prompt and first step are the profile's own formula; without being first they follow the pool's window."""
    workers = {pool.worker_id: PROFILE for pool in two_node_case(AT_S).pools}
    first = _decision(profiles=workers, are_profiles_first=True)
    assert first.chosen is not None
    whole_s = prefill_s(48_000.0, 0.0, 0.02, 4e-5, 1e-9)
    assert _seconds(first)["prefill_compute"] == pytest.approx(whole_s)
    arrays = first.prepared.arrays
    place = arrays.ids.index(first.chosen.decode)
    step_s = decode_step_s(arrays.running_count[place] + 1.0, arrays.used_tokens[place] + 48_000.0, 0.011, 5e-5, 2e-8)
    assert first.prepared.decode.first_step_s[place] == pytest.approx(step_s)
    assert _seconds(_decision(profiles=workers))["prefill_compute"] != pytest.approx(whole_s, rel=1e-3)


def test_a_profile_that_is_not_known_changes_nothing() -> None:
    """Coefficients that are NaN leave every term and every score as they are without a profile."""
    blank = replace(PROFILE, transfer_latency_s=math.nan, **dict.fromkeys(COEFFICIENTS, math.nan))
    workers = {pool.worker_id: blank for pool in two_node_case(AT_S).pools}
    plain, blanked = _decision(), _decision(profiles=workers, are_profiles_first=True)
    assert _seconds(blanked) == _seconds(plain)
    assert blanked.ranking == plain.ranking


def test_a_calibrated_bandwidth_is_taken_where_nothing_else_tells_one() -> None:
    """An idle link that no counter tells of gets it, and the pool says so; a line that is slower stays the limit."""
    prefill = replace(sketch_pool("p", Role.PREFILL, at_s=AT_S), bytes_per_token=measured(100_000.0), labels={})
    rates = replace(prefill.rates, transfer_bytes_per_s=unknown("idle"), transfers_per_s=unknown("idle"))
    fleet = sketch_fleet([replace(prefill, rates=rates), sketch_pool("d", Role.DECODE, at_s=AT_S)], at_s=AT_S)
    silent = decide(REQUEST, fleet, settings=DecideSettings())
    told = decide(REQUEST, fleet, settings=DecideSettings(bandwidths_bytes_per_s={"p": 1e9}))
    moved = {each.name: each for each in told.terms}["transfer"]
    assert {each.name: each for each in silent.terms}["transfer"].is_unknown
    assert not moved.is_unknown
    assert moved.scored_s >= 48_000 * 100_000.0 / 1e9
    assert any("the calibrated one is taken" in text for text in told.marks(told.chosen.prefill))
    known = two_node_case(AT_S)
    workers = dict.fromkeys((pool.worker_id for pool in known.pools), 1e15)
    quick = decide(REQUEST, known, settings=DecideSettings(bandwidths_bytes_per_s=workers))
    assert _seconds(quick) == _seconds(decide(REQUEST, known))

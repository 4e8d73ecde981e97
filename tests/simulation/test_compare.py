"""Comparisons: the same requests for all sides, intervals that mean what they say, figures that add up."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.model import Role
from scoring.policy import POLICIES as SCORED
from scoring.slo import SLO_CLASSES
from simulation.compare import compare, expectations
from simulation.compare_paired import RESAMPLES, _drawn_statistics
from simulation.compare_policies import check_policy, policy_names, snapshot_of_samples
from simulation.compare_variants import SWEEPS, Variant, drill_of, swept, variants_of
from simulation.faults import Fault
from simulation.fleet_file import FleetDefaults, fleet_from_shorthand
from simulation.report import bucket_labels, bucket_of, is_good, report_run
from simulation.report_json import comparison_json, reuse_bounds
from simulation.report_rows import request_frame
from simulation.report_series import series_json
from simulation.simulate import SimulationOptions
from simulation.simulate import simulate as run
from simulation.traffic import TrafficArrays
from simulation.workload import LengthMix, Synthesis, synthesise
from simulation.workload_shape import Shaping, shape

PLAIN = SimulationOptions(is_compiled=False)
FLEET = fleet_from_shorthand("2p2d", FleetDefaults(blocks=1_500))
MIX = (
    LengthMix(
        weight=2,
        tenant="chat",
        prompt_median_tokens=1500,
        output_median_tokens=60,
        prefix_count=4,
        prefix_tokens=512,
    ),
    LengthMix(weight=1, tenant="docs", prompt_median_tokens=9000, output_median_tokens=20),
)
NAMES = ("", "chat", "docs")
CLASSES = tuple(SLO_CLASSES.values())


def trace_of(count_s: float = 40.0, seed: int = 1, **recipe: object):
    """Return a few hundred synthetic requests of two tenants."""
    return synthesise(Synthesis(**{"rate_per_s": 6.0, "duration_s": count_s, "mixes": MIX, **recipe}), seed=seed)


TRACE = trace_of()


@pytest.fixture(scope="module")
def compared():
    """Return round robin against the joint score."""
    return compare(
        TRACE.traffic,
        FLEET.spec,
        variants_of(["round-robin", "joint"]),
        options=PLAIN,
        tenant_names=("", "chat", "docs"),
    )


def test_every_side_gets_the_same_requests_and_every_request_ends_once(compared) -> None:
    """Arrivals, prompts and outputs are equal row by row; outcomes add up to what arrived."""
    one, two = (item.result.requests for item in compared.variants)
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    for item in compared.variants:
        assert sum(item.report.outcomes.values()) == item.report.arrived_count == len(TRACE)


def test_a_policy_against_itself_does_not_differ() -> None:
    """The same policy under another name: every difference is exactly 0 and no interval excludes it."""
    sides = (Variant(name="a", policy="round-robin"), Variant(name="b", policy="round-robin"))
    found = compare(TRACE.traffic, FLEET.spec, sides, options=PLAIN).variants[1].differences
    assert len(found) == 14
    for each in found.values():
        assert (each.difference, each.low, each.high) == (0.0, 0.0, 0.0)
        assert each.is_told is False


def test_differences_are_the_difference_of_the_reports(compared) -> None:
    """A point difference is variant less baseline, and lies inside its interval, which is not a point."""
    base, other = compared.variants
    assert base.differences == {}
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        for statistic in ("mean", "p50", "p95", "p99"):
            each = other.differences[f"{metric}.{statistic}"]
            expected = getattr(other.report.latency[metric], statistic) - getattr(
                base.report.latency[metric], statistic
            )
            assert each.difference == pytest.approx(expected, rel=1e-9, abs=1e-12)
    mean = other.differences["ttft_s.mean"]
    assert mean.low < mean.difference < mean.high
    good = other.differences["goodput_ratio"]
    assert good.difference == pytest.approx(other.report.goodput_ratio - base.report.goodput_ratio)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Independent noise of known mean difference: 95 % intervals hold it in at least 85 % of 80 draws (60 runs)."""
    rng = np.random.default_rng(5)
    hits = 0
    block = np.arange(600) * 60 // 600
    for _ in range(80):
        base = rng.exponential(1.0, 600)
        other = base + rng.normal(0.3, 1.0, 600)
        drawn = rng.multinomial(60, np.full(60, 1 / 60), RESAMPLES).astype(float)
        spread = _drawn_statistics(other, block, drawn) - _drawn_statistics(base, block, drawn)
        low, high = np.quantile(spread[:, 0], (0.025, 0.975))
        hits += low <= 0.3 <= high
    assert 68 <= hits < 80


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.floats(0, 1e3) | st.just(float("nan")), min_size=1, max_size=60), st.integers(0, 2**32))
def test_drawing_every_run_once_gives_the_plain_statistics(values: list[float], seed: int) -> None:
    """Weights of one: the mean is the mean, a quantile is a value of the sample, unknown values are left out."""
    column = np.array(values)
    block = np.random.default_rng(seed).integers(0, 4, len(column))
    got = _drawn_statistics(column, block, np.ones((1, 4)))[0]
    known = column[np.isfinite(column)]
    if not len(known):
        assert np.isnan(got).all()
        return
    assert got[0] == pytest.approx(known.mean())
    for at, quantile in ((1, 0.5), (2, 0.95), (3, 0.99)):
        assert got[at] == np.quantile(known, quantile, method="inverted_cdf")


def test_too_little_traffic_has_differences_but_no_interval() -> None:
    """One request: figures, no interval, and a note that says so."""
    one = TrafficArrays(arrival_s=np.zeros(1), prompt_tokens=np.array([900]), output_tokens=np.array([5]))
    found = compare(one, FLEET.spec, variants_of(["round-robin", "random"]), options=PLAIN)
    each = found.variants[1].differences["ttft_s.mean"]
    assert (each.difference, each.low, each.high) == (0.0, None, None)
    assert each.is_told is None
    assert any("no interval" in note for note in found.notes)


def test_more_than_the_policy_differing_is_said() -> None:
    """Fleet, options, drills and speed of a variant are each named; a plain comparison names nothing."""
    base = Variant(name="base", policy="round-robin")
    other = swept(base, FLEET.spec, "reserve_tokens", 256)
    fast = swept(base, FLEET.spec, "speed", 2)
    late = swept(base, FLEET.spec, "telemetry_age_s", 1)
    drilled = Variant(name="drilled", policy="round-robin", faults=(Fault(kind="burst", at_s=5, until_s=10, factor=2),))
    found = compare(TRACE.traffic, FLEET.spec, (base, other, fast, late, drilled), options=PLAIN)
    told = "\n".join(found.varied)
    for words in ("reserve_tokens", "speed", "telemetry_age_s", "drills"):
        assert words in told
    assert len([note for note in found.notes if note.startswith("more than the policy")]) == len(found.varied)
    assert compare(TRACE.traffic, FLEET.spec, (base,), options=PLAIN).varied == ()


def test_the_same_question_gives_the_same_answer_and_seeds_are_kept_apart() -> None:
    """Runs and intervals repeat to the bit; with two seeds the random policy gives two runs."""
    sides = variants_of(["round-robin", "random"])
    answers = [compare(TRACE.traffic, FLEET.spec, sides, seeds=(3, 4), options=PLAIN) for _ in range(2)]
    texts = [[item.differences for item in answer.variants] for answer in answers]
    assert texts[0] == texts[1]
    runs = answers[0].variants[1].runs
    assert [each.seed for each in runs] == [3, 4]
    assert runs[0].result.requests.decode.tobytes() != runs[1].result.requests.decode.tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variants": ()}, "no variant"),
        ({"seeds": (1, 1)}, "each once"),
        ({"seeds": ()}, "at least one"),
        ({"traffic": [TRACE.traffic]}, "1 traffics for 2 seeds"),
        (
            {"traffic": TrafficArrays(arrival_s=np.zeros(0), prompt_tokens=np.zeros(0), output_tokens=np.zeros(0))},
            "empty",
        ),
        ({"variants": (Variant(name="x", policy="joint", options={"colour": 1}),)}, "no option colour"),
        ({"variants": (Variant(name="x", policy="jointt"),)}, "not known"),
    ],
)
def test_questions_that_make_no_sense_are_refused_with_a_sentence(change: dict, words: str) -> None:
    """The message names what is wrong."""
    asked = {"traffic": TRACE.traffic, "variants": variants_of(["round-robin"]), "seeds": (0, 1), **change}
    with pytest.raises(ValueError, match=words):
        compare(asked["traffic"], FLEET.spec, asked["variants"], seeds=asked["seeds"], options=PLAIN)


def test_every_policy_of_scoring_replays_and_places_everything() -> None:
    """All policies serve a light load whole; those outside the kernel go through the live decision code."""
    few = shape(TRACE, Shaping(max_count=40), CLASSES, seed=0)
    found = compare(few.traffic, FLEET.spec, variants_of(list(policy_names())), options=PLAIN)
    assert {item.variant.policy for item in found.variants} >= set(SCORED) - {"guarded-utilization"}
    for item in found.variants:
        refused = item.report.rejected_count
        assert item.report.finished_count + refused == 40, item.variant.name
        assert refused == 0 or item.variant.name == "mooncake-min-ttft", item.variant.name


def test_prefix_aware_policies_find_more_of_the_prefixes_than_blind_ones() -> None:
    """With few shared prefixes the affinity of Dynamo's and SGLang's routers beats random in hit tokens."""
    trace = trace_of(60.0, mixes=(LengthMix(prompt_median_tokens=3000, prefix_count=12, prefix_tokens=2048),))
    spec = fleet_from_shorthand("4p2d", FleetDefaults(blocks=600)).spec
    found = compare(
        trace.traffic, spec, variants_of(["random", "dynamo-kv", "sglang-cache-aware", "joint"]), options=PLAIN
    )
    hits = [item.report.prefix_hit_tokens for item in found.variants]
    assert min(hits[1:]) > hits[0]


def test_names_are_taken_as_people_write_them_and_unknown_ones_list_the_known() -> None:
    """Case, underscores and scoring's names lead to the same rule; twice the same is refused."""
    assert check_policy("Round_Robin") == "round-robin"
    assert check_policy("guarded-utilization") == "guarded"
    with pytest.raises(ValueError, match="dynamo-kv"):
        check_policy("best")
    with pytest.raises(ValueError, match="twice"):
        variants_of(["guarded", "guarded-utilization"])
    with pytest.raises(ValueError, match="at least one"):
        variants_of([" "])


def test_groups_partition_the_requests_and_goodput_counts_refusals_against() -> None:
    """Buckets of a dimension add up to all; a policy that refuses half cannot have more than half good."""
    found = compare(
        TRACE.traffic, FLEET.spec, variants_of(["round-robin"]), options=PLAIN, tenant_names=("", "chat", "docs")
    )
    report = found.variants[0].report
    for name in ("prompt", "output", "class", "tenant"):
        groups = report.groups[name]
        assert sum(each.arrived_count for each in groups.values()) == len(TRACE)
        good = sum(each.goodput_ratio * each.arrived_count for each in groups.values())
        assert good == pytest.approx(report.goodput_ratio * len(TRACE))
    assert set(report.groups["tenant"]) == {"chat", "docs"}

    class Half:
        def choose(self, request, fleet):
            return None if request.row % 2 else (fleet.prefill[0], fleet.decode[0])

    result = run(TRACE.traffic, FLEET.spec, Half(), options=PLAIN)
    assert is_good(result, CLASSES).mean() <= 0.5
    assert report_run(result).rejected_count == len(TRACE) // 2


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=50))
def test_every_length_is_in_exactly_the_bucket_that_names_it(values: list[int]) -> None:
    """A bucket's label bounds its members."""
    edges = (0, 1_024, 4_096, 16_384)
    labels = bucket_labels(edges)
    for value, place in zip(values, bucket_of(np.array(values), edges), strict=True):
        low, _, high = labels[place].rstrip("+").replace(",", "").partition("-")
        assert int(low) <= value
        assert not high or value <= int(high)


def test_figures_are_strict_json_and_hits_unknown_without_identities(compared) -> None:
    """No NaN in the JSON; without prefix identities hits are null, not 0, and a note says so."""
    body = comparison_json(compared, TRACE, FLEET, bounds=reuse_bounds(TRACE.traffic, FLEET.spec))
    text = json.dumps([body, series_json(compared)], allow_nan=False)
    assert (
        json.loads(text)[0]["policies"]["joint"]["prefix_hit_tokens"] == compared.variants[1].report.prefix_hit_tokens
    )
    assert body["prefix_hit_bounds"]["oracle_tokens"] <= body["prefix_hit_bounds"]["infinite_tokens"]
    assert body["policies"]["joint"]["prefix_hit_tokens"] <= body["prefix_hit_bounds"]["infinite_tokens"]
    blind = compare(TRACE.traffic, FLEET.spec, variants_of(["random"]), options=PLAIN, is_reuse_known=False)
    assert comparison_json(blind, TRACE, FLEET)["policies"]["random"]["prefix_hit_tokens"] is None
    assert any("unknown" in note for note in blind.notes)


def test_one_row_a_request_and_variant_leaves_for_export(compared) -> None:
    """Rows, outcomes and sums of the table are those of the reports."""
    frame = request_frame(compared, TRACE)
    assert len(frame) == 2 * len(TRACE)
    for item in compared.variants:
        own = frame[frame["variant"] == item.variant.name]
        assert (own["outcome"] == "finished").sum() == item.report.finished_count
        assert own["hit_tokens"].sum() == item.report.prefix_hit_tokens
        assert own["row"].tolist() == TRACE.row_numbers.tolist()


def test_high_water_and_imbalance_are_what_the_samples_say(compared) -> None:
    """Time at high water never exceeds the run, falls with the mark, and even work has imbalance 1 at least."""
    result = compared.variants[0].result
    low, high = (report_run(result, high_water_ratio=mark) for mark in (0.2, 0.9))
    for one, two in zip(low.pools, high.pools, strict=True):
        assert 0 <= two.high_water_s <= one.high_water_s <= result.end_s + 1
        assert one.held_mean_ratio <= one.physical_mean_ratio <= 1
    assert all(value >= 1 for value in low.work_imbalance.values())
    assert set(low.work_imbalance) == {Role.PREFILL, Role.DECODE}


def test_a_sample_makes_a_fleet_that_policies_can_be_asked_about(compared) -> None:
    """What is held in the snapshot is what the sample held; a tick that is not there is refused."""
    result = compared.variants[0].result
    means = expectations(TRACE.traffic)
    fleet = snapshot_of_samples(result.fleet, result.samples, 10, means)
    for place, pool in enumerate(result.fleet.pools):
        judged = next(each for each in fleet.pools if each.pool_id == pool.pool_id)
        held = result.samples.active_tokens[10, place] + result.samples.in_flight_tokens[10, place]
        assert judged.composition.used_tokens.value >= held
        assert judged.composition.usable_tokens.value == result.samples.usable_tokens[10, place]
    with pytest.raises(ValueError, match="tick"):
        snapshot_of_samples(result.fleet, result.samples, 10_000, means)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_sets_one_thing_and_names_it(name: str) -> None:
    """Each point carries its value and changes nothing else; values out of range are refused."""
    value = {"blocks": 700, "reserve_tokens": 64, "speed": 2, "telemetry_age_s": 2, "telemetry_period_s": 2}.get(
        name, 0.5
    )
    side = swept(Variant(name="joint", policy="joint"), FLEET.spec, name, value)
    assert side.point == (name, value)
    assert f"{name}={value:g}" in side.name
    if name == "blocks":
        assert {pool.usable_blocks for pool in side.fleet.pools} == {700}
    if name == "reserve_tokens":
        assert [pool.reserve_tokens for pool in side.fleet.pools] == [0, 0, 64, 64]
    if name in ("blocks", "reserve_tokens", "speed"):
        with pytest.raises(ValueError, match=name):
            swept(Variant(name="x", policy="joint"), FLEET.spec, name, -1)
    with pytest.raises(ValueError, match="cannot be swept"):
        swept(Variant(name="x", policy="joint"), FLEET.spec, "colour", 1)


def test_drills_are_read_from_text() -> None:
    """Kind and parts become a fault; a part that is not understood is named."""
    fault = drill_of("death, at=600, until=900, worker=d0")
    assert (fault.kind, fault.at_s, fault.until_s, fault.worker) == ("death", 600.0, 900.0, "d0")
    for text, words in (
        ("death", "at= is missing"),
        ("death,when=3", "none of"),
        ("burst,at=x", "number"),
        ("storm,at=1", "kind"),
    ):
        with pytest.raises(ValueError, match=words):
            drill_of(text)

"""
Laws of the joint decision, for every fleet hypothesis can think of: more committed never lowers the cost, order of
pools never matters, a prefix hit never hurts, scores are finite or rejected, same seed same choice, units never
change the choice, an unknown never becomes free.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.demand import OutputQuantiles, RequestView, known_output
from scoring.model import FleetSnapshot, Link, Role, SourceState
from scoring.policy import POLICIES, DecideSettings, Decision, RouterState, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool, two_node_case

MAYBE = 0.15
"""Share of figures that are unknown in the fleets drawn below."""


@st.composite
def fleets(draw: st.DrawFn, *, may_be_unknown: bool = True) -> FleetSnapshot:
    """Draw a fleet of prefill, decode and unified pools, some figures unknown."""

    def number(low: float, high: float) -> float | None:
        if may_be_unknown and draw(st.floats(0, 1)) < MAYBE:
            return None
        return round(draw(st.floats(low, high)), 3)

    pools = []
    for kind, count in (("p", draw(st.integers(0, 3))), ("d", draw(st.integers(0, 4))), ("u", draw(st.integers(0, 2)))):
        role = {"p": Role.PREFILL, "d": Role.DECODE, "u": Role.UNIFIED}[kind]
        for index in range(count):
            usable = number(1_000, 2_000_000)
            used = (
                None
                if usable is None
                else draw(st.one_of(st.none(), st.floats(0, 1)))
                if may_be_unknown
                else draw(st.floats(0, 1))
            )
            pools.append(
                sketch_pool(
                    f"{kind}{index}/0",
                    role,
                    usable_tokens=usable,
                    used_tokens=None if used is None else round(used * usable),
                    reserved_tokens=0,
                    queued_tokens=number(0, 20_000),
                    uncached_tokens=number(0, 100_000),
                    block_size_tokens=draw(st.sampled_from([1, 16, 64, None] if may_be_unknown else [1, 16, 64])),
                    bytes_per_token=number(1_000, 400_000),
                    net_tokens_per_s=number(-20_000, 20_000),
                    net_std_tokens_per_s=number(0, 5_000),
                    prefill_tokens_per_s=number(0 if may_be_unknown else 200, 50_000) if kind != "d" else None,
                    step_time_s=number(0.005, 0.2) if kind != "p" else None,
                    running_count=number(0, 200),
                    waiting_count=number(0, 50),
                    mean_prompt_tokens=number(100, 50_000),
                    mean_output_tokens=number(1, 5_000),
                    inflight_count=number(0, 20),
                    age_s=number(0, 5),
                )
            )
    line = number(1e8, 1e11)
    return sketch_fleet(pools, [Link(source="*", target="*", bandwidth_bytes_per_s=line, latency_s=0.001)])


@st.composite
def requests(draw: st.DrawFn) -> RequestView:
    """Draw a request of any class."""
    return RequestView(
        prompt_tokens=draw(st.integers(1, 200_000)),
        output=known_output(draw(st.integers(0, 8_000))),
        slo_class=draw(st.sampled_from(["interactive", "batch", "long_context"])),
    )


def scores(decision: Decision) -> dict[tuple[str, str], float]:
    """Return the score of every pair by names."""
    found = {}
    for block in (decision.table.pairs, decision.table.alone):
        if block is None:
            continue
        for row, column in np.ndindex(block.total.shape):
            p = decision.table.ids[block.rows[row]]
            d = p if block.is_alone else decision.table.ids[block.columns[column]]
            found[p, d] = float(block.total[row, column])
    return found


@settings(max_examples=50, deadline=None)
@given(fleets(), requests())
def test_scores_are_finite_or_rejected(fleet: FleetSnapshot, request: RequestView) -> None:
    """Every pair has a finite score and no reason, or inf and a reason; the choice is the least finite one."""
    decision = decide(request, fleet)
    found = scores(decision)
    for (p, d), score in found.items():
        assert not math.isnan(score)
        name, why = decision.pair_refusal(p, d)
        assert bool(name) == math.isinf(score)
        assert bool(why) == bool(name)
    finite = [score for score in found.values() if math.isfinite(score)]
    if finite:
        assert decision.chosen is not None
        assert decision.score == min(finite)
        assert decision.fallback is None
        assert sum(term.contribution for term in decision.terms) == pytest.approx(decision.score, rel=1e-9, abs=1e-9)
    else:
        assert decision.chosen is None
        assert decision.fallback is not None
        assert decision.fallback.startswith("refused: ")


@settings(max_examples=30, deadline=None)
@given(fleets(), requests(), st.randoms(use_true_random=False), st.sampled_from(sorted(POLICIES)))
def test_pool_order_never_matters(fleet: FleetSnapshot, request: RequestView, random: object, policy: str) -> None:
    """Shuffling the pools of a snapshot changes no policy's decision, with or without picking at random."""
    shuffled = list(fleet.pools)
    random.shuffle(shuffled)
    other = replace(fleet, pools=tuple(shuffled))
    for pick in ("best", "two-choices", "near-tie"):
        own = DecideSettings(pick=pick)
        one, two = (
            decide(request, fleet, policy, seed=7, settings=own),
            decide(request, other, policy, seed=7, settings=own),
        )
        assert one.chosen == two.chosen
        assert one.ranking == two.ranking
        assert one.rejections == two.rejections


@settings(max_examples=40, deadline=None)
@given(fleets(), requests(), st.integers(0, 10), st.floats(0, 1))
def test_more_committed_never_lowers_cost(fleet: FleetSnapshot, request: RequestView, which: int, share: float) -> None:
    """Committing more of one pool (and so less available) lowers no pair's score."""
    if not fleet.pools:
        return
    pool = fleet.pools[which % len(fleet.pools)]
    composition = pool.composition
    if composition.used_tokens.value is None:
        return
    extra = share * (composition.available_tokens.value or 0.0)

    def plus(figure, amount):
        return figure if figure.value is None else replace(figure, value=figure.value + amount)

    fuller = replace(
        composition,
        committed_tokens=plus(composition.committed_tokens, extra),
        reserved_tokens=plus(composition.reserved_tokens, extra),
    )
    pools = tuple(replace(each, composition=fuller) if each is pool else each for each in fleet.pools)
    before, after = scores(decide(request, fleet)), scores(decide(request, replace(fleet, pools=pools)))
    for pair, score in before.items():
        assert after[pair] >= score - 1e-9 * max(1.0, abs(score) if math.isfinite(score) else 1.0)


@settings(max_examples=40, deadline=None)
@given(fleets(), requests(), st.integers(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_a_prefix_hit_never_hurts(
    fleet: FleetSnapshot, request: RequestView, which: int, share: float, active: float
) -> None:
    """A hit on any pool, in evictable prefix or in active blocks, raises no pair's score."""
    if not fleet.pools:
        return
    pool = fleet.pools[which % len(fleet.pools)].pool_id
    hit = int(share * request.prompt_tokens)
    warm = replace(request, prefix_hit_tokens={pool: hit}, active_hit_tokens={pool: int(active * hit)})
    before, after = scores(decide(request, fleet)), scores(decide(warm, fleet))
    for pair, score in before.items():
        assert after[pair] <= score or after[pair] == pytest.approx(score, rel=1e-9, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(fleets(), requests(), st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32))
def test_same_seed_same_choice(fleet: FleetSnapshot, request: RequestView, policy: str, seed: int) -> None:
    """A decision can be repeated: the same inputs and seed give the same choice, score and ranking."""
    for pick in ("best", "two-choices", "near-tie", "sticky"):
        own = DecideSettings(pick=pick)
        one, two = (decide(request, fleet, policy, seed=seed, settings=own) for _ in range(2))
        assert (one.chosen, one.score, one.ranking, one.fallback) == (two.chosen, two.score, two.ranking, two.fallback)


@settings(max_examples=30, deadline=None)
@given(fleets(may_be_unknown=False), st.integers(1, 3_000), st.integers(0, 200), st.sampled_from([16, 64]))
def test_units_never_change_the_choice(fleet: FleetSnapshot, blocks: int, output_blocks: int, scale: int) -> None:
    """Counting in blocks of `scale` tokens instead of tokens (all rates and bytes with them) leaves the choice."""

    def shrunk(figure):
        return figure if figure.value is None else replace(figure, value=figure.value / scale)

    def grown(figure):
        return figure if figure.value is None else replace(figure, value=figure.value * scale)

    same_pages = [
        replace(
            pool,
            block_size_tokens=replace(pool.block_size_tokens, value=float(scale)),
            composition=replace(
                pool.composition,
                **{
                    name: replace(figure, value=round(figure.value / scale) * scale)
                    for name in (
                        "usable_tokens",
                        "used_tokens",
                        "active_tokens",
                        "available_tokens",
                        "committed_tokens",
                        "free_or_prefix_tokens",
                        "free_tokens",
                        "queued_tokens",
                    )
                    if (figure := getattr(pool.composition, name)).value is not None
                },
            ),
        )
        for pool in fleet.pools
    ]
    in_tokens = replace(fleet, pools=tuple(same_pages))
    in_blocks = replace(
        in_tokens,
        pools=tuple(
            replace(
                pool,
                block_size_tokens=replace(pool.block_size_tokens, value=1.0),
                bytes_per_token=grown(pool.bytes_per_token),
                waiting_uncached_tokens=shrunk(pool.waiting_uncached_tokens),
                composition=replace(
                    pool.composition,
                    **{name: shrunk(getattr(pool.composition, name)) for name in pool.composition.__slots__},
                ),
                rates=replace(
                    pool.rates,
                    **{
                        name: shrunk(getattr(pool.rates, name))
                        for name in (
                            "net_tokens_per_s",
                            "net_std_tokens_per_s",
                            "prefill_tokens_per_s",
                            "mean_prompt_tokens",
                            "mean_output_tokens",
                        )
                    },
                ),
            )
            for pool in in_tokens.pools
        ),
    )
    one = decide(RequestView(prompt_tokens=blocks * scale, output=known_output(output_blocks * scale)), in_tokens)
    two = decide(RequestView(prompt_tokens=blocks, output=known_output(output_blocks)), in_blocks)
    left, right = scores(one), scores(two)
    assert {pair: math.isfinite(score) for pair, score in left.items()} == {
        pair: math.isfinite(score) for pair, score in right.items()
    }
    for pair, score in left.items():
        if math.isfinite(score) and math.isfinite(right[pair]) and score < 1e6:
            assert right[pair] == pytest.approx(score, rel=1e-6, abs=1e-6)


UNKNOWNS = [
    "queued_tokens",
    "uncached_tokens",
    "net_tokens_per_s",
    "net_std_tokens_per_s",
    "prefill_tokens_per_s",
    "step_time_s",
    "running_count",
    "waiting_count",
    "inflight_count",
    "bytes_per_token",
    "block_size_tokens",
]


@pytest.mark.parametrize("name", UNKNOWNS)
def test_an_unknown_input_is_never_free(name: str) -> None:
    """Hiding a benign figure of a pool never makes any of its pairs cheaper than showing it, and it is marked."""
    shown = {
        "queued_tokens": 0,
        "uncached_tokens": 0,
        "net_tokens_per_s": 0,
        "net_std_tokens_per_s": 0,
        "prefill_tokens_per_s": 40_000,
        "step_time_s": 0.01,
        "running_count": 0,
        "waiting_count": 0,
        "inflight_count": 0,
        "bytes_per_token": 70_000,
        "block_size_tokens": 1,
    }
    by_name = {"P": ("prefill_tokens_per_s", "uncached_tokens", "inflight_count", "bytes_per_token")}
    is_prefill = name in by_name["P"]

    def fleet(hide: bool) -> FleetSnapshot:
        figures = {name: None} if hide else {name: shown[name]}
        if name in ("queued_tokens", "uncached_tokens"):
            figures["waiting_count"] = 3  # With nothing waiting there is nothing unknown about the queue.
        prefill = sketch_pool("p/0", Role.PREFILL, **({**figures} if is_prefill else {}))
        decode = sketch_pool("d/0", Role.DECODE, used_tokens=300_000, **({} if is_prefill else figures))
        spare = [sketch_pool("p2/0", Role.PREFILL, prefill_tokens_per_s=20_000), sketch_pool("d2/0", Role.DECODE)]
        if hide:
            prefill = (
                replace(
                    prefill,
                    rates=replace(
                        prefill.rates, prefill_tokens_per_s=replace(prefill.rates.prefill_tokens_per_s, value=None)
                    ),
                )
                if name == "prefill_tokens_per_s"
                else prefill
            )
            decode = (
                replace(decode, rates=replace(decode.rates, step_time_s=replace(decode.rates.step_time_s, value=None)))
                if name == "step_time_s"
                else decode
            )
        return sketch_fleet(
            [prefill, decode, *spare], [Link(source="*", target="*", bandwidth_bytes_per_s=25e9, latency_s=0.001)]
        )

    request = RequestView(prompt_tokens=8_000, output=known_output(500))
    known, hidden = decide(request, fleet(hide=False)), decide(request, fleet(hide=True))
    assert scores(hidden)["p/0", "d/0"] >= scores(known)["p/0", "d/0"]
    assert len(hidden.marks("p/0" if is_prefill else "d/0")) > 0


def test_an_unknown_term_is_reported_unknown() -> None:
    """A term that rests on a fallback has no seconds, keeps what it was scored as, and says so in its formula."""
    fleet = sketch_fleet([sketch_pool("p/0", Role.PREFILL, bytes_per_token=None), sketch_pool("d/0", Role.DECODE)])
    decision = decide(RequestView(prompt_tokens=1_000, output=known_output(10)), fleet)
    terms = {term.name: term for term in decision.terms}
    assert terms["transfer"].seconds is None
    assert terms["transfer"].is_unknown
    assert terms["transfer"].scored_s > 0.0
    assert terms["transfer"].formula.startswith("unknown; scored as ")
    assert not terms["prefill_wait"].is_unknown


def test_two_node_case() -> None:
    """The lower utilization is the worse place: lowest-utilization takes D-A, joint takes D-B by the transfer term."""
    request = RequestView(prompt_tokens=64_000, output=known_output(2_000))
    for fleet in (two_node_case(), two_node_case(at_s=1e9)):
        assert decide(request, fleet, "lowest-utilization").chosen.decode == "D-A/0"
        joint = decide(request, fleet)
        assert joint.chosen.decode == "D-B/0"
        assert joint.runner_up.decode == "D-A/0"
        assert joint.margin > 0.5
        own = {term.name: term.contribution for term in joint.terms}
        other = {term.name: term.contribution for term in joint.runner_up_terms}
        assert max(own, key=lambda name: other[name] - own[name]) == "transfer"


def test_degenerate_fleets_say_why() -> None:
    """No pools, no pair, all stale, all rejected, all unknown, too large: each is refused with its own words."""
    request = RequestView(prompt_tokens=1_000, output=known_output(100))
    cases = {
        "no pools": sketch_fleet([]),
        "no pair": sketch_fleet([sketch_pool("p/0", Role.PREFILL)]),
        "stale": sketch_fleet([sketch_pool("u/0", Role.UNIFIED, state=SourceState.STALE)]),
        "capacity-unknown": sketch_fleet([sketch_pool("u/0", Role.UNIFIED, usable_tokens=None)]),
        "more than any pool": sketch_fleet([sketch_pool("u/0", Role.UNIFIED, usable_tokens=500)]),
        "no-room": sketch_fleet([sketch_pool("u/0", Role.UNIFIED, used_tokens=999_900)]),
        "role": sketch_fleet([sketch_pool("u/0", Role.UNKNOWN)]),
    }
    for words, fleet in cases.items():
        decision = decide(request, fleet)
        assert decision.chosen is None
        assert words in decision.fallback, words
        assert decision.leases() == ()


def test_least_bad_is_a_named_fallback_and_never_looks_past_a_dead_pool() -> None:
    """With `least-bad` a full fleet still takes the request, saying so; unreachable pools stay out."""
    fleet = sketch_fleet(
        [
            sketch_pool("u0/0", Role.UNIFIED, used_tokens=999_900),
            sketch_pool("u1/0", Role.UNIFIED, used_tokens=0, state=SourceState.DOWN),
        ]
    )
    request = RequestView(prompt_tokens=1_000, output=known_output(100))
    decision = decide(request, fleet, "guarded-utilization", settings=DecideSettings(fallback="least-bad"))
    assert decision.chosen.decode == "u0/0"
    assert decision.fallback.startswith("least-bad")
    assert {rejection.filter for rejection in decision.rejections} == {"no-room", "unreachable"}


def test_hard_filters_name_the_reason() -> None:
    """Each filter refuses exactly the pool it is about, under its own name, with the numbers it compared."""
    pools = [
        sketch_pool("a/0", Role.UNIFIED, model="m"),
        sketch_pool("b/0", Role.UNIFIED, model="other"),
        sketch_pool("c/0", Role.UNIFIED, model="m", labels={"draining": "true"}),
        sketch_pool("d/0", Role.UNIFIED, model="m", labels={"tenants": "red, blue"}),
        sketch_pool("e/0", Role.UNIFIED, model="m", anomalies=("used_tokens",)),
        sketch_pool("f/0", Role.UNIFIED, model="m", is_serving=False),
        sketch_pool("g/0", Role.UNIFIED, model="m", used_tokens=998_000),
        sketch_pool("h/0", Role.UNIFIED, model="m", labels={"zone": "far"}),
        sketch_pool("i/0", Role.UNIFIED, model="m", state=SourceState.STALE, age_s=40.0),
        sketch_pool("j/0", Role.UNIFIED, model="m", prefill_tokens_per_s=0.2),
    ]
    pools = [replace(pool, labels={"zone": "near", **pool.labels}) for pool in pools]
    request = RequestView(
        prompt_tokens=4_000, output=known_output(100), model="m", tenant="green", data_domain={"zone": "near"}
    )
    decision = decide(request, sketch_fleet(pools))
    assert decision.chosen.decode == "a/0"
    assert {each.pool[0]: each.filter for each in decision.rejections} == {
        "b": "incompatible",
        "c": "draining",
        "d": "tenant",
        "e": "not-credible",
        "f": "not-serving",
        "g": "no-room",
        "h": "data-domain",
        "i": "stale",
        "j": "not-serving",
    }
    no_room = next(each for each in decision.rejections if each.filter == "no-room")
    assert no_room.have < no_room.need


def test_ends_that_cannot_read_each_others_kv_are_no_pair() -> None:
    """A difference in KV format refuses the pair and leaves both pools to others."""
    pools = [
        sketch_pool("p8/0", Role.PREFILL, labels={"kv_dtype": "fp8"}),
        sketch_pool("p16/0", Role.PREFILL, labels={"kv_dtype": "bf16"}, prefill_tokens_per_s=5_000),
        sketch_pool("d16/0", Role.DECODE, labels={"kv_dtype": "bf16"}),
    ]
    decision = decide(RequestView(prompt_tokens=4_000, output=known_output(100)), sketch_fleet(pools))
    assert decision.chosen.prefill == "p16/0"
    assert decision.rejections == ()
    assert decision.pair_refusal("p8/0", "d16/0")[0] == "incompatible"


def test_heterogeneous_block_sizes_round_demand_up_and_capacity_down() -> None:
    """Demand is in whole blocks of each pool; with the same room, the larger page needs no less."""
    pools = [
        sketch_pool(f"u{page}/0", Role.UNIFIED, block_size_tokens=page, usable_tokens=100_000)
        for page in (1, 16, 64, 256)
    ]
    decision = decide(RequestView(prompt_tokens=1_001, output=known_output(101)), sketch_fleet(pools))
    demands = [decision.gate(pool.pool_id).demand_tokens for pool in pools]
    assert demands == sorted(demands)
    assert demands[0] == 1_102
    assert demands[-1] == 1_024 + 256


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", 0),
        ("prompt_tokens", -5),
        ("prompt_tokens", 10**12),
        ("output_cap_tokens", -1),
        ("priority", 10**6),
    ],
)
def test_absurd_requests_are_refused_with_the_range(field: str, value: int) -> None:
    """A number outside its range is refused by name, value and range."""
    with pytest.raises(ValueError, match=rf"{field} is {value}; allowed is ") as refusal:
        RequestView(**{"prompt_tokens": 10, "output": known_output(1), field: value})
    assert " to " in str(refusal.value)


def test_hits_cannot_exceed_the_prompt() -> None:
    """A hit longer than the prompt, or an active part longer than the hit, is refused by pool."""
    with pytest.raises(ValueError, match="prefix hit on a/0 is 11"):
        RequestView(prompt_tokens=10, output=known_output(1), prefix_hit_tokens={"a/0": 11})
    with pytest.raises(ValueError, match="active hit on a/0 is 6"):
        RequestView(
            prompt_tokens=10, output=known_output(1), prefix_hit_tokens={"a/0": 5}, active_hit_tokens={"a/0": 6}
        )


def test_unknown_names_list_the_known_ones() -> None:
    """A wrong policy, class or setting is refused with the words that would do."""
    request, fleet = RequestView(prompt_tokens=10, output=known_output(1)), two_node_case()
    with pytest.raises(ValueError, match="known are joint, "):
        decide(request, fleet, "best-effort")
    with pytest.raises(ValueError, match="known are batch, interactive, long_context"):
        decide(replace(request, slo_class="gold"), fleet)
    with pytest.raises(ValueError, match="allowed are best, "):
        DecideSettings(pick="luck")


def test_no_policy_can_read_the_true_output() -> None:
    """What a policy is given has no field for the true output length: only its distribution and a cap."""
    assert "output_tokens" not in RequestView.__dataclass_fields__
    assert {name for name in RequestView.__dataclass_fields__ if "output" in name} == {"output", "output_cap_tokens"}


def test_segmented_reservation_promises_the_first_segment() -> None:
    """With segments the demand is prompt and first segment, never more than promising the quantile at once."""
    output = OutputQuantiles(((0.5, 1_000.0), (0.95, 9_000.0)))
    whole = RequestView(prompt_tokens=1_000, output=output)
    fleet = sketch_fleet([sketch_pool("u/0", Role.UNIFIED, block_size_tokens=1)])
    assert decide(whole, fleet).gate("u/0").demand_tokens == 10_000
    assert decide(replace(whole, segment_tokens=512), fleet).gate("u/0").demand_tokens == 1_512
    assert decide(replace(whole, output_cap_tokens=100), fleet).gate("u/0").demand_tokens == 1_100


def test_local_decider_takes_short_prompts_home() -> None:
    """Dynamo's decider (2,048 tokens and 0.7) lets decode compute: only below both bounds, and only where asked for."""
    fleet = sketch_fleet([sketch_pool("p/0", Role.PREFILL), sketch_pool("d/0", Role.DECODE)])
    own = DecideSettings(decider="dynamo")

    def chosen(prompt: int, hit: int) -> tuple[str, str]:
        request = RequestView(prompt_tokens=prompt, output=known_output(100), prefix_hit_tokens={"d/0": hit})
        found = decide(request, fleet, settings=own).chosen
        return found.prefill, found.decode

    assert chosen(4_000, 2_000) == ("d/0", "d/0")  # 2,000 uncached, half of the prompt
    assert chosen(4_000, 1_900) == ("p/0", "d/0")  # 2,100 uncached
    assert chosen(2_000, 500) == ("p/0", "d/0")  # 0.75 of the prompt
    request = RequestView(prompt_tokens=4_000, output=known_output(100), prefix_hit_tokens={"d/0": 2_000})
    assert decide(request, fleet).chosen.prefill == "p/0"


def test_leases_count_as_if_the_pool_were_fuller() -> None:
    """Booking a decision raises the cost of taking the same pair again, and telemetry that shows it ends that."""
    from scoring.leases import LeaseLedger

    fleet = sketch_fleet(
        [sketch_pool("p/0", Role.PREFILL), sketch_pool("d/0", Role.DECODE)],
        [Link(source="*", target="*", bandwidth_bytes_per_s=25e9)],
    )
    request = RequestView(prompt_tokens=50_000, output=known_output(500))
    ledger = LeaseLedger()
    first = decide(request, fleet, leases=ledger)
    for lease in first.leases():
        ledger.grant(lease)
    second = decide(replace(request, request_id="second"), fleet, leases=ledger)
    assert second.score > first.score
    ledger.merge({"p/0": 1.0, "d/0": 1.0})
    assert decide(request, fleet, leases=ledger).score == first.score


def test_sticky_keeps_the_previous_pair_within_the_band() -> None:
    """Stickiness holds on to a pair that is no more than the band worse, and lets go of one that is."""
    request = RequestView(prompt_tokens=64_000, output=known_output(2_000))
    state = RouterState(previous=("P-1/0", "D-A/0"))
    wide, narrow = DecideSettings(pick="sticky", near_tie=5.0), DecideSettings(pick="sticky", near_tie=0.5)
    assert decide(request, two_node_case(), settings=wide, state=state).chosen.decode == "D-A/0"
    assert decide(request, two_node_case(), settings=narrow, state=state).chosen.decode == "D-B/0"

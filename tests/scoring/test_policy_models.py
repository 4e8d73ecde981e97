"""
Modelled policies against decisions worked out by hand from their published rules, five each. The rule and its source
stand in each test; numbers are chosen so that the deciding comparison is visible.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from scoring.demand import RequestView, known_output
from scoring.leases import Lease, LeaseLedger
from scoring.model import FleetSnapshot, Link, Role
from scoring.policy import POLICIES, DecideSettings, RouterState, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool


def unified(**by_pool: Mapping[str, object]) -> FleetSnapshot:
    """Return a fleet of unified pools from their figures by name."""
    return sketch_fleet([sketch_pool(f"{name}/0", Role.UNIFIED, **figures) for name, figures in by_pool.items()])


def asked(prompt: int = 1_000, output: int = 100, **hits: int) -> RequestView:
    """Return a request with prefix hits by pool name."""
    return RequestView(
        prompt_tokens=prompt,
        output=known_output(output),
        prefix_hit_tokens={f"{name}/0": tokens for name, tokens in hits.items()},
    )


def chosen(policy: str, request: RequestView, fleet: FleetSnapshot, **options: object) -> str | None:
    """Return the decode pool's name, or None."""
    found = decide(request, fleet, policy, **options).chosen
    return None if found is None else found.decode.split("/")[0]


@pytest.mark.parametrize(
    ("counts", "hits", "expected"),
    [
        # sglang-router 0.3.2 cache_aware (CLI defaults 0.3 / 64 / 1.5): imbalanced iff max-min > 64 and max > 1.5*min.
        ({"a": 100, "b": 20, "c": 50}, {"a": 900}, "b"),  # 80 > 64 and 100 > 30: shortest, affinity ignored
        ({"a": 80, "b": 20, "c": 50}, {"a": 900}, "a"),  # 60 <= 64: match 0.9 > 0.3, affinity
        ({"a": 200, "b": 135, "c": 150}, {"a": 900}, "a"),  # 65 > 64 but 200 <= 202.5: still balanced
        ({"a": 5, "b": 3, "c": 4}, {"a": 300}, "b"),  # match 0.3 is not > 0.3: fewest in flight
        ({"a": 5, "b": 3, "c": 4}, {"a": 310, "c": 400}, "c"),  # best match wins
    ],
)
def test_sglang_cache_aware(counts: dict[str, float], hits: dict[str, int], expected: str) -> None:
    """Counts out of balance send to the fewest; else a match over the threshold keeps affinity; else the fewest."""
    fleet = unified(**{name: {} for name in counts})
    state = RouterState(in_flight_count={f"{name}/0": count for name, count in counts.items()})
    assert chosen("sglang-cache-aware", asked(**hits), fleet, state=state) == expected


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        # sglang-router 0.3.2 power_of_two: lower cached token load; if either is missing both compare counts.
        ({"a": {"used_tokens": 5_000}, "b": {"used_tokens": 4_000}}, "b"),
        ({"a": {"used_tokens": 4_000, "usable_tokens": 5_000}, "b": {"used_tokens": 5_000}}, "a"),  # tokens, not ratio
        ({"a": {"used_tokens": None, "running_count": 3}, "b": {"used_tokens": 1, "running_count": 9}}, "a"),
        ({"a": {"used_tokens": None, "running_count": 9}, "b": {"used_tokens": 10**5, "running_count": 3}}, "b"),
        ({"a": {"used_tokens": 7_000, "waiting_count": 90}, "b": {"used_tokens": 8_000}}, "a"),  # queues unseen
    ],
)
def test_sglang_power_of_two(figures: dict[str, dict[str, object]], expected: str) -> None:
    """Of two pools both are drawn, so the better one is known: fewer tokens, or fewer requests where one is blind."""
    fleet = unified(**figures)
    for seed in range(5):
        decision = decide(asked(), fleet, "sglang-power-of-two", seed=seed)
        assert decision.chosen.decode == f"{expected}/0"
        blind = any(each.get("used_tokens", 0) is None for each in figures.values())
        assert (decision.fallback is not None) == blind


def test_sglang_power_of_two_takes_each_pair_alike() -> None:
    """Of four pools the least loaded one is in the pair half of the time (2/4), whatever the seed's luck."""
    fleet = unified(**{name: {"used_tokens": used} for name, used in (("a", 1), ("b", 2), ("c", 3), ("d", 4))})
    first = sum(chosen("sglang-power-of-two", asked(), fleet, seed=seed) == "a" for seed in range(400))
    assert 160 < first < 240
    assert all(chosen("sglang-power-of-two", asked(), fleet, seed=seed) != "d" for seed in range(50))


def smg(queued: float | None = 0, waiting: float = 0, rate: float = 2_000, used: float = 0.0) -> dict[str, object]:
    """Return the figures smg's score reads."""
    return {"uncached_tokens": queued, "waiting_count": waiting, "used_tokens": used * 1_000_000, "rate": rate}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        # smg least_load: (queued + in flight since poll) / throughput + 0.15 * k / (1 - k).
        ({"a": smg(queued=4_000), "b": smg(queued=3_900)}, "b"),  # 2.0 s against 1.95 s
        ({"a": smg(queued=0, used=0.95), "b": smg(queued=2_000, used=0.0)}, "b"),  # 2.85 s against 1.0 s
        ({"a": smg(queued=0, used=0.8), "b": smg(queued=2_000)}, "a"),  # 0.6 s against 1.0 s
        ({"a": smg(queued=6_000, rate=6_000), "b": smg(queued=2_400)}, "a"),  # 1.0 s against 1.2 s
        ({"a": smg(queued=None, waiting=3), "b": smg(queued=3_000)}, "b"),  # 3*1024 = 3072 against 3000
    ],
)
def test_smg_least_load(figures: dict[str, dict[str, object]], expected: str) -> None:
    """Seconds of queue plus a barrier in k / (1 - k); without a token queue the mean prompt of 1,024 counts."""
    pools = []
    for name, each in figures.items():
        rate = each.pop("rate")
        pool = sketch_pool(f"{name}/0", Role.UNIFIED, **each)
        pools.append(
            replace(pool, rates=replace(pool.rates, generated_tokens_per_s=replace(pool.running_count, value=rate)))
        )
    assert chosen("smg-least-load", asked(), sketch_fleet(pools)) == expected


@pytest.mark.parametrize(
    ("figures", "hits", "expected"),
    [
        # Dynamo: max(prefill blocks + prompt blocks - overlap, 0) + active blocks + prompt blocks; 64-token blocks,
        # prompt 6,400 tokens = 100 blocks.
        ({"a": {"used_tokens": 64_000}, "b": {"used_tokens": 0}}, {}, "b"),  # 1,200 against 200
        ({"a": {"used_tokens": 6_400}, "b": {}}, {"a": 6_400}, "b"),  # 0+100+100 = 200 against 100+0+100: tie -> below
        ({"a": {"used_tokens": 6_336}, "b": {}}, {"a": 6_400}, "a"),  # 199 against 200
        ({"a": {"uncached_tokens": 12_800}, "b": {"used_tokens": 6_400}}, {}, "b"),  # 400 against 300
        ({"a": {"uncached_tokens": 640}, "b": {"used_tokens": 640}}, {"b": 64}, "b"),  # 210 against 209
    ],
)
def test_dynamo_kv(figures: dict[str, dict[str, object]], hits: dict[str, int], expected: str) -> None:
    """Overlap is worth blocks of prefill, load costs blocks; equal costs are told apart at random."""
    pools = {
        name: {"block_size_tokens": 64, "waiting_count": 1 if "uncached_tokens" in each else 0, **each}
        for name, each in figures.items()
    }
    picks = {chosen("dynamo-kv", asked(6_400, **hits), unified(**pools), seed=seed) for seed in range(24)}
    if figures["a"].get("used_tokens") == 6_400:
        assert picks == {"a", "b"}  # The tie of the second case.
    else:
        assert picks == {expected}


@pytest.mark.parametrize(
    ("figures", "hits", "expected"),
    [
        # llm-d: 3 * hit/prompt + 2 * (max-q)/(max-min) + 2 * (1 - usage).
        ({"a": {"waiting_count": 0}, "b": {"waiting_count": 4}}, {"b": 600}, "a"),  # 0+2+2 = 4 against 1.8+0+2 = 3.8
        ({"a": {"waiting_count": 0}, "b": {"waiting_count": 4}}, {"b": 700}, "b"),  # 4 against 2.1+0+2 = 4.1
        ({"a": {"used_tokens": 400_000}, "b": {"used_tokens": 500_000}}, {}, "a"),  # queue equal: 1 for both
        ({"a": {"used_tokens": 900_000}, "b": {}}, {"a": 650}, "a"),  # 1.95+2+0.2 = 4.15 against 0+2+2 = 4
        ({"a": {"used_tokens": 900_000}, "b": {}}, {"a": 550}, "b"),  # 1.65+2+0.2 = 3.85 against 4
    ],
)
def test_llmd_weighted(figures: dict[str, dict[str, object]], hits: dict[str, int], expected: str) -> None:
    """The largest weighted sum of prefix, queue and KV scores wins."""
    assert chosen("llm-d-weighted", asked(**hits), unified(**figures)) == expected


def test_llmd_decider_computes_small_rests_on_decode() -> None:
    """Fewer than 16 uncached tokens are computed on the decode worker; from 16 on a prefill worker is used."""
    fleet = sketch_fleet([sketch_pool("p/0", Role.PREFILL), sketch_pool("d/0", Role.DECODE)])
    for hit, prefill in ((985, "d/0"), (984, "p/0"), (0, "p/0")):
        assert decide(asked(d=hit), fleet, "llm-d-weighted").chosen.prefill == prefill


def mooncake(**rates: tuple[float, float]) -> FleetSnapshot:
    """Return prefill pools by (rate, queued tokens), and one decode pool with a 20 ms step."""
    pools = [
        sketch_pool(
            f"{name}/0",
            Role.PREFILL,
            prefill_tokens_per_s=rate,
            uncached_tokens=queued,
            waiting_count=1,
            labels={"link_bandwidth_bytes_per_s": "1e9"},
        )
        for name, (rate, queued) in rates.items()
    ]
    return sketch_fleet([*pools, sketch_pool("d/0", Role.DECODE, step_time_s=0.02)])


@pytest.mark.parametrize(
    ("rates", "hits", "expected"),
    [
        # Mooncake Algorithm 1: least T_queue + T_prefill (+ fetch where another holds more than twice the prefix).
        ({"a": (10_000, 5_000), "b": (10_000, 4_000)}, {}, "b"),  # 0.6 s against 0.5 s
        ({"a": (10_000, 5_000), "b": (10_000, 4_900)}, {"a": 900}, "a"),  # 0.51 s; b fetches 900*131072/1e9 = 0.118
        ({"a": (10_000, 9_000), "b": (10_000, 4_000)}, {"a": 900}, "b"),  # 0.91 s against 0.4+0.118+0.01 s
        ({"a": (20_000, 9_000), "b": (10_000, 4_000)}, {}, "a"),  # 0.45+0.05 = 0.5 s ties: the first by id
        ({"a": (20_000, 9_100), "b": (10_000, 4_000)}, {}, "b"),  # 0.505 s against 0.5 s
    ],
)
def test_mooncake_min_ttft(rates: dict[str, tuple[float, float]], hits: dict[str, int], expected: str) -> None:
    """The prefill instance with the least predicted TTFT wins, a remote prefix counted with its fetch."""
    decision = decide(asked(**hits), mooncake(**rates), "mooncake-min-ttft")
    assert decision.chosen.prefill == f"{expected}/0"


def test_mooncake_refuses_over_the_slo() -> None:
    """When the best predicted TTFT or TBT is over the class's SLO, the request is refused, saying which."""
    decision = decide(asked(), mooncake(a=(10_000, 50_000)), "mooncake-min-ttft")
    assert decision.chosen is None
    assert "TTFT 5.10 s is over the SLO of 1 s" in decision.fallback
    slow = sketch_fleet([sketch_pool("p/0", Role.PREFILL), sketch_pool("d/0", Role.DECODE, step_time_s=0.09)])
    assert "TBT 0.090 s" in decide(asked(), slow, "mooncake-min-ttft").fallback


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        # vLLM DP load balancer: waiting * 4 + running.
        ({"a": (1, 3), "b": (0, 8)}, "a"),  # 7 against 8
        ({"a": (2, 0), "b": (0, 7)}, "b"),  # 8 against 7
        ({"a": (0, 5), "b": (0, 4)}, "b"),
        ({"a": (1, 0), "b": (0, 4)}, "a"),  # 4 against 4: the first by id
        ({"a": (3, 1), "b": (2, 6)}, "a"),  # 13 against 14
    ],
)
def test_vllm_dp(figures: dict[str, tuple[int, int]], expected: str) -> None:
    """Waiting requests weigh four running ones; equal loads go to the first engine."""
    fleet = unified(
        **{name: {"waiting_count": waiting, "running_count": running} for name, (waiting, running) in figures.items()}
    )
    assert chosen("vllm-dp", asked(), fleet) == expected


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"a": (400, 1_000), "b": (300, 1_000)}, "b"),
        ({"a": (400, 2_000), "b": (300, 1_000)}, "a"),  # 0.2 against 0.3
        ({"a": (0, 1_000), "b": (0, 1_000)}, "a"),  # equal: the first by id
        ({"a": (None, 1_000), "b": (990, 1_000)}, "b"),  # unknown is not the least
        ({"a": (990, 1_000), "b": (980, 1_000)}, "b"),  # nothing fits, and it does not see that
    ],
)
def test_lowest_utilization(figures: dict[str, tuple[int | None, int]], expected: str) -> None:
    """Least used over usable, whatever fits; a pool that does not say is not ranked."""
    fleet = unified(**{name: {"used_tokens": used, "usable_tokens": total} for name, (used, total) in figures.items()})
    assert chosen("lowest-utilization", asked(), fleet) == expected


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"a": (40_000, 100_000), "b": (30_000, 100_000)}, "b"),
        ({"a": (5_000, 10_000), "b": (60_000, 100_000)}, "b"),  # (5,000+1,200)/10,000 > (60,000+1,200)/100,000
        ({"a": (50, 1_000), "b": (80_000, 100_000)}, "b"),  # a is emptier and too small for the request
        ({"a": (97_000, 100_000), "b": (980_000, 1_000_000)}, None),  # both into the reserve: refused
        ({"a": (None, 100_000), "b": (50_000, 100_000)}, "b"),
    ],
)
def test_guarded_utilization(figures: dict[str, tuple[int | None, int]], expected: str | None) -> None:
    """Least (committed + demand) over usable among pools that admit the request; none when none does."""
    fleet = unified(**{name: {"used_tokens": used, "usable_tokens": total} for name, (used, total) in figures.items()})
    assert chosen("guarded-utilization", asked(), fleet) == expected


def test_round_robin_takes_turns() -> None:
    """Turn n goes to pool n modulo their number, in order of id, on both ends of a pair."""
    fleet = unified(a={}, b={}, c={})
    turns = [chosen("round-robin", asked(), fleet, state=RouterState(turn=turn)) for turn in range(5)]
    assert turns == ["a", "b", "c", "a", "b"]


def test_random_takes_all_alike() -> None:
    """Every pool is taken about as often as every other."""
    fleet = unified(a={}, b={}, c={}, d={})
    picks = [chosen("random", asked(), fleet, seed=seed) for seed in range(400)]
    assert all(70 < picks.count(name) < 130 for name in "abcd")


def test_production_stack_session_sticks() -> None:
    """A session goes to one pool whatever the loads, moves only when that pool leaves; without one the fewest win."""
    fleet = unified(a={"running_count": 9}, b={"running_count": 3}, c={"running_count": 7})
    assert chosen("production-stack-session", asked(), fleet) == "b"
    homes = {}
    for number in range(40):
        request = replace(asked(), session_id=f"user-{number}")
        homes[number] = chosen("production-stack-session", request, fleet)
    assert set(homes.values()) == {"a", "b", "c"}
    busier = unified(a={"running_count": 90}, b={"running_count": 300}, c={"running_count": 7})
    without_a = unified(b={}, c={})
    for number, home in homes.items():
        request = replace(asked(), session_id=f"user-{number}")
        assert chosen("production-stack-session", request, busier) == home
        if home != "a":
            assert chosen("production-stack-session", request, without_a) == home


def test_every_policy_states_its_source_and_blind_spots() -> None:
    """An entry without a source or blind spots is none; names are stable kebab-case keys."""
    for name, policy in POLICIES.items():
        assert policy.name == name
        assert name == name.lower().replace("_", "-")
        assert len(policy.source) > 10
        assert policy.blind_spots.endswith(".")
    wanted = {
        "random",
        "round-robin",
        "lowest-utilization",
        "guarded-utilization",
        "joint",
        "sglang-cache-aware",
        "sglang-power-of-two",
        "smg-least-load",
        "dynamo-kv",
        "llm-d-weighted",
        "mooncake-min-ttft",
    }
    assert wanted <= set(POLICIES)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_leases_are_seen_by_every_policy_with_a_load(policy: str) -> None:
    """A ledger full of promises on one of two equal pools sends every policy that looks at load to the other."""
    if policy in ("random", "round-robin", "production-stack-session"):
        return
    fleet = sketch_fleet(
        [sketch_pool("p/0", Role.PREFILL), sketch_pool("d0/0", Role.DECODE), sketch_pool("d1/0", Role.DECODE)],
        [Link(source="*", target="*", bandwidth_bytes_per_s=25e9)],
    )
    ledger = LeaseLedger()
    for number in range(40):
        ledger.grant(
            Lease(
                lease_id=str(number),
                pool_id="d0/0",
                tokens=9_000,
                transfer_tokens=8_000,
                granted_at_s=0,
                expires_at_s=9,
            )
        )
    decision = decide(asked(), fleet, policy, leases=ledger, settings=DecideSettings(decider="always-remote"))
    if policy in ("llm-d-weighted", "mooncake-min-ttft"):
        assert decision.chosen is not None  # Their decode rule reads usage and step time alone.
    else:
        assert decision.chosen.decode == "d1/0"

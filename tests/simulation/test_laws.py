"""
Laws of the simulation: queueing theory, conservation, determinism, order invariance, and what a policy cannot know.
"""

from dataclasses import fields, replace

import numpy as np
import pytest

from scoring.model import Role
from scoring.service import ServiceProfile
from simulation.fleet import FleetSpec, PoolSpec, disaggregated_fleet
from simulation.result import COMPOSITION, OUTCOMES
from simulation.simulate import POLICIES, ArrivalView, SimulationOptions, simulate
from simulation.traffic import TrafficArrays

PROFILE = ServiceProfile(
    name="law",
    source="made up for the laws",
    prefill_base_s=0.003,
    prefill_per_token_s=2e-4,
    prefill_per_token2_s=1e-8,
    decode_base_s=0.006,
    decode_per_sequence_s=1e-4,
    decode_per_token_s=1e-6,
    transfer_latency_s=0.001,
    bytes_per_token=1e4,
)
PLAIN = SimulationOptions(is_compiled=False)


def pool(role, **changes):
    base = {"worker": role.value, "role": role, "usable_tokens": 20_000, "block_size_tokens": 16, "profile": PROFILE}
    return PoolSpec(**{**base, **changes})


def small_fleet(**rules):
    decode = pool(Role.DECODE, usable_tokens=6_000, is_output_cached=True)
    return disaggregated_fleet(2, 3, prefill=pool(Role.PREFILL), decode=decode, rules=list(rules.items()))


def mixed_traffic(count=150, seed=3, span_s=8.0):
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 1500, count)
    outputs = rng.integers(0, 200, count)
    lengths = prompts // 16
    families = rng.integers(0, 12, count)
    ids = [families[i] * 10_000 + np.arange(n) for i, n in enumerate(lengths)]
    return TrafficArrays(
        arrival_s=rng.uniform(0, span_s, count),
        prompt_tokens=prompts,
        output_tokens=outputs,
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        hash_ids=np.concatenate(ids),
        hash_block_tokens=16,
        class_ids=rng.integers(0, 3, count),
        tenant_ids=rng.integers(0, 5, count),
    )


def one_server(arrival_s, service_s):
    """A prefill pool that serves one request at a time for exactly `service_s` (0.001 s resolution of tokens)."""
    tick = replace(PROFILE, prefill_base_s=0.0, prefill_per_token_s=1e-4, prefill_per_token2_s=0.0)
    server = pool(Role.UNIFIED, profile=tick, max_running_count=1, prefill_budget_tokens=10**9, usable_tokens=10**6)
    traffic = TrafficArrays(
        arrival_s=arrival_s,
        prompt_tokens=np.maximum(np.rint(np.asarray(service_s) / 1e-4).astype(np.int64), 1),
        output_tokens=np.ones(len(arrival_s), np.int64),
    )
    return simulate(traffic, FleetSpec(pools=(server,)), options=replace(PLAIN, sample_period_s=0.25)), traffic


def waits(result):
    return result.requests.prefill_start_s - result.requests.arrival_s


def test_waits_follow_lindleys_recursion_exactly():
    """One server, FCFS: W(n+1) = max(0, W(n) + S(n) - A(n+1)), whatever arrives."""
    rng = np.random.default_rng(5)
    arrival_s = np.cumsum(rng.exponential(0.1, 2000))
    result, traffic = one_server(arrival_s, rng.gamma(2.0, 0.04, 2000))
    service_s = traffic.prompt_tokens * 1e-4
    wait = 0.0
    expected = []
    for n in range(2000):
        expected.append(wait)
        if n + 1 < 2000:
            wait = max(0.0, wait + service_s[n] - (arrival_s[n + 1] - arrival_s[n]))
    np.testing.assert_allclose(waits(result), expected, atol=1e-9)


def test_mean_waits_are_those_of_md1_and_mm1():
    """Pollaczek-Khinchine: W = rho S / 2(1 - rho) for fixed service, rho S / (1 - rho) for exponential."""
    rng = np.random.default_rng(11)
    count, service, rho = 9000, 0.1, 0.5
    arrival_s = np.cumsum(rng.exponential(service / rho, count))
    fixed, _ = one_server(arrival_s, np.full(count, service))
    assert np.mean(waits(fixed)) == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.08)
    random, _ = one_server(arrival_s, rng.exponential(service, count))
    assert np.mean(waits(random)) == pytest.approx(rho * service / (1 - rho), rel=0.12)


def test_littles_law():
    """Mean number in the system over time = arrival rate x mean sojourn (samples every 0.25 s see the former)."""
    rng = np.random.default_rng(12)
    arrival_s = np.cumsum(rng.exponential(0.15, 3000))
    result, _ = one_server(arrival_s, rng.exponential(0.1, 3000))
    requests, samples = result.requests, result.samples
    present = (samples.at_s[:, None] >= requests.arrival_s) & (samples.at_s[:, None] < requests.finish_s)
    seen = (samples.queue_main_count.sum(axis=1)).mean()
    sojourn = (requests.prefill_start_s - requests.arrival_s).sum() / samples.at_s[-1]
    assert seen == pytest.approx(sojourn, rel=0.05)
    assert present.sum(axis=1).mean() == pytest.approx(
        (requests.finish_s - requests.arrival_s).sum() / samples.at_s[-1], rel=0.05
    )


@pytest.mark.parametrize("handshake", ["before-prefill", "after-prefill"])
@pytest.mark.parametrize("policy", POLICIES)
def test_everything_is_conserved(policy, handshake):
    """arrived = finished + rejected + cancelled + too large; the five parts sum to usable at every tick; bytes too."""
    traffic = mixed_traffic()
    result = simulate(traffic, small_fleet(handshake=handshake), policy, 7, options=replace(PLAIN, is_checked=True))
    requests, samples = result.requests, result.samples
    assert not (requests.outcome == OUTCOMES.index("open")).any()
    assert len(requests.outcome) == len(traffic)
    parts = sum(getattr(samples, f"{word}_tokens") for word in COMPOSITION)
    np.testing.assert_array_equal(parts, samples.usable_tokens)
    assert all((getattr(samples, f"{word}_tokens") >= 0).all() for word in COMPOSITION)
    done = requests.is_finished
    np.testing.assert_array_equal(requests.generated_tokens[done], traffic.output_tokens[done])
    assert result.counters["transfer_bytes"].sum() == pytest.approx(2 * requests.link_bytes.sum())
    assert result.counters["finished_count"].sum() == done.sum()
    assert result.counters["retraction_count"].sum() == requests.retraction_count.sum()
    first_tokens = (traffic.output_tokens[done] > 0).sum()
    resumed = requests.retraction_count.sum()
    assert result.counters["generated_tokens"].sum() == requests.generated_tokens.sum() - first_tokens - resumed


def same_bytes(one, other):
    for table in ("requests", "samples"):
        for spec in fields(getattr(one, table)):
            a, b = getattr(getattr(one, table), spec.name), getattr(getattr(other, table), spec.name)
            assert a.tobytes() == b.tobytes(), f"{table}.{spec.name}"
    assert one.itl_counts.tobytes() == other.itl_counts.tobytes()
    assert {k: v.tobytes() for k, v in one.counters.items()} == {k: v.tobytes() for k, v in other.counters.items()}


@pytest.mark.parametrize("policy", ["random", "power-of-two", "joint"])
def test_same_seed_same_bytes_other_seed_other_routes(policy):
    """A run is a function of its arguments; the seed reaches the random policies."""
    traffic = mixed_traffic()
    one, same, other = (simulate(traffic, small_fleet(), policy, seed, options=PLAIN) for seed in (4, 4, 5))
    same_bytes(one, same)
    if policy != "joint":
        assert (one.requests.decode != other.requests.decode).any()


def test_looking_changes_nothing():
    """The sampling period moves no time, no route and no block of any request."""
    traffic = mixed_traffic()
    seldom, often = (
        simulate(traffic, small_fleet(), "joint", options=replace(PLAIN, sample_period_s=period))
        for period in (0, 0.01)
    )
    for name in ("finish_s", "first_token_s", "decode", "hit_tokens", "retraction_count"):
        np.testing.assert_array_equal(getattr(seldom.requests, name), getattr(often.requests, name))


def test_a_clock_too_long_to_sample_is_refused_before_memory_is_taken():
    """One request a hundred years late is a mistaken unit: the error names the instant and both ways out."""
    traffic = mixed_traffic()
    late = replace(traffic, arrival_s=np.append(traffic.arrival_s[:-1], 3.2e9))
    with pytest.raises(ValueError, match="cut the traffic or sample less often"):
        simulate(late, small_fleet(), options=replace(PLAIN, sample_period_s=0.25))


def test_row_order_of_the_traffic_does_not_matter():
    """Rows may come in any order: each request has the same fate."""
    traffic = mixed_traffic()
    order = np.random.default_rng(1).permutation(len(traffic))
    lengths = np.diff(traffic.offsets)
    shuffled = TrafficArrays(
        arrival_s=traffic.arrival_s[order],
        prompt_tokens=traffic.prompt_tokens[order],
        output_tokens=traffic.output_tokens[order],
        offsets=np.concatenate([[0], np.cumsum(lengths[order])]),
        hash_ids=np.concatenate([traffic.hash_ids[traffic.offsets[i] : traffic.offsets[i + 1]] for i in order]),
        hash_block_tokens=16,
        class_ids=traffic.class_ids[order],
    )
    one = simulate(traffic, small_fleet(), "joint", options=PLAIN)
    other = simulate(shuffled, small_fleet(), "joint", options=PLAIN)
    np.testing.assert_array_equal(one.requests.finish_s[order], other.requests.finish_s)


def test_hash_ids_are_names_only():
    """Any renaming of the hash ids, huge ones included, gives the same run."""
    traffic = mixed_traffic()
    renamed = replace(traffic, hash_ids=traffic.hash_ids * 982_451_653 + 10**15)
    one, other = (simulate(t, small_fleet(), options=PLAIN) for t in (traffic, renamed))
    np.testing.assert_array_equal(one.requests.finish_s, other.requests.finish_s)
    assert one.requests.hit_tokens.sum() == other.requests.hit_tokens.sum() > 0


def test_no_policy_sees_the_output_length():
    """The oracle boundary: routes are the same when every output length but the routes' consequences is unknowable."""
    traffic = mixed_traffic(span_s=0.001)  # all arrive before any output can have an effect.
    longer = replace(traffic, output_tokens=traffic.output_tokens + 1000)
    for policy in POLICIES:
        one, other = (simulate(t, small_fleet(), policy, 3, options=PLAIN) for t in (traffic, longer))
        np.testing.assert_array_equal(one.requests.decode, other.requests.decode)
        np.testing.assert_array_equal(one.requests.prefill, other.requests.prefill)
    assert not any("output" in spec.name for spec in fields(ArrivalView))


def test_late_telemetry_herds_and_leases_spread():
    """Ten arrivals between two reports: lowest utilization sends all to one pool, with leases it does not."""
    traffic = TrafficArrays(
        arrival_s=1.01 + np.arange(10) * 1e-3, prompt_tokens=np.full(10, 500), output_tokens=np.full(10, 50)
    )
    late = replace(PLAIN, telemetry_period_s=1.0, telemetry_age_s=0.5)
    herd = simulate(traffic, small_fleet(), "lowest-utilization", options=late)
    assert len(set(herd.requests.decode)) == 1
    leased = simulate(traffic, small_fleet(), "lowest-utilization", options=replace(late, is_leasing=True))
    assert len(set(leased.requests.decode)) == 3


def test_more_memory_never_retracts_more_when_one_pool_serves_all():
    """With one decode pool, blocks enough for everything at once mean no retraction; scarce ones mean some."""
    traffic = mixed_traffic(span_s=1.0)

    def retractions(usable):
        decode = pool(Role.DECODE, usable_tokens=usable)
        fleet = disaggregated_fleet(2, 1, prefill=pool(Role.PREFILL), decode=decode)
        return simulate(traffic, fleet, options=PLAIN).requests.retraction_count.sum()

    assert retractions(10**6) == 0 < retractions(2_500)


def test_reserve_trades_retractions_for_waiting():
    """The shape of vLLM #44594: a larger reserve retracts less and lets requests wait longer for decode."""
    traffic = mixed_traffic(span_s=2.0)
    counts, starts = [], []
    for reserve in (0, 32, 128):
        decode = pool(Role.DECODE, usable_tokens=4_000, reserve_tokens=reserve)
        fleet = disaggregated_fleet(2, 1, prefill=pool(Role.PREFILL), decode=decode)
        result = simulate(traffic, fleet, options=PLAIN)
        counts.append(result.requests.retraction_count.sum())
        starts.append(np.nanmedian(result.requests.ttft_s))
    assert counts[0] > counts[1] > counts[2]
    assert starts[0] < starts[2]

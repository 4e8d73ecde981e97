"""
The engine on cases small enough for pencil and paper, at its edges, and on bad input.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from scoring.model import Role
from scoring.service import PROFILES, ServiceProfile
from simulation.fleet import FleetSpec, LinkSpec, PoolSpec, disaggregated_fleet
from simulation.live import LiveFleet, LiveRequest
from simulation.simulate import POLICIES, SimulationOptions, simulate
from simulation.traffic import TrafficArrays

P = PROFILES["llama-3.1-8b-h100-tp1"]
PLAIN = SimulationOptions(is_compiled=False, is_checked=True)


def unified(**changes):
    return PoolSpec(**{"worker": "u", "role": Role.UNIFIED, "usable_tokens": 8192, "block_size_tokens": 16, **changes})


def pair(**rules):
    base = PoolSpec(worker="x", role=Role.PREFILL, usable_tokens=8192, block_size_tokens=16)
    return disaggregated_fleet(1, 1, prefill=base, decode=base, rules=list(rules.items()))


def traffic(arrival_s, prompt, output, **more):
    return TrafficArrays(arrival_s=np.array(arrival_s, float), prompt_tokens=prompt, output_tokens=output, **more)


def decode_s(prompt, output, batch=1):
    """Sum over the steps: the i-th reads every sequence's prompt and i tokens."""
    steps = np.arange(1, output)
    kv = batch * (prompt + steps)
    return (P.decode_base_s + P.decode_per_sequence_s * batch + P.decode_per_token_s * kv).sum()


def prefill_s(n):
    return P.prefill_base_s + P.prefill_per_token_s * n + P.prefill_per_token2_s * n * n


def test_single_request_on_a_unified_pool():
    """TTFT is the prefill, the rest is output - 1 steps over a growing context."""
    q = simulate(traffic([2.5], [1000], [300]), FleetSpec(pools=(unified(),)), options=PLAIN).requests
    assert q.first_token_s[0] == pytest.approx(2.5 + prefill_s(1000), rel=1e-12)
    assert q.finish_s[0] == pytest.approx(2.5 + prefill_s(1000) + decode_s(1000, 300), rel=1e-12)
    assert math.isnan(q.transfer_end_s[0])


@pytest.mark.parametrize("handshake", ["before-prefill", "after-prefill"])
def test_single_request_through_a_pair(handshake):
    """TTFT holds prefill, latency and bytes over bandwidth; then decode."""
    fleet = replace(pair(handshake=handshake), links=(LinkSpec(bandwidth_bytes_per_s=5e9, latency_s=0.004),))
    result = simulate(traffic([1.0], [1000], [300]), fleet, options=PLAIN)
    q = result.requests
    arrived = 1.0 + prefill_s(1000) + 0.004 + 1000 * P.bytes_per_token / 5e9
    assert q.first_token_s[0] == pytest.approx(arrived, rel=1e-12)
    assert q.finish_s[0] == pytest.approx(arrived + decode_s(1000, 300), rel=1e-12)
    assert q.link_bytes[0] == 1000 * P.bytes_per_token
    assert q.tpot_s[0] == pytest.approx(decode_s(1000, 300) / 299, rel=1e-9)
    assert result.itl_mean_s == pytest.approx(q.tpot_s[0], rel=0.01)


def test_chunks_add_up_to_the_whole_prompt():
    """A prompt in four chunks costs what it costs at once, plus a base for each further chunk."""
    fleet = FleetSpec(pools=(unified(prefill_budget_tokens=250),))
    q = simulate(traffic([0.0], [1000], [1]), fleet, options=PLAIN).requests
    assert q.finish_s[0] == pytest.approx(prefill_s(1000) + 3 * P.prefill_base_s, rel=1e-12)


def test_equal_sequences_share_every_step():
    """Four requests at once decode as one batch of four."""
    result = simulate(traffic([0.0] * 4, [100] * 4, [50] * 4), FleetSpec(pools=(unified(),)), options=PLAIN)
    q = result.requests
    begin = P.prefill_base_s + 4 * (prefill_s(100) - P.prefill_base_s)
    np.testing.assert_allclose(q.finish_s, begin + decode_s(100, 50, batch=4), rtol=1e-12)
    assert result.counters["decode_batch_sum"][0] / result.counters["decode_steps"][0] == 4


def test_prefix_hits_save_compute_and_are_found_in_order():
    """A repeated prompt computes only what is not cached; one token at least; a shared head counts up to the fork."""
    ids = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 9, 10]
    q = simulate(
        traffic([0, 5, 10], [64, 64, 64], [1, 1, 1], offsets=[0, 4, 8, 12], hash_ids=ids, hash_block_tokens=16),
        FleetSpec(pools=(unified(),)),
        options=PLAIN,
    ).requests
    assert list(q.hit_tokens) == [0, 48, 32]


def test_least_recently_used_prefix_goes_first():
    """Room for two cached prompts: the third evicts the one used longest ago, leaf first."""
    offsets = [0, 4, 8, 12, 16, 20]
    a, b, c = list(range(4)), list(range(10, 14)), list(range(20, 24))
    spec = unified(usable_tokens=9 * 16)
    q = simulate(
        traffic([0, 1, 2, 3, 4], [64] * 5, [1] * 5, offsets=offsets, hash_ids=a + b + a + c + a, hash_block_tokens=16),
        FleetSpec(pools=(spec,)),
        options=PLAIN,
    ).requests
    assert list(q.hit_tokens) == [0, 0, 48, 0, 48]


def test_pool_block_coarser_than_hash_block():
    """A pool of 64-token blocks under 16-token hashes shares whole blocks only."""
    ids = list(range(9)) * 2
    q = simulate(
        traffic([0, 5], [150, 150], [1, 1], offsets=[0, 9, 18], hash_ids=ids, hash_block_tokens=16),
        FleetSpec(pools=(unified(block_size_tokens=64),)),
        options=PLAIN,
    ).requests
    assert list(q.hit_tokens) == [0, 128]


def test_edges_of_length():
    """No output: ends with the prefill, no first token. One token: no decode. Larger than the pool: told, not stuck."""
    result = simulate(traffic([0, 1, 2, 3, 4], [10, 10, 9000, 8192, 8192], [0, 1, 5, 1, 2]), pair(), options=PLAIN)
    q = result.requests
    assert list(q.outcome) == [1, 1, 4, 1, 4]
    assert math.isnan(q.first_token_s[0])
    assert q.first_token_s[1] == q.finish_s[1] > 1
    assert q.link_bytes[:4].sum() == 0


def test_output_beyond_the_pool_ends_as_too_large_with_its_tokens_counted():
    """A sequence alone in its pool that outgrows it cannot be helped by waiting."""
    q = simulate(traffic([0.0], [100], [9000]), FleetSpec(pools=(unified(usable_tokens=256),)), options=PLAIN).requests
    assert q.outcome[0] == 4
    assert q.generated_tokens[0] == 256 - 100 + 1


def test_empty_traffic_and_unsorted_times():
    """Nothing in, nothing out; order of rows is not order of time."""
    none = simulate(traffic([], [], []), pair(), options=PLAIN)
    assert none.end_s == 0.0
    assert len(none.requests.outcome) == 0
    q = simulate(traffic([5, 1], [10, 10], [2, 2]), pair(), options=PLAIN).requests
    assert q.finish_s[1] < 5 < q.finish_s[0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([-1.0], [1], [1]), r"arrival_s\[0\] is -1"),
        (([0.0, math.nan], [1, 1], [1, 1]), r"arrival_s\[1\] is nan"),
        (([0.0, 0.0], [5, 0], [1, 1]), r"prompt_tokens\[1\] is 0"),
        (([0.0], [1], [-3]), r"output_tokens\[0\] is -3"),
        (([0.0], [1.5], [1]), r"prompt_tokens\[0\] is 1.5"),
        (([0.0], [1, 2], [1]), "prompt_tokens has 2 rows, 1 expected"),
    ],
)
def test_bad_traffic_is_told_with_its_row(columns, message):
    """A bad row is an error that names column, row and value."""
    with pytest.raises(ValueError, match=message):
        traffic(*columns)


def test_bad_fleets_and_options_are_told_with_the_field():
    """Every check names field and value."""
    cases = [
        (lambda: unified(usable_tokens=0), "usable_tokens is 0"),
        (lambda: unified(block_size_tokens=9000), "at least one block of 9000"),
        (lambda: unified(bandwidth_bytes_per_s=math.inf), "bandwidth_bytes_per_s is inf"),
        (lambda: unified(max_running_count=2.5), "max_running_count is 2.5"),
        (lambda: FleetSpec(pools=()), "pools"),
        (lambda: FleetSpec(pools=(unified(), unified())), "u/0"),
        (lambda: FleetSpec(pools=(replace(unified(), role=Role.PREFILL),)), "no decode or unified"),
        (lambda: FleetSpec(pools=(replace(unified(), role=Role.DECODE),)), "no prefill or unified"),
        (lambda: pair(handshake="never"), "handshake is 'never'"),
        (lambda: replace(pair(), links=(LinkSpec(source="nobody"),)), "nobody"),
        (lambda: SimulationOptions(telemetry_age_s=1.0), "telemetry_age_s is 1.0"),
        (lambda: simulate(traffic([0], [1], [1]), pair(), "best"), "policy is 'best'"),
        (
            lambda: simulate(
                traffic([0], [1], [1], hash_block_tokens=24), FleetSpec(pools=(unified(),)), options=PLAIN
            ),
            "hash_block_tokens 24 do not divide",
        ),
    ]
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()


class Told:
    """A Python policy that answers from a list and remembers what it was shown."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    def choose(self, request, fleet):
        self.seen.append((request, fleet))
        return self.answers[len(self.seen) - 1]


def test_python_policy_chooses_rejects_and_sees_late_figures():
    """Any object with choose: its pair is taken, None rejects, and what it sees is as old as telemetry is."""
    policy = Told((0, 1), None, (0, 1))
    options = replace(PLAIN, telemetry_period_s=1.0, telemetry_age_s=0.5)
    result = simulate(traffic([0.2, 0.3, 1.9], [100] * 3, [400] * 3), pair(), policy, options=options)
    assert list(result.requests.outcome) == [1, 2, 1]
    assert list(result.requests.prefill) == [0, -1, 0]
    first, _, third = policy.seen
    assert math.isnan(first[1].seen_at_s)
    assert third[1].seen_at_s == 1.0
    assert third[1].held_ratio[1] > 0 == first[1].held_ratio[1]
    assert third[1].prefill == (0,)
    assert third[1].decode == (1,)


def test_python_policy_that_answers_nonsense_is_told():
    """A pair that cannot serve is the policy's error, with its name and the row."""
    for answer in ((0, 5), (0, 0)):
        with pytest.raises(ValueError, match=r"Told chose .*row 0|Told chose prefill pool 0 to decode row 0"):
            simulate(traffic([0], [10], [10]), pair(), Told(answer), options=PLAIN)


@pytest.mark.parametrize(
    ("decider", "is_remote"),
    [
        ("always", [True, True, True]),
        ("never", [False, False, False]),
        ("dynamo", [False, True, True]),
        ("llm-d", [True, True, False]),
    ],
)
def test_deciders_keep_cheap_prompts_local(decider, is_remote):
    """
    Dynamo: remote unless under 2048 uncached tokens and under 0.7 of the prompt. llm-d: remote from 16 uncached.

    Decode has 1600 tokens cached; then come 400 of 2000 uncached, 2400 of 4000, and 10 of 12 (nothing to hit in).
    """
    big = tuple(replace(p, usable_tokens=65536) for p in pair().pools)
    fleet = replace(pair(decider=decider), pools=big)
    head = list(range(100))
    q = simulate(
        traffic(
            [0, 50, 100, 150],
            [1601, 2000, 4000, 12],
            [2, 2, 2, 2],
            offsets=[0, 100, 200, 300, 300],
            hash_ids=head * 3,
            hash_block_tokens=16,
        ),
        fleet,
        options=PLAIN,
    ).requests
    assert list(q.prefill[1:] != q.decode[1:]) == is_remote


def test_joint_prefers_the_cache_and_the_empty_decode_pool():
    """A long prompt goes where it is cached, its decode to the pool with room."""
    fleet = FleetSpec(
        pools=(
            PoolSpec(worker="p0", role=Role.PREFILL, usable_tokens=65536),
            PoolSpec(worker="p1", role=Role.PREFILL, usable_tokens=65536),
            PoolSpec(worker="d0", role=Role.DECODE, usable_tokens=65536),
            PoolSpec(worker="d1", role=Role.DECODE, usable_tokens=65536),
        )
    )
    ids = list(range(300)) * 2
    q = simulate(
        traffic([0, 3.0], [19200, 19200], [4000, 10], offsets=[0, 300, 600], hash_ids=ids),
        fleet,
        "joint",
        options=PLAIN,
    ).requests
    assert q.prefill[1] == q.prefill[0]
    assert q.decode[1] != q.decode[0]
    assert q.hit_tokens[1] > 19000


def test_guarded_rejects_beyond_the_gate_when_told_to():
    """With the gate at 0.5 the third of three half-pool requests finds no pool."""
    fleet = FleetSpec(pools=(unified(), replace(unified(), worker="v")))
    three = traffic([0, 0.001, 0.002], [4000] * 3, [500] * 3)
    options = replace(PLAIN, gate_ratio=0.5, is_rejecting=True)
    assert list(simulate(three, fleet, "guarded", options=options).requests.outcome) == [1, 1, 2]
    assert list(simulate(three, fleet, "guarded", options=replace(PLAIN, gate_ratio=0.5)).requests.outcome) == [1, 1, 1]


def test_a_run_can_be_stopped_and_says_how_far_it_is():
    """on_progress is told time and count; False ends the run with open requests; until_s does the same."""
    calls = []

    def stop(at_s, done):
        calls.append((at_s, done))
        return len(calls) < 3

    many = traffic(np.arange(100) * 10.0, [100] * 100, [10] * 100)
    options = replace(PLAIN, is_checked=False)
    result = simulate(many, pair(), options=options, on_progress=stop)
    assert len(calls) == 3
    assert 0 < (result.requests.outcome == 1).sum() < 100
    early = simulate(many, pair(), options=replace(options, until_s=55.0))
    assert (early.requests.outcome == 1).sum() == 6
    assert early.end_s == 55.0


def test_live_fleet_refuses_what_it_cannot_do():
    """Errors name the field: unknown pool, repeated id, time backwards, unknown worker."""
    live = LiveFleet(pair())
    request = LiveRequest(request_id="a", prompt_tokens=10, output_tokens=5)
    live.submit(request, 0, 1)
    for call, message in (
        (lambda: live.submit(request, 0, 1), "'a' is in use"),
        (lambda: live.submit(replace(request, request_id="b"), 0, 7), "decode is 7"),
        (lambda: live.submit(replace(request, request_id="b", prompt_tokens=0), 0, 1), "prompt_tokens is 0"),
        (lambda: live.advance(-1.0), "until_s is -1"),
        (lambda: live.kill("nobody"), "no worker 'nobody'"),
        (lambda: live.set_bandwidth("d0", 0.0), "bandwidth_bytes_per_s is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert [c.outcome for c in live.advance(100.0)] == ["finished"]
    assert live.cancel("a") is False


def test_live_fleet_keeps_thousands_apart():
    """Rows and block keys are used again: five thousand requests through a small fleet, every one accounted for."""
    live = LiveFleet(FleetSpec(pools=(unified(),)))
    done = []
    for i in range(5000):
        live.submit(
            LiveRequest(request_id=str(i), prompt_tokens=33, output_tokens=3, hash_ids=[i % 7, 100 + i % 11]), 0, 0
        )
        done += live.advance(i * 0.02)
    done += live.advance(1e5)
    assert sorted(int(c.request_id) for c in done) == list(range(5000))
    assert all(c.generated_tokens == 3 for c in done)
    view = live.look(0)
    assert view.used_tokens == 0
    assert view.finished_total == 5000


def test_profile_of_two_fits_switches_at_its_batch():
    """DistServe's second fit holds from batch 95 on."""
    p = PROFILES["distserve-opt-13b-a100"]
    spec = unified(profile=p, usable_tokens=65536, max_running_count=128)
    for batch, step in (
        (94, p.decode_base_s + 94 * p.decode_per_sequence_s + 94 * 17 * p.decode_per_token_s),
        (95, p.large_decode_base_s + 95 * p.large_decode_per_sequence_s + 95 * 17 * p.large_decode_per_token_s),
    ):
        q = simulate(
            traffic([0.0] * batch, [16] * batch, [2] * batch), FleetSpec(pools=(spec,)), options=PLAIN
        ).requests
        np.testing.assert_allclose(q.finish_s - q.first_token_s, step, rtol=1e-12)


def test_builtin_policies_have_the_names_the_store_keeps():
    """Names are stored in rows and traces: they never change."""
    assert set(POLICIES) == {"round-robin", "random", "lowest-utilization", "power-of-two", "guarded", "joint"}
    assert isinstance(P, ServiceProfile)

"""
KV hand-over: shares of bandwidth, latency, credits and overlap, against figures worked out by hand.
"""

import numpy as np
import pytest

from scoring.model import Role
from scoring.service import ServiceProfile
from simulation.fleet import FleetSpec, LinkSpec, PoolSpec
from simulation.live import LiveFleet, LiveRequest
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

INSTANT = ServiceProfile(
    name="instant",
    source="prefill takes a microsecond, so that transfers start together",
    prefill_base_s=1e-6,
    prefill_per_token_s=0.0,
    prefill_per_token2_s=0.0,
    decode_base_s=0.01,
    decode_per_sequence_s=0.0,
    decode_per_token_s=0.0,
    bytes_per_token=1000.0,
)
PLAIN = SimulationOptions(is_compiled=False, is_checked=True)


class Pairs:
    """Routes row i to pair i."""

    def __init__(self, pairs):
        self.pairs = pairs

    def choose(self, request, fleet):
        return self.pairs[request.row]


def spec(worker, role, rate, **changes):
    base = {"usable_tokens": 10**6, "block_size_tokens": 16, "profile": INSTANT, "bandwidth_bytes_per_s": rate}
    return PoolSpec(**{"worker": worker, "role": role, **base, **changes})


def transfer_seconds(fleet, pairs, prompts, arrivals=None):
    count = len(pairs)
    traffic = TrafficArrays(
        arrival_s=np.zeros(count) if arrivals is None else np.array(arrivals),
        prompt_tokens=prompts,
        output_tokens=np.full(count, 2),
    )
    q = simulate(traffic, fleet, Pairs(pairs), options=PLAIN).requests
    return q.transfer_end_s - q.transfer_start_s


def test_two_transfers_on_one_path_take_turns_in_halves():
    """1 MB and 3 MB at 1 MB/s: the small one has half the rate until 2 s, the large one ends at 4 s."""
    fleet = FleetSpec(pools=(spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9)))
    np.testing.assert_allclose(transfer_seconds(fleet, [(0, 1), (0, 1)], [1000, 3000]), [2.0, 4.0], rtol=1e-9)


def test_a_later_transfer_slows_the_one_under_way():
    """4 MB alone for 1 s, shared while 1 MB passes (2 s), then alone again."""
    fleet = FleetSpec(pools=(spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9)))
    took = transfer_seconds(fleet, [(0, 1), (0, 1)], [4000, 1000], arrivals=[0.0, 1.0])
    np.testing.assert_allclose(took, [5.0, 2.0], rtol=1e-9)


@pytest.mark.parametrize(("sharing", "fast_s"), [("equal", 2.0), ("max-min", 1.25)])
def test_sharing_rules_differ_where_one_end_is_narrow(sharing, fast_s):
    """Source 1 MB/s, one target 0.2 MB/s: the other transfer gets half (equal) or what is left, 0.8 (max-min)."""
    pools = (spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9), spec("e", Role.DECODE, 0.2e6))
    took = transfer_seconds(
        FleetSpec(pools=pools, sharing=sharing, handshake="after-prefill"), [(0, 1), (0, 2)], [1000, 1000]
    )
    np.testing.assert_allclose(took, [fast_s, 5.0], rtol=1e-9)


def test_path_limit_and_latency():
    """A path's own limit is shared by its transfers alone; latency comes before the first byte."""
    links = (LinkSpec(source="p", target="d", bandwidth_bytes_per_s=0.5e6, latency_s=0.25),)
    pools = (spec("p", Role.PREFILL, 1e9), spec("d", Role.DECODE, 1e9), spec("e", Role.DECODE, 1e9))
    took = transfer_seconds(FleetSpec(pools=pools, links=links), [(0, 1), (0, 1), (0, 2)], [500, 500, 1000])
    np.testing.assert_allclose(took, [2.25, 2.25, 0.001], rtol=1e-9)


def test_ranks_of_a_worker_share_its_end():
    """Two DP ranks of one decode worker take in through one network end."""
    pools = (
        spec("p", Role.PREFILL, 1e9),
        spec("d", Role.DECODE, 1e6, dp_rank=0),
        spec("d", Role.DECODE, 1e6, dp_rank=1),
    )
    np.testing.assert_allclose(
        transfer_seconds(FleetSpec(pools=pools, handshake="after-prefill"), [(0, 1), (0, 2)], [1000, 1000]),
        2.0,
        rtol=1e-9,
    )


def test_a_decode_credit_makes_transfers_queue():
    """With one credit three equal transfers go one after the other; the same bytes arrive at the same last moment."""
    pools = (spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9, max_incoming_count=1))
    traffic = TrafficArrays(arrival_s=np.zeros(3), prompt_tokens=[1000] * 3, output_tokens=[2] * 3)
    q = simulate(traffic, FleetSpec(pools=pools), Pairs([(0, 1)] * 3), options=PLAIN).requests
    np.testing.assert_allclose(q.transfer_end_s - q.prefill_end_s, [1.0, 2.0, 3.0], rtol=1e-9)
    free = FleetSpec(pools=(pools[0], spec("d", Role.DECODE, 1e9)))
    np.testing.assert_allclose(transfer_seconds(free, [(0, 1)] * 3, [1000] * 3), 3.0, rtol=1e-9)


def test_overlap_hides_what_the_line_lets_it():
    """Layer-wise sending moves its share under the compute, but never more than the line carries in that time."""
    slow = ServiceProfile(
        name="slow",
        source="prefill takes 1 s",
        prefill_base_s=1.0,
        prefill_per_token_s=0.0,
        prefill_per_token2_s=0.0,
        decode_base_s=0.01,
        decode_per_sequence_s=0.0,
        decode_per_token_s=0.0,
        bytes_per_token=1000.0,
    )
    for rate, want in ((10e6, 0.02), (1e6, 1.0)):  # 80 % of 2 MB hidden in 1 s; only 1 MB passes at 1 MB/s.
        pools = (spec("p", Role.PREFILL, rate, profile=slow), spec("d", Role.DECODE, 1e9, profile=slow))
        fleet = FleetSpec(pools=pools, overlap_ratio=0.9)
        np.testing.assert_allclose(transfer_seconds(fleet, [(0, 1)], [2000]), want, rtol=1e-9)


def test_only_missing_blocks_travel_when_told_so():
    """The second of two equal prompts finds its blocks at decode and sends the rest; "full" sends all again."""
    ids = [*range(62), *range(62)]
    for mode, want in (("missing", 1000 - 62 * 16), ("full", 1000)):
        pools = (spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9))
        traffic = TrafficArrays(
            arrival_s=np.array([0.0, 10.0]),
            prompt_tokens=[1000, 1000],
            output_tokens=[2, 2],
            offsets=[0, 62, 124],
            hash_ids=ids,
            hash_block_tokens=16,
        )
        fleet = FleetSpec(pools=pools, transfer_mode=mode)
        q = simulate(traffic, fleet, Pairs([(0, 1)] * 2), options=PLAIN).requests
        np.testing.assert_allclose(q.link_bytes, [1e6, want * 1e3])


def test_a_link_that_changes_under_way():
    """1 s at full rate, then a tenth: the other half of the bytes takes ten times as long."""
    live = LiveFleet(FleetSpec(pools=(spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9))))
    live.submit(LiveRequest(request_id="a", prompt_tokens=2000, output_tokens=2), 0, 1)
    live.advance(1.0 + 1e-6)
    live.set_bandwidth("p", 1e5)
    (done,) = live.advance(100.0)
    assert done.transfer_end_s == pytest.approx(11.0 + 1e-6, rel=1e-9)


def test_kv_waiting_for_its_transfer_holds_both_ends():
    """Between prefill and arrival the blocks count as in flight on both sides, then on neither."""
    live = LiveFleet(FleetSpec(pools=(spec("p", Role.PREFILL, 1e6), spec("d", Role.DECODE, 1e9))))
    live.submit(LiveRequest(request_id="a", prompt_tokens=1000, output_tokens=500), 0, 1)
    live.advance(0.5)
    prefill, decode = live.looks()
    assert prefill.in_flight_tokens == decode.in_flight_tokens == 1000
    assert (prefill.queue_inflight_count, decode.queue_transfer_count, decode.running_count) == (1, 1, 0)
    live.advance(2.0)
    prefill, decode = live.looks()
    assert prefill.in_flight_tokens == decode.in_flight_tokens == prefill.used_tokens == 0
    assert decode.active_tokens > 1000
    assert decode.transfer_bytes_total == 1e6

"""
Drills: nothing is lost that need not be, everything is conserved, and time to recover is told.
"""

from dataclasses import replace

import numpy as np
import pytest

from scoring.model import Role
from simulation.faults import KINDS, Fault
from simulation.fleet import PoolSpec, disaggregated_fleet
from simulation.live import LiveFleet, LiveRequest
from simulation.result import OUTCOMES
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

PLAIN = SimulationOptions(is_compiled=False, is_checked=True, sample_period_s=0.5)


def fleet():
    base = PoolSpec(worker="x", role=Role.PREFILL, usable_tokens=16_384, block_size_tokens=16)
    return disaggregated_fleet(2, 2, prefill=base, decode=replace(base, is_output_cached=True))


def traffic(count=240, span_s=60.0, seed=2):
    rng = np.random.default_rng(seed)
    return TrafficArrays(
        arrival_s=np.sort(rng.uniform(0, span_s, count)),
        prompt_tokens=rng.integers(50, 1500, count),
        output_tokens=rng.integers(1, 300, count),
    )


FAULTS = {
    "death": Fault(kind="death", at_s=20.0, until_s=30.0, worker="d1"),
    "prefill-death": Fault(kind="death", at_s=20.0, until_s=30.0, worker="p0"),
    "slow-link": Fault(kind="slow-link", at_s=20.0, until_s=30.0, worker="d0", factor=0.002),
    "stale-telemetry": Fault(kind="stale-telemetry", at_s=20.0, until_s=30.0),
    "drain": Fault(kind="drain", at_s=20.0, until_s=30.0, worker="d0"),
    "cancel-storm": Fault(kind="cancel-storm", at_s=20.0, factor=0.8),
    "burst": Fault(kind="burst", at_s=20.0, until_s=30.0, factor=6.0),
}


@pytest.mark.parametrize("handshake", ["before-prefill", "after-prefill"])
@pytest.mark.parametrize("name", FAULTS)
def test_every_drill_conserves_and_recovers(name, handshake):
    """Every request has an end, every sum holds at every tick, and the drill says when the queue was as before."""
    fault = FAULTS[name]
    result = simulate(traffic(), replace(fleet(), handshake=handshake), "lowest-utilization", 3, [fault], PLAIN)
    q = result.requests
    assert not (q.outcome == OUTCOMES.index("open")).any()
    done = q.is_finished
    np.testing.assert_array_equal(q.generated_tokens[done], q.output_tokens[done])
    (told,) = result.recoveries
    assert told.kind in KINDS
    assert told.recovered_at_s is not None
    assert told.time_to_recover_s == told.recovered_at_s - told.ended_at_s >= 0
    if name != "cancel-storm":
        assert done.all()


def test_a_death_moves_requests_and_keeps_their_tokens():
    """Those on the dead pool are placed elsewhere, nobody starts over, nobody is sent there while it is down."""
    result = simulate(traffic(), fleet(), faults=[FAULTS["death"]], options=PLAIN)
    calm = simulate(traffic(), fleet(), options=PLAIN)
    q = result.requests
    moved = q.reroute_count > 0
    assert moved.any()
    d1 = 3
    assert (q.decode[moved] != d1).all()
    placed_down = (q.arrival_s > 20) & (q.arrival_s < 30)
    assert (q.decode[placed_down] != d1).all()
    assert (q.decode[q.arrival_s > 31] == d1).any()
    late = moved & (q.first_token_s < 20)
    assert late.any()
    np.testing.assert_allclose(q.first_token_s[late], calm.requests.first_token_s[late])
    assert (q.finish_s[late] >= calm.requests.finish_s[late]).all()


def test_a_pool_that_stays_dead_never_recovers_its_drill():
    """Without an end there is no time to recover: None, not a number."""
    (told,) = simulate(
        traffic(), fleet(), faults=[Fault(kind="death", at_s=20.0, worker="d1")], options=PLAIN
    ).recoveries
    assert told.recovered_at_s is None
    assert told.time_to_recover_s is None


def test_with_every_decode_pool_dead_requests_are_rejected():
    """No pool to go to is a rejection, counted, not a request that waits for ever."""
    faults = [Fault(kind="death", at_s=20.0, worker=name) for name in ("d0", "d1")]
    q = simulate(traffic(), fleet(), faults=faults, options=PLAIN).requests
    assert (q.outcome[q.arrival_s > 20] == OUTCOMES.index("rejected")).all()


def test_a_slow_link_takes_as_long_as_its_bytes():
    """A transfer that starts and ends inside the slow window gets at most the slowed rate."""
    one = TrafficArrays(arrival_s=np.array([21.0]), prompt_tokens=[1000], output_tokens=[2])
    fault = FAULTS["slow-link"]
    q = simulate(one, fleet(), faults=[fault], options=PLAIN).requests
    assert q.transfer_end_s[0] - q.transfer_start_s[0] == pytest.approx(1000 * 131072 / (64e9 * 0.002), rel=1e-9)


def test_a_burst_adds_rows_at_the_end_inside_its_window():
    """The original rows stay as they are; extra ones fall into the window, as many as asked."""
    plain = traffic()
    inside = ((plain.arrival_s >= 20) & (plain.arrival_s < 30)).sum()
    q = simulate(plain, fleet(), faults=[FAULTS["burst"]], options=PLAIN).requests
    assert len(q.arrival_s) == len(plain) + 5 * inside
    np.testing.assert_array_equal(q.arrival_s[: len(plain)], plain.arrival_s)
    extra = q.arrival_s[len(plain) :]
    assert ((extra >= 20) & (extra < 30)).all()


def test_stale_telemetry_makes_a_router_herd():
    """While reports stand still the least used pool of the last report gets everything."""
    options = replace(PLAIN, telemetry_period_s=0.2, telemetry_age_s=0.1)
    fault = Fault(kind="stale-telemetry", at_s=20.0, until_s=30.0)
    q = simulate(traffic(), fleet(), "lowest-utilization", faults=[fault], options=options).requests
    stale = (q.arrival_s > 20.1) & (q.arrival_s < 30)
    assert len(set(q.decode[stale])) == 1
    assert len(set(q.decode[~stale])) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "fire", "at_s": 1.0}, "kind is 'fire'"),
        ({"kind": "death", "at_s": -1.0, "worker": "d0"}, "at_s is -1"),
        ({"kind": "drain", "at_s": 5.0, "until_s": 5.0, "worker": "d0"}, "until_s is 5.0"),
        ({"kind": "burst", "at_s": 5.0, "until_s": 9.0, "factor": 0.5}, "factor of at least 1"),
        ({"kind": "slow-link", "at_s": 5.0, "until_s": 9.0, "worker": "d0", "factor": 0.0}, r"factor is 0\.0"),
    ],
)
def test_bad_faults_are_told(fields, message):
    """A fault that makes no sense names its field and value."""
    with pytest.raises(ValueError, match=message):
        Fault(**fields)


def test_a_fault_on_an_unknown_worker_is_told():
    """The message lists the fleet's workers."""
    with pytest.raises(ValueError, match=r"'d9'.*p0, p1, d0, d1"):
        simulate(traffic(), fleet(), faults=[Fault(kind="death", at_s=1.0, worker="d9")], options=PLAIN)


def test_live_kill_hands_back_what_it_lost():
    """The demo gets the lost requests with their tokens moved from output to prompt, and can place them again."""
    live = LiveFleet(fleet())
    for i in range(20):
        live.submit(LiveRequest(request_id=str(i), prompt_tokens=500, output_tokens=400), i % 2, 2 + i % 2)
    done = live.advance(1.0)
    lost = live.kill("d1")
    assert {int(r.request_id) % 2 for r in lost} == {1}
    assert all(r.prompt_tokens + r.output_tokens == 900 for r in lost)
    assert any(r.prompt_tokens > 500 for r in lost)
    view = live.look(3)
    assert not view.is_up
    assert view.free_tokens == view.usable_tokens
    with pytest.raises(ValueError, match="d1/0 is down"):
        live.submit(lost[0], 0, 3)
    for request in lost:
        live.submit(request, 0, 2)
    live.revive("d1")
    done += live.advance(1000.0)
    assert len(done) == 20
    assert all(c.outcome == "finished" for c in done)


def test_live_kill_leaves_nobody_waiting_for_a_dead_pool():
    """A prompt under way when its decode pool dies is computed to its end of iteration and decoded elsewhere."""
    live = LiveFleet(fleet())
    live.submit(LiveRequest(request_id="a", prompt_tokens=8000, output_tokens=20), 0, 3)
    live.advance(0.001)
    assert live.stage("a") == "prefill"
    assert live.kill("d1") == []
    (done,) = live.advance(60.0)
    assert (done.outcome, done.decode) == ("finished", 2)
    live.submit(LiveRequest(request_id="b", prompt_tokens=8000, output_tokens=20), 0, 2)
    live.advance(60.001)
    live.kill("d0")
    (done,) = live.advance(120.0)
    assert done.outcome == "rejected"

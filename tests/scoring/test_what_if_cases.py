"""
Cases from the field, asked as what-ifs: payloads shaped after public reports go through the real dialects and the
real judge, and the decision must be the one the report's lesson asks for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.engines import identify
from collectors.engines.contract import Answer, NotUnderstood
from scoring.demand import OutputQuantiles, RequestView, known_output
from scoring.herd import herd, herd_variants
from scoring.leases import LeaseLedger
from scoring.model import FleetSnapshot, Link, PoolHistory, PoolReading, Role, signal_names
from scoring.policy import RouterState, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool
from scoring.snapshot import judge_fleet
from scoring.what_if import Question, every_policy

CASES = Path(__file__).resolve().parents[1] / "payloads" / "sglang" / "cases"
T0_S = 1_793_404_800.0


def case_fleet(
    case: str,
    files: Mapping[str, Sequence[Mapping[str, str]]],
    frame_s: float,
    links: Sequence[Link] = (),
    folder: Path = CASES,
) -> FleetSnapshot:
    """
    Return a case's fleet, judged at its last frame.

    `files` is worker -> frames; a frame is path -> file name, understood by whichever dialect recognises it.
    """
    histories = []
    for worker, frames in files.items():
        by_rank: dict[int, list[PoolReading]] = {}
        for number, frame in enumerate(frames):
            at_s = T0_S + number * frame_s
            answers = {}
            for path, name in frame.items():
                kind = "application/json" if name.endswith(".json") else "text/plain"
                answers[path] = Answer(
                    status=200, content_type=kind, body=(folder / case / name).read_bytes(), received_at_s=at_s
                )
            reading = identify(answers).understand(answers)
            assert not isinstance(reading, NotUnderstood)
            for pool in reading.pools:
                by_rank.setdefault(pool.dp_rank, []).append(
                    replace(pool, worker_id=worker, received_at_s=at_s, findings=reading.findings)
                )
        for readings in by_rank.values():
            columns = {
                name: np.array([np.nan if (value := getattr(each, name)) is None else value for each in readings])
                for name in signal_names()
            }
            times = np.array([each.received_at_s for each in readings])
            histories.append(PoolHistory(last=readings[-1], at_s=times, columns=columns, polled_at_s=float(times[-1])))
    last = max(history.last.received_at_s for history in histories)
    return judge_fleet(histories, last, links=links)


def test_p14_a_prefill_pool_that_computes_nothing_gets_no_work() -> None:
    """The emptier prefill worker never finishes a handshake: refused as not serving; the fuller one takes the work."""
    old = [{"/v1/loads": "p0.json"}] * 6
    new = [{"/v1/loads": f"p1.{number}.json"} for number in range(6)]
    fleet = case_fleet("P14", {"prefill-old": old, "prefill-new": new}, 1.0)
    fleet = replace(fleet, pools=(*fleet.pools, sketch_pool("decode/0", Role.DECODE, at_s=fleet.at_s)))
    request = RequestView(prompt_tokens=4_000, output=known_output(300), slo_class="long_context")
    decision = decide(request, fleet)
    assert decision.chosen.prefill == "prefill-old/0"
    refused = {each.pool: each for each in decision.rejections}
    assert refused["prefill-new/0"].filter == "not-serving"
    assert decision.table.pairs.term("prefill_wait")[decision.table.prefill_ids.index("prefill-new/0"), 0] == np.inf
    wait = next(term for term in decision.terms if term.name == "prefill_wait")
    assert wait.scored_s == pytest.approx(1.4, abs=0.01)
    assert decide(request, fleet, "lowest-utilization").chosen.prefill == "prefill-new/0"


def test_p15_transfer_time_is_the_drain_not_the_line_rate() -> None:
    """170 transfers wait at 2.4 a second: a hand-over takes about 71 s, not the 96 us of the line rate."""
    frames = [{"/v1/loads": f"loads.{number}.json", "/metrics": f"metrics.{number}.prom"} for number in range(3)]
    link = Link(source="*", target="*", bandwidth_bytes_per_s=25e9)
    fleet = case_fleet("P15", {"prefill": frames}, 5.0, (link,))
    pools = tuple(replace(pool, bytes_per_token=replace(pool.bytes_per_token, value=70_272.0)) for pool in fleet.pools)
    fleet = replace(
        fleet, pools=(*pools, sketch_pool("decode/0", Role.DECODE, bytes_per_token=70_272, at_s=fleet.at_s))
    )
    request = RequestView(prompt_tokens=34, output=known_output(100), slo_class="batch")
    decision = decide(request, fleet)
    table = decision.table
    seconds = table.pairs.term("transfer") * table.pairs.budget_s
    assert seconds[:, 0] == pytest.approx(np.full(4, 71.0), rel=0.06)


def test_p16_the_gauge_never_enters() -> None:
    """Two workers with the same true volume and opposite gauges hand over in the same time, the volume's."""
    frames = {name: [{"/metrics": f"{name}.{number}.prom"} for number in range(2)] for name in ("chunked", "slowclock")}
    link = Link(source="*", target="*", bandwidth_bytes_per_s=50e9)
    fleet = case_fleet("P16", frames, 5.0, (link,))
    roles = tuple(replace(pool, role=Role.PREFILL) for pool in fleet.pools)
    pools = tuple(
        replace(
            pool,
            bytes_per_token=replace(pool.bytes_per_token, value=131_072.0),
            queue_inflight_count=replace(pool.queue_inflight_count, value=None),
        )
        for pool in roles
    )
    assert [pool.rates.transfer_bytes_per_s.value for pool in pools] == pytest.approx([18.87e9] * 2, rel=1e-3)
    fleet = replace(fleet, pools=(*pools, sketch_pool("decode/0", Role.DECODE, at_s=fleet.at_s)))
    decision = decide(RequestView(prompt_tokens=8_000, output=known_output(10)), fleet)
    bandwidth = decision.table.pairs.model.starts.bandwidth_bytes_per_s
    assert bandwidth[:, 0] == pytest.approx([18.87e9] * 2, rel=1e-3)


def test_p04_a_negative_figure_is_never_the_lowest() -> None:
    """The pool whose usage reads -512 is refused as not credible by joint and not ranked by lowest utilization."""
    fleet = case_fleet("P04", {"sglang": [{"/v1/loads": "loads.json"}]}, 1.0)
    unified = replace(fleet, pools=tuple(replace(pool, role=Role.UNIFIED) for pool in fleet.pools))
    request = RequestView(prompt_tokens=1_000, output=known_output(100))
    for policy in ("joint", "guarded-utilization", "lowest-utilization"):
        assert decide(request, unified, policy).chosen.decode == "sglang/0"
    refused = {each.pool: each.filter for each in decide(request, unified).rejections}
    assert refused == {"sglang/1": "not-credible"}


def test_p18_router_counters_that_stand_still_send_everything_to_one() -> None:
    """With its own view (0, 0) cache-aware keeps affinity; with the engines' view it spills; joint refuses the full."""
    frames = {f"engine-{name}": [{"/v1/loads": f"{name}.{number}.json"} for number in range(3)] for name in "ab"}
    fleet = case_fleet("P18", frames, 5.0)
    request = RequestView(
        prompt_tokens=4_000, output=known_output(500), prefix_hit_tokens={"engine-a/0": 2_000}, slo_class="batch"
    )
    blind = RouterState(in_flight_count={"engine-a/0": 0.0, "engine-b/0": 0.0})
    assert decide(request, fleet, "sglang-cache-aware", state=blind).chosen.decode == "engine-a/0"
    assert decide(request, fleet, "sglang-cache-aware").chosen.decode == "engine-b/0"
    joint = decide(request, fleet)
    assert joint.chosen.decode == "engine-b/0"
    no_room = {each.pool: each for each in joint.rejections}["engine-a/0"]
    assert no_room.filter == "no-room"
    assert "requests ahead" in no_room.reason


def test_p20_long_contexts_fill_kv_before_counts_differ() -> None:
    """The count gate keeps affinity with the full engine; joint refuses it, and says what the lost hit was worth."""
    frames = {f"engine-{number}": [{"/v1/loads": f"e{number}.json"}] for number in range(4)}
    fleet = case_fleet("P20", frames, 5.0)
    asked = json.loads((CASES / "P20" / "request.json").read_text())
    hits = {f"{name}/0": tokens for name, tokens in asked["prefix_hit_tokens"].items()}
    request = RequestView(
        prompt_tokens=asked["prompt_tokens"],
        output=OutputQuantiles(((0.9, float(asked["max_new_tokens"])),)),
        prefix_hit_tokens=hits,
        active_hit_tokens=hits,
        slo_class=asked["class"],
    )
    assert decide(request, fleet, "sglang-cache-aware").chosen.decode == "engine-0/0"
    joint = decide(request, fleet)
    assert joint.chosen.decode == "engine-3/0"
    assert joint.runner_up.decode == "engine-1/0"
    refusal = {each.pool: each for each in joint.rejections}["engine-0/0"]
    assert refusal.filter == "no-room"
    assert joint.gate("engine-0/0").demand_tokens == pytest.approx(
        32_000, abs=3 * 64
    )  # pages are not reported: 64 is assumed
    block, row, column = joint.table.find("engine-0/0", "engine-0/0")
    lost = block.cell(row, column)
    assert lost.prefill_wait.item() == pytest.approx(39.0, rel=1e-3)
    assert lost.prefix_benefit.item() == pytest.approx(10.0, rel=1e-3)
    compute = next(term for term in joint.terms if term.name == "prefill_compute")
    assert compute.scored_s == pytest.approx(13.0, rel=1e-3)


def p19() -> tuple[FleetSnapshot, RequestView]:
    """Return the four decode pools of P19 behind one roomy prefill pool, and its request."""
    frames = {f"d{number}": [{"/v1/loads": f"d{number}.json"}] for number in range(4)}
    fleet = case_fleet("P19", frames, 1.0)
    front = sketch_pool("front/0", Role.PREFILL, usable_tokens=10_000_000, prefill_tokens_per_s=1e6, at_s=fleet.at_s)
    return replace(fleet, pools=(*fleet.pools, front)), RequestView(prompt_tokens=4_096, output=known_output(512))


def test_p19_a_herd_on_a_stale_snapshot() -> None:
    """16 of 16 go to d1 without leases and with private ones; one table levels all pools to within one request."""
    fleet, request = p19()
    options = {"count": 16, "age_s": 1.0}
    stale = herd(request, fleet, "lowest-utilization", **options)
    assert stale.placed == {"d0/0": 0, "d1/0": 16, "d2/0": 0, "d3/0": 0}
    assert stale.largest_share == 1.0
    private = herd(request, fleet, "lowest-utilization", has_leases=True, router_count=16, **options)
    assert private.placed == stale.placed
    shared = herd(request, fleet, "lowest-utilization", has_leases=True, **options)
    used = {pool.pool_id: pool.composition.used_tokens.value for pool in fleet.pools if pool.role is Role.DECODE}
    final = [used[name] + shared.placed_tokens[name] for name in used]
    assert sum(shared.placed.values()) == 16
    assert max(final) - min(final) <= 4_608 + 64
    assert shared.worst_ratio < stale.worst_ratio


def test_p19_two_choices_take_the_lowest_half_of_the_time() -> None:
    """The lowest of four is in the drawn pair with probability 2/4: 8 of 16 on average over seeds."""
    fleet, request = p19()
    counts = [
        herd(request, fleet, "lowest-utilization", count=16, pick="two-choices", seed=1_000 * seed).placed["d1/0"]
        for seed in range(25)
    ]
    assert np.mean(counts) == pytest.approx(8.0, abs=1.3)
    assert len(set(counts)) > 2


@pytest.mark.parametrize("policy", ["lowest-utilization", "joint", "dynamo-kv"])
def test_herds_conserve_requests(policy: str) -> None:
    """Placed and refused add up to the herd, whatever the way to pick; a shared table never spreads worse."""
    fleet, request = p19()
    results = herd_variants(request, fleet, policy, count=24, age_s=2.0, seed=3)
    for each in results:
        assert sum(each.placed.values()) + each.refused_count == 24
        assert 1.0 <= each.effective_pool_count <= 4.0
    by_name = {(each.pick, each.has_leases, each.router_count): each for each in results}
    assert by_name["best", True, 1].effective_pool_count >= by_name["best", False, 1].effective_pool_count


def test_p02_the_runner_up_and_the_terms_are_visible() -> None:
    """
    Affinity against queue: with a 60 % hit on the crowded pod, benefit and wait are both terms and the runner-up named.

    The other 41 requests wait for room there, so the pod with the hit is refused; its terms stay in the table.
    """
    frames = {pod: [{"/metrics": f"{pod}.{number}.prom"} for number in range(2)] for pod in ("pod-a", "pod-b")}
    fleet = case_fleet("P02", frames, 5.0, folder=CASES.parents[1] / "vllm" / "cases")
    request = RequestView(prompt_tokens=4_000, output=known_output(1_000), prefix_hit_tokens={"pod-a/0": 2_400})
    decision = decide(request, fleet)
    assert decision.chosen.decode == "pod-b/0"
    assert {each.pool: each.filter for each in decision.rejections} == {"pod-a/0": "no-room"}
    block, row, column = decision.table.find("pod-a/0", "pod-a/0")
    terms = block.cell(row, column)
    assert terms.prefill_wait.item() > 0.0
    assert terms.prefix_benefit.item() > 0.0
    assert decision.runner_up.decode == "pod-a/0"
    assert decision.runner_up.is_refused
    assert {term.name for term in decision.runner_up_terms} >= {"prefill_wait", "prefix_benefit"}


def test_affinity_wins_until_the_queue_outweighs_it() -> None:
    """The hit decides while its pool's queue is short, the queue once it is long; either way the other is runner-up."""
    request = RequestView(prompt_tokens=8_000, output=known_output(500), prefix_hit_tokens={"warm/0": 6_000})

    def asked(queued: float) -> tuple[str, str]:
        pools = [
            sketch_pool("warm/0", Role.UNIFIED, waiting_count=1, uncached_tokens=queued, queued_tokens=queued),
            sketch_pool("cold/0", Role.UNIFIED),
        ]
        decision = decide(request, sketch_fleet(pools))
        return decision.chosen.decode, decision.runner_up.decode

    assert asked(1_000.0) == ("warm/0", "cold/0")
    assert asked(9_000.0) == ("cold/0", "warm/0")


def test_every_policy_is_asked_and_judged_by_the_joint_cost() -> None:
    """One row a policy, the joint one first and with the least joint score; leases are nobody's by asking."""
    fleet, request = p19()
    ledger = LeaseLedger()
    rows = every_policy(Question(request=request, fleet=fleet, leases=ledger))
    assert rows[0].policy == "joint"
    scores = [each.joint_score for each in rows if each.joint_score is not None]
    assert min(scores) == rows[0].joint_score
    assert ledger.totals().granted_count == 0

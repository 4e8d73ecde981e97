"""The demo fleet on an injected clock: reproducible, conserving, and each scenario doing what it says."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from demo.control import UnknownScenarioError
from demo.fleet import TICK_S, DemoFleet
from demo.scenarios import SCENARIOS, Scenario
from demo.worker import Worker

START_S = 1_900_000_000.0


def _fleet(name: str, *, speed: float = 1.0, seed: int = 1, **options: Any) -> DemoFleet:
    """Return a fleet of a scenario, begun at START_S without preroll unless it is the two-node case."""
    scenario = SCENARIOS[name]
    if name != "two-node":
        scenario = replace(scenario, preroll_s=0.0)
    clock = [START_S]
    fleet = DemoFleet(scenario, seed=seed, speed=speed, clock=lambda: clock[0], max_lag_s=None, **options)
    fleet.begin()
    return fleet


def _walk(fleet: DemoFleet, end_s: float, step_s: float) -> Iterator[float]:
    """Advance step by step and yield virtual-free wall seconds since the start."""
    for step in range(1, round(end_s / step_s) + 1):
        fleet.advance(START_S + step * step_s)
        yield step * step_s


def _bodies(fleet: DemoFleet) -> bytes:
    return b"".join(msgspec.json.encode(worker.rows()) + worker.metrics() for worker in fleet.workers)


def _pools(fleet: DemoFleet) -> dict[str, dict[str, Any]]:
    return {pool["pool_id"]: pool for pool in fleet.truth()["pools"]}


def test_same_seed_same_bytes_however_often_one_looks() -> None:
    """Same seed and same times give the same bodies byte by byte, whatever the steps between; another seed does not."""
    fine, coarse, other = _fleet("rush"), _fleet("rush"), _fleet("rush", seed=2)
    for at_s in (1.0, 4.3, 9.0):
        for fleet in (coarse, other):
            fleet.advance(START_S + at_s)
        while fine.wall_s(fine.virtual_s) + 2 * TICK_S <= START_S + at_s:
            fine.advance(fine.wall_s(fine.virtual_s) + 2 * TICK_S)
        fine.advance(START_S + at_s)
        assert _bodies(fine) == _bodies(coarse)
    assert _bodies(other) != _bodies(coarse)


def _check_worker(worker: Worker, before: list[dict[str, Any]] | None, *, may_restart: bool) -> list[dict[str, Any]]:
    rows = worker.rows()
    for facts, state, row in zip(worker.plan.ranks, worker.published, rows, strict=True):
        if state.at_s == 0.0:
            assert row["max_total_num_tokens"] == 0
            continue
        parts = (state.used_tokens, state.prefix_tokens, state.free_tokens)
        assert min(parts) >= 0
        assert sum(parts) == facts.usable_tokens == row["max_total_num_tokens"]
        assert row["num_total_tokens"] >= row["num_used_tokens"]
        assert 0 <= row["num_active_tokens"] <= row["num_total_tokens"]
        moments = row["decode_moments"]
        if moments is not None:
            steps, batch, _, squares, _, generated = moments
            assert steps * squares >= batch * batch
            assert generated >= batch
    if before is not None:
        for old, new in zip(before, rows, strict=True):
            has_restarted = new["timestamp"] == 0.0 or new["total_prefill_busy_us"] < old["total_prefill_busy_us"]
            has_restarted = has_restarted or (new["decode_moments"] or [0])[0] < (old["decode_moments"] or [0])[0]
            if has_restarted:
                assert may_restart
                continue
            assert new["timestamp"] >= old["timestamp"]
            assert new["total_prefill_uncached_tokens"] >= old["total_prefill_uncached_tokens"]
            pairs = zip(old["decode_moments"] or [0.0] * 6, new["decode_moments"] or [0.0] * 6, strict=True)
            assert all(later >= earlier for earlier, later in pairs)
    return rows


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_tokens_requests_and_counters_add_up_in_every_scenario(name: str) -> None:
    """
    At every look: used + evictable + free = capacity, parts are not negative, counters never fall but by a restart,
    arrived = open + finished + rejected + cancelled + too large, and every open request is at one decoding worker.
    """
    fleet = _fleet(name, speed=10.0)
    seen: dict[str, list[dict[str, Any]]] = {}
    for _ in _walk(fleet, 7.0 if name in ("node-loss", "saturation") else 4.0, 0.25):
        for worker in fleet.workers:
            seen[worker.name] = _check_worker(worker, seen.get(worker.name), may_restart=name == "node-loss")
        counts = fleet.book.counts()
        outcomes = ("open", "finished", "rejected", "cancelled", "too_large")
        assert counts["arrived"] == sum(counts[outcome] for outcome in outcomes)
        in_flight = fleet.truth()["router_in_flight"]
        assert min(in_flight.values()) >= 0
        decoding = [worker.name for worker in fleet.workers if worker.plan.mode != "prefill"]
        assert sum(in_flight[worker] for worker in decoding) == counts["open"]
    assert fleet.book.counts()["finished"] > 0


def test_speed_changes_seconds_and_nothing_else() -> None:
    """A fleet at speed 4 counts the same tokens in a quarter of the seconds: rates agree with the reader's clock."""
    slow, fast = _fleet("calm", speed=1.0), _fleet("calm", speed=4.0)
    slow.advance(START_S + 20.0)
    fast.advance(START_S + 5.0)
    for a, b in zip(slow.workers, fast.workers, strict=True):
        for old, new in zip(a.rows(), b.rows(), strict=True):
            if a.plan.mode == "decode":
                continue
            assert new["total_prefill_uncached_tokens"] == pytest.approx(old["total_prefill_uncached_tokens"], rel=0.2)
            rate = old["total_prefill_uncached_tokens"] / old["total_prefill_busy_us"]
            assert new["total_prefill_uncached_tokens"] / new["total_prefill_busy_us"] == pytest.approx(
                4 * rate, rel=0.05
            )
            assert new["total_prefill_busy_us"] / 5e6 <= 1.0


def test_step_time_is_the_profiles() -> None:
    """The figures a reader can derive from decode moments are the coefficients that the fleet obeys."""
    fleet = _fleet("calm")
    fleet.advance(START_S + 20.0)
    for pool in _pools(fleet).values():
        if pool["role"] != "decode" or pool["decode_steps_total"] < 100:
            continue
        profile = pool["profile"]
        mean_batch = pool["decode_batch_sum_total"] / pool["decode_steps_total"]
        mean_step_s = pool["decode_step_s_total"] / pool["decode_steps_total"]
        base_s = profile["decode_base_s"] + profile["decode_per_sequence_s"] * mean_batch
        kv_tokens = (mean_step_s - base_s) / profile["decode_per_token_s"]
        assert 0.0 < kv_tokens < pool["usable_tokens"]


def test_calm_is_healthy_and_physically_full() -> None:
    """Everyday traffic keeps decode headroom and short queues; a prefill pool holds prefix in nearly every block."""
    fleet = _fleet("calm", speed=10.0)
    queued, warm = [], []
    for at_s in _walk(fleet, 6.0, 0.5):
        pools = _pools(fleet)
        if at_s > 3.0:
            queued.append(sum(pool["queue_prealloc_count"] for pool in pools.values()))
            warm.append(
                max(1.0 - p["free_tokens"] / p["usable_tokens"] for p in pools.values() if p["role"] == "prefill")
            )
    assert fleet.book.counts()["rejected"] == 0
    assert sum(pool["retracted_total"] for pool in _pools(fleet).values()) == 0
    assert sorted(queued)[len(queued) // 2] <= 3
    assert max(warm) > 0.98


def _decode_total(fleet: DemoFleet, name: str) -> float:
    return sum(pool[name] for pool in _pools(fleet).values() if pool["role"] == "decode")


def _released(looks: list[tuple[float, int, int]], start_s: float, end_s: float) -> float:
    """Return requests finished per running request and second between two times."""
    inside = [look for look in looks if start_s <= look[0] <= end_s]
    mean_running = sum(look[2] for look in inside) / len(inside)
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) / mean_running


def test_saturation_walks_the_six_stages_and_comes_back() -> None:
    """
    Thin headroom comes before stalled admission, that before retraction, that before recompute; release slows and
    time to first token grows while it lasts; and all of it is over before the scenario begins again.
    """
    fleet = _fleet("saturation", speed=10.0)
    first: dict[str, float] = {}
    ttft: list[tuple[float, float]] = []
    counted = [0, 0.0]
    looks: list[tuple[float, int, int]] = []
    for at_s in _walk(fleet, 20.8, 0.2):
        virtual_s = at_s * 10.0
        pools = [pool for pool in _pools(fleet).values() if pool["role"] == "decode"]
        committed = max((p["used_tokens"] + p["reserved_tokens"]) / p["usable_tokens"] for p in pools)
        signs = {
            "thin": committed > 0.9,
            "stall": sum(p["queue_prealloc_count"] for p in pools) >= 10,
            "retraction": sum(p["retracted_total"] for p in pools) > 0,
            "recompute": sum(p["recomputed_tokens_total"] for p in pools) > 0,
        }
        for sign, is_there in signs.items():
            if is_there:
                first.setdefault(sign, virtual_s)
        histograms = [w.timings.ttft_s for w in fleet.workers if w.plan.mode == "decode"]
        count, total = sum(sum(h.counts) for h in histograms), sum(h.total for h in histograms)
        if count > counted[0]:
            ttft.append((virtual_s, (total - counted[1]) / (count - counted[0]) * 10.0))
        counted = [count, total]
        looks.append((virtual_s, fleet.book.counts()["finished"], sum(pool["running_count"] for pool in pools)))
    assert list(first) == ["thin", "stall", "retraction", "recompute"]
    assert all(earlier <= later for earlier, later in pairwise(first.values()))
    assert 15.0 < first["thin"] < first["recompute"] < 120.0
    early = max(wait_s for at, wait_s in ttft if at < 30.0)
    assert max(wait_s for _, wait_s in ttft) > 10.0 > 4 * early
    assert _decode_total(fleet, "retracted_total") >= 5
    # Release: the share of the running requests that end in a second, before the wave and at its height.
    assert _released(looks, 55.0, 75.0) < 0.5 * _released(looks, 20.0, 38.0)
    calm = [pool for pool in _pools(fleet).values() if pool["role"] == "decode"]
    assert sum(pool["queue_prealloc_count"] + pool["queue_retracted_count"] for pool in calm) <= 2
    assert ttft[-1][1] < 5.0


def test_two_node_case_stands_when_the_ports_open() -> None:
    """D-A about 45 % used with 80 growing sequences and a busy narrow link; D-B about 68 % with 24 near their end."""
    fleet = _fleet("two-node")
    before = _pools(fleet)
    d_a, d_b = before["D-A/0"], before["D-B/0"]
    assert d_a["used_tokens"] / d_a["usable_tokens"] == pytest.approx(0.45, abs=0.03)
    assert d_b["used_tokens"] / d_b["usable_tokens"] == pytest.approx(0.68, abs=0.03)
    assert (d_a["running_count"], d_b["running_count"]) == (80, pytest.approx(24, abs=1))
    assert d_a["queue_transfer_count"] > 0
    assert d_a["bandwidth_bytes_per_s"] < 0.1 * d_b["bandwidth_bytes_per_s"]
    assert d_b["queue_transfer_count"] == 0
    fleet.advance(START_S + 8.0)
    after = _pools(fleet)
    assert after["D-A/0"]["used_tokens"] > d_a["used_tokens"]
    assert after["D-B/0"]["used_tokens"] < d_b["used_tokens"]


def test_hotspot_slow_link_and_node_loss_show_where_they_act() -> None:
    """The hot rank leads its sibling, the slow worker's transfers take longest, the dead worker holds nothing."""
    hot = _fleet("hotspot", speed=10.0)
    hot.advance(START_S + 3.0)
    pools = _pools(hot)
    assert pools["decode-2/1"]["used_tokens"] > 2 * max(pools["decode-2/0"]["used_tokens"], 1000)
    slow = _fleet("slow-link", speed=10.0)
    slow.advance(START_S + 3.5)
    latency = {
        name: pool["transfer_latency_s_total"] / pool["transfers_total"]
        for name, pool in _pools(slow).items()
        if pool["role"] == "prefill"
    }
    assert latency["prefill-2/0"] > 5 * max(value for name, value in latency.items() if name != "prefill-2/0")
    loss = _fleet("node-loss", speed=10.0)
    assert loss.advance(START_S + 2.5)
    assert not loss.is_up("decode-3")
    dead = _pools(loss)["decode-3/0"]
    assert (dead["used_tokens"], dead["is_up"]) == (0, False)
    assert loss.book.counts()["rerouted"] > 0
    lost = loss.workers[[w.name for w in loss.workers].index("decode-3")]
    steps_before = lost.rows()[0]["decode_moments"][0]
    assert loss.advance(START_S + 6.7)
    assert loss.is_up("decode-3")
    assert lost.rows()[0]["decode_moments"][0] < steps_before
    loss.advance(START_S + 8.0)
    after = _pools(loss)
    for rank in ("decode-3/0", "decode-3/1"):
        assert after[rank]["running_count"] > 0
        assert after[rank]["queue_prealloc_count"] <= 3
    assert loss.book.counts()["cancelled"] == 0


def test_a_scenario_can_be_switched_and_only_to_what_fits() -> None:
    """A switch starts the new scenario now; unknown and unplayable ones are refused with what there is."""
    fleet = _fleet("node-loss", speed=10.0)
    fleet.advance(START_S + 3.0)
    assert not fleet.is_up("decode-3")
    fleet.switch("calm")
    fleet.advance(START_S + 3.2)
    assert fleet.is_up("decode-3")
    assert fleet.describe()["scenario"] == "calm"
    with pytest.raises(UnknownScenarioError, match="there are calm"):
        fleet.switch("nope")
    with pytest.raises(UnknownScenarioError, match="needs D-A, D-B, P-A, P-B"):
        fleet.switch("two-node")
    small = _fleet("calm", worker_count=3)
    assert len(small.workers) == 3
    with pytest.raises(UnknownScenarioError, match="decode-3"):
        small.switch("node-loss")


def test_a_sleep_is_skipped_not_caught_up() -> None:
    """After an hour without ticks a live fleet goes on from where it was, at the new time."""
    fleet = DemoFleet(replace(SCENARIOS["calm"], preroll_s=0.0), clock=lambda: START_S)
    fleet.begin()
    fleet.advance(START_S + 0.5)
    virtual_s = fleet.virtual_s
    fleet.advance(START_S + 3601.0)
    assert fleet.virtual_s - virtual_s < 1.0
    fleet.advance(START_S + 3601.5)
    newest_s = max(row["timestamp"] for worker in fleet.workers for row in worker.rows())
    assert START_S + 3601.0 < newest_s <= START_S + 3601.5
    fleet.advance(START_S - 600.0)  # a clock set back must not stop the fleet either.
    fleet.advance(START_S - 599.5)
    assert fleet.virtual_s == pytest.approx(virtual_s + 1.0, abs=0.11)
    assert fleet.skipped_s > 3000.0


@pytest.mark.parametrize("starts", [(), (1.0,), (0.0, 0.0), (0.0, 5.0, 3.0)])
def test_a_scenario_is_checked_when_it_is_made(starts: tuple[float, ...]) -> None:
    """Phases start at 0 and ascend; anything else is refused with the scenario's name."""
    phase = SCENARIOS["calm"].phases[0]
    with pytest.raises(ValueError, match="scenario x"):
        Scenario(name="x", summary="", phases=tuple(replace(phase, start_s=start) for start in starts))

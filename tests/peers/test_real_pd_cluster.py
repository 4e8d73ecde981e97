"""
A real SGLang 0.5.23 cluster, two prefill and two decode workers with real KV transfer, behind the real smg router.

KVScope finds the workers through the router, must show decode committed full where usage says about a half, name
decode room as what holds prefill up, and count each waiting request once. The load client is the judge of the last:
so many clients, so many requests exist. Everything runs in the kit's network namespace. Run by `make test-peers`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoring.evidence import committed_ratio
from scoring.geometry import kv_geometry
from scoring.model import PoolSnapshot, Provenance, Role, SourceState
from tests.peers.kit import KIT, Kit
from tests.peers.seen import Body, Judged, Seen, bracket
from tests.peers.sglang_rows import COUNTERS, assert_is_row

pytestmark = pytest.mark.peer

ROUTER = "http://127.0.0.1:31000"
PREFILL, DECODE = ("127.0.0.1:32001", "127.0.0.1:32003"), ("127.0.0.1:32002", "127.0.0.1:32004")
WORKERS = (*PREFILL, *DECODE)
USABLE_TOKENS = 12000
RESERVED_TOKENS = 512
LOAD_S = 50.0
CLIENTS = 48


def _watch(kit: Kit, folder: Path) -> None:
    kit.need("sglang", "smg", is_namespaced=True)
    kit.up("pd-cluster", PD_PREFILL_TOKENS=str(USABLE_TOKENS), PD_DECODE_TOKENS=str(USABLE_TOKENS))
    asked = [f"http://{worker}/v1/loads" for worker in WORKERS] + [f"{ROUTER}/get_loads", f"{ROUTER}/workers"]
    kit.watch(
        folder,
        load_url=ROUTER,
        load_s=LOAD_S,
        clients=CLIENTS,
        witnesses=asked,
        router=ROUTER,
        quiet_s=20.0,
    )


@pytest.fixture(scope="module")
def seen(seen_of: Callable[..., Seen]) -> Seen:
    """The cluster under load, and some quiet after."""
    return seen_of("pd_cluster", _watch)


def _of(judged: Judged, role: Role) -> list[PoolSnapshot]:
    return [pool for pool in judged.fleet.pools if pool.role is role]


def _whole(judged: Judged) -> bool:
    """Say whether all four workers have been heard and none is too old to be scored."""
    pools = judged.fleet.pools
    return len(pools) == len(WORKERS) and all(pool.state.is_scored and pool.received_at_s for pool in pools)


def _sum(pools: list[PoolSnapshot], name: str) -> float:
    return sum(getattr(pool, name).value or 0.0 for pool in pools)


@pytest.fixture(scope="module")
def pressed(seen: Seen) -> list[Judged]:
    """The seconds in which many requests queue for decode room."""
    found = [j for j in seen.judged if _whole(j) and _sum(_of(j, Role.DECODE), "queue_prealloc_count") >= 15]
    assert len(found) >= 15, "the load did not queue: nothing can be judged"
    return found


def _row(body: Body) -> dict[str, Any]:
    (row,) = body.json["loads"]
    return row


def test_the_workers_are_found_through_the_router_in_their_roles(seen: Seen) -> None:
    """All four workers come from smg's own list, are polled without a failure, and say the roles the router says."""
    sources = {source["worker_id"]: source for source in seen.summary["sources"]}
    assert set(WORKERS) <= set(sources)
    for worker in WORKERS:
        assert sources[worker]["failure_count"] == 0, sources[worker]["last_error"]
        assert sources[worker]["engine"] == "sglang"
        assert "31000" in sources[worker]["origin"]
    (router,) = [source for source in sources.values() if source["is_router"]]
    assert router["failure_count"] == 0
    assert seen.load_summary["errors"] == 0
    last = seen.judged[-1]
    assert {pool.worker_id for pool in _of(last, Role.PREFILL)} == set(PREFILL)
    assert {pool.worker_id for pool in _of(last, Role.DECODE)} == set(DECODE)


@pytest.mark.parametrize("worker", WORKERS)
def test_every_second_our_figures_are_the_engine_s_own(seen: Seen, worker: str) -> None:
    """What was judged equals, number for number, the row that worker sent, and DuckDB's rows are as many as answers."""
    url = f"http://{worker}/v1/loads"
    count = 0
    for _, pool in seen.samples(f"{worker}/0"):
        row = _row(seen.answer_at(url, pool.received_at_s or 0.0))
        assert row["max_total_num_tokens"] == USABLE_TOKENS
        assert_is_row(pool, row)
        count += 1
    (source,) = [source for source in seen.summary["sources"] if source["worker_id"] == worker]
    assert count >= 0.7 * source["poll_count"]


@pytest.mark.parametrize("worker", WORKERS)
def test_counters_lie_between_a_witness_s_before_and_after(seen: Seen, worker: str) -> None:
    """A counter of ours is never below what a witness read before, nor above what it read after."""
    url = f"http://{worker}/v1/loads"
    checked = 0
    for _, pool in seen.samples(f"{worker}/0"):
        asked = seen.answer_at(url, pool.received_at_s or 0.0)
        for name, read in COUNTERS.items():
            ours = getattr(pool.reading, name)
            low, _ = bracket(seen.witness[url], asked.t, lambda body, read=read: read(_row(body)))
            _, high = bracket(seen.witness[url], pool.received_at_s, lambda body, read=read: read(_row(body)))
            if ours is not None and low is not None and high is not None:
                checked += 1
                assert low <= ours * (1 + 1e-12)
                assert ours <= high * (1 + 1e-12)
    assert checked > 100


def test_committed_is_full_where_usage_says_half(pressed: list[Judged]) -> None:
    """
    Under pressure usage never comes near a 90 % alarm, and committed is full: used plus 512 for each admitted request.

    The reserve is read off each worker's `/server_info`, so committed is derived, not guessed.
    """
    usages, ratios = [], []
    for judged in pressed:
        for pool in _of(judged, Role.DECODE):
            parts, row = pool.composition, pool.reading
            assert row.reserved_per_request_tokens == RESERVED_TOKENS
            admitted = (row.running_count or 0) + (row.queue_transfer_count or 0) + (row.queue_main_count or 0)
            assert parts.committed_tokens.value == row.used_tokens + RESERVED_TOKENS * admitted
            assert parts.committed_tokens.provenance is Provenance.DERIVED
            usages.append(parts.used_tokens.value / USABLE_TOKENS)
            ratios.append(committed_ratio(pool))
            assert usages[-1] < 0.75
    assert 0.4 < np.median(usages) < 0.6
    assert np.median(ratios) > 0.93
    assert np.quantile(ratios, 0.2) > 0.85


def test_decode_room_is_named_as_what_holds_prefill_up(seen: Seen, pressed: list[Judged]) -> None:
    """Under pressure the fleet says so with its numbers and calls no prefill pool stuck; in quiet it is gone."""
    said = [[finding.code for finding in judged.fleet.findings] for judged in pressed]
    assert sum("decode-room-holds-prefill" in codes for codes in said) >= 0.85 * len(said)
    for judged in pressed:
        prefill = _of(judged, Role.PREFILL)
        assert all(pool.is_serving for pool in judged.fleet.pools)
        assert all(pool.composition.used_tokens.value < 0.4 * USABLE_TOKENS for pool in prefill)
        assert "handshake-not-completing" not in {finding.code for pool in prefill for finding in pool.findings}
        for finding in judged.fleet.findings:
            if finding.code == "decode-room-holds-prefill":
                assert f"{_sum(prefill, 'queue_bootstrap_count'):.0f} wait on prefill" in finding.text
    quiet = [j for j in seen.judged if _whole(j) and not any(pool.waiting_count.value for pool in j.fleet.pools)]
    assert len(quiet) >= 5
    assert not any(finding.code == "decode-room-holds-prefill" for j in quiet for finding in j.fleet.findings)


def test_each_waiting_request_is_counted_once(pressed: list[Judged]) -> None:
    """
    Running and waiting together are the clients that exist; a plain sum counts half of them twice.

    The four answers are of slightly different moments, so single seconds may be off by a few; their median is not.
    """
    once, naive = [], []
    for judged in pressed:
        running = _sum(_of(judged, Role.DECODE), "running_count")
        once.append(running + judged.waiting_once)
        naive.append(running + _sum(list(judged.fleet.pools), "waiting_count"))
    assert max(once) <= CLIENTS + 8
    assert 0.85 * CLIENTS <= np.median(once) <= CLIENTS + 1
    assert np.median(naive) > 1.3 * CLIENTS


def test_the_router_s_view_stands_beside_the_engines(seen: Seen, pressed: list[Judged]) -> None:
    """smg's rows name our four workers with its own counts; it follows the engines, and no divergence is made up."""
    apart = []
    for judged in pressed:
        (view,) = judged.routers.values()
        rows = {row["worker_id"]: row for row in view["rows"]}
        assert set(rows) == set(WORKERS)
        for worker in DECODE:
            row, pool = rows[worker], judged.pool(f"{worker}/0")
            assert row["engine_count"] == pool.running_count.value + pool.waiting_count.value
            assert row["router_tokens"] is not None
            apart.append(row["difference_count"])
        assert "router-blind" not in view["findings"]
    assert abs(np.median(apart)) <= 3
    diverging = sum("router-counters-diverge" in next(iter(j.routers.values()))["findings"] for j in pressed)
    assert diverging <= 0.1 * len(pressed)


def test_the_router_s_own_table_is_the_engines_without_its_gaps(seen: Seen) -> None:
    """smg's sum of waiting requests counts those twice that queue on both sides; ours of the same moment does not."""
    doubled = []
    for body in seen.witness[f"{ROUTER}/get_loads"]:
        judged = [j for j in seen.judged if _whole(j) and abs(j.fleet.at_s - body.received_at_s) < 0.6]
        total = body.json.get("aggregate", {}).get("total_waiting_reqs")
        if judged and total and total > 20:
            doubled.append(total / judged[0].waiting_once)
    assert len(doubled) >= 10
    assert np.median(doubled) > 1.5


@pytest.mark.parametrize("worker", PREFILL)
def test_transfers_are_the_engine_s_own_counters(seen: Seen, worker: str) -> None:
    """
    KV bytes and transfers are the exposition's sums; and the bytes moved are, to the byte, the prompts' tokens times
    the bytes a token that our geometry finds in the model's configuration (float32 KV, as the kit starts it).
    """
    bodies = seen.answers[f"http://{worker}/v1/loads"]
    last: PoolSnapshot | None = None
    for _, pool in seen.samples(f"{worker}/0"):
        body = seen.answer_at(f"http://{worker}/v1/loads", pool.received_at_s or 0.0)
        index = bodies.index(body)
        after = bodies[index + 1] if index + 1 < len(bodies) else None
        beside = seen.beside(f"http://{worker}/metrics", body, after)
        if beside is None or pool.reading.transfers_total is None:
            continue
        assert pool.reading.transfers_total == beside.series.total("sglang:kv_transfer_total_mb_count")
        own_bytes = beside.series.total("sglang:kv_transfer_total_mb_sum") * 2**20
        assert pool.reading.transfer_bytes_total == pytest.approx(own_bytes, rel=1e-9)
        last = pool
    assert last is not None
    assert last.reading.transfers_total > 10
    config = json.loads((KIT / "model" / "tiny" / "config.json").read_text())
    bytes_per_token = kv_geometry(config, "float32", 1).bytes_per_token
    assert last.reading.transfer_bytes_total == bytes_per_token * last.reading.prompt_tokens_total
    codes = {finding.code for _, pool in seen.samples(f"{worker}/0") for finding in pool.findings}
    assert "transfer-gauge-below-volume" not in codes


def test_ages_follow_the_engines_clock(seen: Seen) -> None:
    """Every state is what the age says; no offset is made up between clocks that are one."""
    for judged in seen.judged:
        for pool in judged.fleet.pools:
            if pool.age_s is None:
                continue
            expected = (
                SourceState.STALE if pool.age_s > 10.0 else SourceState.LATE if pool.age_s > 3.0 else SourceState.FRESH
            )
            assert pool.state is expected
            assert "clock-offset" not in {finding.code for finding in pool.findings}

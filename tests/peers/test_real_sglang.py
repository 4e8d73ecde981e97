"""
A real SGLang 0.5.23, two DP ranks, under load that queues, watched for a minute: our figures are the engine's own.

Three opinions meet: what the runtime stored and judged, the very bodies it was sent read by another parser, and a
witness that asked the same engine at other moments on connections of its own. Run by `make test-peers`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.store import open_store
from scoring.model import PoolSnapshot, Provenance, Role, SourceState
from tests.peers.kit import Kit, free_port
from tests.peers.seen import Body, Seen, bracket
from tests.peers.sglang_rows import COUNTERS, assert_is_row

pytestmark = pytest.mark.peer

RANKS = (0, 1)
USABLE_TOKENS = 8000
HISTORY_S = 900.0
LOAD_S = 55.0
CLIENTS = 64
POOLS = tuple(f"real/{rank}" for rank in RANKS)


def _watch(kit: Kit, folder: Path) -> None:
    kit.need("sglang")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    kit.up("sglang", "--dp", "2", str(port), SGLANG_TOKENS=str(USABLE_TOKENS))
    witnesses = [url + path for path in ("/v1/loads", "/metrics")]
    kit.watch(folder, load_url=url, load_s=LOAD_S, clients=CLIENTS, workers=[f"real={url}"], witnesses=witnesses)


@pytest.fixture(scope="module")
def seen(seen_of: Callable[..., Seen]) -> Seen:
    """A minute of the engine under load, and a little after."""
    return seen_of("sglang_dp2", _watch)


@pytest.fixture(scope="module")
def url(seen: Seen) -> str:
    """The engine's address in that run."""
    return next(url.removesuffix("/v1/loads") for url in seen.answers if url.endswith("/v1/loads"))


def _row(body: Body, rank: int) -> dict[str, Any]:
    return next(row for row in body.json["loads"] if row["dp_rank"] == rank)


def _pairs(seen: Seen, url: str, rank: int) -> list[tuple[PoolSnapshot, float, dict[str, Any], Body | None]]:
    """Each judged second: the pool, when it was judged, the engine's own row and the exposition of the same poll."""
    loads = seen.answers[f"{url}/v1/loads"]
    found = []
    for judged, pool in seen.samples(f"real/{rank}"):
        body = seen.answer_at(f"{url}/v1/loads", pool.received_at_s or 0.0)
        after = loads[loads.index(body) + 1] if body is not loads[-1] else None
        found.append((pool, judged.fleet.at_s, _row(body, rank), seen.beside(f"{url}/metrics", body, after)))
    return found


def test_the_load_queues_and_every_poll_is_understood(seen: Seen) -> None:
    """The load was answered without an error and filled both ranks; no poll failed and no second was left out."""
    assert seen.load_summary["errors"] == 0
    assert seen.load_summary["ok"] > CLIENTS
    (source,) = seen.summary["sources"]
    assert source["failure_count"] == 0
    assert source["rejected_count"] == 0
    assert source["engine"] == "sglang"
    assert source["expected_rank_count"] == len(RANKS)
    # A tick without a poll is one at which the engine still owed the answer before: counted, never silent.
    assert source["poll_count"] + source["skipped_count"] >= seen.summary["stats"]["cycle_count"] - 1
    assert source["poll_count"] >= 0.5 * seen.summary["stats"]["cycle_count"]
    for name in POOLS:
        pools = [pool for _, pool in seen.samples(name)]
        assert len(pools) >= 0.7 * source["poll_count"]
        assert {pool.role for pool in pools} == {Role.UNIFIED}
        waiting = [pool.waiting_count.value for pool in pools]
        assert max(waiting) >= 4, "the load did not queue: nothing was judged under pressure"
        used = [pool.composition.used_tokens.value / pool.composition.usable_tokens.value for pool in pools]
        assert max(used) > 0.8


@pytest.mark.parametrize("rank", RANKS)
def test_every_second_our_figures_are_the_engine_s_own(seen: Seen, url: str, rank: int) -> None:
    """What was judged equals, number for number, what another parser reads in the same bodies."""
    pairs = _pairs(seen, url, rank)
    with_metrics = 0
    for pool, _, row, exposition in pairs:
        assert_is_row(pool, row)
        assert row["max_total_num_tokens"] == USABLE_TOKENS
        parts, said = pool.composition, pool.reading
        if exposition is None:
            continue
        with_metrics += 1
        series = exposition.series
        assert said.block_size_tokens == series.one("sglang:page_size", dp_rank=rank)
        evictable = series.one("sglang:kv_evictable_tokens", dp_rank=rank)
        assert said.prefix_tokens == evictable
        assert said.generated_tokens_total == series.one("sglang:realtime_tokens_total", dp_rank=rank, mode="decode")
        # A rank without a hit so far has no series of hits by mode; the other counter then says 0.
        hits = series.all("sglang:prefill_effective_tokens_total", dp_rank=rank, mode="device_hit")
        assert said.prefix_hit_tokens_total == (sum(hits) if hits else None)
        if series.one("sglang:kv_used_tokens", dp_rank=rank) == row["num_used_tokens"]:
            assert parts.free_tokens.value == series.one("sglang:kv_available_tokens", dp_rank=rank)
            assert parts.prefix_tokens.value == evictable
            assert parts.prefix_tokens.provenance is Provenance.MEASURED
    assert with_metrics >= 0.9 * len(pairs)


@pytest.mark.parametrize("rank", RANKS)
def test_the_parts_are_the_whole_every_second(seen: Seen, url: str, rank: int) -> None:
    """active + in flight + prefix + fragmentation + free + unattributed = usable, as the engine's own three are."""
    for pool, _, _, exposition in _pairs(seen, url, rank):
        parts = pool.composition
        words = ("active", "in_flight", "prefix", "fragmentation", "free", "unattributed")
        values = [getattr(parts, f"{word}_tokens").value for word in words]
        assert None not in values
        assert min(values) >= 0
        assert sum(values) == pytest.approx(parts.usable_tokens.value)
        assert parts.active_tokens.value + parts.in_flight_tokens.value == parts.used_tokens.value
        assert parts.available_tokens.value == pytest.approx(parts.free_tokens.value + parts.prefix_tokens.value)
        if exposition is not None:
            names = ("kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens")
            own = sum(exposition.series.one(f"sglang:{name}", dp_rank=rank) for name in names)
            assert own == pytest.approx(USABLE_TOKENS, abs=0.02 * USABLE_TOKENS)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", COUNTERS)
def test_counters_lie_between_a_witness_s_before_and_after(seen: Seen, url: str, rank: int, name: str) -> None:
    """A counter of ours is never below what a witness read before, nor above what it read after; and it moves."""
    witness = seen.witness[f"{url}/v1/loads"]
    pairs = _pairs(seen, url, rank)
    checked = 0
    for pool, _, _, _ in pairs:
        ours = getattr(pool.reading, name)
        asked = seen.answer_at(f"{url}/v1/loads", pool.received_at_s or 0.0)
        low, _ = bracket(witness, asked.t, lambda body: COUNTERS[name](_row(body, rank)))
        _, high = bracket(witness, pool.received_at_s, lambda body: COUNTERS[name](_row(body, rank)))
        if ours is None or low is None or high is None:
            continue
        checked += 1
        assert low <= ours * (1 + 1e-12)
        assert ours <= high * (1 + 1e-12)
    assert checked >= 0.8 * len(pairs)
    first, last = (getattr(pair[0].reading, name) or 0.0 for pair in (pairs[0], pairs[-1]))
    assert last > first


@pytest.mark.parametrize("rank", RANKS)
def test_moments_agree_with_the_scheduler_s_own_counters(seen: Seen, url: str, rank: int) -> None:
    """
    When all is quiet again, what the engine counted in two places agrees.

    `decode_moments` holds only steps that follow a step: each prompt computed in between takes one out. So decode
    passes lie between the steps and the steps plus the prefill passes; tokens alike; prompt tokens are the same.
    """
    pool, _, row, exposition = [pair for pair in _pairs(seen, url, rank) if pair[3] is not None][-1]
    assert exposition is not None
    assert (row["num_running_reqs"], row["num_waiting_reqs"]) == (0, 0), "the watch ended under load"
    series, said = exposition.series, pool.reading
    passes = series.one("sglang:cuda_graph_passes_total", dp_rank=rank, mode="decode_none")
    breaks = series.one("sglang:cuda_graph_passes_total", dp_rank=rank, mode="prefill_none")
    steps = said.decode_steps_total
    assert steps > 100
    assert steps <= passes <= steps + breaks + 1
    computed = series.one("sglang:realtime_tokens_total", dp_rank=rank, mode="prefill_compute")
    assert said.prefill_uncached_tokens_total == pytest.approx(computed, abs=2.0)
    assert said.generated_tokens_total == series.one("sglang:realtime_tokens_total", dp_rank=rank, mode="decode")
    assert said.decode_generated_tokens_total <= said.generated_tokens_total
    batch = said.decode_batch_sum_total / steps
    assert said.generated_tokens_total <= said.decode_generated_tokens_total + (breaks + 1) * 2.5 * batch


@pytest.mark.parametrize("rank", RANKS)
def test_step_time_is_the_difference_of_the_engine_s_moments(seen: Seen, url: str, rank: int) -> None:
    """At every second the step time shown is seconds over steps of the engine's bodies within the window."""
    bodies = seen.answers[f"{url}/v1/loads"]
    checked = 0
    pairs = _pairs(seen, url, rank)
    for pool, at_s, _, _ in pairs:
        start_s, end_s = at_s - pool.rates.window_s, (pool.received_at_s or 0.0)
        if any(abs(body.received_at_s - start_s) < 0.01 for body in bodies):
            continue  # On the very edge of the window: either is right.
        rows = [_row(body, rank) for body in bodies if start_s <= body.received_at_s <= end_s]
        known = [row["decode_moments"] for row in rows if row["decode_moments"]]
        if len(known) < 2 or known[-1][0] == known[0][0]:
            continue
        steps, batch, micros = (known[-1][i] - known[0][i] for i in range(3))
        checked += 1
        assert pool.rates.step_time_s.provenance is Provenance.DERIVED
        assert pool.rates.step_time_s.value == pytest.approx(micros / 1e6 / steps, rel=1e-9)
        assert pool.rates.mean_batch_count.value == pytest.approx(batch / steps, rel=1e-9)
    assert checked >= 0.4 * len(pairs)


def test_step_time_is_what_clients_waited_between_tokens(seen: Seen, url: str) -> None:
    """The mean gap between tokens that the tokenizer saw is a step and the prompts computed between."""
    body = [body for body in seen.answers[f"{url}/metrics"] if body.status == 200][-1]
    gap_s = body.series.total("sglang:inter_token_latency_seconds_sum") / body.series.total(
        "sglang:inter_token_latency_seconds_count"
    )
    last = [seen.judged[-1].pool(name).reading for name in POOLS]
    step_s = sum(said.decode_batch_step_s_total for said in last) / sum(said.decode_batch_sum_total for said in last)
    assert 0.8 * step_s < gap_s < 3.0 * step_s


@pytest.mark.parametrize("rank", RANKS)
def test_ages_are_the_engine_s_and_never_made_up(seen: Seen, url: str, rank: int) -> None:
    """Age is now less the row's own time; both clocks are one, so no offset is told; the state follows from it."""
    for pool, at_s, row, _ in _pairs(seen, url, rank):
        assert pool.reading.reported_at_s == row["timestamp"]
        assert pool.age_s is not None
        assert 0.0 <= pool.age_s <= at_s - row["timestamp"] + 1e-6
        # What is taken off as an offset is at most the way of one answer.
        assert at_s - row["timestamp"] - pool.age_s < 0.5
        assert pool.state is (
            SourceState.STALE if pool.age_s > 10.0 else SourceState.LATE if pool.age_s > 3.0 else SourceState.FRESH
        )
        assert "clock-offset" not in {finding.code for finding in pool.findings}


def test_worker_wide_counters_are_shared_out_without_loss(seen: Seen, url: str) -> None:
    """Prompts, tokens and requests that only the whole worker counts: the ranks' shares add up to the engine's sum."""
    named = {
        "prompt_tokens_total": "sglang:prompt_tokens_total",
        "finished_total": "sglang:num_requests_total",
        "e2e_s_total": "sglang:e2e_request_latency_seconds_sum",
        "ttft_count_total": "sglang:time_to_first_token_seconds_count",
    }
    checked = 0
    for (one, _, _, body), (other, _, _, _) in zip(*(_pairs(seen, url, rank) for rank in RANKS), strict=True):
        pools = [one, other]
        if body is None:
            continue
        for name, series in named.items():
            shares = [getattr(pool.reading, name) for pool in pools]
            own = body.series.total(series)
            if None not in shares:
                checked += 1
                assert sum(shares) == pytest.approx(own, rel=1e-9)
    assert checked > 40


def test_what_the_store_keeps_is_what_the_engine_said(seen: Seen, url: str) -> None:
    """Read back from DuckDB, every polled second of every rank carries the engine's own numbers; none is missing."""
    end_s = seen.judged[-1].fleet.at_s + 1.0
    store = open_store(seen.folder / "kvscope.duckdb")
    try:
        histories = {h.last.dp_rank: h for h in store.latest_histories(end_s, HISTORY_S)}
    finally:
        store.close()
    bodies = seen.answers[f"{url}/v1/loads"]
    assert set(histories) == set(RANKS)
    for rank, history in histories.items():
        assert len(history.at_s) >= len(list(seen.samples(f"real/{rank}")))
        assert len(bodies) - 1 <= len(history.at_s) <= len(bodies)
        for at_s, used, running, waiting in zip(
            history.at_s,
            history.columns["used_tokens"],
            history.columns["running_count"],
            history.columns["waiting_count"],
            strict=True,
        ):
            # The store keeps microseconds; two answers lie far further apart.
            row = _row(seen.answer_at(f"{url}/v1/loads", at_s + 0.001), rank)
            assert (used, running, waiting) == (
                row["num_used_tokens"],
                row["num_running_reqs"],
                row["num_waiting_reqs"],
            )
        assert np.all(np.diff(history.at_s) > 0)

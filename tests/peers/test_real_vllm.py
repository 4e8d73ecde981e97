"""
A real vLLM 0.32.0 with 200 blocks of 32 tokens under load that preempts: our figures are its own counters.

vLLM's ratio is of 199 blocks (block 0 is its null block), its free queue holds the evictable prefix too, and it says
no time of its own. Run by `make test-peers`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.store import open_store
from scoring.model import PoolSnapshot, Provenance, Role, SourceState
from tests.peers.kit import Kit, free_port
from tests.peers.seen import Body, Seen, bracket

pytestmark = pytest.mark.peer

BLOCKS, BLOCK_TOKENS = 200, 32
USABLE_TOKENS = (BLOCKS - 1) * BLOCK_TOKENS
HISTORY_S = 900.0
LOAD_S = 35.0
CLIENTS = 24

COUNTERS = {
    "retracted_total": "vllm:num_preemptions_total",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generated_tokens_total": "vllm:generation_tokens_total",
    "finished_total": "vllm:request_success_total",
    "prefix_query_tokens_total": "vllm:prefix_cache_queries_total",
    "prefix_hit_tokens_total": "vllm:prefix_cache_hits_total",
    "ttft_count_total": "vllm:time_to_first_token_seconds_count",
    "itl_s_total": "vllm:inter_token_latency_seconds_sum",
    "itl_count_total": "vllm:inter_token_latency_seconds_count",
    "e2e_s_total": "vllm:e2e_request_latency_seconds_sum",
}


def _watch(kit: Kit, folder: Path) -> None:
    kit.need("vllm")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    kit.up("vllm", str(port))
    kit.watch(
        folder,
        load_url=url,
        load_s=LOAD_S,
        clients=CLIENTS,
        workers=[f"real={url}"],
        witnesses=[f"{url}/metrics"],
    )


@pytest.fixture(scope="module")
def seen(seen_of: Callable[..., Seen]) -> Seen:
    """vLLM under load, and a little after."""
    return seen_of("vllm", _watch)


@pytest.fixture(scope="module")
def url(seen: Seen) -> str:
    """The address of its exposition in that run."""
    return next(url for url in seen.answers if url.endswith("/metrics"))


@pytest.fixture(scope="module")
def pairs(seen: Seen, url: str) -> list[tuple[PoolSnapshot, Body]]:
    """Each judged second with the body that it was read from."""
    return [(pool, seen.answer_at(url, pool.received_at_s or 0.0)) for _, pool in seen.samples("real/0")]


def test_the_load_preempts_and_every_poll_is_understood(seen: Seen, pairs: list[tuple[PoolSnapshot, Body]]) -> None:
    """The load was answered without an error, requests were preempted, and no poll failed."""
    assert seen.load_summary["errors"] == 0
    (source,) = seen.summary["sources"]
    assert (source["failure_count"], source["rejected_count"]) == (0, 0)
    assert source["engine"] == "vllm"
    assert source["version"] == "0.32.0"
    assert len(pairs) >= 0.7 * source["poll_count"]
    assert pairs[-1][0].reading.retracted_total > 5, "nothing was preempted: nothing was judged under pressure"
    assert {pool.role for pool, _ in pairs} == {Role.UNIFIED}


def test_every_second_our_figures_are_the_engine_s_own(pairs: list[tuple[PoolSnapshot, Body]]) -> None:
    """Capacity, use, free or prefix, running, waiting and every counter equal another parser's reading of the bytes."""
    fullest = 0.0
    for pool, body in pairs:
        parts, said, series = pool.composition, pool.reading, body.series
        used_blocks = series.one("vllm:kv_cache_usage_perc") * (BLOCKS - 1)
        assert used_blocks == pytest.approx(round(used_blocks), abs=1e-6), "the ratio is of whole blocks of 199"
        assert parts.usable_tokens.value == USABLE_TOKENS
        assert parts.used_tokens.value == round(used_blocks) * BLOCK_TOKENS
        assert parts.free_or_prefix_tokens.value == USABLE_TOKENS - parts.used_tokens.value
        assert parts.available_tokens.value == parts.free_or_prefix_tokens.value
        # vLLM's free queue does not tell prefix from free: both are unknown, neither is 0.
        assert parts.prefix_tokens.provenance is Provenance.UNKNOWN
        assert parts.free_tokens.provenance is Provenance.UNKNOWN
        assert parts.used_tokens.value + parts.free_or_prefix_tokens.value == USABLE_TOKENS
        assert parts.active_tokens.value == parts.used_tokens.value
        assert parts.in_flight_tokens.value == 0
        assert pool.running_count.value == series.one("vllm:num_requests_running")
        assert pool.waiting_count.value == series.one("vllm:num_requests_waiting")
        for name, own in COUNTERS.items():
            assert getattr(said, name) == pytest.approx(series.total(own), rel=1e-12), name
        fullest = max(fullest, parts.used_tokens.value / USABLE_TOKENS)
    assert fullest > 0.95


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_lie_between_a_witness_s_before_and_after(
    seen: Seen, url: str, pairs: list[tuple[PoolSnapshot, Body]], name: str
) -> None:
    """A counter of ours is never below what a witness read before, nor above what it read after; and it moves."""
    checked = 0
    for pool, body in pairs:
        ours = getattr(pool.reading, name)
        low, _ = bracket(seen.witness[url], body.t, lambda seen_body: seen_body.series.total(COUNTERS[name]))
        _, high = bracket(
            seen.witness[url], pool.received_at_s, lambda seen_body: seen_body.series.total(COUNTERS[name])
        )
        if low is None or high is None:
            continue
        checked += 1
        assert low <= ours * (1 + 1e-12)
        assert ours <= high * (1 + 1e-12)
    assert checked >= 0.8 * len(pairs)
    assert getattr(pairs[-1][0].reading, name) > getattr(pairs[0][0].reading, name)


def test_preemptions_per_second_are_differences_of_the_counter(pairs: list[tuple[PoolSnapshot, Body]]) -> None:
    """The rate shown times its span is the counter's own increase; it is derived, and falls to 0 when quiet."""
    moved = 0
    first_s = pairs[0][0].received_at_s or 0.0
    for index, (pool, _) in enumerate(pairs[2:], start=2):
        rate = pool.rates.retracted_per_s
        span_s = (pool.received_at_s or 0.0) - first_s
        if span_s > pool.rates.window_s or index < 3:
            continue
        counted = pool.reading.retracted_total - pairs[0][0].reading.retracted_total
        assert rate.provenance is Provenance.DERIVED
        # One poll before the first judged one may open the window.
        assert counted / span_s * 0.5 <= rate.value <= (counted + 3) / span_s * 1.3
        moved += rate.value > 0
    assert moved >= 10


def test_a_prefix_hit_is_never_above_what_was_looked_up(pairs: list[tuple[PoolSnapshot, Body]]) -> None:
    """The hit ratio lies in 0..1 and is the hits over the queries; with preemptions, repeats are told, not credited."""
    last = pairs[-1][0]
    for pool, _ in pairs:
        assert pool.rates.prefix_hit_ratio.value is None or 0.0 <= pool.rates.prefix_hit_ratio.value <= 1.0
        assert pool.reading.prefix_hit_tokens_total <= pool.reading.prefix_query_tokens_total
    repeated = last.reading.prefix_query_tokens_total - last.reading.prompt_tokens_total
    is_told = "prefix-hits-inflated" in {finding.code for finding in last.findings}
    assert is_told == (repeated > 0.02 * last.reading.prefix_query_tokens_total)


def test_age_is_since_the_answer_where_the_engine_gives_no_time(seen: Seen) -> None:
    """vLLM states no time: age counts from the answer, nothing is called frozen while it moves or idles."""
    for judged, pool in seen.samples("real/0"):
        assert pool.reading.reported_at_s is None
        assert pool.age_s == pytest.approx(judged.fleet.at_s - (pool.received_at_s or 0.0), abs=0.01)
        assert pool.state in (SourceState.FRESH, SourceState.LATE)
        assert "frozen-figures" not in {finding.code for finding in pool.findings}


def test_what_the_store_keeps_is_what_the_engine_said(seen: Seen, url: str) -> None:
    """Read back from DuckDB, every poll carries the engine's own usage and preemptions; none is missing."""
    store = open_store(seen.folder / "kvscope.duckdb")
    try:
        (history,) = store.latest_histories(seen.judged[-1].fleet.at_s + 1.0, HISTORY_S)
    finally:
        store.close()
    assert len(seen.answers[url]) - 1 <= len(history.at_s) <= len(seen.answers[url])
    used, preempted = history.columns["used_tokens"], history.columns["retracted_total"]
    for at_s, tokens, count in zip(history.at_s, used, preempted, strict=True):
        series = seen.answer_at(url, at_s + 0.001).series
        assert tokens == round(series.one("vllm:kv_cache_usage_perc") * (BLOCKS - 1)) * BLOCK_TOKENS
        assert count == series.total("vllm:num_preemptions_total")

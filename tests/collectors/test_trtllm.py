"""TensorRT-LLM's dialect: iterations by rank, refused block counts, host blocks in the denominator, Prometheus text."""

import json
from pathlib import Path

import pytest

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from scoring.model import WorkerReading

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads" / "trtllm"
TRTLLM = ENGINES["trtllm"]


def answers(body, text=None, status=200):
    """Return what a worker said at /metrics and, where given, at its Prometheus path."""
    made = {"/metrics": Answer(status=status, content_type="application/json", body=body, received_at_s=1.0)}
    if text is not None:
        made["/prometheus/metrics"] = Answer(status=200, content_type="text/plain", body=text, received_at_s=1.0)
    return made


def read(body, text=None):
    """Return the reading of a body that the registry must recognise as TensorRT-LLM's."""
    given = answers(body, text)
    assert identify(given) is TRTLLM
    reading = TRTLLM.understand(given)
    assert isinstance(reading, WorkerReading)
    return reading


def row(iteration=1, **stats):
    """Return one iteration as the server writes it."""
    blocks = {"maxNumBlocks": 100, "freeNumBlocks": 60, "usedNumBlocks": 40, "tokensPerBlock": 64, **stats}
    return {"iter": iteration, "numActiveRequests": 3, "kvCacheStats": blocks}


def body(*rows):
    return json.dumps(rows).encode()


def test_all_ranks_are_pools_and_none_is_the_answer_for_all():
    """P09: eight rows of one iteration are eight pools, whatever their order; max 0.93 on rank 3, mean 0.425."""
    rows = json.loads((PAYLOADS / "P09" / "trtllm_all_ranks.json").read_text())
    pools = read(body(*rows)).pools
    assert [pool.dp_rank for pool in pools] == list(range(8))
    usage = [pool.used_tokens / pool.usable_tokens for pool in pools]
    assert (max(usage), usage.index(max(usage))) == (0.93, 3)
    assert sum(usage) / 8 == pytest.approx(0.425)
    assert {pool.usable_tokens for pool in pools} == {4000 * 64}
    assert pools[3].used_tokens + pools[3].free_or_prefix_tokens == pools[3].usable_tokens
    assert read(body(*reversed(rows))).pools == pools


def test_rows_without_a_rank_cover_rank_0_and_say_so():
    """P09: the same worker without the rank key covers one rank; a finding says that others are not seen."""
    reading = read((PAYLOADS / "P09" / "trtllm_rank0_only.json").read_bytes())
    assert [pool.dp_rank for pool in reading.pools] == [0]
    assert [finding.code for finding in reading.findings] == ["rank-zero-only"]
    assert reading.pools[0].findings == reading.findings


def test_a_negative_block_count_is_unknown_and_the_broken_identity_is_shown():
    """P04: -2 of 7,934 blocks used and 7,936 free: both refused, capacity stays, the finding has the 2 blocks."""
    (pool,) = read((PAYLOADS / "P04" / "trtllm_stats.json").read_bytes()).pools
    assert pool.usable_tokens == 7934 * 32
    assert (pool.used_tokens, pool.free_or_prefix_tokens, pool.reported_usage_ratio) == (None, None, None)
    assert set(pool.anomalies) == {"used_tokens", "free_or_prefix_tokens", "reported_usage_ratio"}
    texts = {finding.code: finding.text for finding in pool.findings}
    assert "-2" in texts["negative-usage"]
    assert "2 more than maxNumBlocks 7934" in texts["figure-not-credible"]


def test_host_blocks_are_taken_out_where_an_iteration_proves_them():
    """P13: 1,995 device blocks, 250 of them held, 5,245 on the host: 12.5 %, not 75.9 %."""
    (pool,) = read((PAYLOADS / "P13" / "trtllm_stats.json").read_bytes()).pools
    assert (pool.usable_tokens, pool.used_tokens) == (127_680, 16_000)
    assert pool.free_or_prefix_tokens == 1745 * 64
    assert pool.offload_usable_tokens == 5245 * 64
    assert pool.reported_usage_ratio == pytest.approx(0.759, abs=0.0005)
    (finding,) = [f for f in pool.findings if f.code == "host-tier-in-denominator"]
    for words in ("1995", "5245", "12.5%", "75.9%"):
        assert words in finding.text
    assert (pool.waiting_count, pool.running_count, pool.max_running_count) == (7, 1, 16)


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"allocTotalBlocks": 40, "allocNewBlocks": 40, "reusedBlocks": 0},
        {"allocTotalBlocks": 900, "allocNewBlocks": 5, "reusedBlocks": 0},
        {"allocTotalBlocks": 10, "allocNewBlocks": 10, "reusedBlocks": 3},
    ],
)
def test_without_proof_the_engines_figures_stand(stats):
    """No allocation counters, equal ones, freed blocks or reused ones prove nothing: max stays the denominator."""
    (pool,) = read(body(row(**stats))).pools
    assert (pool.usable_tokens, pool.used_tokens, pool.free_or_prefix_tokens) == (6400, 2560, 3840)
    assert pool.offload_usable_tokens is None


def test_the_newest_iteration_of_a_rank_counts():
    """Of several iterations in one answer the highest number wins, in any order."""
    old, new = row(7), row(8, usedNumBlocks=50, freeNumBlocks=50)
    assert read(body(old, new)).pools == read(body(new, old)).pools
    assert read(body(old, new)).pools[0].used_tokens == 50 * 64


def test_blocks_that_do_not_add_up_are_said():
    """used + free other than max is a finding with the difference; each figure stays as reported."""
    (pool,) = read(body(row(usedNumBlocks=45))).pools
    assert [finding.code for finding in pool.findings] == ["blocks-do-not-add-up", "rank-zero-only"]
    assert "off by 5" in pool.findings[0].text


def test_a_drained_list_is_nothing_yet():
    """An empty list means that no iteration ran since the last asking: no pool, and no error."""
    reading = read(b"[]")
    assert (reading.pools, reading.is_nothing_yet) == ((), True)
    assert [finding.code for finding in reading.findings] == ["no-iteration-since"]


TEXT = b"""trtllm_kv_cache_utilization{model_name="m"} 0.25
trtllm_kv_cache_hit_rate{model_name="m"} 0.5
trtllm_request_success_total{model_name="m",finished_reason="stop"} 9
trtllm_request_success_total{model_name="m",finished_reason="length"} 3
trtllm_time_to_first_token_seconds_sum{model_name="m"} 6
trtllm_time_to_first_token_seconds_count{model_name="m"} 12
trtllm_time_to_first_token_seconds_bucket{model_name="m",le="1.0"} 12
trtllm_time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 12
"""


def test_prometheus_text_adds_counters_to_the_iterations():
    """Blocks come from the JSON, finished requests and histograms from the text beside it."""
    (pool,) = read(body(row()), TEXT).pools
    assert (pool.used_tokens, pool.finished_total, pool.ttft_s_total, pool.ttft_count_total) == (2560, 12, 6, 12)
    assert pool.ttft_buckets == ((1.0, 12.0), (float("inf"), 12.0))


def test_text_alone_is_a_pool_with_a_ratio_and_no_capacity():
    """Where /metrics itself is text, the ratio is known and the capacity is not."""
    (pool,) = read(TEXT).pools
    assert (pool.reported_usage_ratio, pool.reported_hit_ratio, pool.usable_tokens) == (0.25, 0.5, None)
    assert pool.model == "m"


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (b"[1, 2]", 200, "no-iteration"),
        (b'[{"iter": 1}]', 200, "no-iteration"),
        (b'[{"kvCacheStats": {}, "rank": -1}]', 200, "no-iteration"),
        (b'[{"kvCacheStats": {}, "rank": "<b>"}]', 200, "no-iteration"),
        (b'[{"kvCacheStats"', 200, "not-a-list"),
        (b"{}", 200, "not-a-list"),
        (b"<html>", 200, "not-a-list"),
        (b"", 200, "empty-body"),
        (b"[]", 500, "metrics-broken"),
        (b"[]", 401, "unauthorised"),
    ],
)
def test_what_is_no_list_of_iterations_ends_in_a_named_state(text, status, code):
    """Anything else is NotUnderstood with a stable code."""
    result = TRTLLM.understand(answers(text, status=status))
    assert isinstance(result, NotUnderstood)
    assert result.code == code


def test_a_list_at_metrics_does_not_confuse_the_text_dialects():
    """A JSON list at /metrics is claimed by this dialect alone."""
    given = answers(body(row()))
    assert [name for name, dialect in ENGINES.items() if dialect.recognises(given)] == ["trtllm"]

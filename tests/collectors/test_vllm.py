"""vLLM's dialect: a real server's body, the field cases, renamed and refused figures."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from scoring.capacity import compose
from scoring.histogram import difference, merge, quantile
from scoring.model import PoolHistory, Provenance, Role, WorkerReading, signal_names
from scoring.rates import pool_rates

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads" / "vllm"
REAL = (PAYLOADS / "0.32.0" / "metrics.txt").read_bytes()
CASES = sorted((PAYLOADS / "cases").glob("*/*.prom"))
VLLM = ENGINES["vllm"]


def answers(body, status=200, **more):
    """Return what a worker said."""
    made = {"/metrics": Answer(status=status, content_type="text/plain", body=body, received_at_s=1.0)}
    for path, text in more.items():
        made[f"/{path}"] = Answer(status=200, content_type="application/json", body=text, received_at_s=1.0)
    return made


def case(name):
    return (PAYLOADS / "cases" / name).read_bytes()


def pools(body):
    """Return the pools of a body that the registry must recognise as vLLM's."""
    given = answers(body)
    assert identify(given) is VLLM
    reading = VLLM.understand(given)
    assert isinstance(reading, WorkerReading)
    return reading.pools


def only(body):
    """Return the one pool of a body."""
    (pool,) = pools(body)
    return pool


def history(*bodies, rank=0, every_s=5.0):
    """Return the history of one rank over bodies `every_s` apart."""
    readings = [next(pool for pool in pools(body) if pool.dp_rank == rank) for body in bodies]
    columns = {}
    for name in signal_names():
        values = [getattr(reading, name) for reading in readings]
        columns[name] = np.array([np.nan if value is None else value for value in values])
    at_s = np.arange(len(bodies)) * every_s
    return PoolHistory(last=readings[-1], at_s=at_s, columns=columns, polled_at_s=float(at_s[-1]))


def test_a_real_server_gives_the_hand_checked_figures():
    """vLLM 0.32.0 under load: 183 of 199 blocks of 32 tokens; the null block is no capacity; counters as captured."""
    pool = only(REAL)
    assert (pool.block_size_tokens, pool.usable_tokens) == (32, 199 * 32)
    assert (pool.used_tokens, pool.free_or_prefix_tokens) == (183 * 32, 16 * 32)
    assert pool.used_tokens + pool.free_or_prefix_tokens == pool.usable_tokens
    assert pool.reported_usage_ratio == 183 / 199
    assert (pool.running_count, pool.waiting_count, pool.queue_main_count) == (14, 24, 24)
    assert (pool.retracted_total, pool.finished_total) == (54, 152)
    assert (pool.prompt_tokens_total, pool.generated_tokens_total) == (89_990, 15_654)
    assert pool.prefix_query_tokens_total - pool.prefix_hit_tokens_total == pool.prefill_uncached_tokens_total == 36_070
    assert (pool.ttft_count_total, pool.itl_count_total, pool.e2e_count_total) == (168, 15_502, 153)
    assert pool.ttft_buckets[-1] == (float("inf"), 168)
    assert pool.itl_buckets[-1] == (float("inf"), 15_502)
    assert pool.model == "tiny"
    assert pool.anomalies == pool.findings == ()


def test_free_and_prefix_stay_one_figure_in_the_composition():
    """vLLM's free queue holds evictable blocks: free and prefix are unknown, their sum is known, parts add up."""
    composition = compose(only(REAL))
    assert composition.free_tokens.provenance is composition.prefix_tokens.provenance is Provenance.UNKNOWN
    assert composition.free_or_prefix_tokens.value == 512
    assert composition.used_tokens.value == 5856
    assert composition.available_tokens.value == 512


def test_the_version_is_its_own_question():
    """/version gives the version; garbage there changes nothing else."""
    told = VLLM.understand(answers(REAL, version=b'{"version":"0.32.0"}'))
    untold = VLLM.understand(answers(REAL, version=b"<html>"))
    assert (told.version, untold.version) == ("0.32.0", None)
    assert untold.pools == only_version(told)


def only_version(reading):
    """Return pools without their version."""
    return tuple(replace(pool, version=None) for pool in reading.pools)


@pytest.mark.parametrize(
    "path", [*CASES, PAYLOADS / "0.32.0" / "metrics.txt"], ids=lambda p: f"{p.parent.name}-{p.name}"
)
def test_the_order_of_lines_never_matters(path):
    """Shuffled lines give the same reading."""
    body = path.read_bytes()
    lines = body.splitlines(keepends=True)
    random.Random(7).shuffle(lines)
    assert pools(b"".join(lines)) == pools(body)


def test_eight_engines_behind_one_port_are_eight_pools():
    """P01: 256,000 tokens each; the worst at 1.0 while the mean says 0.775; three engines hold 99.1 % of the queue."""
    frame = pools(case("P01/metrics.1.prom"))
    assert [pool.dp_rank for pool in frame] == list(range(8))
    assert {pool.usable_tokens for pool in frame} == {256_000}
    usage = [pool.reported_usage_ratio for pool in frame]
    assert (max(usage), usage.index(max(usage))) == (1.0, 0)
    assert sum(usage) / 8 == pytest.approx(0.775, abs=0.001)
    waiting = [pool.waiting_count for pool in frame]
    assert sum(waiting) == 323
    assert sum(waiting[:3]) / sum(waiting) == pytest.approx(0.991, abs=0.0005)
    assert [pool.retracted_total for pool in frame[:3]] == [41, 77, 63]
    assert frame[7].free_or_prefix_tokens == 115_200
    assert compose(frame[7]).free_or_prefix_tokens.value == 115_200


def test_capacity_does_not_move_with_load():
    """P01: usable is a constant over all frames, whatever the usage."""
    for name in ("P01/metrics.0.prom", "P01/metrics.1.prom", "P01/metrics.2.prom"):
        assert {pool.usable_tokens for pool in pools(case(name))} == {256_000}
    last = pools(case("P01/metrics.2.prom"))
    running = [pool.running_count for pool in last]
    assert max(running) / (sum(running) / 8) == 6.75


def body_of(usage, blocks=200, name="kv_cache_usage_perc", size=32):
    return (
        f'vllm:{name}{{engine="0"}} {usage!r}\nvllm:num_requests_running{{engine="0"}} 1\n'
        f'vllm:cache_config_info{{engine="0",num_gpu_blocks="{blocks}",block_size="{size}"}} 1.0\n'
    ).encode()


@pytest.mark.parametrize(
    ("body", "usable_blocks"),
    [
        (body_of(183 / 199), 199),
        (body_of(0.0), 199),
        (body_of(1.0), 199),
        (body_of(0.5), 200),
        (body_of(0.25, name="gpu_cache_usage_perc"), 200),
        (body_of(0.0, name="gpu_cache_usage_perc"), 200),
        (body_of(7 / 199, name="gpu_cache_usage_perc"), 199),
    ],
)
def test_the_null_block_is_told_from_the_ratio(body, usable_blocks):
    """Only one denominator makes blocks whole; where both do, v1 keeps one block back and v0 none."""
    pool = only(body)
    assert pool.usable_tokens == usable_blocks * 32
    assert pool.used_tokens == pytest.approx(pool.reported_usage_ratio * usable_blocks * 32)


@pytest.mark.parametrize("blocks", ["None", "", "0", "-5", "nan", "9" * 30, "16.5", "<b>"])
def test_a_block_count_that_is_none_leaves_capacity_unknown(blocks):
    """Before the engine knows its blocks, or with nonsense there, usable is unknown and the ratio stays."""
    pool = only(body_of(0.5, blocks=blocks))
    assert (pool.usable_tokens, pool.used_tokens, pool.reported_usage_ratio) == (None, None, 0.5)


def test_two_replicas_keep_their_own_traffic():
    """P02: 850 of 1,000 requests went to pod-a; hit ratios 0.60 and 0.05; 85 % of pod-b is free or prefix."""
    first = [only(case(f"P02/pod-{pod}.0.prom")) for pod in "ab"]
    second = [only(case(f"P02/pod-{pod}.1.prom")) for pod in "ab"]
    finished = [after.finished_total - before.finished_total for before, after in zip(first, second, strict=True)]
    assert finished == [850, 150]
    ratios = []
    for pod in "ab":
        rates = pool_rates(history(case(f"P02/pod-{pod}.0.prom"), case(f"P02/pod-{pod}.1.prom")), 5.0, 60.0)
        ratios.append(rates.prefix_hit_ratio.value)
    assert ratios == pytest.approx([0.60, 0.05])
    assert [pool.reported_usage_ratio for pool in second] == [0.87, 0.15]
    assert (second[0].waiting_count - first[0].waiting_count, second[1].waiting_count) == (31, 0)


def test_processes_are_no_identity():
    """P03: of eight copies one is alive and counts; of two alive the largest is a bound; one gone, it is sure."""
    alive = only(case("P03/metrics.a.prom"))
    assert (alive.reported_usage_ratio, alive.usage_high_ratio, alive.anomalies) == (0.653, None, ())
    unsure = only(case("P03/metrics.b.prom"))
    assert (unsure.reported_usage_ratio, unsure.usage_high_ratio) == (None, 0.91)
    assert "reported_usage_ratio" in unsure.anomalies
    assert unsure.findings[0].code == "processes-disagree"
    assert "2 processes disagree" in unsure.findings[0].text
    assert unsure.running_count == 37
    lines = case("P03/metrics.b.prom").splitlines(keepends=True)
    later = only(b"".join(line for line in lines if b'pid="270"' not in line))
    assert (later.reported_usage_ratio, later.usage_high_ratio, later.anomalies) == (0.12, None, ())


def test_disagreeing_processes_of_a_count_are_no_sum():
    """Two live copies of running are neither added nor averaged: the count is unknown and named."""
    body = b'vllm:num_requests_running{engine="0",pid="1"} 3\nvllm:num_requests_running{engine="0",pid="2"} 5\n'
    pool = only(body)
    assert pool.running_count is None
    assert pool.anomalies == ("running_count",)


def test_a_negative_ratio_is_unknown_and_named():
    """P04: engine 3 says -0.4127: unknown, not 0 and not the emptiest pool; the other three are untouched."""
    frame = pools(case("P04/metrics.prom"))
    assert [pool.reported_usage_ratio for pool in frame] == [0.212, 0.231, 0.205, None]
    bad = frame[3]
    assert (bad.used_tokens, bad.free_or_prefix_tokens) == (None, None)
    assert bad.anomalies == ("reported_usage_ratio", "used_tokens")
    assert bad.findings[0].code == "negative-usage"
    assert "-0.4127" in bad.findings[0].text
    assert (bad.usable_tokens, bad.running_count) == (256_000, 14)
    assert all(pool.anomalies == () for pool in frame[:3])
    composition = compose(bad)
    assert composition.used_tokens.provenance is composition.available_tokens.provenance is Provenance.UNKNOWN


@pytest.mark.parametrize(("name", "usage"), [("old", 0.31), ("both", 9.75e-06), ("new", 0.31), ("underscore", 0.31)])
def test_renamed_series_are_one_pool(name, usage):
    """P10: old, both, new and underscore names give one pool of engine 0; tiny is a measured figure, not 0."""
    pool = only(case(f"P10/{name}.prom"))
    assert (pool.dp_rank, pool.reported_usage_ratio) == (0, usage)
    assert pool.anomalies == ()
    assert pool.waiting_count == 0.0


def test_created_timestamps_are_never_figures():
    """P10: `_created` gauges in the 1.75e9 range reach no field."""
    pool = only(case("P10/both.prom"))
    assert pool.prefix_query_tokens_total == 32
    values = [getattr(pool, name) for name in signal_names() if getattr(pool, name) is not None]
    assert max(values) < 1e6


def test_inflated_hits_are_marked_with_their_bound():
    """P17: 566,000 queried tokens are repeats of 553 preemptions, so true hits may be 0."""
    pool = only(case("P17/random.1.prom"))
    assert (pool.prefix_query_tokens_total, pool.prefix_hit_tokens_total) == (1_590_000, 512_000)
    (finding,) = pool.findings
    assert finding.code == "prefix-hits-inflated"
    for words in ("566,000", "553", "at most 0"):
        assert words in finding.text
    assert only(REAL).findings == ()


def test_external_lookups_are_counted_over_what_the_local_cache_missed():
    """P17: local 0.60, external 200 of 400 = 0.50, together 0.80; no ratio above 1."""
    pool = only(case("P17/external.1.prom"))
    local = pool.prefix_hit_tokens_total / pool.prefix_query_tokens_total
    external = pool.external_hit_tokens_total / pool.external_query_tokens_total
    assert (local, external, pool.external_query_tokens_total) == (0.60, 0.50, 400)
    reused = pool.prefix_hit_tokens_total + pool.external_hit_tokens_total
    assert (reused / pool.prompt_tokens_total, pool.prompt_tokens_total - reused) == (0.80, 200)
    # A server that already counts it so is left alone.
    body = case("P17/external.1.prom").replace(
        b'external_prefix_cache_queries_total{engine="0",model_name="syn/m"} 1000',
        b'external_prefix_cache_queries_total{engine="0",model_name="syn/m"} 400',
    )
    assert only(body).external_query_tokens_total == 400


def test_buckets_are_added_before_a_quantile_is_taken():
    """P21: p99 of pod-a 2.5 s, pod-b 38 s, merged 4.523 s (the mean of the two, 20.25 s, is wrong)."""
    grown = []
    for pod in "ab":
        before, after = (only(case(f"P21/{pod}.{frame}.prom")).ttft_buckets for frame in (0, 1))
        grown.append(difference(before, after))
    assert [quantile(buckets, 0.99).value for buckets in grown] == pytest.approx([2.5, 38.0])
    merged = merge(grown)
    figures = [quantile(merged, ratio).value for ratio in (0.5, 0.95, 0.99)]
    assert figures == pytest.approx([0.102, 0.498, 4.523], abs=0.0006)
    pool = [only(case(f"P21/{pod}.1.prom")) for pod in "ab"]
    sums = sum(p.ttft_s_total for p in pool), sum(p.ttft_count_total for p in pool)
    assert sums[0] / sums[1] == pytest.approx(0.317, abs=0.0005)
    assert [p.reported_usage_ratio for p in pool] == [0.4, 0.4]


def test_global_ranks_stay_global_and_server_wide_series_are_no_pool():
    """Engines 4..7 keep their numbers; a counter without an engine label does not make a pool 0."""
    body = b"".join(
        b'vllm:num_requests_running{engine="%d"} 0\nvllm:kv_cache_usage_perc{engine="%d"} 0\n' % (rank, rank)
        for rank in range(4, 8)
    )
    assert [pool.dp_rank for pool in pools(body + b"vllm:request_success_total 12\n")] == [4, 5, 6, 7]


def test_a_rank_that_is_no_number_is_counted_not_taken():
    """Rank labels that are not small whole numbers are rejected and counted; the good rank stays."""
    body = b"".join(
        b'vllm:num_requests_running{engine="%s"} 1\n' % label
        for label in (b"0", b"-1", b"1e3", b"<script>", b"9999999")
    )
    reading = VLLM.understand(answers(body))
    assert [pool.dp_rank for pool in reading.pools] == [0]
    assert reading.rejected_count == 4


def test_a_thousand_ranks_are_the_most_that_is_believed():
    """A body with 5,000 ranks gives 1,024 pools; the rest is counted."""
    body = b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % rank for rank in range(5000))
    reading = VLLM.understand(answers(body))
    assert (len(reading.pools), reading.rejected_count) == (1024, 5000 - 1024)


def test_the_old_host_tier_is_offloaded_room():
    """v0's swap space is a tier of its own: capacity and use apart from the device pool; -1 hit rate is unknown."""
    body = (
        b'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\nvllm:cpu_cache_usage_perc{model_name="m"} 0.5\n'
        b'vllm:num_requests_swapped{model_name="m"} 3\nvllm:gpu_prefix_cache_hit_rate{model_name="m"} -1\n'
        b'vllm:cache_config_info{num_gpu_blocks="100",num_cpu_blocks="40",block_size="16"} 1\n'
    )
    pool = only(body)
    assert (pool.usable_tokens, pool.used_tokens) == (1600, 400)
    assert (pool.offload_usable_tokens, pool.offloaded_tokens) == (640, 320)
    assert (pool.queue_retracted_count, pool.reported_hit_ratio, pool.anomalies) == (3, None, ())


def test_transfers_of_a_connector_are_counters():
    """NIXL's histograms give bytes, transfers, seconds and failures."""
    body = (
        b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:nixl_bytes_transferred_sum{engine="0"} 4096\n'
        b'vllm:nixl_bytes_transferred_count{engine="0"} 2\nvllm:nixl_xfer_time_seconds_sum{engine="0"} 0.5\n'
        b'vllm:nixl_xfer_time_seconds_count{engine="0"} 2\nvllm:nixl_num_failed_transfers_total{engine="0"} 1\n'
    )
    pool = only(body)
    assert (pool.transfer_bytes_total, pool.transfers_total) == (4096, 2)
    assert (pool.transfer_latency_s_total, pool.transfer_failed_total) == (0.5, 1)


def test_the_role_is_unified_until_something_shows_a_hand_over():
    """Without transfer series an engine is unified; with them its role is unknown, for others to say."""
    assert only(REAL).role is Role.UNIFIED
    plain = b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    assert only(plain).role is Role.UNIFIED
    assert only(plain + b'vllm:nixl_xfer_time_seconds_count{engine="0"} 0\n').role is Role.UNKNOWN
    received = b'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} %d\n'
    assert only(plain + received % 0).role is Role.UNIFIED
    assert only(plain + received % 512).role is Role.UNKNOWN


def test_a_sleeping_engine_is_said_to_sleep():
    """engine_sleep_state awake = 0 is a finding; a waking engine has none."""
    body = b'vllm:kv_cache_usage_perc{engine="0"} 0\nvllm:engine_sleep_state{engine="0",sleep_state="awake"} %d\n'
    assert [finding.code for finding in only(body % 0).findings] == ["engine-asleep"]
    assert only(body % 1).findings == ()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 200, "empty-body"),
        (b"Internal Server Error", 500, "metrics-broken"),
        (b"not found", 404, "wrong-status"),
        (b"no", 401, "unauthorised"),
        (b"no", 403, "unauthorised"),
        (b"<html><body>login</body></html>", 200, "no-vllm-series"),
        (b'[{"iter": 1}]', 200, "no-vllm-series"),
        (b"python_info 1\n", 200, "no-vllm-series"),
    ],
)
def test_what_is_not_vllm_ends_in_a_named_state(body, status, code):
    """Every answer that is not vLLM's is NotUnderstood with a stable code; 401 and 403 are refusals of ours."""
    result = VLLM.understand(answers(body, status))
    assert isinstance(result, NotUnderstood)
    assert (result.code, result.is_unauthorised) == (code, status in (401, 403))
    assert VLLM.understand({}).code == "no-answer"

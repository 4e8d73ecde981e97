"""Dynamo's workers and frontend, as captured from a running system, and older shapes."""

import gzip
from pathlib import Path

import pytest

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from scoring.capacity import compose
from scoring.model import Provenance, Role, WorkerReading

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads" / "dynamo"
DECODE = (PAYLOADS / "1.6.1" / "decode_worker_metrics_underload.txt").read_bytes()
PREFILL = (PAYLOADS / "1.6.1" / "prefill_worker_metrics_underload.txt").read_bytes()
FRONTEND = gzip.decompress((PAYLOADS / "1.6.1" / "frontend_metrics_underload.txt.gz").read_bytes())
OLD = (PAYLOADS / "cases" / "P13" / "dynamo_worker.prom").read_bytes()


def read(body, name="dynamo"):
    """Return the reading of a body that the registry must recognise as `name`."""
    given = {"/metrics": Answer(status=200, content_type="text/plain", body=body, received_at_s=1.0)}
    assert identify(given) is ENGINES[name]
    reading = ENGINES[name].understand(given)
    assert isinstance(reading, WorkerReading)
    return reading


def test_a_decode_worker_carries_its_engines_figures():
    """Captured under load: ratio 0.2890625 (592 of 2,048 blocks), 23 running, 48 finished; no capacity."""
    (pool,) = read(DECODE).pools
    assert (pool.engine, pool.role) == ("dynamo", Role.UNKNOWN)
    assert pool.reported_usage_ratio == 592 / 2048
    assert (pool.running_count, pool.waiting_count, pool.retracted_total) == (23, 0, 0)
    assert (pool.finished_total, pool.ttft_count_total, pool.itl_count_total) == (48, 71, 10_642)
    assert pool.usable_tokens is None
    assert pool.anomalies == ()
    assert compose(pool).usable_tokens.provenance is Provenance.UNKNOWN


def test_both_names_of_the_ratio_are_one_figure():
    """The worker exports gpu_cache_usage_perc and kv_cache_usage_perc: one pool, the value once."""
    without_old = b"".join(line for line in DECODE.splitlines(keepends=True) if b"gpu_cache_usage_perc" not in line)
    assert read(without_old).pools == read(DECODE).pools


def test_a_prefill_worker_shows_no_kv_and_says_so():
    """Captured: no engine series at all; its role and its 77 finished requests are known, KV is unknown, not 0."""
    reading = read(PREFILL)
    (pool,) = reading.pools
    assert pool.role is Role.PREFILL
    assert (pool.finished_total, pool.e2e_s_total) == (77, pytest.approx(4.382868236))
    assert (pool.reported_usage_ratio, pool.used_tokens, pool.running_count) == (None, None, None)
    assert [finding.code for finding in pool.findings] == ["no-kv-series"]
    assert reading.facts["requests in the worker's handler"] == "0"


def test_only_the_serving_endpoint_counts_requests():
    """Captured: the KV query endpoint's own requests are not among the 77."""
    assert (
        b'worker_kv_query_source_182309180b27f8",dynamo_namespace="dynamo",worker_id="3865a418c5500c85"} 1\n' in PREFILL
    )
    assert read(PREFILL).pools[0].finished_total == 77


def test_an_old_workers_ratio_is_shown_as_reported_and_never_as_tokens():
    """P13: `..._percent` 0.759 is 75.9 %; the denominator may hold a host tier, so no capacity and no use follow."""
    reading = read(OLD)
    (pool,) = reading.pools
    assert pool.reported_usage_ratio == 0.759
    assert (pool.usable_tokens, pool.used_tokens, pool.free_or_prefix_tokens) == (None, None, None)
    (finding,) = pool.findings
    assert finding.code == "usage-denominator-unsure"
    assert "75.9%" in finding.text
    assert "host tier" in finding.text
    assert (reading.facts["active blocks"], reading.facts["total blocks"]) == ("5495", "7240")


def test_an_sglang_engine_inside_is_read_by_its_own_dialect():
    """Dynamo with SGLang re-exports sglang: names; the pool is Dynamo's, with the component's role."""
    body = (
        b'dynamo_component_requests_total{dynamo_component="decode",dynamo_endpoint="generate"} 3\n'
        b"sglang:num_running_reqs 5\nsglang:num_queue_reqs 2\nsglang:cache_hit_rate 0.5\n"
    )
    (pool,) = read(body).pools
    assert (pool.engine, pool.role, pool.running_count) == ("dynamo", Role.DECODE, 5)
    assert pool.queue_main_count == 2


def test_the_frontends_view_is_rows_of_workers_and_no_pool():
    """Captured: two decode workers with 774 and 794 active blocks of 16 tokens, two idle prefill workers."""
    reading = read(FRONTEND, "dynamo-frontend")
    assert reading.pools == ()
    by_role = {}
    for worker in reading.router_workers:
        by_role.setdefault(worker.role, []).append(worker.load_tokens)
    assert by_role == {Role.DECODE: [774 * 16, 794 * 16], Role.PREFILL: [0, 0]}
    assert {worker.dp_rank for worker in reading.router_workers} == {0}
    assert reading.facts["KV blocks of a worker"] == "2048"
    assert reading.facts["block size (tokens)"] == "16"
    assert reading.rejected_count == 0


def test_models_that_disagree_about_the_block_leave_tokens_unknown():
    """With two block sizes served, blocks of a worker cannot be turned into tokens."""
    body = FRONTEND + b'dynamo_frontend_model_kv_cache_block_size{model="other"} 64\n'
    rows = read(body, "dynamo-frontend").router_workers
    assert [worker.load_tokens for worker in rows if worker.role is Role.DECODE] == [None, None]


def test_a_worker_without_an_id_is_counted_not_taken():
    """Rows without a worker id or with a rank that is no number are rejected."""
    body = FRONTEND + (
        b'dynamo_frontend_worker_active_decode_blocks{dp_rank="0"} 3\n'
        b'dynamo_frontend_worker_active_decode_blocks{dp_rank="x",worker_id="9"} 3\n'
    )
    reading = read(body, "dynamo-frontend")
    assert (len(reading.router_workers), reading.rejected_count) == (4, 2)


@pytest.mark.parametrize("name", ["dynamo", "dynamo-frontend"])
@pytest.mark.parametrize(("body", "status"), [(b"", 200), (b"x", 500), (b"python_info 1\n", 200), (b"[]", 200)])
def test_what_is_not_dynamo_ends_in_a_named_state(name, body, status):
    """Anything else is NotUnderstood with a code and a sentence."""
    given = {"/metrics": Answer(status=status, content_type="text/plain", body=body, received_at_s=1.0)}
    result = ENGINES[name].understand(given)
    assert isinstance(result, NotUnderstood)
    assert result.code
    assert name in result.text

"""Laws of merging SGLang's paths: the newest word counts, nothing is added twice, moments are not mixed."""

import json

import pytest

from scoring.capacity import compose
from scoring.histogram import quantile
from scoring.model import Role


def loads(*ranks, mode="null", **more):
    """A /v1/loads answer with the given (rank, used) pairs."""
    rows = [
        {
            "timestamp": 1793404800.0,
            "dp_rank": rank,
            "num_running_reqs": 2,
            "num_waiting_reqs": 0,
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "max_total_num_tokens": 1000,
            "token_usage": used / 1000,
            "disaggregation": {"mode": mode},
            **more,
        }
        for rank, used in ranks
    ]
    return json.dumps({"timestamp": "2026-10-31T00:00:00.1+00:00", "version": "0.5.23", "loads": rows})


def metrics(*lines):
    """A /metrics body, names without prefix."""
    return "".join(f"sglang:{line}\n" for line in lines)


def ranked(rank, used, free, prefix):
    """The capacity series of one rank."""
    labels = f'dp_rank="{rank}",engine_type="unified",model_name="m",tp_rank="0"'
    return [
        f"kv_used_tokens{{{labels}}} {used}",
        f"kv_available_tokens{{{labels}}} {free}",
        f"kv_evictable_tokens{{{labels}}} {prefix}",
    ]


def test_free_and_prefix_come_from_metrics_when_they_speak_of_the_same_moment(understand):
    """Equal used on both paths: prefix and free are as reported, and a gap between them stays visible."""
    (pool,) = understand({"/v1/loads": loads((0, 400)), "/metrics": metrics(*ranked(0, 400, 90, 500))}).pools
    composition = compose(pool)
    assert (composition.prefix_tokens.value, composition.free_tokens.value, composition.unattributed_tokens.value) == (
        500,
        90,
        10,
    )


def test_an_older_split_never_makes_a_false_gap(understand):
    """Used has moved since /metrics: free is derived, nothing is unattributed, the parts add up."""
    (pool,) = understand({"/v1/loads": loads((0, 450)), "/metrics": metrics(*ranked(0, 400, 100, 500))}).pools
    composition = compose(pool)
    assert (composition.prefix_tokens.value, composition.free_tokens.value) == (500, 50)
    assert composition.unattributed_tokens.value == 0


def test_metrics_of_long_ago_give_constants_only(answer, understand):
    """An answer of a minute before the newest loads gives no gauge and no counter, but the page size."""
    body = metrics(
        *ranked(0, 400, 100, 500), 'page_size{dp_rank="0"} 16', 'num_retracted_requests_total{dp_rank="0"} 5'
    )
    (pool,) = understand(
        {"/v1/loads": answer(loads((0, 400)), at_s=1100.0), "/metrics": answer(body, at_s=1000.0)}
    ).pools
    assert (pool.block_size_tokens, pool.prefix_tokens, pool.retracted_total) == (16, None, None)
    assert pool.used_tokens == 400


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_worker_wide_counters_add_up_over_ranks(understand, ranks):
    """Whatever the number of ranks: the ranks' sum is the worker's count, and the mean and the quantile are its own."""
    body = metrics(
        *(line for rank in range(ranks) for line in ranked(rank, 400, 100, 500)),
        'prompt_tokens_total{engine_type="unified",is_streaming="true"} 900',
        'prompt_tokens_total{engine_type="unified",is_streaming="false"} 100',
        'num_requests_total{engine_type="unified"} 10',
        'time_to_first_token_seconds_sum{engine_type="unified"} 30',
        'time_to_first_token_seconds_count{engine_type="unified"} 10',
        'time_to_first_token_seconds_bucket{le="1.0"} 4',
        'time_to_first_token_seconds_bucket{le="5.0"} 10',
        'time_to_first_token_seconds_bucket{le="+Inf"} 10',
    )
    pools = understand({"/v1/loads": loads(*((rank, 400) for rank in range(ranks))), "/metrics": body}).pools
    assert len(pools) == ranks
    assert sum(pool.prompt_tokens_total for pool in pools) == pytest.approx(1000)
    assert sum(pool.finished_total for pool in pools) == pytest.approx(10)
    for pool in pools:
        assert pool.ttft_s_total / pool.ttft_count_total == pytest.approx(3.0)
        assert quantile(pool.ttft_buckets, 0.9).value == pytest.approx(
            quantile(((1.0, 4.0), (5.0, 10.0), (float("inf"), 10.0)), 0.9).value
        )


def test_a_prefill_worker_s_own_first_tokens_are_no_ttft(understand):
    """Prefill workers count the one-token requests they see; time to first token is the decode side's."""
    body = metrics(
        'num_used_tokens{engine_type="prefill"} 5',
        'time_to_first_token_seconds_sum{engine_type="prefill"} 3',
        'time_to_first_token_seconds_count{engine_type="prefill"} 3',
        'time_to_first_token_seconds_bucket{le="+Inf"} 3',
        'e2e_request_latency_seconds_sum{engine_type="prefill"} 4',
    )
    (pool,) = understand({"/metrics": body}).pools
    assert (pool.ttft_s_total, pool.ttft_buckets, pool.e2e_s_total) == (None, None, 4)


def test_priorities_are_parts_of_a_total(understand):
    """With priorities on, the series without one is the total, whatever its parts said a moment later."""
    lines = [
        'num_queue_reqs{engine_type="unified",priority=""} 5',
        'num_queue_reqs{engine_type="unified",priority="1"} 6',
        'num_queue_reqs{engine_type="unified",priority="2"} 2',
        'num_used_tokens{engine_type="unified"} 1',
    ]
    for order in (lines, lines[::-1]):
        (pool,) = understand({"/metrics": metrics(*order)}).pools
        assert (pool.queue_main_count, pool.waiting_count) == (5, 5)


def test_the_word_none_is_no_rank(understand):
    """`dp_rank="None"` is how one version writes a missing rank."""
    (pool,) = understand({"/metrics": metrics('num_used_tokens{dp_rank="None",engine_type="unified"} 7')}).pools
    assert (pool.dp_rank, pool.used_tokens) == (0, 7)


def test_cache_series_join_the_only_rank(understand):
    """Cache series labelled dp_rank 0 on a worker without data parallelism belong to its only pool."""
    body = metrics(
        'num_used_tokens{engine_type="unified",tp_rank="0"} 7',
        'evicted_tokens_total{cache_type="C",dp_rank="0",pp_rank="0",tp_rank="0"} 25041',
    )
    (pool,) = understand({"/metrics": body}).pools
    assert (pool.used_tokens, pool.evicted_tokens_total) == (7, 25041)


def test_evictions_summed_over_gpus_are_not_a_pool_s(understand):
    """Until 0.5.20 every tensor-parallel rank was added in: known with one GPU, unknown with eight."""
    body = metrics('num_used_tokens{engine_type="unified",tp_rank="0"} 7', 'evicted_tokens_total{cache_type="C"} 800')
    for tp, expected in ((1, 800), (8, None)):
        info = json.dumps({"model_path": "m", "tp_size": tp, "dp_size": 1})
        (pool,) = understand({"/metrics": body, "/server_info": info}).pools
        assert pool.evicted_tokens_total == expected


def test_series_without_a_rank_are_used_for_one_rank_only(understand):
    """One rank: its series. Two ranks: whichever wrote last, so neither's, and said."""
    body = metrics('kv_evictable_tokens{engine_type="unified"} 100')
    (one,) = understand({"/v1/loads": loads((0, 400)), "/metrics": body}).pools
    assert one.prefix_tokens == 100
    two = understand({"/v1/loads": loads((0, 400), (1, 300)), "/metrics": body})
    assert [pool.prefix_tokens for pool in two.pools] == [None, None]
    assert "ranks-missing" in {finding.code for finding in two.findings}


def test_missing_ranks_are_told(understand):
    """Fewer rows than ranks: partial coverage, on the worker and on each of its pools."""
    info = json.dumps({"model_path": "m", "tp_size": 4, "dp_size": 4, "enable_dp_attention": True})
    reading = understand({"/v1/loads": loads((0, 1), (2, 1)), "/server_info": info})
    assert reading.expected_rank_count == 4
    assert all("ranks-missing" in {finding.code for finding in pool.findings} for pool in reading.pools)


def test_a_refused_figure_is_not_replaced_by_an_older_one(understand):
    """A negative used on /v1/loads is unknown, even where /metrics still has its last good value."""
    (pool,) = understand({"/v1/loads": loads((0, -512)), "/metrics": metrics(*ranked(0, 400, 100, 500))}).pools
    assert pool.used_tokens is None
    assert "used_tokens" in pool.anomalies


def test_bytes_come_from_memory_and_gpus(understand):
    """KV GiB of one GPU x GPUs behind the rank / capacity; without the number of GPUs unknown."""
    row = {"memory": {"kv_cache_gb": 2.0, "token_capacity": 1000}}
    (pool,) = understand({"/v1/loads": loads((0, 1), **row)}).pools
    assert pool.bytes_per_token is None
    info = json.dumps({"model_path": "m", "tp_size": 8, "dp_size": 2, "enable_dp_attention": True})
    (pool,) = understand({"/v1/loads": loads((0, 1), **row), "/server_info": info}).pools
    assert pool.bytes_per_token == pytest.approx(2.0 * 2**30 * 4 / 1000)


def test_the_order_of_answers_and_ranks_changes_nothing(understand):
    """Paths in any order, rows in any order: the same reading, ranks ascending."""
    body = metrics(*ranked(1, 300, 100, 600), *ranked(0, 400, 100, 500))
    first = understand({"/v1/loads": loads((0, 400), (1, 300)), "/metrics": body})
    second = understand({"/metrics": body, "/v1/loads": loads((1, 300), (0, 400))})
    assert first == second
    assert [pool.dp_rank for pool in first.pools] == [0, 1]


def test_the_role_is_whoever_is_sure(understand):
    """Mode of the row, then server info, then the metrics' label, then what only one role can show."""
    label = metrics('num_used_tokens{engine_type="prefill"} 1')
    core = json.loads(loads((0, 1)))
    del core["loads"][0]["disaggregation"]
    assert understand({"/v1/loads": json.dumps(core), "/metrics": label}).pools[0].role is Role.PREFILL
    assert understand({"/v1/loads": json.dumps(core)}).pools[0].role is Role.UNKNOWN
    for only_there, role in (
        ({"utilization": -1}, Role.PREFILL),
        ({"disaggregation": {"decode_transfer_queue_reqs": 2}}, Role.DECODE),
    ):
        core["loads"][0] = {**core["loads"][0], "disaggregation": {}, "utilization": 0.0, **only_there}
        assert understand({"/v1/loads": json.dumps(core)}).pools[0].role is role
    assert understand({"/v1/loads": loads((0, 1), mode="decode"), "/metrics": label}).pools[0].role is Role.DECODE


def test_missing_state_slots_are_seen_against_the_configured_number(understand):
    """Used, cached and free slots are summed only where the server does not say how many there are."""
    body = metrics(
        *(
            f'mamba_{part}_tokens{{engine_type="unified"}} {n}'
            for part, n in (("used", 0), ("evictable", 138), ("available", 315))
        ),
        'kv_used_tokens{engine_type="unified"} 1',
    )
    assert understand({"/metrics": body}).pools[0].state_slot_count == 453
    info = json.dumps({"model_path": "m", "tp_size": 1, "max_mamba_cache_size": 454})
    assert understand({"/metrics": body, "/server_info": info}).pools[0].state_slot_count == 454

"""
The 26 known traps of SGLang's figures, one test each, in the order of the reference table.

Each test builds the payload that misled somebody and states what must be said instead.
"""

import ast
import json
from pathlib import Path

import pytest

from collectors.addresses import split_rank
from collectors.engines import ENGINES, identify
from collectors.engines.contract import NotUnderstood
from scoring.capacity import compose
from scoring.model import Link, Provenance, Role, SourceState
from scoring.rates import pool_rates
from scoring.snapshot import judge_fleet

ROOT = Path(__file__).resolve().parent.parent.parent


def row(**more):
    """One rank of 0.5.23 in a healthy unified worker."""
    return {
        "timestamp": 1793404800.0,
        "dp_rank": 0,
        "num_running_reqs": 4,
        "num_waiting_reqs": 0,
        "num_used_tokens": 4000,
        "num_total_tokens": 4000,
        "num_active_tokens": 4000,
        "max_total_num_tokens": 100000,
        "max_running_requests": 64,
        "token_usage": 0.04,
        "gen_throughput": 100.0,
        "cache_hit_rate": 0.5,
        "utilization": 0.0,
        **more,
    }


def mode(role, **queues):
    """The disaggregation section of a row."""
    return {"disaggregation": {"mode": role, **queues}}


def loads(*rows, **top):
    """A whole answer."""
    return json.dumps(
        {"timestamp": "2026-10-31T00:00:00.100000+00:00", "version": "0.5.23", "loads": list(rows), **top}
    )


def metrics(*lines):
    """A /metrics body of SGLang's, one series a line without the prefix."""
    return "".join(f"sglang:{line}\n" for line in lines)


def only(reading):
    """The only pool."""
    (pool,) = reading.pools
    return pool


def codes(reading):
    """Codes of the findings."""
    return {finding.code for finding in reading.findings}


def test_trap_01_aggregate_is_gone_and_minus_one_is_no_load(understand):
    """Figures come from loads[] whether or not there is an aggregate; a router's -1 is unknown, not the least load."""
    assert only(understand({"/v1/loads": loads(row())})).used_tokens == 4000
    old = json.loads(loads(row(), dp_rank_count=1, aggregate={"total_used_tokens": -1, "avg_utilization": -1}))
    assert only(understand({"/v1/loads": json.dumps(old)})).used_tokens == 4000
    router = understand({"/get_loads": json.dumps({"workers": [{"worker": "http://a:1", "load": -1}]})})
    assert [worker.load_tokens for worker in router.router_workers] == [None]


def test_trap_02_a_missing_loads_endpoint_falls_back(answer, understand):
    """404 on /v1/loads: /metrics is read; without that, /get_load; the dialect's name says which source it was."""
    body = metrics("num_used_tokens 5", "max_total_num_tokens 10", "token_usage 0.5")
    gone = answer('{"detail":"Not Found"}', status=404)
    by_metrics = {"/v1/loads": gone, "/metrics": answer(body)}
    assert identify(by_metrics).name == "sglang-metrics"
    assert only(understand(by_metrics)).used_tokens == 5
    legacy = [{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 70, "ts_tic": 123.4}]
    by_load = {"/v1/loads": gone, "/metrics": gone, "/get_load": answer(json.dumps(legacy))}
    assert identify(by_load).name == "sglang-get-load"
    assert only(understand(by_load)).used_tokens == 70


def test_trap_03_total_counts_twice_before_0_5_14(understand):
    """A decode worker's num_total_tokens of 0.5.11 to 0.5.13 gives no backlog; from 0.5.14 on it does."""
    old = row(num_waiting_reqs=3, num_total_tokens=9000, **mode("decode"))
    for key in ("timestamp", "num_active_tokens"):
        del old[key]
    for version in ("0.5.12", "0.5.13", "0.5.13.post1", None):
        reading = understand({"/v1/loads": loads(old, version=version)})
        assert compose(only(reading)).queued_tokens.provenance is Provenance.UNKNOWN
        assert "total-counts-twice" in codes(reading)
    for version in ("0.5.14", "0.5.15", "0.6.0"):
        reading = understand({"/v1/loads": loads(old, version=version)})
        assert compose(only(reading)).queued_tokens.value == 5000
        assert "total-counts-twice" not in codes(reading)
    newer_shape = understand({"/v1/loads": loads({**old, "timestamp": 1.0}, version=None)})
    assert compose(only(newer_shape)).queued_tokens.value == 5000


def test_trap_04_a_frozen_snapshot_is_stale(understand, past):
    """Unchanged figures while requests wait are stale, by the engine's time where it gives one, else by their rest."""
    parked = row(num_waiting_reqs=7)
    with_time = [
        only(understand({"/v1/loads": loads(parked, timestamp=f"2026-10-31T00:00:{s:02d}+00:00")})) for s in range(20)
    ]
    at_s = [1793404800.0 + s for s in range(20)]
    fleet = judge_fleet([past(with_time, at_s)], at_s[-1])
    assert (fleet.pools[0].state, round(fleet.pools[0].age_s)) == (SourceState.STALE, 19)
    del parked["timestamp"]
    without = [only(understand({"/v1/loads": loads(parked, version="0.5.15")}))] * 20
    judged = judge_fleet([past(without, at_s)], at_s[-1]).pools[0]
    assert judged.state is SourceState.STALE
    assert "frozen-figures" in {finding.code for finding in judged.findings}


def test_trap_05_a_prefill_worker_has_no_running_count(understand):
    """The 0 of a prefill worker's running batch is unknown; waiting, in flight and busy time are what it reports."""
    prefill = row(num_running_reqs=0, total_prefill_busy_us=5_000_000, **mode("prefill", prefill_inflight_queue_reqs=3))
    pool = only(understand({"/v1/loads": loads(prefill)}))
    assert pool.running_count is None
    assert (pool.queue_inflight_count, pool.prefill_busy_s_total) == (3, 5.0)


def test_trap_06_utilization_is_never_read(understand):
    """utilization -1 changes no figure, raises no anomaly and poisons no mean."""
    good, bad = (only(understand({"/v1/loads": loads(row(utilization=u, **mode("null")))})) for u in (0.0, -1))
    assert good == bad
    assert bad.anomalies == ()


def test_trap_07_hit_rate_comes_from_counters(understand, past):
    """A hit gauge of 0 is unknown; the ratio comes from the counters' differences."""
    assert only(understand({"/v1/loads": loads(row(cache_hit_rate=0.0))})).reported_hit_ratio is None

    def at(compute, cached):
        return only(
            understand(
                {
                    "/metrics": metrics(
                        'num_used_tokens{engine_type="unified"} 5',
                        f'realtime_tokens_total{{engine_type="unified",mode="prefill_compute"}} {compute}',
                        f'realtime_tokens_total{{engine_type="unified",mode="prefill_cache"}} {cached}',
                        'cache_hit_rate{engine_type="unified"} 0.0',
                    )
                }
            )
        )

    rates = pool_rates(past([at(100, 900), at(200, 1200)], [0.0, 10.0]), 10.0, 60.0)
    assert rates.prefix_hit_ratio.value == pytest.approx(300 / 400)
    assert rates.prefix_hit_ratio.provenance is Provenance.DERIVED


def test_trap_08_one_series_for_many_ranks_is_no_rank(understand):
    """One unlabelled series although the server has eight ranks: 1 of 8, usage and throughput unknown."""
    info = json.dumps({"model_path": "m", "tp_size": 8, "dp_size": 8, "enable_dp_attention": True})
    reading = understand({"/metrics": metrics("token_usage 0.8", "gen_throughput 400"), "/get_server_info": info})
    assert (reading.expected_rank_count, "ranks-missing" in codes(reading)) == (8, True)
    assert (only(reading).reported_usage_ratio, only(reading).generated_tokens_per_s) == (None, None)


def test_trap_09_copies_of_a_rank_are_not_added(understand):
    """Tensor- and context-parallel copies of one rank's gauge are one figure, the largest, whatever their order."""
    lines = [
        f'num_used_tokens{{dp_rank="0",tp_rank="{tp}",engine_type="unified"}} {value}'
        for tp, value in ((0, 700), (1, 690))
    ]
    lines += ['num_used_tokens{dp_rank="1",tp_rank="2",engine_type="unified"} 50']
    for order in (lines, lines[::-1]):
        assert [p.used_tokens for p in understand({"/metrics": metrics(*order)}).pools] == [700, 50]


def test_trap_10_sticky_throughput_ends_with_the_last_request(understand):
    """With nothing running the throughput gauge is 0 whatever it still says."""
    assert only(understand({"/v1/loads": loads(row(num_running_reqs=0))})).generated_tokens_per_s == 0
    idle = metrics('num_running_reqs{engine_type="decode"} 0', 'gen_throughput{engine_type="decode"} 3100')
    assert only(understand({"/metrics": idle})).generated_tokens_per_s == 0


def test_trap_11_decode_workers_give_no_hit_rate(understand):
    """Cached tokens are counted on both sides of P/D: the decode side's hits are left out."""

    def hits(role):
        body = metrics(
            f'num_used_tokens{{engine_type="{role}"}} 5',
            f'prefill_effective_tokens_total{{engine_type="{role}",mode="input"}} 10',
            f'prefill_effective_tokens_total{{engine_type="{role}",mode="device_hit"}} 30',
            f'cached_tokens_total{{engine_type="{role}"}} 30',
            f'prompt_tokens_total{{engine_type="{role}"}} 40',
        )
        return only(understand({"/metrics": body})).prefix_hit_tokens_total

    assert hits("prefill") == 30
    assert hits("decode") is None


def test_trap_12_role_comes_from_the_mode_not_from_a_label(understand):
    """A P/D worker whose metrics say "unified" keeps the role of its disaggregation mode or server info."""
    body = metrics('num_used_tokens{engine_type="unified"} 4000')
    assert only(understand({"/v1/loads": loads(row(**mode("decode"))), "/metrics": body})).role is Role.DECODE
    info = json.dumps({"model_path": "m", "tp_size": 1, "disaggregation_mode": "prefill"})
    assert only(understand({"/metrics": body, "/server_info": info})).role is Role.PREFILL


def test_trap_13_transfer_speed_is_only_what_the_engine_reports(understand, past):
    """0 is unknown; a speed above the line rate is kept as reported and used for nothing."""
    assert (
        only(
            understand({"/v1/loads": loads(row(**mode("prefill", kv_transfer_speed_gb_s=0.0)))})
        ).transfer_reported_bytes_per_s
        is None
    )
    assert (
        only(
            understand({"/v1/loads": loads(row(**mode("decode", kv_transfer_speed_gb_s=9.0)))})
        ).transfer_reported_bytes_per_s
        is None
    )
    fast = only(understand({"/v1/loads": loads(row(**mode("prefill", kv_transfer_speed_gb_s=112.4)))}))
    link = Link(source="*", target="*", bandwidth_bytes_per_s=50e9)
    pool = judge_fleet([past([fast], [1793404800.2])], 1793404800.3, links=[link]).pools[0]
    assert pool.reading.transfer_reported_bytes_per_s == pytest.approx(112.4e9)
    assert "transfer-gauge-above-line-rate" in {finding.code for finding in pool.findings}
    assert pool.rates.transfer_bytes_per_s.provenance is Provenance.UNKNOWN


def test_trap_14_the_transfer_queue_is_not_the_blocked_queue(understand):
    """Requests that wait for prefill are in the transfer queue; those that wait for decode room are counted apart."""
    decode = row(
        **mode("decode", decode_transfer_queue_reqs=18, decode_prealloc_queue_reqs=11), queues={"prealloc_ready": 3}
    )
    pool = only(understand({"/v1/loads": loads(decode)}))
    assert (pool.queue_transfer_count, pool.queue_prealloc_count, pool.prealloc_ready_count) == (18, 11, 3)


def test_trap_15_usage_of_other_pools_is_kept_apart(understand):
    """On a hybrid model the usage gauge is another pool's: used tokens are never usage x capacity, units differ."""
    body = metrics(
        'max_total_num_tokens{engine_type="unified"} 600000',
        'kv_used_tokens{engine_type="unified"} 210000',
        'token_usage{engine_type="unified"} 0.8',
        'mamba_usage{engine_type="unified"} 0.8',
        'mamba_used_tokens{engine_type="unified"} 32',
        'mamba_evictable_tokens{engine_type="unified"} 0',
        'mamba_available_tokens{engine_type="unified"} 8',
    )
    pool = only(understand({"/metrics": body}))
    assert (pool.used_tokens, pool.state_slot_count, pool.state_used_count) == (210000, 40, 32)
    window = metrics(
        'kv_used_tokens{engine_type="unified"} 100',
        'swa_used_tokens{engine_type="unified"} 900',
        'max_total_num_tokens_swa{engine_type="unified"} 1000',
    )
    both = only(
        understand(
            {
                "/v1/loads": loads(row(num_used_tokens=900, num_total_tokens=900, num_active_tokens=900)),
                "/metrics": window,
            }
        )
    )
    assert (both.used_tokens, both.window_used_tokens, both.window_usable_tokens) == (100, 900, 1000)


def test_trap_16_figures_outside_their_range_are_marked(understand):
    """Negative: unknown. A little above capacity: kept, said, nothing available below 0. Far above: unknown."""
    negative = understand({"/v1/loads": loads(row(num_used_tokens=-512, token_usage=-0.002))})
    assert only(negative).used_tokens is None
    assert "negative-usage" in codes(negative)
    above = understand(
        {"/v1/loads": loads(row(num_used_tokens=100500, num_total_tokens=100500, num_active_tokens=100500))}
    )
    assert only(above).used_tokens == 100500
    assert "usage-above-capacity" in codes(above)
    assert compose(only(above)).available_tokens.value == 0
    absurd = understand({"/v1/loads": loads(row(num_used_tokens=9e15))})
    assert only(absurd).used_tokens is None
    assert "used_tokens" in only(absurd).anomalies


def test_trap_17_secrets_never_leave_the_parser(understand):
    """Nothing of a server's keys, passwords, launch command or paths is in the reading, however it is printed."""
    secret = "sk-super-secret-value"
    info = json.dumps(
        {
            "model_path": "/srv/private/models/llama",
            "tp_size": 1,
            "dp_size": 1,
            "api_key": secret,
            "admin_api_key": secret,
            "ssl_keyfile_password": secret,
            "launch_command": f"python --api-key {secret}",
            "page_size": 16,
            "internal_states": [{"api_key": secret, "memory_usage": {"weight": 1.0}}],
        }
    )
    reading = understand({"/v1/loads": loads(row()), "/server_info": info, "/model_info": info})
    assert secret not in repr(reading)
    assert "/srv/private" not in repr(reading)
    assert (only(reading).block_size_tokens, only(reading).model) == (16, "llama")


def test_trap_18_the_version_with_the_double_bind_is_named(understand):
    """Several nodes and several tokenizers on 0.5.13 may crash at start: the reader is told, nothing else changes."""
    info = {"model_path": "m", "tp_size": 8, "nnodes": 2, "tokenizer_worker_num": 4}
    old = row()
    del old["timestamp"]
    noted = understand({"/v1/loads": loads(old, version="0.5.13"), "/server_info": json.dumps(info)})
    assert "version-note" in codes(noted)
    assert "version-note" not in codes(understand({"/v1/loads": loads(row()), "/server_info": json.dumps(info)}))


def test_trap_19_a_rank_suffix_is_no_part_of_an_address():
    """`http://ip:port@3` is rank 3 of http://ip:port; a user name is not a rank."""
    assert split_rank("http://10.0.0.1:30000@3") == ("http://10.0.0.1:30000", 3)
    assert split_rank("http://user@10.0.0.1:30000") == ("http://user@10.0.0.1:30000", None)


def test_trap_20_the_router_s_count_stands_beside_the_engine_s(understand):
    """A router that says 0 while the engine holds 60 requests gives both figures, neither replaces the other."""
    workers = {
        "workers": [{"id": "a", "url": "http://a:1", "worker_type": "regular", "is_healthy": True, "load": 0}],
        "total": 1,
    }
    router = understand({"/workers": json.dumps(workers)})
    engine = only(understand({"/v1/loads": loads(row(num_running_reqs=60, **mode("null")))}))
    assert (router.router_workers[0].load_count, engine.running_count) == (0, 60)


def test_trap_21_hit_rates_are_per_worker(understand, past):
    """Two prefill workers keep their own hit ratio; a router that flips between them shows as a difference."""

    def at(hit, total):
        return only(
            understand(
                {
                    "/metrics": metrics(
                        'num_used_tokens{engine_type="prefill"} 5',
                        f'prefill_effective_tokens_total{{engine_type="prefill",mode="input"}} {total - hit}',
                        f'prefill_effective_tokens_total{{engine_type="prefill",mode="device_hit"}} {hit}',
                    )
                }
            )
        )

    histories = [past([at(0, 10), at(h, 110)], [0.0, 10.0], worker_id=w) for w, h in (("a", 90), ("b", 10))]
    ratios = [pool.rates.prefix_hit_ratio.value for pool in judge_fleet(histories, 10.0).pools]
    assert ratios == [pytest.approx(0.9), pytest.approx(0.1)]


def test_trap_22_a_fresh_time_does_not_mean_busy(understand, past):
    """An idle worker publishes all the time: it is fresh, and neither its step time nor its batch pretends work."""
    idle = [
        only(
            understand(
                {
                    "/v1/loads": loads(
                        row(
                            timestamp=1793404800.0 + s,
                            num_running_reqs=0,
                            num_used_tokens=0,
                            num_total_tokens=0,
                            num_active_tokens=0,
                            decode_moments=[10.0, 20.0, 4e5, 40.0, 8e5, 20.0],
                            **mode("null"),
                        ),
                        timestamp=1793404800.1 + s,
                    )
                }
            )
        )
        for s in range(6)
    ]
    pool = judge_fleet([past(idle, [1793404800.2 + s for s in range(6)])], 1793404805.3).pools[0]
    assert pool.state is SourceState.FRESH
    assert pool.rates.mean_batch_count.value is None
    assert pool.rates.generated_tokens_per_s.value == 0
    assert pool.rates.step_time_s.value == pytest.approx(0.04)
    assert "life" in pool.rates.step_time_s.reason


def test_trap_23_the_host_tier_is_not_capacity(understand):
    """HiCache's host tokens are offloaded, outside usable; without a host tier they are unknown, not 0."""
    lines = ['max_total_num_tokens{engine_type="unified"} 1000', 'kv_used_tokens{engine_type="unified"} 400']
    host = [
        'hicache_host_used_tokens{engine_type="unified"} 7900',
        'hicache_host_total_tokens{engine_type="unified"} 8000',
    ]
    pool = only(understand({"/metrics": metrics(*lines, *host)}))
    composition = compose(pool)
    assert (composition.usable_tokens.value, composition.available_tokens.value) == (1000, 600)
    assert (composition.offloaded_tokens.value, pool.offload_usable_tokens) == (7900, 8000)
    none = ['hicache_host_used_tokens{engine_type="unified"} 0', 'hicache_host_total_tokens{engine_type="unified"} 0']
    assert only(understand({"/metrics": metrics(*lines, *none)})).offloaded_tokens is None


def test_trap_24_handshakes_that_never_complete_are_named(understand, past):
    """A bootstrap queue that only grows while nothing is used or computed: not serving, and said so."""

    def at(second):
        return only(
            understand(
                {
                    "/v1/loads": loads(
                        row(
                            timestamp=1793404800.0 + second,
                            num_used_tokens=0,
                            num_total_tokens=0,
                            num_active_tokens=0,
                            num_running_reqs=0,
                            num_waiting_reqs=10 + 5 * second,
                            total_prefill_uncached_tokens=100,
                            total_prefill_busy_us=1000,
                            **mode(
                                "prefill", prefill_bootstrap_queue_reqs=10 + 5 * second, prefill_inflight_queue_reqs=0
                            ),
                        )
                    )
                }
            )
        )

    pool = judge_fleet([past([at(s) for s in range(5)], [1793404800.0 + s for s in range(5)])], 1793404804.0).pools[0]
    assert not pool.is_serving
    assert "handshake-not-completing" in {finding.code for finding in pool.findings}
    assert pool.rates.prefill_tokens_per_s.value is None


def test_trap_25_foreign_data_is_never_unpickled():
    """No module of the project imports an unpickler: dumps of requests are code of whoever wrote them."""
    for folder in ("collectors", "scoring", "commands", "simulation", "demo", "pages"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                forbidden = {name.partition(".")[0] for name in names} & {
                    "pickle",
                    "dill",
                    "cloudpickle",
                    "shelve",
                    "marshal",
                }
                assert not forbidden, f"{path}: {forbidden}"


def test_trap_26_ts_tic_is_no_time(understand):
    """A monotonic counter of arbitrary origin never becomes the time of the figures."""
    body = json.dumps([{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 70, "ts_tic": 1793404800.0}])
    pool = only(understand({"/get_load": body}))
    assert pool.reported_at_s is None
    assert pool.answered_at_s is None


def test_refused_credentials_are_unauthorised_not_misunderstood(answer):
    """401 on /v1/loads beside open /metrics is a missing token: named so, not half understood."""
    answers = {
        "/v1/loads": answer('{"error":"Unauthorized"}', status=401),
        "/metrics": answer(metrics("num_used_tokens 5", "token_usage 0.1")),
    }
    assert identify(answers).name == "sglang"
    said = ENGINES["sglang"].understand(answers)
    assert isinstance(said, NotUnderstood)
    assert said.is_unauthorised

"""
A simulated worker's `/metrics`: the series, types, labels and buckets of a real SGLang 0.5.23 server of its role.

Series of features the demo does not simulate (speculation, sliding windows, recurrent states, cudagraphs off) are
written as the real server writes them when they are off. Order and grouping follow the exposition format; nobody
reads order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from demo.state import Histogram, RankFacts, RankState, RankTimings, WorkerTimings

RANK_GAUGES: Final[tuple[tuple[str, Callable[[RankFacts, RankState], float]], ...]] = (
    ("max_total_num_tokens", lambda facts, _: facts.usable_tokens),
    ("weight_memory_usage_gb", lambda facts, _: facts.weight_gib),
    ("kv_cache_memory_usage_gb", lambda facts, _: facts.kv_gib),
    ("startup_available_gpu_memory_gb", lambda facts, _: facts.kv_gib + facts.spare_gib),
    ("page_size", lambda facts, _: facts.page_tokens),
    ("num_pages", lambda facts, _: facts.usable_tokens // facts.page_tokens),
    ("num_running_reqs", lambda _, state: state.running_count),
    ("num_queue_reqs", lambda _, state: state.waiting_count),
    ("gen_throughput", lambda _, state: state.generated_per_s),
    ("cache_hit_rate", lambda _, state: state.hit_ratio),
    ("decode_sum_seq_lens", lambda _, state: state.decode_sum_tokens),
    ("token_usage", lambda facts, state: round(state.used_tokens / facts.usable_tokens, 2)),
    ("full_token_usage", lambda facts, state: state.used_tokens / facts.usable_tokens),
    ("num_used_tokens", lambda _, state: state.used_tokens),
    ("kv_available_tokens", lambda _, state: state.free_tokens),
    ("kv_evictable_tokens", lambda _, state: state.prefix_tokens),
    ("kv_used_tokens", lambda _, state: state.used_tokens),
    ("num_prefill_bootstrap_queue_reqs", lambda _, state: state.bootstrap_count),
    ("num_prefill_inflight_queue_reqs", lambda _, state: state.inflight_count),
    ("num_decode_prealloc_queue_reqs", lambda _, state: state.prealloc_count),
    ("num_decode_transfer_queue_reqs", lambda _, state: state.transfer_count),
    ("prealloc_full_token_usage", lambda facts, state: state.travelling_tokens / facts.usable_tokens),
)
STILL_GAUGES: Final[Mapping[str, float]] = {
    "num_grammar_queue_reqs": 0,
    "swa_token_usage": 0,
    "mamba_usage": 0,
    "swa_available_tokens": 0,
    "swa_evictable_tokens": 0,
    "swa_used_tokens": 0,
    "mamba_available_tokens": 0,
    "mamba_evictable_tokens": 0,
    "mamba_used_tokens": 0,
    "spec_accept_length": 0,
    "spec_accept_rate": 0,
    "spec_cap_length": 0,
    "spec_block_accept_length": 0,
    "spec_num_steps": 0,
    "spec_num_draft_tokens": 0,
    "num_decode_host_receive_queue_reqs": 0,
    "num_decode_deferred_kv_release_reqs": 0,
    "pending_prealloc_token_usage": 0,
    "prealloc_swa_token_usage": 0,
    "fwd_occupancy": float("nan"),
    "new_token_ratio": 0.7,
    "is_cuda_graph": 1,
    "num_unique_running_routing_keys": 0,
}
"""Gauges that stay put: features that are off, and the engine's own constants."""
FAILURE_COUNTERS: Final[tuple[tuple[str, Callable[[RankState], float]], ...]] = (
    ("num_transfer_failed_reqs_total", lambda state: state.transfer_failed_total),
    ("num_retracted_requests_total", lambda state: state.retracted_total),
    ("num_retracted_input_tokens_total", lambda state: state.retracted_input_tokens_total),
    ("num_retracted_output_tokens_total", lambda state: state.retracted_output_tokens_total),
)
MODE_COUNTERS: Final[tuple[tuple[str, str, Callable[[RankState], float]], ...]] = (
    ("realtime_tokens_total", "prefill_compute", lambda state: state.prefill_tokens_total),
    ("realtime_tokens_total", "prefill_cache", lambda state: state.prefill_cached_tokens_total),
    ("realtime_tokens_total", "decode", lambda state: state.generated_tokens_total),
    ("prefill_effective_tokens_total", "input", lambda state: state.prefill_tokens_total),
    ("prefill_effective_tokens_total", "device_hit", lambda state: state.prefill_cached_tokens_total),
    ("cuda_graph_passes_total", "prefill_none", lambda state: state.prefill_passes_total),
    ("cuda_graph_passes_total", "decode_cuda_graph", lambda state: state.decode_steps_total),
)
GRAPH_PHASES: Final = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
STARTUP_PHASES: Final = (
    ("load_weight", 41.7),
    ("kv_cache_allocation", 3.2),
    ("scheduler_e2e", 78.4),
    ("tokenizer_e2e", 84.9),
)
"""Chosen: what a large model on local disks takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """
    What never changes while a worker runs.

    Attributes:
        engine_type: "prefill", "decode" or "unified".
        has_rank_label: Whether series carry `dp_rank`: only with more than one rank.
    """

    model_name: str
    engine_type: str
    has_rank_label: bool
    context_tokens: int


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(float(value))


def _labels(pairs: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{pairs[key]}"' for key in sorted(pairs)) + "}"


class _Writer:
    """Collects families, each written once whatever the order its samples come in."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def _family(self, name: str, kind: str) -> list[str]:
        if name not in self._families:
            self._families[name] = [f"# HELP sglang:{name} {name.replace('_', ' ')}", f"# TYPE sglang:{name} {kind}"]
        return self._families[name]

    def sample(self, name: str, kind: str, labels: str, value: float) -> None:
        self._family(name, kind).append(f"sglang:{name}{labels} {_number(value)}")

    def histogram(self, name: str, labels: Mapping[str, str], histogram: Histogram) -> None:
        lines = self._family(name, "histogram")
        lines.append(f"sglang:{name}_sum{_labels(labels)} {_number(histogram.total)}")
        inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
        seen = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            seen += count
            edge = "+Inf" if bound == float("inf") else repr(bound) if bound < 1e6 else f"{bound:.3g}"
            lines.append(f'sglang:{name}_bucket{{{inner},le="{edge}"}} {float(seen)!r}')
        lines.append(f"sglang:{name}_count{_labels(labels)} {float(seen)!r}")

    def body(self) -> bytes:
        return ("\n".join(line for lines in self._families.values() for line in lines) + "\n").encode()


def to_text(
    worker: WorkerFacts,
    ranks: Sequence[tuple[RankFacts, RankState, RankTimings]],
    timings: WorkerTimings,
    requests: Mapping[tuple[str, str], int],
) -> bytes:
    """
    Return the exposition of a worker.

    Args:
        worker: Constants of the worker.
        ranks: Constants, published state and histograms of each rank, ascending.
        timings: The front end's histograms.
        requests: HTTP requests answered so far, by (path, status).
    """
    out = _Writer()
    front = {"engine_type": worker.engine_type, "model_name": worker.model_name}
    for phase, seconds in STARTUP_PHASES:
        out.sample("startup_time_seconds", "gauge", _labels({**front, "phase": phase}), seconds)
    for facts, state, rank_timings in ranks:
        _write_rank(out, worker, facts, state, rank_timings)
    _write_front(out, worker, front, timings)
    for (path, status), count in requests.items():
        labels = {"endpoint": path, "method": "GET"}
        out.sample("http_requests_active", "gauge", _labels(labels), float(path == "/metrics"))
        out.sample("http_requests_total", "counter", _labels(labels), count)
        out.sample("http_responses_total", "counter", _labels({**labels, "status_code": status}), count)
    return out.body()


def _write_rank(out: _Writer, worker: WorkerFacts, facts: RankFacts, state: RankState, timings: RankTimings) -> None:
    is_prefill, is_decode = worker.engine_type == "prefill", worker.engine_type == "decode"
    base = {"engine_type": worker.engine_type, "model_name": worker.model_name, "moe_ep_rank": "0"}
    base |= {"pp_rank": "0", "tp_rank": "0"}
    if worker.has_rank_label:
        base["dp_rank"] = str(facts.dp_rank)
    labels = _labels(base)
    for name, value in RANK_GAUGES:
        out.sample(name, "gauge", labels, value(facts, state))
    for name, still in STILL_GAUGES.items():
        out.sample(name, "gauge", labels, still)
    out.sample("context_len", "gauge", labels, worker.context_tokens)
    out.sample("utilization", "gauge", labels, -1.0 if is_prefill else 0.0)
    for phase in GRAPH_PHASES:
        out.sample(
            "graph_memory_usage_gb", "gauge", _labels({**base, "phase": phase}), facts.graph_gib * (phase == "decode")
        )
    by_process = {**base, "pid": str(4400 + facts.dp_rank)}
    out.sample("num_retracted_reqs", "gauge", _labels(by_process), state.recent_retracted_count)
    out.sample("num_paused_reqs", "gauge", _labels(by_process), 0)
    out.sample("scheduler_idle_seconds_total", "counter", labels, state.idle_s_total)
    for name, count in FAILURE_COUNTERS:
        # The real server's series of a failure appears with the first failure.
        if count(state) > 0:
            out.sample(name, "counter", labels, count(state))
    for name, mode, count in MODE_COUNTERS:
        if (mode.startswith("decode") and is_prefill) or (mode.startswith("prefill") and is_decode):
            continue
        out.sample(name, "counter", _labels({**base, "mode": mode}), count(state))
    if not is_decode:
        for tier in ("host_hit", "storage_hit"):
            out.sample("prefill_effective_tokens_total", "counter", _labels({**base, "mode": tier}), 0)
    out.histogram("queue_time_seconds", base, timings.queue_s)
    if worker.engine_type != "unified":
        out.histogram("kv_transfer_bootstrap_ms", base, timings.bootstrap_ms)
        out.histogram("kv_transfer_alloc_ms", base, timings.alloc_ms)
    if is_prefill:
        out.histogram("kv_transfer_latency_ms", base, timings.transfer_ms)
        out.histogram("kv_transfer_total_mb", base, timings.transfer_mib)
        out.histogram("kv_transfer_speed_gb_s", base, timings.transfer_gb_s)
    if not is_decode:
        cache = {"cache_type": "UnifiedRadixCache", "dp_rank": str(facts.dp_rank), "pp_rank": "0", "tp_rank": "0"}
        out.sample("evicted_tokens_total", "counter", _labels(cache), state.evicted_tokens_total)
        out.histogram("eviction_duration_seconds", cache, timings.eviction_s)


def _write_front(out: _Writer, worker: WorkerFacts, front: Mapping[str, str], timings: WorkerTimings) -> None:
    streaming = {**front, "is_streaming": "true"}
    finished = sum(timings.e2e_s.counts)
    out.sample("prompt_tokens_total", "counter", _labels(streaming), timings.prompt_tokens.total)
    out.sample("generation_tokens_total", "counter", _labels(streaming), timings.output_tokens.total)
    out.sample("num_requests_total", "counter", _labels(streaming), finished)
    out.sample(
        "cached_tokens_total", "counter", _labels({**front, "cache_source": "device"}), timings.cached_tokens_total
    )
    out.histogram("e2e_request_latency_seconds", streaming, timings.e2e_s)
    if worker.engine_type != "prefill":
        out.histogram("time_to_first_token_seconds", streaming, timings.ttft_s)
        out.histogram("inter_token_latency_seconds", front, timings.itl_s)
        out.histogram("request_time_per_output_token_seconds", streaming, timings.tpot_s)
    out.histogram("prompt_tokens_histogram", front, timings.prompt_tokens)
    out.histogram("uncached_prompt_tokens_histogram", front, timings.uncached_tokens)
    out.histogram("generation_tokens_histogram", front, timings.output_tokens)

"""
A simulated rank as a row of `/v1/loads`, field by field as SGLang 0.5.23 defines them.

Read next: `state` (where the figures come from) and `wire` (how rows are selected and written).
"""

from typing import Any

from demo.state import RankFacts, RankState

MICROSECONDS_PER_S = 1e6


def decode_moments(state: RankState) -> list[float] | None:
    """Return the six sums over counted decode steps, or None before the first."""
    if state.decode_steps_total == 0:
        return None
    return [
        float(state.decode_steps_total),
        float(state.decode_batch_sum),
        float(round(state.decode_step_s_sum * MICROSECONDS_PER_S)),
        float(state.decode_batch_squared_sum),
        float(round(state.decode_batch_step_s_sum * MICROSECONDS_PER_S)),
        float(state.generated_tokens_total),
    ]


def to_row(facts: RankFacts, state: RankState, mode: str) -> dict[str, Any]:
    """
    Return the row of one rank.

    Args:
        facts: The rank's constants.
        state: What it published.
        mode: "prefill", "decode" or "null" (unified).
    """
    is_prefill, is_decode = mode == "prefill", mode == "decode"
    waiting = state.waiting_count
    if is_prefill:
        waiting += state.bootstrap_count
    elif is_decode:
        waiting += state.prealloc_count + state.transfer_count + state.retracted_count
    total_tokens = state.used_tokens + state.pending_tokens
    # The engine takes the queues' lengths off, retracted ones left in.
    arrived_tokens = (
        max(0, total_tokens - state.prealloc_tokens - state.travelling_tokens) if is_decode else total_tokens
    )
    return {
        "timestamp": state.at_s,
        "dp_rank": facts.dp_rank,
        # A prefill worker has no running batch: the real server says 0 there too.
        "num_running_reqs": 0 if is_prefill else state.running_count,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": 0 if is_decode else state.waiting_uncached_tokens,
        "num_used_tokens": state.used_tokens,
        "num_total_tokens": total_tokens,
        "num_active_tokens": arrived_tokens,
        "num_prealloc_ready_tokens": state.prealloc_ready_tokens,
        "max_total_num_tokens": facts.usable_tokens,
        "max_running_requests": facts.max_running_count,
        "token_usage": round(state.used_tokens / facts.usable_tokens, 4),
        "gen_throughput": round(state.generated_per_s, 2),
        "cache_hit_rate": round(state.hit_ratio, 4),
        "utilization": -1.0 if is_prefill else 0.0,
        "total_prefill_uncached_tokens": state.prefill_tokens_total,
        "total_prefill_busy_us": round(state.prefill_busy_s_total * MICROSECONDS_PER_S),
        "decode_moments": decode_moments(state),
        "memory": {
            "weight_gb": facts.weight_gib,
            "kv_cache_gb": facts.kv_gib,
            "graph_gb": facts.graph_gib,
            "token_capacity": facts.usable_tokens,
        },
        "disaggregation": {
            "mode": mode,
            "prefill_bootstrap_queue_reqs": state.bootstrap_count,
            "prefill_inflight_queue_reqs": state.inflight_count,
            "decode_prealloc_queue_reqs": state.prealloc_count,
            "decode_transfer_queue_reqs": state.transfer_count,
            "decode_retracted_queue_reqs": state.retracted_count,
            "kv_transfer_speed_gb_s": round(state.transfer_gb_per_s, 2),
            "kv_transfer_latency_ms": round(state.transfer_ms, 2),
        },
        "queues": {
            "waiting": state.waiting_count,
            "grammar": 0,
            "paused": 0,
            "retracted": state.recent_retracted_count,
            "prealloc_ready": state.prealloc_ready_count,
        },
    }

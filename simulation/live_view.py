"""
One pool of a live fleet at one look, in the words of the house.
"""

from dataclasses import dataclass

from simulation import layout as lay
from simulation.layout import State


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """
    One pool at one look. usable = active + in_flight + prefix + fragmentation + free, in tokens, always.

    `used_tokens` = usable - prefix - free is what SGLang calls used, whole blocks. Queues count requests; a request
    between prefill and decode stands in a queue of both pools. Counters only rise.
    """

    pool_id: str
    at_s: float
    is_up: bool
    usable_tokens: int
    used_tokens: int
    active_tokens: int
    in_flight_tokens: int
    prefix_tokens: int
    fragmentation_tokens: int
    free_tokens: int
    reserved_tokens: int
    running_count: int
    running_tokens: int
    computing_count: int
    queue_bootstrap_count: int
    queue_main_count: int
    queue_inflight_count: int
    queue_prealloc_count: int
    queue_transfer_count: int
    queue_arrived_count: int
    queue_retracted_count: int
    queue_main_tokens: int
    queue_bootstrap_tokens: int
    queue_prealloc_tokens: int
    queue_transfer_tokens: int
    queue_retracted_tokens: int
    waiting_uncached_tokens: int
    decode_steps_total: int
    decode_batch_sum_total: int
    decode_batch_squared_total: int
    decode_step_s_total: float
    decode_batch_step_s_total: float
    generated_tokens_total: int
    prefill_uncached_tokens_total: int
    prefill_busy_s_total: float
    prefill_batches_total: int
    prompt_tokens_total: int
    prefix_hit_tokens_total: int
    finished_total: int
    retracted_total: int
    retracted_input_tokens_total: int
    retracted_output_tokens_total: int
    recomputed_tokens_total: int
    evicted_tokens_total: int
    transfer_bytes_total: float
    transfers_total: int
    transfer_latency_s_total: float


def pool_view(arrays: State, pool: int, name: str, now_s: float) -> PoolView:
    """Read one pool out of the state's arrays."""
    i = arrays.pi[pool].tolist()
    f = arrays.pf[pool].tolist()
    counts = arrays.q[pool, :, lay.Q_COUNT].tolist()
    tokens = arrays.q[pool, :, lay.Q_TOKENS].tolist()
    page = i[lay.P_PAGE]
    usable, free, prefix = i[lay.P_USABLE] * page, i[lay.P_FREE] * page, i[lay.P_EVICTABLE] * page
    used = usable - free - prefix
    working = arrays.work[pool, : i[lay.P_NW]]
    left = int((arrays.ri[working, lay.R_TARGET] - arrays.ri[working, lay.R_DONE]).sum())
    # Positions are settled when a run ends; steps of the run under way have added one each.
    running = i[lay.P_KV] + (i[lay.P_COUNTED] * i[lay.P_RUN_B] if i[lay.P_PHASE] == lay.PHASE_DECODE else 0)
    return PoolView(
        pool_id=name,
        at_s=now_s,
        is_up=bool(i[lay.P_UP]),
        usable_tokens=usable,
        used_tokens=used,
        active_tokens=used - i[lay.P_TAIL] - i[lay.P_FLIGHT_TOKENS],
        in_flight_tokens=i[lay.P_FLIGHT_TOKENS],
        prefix_tokens=prefix,
        fragmentation_tokens=i[lay.P_TAIL],
        free_tokens=free,
        reserved_tokens=i[lay.P_RESERVE] * i[lay.P_ADMITTED],
        running_count=i[lay.P_NB],
        running_tokens=running,
        computing_count=i[lay.P_NW],
        queue_bootstrap_count=counts[lay.Q_BOOTSTRAP],
        queue_main_count=counts[lay.Q_MAIN],
        queue_inflight_count=counts[lay.Q_INFLIGHT],
        queue_prealloc_count=counts[lay.Q_PREALLOC],
        queue_transfer_count=counts[lay.Q_TRANSFER],
        queue_arrived_count=counts[lay.Q_ARRIVED],
        queue_retracted_count=counts[lay.Q_RETRACTED],
        queue_main_tokens=tokens[lay.Q_MAIN],
        queue_bootstrap_tokens=tokens[lay.Q_BOOTSTRAP],
        queue_prealloc_tokens=tokens[lay.Q_PREALLOC],
        queue_transfer_tokens=tokens[lay.Q_TRANSFER],
        queue_retracted_tokens=tokens[lay.Q_RETRACTED],
        waiting_uncached_tokens=tokens[lay.Q_MAIN] + tokens[lay.Q_BOOTSTRAP] + left,
        decode_steps_total=i[lay.C_STEPS],
        decode_batch_sum_total=i[lay.C_BATCH],
        decode_batch_squared_total=i[lay.C_BATCH2],
        decode_step_s_total=f[lay.C_STEP_S],
        decode_batch_step_s_total=f[lay.C_BATCH_STEP_S],
        generated_tokens_total=i[lay.C_GENERATED],
        prefill_uncached_tokens_total=i[lay.C_UNCACHED],
        prefill_busy_s_total=f[lay.C_BUSY_S],
        prefill_batches_total=i[lay.C_STARTED],
        prompt_tokens_total=i[lay.C_PROMPT],
        prefix_hit_tokens_total=i[lay.C_HIT],
        finished_total=i[lay.C_FINISHED],
        retracted_total=i[lay.C_RETRACTED],
        retracted_input_tokens_total=i[lay.C_RETRACTED_IN],
        retracted_output_tokens_total=i[lay.C_RETRACTED_OUT],
        recomputed_tokens_total=i[lay.C_RECOMPUTED],
        evicted_tokens_total=i[lay.C_EVICTED],
        transfer_bytes_total=f[lay.C_BYTES],
        transfers_total=i[lay.C_TRANSFERS],
        transfer_latency_s_total=f[lay.C_TRANSFER_S],
    )

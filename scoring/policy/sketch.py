"""
Pools and fleets from plain numbers: for examples, benchmarks, and what-ifs on a fleet one does not have.

A sketched figure is `estimated`, with the reason "sketched": nobody can mistake it for a reading.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from scoring.model import (
    Composition,
    Figure,
    FleetSnapshot,
    Link,
    PoolRates,
    PoolReading,
    PoolSnapshot,
    Role,
    SourceState,
    estimated,
    unknown,
)

SKETCHED: Final = "sketched"


def _f(value: float | None) -> Figure:
    return unknown(SKETCHED) if value is None else estimated(float(value), SKETCHED)


def sketch_pool(
    pool_id: str,
    role: Role,
    *,
    usable_tokens: float | None = 1_000_000,
    used_tokens: float | None = 0,
    in_flight_tokens: float | None = 0,
    prefix_tokens: float | None = 0,
    reserved_tokens: float | None = 0,
    queued_tokens: float | None = 0,
    uncached_tokens: float | None = 0,
    block_size_tokens: float | None = 16,
    bytes_per_token: float | None = 131_072,
    net_tokens_per_s: float | None = 0,
    net_std_tokens_per_s: float | None = 0,
    prefill_tokens_per_s: float | None = None,
    step_time_s: float | None = None,
    running_count: float | None = 0,
    waiting_count: float | None = 0,
    max_running_count: float | None = 256,
    finished_per_s: float | None = None,
    mean_prompt_tokens: float | None = 4_000,
    mean_output_tokens: float | None = 500,
    transfer_bytes_per_s: float | None = None,
    transfers_per_s: float | None = None,
    transfer_time_s: float | None = None,
    transfer_drain_s: float | None = None,
    inflight_count: float | None = 0,
    age_s: float | None = 0.5,
    at_s: float = 0.0,
    state: SourceState = SourceState.FRESH,
    is_serving: bool = True,
    model: str | None = None,
    labels: Mapping[str, str] | None = None,
    anomalies: tuple[str, ...] = (),
) -> PoolSnapshot:
    """
    Return a pool by its numbers; None is unknown.

    `used` is active + in_flight; available is usable - used; free is available - prefix.
    """
    worker_id, _, rank = pool_id.partition("/")
    known = usable_tokens is not None and used_tokens is not None
    available = max(usable_tokens - used_tokens, 0) if known else None  # type: ignore[operator] # known is both
    active = None if used_tokens is None or in_flight_tokens is None else used_tokens - in_flight_tokens
    free = None if available is None or prefix_tokens is None else available - prefix_tokens
    committed = None if used_tokens is None or reserved_tokens is None else used_tokens + reserved_tokens
    is_prefill = role is Role.PREFILL
    if prefill_tokens_per_s is None and role is not Role.DECODE:
        prefill_tokens_per_s = 20_000
    if step_time_s is None and not is_prefill:
        step_time_s = 0.02
    if finished_per_s is None and running_count is not None and not is_prefill:
        finished_per_s = running_count / 10.0
    composition = Composition(
        usable_tokens=_f(usable_tokens),
        used_tokens=_f(used_tokens),
        active_tokens=_f(active),
        in_flight_tokens=_f(in_flight_tokens),
        prefix_tokens=_f(prefix_tokens),
        fragmentation_tokens=_f(0),
        free_tokens=_f(free),
        free_or_prefix_tokens=_f(available),
        unattributed_tokens=_f(0),
        available_tokens=_f(available),
        reserved_tokens=_f(reserved_tokens),
        committed_tokens=_f(committed),
        queued_tokens=_f(queued_tokens),
        offloaded_tokens=unknown(SKETCHED),
    )
    rates = PoolRates(
        growth_tokens_per_s=unknown(SKETCHED),
        release_tokens_per_s=unknown(SKETCHED),
        net_tokens_per_s=_f(net_tokens_per_s),
        net_std_tokens_per_s=_f(net_std_tokens_per_s),
        prefill_tokens_per_s=_f(prefill_tokens_per_s),
        prefill_duty_ratio=unknown(SKETCHED),
        step_time_s=_f(step_time_s),
        mean_batch_count=_f(running_count),
        generated_tokens_per_s=unknown(SKETCHED),
        finished_per_s=_f(finished_per_s),
        retracted_per_s=_f(0),
        evicted_tokens_per_s=_f(0),
        transfer_bytes_per_s=_f(transfer_bytes_per_s),
        transfer_time_s=_f(transfer_time_s),
        prefix_hit_ratio=unknown(SKETCHED),
        mean_prompt_tokens=_f(mean_prompt_tokens),
        mean_output_tokens=_f(mean_output_tokens),
        ttft_mean_s=unknown(SKETCHED),
        itl_mean_s=unknown(SKETCHED),
        window_s=30.0,
        transfers_per_s=_f(transfers_per_s),
        transfer_drain_s=_f(transfer_drain_s),
    )
    return PoolSnapshot(
        pool_id=pool_id,
        worker_id=worker_id,
        dp_rank=int(rank or 0),
        role=role,
        engine="sketch",
        version=None,
        model=model,
        labels=dict(labels or {}),
        at_s=at_s,
        received_at_s=at_s,
        age_s=age_s,
        state=state,
        state_reason="" if state.is_scored else SKETCHED,
        block_size_tokens=_f(block_size_tokens),
        bytes_per_token=_f(bytes_per_token),
        composition=composition,
        rates=rates,
        running_count=_f(running_count),
        waiting_count=_f(waiting_count),
        max_running_count=_f(max_running_count),
        queue_main_count=_f(waiting_count),
        queue_bootstrap_count=_f(0 if is_prefill else None),
        queue_inflight_count=_f(inflight_count if is_prefill else None),
        queue_prealloc_count=_f(0 if role is Role.DECODE else None),
        queue_transfer_count=_f(0 if role is Role.DECODE else None),
        queue_retracted_count=_f(0 if role is Role.DECODE else None),
        prealloc_ready_count=unknown(SKETCHED),
        waiting_uncached_tokens=_f(uncached_tokens),
        reading=PoolReading(
            worker_id=worker_id,
            dp_rank=int(rank or 0),
            received_at_s=at_s,
            role=role,
            engine="sketch",
            model=model,
            anomalies=anomalies,
        ),
        is_serving=is_serving,
    )


def sketch_fleet(pools: Sequence[PoolSnapshot], links: Sequence[Link] = (), at_s: float = 0.0) -> FleetSnapshot:
    """Return a snapshot of sketched pools, ascending by id."""
    return FleetSnapshot(at_s=at_s, pools=tuple(sorted(pools, key=lambda pool: pool.pool_id)), links=tuple(links))


def two_node_case(at_s: float = 0.0) -> FleetSnapshot:
    """
    Return the two-node case: lower utilization is the worse place.

    D-A is 45 % used by 80 sequences at the start of long outputs, growing, behind a congested link; D-B is 68 % used
    by 24 sequences near their end, shrinking, behind an idle link. One prefill pool feeds both.
    """
    usable = 800_000.0
    return sketch_fleet(
        [
            sketch_pool(
                "P-1/0",
                Role.PREFILL,
                usable_tokens=600_000,
                used_tokens=90_000,
                uncached_tokens=12_000,
                prefill_tokens_per_s=24_000,
                waiting_count=2,
                running_count=0,
                max_running_count=128,
                at_s=at_s,
            ),
            sketch_pool(
                "D-A/0",
                Role.DECODE,
                usable_tokens=usable,
                used_tokens=0.45 * usable,
                in_flight_tokens=24_000,
                running_count=80,
                max_running_count=128,
                step_time_s=0.034,
                net_tokens_per_s=2_300,
                net_std_tokens_per_s=1_500,
                finished_per_s=0.2,
                mean_output_tokens=6_000,
                at_s=at_s,
            ),
            sketch_pool(
                "D-B/0",
                Role.DECODE,
                usable_tokens=usable,
                used_tokens=0.68 * usable,
                running_count=24,
                max_running_count=128,
                step_time_s=0.024,
                net_tokens_per_s=-9_000,
                net_std_tokens_per_s=4_000,
                finished_per_s=2.0,
                mean_output_tokens=2_000,
                at_s=at_s,
            ),
        ],
        links=(
            Link(source="*", target="D-A", bandwidth_bytes_per_s=25e9, latency_s=0.002, queued_bytes=60e9),
            Link(source="*", target="D-B", bandwidth_bytes_per_s=25e9, latency_s=0.002, queued_bytes=0.0),
        ),
        at_s=at_s,
    )

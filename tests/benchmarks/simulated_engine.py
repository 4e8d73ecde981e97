"""
An engine that obeys the laws exactly, as far as a client and its telemetry tell: the simulation stepped from outside,
played a load and looked at as the study looks.
"""

from dataclasses import replace

import numpy as np

from benchmarks.fidelity_fit import LEAST_RATIO
from benchmarks.fidelity_loads import COUNT_EVERY_S, LOOK_S, Load, Recording, Seen, planned
from benchmarks.fidelity_targets import Target
from scoring.model import PoolReading, Role
from scoring.service import ServiceProfile
from simulation.fleet import FleetSpec, PoolSpec
from simulation.live import Completion, LiveFleet, LiveRequest, PoolView

BEGAN_AT_S = 1_900_000_000.0
TRUE = ServiceProfile(
    name="true",
    source="chosen: what a tiny model takes on a CPU",
    prefill_base_s=0.008,
    prefill_per_token_s=0.00012,
    prefill_per_token2_s=1e-8,
    decode_base_s=0.006,
    decode_per_sequence_s=0.0012,
    decode_per_token_s=2e-6,
    transfer_latency_s=0.005,
    bytes_per_token=1024.0,
)
BANDWIDTH_BYTES_PER_S = 2e7
USABLE_TOKENS = 20_000


def fleet_of(target: Target, reserve_tokens: int = round(LEAST_RATIO * 100)) -> FleetSpec:
    """Return workers of a target's names and roles that take TRUE's times."""
    pools = [
        PoolSpec(
            worker=name,
            role=role,
            usable_tokens=USABLE_TOKENS,
            block_size_tokens=1,
            profile=TRUE,
            max_running_count=256,
            prefill_budget_tokens=4096,
            reserve_tokens=0 if role is Role.PREFILL else reserve_tokens,
            bandwidth_bytes_per_s=BANDWIDTH_BYTES_PER_S,
            is_prefix_cached=False,
        )
        for name, (_, role) in target.workers.items()
    ]
    return FleetSpec(pools=tuple(pools), retraction="fewest-output")


def _reading(name: str, role: Role, view: PoolView, done: list[Completion], is_counted: bool) -> PoolReading:
    at_s = BEGAN_AT_S + view.at_s
    is_source = role is Role.PREFILL and is_counted
    has_steps = role is not Role.PREFILL
    return PoolReading(
        worker_id=name,
        role=role,
        engine="sglang",
        version="0.5.23",
        model="tiny",
        received_at_s=at_s,
        reported_at_s=at_s,
        usable_tokens=float(view.usable_tokens),
        block_size_tokens=1.0,
        bytes_per_token=TRUE.bytes_per_token,
        max_running_count=256.0,
        used_tokens=float(view.used_tokens),
        arrived_tokens=float(view.used_tokens - view.in_flight_tokens) if role is Role.DECODE else None,
        running_count=float(view.running_count),
        waiting_uncached_tokens=float(view.waiting_uncached_tokens),
        queue_inflight_count=float(view.queue_inflight_count),
        queue_retracted_count=float(view.queue_retracted_count),
        prefill_uncached_tokens_total=float(view.prefill_uncached_tokens_total),
        prefill_busy_s_total=view.prefill_busy_s_total,
        decode_steps_total=float(view.decode_steps_total) if has_steps else None,
        decode_batch_sum_total=float(view.decode_batch_sum_total) if has_steps else None,
        decode_step_s_total=view.decode_step_s_total if has_steps else None,
        decode_batch_squared_total=float(view.decode_batch_squared_total) if has_steps else None,
        retracted_total=float(view.retracted_total) if is_counted else None,
        transfers_total=float(view.transfers_total) if is_source else None,
        transfer_bytes_total=view.transfer_bytes_total if is_source else None,
        transfer_latency_s_total=view.transfer_latency_s_total if is_source else None,
        ttft_count_total=float(sum(each.first_token_s <= view.at_s for each in done)) if is_counted else None,
    )


def played(target: Target, load: Load, turn: int = 0) -> Recording:
    """Return the recording of a load played to such an engine; requests go to the decode pool that holds least."""
    spec = fleet_of(target)
    fleet = LiveFleet(spec)
    prefill = spec.indices(Role.PREFILL) or spec.indices(Role.UNIFIED)
    decode = spec.indices(Role.DECODE) or spec.indices(Role.UNIFIED)
    rows, done, looks = planned(load, turn), [], []
    next_look_s = 0.0

    def pass_to(until_s: float) -> None:
        nonlocal next_look_s
        while next_look_s <= until_s:
            done.extend(fleet.advance(next_look_s))
            looks.append(fleet.looks())
            next_look_s += LOOK_S
        done.extend(fleet.advance(until_s))

    for number, row in enumerate(rows):
        pass_to(row.at_s)
        target_pool = min(decode, key=lambda at: fleet.look(at).used_tokens)
        source = target_pool if target_pool in prefill else prefill[number % len(prefill)]
        request = LiveRequest(request_id=str(number), prompt_tokens=len(row.ids), output_tokens=row.output_tokens)
        fleet.submit(request, source, target_pool)
    while len(done) < len(rows):
        pass_to(next_look_s)
    by_number = {int(each.request_id): each for each in done}
    seen = tuple(
        Seen(
            arrival_s=row.at_s,
            prompt_tokens=len(row.ids),
            output_tokens=row.output_tokens,
            ttft_s=by_number[number].first_token_s - row.at_s,
            e2e_s=by_number[number].finish_s - row.at_s,
        )
        for number, row in enumerate(rows)
    )
    names = list(target.workers.items())
    every = round(COUNT_EVERY_S / LOOK_S)
    readings = tuple(
        _reading(name, role, view, done, look % every == 0)
        for look, views in enumerate(looks)
        for (name, (_, role)), view in zip(names, views, strict=True)
    )
    return Recording(load, BEGAN_AT_S, seen, readings)


def later(recording: Recording, seconds: float) -> Recording:
    """Return the recording with every TTFT and E2E `seconds` longer: what a slow client adds."""
    slow = [
        replace(each, ttft_s=(each.ttft_s or 0.0) + seconds, e2e_s=(each.e2e_s or 0.0) + seconds)
        for each in recording.requests
    ]
    return replace(recording, requests=tuple(slow))


def utilization_step_s(share: np.ndarray) -> np.ndarray:
    """Return a mocker's step by the share of its pool held."""
    return 0.006 + 0.054 * share - 0.026 * share**2

"""
Coefficients of an engine under study from the telemetry of one recorded load, and the simulation of another.

What the client adds (HTTP, tokenizing, event loop) is no service time: the median of what the fit's load has beyond
the simulation's TTFT is carried over as one constant, and stated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.fidelity_loads import Recording, Seen, StudyError
from benchmarks.fidelity_targets import LINEAR, UTILIZATION, Target
from scoring.calibration import LinearFit, fit_linear, solve
from scoring.calibration_service import (
    DECODE_NAMES,
    MIN_DECODE_WINDOWS,
    PREFILL_NAMES,
    ServiceFit,
    fit_service,
    predicted_prefill_s,
    predicted_steps_s,
    telling_windows,
)
from scoring.calibration_windows import DecodeWindow, PairWindows, PrefillWindow, consecutive_windows, kind_of
from scoring.model import FloatArray, PoolReading, Role
from scoring.service import ServiceProfile
from simulation.fleet import FleetSpec, PoolSpec
from simulation.result import RunResult
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

PREFILL_BUDGET_TOKENS: Final = {"sglang": 4096, "sglang-2p2d": 4096, "dynamo-mocker": 8192}
"""What the servers say of `chunked_prefill_size` and `max_num_batched_tokens`."""
LEAST_RATIO: Final = 0.7 * 0.14
"""SGLang's `new_token_ratio` once 600 decode steps have gone by without a retraction: the share of what a running
request may still generate that admission keeps for it (engine defaults)."""
RESERVED_DECODE_TOKENS: Final = 512
"""SGLang's `num_reserved_decode_tokens`, engine default, a decode worker's per request."""
WIDE_BYTES_PER_S: Final = 1e12
"""A link that takes no time: where an engine reports no hand-overs they are part of what TTFT was fitted to."""
SAMPLE_PERIOD_S: Final = 0.5
UTILIZATION_NAMES: Final = ("decode_base_s", "decode_per_utilization_s", "decode_per_utilization2_s")
FIRST_STEPS: Final = 1.5
"""Decode steps before the first token of an engine whose decode workers give it: half of one under way, one's own."""


@dataclass(frozen=True)
class Fitted:
    """
    A fit of recordings.

    Attributes:
        profile: Coefficients with both levels in them.
        coefficients: (name, value) of the steps' and prompts' laws, levels not in them.
        step_count: Rows the steps' law was fitted to.
        step_scatter_ratio: Median |fitted - actual| / actual of these rows.
        decode_level_ratio: Seconds that all steps really took over what the robust fit says. On a machine whose other
            work stretches some steps it is above 1; means are predicted with it.
        prefill_level_ratio: The same of prompts.
        bandwidth_bytes_per_s: Of a worker's end of the link.
        notes: What is not told, and why.
    """

    profile: ServiceProfile
    coefficients: tuple[tuple[str, float], ...]
    step_count: int
    step_scatter_ratio: float
    decode_level_ratio: float
    prefill_level_ratio: float
    bandwidth_bytes_per_s: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Steps:
    """A law of decode steps: fields of a profile, and what it says of the rows it was fitted to."""

    values: dict[str, Any]
    rows: tuple[DecodeWindow, ...]
    predicted_s: FloatArray
    notes: tuple[str, ...]


def _windows(readings: Iterable[list[PoolReading]]) -> list[PairWindows]:
    return [window for each in readings for window in consecutive_windows(each)]


def _steps(recordings: Sequence[Recording], role: Role) -> list[DecodeWindow]:
    found = _windows(readings for recording in recordings for readings in recording.of(role).values())
    return [each.decode for each in found if each.decode]


def _service(recordings: Sequence[Recording], role: Role, budget_tokens: int) -> ServiceFit:
    counted = _windows(readings for recording in recordings for readings in recording.counted(role).values())
    lasts = [readings[-1] for readings in recordings[-1].of(role).values()]
    if not lasts:
        raise StudyError(f"no {role} worker was heard while {recordings[-1].load.name} was played: was the engine up?")
    return fit_service(
        kind_of(lasts[0]),
        _steps(recordings, role),
        [each.prefill for each in counted if each.prefill],
        [each.transfer for each in counted if each.transfer],
        bytes_per_token=next((each.bytes_per_token for each in lasts if each.bytes_per_token), None),
        budget_tokens=budget_tokens,
    )


def prompt_fit(seen: Sequence[Seen]) -> LinearFit:
    """
    Return the prompt law fitted to what clients waited: for engines that count no prompt tokens.

    What a decode worker adds before its own first token is no prompt's time and is taken off.
    """
    known = [each for each in seen if each.ttft_s and each.e2e_s and each.output_tokens > 1]
    tokens = np.array([each.prompt_tokens for each in known], np.float64)
    gaps = np.array([((each.e2e_s or 0.0) - (each.ttft_s or 0.0)) / (each.output_tokens - 1) for each in known])
    target = np.array([each.ttft_s for each in known], np.float64) - FIRST_STEPS * gaps
    design = np.stack([np.ones(len(tokens)), tokens, tokens * tokens], axis=1)
    return fit_linear(PREFILL_NAMES, design, target, 1.0 / np.maximum(target, 1e-3) ** 2, min_rows=20)


def _linear_steps(service: ServiceFit, rows: Sequence[DecodeWindow]) -> _Steps:
    if not service.decode.is_made:
        raise StudyError(f"decode steps are not fitted: {'; '.join(service.decode.notes)}")
    profile = service.profile()
    values = {name: getattr(profile, name) for name in DECODE_NAMES}
    taken = tuple(telling_windows(rows))
    return _Steps(values, taken, predicted_steps_s(taken, profile), (*service.notes, *service.decode.notes))


def _utilization_steps(rows: Sequence[DecodeWindow], usable_tokens: float) -> _Steps:
    """Return the law of Dynamo's mocker, base + d*u + e*u^2 of the share u of the pool held, fitted to the rows."""
    if len(rows) < MIN_DECODE_WINDOWS:
        raise StudyError(f"decode steps are not fitted: {len(rows)} windows, {MIN_DECODE_WINDOWS} are needed")
    share = np.array([each.kv_tokens for each in rows]) / usable_tokens
    target = np.array([each.step_s for each in rows])
    design = np.stack([np.ones(len(share)), share, share * share], axis=1)
    found = solve(design, target, 1.0 / target**2).estimate
    values = dict(zip(UTILIZATION_NAMES, found.tolist(), strict=True))
    zero = {"decode_per_sequence_s": 0.0, "decode_per_token_s": 0.0, "curve": UTILIZATION}
    return _Steps({**values, **zero}, tuple(rows), design @ found, ())


def _prefill_level(windows: Sequence[PrefillWindow], profile: ServiceProfile) -> float:
    known = [each for each in windows if each.request_count]
    if not known:
        return 1.0
    return sum(each.busy_s for each in known) / sum(predicted_prefill_s(each, profile) for each in known)


def fitted(target: Target, recordings: Sequence[Recording], law: str = LINEAR) -> Fitted:
    """
    Return the fit of a load's rounds; `law` is LINEAR, what KVScope learns of every engine, or UTILIZATION.

    Raises:
        StudyError: They tell too little.
    """
    budget = PREFILL_BUDGET_TOKENS[target.name]
    role = Role.DECODE if target.is_disaggregated else Role.UNIFIED
    service = _service(recordings, role, budget)
    prefill = _service(recordings, Role.PREFILL, budget) if target.is_disaggregated else service
    rows = _steps(recordings, role)
    if law == UTILIZATION:
        last = next(readings[-1] for readings in recordings[-1].of(role).values())
        steps = _utilization_steps(rows, float(last.usable_tokens or 1.0))
    else:
        steps = _linear_steps(service, rows)
    prompts = prefill.prefill
    if target.dialect == "dynamo":
        prompts = prompt_fit([each for recording in recordings for each in recording.requests])
    if not prompts.is_made:
        raise StudyError(f"prompts are not fitted: {'; '.join(prompts.notes)}")
    values: dict[str, Any] = {**steps.values, **{each.name: each.value or 0.0 for each in prompts.coefficients}}
    bandwidth, notes = WIDE_BYTES_PER_S, (*steps.notes, *prompts.notes)
    if target.is_disaggregated and target.dialect != "dynamo":
        values["transfer_latency_s"] = prefill.transfer.of("transfer_latency_s").value or 0.0
        bandwidth = prefill.bandwidth_bytes_per_s or WIDE_BYTES_PER_S
        notes += prefill.transfer.notes
    profile = replace(service.profile([prefill]), name="fitted", **{"transfer_latency_s": 0.0, **values})
    counts = np.array([each.step_count for each in steps.rows])
    took = np.array([each.step_s for each in steps.rows])
    decode_level = float((counts * took).sum() / (counts * steps.predicted_s).sum())
    counted = [recording.counted(Role.PREFILL, Role.UNIFIED).values() for recording in recordings]
    whole = [each.prefill for readings in counted for each in _windows(readings) if each.prefill]
    prefill_level = _prefill_level(whole, profile)
    shown = [name for name in (*DECODE_NAMES, *UTILIZATION_NAMES, *PREFILL_NAMES) if values.get(name)]
    return Fitted(
        profile=replace(
            profile,
            **{name: getattr(profile, name) * decode_level for name in (*DECODE_NAMES, *UTILIZATION_NAMES[1:])},
            **{name: getattr(profile, name) * prefill_level for name in PREFILL_NAMES},
        ),
        coefficients=tuple((name, float(values[name])) for name in dict.fromkeys(shown)),
        step_count=len(steps.rows),
        step_scatter_ratio=float(np.median(np.abs(steps.predicted_s / took - 1.0))),
        decode_level_ratio=decode_level,
        prefill_level_ratio=prefill_level,
        bandwidth_bytes_per_s=bandwidth,
        notes=tuple(dict.fromkeys(notes)),
    )


def _reserve_tokens(target: Target, last: PoolReading, seen: Sequence[Seen]) -> int:
    """
    Return what admission keeps back for each request it has let in, as the simulation has it: the same for all.

    One SGLang server lets a request in when prompt and whole output fit beside LEAST_RATIO of what the running ones
    may still generate; in a full pool of n requests half way through that is (output + n * ratio * output / 2) in
    all, and is spread over these and the new one.
    """
    if target.name == "sglang-2p2d":
        return RESERVED_DECODE_TOKENS
    if target.name != "sglang":
        return 0
    output = float(np.mean([each.output_tokens for each in seen]))
    prompt = float(np.mean([each.prompt_tokens for each in seen]))
    count = max(float(last.usable_tokens or 0.0) / (prompt + output / 2.0), 1.0)
    return round((output + count * LEAST_RATIO * output / 2.0) / (count + 1.0))


def _pool(target: Target, fit: Fitted, last: PoolReading, seen: Sequence[Seen]) -> PoolSpec:
    role = target.workers[last.worker_id][1]
    return PoolSpec(
        worker=last.worker_id,
        role=role,
        usable_tokens=int(last.usable_tokens or 0),
        block_size_tokens=max(int(last.block_size_tokens or 1), 1),
        profile=fit.profile,
        max_running_count=int(last.max_running_count or 256),
        prefill_budget_tokens=PREFILL_BUDGET_TOKENS[target.name],
        reserve_tokens=0 if role is Role.PREFILL else _reserve_tokens(target, last, seen),
        bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s,
        is_prefix_cached=False,
    )


def replayed(target: Target, fit: Fitted, recording: Recording) -> RunResult:
    """
    Return the simulation of the requests a client sent, on pools like the engine's.

    Prompts of the study share nothing, so a router that looks for prefixes finds none and balances.

    Raises:
        StudyError: A worker never said how much it holds.
    """
    seen = recording.requests
    outputs = np.array([each.output_tokens for each in seen], np.int64)
    lasts = [readings[-1] for readings in recording.of(*Role).values()]
    missing = sorted(set(target.workers) - {each.worker_id for each in lasts if each.usable_tokens})
    if missing:
        raise StudyError(f"{', '.join(missing)} never said how much they hold: was the engine up while recording?")
    fleet = FleetSpec(
        pools=tuple(_pool(target, fit, each, seen) for each in lasts),
        handshake="after-prefill" if target.dialect == "dynamo" else "before-prefill",
        retraction="youngest" if target.dialect == "dynamo" else "fewest-output",
    )
    traffic = TrafficArrays(
        arrival_s=np.array([each.arrival_s for each in seen]),
        prompt_tokens=np.array([each.prompt_tokens for each in seen], np.int64),
        output_tokens=outputs,
    )
    options = SimulationOptions(sample_period_s=SAMPLE_PERIOD_S)
    return simulate(traffic, fleet, "lowest-utilization", options=options)

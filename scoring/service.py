"""
How long work takes: prefill, a decode step, a KV transfer. One place for the formulas that score live pools,
drive the simulation and pace the demo fleet.

Every function is elementwise over floats or numpy arrays and uses arithmetic and numpy ufuncs only, so that the
simulation can compile the same function and there is no second copy.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from scoring.model import FloatArray
from scoring.units import MILLISECONDS_PER_S

Number = TypeVar("Number", float, FloatArray)

CURVES: Final = ("linear", "dynamo-polynomial")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProfile:
    """
    Coefficients of one model on one kind of worker, in seconds and tokens.

    Prefill of one chunk of n new tokens behind `context` computed or cached ones:
    `prefill_base_s + prefill_per_token_s * n + prefill_per_token2_s * (n^2 + 2 * n * context)`, which makes
    chunks add up to `a + b*N + c*N^2` for a whole prompt but for the base.
    Decode step of batch B over sumKV tokens: `decode_base_s + decode_per_sequence_s*B + decode_per_token_s*sumKV`.
    Source of the form: fits to AIConfigurator's silicon tables, and DistServe's simulator.

    Attributes:
        name: Stable kebab-case name.
        source: Where the coefficients come from, with the error stated there.
        transfer_latency_s: Fixed cost of one hand-over.
        bytes_per_token: KV bytes of one token over all GPUs behind a rank.
        curve: "linear" as above, or "dynamo-polynomial" for parity with Dynamo's mocker: prefill takes the tokens of
            a batch together, and a decode step follows the pool's utilization u = sumKV / usable alone.
        decode_per_utilization_s: Factor of u in a decode step.
        decode_per_utilization2_s: Factor of u^2 in a decode step.
        large_batch_count: From this batch size on the `large_*` coefficients hold; 0 is never (DistServe has two fits).
        large_decode_base_s: Base of a decode step of a large batch.
        large_decode_per_sequence_s: Factor of B of a large batch.
        large_decode_per_token_s: Factor of sumKV of a large batch.
    """

    name: str
    source: str
    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_token2_s: float
    decode_base_s: float
    decode_per_sequence_s: float
    decode_per_token_s: float
    transfer_latency_s: float = 0.0
    bytes_per_token: float = 131072.0
    curve: str = "linear"
    decode_per_utilization_s: float = 0.0
    decode_per_utilization2_s: float = 0.0
    large_batch_count: int = 0
    large_decode_base_s: float = 0.0
    large_decode_per_sequence_s: float = 0.0
    large_decode_per_token_s: float = 0.0


def prefill_s(
    new_tokens: Number, context_tokens: Number, base_s: Number, per_token_s: Number, per_token2_s: Number
) -> Number:
    """Return seconds to compute `new_tokens` behind `context_tokens` already in the cache."""
    return (
        base_s + per_token_s * new_tokens + per_token2_s * (new_tokens * new_tokens + 2.0 * new_tokens * context_tokens)
    )


def decode_step_s(
    batch_count: Number, kv_tokens: Number, base_s: Number, per_sequence_s: Number, per_token_s: Number
) -> Number:
    """Return seconds of one decode step of `batch_count` sequences that read `kv_tokens` in all."""
    return base_s + per_sequence_s * batch_count + per_token_s * kv_tokens


def decode_run_s(
    step_count: Number,
    batch_count: Number,
    kv_tokens: Number,
    base_s: Number,
    per_sequence_s: Number,
    per_token_s: Number,
    per_token2_s: Number,
) -> Number:
    """
    Return seconds of `step_count` decode steps of an unchanged batch, in closed form.

    The first step reads `kv_tokens` in all and each later one `batch_count` more:
    the sum over i < k of `a + b*B + c*(KV + i*B) + d*(KV + i*B)^2`.
    """
    k = step_count
    pairs = k * (k - 1.0) / 2.0
    squares = pairs * (2.0 * k - 1.0) / 3.0
    grown = k * kv_tokens + batch_count * pairs
    grown2 = k * kv_tokens * kv_tokens + 2.0 * kv_tokens * batch_count * pairs + batch_count * batch_count * squares
    return k * (base_s + per_sequence_s * batch_count) + per_token_s * grown + per_token2_s * grown2


def transfer_s(size_bytes: Number, bandwidth_bytes_per_s: Number, latency_s: Number, queued_bytes: Number) -> Number:
    """Return seconds until `size_bytes` have arrived behind `queued_bytes` on a path of that effective bandwidth."""
    return latency_s + (size_bytes + queued_bytes) / np.maximum(bandwidth_bytes_per_s, 1.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def _fit(
    name: str,
    prefill_ms: tuple[float, float, float],
    decode_ms: tuple[float, float, float],
    source: str,
    bytes_per_token: float,
) -> ServiceProfile:
    """Return the linear profile of a published fit given in milliseconds: (a, b, c) of N and of (1, B, sumKV)."""
    return ServiceProfile(
        name=name,
        source=source,
        prefill_base_s=prefill_ms[0] / MILLISECONDS_PER_S,
        prefill_per_token_s=prefill_ms[1] / MILLISECONDS_PER_S,
        prefill_per_token2_s=prefill_ms[2] / MILLISECONDS_PER_S,
        decode_base_s=decode_ms[0] / MILLISECONDS_PER_S,
        decode_per_sequence_s=decode_ms[1] / MILLISECONDS_PER_S,
        decode_per_token_s=decode_ms[2] / MILLISECONDS_PER_S,
        bytes_per_token=bytes_per_token,
    )


def _fit_source(errors: str) -> str:
    return f"our fit to AIConfigurator 0.12.0's vLLM 0.24 silicon tables; error against the tables: {errors}"


_ALL = (
    _fit(
        "llama-3.1-8b-h100-tp1",
        (3.31, 0.018697, 4.647e-7),
        (6.394, 0.010914, 4.2025e-5),
        _fit_source("prefill 4.0 % (at most 8.2), decode 2.8 % (at most 7.7)"),
        131072.0,
    ),
    _fit(
        "llama-3.1-8b-h200-tp1",
        (2.157, 0.019165, 4.677e-7),
        (4.936, 0.011786, 2.9624e-5),
        _fit_source("prefill 3.3 %, decode 2.3 %"),
        131072.0,
    ),
    _fit(
        "llama-3-70b-h100-tp4",
        (7.972, 0.059621, 5.677e-7),
        (15.02, 0.033422, 2.6357e-5),
        _fit_source("prefill 2.8 %, decode 1.3 %"),
        327680.0,
    ),
    _fit(
        "llama-3-70b-h200-tp4",
        (6.262, 0.058941, 7.037e-7),
        (12.152, 0.03299, 1.7898e-5),
        _fit_source("prefill 2.5 %, decode 2.3 %"),
        327680.0,
    ),
    _fit(
        "qwen3-32b-h100-tp2",
        (8.283, 0.046767, 9.589e-7),
        (13.59, 0.026233, 4.2778e-5),
        _fit_source("prefill 3.8 %, decode 2.3 %"),
        262144.0,
    ),
    ServiceProfile(
        name="dynamo-mocker",
        source="Dynamo's mocker (perf_model.rs): 4.209989e-7 N^2 + 1.518344e-2 N + 16.50142 ms of N new tokens in the "
        "batch; -25.74 u^2 + 54.01 u + 5.74 ms, blind to batch size: for parity, not physics",
        prefill_base_s=16.50142e-3,
        prefill_per_token_s=1.518344e-5,
        prefill_per_token2_s=4.209989e-10,
        decode_base_s=5.74e-3,
        decode_per_sequence_s=0.0,
        decode_per_token_s=0.0,
        decode_per_utilization_s=54.01e-3,
        decode_per_utilization2_s=-25.74e-3,
        bytes_per_token=70272.0,
        curve="dynamo-polynomial",
    ),
    ServiceProfile(
        name="llmd-inference-sim",
        source="llm-d inference-sim's form, overhead + uncached * t and (out - 1) * ITL, with its sample values "
        "(100 ms, 0.2 ms a token, 30 ms a step): chosen, not measured",
        prefill_base_s=0.1,
        prefill_per_token_s=2e-4,
        prefill_per_token2_s=0.0,
        decode_base_s=0.03,
        decode_per_sequence_s=0.0,
        decode_per_token_s=0.0,
    ),
    ServiceProfile(
        name="distserve-opt-13b-a100",
        source="DistServe's simulator, OPT-13B TP1 on A100: prefill 18.10 + .1019 n + 7.12e-6 n^2 ms, decode "
        "19.93 + 6.27e-4 sumKV + .0385 B ms, and 7.17 + 5.80e-4 sumKV + .158 B ms from batch 95",
        prefill_base_s=18.10e-3,
        prefill_per_token_s=0.1019e-3,
        prefill_per_token2_s=7.12e-9,
        decode_base_s=19.93e-3,
        decode_per_sequence_s=0.0385e-3,
        decode_per_token_s=6.27e-7,
        large_batch_count=95,
        large_decode_base_s=7.17e-3,
        large_decode_per_sequence_s=0.158e-3,
        large_decode_per_token_s=5.80e-7,
        bytes_per_token=819200.0,
    ),
)

PROFILES: Final[Mapping[str, ServiceProfile]] = MappingProxyType({profile.name: profile for profile in _ALL})
"""Published profiles by name."""


def profile_from_mapping(values: Mapping[str, object]) -> ServiceProfile:
    """
    Return the profile that a JSON file's mapping describes; keys are the fields of `ServiceProfile`.

    Raises:
        ValueError: naming every key that is unknown, missing, not a number, negative or not finite.
    """
    known = {spec.name: spec for spec in fields(ServiceProfile)}
    problems = [f"{name!r} is no field (known: {', '.join(known)})" for name in values if name not in known]
    taken: dict[str, Any] = {}
    for name, spec in known.items():
        if name not in values:
            if spec.default is MISSING:
                problems.append(f"{name} is missing")
            continue
        value = values[name]
        if spec.type in (str, "str"):
            if not isinstance(value, str) or not value:
                problems.append(f"{name} is {value!r}: must be a text")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            problems.append(f"{name} is {value!r}: must be a finite number")
        elif value < 0 and name != "decode_per_utilization2_s":
            problems.append(f"{name} is {value!r}: must not be negative")
        taken[name] = value
    if taken.get("curve", "linear") not in CURVES:
        problems.append(f"curve is {taken['curve']!r}: must be one of {', '.join(CURVES)}")
    if problems:
        raise ValueError("service profile: " + "; ".join(problems))
    return ServiceProfile(**taken)

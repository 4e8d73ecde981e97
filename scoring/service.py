"""
How long work takes: prefill, a decode step, a KV transfer. One place for the formulas that score live pools,
drive the simulation and pace the demo fleet.

Every function is elementwise over floats or numpy arrays and uses arithmetic and numpy ufuncs only, so that the
simulation can compile the same function and there is no second copy.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scoring.model import FloatArray

Number = TypeVar("Number", float, FloatArray)


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
        curve: "linear" as above, or "dynamo-polynomial" for parity with Dynamo's mocker.
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


def transfer_s(size_bytes: Number, bandwidth_bytes_per_s: Number, latency_s: Number, queued_bytes: Number) -> Number:
    """Return seconds until `size_bytes` have arrived behind `queued_bytes` on a path of that effective bandwidth."""
    return latency_s + (size_bytes + queued_bytes) / np.maximum(bandwidth_bytes_per_s, 1.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any

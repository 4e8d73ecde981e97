"""
The terms of the pair cost, elementwise: what a live decision, a what-if and the compiled simulation all evaluate.

Every function takes and returns floats or numpy arrays that broadcast, and uses arithmetic and numpy ufuncs only, so
that the simulation compiles the very same function. NaN means unknown and stays NaN; inf means unbounded. Who turns
an unknown term into a stated fallback is `policy.joint`, never a formula here.

`PrefillCompute` is `service.prefill_s` and `TransferTime` is `service.transfer_s`: one formula, one place. Times are
seconds from now; `start_s` is the moment decode can start. Written out in docs/scoring.md.

Read next: `reserve`, `admission`, `slo`, then `policy.joint`.
"""

from typing import Final, TypeVar

import numpy as np

from scoring.model import FloatArray

Number = TypeVar("Number", float, FloatArray)

RATE_FLOOR_TOKENS_PER_S: Final = 1.0
"""Below this a prefill pool computes nothing one could wait for (chosen; field case P14 computed 1 token/s)."""
CONCURRENCY_FLOOR: Final = 1e-3
"""A link busy less than a thousandth of the time says nothing about its speed (chosen)."""
LOGISTIC_PER_SIGMA: Final = 1.702
"""Logistic slope that follows the normal distribution function within 0.0095 (Camilli 1994)."""
EXPONENT_CAP: Final = 40.0
"""exp(40) is finite and 1/(1 + exp(40)) is 4e-18: nothing is lost by stopping there."""

TERMS: Final = (
    "prefill_wait",
    "prefill_compute",
    "transfer",
    "decode_wait",
    "kv_pressure",
    "slo_risk",
    "prefix_benefit",
)
"""Names of the seven terms in the order of docs/scoring.md; the last one is subtracted."""


def prefill_wait_s(queued_uncached_tokens: Number, prefill_tokens_per_s: Number) -> Number:
    """Return seconds until the prompt tokens ahead are computed; inf where the pool computes next to nothing."""
    wait_s = queued_uncached_tokens / np.maximum(prefill_tokens_per_s, RATE_FLOOR_TOKENS_PER_S)
    return np.where(prefill_tokens_per_s < RATE_FLOOR_TOKENS_PER_S, np.inf, wait_s)  # type: ignore[return-value] # numpy widens


def linear_prefill_s(
    prefill_tokens_per_s: Number, mean_prompt_tokens: Number, base_s: Number, per_token2_s: Number
) -> Number:
    """
    Return the per-token coefficient with which `service.prefill_s` gives the measured rate at the mean prompt.

    rate = M / (a + b*M + c*M^2) solved for b, and never below a tenth of 1/rate, so that a profile that explains
    more than the measured time cannot make prompts free.
    """
    per_token_s = 1.0 / np.maximum(prefill_tokens_per_s, RATE_FLOOR_TOKENS_PER_S)
    mean_tokens = np.maximum(mean_prompt_tokens, 1.0)
    return np.maximum(per_token_s - base_s / mean_tokens - per_token2_s * mean_tokens, 0.1 * per_token_s)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def effective_bandwidth_bytes_per_s(
    line_bytes_per_s: Number, moved_bytes_per_s: Number, mean_transfer_count: Number
) -> Number:
    """
    Return what a new transfer can count on: the line rate, or less where the volume counter proves less.

    `moved / min(transfers under way, 1)` is the speed while the link was busy (Little's law): a link that is idle most
    of the time moves few bytes and is not slow for it. One unknown side leaves the other; both unknown is NaN.
    """
    busy_ratio = np.minimum(np.maximum(mean_transfer_count, CONCURRENCY_FLOOR), 1.0)
    return np.fmin(line_bytes_per_s, moved_bytes_per_s / busy_ratio)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def projected_tokens(
    committed_tokens: Number, net_tokens_per_s: Number, horizon_s: Number, usable_tokens: Number
) -> Number:
    """Return committed(t) = committed + net * t, bounded by 0 and usable (committed beyond usable stays)."""
    upper_tokens = np.maximum(usable_tokens, committed_tokens)
    return np.minimum(np.maximum(committed_tokens + net_tokens_per_s * horizon_s, 0.0), upper_tokens)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def utilization_ratio(committed_tokens: Number, demand_tokens: Number, usable_tokens: Number) -> Number:
    """Return (committed + demand) / usable; may exceed 1."""
    return (committed_tokens + demand_tokens) / np.maximum(usable_tokens, 1.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def room_wait_s(demand_tokens: Number, available_tokens: Number, net_tokens_per_s: Number, start_s: Number) -> Number:
    """
    Return seconds after `start_s` until available(t) = available - net * t covers the demand.

    0 where it does at the start; inf where it does not and nothing is being returned on balance.
    """
    short_tokens = np.maximum(demand_tokens - available_tokens + net_tokens_per_s * start_s, 0.0)
    drain_tokens_per_s = np.maximum(-net_tokens_per_s, 0.0)
    wait_s = short_tokens / np.maximum(drain_tokens_per_s, 1e-9)
    return np.where((short_tokens > 0.0) & (drain_tokens_per_s <= 1e-9), np.inf, wait_s)  # type: ignore[return-value] # numpy widens


def slot_wait_s(
    running_count: Number, ahead_count: Number, max_running_count: Number, finished_per_s: Number
) -> Number:
    """
    Return seconds from now until the batch has a slot for one more behind `ahead_count` waiting requests.

    0 where a slot is free; inf where none is and nothing finishes.
    """
    short_count = np.maximum(running_count + ahead_count + 1.0 - max_running_count, 0.0)
    wait_s = short_count / np.maximum(finished_per_s, 1e-9)
    bounded_s = np.where((short_count > 0.0) & (finished_per_s <= 1e-9), np.inf, wait_s)
    return np.where(short_count <= 0.0, 0.0, bounded_s)  # type: ignore[return-value] # numpy widens


def decode_wait_s(room_s: Number, slot_s: Number, start_s: Number, first_step_s: Number) -> Number:
    """Return seconds after `start_s` until the first token: room and slot are waited for together, then one step."""
    return np.maximum(room_s, np.maximum(slot_s - start_s, 0.0)) + first_step_s  # type: ignore[no-any-return] # numpy types ufuncs as Any


def kv_pressure_ratio(projected_ratio: Number, reserve_ratio: Number) -> Number:
    """
    Return reserve / (1 - U) - 1 where U reaches into the reserve, 0 where it does not, inf from U = 1 on.

    Convex and without bound towards 1, zero while the reserve is untouched. The shape is the
    barrier of smg's least-load score, k / (1 - k), moved to the edge of the reserve.
    """
    left_ratio = 1.0 - projected_ratio
    barrier = np.maximum(reserve_ratio / np.maximum(left_ratio, 1e-12) - 1.0, 0.0)
    return np.where(left_ratio <= 1e-12, np.inf, barrier)  # type: ignore[return-value] # numpy widens


def breach_probability(predicted_s: Number, budget_s: Number, error_ratio: Number) -> Number:
    """
    Return the probability that the actual time exceeds the budget when `actual = predicted * (1 + e)`.

    `e` is logistic with mean 0 and standard deviation `error_ratio` (calibration's relative residual spread).
    1 for an unbounded prediction, near 0 for a prediction of next to nothing.
    """
    per_ratio = LOGISTIC_PER_SIGMA / np.maximum(error_ratio, 1e-6)
    exponent = np.minimum((budget_s / np.maximum(predicted_s, 1e-9) - 1.0) * per_ratio, EXPONENT_CAP)
    return 1.0 / (1.0 + np.exp(exponent))  # type: ignore[no-any-return] # numpy types ufuncs as Any


def slo_risk_ratio(ttft_breach_ratio: Number, tpot_breach_ratio: Number) -> Number:
    """Return the probability that at least one of two independent promises is broken."""
    return tpot_breach_ratio + ttft_breach_ratio * (1.0 - tpot_breach_ratio)


def prefix_benefit_s(whole_prefill_s: Number, uncached_prefill_s: Number, hit_transfer_s: Number) -> Number:
    """
    Return the seconds a hit saves: prefill on the prefill end, and transfer of what the decode end already holds.

    With equal weights on compute, transfer and benefit the pair is priced at exactly the uncached work.
    """
    return whole_prefill_s - uncached_prefill_s + hit_transfer_s


def pair_score(
    prefill_wait: Number,
    prefill_compute: Number,
    transfer: Number,
    decode_wait: Number,
    kv_pressure: Number,
    slo_risk: Number,
    prefix_benefit: Number,
    w1: float,
    w2: float,
    w3: float,
    w4: float,
    w5: float,
    w6: float,
    w7: float,
) -> Number:
    """
    Return w1*PrefillWait + w2*PrefillCompute + w3*TransferTime + w4*DecodeWait + w5*ProjectedKVPressure + w6*SloRisk
    - w7*PrefixBenefit; lower is better.

    Terms without unit (seconds over the class's TTFT budget), or terms in seconds with weights divided by the budget.
    What depends on one end only is added first, so that whole matrices meet late.
    """
    prefill = w1 * prefill_wait + w2 * prefill_compute - w7 * prefix_benefit
    decode = w5 * kv_pressure + w4 * decode_wait
    return prefill + decode + w3 * transfer + w6 * slo_risk

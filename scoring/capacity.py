"""
From what a source said to where the capacity is: the composition of a pool, each part with provenance.

`_columns` is the only place the formulas live. It works elementwise on arrays with NaN for unknown, so that a live
pool (`compose`), a fleet (`compose_many`) and a history (`compose_history`) cannot disagree. Where only bounds
follow, the point is unknown, the bounds are given and the part that may belong to either side is unattributed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from scoring.model import Composition, Figure, FloatArray, PoolHistory, PoolReading, Provenance, Role

SGLANG_RESERVED_DECODE_TOKENS: Final = 512.0
"""`--num-reserved-decode-tokens` of SGLang, engine default: kept back for every request a decode worker admitted."""

WORDS: Final = tuple(f.name for f in fields(Composition))

_INPUTS: Final = [
    "usable_tokens",
    "used_tokens",
    "allocated_tokens",
    "pending_total_tokens",
    "arrived_tokens",
    "prefix_tokens",
    "free_tokens",
    "free_or_prefix_tokens",
    "in_flight_tokens",
    "offloaded_tokens",
    "block_size_tokens",
    "running_count",
    "waiting_count",
    "queue_main_count",
    "queue_inflight_count",
    "queue_prealloc_count",
    "queue_transfer_count",
    "queue_retracted_count",
    "prealloc_ready_tokens",
    "waiting_uncached_tokens",
    "reserved_per_request_tokens",
    "prompt_tokens_total",
    "finished_total",
]

_M, _D, _E, _U = Provenance.MEASURED, Provenance.DERIVED, Provenance.ESTIMATED, Provenance.UNKNOWN

# Case -> provenance and reason, per part; `_columns` says which case each element is.
_CASES: Final[Mapping[str, tuple[tuple[Provenance, str], ...]]] = {
    "usable_tokens": ((_U, "the source does not say what the pool can hold"), (_M, "reported by the engine")),
    "used_tokens": (
        (_U, "the source gives no credible figure for tokens held"),
        (_M, "held and not evictable, reported by the engine"),
        (_D, "allocated less evictable prefix"),
        (_D, "usable less what is free or evictable"),
    ),
    "in_flight_tokens": (
        (_U, "the source does not say what is still travelling"),
        (_M, "reported by the engine"),
        (_D, "used less arrived (num_used_tokens - num_active_tokens); the retracted queue is empty"),
        (_D, "used less arrived plus the retracted part, which is the whole backlog: the prealloc queue is empty"),
        (_E, "bounds: retracted and preallocating requests share the backlog, the engine does not say how"),
        (_D, "no request is between prefill and decode"),
        (_E, "requests between prefill and decode x mean prompt"),
        (_D, "a unified worker hands nothing over"),
        (_U, "the source does not report transfers; what travels is part of what is held"),
    ),
    "active_tokens": (
        (_U, "held tokens are not told apart from travelling ones"),
        (_D, "used less in flight"),
        (_E, "used less the estimate of what is in flight"),
        (_E, "bounds: used less the bounds of what is in flight"),
        (_E, "all that is held: transfers are not reported and would be part of it"),
    ),
    "prefix_tokens": (
        (_U, "the source does not tell evictable prefix from free"),
        (_M, "evictable prefix, reported by the engine"),
        (_D, "free or evictable together, less free"),
        (_E, "at most what is not used: the reported prefix is older than the used figure and no longer fits"),
    ),
    "free_tokens": (
        (_U, "the source does not tell free from evictable prefix"),
        (_M, "reported by the engine"),
        (_D, "usable less used less prefix"),
        (_E, "nothing: the older prefix figure fills all that is not used"),
    ),
    "free_or_prefix_tokens": (
        (_U, "usable or used is unknown"),
        (_D, "free plus prefix"),
        (_D, "usable less used: free and evictable together"),
        (_M, "reported by the engine"),
    ),
    "unattributed_tokens": (
        (_U, "the parts are not all known"),
        (_D, "every token is attributed"),
        (_D, "usable less every part the engine names"),
        (_D, "used, and the engine does not say by what"),
        (_D, "active or in flight: the width of the bounds"),
    ),
    "fragmentation_tokens": (
        (_U, "not visible: the engine counts whole blocks as held"),
        (_D, "blocks of one token leave none part empty"),
    ),
    "available_tokens": ((_U, "usable or used is unknown"), (_D, "free plus prefix: usable less used")),
    "reserved_tokens": (
        (_U, "admitted requests are not reported"),
        (_D, "our leases; the engine reports no reserve of its own"),
        (_D, "reserve per request x admitted requests (running, in transfer, arrived) plus our leases"),
        (_E, "engine default of 512 tokens x admitted requests plus our leases; /server_info would say"),
        (_D, "our leases; nothing is admitted"),
    ),
    "committed_tokens": (
        (_U, "used or reserved is unknown"),
        (_D, "used plus reserved"),
        (_E, "used plus reserved, which is estimated"),
    ),
    "queued_tokens": (
        (_U, "the need of waiting requests is not reported"),
        (_D, "need of waiting requests (num_total_tokens - num_used_tokens)"),
        (_D, "nothing is waiting"),
        (_E, "at least the uncached prompt tokens waiting"),
        (_U, "requests wait, yet num_total_tokens - num_used_tokens counts no need for them"),
    ),
    "offloaded_tokens": ((_U, "no host tier reported"), (_M, "held on the host tier, cached copies included")),
}


@dataclass(frozen=True, slots=True)
class _Columns:
    """Values of every word, the case of every word, and bounds of the two parts that may have them. Shape (n,)."""

    values: dict[str, FloatArray]
    cases: dict[str, FloatArray]
    low: dict[str, FloatArray]
    high: dict[str, FloatArray]


def _columns(
    inputs: Mapping[str, FloatArray],
    *,
    is_decode: FloatArray,
    is_prefill: FloatArray,
    is_unified: FloatArray,
    lease_tokens: FloatArray,
    default_reserve_tokens: FloatArray,
    mean_prompt_tokens: FloatArray,
) -> _Columns:
    """Return the composition of every element; masks are 1.0 or 0.0, unknown is NaN. Source: DESIGN section 4."""
    nan = np.full_like(lease_tokens, np.nan)
    zero = np.zeros_like(nan)
    column = {name: inputs.get(name, nan) for name in _INPUTS}
    where, known = np.where, np.isfinite
    decode, prefill, unified = is_decode > 0, is_prefill > 0, is_unified > 0
    value: dict[str, FloatArray] = {}
    case: dict[str, FloatArray] = {}

    usable = where(column["usable_tokens"] > 0, column["usable_tokens"], nan)
    value["usable_tokens"], case["usable_tokens"] = usable, where(known(usable), 1, 0)

    prefix_said, free_said = column["prefix_tokens"], column["free_tokens"]
    from_allocated = np.maximum(column["allocated_tokens"] - prefix_said, 0.0)
    from_available = np.maximum(usable - column["free_or_prefix_tokens"], 0.0)
    used = column["used_tokens"]
    case["used_tokens"] = where(known(used), 1, where(known(from_allocated), 2, where(known(from_available), 3, 0)))
    used = where(known(used), used, where(known(from_allocated), from_allocated, from_available))
    value["used_tokens"] = used

    backlog = np.maximum(column["pending_total_tokens"] - used, 0.0)
    waiting = column["waiting_count"]
    queue_mean = where((waiting > 0) & (backlog > 0), backlog / np.maximum(waiting, 1.0), nan)
    life_mean = column["prompt_tokens_total"] / np.maximum(column["finished_total"], 1.0)
    life_mean = where(column["finished_total"] > 0, life_mean, nan)
    mean = where(known(mean_prompt_tokens), mean_prompt_tokens, where(known(queue_mean), queue_mean, life_mean))

    # In flight. On decode, arrived = used + retracted - in transfer, all in tokens (sglang.md 1.4).
    travelling = where(decode, column["queue_transfer_count"], column["queue_inflight_count"])
    difference = where(decode, used - column["arrived_tokens"], nan)
    retracted, prealloc = column["queue_retracted_count"], column["queue_prealloc_count"]
    ready = np.nan_to_num(column["prealloc_ready_tokens"])
    by_count = np.minimum(travelling * mean, where(known(used), used, np.inf))
    said = column["in_flight_tokens"]
    exact = np.clip(difference, 0.0, where(known(used), used, np.inf))
    with_backlog = np.clip(difference + backlog, 0.0, where(known(used), used, np.inf))
    low = np.clip(difference + retracted, 0.0, used)
    high = np.clip(difference + np.maximum(backlog - np.maximum(ready, np.nan_to_num(prealloc)), 0.0), low, used)
    conditions = [
        known(said),
        unified,
        decode & known(exact) & (retracted == 0),
        (decode | prefill) & (travelling == 0),
        decode & known(with_backlog) & (retracted > 0) & (prealloc == 0),
        decode & known(high) & (retracted > 0),
        (decode | prefill) & known(by_count),
        ~known(travelling) & ~(prealloc > 0),
    ]
    picks = [1, 7, 2, 5, 3, 4, 6, 8]
    in_case = np.select(conditions, picks, 0)
    in_flight = np.select(conditions, [said, zero, exact, zero, with_backlog, nan, by_count, nan], nan)
    is_bounded = in_case == 4
    value["in_flight_tokens"], case["in_flight_tokens"] = in_flight, in_case
    is_unreported = in_case == 8
    value["active_tokens"] = np.maximum(used - where(is_unreported, 0.0, in_flight), 0.0)
    active_known = known(value["active_tokens"])
    case["active_tokens"] = np.select([is_bounded, ~active_known, is_unreported, in_case == 6], [3, 0, 4, 2], 1)
    bounds_low = {
        "in_flight_tokens": where(is_bounded, low, nan),
        "active_tokens": where(is_bounded, used - high, where(is_unreported, 0.0 * used, nan)),
    }
    bounds_high = {
        "in_flight_tokens": where(is_bounded, high, nan),
        "active_tokens": where(is_bounded, used - low, where(is_unreported, used, nan)),
    }

    # What is not held.
    available = np.maximum(usable - used, 0.0)
    prefix_by_sum = where(
        known(column["free_or_prefix_tokens"]) & known(free_said), column["free_or_prefix_tokens"] - free_said, nan
    )
    prefix = where(known(prefix_said), prefix_said, where(prefix_by_sum >= 0, prefix_by_sum, nan))
    is_too_much = prefix > available
    case["prefix_tokens"] = where(is_too_much, 3, where(known(prefix_said), 1, where(known(prefix), 2, 0)))
    prefix = where(is_too_much, available, prefix)  # An engine evicts only once nothing is free.
    rest = available - prefix
    fits = free_said <= rest
    free = where(known(rest), where(fits, free_said, rest), where(free_said <= available, free_said, nan))
    case["free_tokens"] = where(known(free), where(is_too_much, 3, where(fits | ~known(rest), 1, 2)), 0)
    value["prefix_tokens"], value["free_tokens"] = prefix, free
    both = free + prefix
    free_or_prefix = where(known(both), both, where(known(available), available, column["free_or_prefix_tokens"]))
    case["free_or_prefix_tokens"] = where(
        known(both), 1, where(known(available), 2, where(known(free_or_prefix), 3, 0))
    )
    value["free_or_prefix_tokens"] = free_or_prefix
    # What no part names may not be free: with both parts known, their sum is what can be drawn on.
    value["available_tokens"] = where(known(both), np.minimum(available, both), available)
    case["available_tokens"] = where(known(available), 1, 0)

    block = column["block_size_tokens"]
    value["fragmentation_tokens"] = where(block == 1, zero, nan)
    case["fragmentation_tokens"] = where(block == 1, 1, 0)

    unnamed = np.maximum(available - free_or_prefix, 0.0)
    unsplit = where(in_case == 0, used, where(is_bounded, high - low, zero))
    unattributed = unnamed + unsplit
    value["unattributed_tokens"] = unattributed
    case["unattributed_tokens"] = where(
        known(unattributed),
        where((in_case == 0) & (used > 0), 3, where(is_bounded, 4, where(unnamed > 0, 2, 1))),
        0,
    )

    # Promised on top of what is held.
    per_request = column["reserved_per_request_tokens"]
    reserve = where(known(per_request), per_request, where(decode, default_reserve_tokens, nan))
    arrived_waiting = np.nan_to_num(column["queue_main_count"])
    admitted = column["running_count"] + np.nan_to_num(column["queue_transfer_count"]) + arrived_waiting
    promised = where(decode & known(reserve), reserve * admitted, zero)
    value["reserved_tokens"] = promised + lease_tokens
    case["reserved_tokens"] = where(
        ~known(value["reserved_tokens"]),
        0,
        where(decode & known(reserve), where(admitted == 0, 4, where(known(per_request), 2, 3)), 1),
    )
    value["committed_tokens"] = used + value["reserved_tokens"]
    case["committed_tokens"] = where(known(value["committed_tokens"]), where(case["reserved_tokens"] == 3, 2, 1), 0)

    uncached = column["waiting_uncached_tokens"]
    queued = np.maximum(backlog, np.nan_to_num(uncached))
    is_idle_queue = ~known(queued) & (waiting == 0)
    is_uncached = ~known(queued) & ~is_idle_queue & (uncached > 0)
    # Every waiting request needs at least one token; on decode the total leaves out what is preallocated already.
    pending = where(decode, np.nan_to_num(prealloc) + np.nan_to_num(retracted), np.nan_to_num(waiting))
    is_denied = (queued == 0) & (pending > 0)
    case["queued_tokens"] = np.select([is_denied, known(queued), is_idle_queue, is_uncached], [4, 1, 2, 3], 0)
    value["queued_tokens"] = np.select([is_denied, is_idle_queue, is_uncached], [nan, zero, uncached], queued)

    offloaded = column["offloaded_tokens"]
    value["offloaded_tokens"], case["offloaded_tokens"] = offloaded, where(known(offloaded), 1, 0)
    return _Columns(values=value, cases=case, low=bounds_low, high=bounds_high)


def compose(
    reading: PoolReading, reserved_lease_tokens: float = 0.0, mean_prompt_tokens: float | None = None
) -> Composition:
    """
    Return where the capacity of one pool is.

    `reserved_lease_tokens` are outstanding leases not yet visible in telemetry. `mean_prompt_tokens` turns counts
    of travelling requests into tokens; without it the mean of the queue, then of the worker's life is taken.
    """
    return compose_many([reading], [reserved_lease_tokens], [mean_prompt_tokens])[0]


def compose_many(
    readings: Sequence[PoolReading],
    reserved_lease_tokens: Sequence[float] | None = None,
    mean_prompt_tokens: Sequence[float | None] | None = None,
) -> list[Composition]:
    """Return the composition of every reading, in order; the same formulas as `compose`, once over all."""
    if not readings:
        return []
    inputs = {
        name: np.array([_or_nan(getattr(reading, name)) for reading in readings], dtype=np.float64) for name in _INPUTS
    }
    leases = np.array(reserved_lease_tokens if reserved_lease_tokens is not None else [0.0] * len(readings))
    means = np.array([_or_nan(mean) for mean in mean_prompt_tokens or [None] * len(readings)], dtype=np.float64)
    columns = _columns(
        inputs,
        is_decode=np.array([float(reading.role is Role.DECODE) for reading in readings]),
        is_prefill=np.array([float(reading.role is Role.PREFILL) for reading in readings]),
        is_unified=np.array([float(reading.role is Role.UNIFIED) for reading in readings]),
        lease_tokens=leases.astype(np.float64),
        default_reserve_tokens=np.array([_default_reserve(reading) for reading in readings]),
        mean_prompt_tokens=means,
    )
    parts = {name: _figures(name, columns) for name in WORDS}
    return [Composition(**{name: parts[name][index] for name in WORDS}) for index in range(len(readings))]


def compose_history(history: PoolHistory, reserved_lease_tokens: float = 0.0) -> dict[str, FloatArray]:
    """
    Return the words of `Composition` over time, NaN where unknown, each of shape (n,).

    The same formulas as `compose` at every sample. A constant that a sample does not carry is taken from the
    newest reading: the rare answers (/server_info) are not asked every cycle.
    """
    size = len(history.at_s)
    inputs: dict[str, FloatArray] = {}
    for name in _INPUTS:
        column = np.asarray(history.columns.get(name, np.full(size, np.nan)), dtype=np.float64)
        if name in ("usable_tokens", "block_size_tokens", "reserved_per_request_tokens"):
            last = _or_nan(getattr(history.last, name))
            column = np.where(np.isfinite(column), column, last)
        inputs[name] = column
    role = history.last.role

    def full(value: float) -> FloatArray:
        return np.full(size, value)

    columns = _columns(
        inputs,
        is_decode=full(float(role is Role.DECODE)),
        is_prefill=full(float(role is Role.PREFILL)),
        is_unified=full(float(role is Role.UNIFIED)),
        lease_tokens=full(reserved_lease_tokens),
        default_reserve_tokens=full(_default_reserve(history.last)),
        mean_prompt_tokens=full(np.nan),
    )
    return {name: columns.values[name] for name in WORDS}


def _default_reserve(reading: PoolReading) -> float:
    return SGLANG_RESERVED_DECODE_TOKENS if reading.engine == "sglang" else np.nan


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _figures(name: str, columns: _Columns) -> list[Figure]:
    """Return one figure an element; `.tolist()` because scalar access to arrays is slow."""
    cases = _CASES[name]
    values = columns.values[name].tolist()
    codes = columns.cases[name].tolist()
    lows = columns.low[name].tolist() if name in columns.low else None
    highs = columns.high[name].tolist() if name in columns.high else None
    figures = []
    for index, value in enumerate(values):
        provenance, reason = cases[int(codes[index])]
        low = lows[index] if lows is not None and lows[index] == lows[index] else None
        high = highs[index] if highs is not None and highs[index] == highs[index] else None
        point = value if value == value else None
        figures.append(Figure(value=point, provenance=provenance, reason=reason, low=low, high=high))
    return figures

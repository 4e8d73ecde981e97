"""
The joint score: every (prefill, decode) pair at once, and unified pools as pairs with themselves.

Rows are prefill ends, columns decode ends. Each end's part is a vector; what depends on both is evaluated in strips
of rows that fit a core's cache. Only the score of every pair is kept; a term's matrix is evaluated again when asked
for, by the same functions.

Reads: the columns of `prepare`, links. Range: any finite number, lower is better; inf is refused.
Intent: the seconds, pressure and risk of sending the request through exactly this pair.

Read next: `deciding`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring import cost, service
from scoring.model import FloatArray, Link
from scoring.policy import filters
from scoring.policy.arrays import BoolArray
from scoring.policy.links import link_columns
from scoring.policy.prepare import Prepared
from scoring.policy.settings import DecideSettings

STRIP_ELEMENTS: Final = 12_000
"""Pairs of one strip: under 96 KiB an array, so that a term's inputs and output stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """Decode-end vectors of shape (1, columns), or (rows, 1) for pools alone."""

    demand_tokens: FloatArray
    room_tokens: FloatArray
    committed_tokens: FloatArray
    usable_tokens: FloatArray
    net_tokens_per_s: FloatArray
    reserve_ratio: FloatArray
    slot_wait_s: FloatArray
    first_step_s: FloatArray
    tpot_breach: FloatArray


@dataclass(frozen=True, slots=True)
class _Starts:
    """Prefill-end vectors of shape (rows, 1), and the hand-over, broadcastable to (rows, columns)."""

    wait_s: FloatArray
    whole_s: FloatArray
    uncached_s: FloatArray
    size_bytes: FloatArray
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    travelling_bytes: FloatArray
    arriving_bytes: FloatArray
    path_bytes: FloatArray
    hit_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class Parts:
    """The terms of a strip, broadcastable to it: seconds, but pressure and risk as they are."""

    prefill_wait: FloatArray
    prefill_compute: FloatArray
    transfer: FloatArray
    decode_wait: FloatArray
    kv_pressure: FloatArray
    slo_risk: FloatArray
    prefix_benefit: FloatArray
    queued_bytes: FloatArray


PART_NAMES: Final = tuple(each.name for each in fields(Parts))
_START_NAMES: Final = tuple(each.name for each in fields(_Starts))
_END_NAMES: Final = tuple(each.name for each in fields(_Ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairModel:
    """Everything from which any strip of pairs is evaluated."""

    starts: _Starts
    ends: _Ends
    shape: tuple[int, int]
    is_alone: bool
    is_path_known: bool
    ttft_s: float
    ttft_error_ratio: float
    weights: tuple[float, float, float, float, float, float, float]

    def parts(self, rows: slice | NDArray[np.int64], columns: slice | NDArray[np.int64] = slice(None)) -> Parts:
        """Return the terms of some rows against some columns."""
        starts = _Starts(*(_cut(getattr(self.starts, name), rows, columns) for name in _START_NAMES))
        ends = self.ends
        if self.is_alone or not (isinstance(columns, slice) and columns == slice(None)):
            ends = _Ends(*(_cut(getattr(ends, name), rows, columns) for name in _END_NAMES))
        transfer, hit_transfer, queued = self._hand_over(starts)
        benefit = cost.prefix_benefit_s(starts.whole_s, starts.uncached_s, hit_transfer)
        before = starts.wait_s + starts.whole_s
        start = before + transfer
        bounds_s = (float(start.min()), float(start.max())) if start.size else (0.0, 0.0)
        waits = _waits(start, bounds_s, ends)
        predicted = (before - benefit) + waits + transfer
        budget, error = np.array([[self.ttft_s]]), np.array([[self.ttft_error_ratio]])
        risk = cost.slo_risk_ratio(cost.breach_probability(predicted, budget, error), ends.tpot_breach)
        pressure = _pressure(start, bounds_s, ends)
        return Parts(starts.wait_s, starts.whole_s, transfer, waits, pressure, risk, benefit, queued)

    def score(self, parts: Parts) -> FloatArray:
        """Return the score of a strip."""
        w1, w2, w3, w4, w5, w6, w7 = self.weights
        per_s = 1.0 / self.ttft_s
        return cost.pair_score(
            parts.prefill_wait,
            parts.prefill_compute,
            parts.transfer,
            parts.decode_wait,
            parts.kv_pressure,
            parts.slo_risk,
            parts.prefix_benefit,
            w1 * per_s,
            w2 * per_s,
            w3 * per_s,
            w4 * per_s,
            w5,
            w6,
            w7 * per_s,
        )

    def _hand_over(self, starts: _Starts) -> tuple[FloatArray, FloatArray, FloatArray]:
        """
        Return seconds, seconds of what the decode end holds already, and bytes ahead on the path.

        The slowest of the two ends and the path, behind the longer of the queues at both ends. An unknown hand-over
        counts one TTFT budget and its hit saves nothing.
        """
        zero = np.zeros((1, 1))
        if self.is_alone:
            return zero, zero, zero
        ahead = starts.travelling_bytes
        if starts.arriving_bytes.any():
            ahead = np.maximum(ahead, starts.arriving_bytes)
        if starts.path_bytes.any():
            ahead = ahead + starts.path_bytes
        seconds = service.transfer_s(starts.size_bytes, starts.bandwidth_bytes_per_s, starts.latency_s, ahead)
        hit_seconds = zero
        if starts.hit_bytes.any():
            hit_seconds = starts.hit_bytes / np.maximum(starts.bandwidth_bytes_per_s, 1.0)
        if not self.is_path_known:
            unknown = np.isnan(seconds)
            seconds = np.where(unknown, self.ttft_s, seconds)
            hit_seconds = np.where(unknown, 0.0, hit_seconds)
        return seconds, hit_seconds, ahead


def _cut(values: FloatArray, rows: slice | NDArray[np.int64], columns: slice | NDArray[np.int64]) -> FloatArray:
    """Return the rows and columns of a broadcastable array; an axis of length 1 stays."""
    if values.shape[0] > 1:
        values = values[rows]
    return values[:, columns] if values.shape[1] > 1 else values


def _waits(start_s: FloatArray, bounds_s: tuple[float, float], ends: _Ends) -> FloatArray:
    """Return DecodeWait; parts that are zero everywhere in the strip are not evaluated."""
    growing = np.maximum(ends.net_tokens_per_s, 0.0)
    is_short = bool(np.any(ends.demand_tokens - ends.room_tokens + growing * bounds_s[1] > 0.0))
    if not is_short and not ends.slot_wait_s.any():
        return ends.first_step_s
    room_s = (
        cost.room_wait_s(ends.demand_tokens, ends.room_tokens, ends.net_tokens_per_s, start_s)
        if is_short
        else np.zeros((1, 1))
    )
    return cost.decode_wait_s(room_s, ends.slot_wait_s, start_s, ends.first_step_s)


def _pressure(start_s: FloatArray, bounds_s: tuple[float, float], ends: _Ends) -> FloatArray:
    """Return ProjectedKVPressure; columns that cannot reach into the reserve in this strip are 0 unevaluated."""
    extreme_s = np.where(ends.net_tokens_per_s > 0.0, bounds_s[1], bounds_s[0])
    touched = ~(1.0 - projected_ratio(extreme_s, ends) >= ends.reserve_ratio)
    if not touched.any():
        return np.zeros((1, 1))
    columns = np.flatnonzero(touched[0])
    if touched.shape[0] > 1 or columns.size == touched.shape[1]:
        return cost.kv_pressure_ratio(projected_ratio(start_s, ends), ends.reserve_ratio)
    some = _Ends(*(getattr(ends, name)[:, columns] for name in _END_NAMES))
    start = start_s if start_s.shape[1] == 1 else start_s[:, columns]
    out = np.zeros((start_s.shape[0], touched.shape[1]))
    out[:, columns] = cost.kv_pressure_ratio(projected_ratio(start, some), some.reserve_ratio)
    return out


def projected_ratio(start_s: FloatArray, ends: _Ends) -> FloatArray:
    """Return projected utilization of the decode ends with the request placed, at the moment decode starts."""
    projected = cost.projected_tokens(ends.committed_tokens, ends.net_tokens_per_s, start_s, ends.usable_tokens)
    return cost.utilization_ratio(projected, ends.demand_tokens, ends.usable_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBlock:
    """
    Scores and terms of rows against columns, or of pools alone.

    Attributes:
        rows: Indices of the prefill ends into the fleet's pools.
        columns: Indices of the decode ends; equal to rows when `is_alone`.
        is_alone: Each pool with itself: matrices are of shape (n, 1).
        budget_s: What seconds are divided by.
        total: Score, inf where refused. Shape (rows, columns).
        codes: Why a pair is refused (`filters.PAIR_FILTERS`), 0 where it is not.
        unknown: Term name -> pairs whose term rests on a fallback, broadcastable; absent where none does.
        model: From which the terms are evaluated.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    is_alone: bool
    budget_s: float
    total: FloatArray
    codes: NDArray[np.uint8]
    unknown: dict[str, BoolArray] = field(default_factory=dict)
    model: PairModel

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, columns)."""
        return self.model.shape

    def term(self, name: str) -> FloatArray:
        """Return one term of every pair without unit: seconds over the budget; pressure and risk as they are."""
        with np.errstate(all="ignore"):
            values = getattr(self.model.parts(slice(None)), name)
        if name not in ("kv_pressure", "slo_risk"):
            values = values / self.budget_s
        return np.array(np.broadcast_to(values, self.shape))

    def cell(self, row: int, column: int) -> Parts:
        """Return the terms of one pair, each of shape (1, 1)."""
        with np.errstate(all="ignore"):
            return self.model.parts(slice(row, row + 1), slice(column, column + 1))

    def is_unknown(self, term: str, row: int, column: int) -> bool:
        """Say whether a term of one pair rests on a fallback."""
        mask = self.unknown.get(term)
        return mask is not None and bool(np.broadcast_to(mask, self.shape)[row, column])

    def best(self, count: int) -> list[tuple[int, int]]:
        """
        Return up to `count` admissible (row, column) by rising score.

        Equal scores go to the lower utilization with the request placed, then in order of id: the pressure term is
        zero while the reserve is untouched, and without this all of a herd would take the first pool.

        Only rows whose own best is among the `count` best row minima can hold one of the `count` best pairs.
        """
        if self.total.size == 0:
            return []
        minima = self.total.min(axis=1)
        rows = np.sort(np.argsort(minima, kind="stable")[:count])
        rows = rows[np.isfinite(minima[rows])]
        part = self.total[rows].ravel()
        if part.size > count:
            candidates = np.flatnonzero(part <= np.partition(part, count - 1)[count - 1])
            candidates = candidates[np.isfinite(part[candidates])]
        else:
            candidates = np.flatnonzero(np.isfinite(part))
        width = self.total.shape[1]
        ends = self.model.ends
        placed = cost.utilization_ratio(ends.committed_tokens, ends.demand_tokens, ends.usable_tokens)
        tie = (placed[rows, 0] if self.is_alone else placed[0])[
            candidates // width if self.is_alone else candidates % width
        ]
        order = candidates[np.lexsort((tie, part[candidates]))][:count]
        return [(int(rows[flat // width]), int(flat % width)) for flat in order]


def score_block(
    prepared: Prepared,
    settings: DecideSettings,
    links: Sequence[Link],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    refused: BoolArray,
    *,
    is_alone: bool,
    local: BoolArray | None = None,
) -> ScoreBlock:
    """
    Return the scores of rows against columns, or of each row with itself when `is_alone`.

    `refused` marks pools the filters refused: their pairs keep their terms and get the score inf. `local` marks
    decode pools that a decider lets compute this prompt themselves: they take no pair.
    """
    with np.errstate(all="ignore"):
        model = _model(prepared, settings, links, rows, columns, is_alone=is_alone)
        total, codes = _totals(model)
    if not is_alone:
        conflicts = filters.pair_conflicts(prepared, settings, rows, columns)
        if conflicts is not None:
            codes[conflicts > 0] = conflicts[conflicts > 0]
        if local is not None and local[columns].any():
            codes[:, local[columns]] = filters.PAIR_LOCAL
    codes[refused[rows]] = filters.PAIR_POOL
    if not is_alone:
        codes[:, refused[columns]] = filters.PAIR_POOL
    if codes.any():
        total[codes > 0] = np.inf
    return ScoreBlock(
        rows=rows,
        columns=columns,
        is_alone=is_alone,
        budget_s=prepared.slo.ttft_s,
        total=total,
        codes=codes,
        unknown=_unknown(prepared, model, rows, columns, is_alone=is_alone),
        model=model,
    )


def _totals(model: PairModel) -> tuple[FloatArray, NDArray[np.uint8]]:
    total, codes = np.empty(model.shape), np.zeros(model.shape, dtype=np.uint8)
    step = max(1, STRIP_ELEMENTS // max(model.shape[1], 1))
    for low in range(0, model.shape[0], step):
        cut = slice(low, min(low + step, model.shape[0]))
        parts = model.parts(cut)
        total[cut] = model.score(parts)
        if not np.isfinite(total[cut].sum()):
            codes[cut][~np.isfinite(total[cut])] = filters.PAIR_UNBOUNDED
            full = np.broadcast_to(~np.isfinite(parts.kv_pressure), codes[cut].shape)
            codes[cut][full] = filters.PAIR_FULL
    return total, codes


def _model(
    prepared: Prepared,
    settings: DecideSettings,
    links: Sequence[Link],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    *,
    is_alone: bool,
) -> PairModel:
    room, decode, slo, usable = prepared.room, prepared.decode, prepared.slo, prepared.arrays.usable_tokens
    breach = cost.breach_probability(decode.first_step_s, np.array([slo.tpot_s]), np.array([settings.tpot_error_ratio]))

    def end(values: FloatArray) -> FloatArray:
        return values[rows][:, None] if is_alone else values[columns][None, :]

    ends = _Ends(
        end(room.demand_tokens),
        end(room.available_tokens - room.reserved_tokens),
        end(room.committed_tokens),
        end(usable),
        end(room.net_tokens_per_s),
        end(room.reserve_tokens / np.maximum(usable, 1.0)),
        end(decode.slot_wait_s),
        end(decode.first_step_s),
        end(breach),
    )
    starts = _starts(prepared, links, rows, columns, is_alone=is_alone)
    is_path_known = not (np.isnan(starts.bandwidth_bytes_per_s).any() or np.isnan(starts.size_bytes).any())
    return PairModel(
        starts=starts,
        is_path_known=is_path_known,
        ends=ends,
        shape=(len(rows), 1 if is_alone else len(columns)),
        is_alone=is_alone,
        ttft_s=slo.ttft_s,
        ttft_error_ratio=settings.ttft_error_ratio,
        weights=slo.weights.as_tuple(),
    )


def _starts(
    prepared: Prepared,
    links: Sequence[Link],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    *,
    is_alone: bool,
) -> _Starts:
    prefill, link = prepared.prefill, prepared.link

    def start(values: FloatArray) -> FloatArray:
        return values[rows][:, None]

    zero = np.zeros((1, 1))
    own = (start(prefill.wait_s), start(prefill.whole_s), start(prefill.uncached_s))
    if is_alone:
        return _Starts(*own, zero, np.full((1, 1), np.nan), zero, zero, zero, zero, zero)
    bandwidth, latency, queued = link_columns(links, prepared.arrays.pools, rows, columns)
    for end in (start(link.bandwidth_bytes_per_s), link.bandwidth_bytes_per_s[columns][None, :]):
        if np.isfinite(end).any():
            bandwidth = np.fmin(bandwidth, end)
    bytes_per_token = start(link.bytes_per_token)
    hits = prepared.hit_tokens[columns][None, :]
    return _Starts(
        *own,
        float(prepared.request.prompt_tokens) * bytes_per_token,
        bandwidth,
        latency + start(link.latency_s),
        start(link.travelling_bytes),
        link.arriving_bytes[columns][None, :],
        queued,
        hits * bytes_per_token if hits.any() else zero,
    )


def _unknown(
    prepared: Prepared, model: PairModel, rows: NDArray[np.int64], columns: NDArray[np.int64], *, is_alone: bool
) -> dict[str, BoolArray]:
    """Return which pairs' terms rest on a fallback of one of their ends, or on a path nobody knows."""
    found: dict[str, BoolArray] = {}

    def flag(term: str, mask: BoolArray) -> None:
        if mask.any():
            found[term] = found[term] | mask if term in found else mask

    for term, mask in prepared.unknown.items():
        is_start = term in ("prefill_wait", "prefill_compute", "prefix_benefit")
        if is_start or (term == "transfer" and not is_alone):
            flag(term, mask[rows][:, None])
        if not is_start and not (term == "transfer" and is_alone):
            flag(term, mask[rows][:, None] if is_alone else mask[columns][None, :])
    if not is_alone and not model.is_path_known:
        flag("transfer", np.isnan(model.starts.bandwidth_bytes_per_s) | np.isnan(model.starts.size_bytes))
    for term in ("prefill_wait", "prefill_compute", "transfer", "decode_wait"):
        if term in found:
            flag("slo_risk", found[term])  # The predicted TTFT rests on all of them.
    return found

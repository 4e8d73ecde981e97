"""
The joint score: every (prefill, decode) pair at once, and unified pools as pairs with themselves.

Rows are prefill ends, columns decode ends. A term that depends on one end only is a view of a vector, so a fleet of
1,000 x 1,000 pairs keeps five full matrices and a byte of reason. Rows go through in strips that fit a core's cache.

Reads: the columns of `prepare`, links. Range: any finite number, lower is better; inf is refused.
Intent: the seconds, pressure and risk of sending the request through exactly this pair.

Read next: `decide`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring import cost, service
from scoring.model import FloatArray, Link
from scoring.policy import filters
from scoring.policy.arrays import BoolArray, link_columns
from scoring.policy.prepare import Prepared
from scoring.policy.settings import DecideSettings

STRIP_ELEMENTS: Final = 16_384
"""Pairs of one strip: 128 KiB an array, so that a term's inputs and output stay in the second-level cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBlock:
    """
    Scores and terms of rows against columns, or of pools alone.

    Attributes:
        rows: Indices of the prefill ends into the fleet's pools.
        columns: Indices of the decode ends; equal to rows when `is_alone`.
        is_alone: Each pool with itself: arrays of shape (n, 1).
        budget_s: What seconds are divided by.
        total: Score, inf where refused. Shape (rows, columns).
        prefill_wait_s, prefill_compute_s, transfer_s, decode_wait_s, prefix_benefit_s: Terms in seconds, same shape.
        kv_pressure, slo_risk: Terms as they are, without unit.
        codes: Why a pair is refused (`filters.PAIR_FILTERS`), 0 where it is not.
        unknown: Term name -> pairs whose term rests on a fallback, broadcastable; absent where none does.
        bandwidth_bytes_per_s: Of the path, broadcastable; NaN where unknown.
        queued_bytes: Ahead on the path, broadcastable.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    is_alone: bool
    budget_s: float
    total: FloatArray
    prefill_wait_s: FloatArray
    prefill_compute_s: FloatArray
    transfer_s: FloatArray
    decode_wait_s: FloatArray
    prefix_benefit_s: FloatArray
    kv_pressure: FloatArray
    slo_risk: FloatArray
    codes: NDArray[np.uint8]
    unknown: dict[str, BoolArray] = field(default_factory=dict)
    bandwidth_bytes_per_s: FloatArray
    queued_bytes: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, columns)."""
        return (int(self.total.shape[0]), int(self.total.shape[1]))

    def normalised(self, term: str) -> FloatArray:
        """Return one term without unit: seconds over the budget; pressure and risk as they are."""
        if term in ("kv_pressure", "slo_risk"):
            return getattr(self, term)  # type: ignore[no-any-return] # both are FloatArray
        return getattr(self, f"{term}_s") / self.budget_s  # type: ignore[no-any-return] # all are FloatArray

    def seconds(self, term: str) -> FloatArray:
        """Return one term in seconds; pressure and risk times the budget."""
        if term in ("kv_pressure", "slo_risk"):
            return getattr(self, term) * self.budget_s  # type: ignore[no-any-return] # both are FloatArray
        return getattr(self, f"{term}_s")  # type: ignore[no-any-return] # all are FloatArray

    def is_unknown(self, term: str, row: int, column: int) -> bool:
        """Say whether a term of one pair rests on a fallback."""
        mask = self.unknown.get(term)
        return mask is not None and bool(np.broadcast_to(mask, self.total.shape)[row, column])

    def best(self, count: int) -> list[tuple[int, int]]:
        """
        Return up to `count` admissible (row, column) by rising score; equal scores in order of id.

        Only rows whose own best is among the `count` best row minima can hold one of the `count` best pairs.
        """
        if self.total.size == 0:
            return []
        minima = self.total.min(axis=1)
        rows = np.sort(np.argsort(minima, kind="stable")[:count])
        rows = rows[np.isfinite(minima[rows])]
        part = self.total[rows].ravel()
        nearest = np.flatnonzero(part <= np.partition(part, count - 1)[count - 1]) if part.size > count else None
        candidates = np.flatnonzero(np.isfinite(part)) if nearest is None else nearest[np.isfinite(part[nearest])]
        order = candidates[np.argsort(part[candidates], kind="stable")][:count]
        width = self.total.shape[1]
        return [(int(rows[flat // width]), int(flat % width)) for flat in order]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Decode-end vectors, shaped to broadcast against the prefill ends."""

    demand_tokens: FloatArray
    room_tokens: FloatArray
    committed_tokens: FloatArray
    usable_tokens: FloatArray
    net_tokens_per_s: FloatArray
    reserve_ratio: FloatArray
    slot_wait_s: FloatArray
    first_step_s: FloatArray
    tpot_breach: FloatArray


def _ends(prepared: Prepared, settings: DecideSettings, columns: NDArray[np.int64], *, is_alone: bool) -> _Ends:
    room, decode, slo = prepared.room, prepared.decode, prepared.slo
    breach = cost.breach_probability(
        decode.first_step_s,
        np.full_like(decode.first_step_s, slo.tpot_s),
        np.full_like(decode.first_step_s, settings.tpot_error_ratio),
    )

    def side(values: FloatArray) -> FloatArray:
        return values[columns][:, None] if is_alone else values[columns][None, :]

    usable = prepared.arrays.usable_tokens
    return _Ends(
        side(room.demand_tokens),
        side(room.available_tokens - room.reserved_tokens),
        side(room.committed_tokens),
        side(usable),
        side(room.net_tokens_per_s),
        side(room.reserve_tokens / np.maximum(usable, 1.0)),
        side(decode.slot_wait_s),
        side(decode.first_step_s),
        side(breach),
    )


def _waits(start_s: FloatArray, ends: _Ends) -> FloatArray:
    """Return DecodeWait; the parts that are zero everywhere in the strip are not computed."""
    latest_s = float(start_s.max()) if start_s.size else 0.0
    growing = np.maximum(ends.net_tokens_per_s, 0.0)
    is_short = bool(np.any(ends.demand_tokens - ends.room_tokens + growing * latest_s > 0.0))
    if not is_short and not ends.slot_wait_s.any():
        return np.broadcast_to(ends.first_step_s, np.broadcast_shapes(start_s.shape, ends.first_step_s.shape))
    room_s = (
        cost.room_wait_s(ends.demand_tokens, ends.room_tokens, ends.net_tokens_per_s, start_s)
        if is_short
        else np.zeros((1, 1))
    )
    return cost.decode_wait_s(room_s, ends.slot_wait_s, start_s, ends.first_step_s)


def _pressure(start_s: FloatArray, ends: _Ends, out: FloatArray, *, is_alone: bool) -> None:
    """Write ProjectedKVPressure; columns that cannot reach into the reserve stay 0."""
    out[...] = 0.0
    if start_s.size == 0 or out.size == 0:
        return
    bounds = (float(start_s.min()), float(start_s.max()))
    worst_s = np.where(ends.net_tokens_per_s > 0.0, bounds[1], bounds[0])
    worst = _projected_ratio(worst_s, ends)
    touched = ~(1.0 - worst >= ends.reserve_ratio)
    if is_alone:
        out[...] = cost.kv_pressure_ratio(_projected_ratio(start_s, ends), ends.reserve_ratio)
        return
    columns = np.flatnonzero(touched[0])
    if columns.size == 0:
        return
    if columns.size == out.shape[1]:
        out[...] = cost.kv_pressure_ratio(_projected_ratio(start_s, ends), ends.reserve_ratio)
        return
    some = _Ends(*(getattr(ends, name)[:, columns] for name in _Ends.__slots__))
    start = start_s if start_s.shape[1] == 1 else start_s[:, columns]
    out[:, columns] = cost.kv_pressure_ratio(_projected_ratio(start, some), some.reserve_ratio)


def _projected_ratio(start_s: FloatArray, ends: _Ends) -> FloatArray:
    projected = cost.projected_tokens(ends.committed_tokens, ends.net_tokens_per_s, start_s, ends.usable_tokens)
    return cost.utilization_ratio(projected, ends.demand_tokens, ends.usable_tokens)


def _or_row(mask_p: BoolArray | None, mask_d: BoolArray | None, *, is_alone: bool) -> BoolArray | None:
    """Return rows | columns as a broadcastable mask, None where nothing is flagged."""
    left = None if mask_p is None or not mask_p.any() else mask_p[:, None]
    right = None if mask_d is None or not mask_d.any() else (mask_d[:, None] if is_alone else mask_d[None, :])
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _unknown(
    prepared: Prepared, rows: NDArray[np.int64], columns: NDArray[np.int64], *, is_alone: bool
) -> dict[str, BoolArray]:
    """Return which pairs' terms rest on a fallback of one of their ends."""
    flags = prepared.unknown
    found: dict[str, BoolArray] = {}
    for term in cost.TERMS:
        mask = flags.get(term)
        if mask is None:
            continue
        is_row = term in ("prefill_wait", "prefill_compute", "prefix_benefit", "transfer")
        is_column = term in ("decode_wait", "kv_pressure", "slo_risk") or (term == "transfer" and not is_alone)
        both = _or_row(mask[rows] if is_row else None, mask[columns] if is_column else None, is_alone=is_alone)
        if both is not None and not (is_alone and term == "transfer"):
            found[term] = both
    return found


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
        block = _score_block(prepared, settings, links, rows, columns, refused, is_alone=is_alone)
    if local is not None and not is_alone and local[columns].any():
        block.codes[:, local[columns] & (block.codes == filters.PAIR_OK).any(axis=0)] = filters.PAIR_LOCAL
        block.total[:, local[columns]] = np.inf
    return block


def _score_block(
    prepared: Prepared,
    settings: DecideSettings,
    links: Sequence[Link],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    refused: BoolArray,
    *,
    is_alone: bool,
) -> ScoreBlock:
    shape = (len(rows), 1 if is_alone else len(columns))
    slo, prefill = prepared.slo, prepared.prefill
    wait, whole = prefill.wait_s[rows][:, None], prefill.whole_s[rows][:, None]
    uncached = prefill.uncached_s[rows][:, None]
    path = _no_path(shape) if is_alone else _path(prepared, links, rows, columns)
    transfer = np.zeros((1, 1)) if is_alone else path.seconds
    hit_transfer = np.zeros((1, 1)) if is_alone else path.hit_seconds
    unknown = _unknown(prepared, rows, columns, is_alone=is_alone)
    if path.unknown is not None:
        transfer = np.where(path.unknown, slo.ttft_s, transfer)
        hit_transfer = np.where(path.unknown, 0.0, hit_transfer)
        unknown["transfer"] = path.unknown | unknown.get("transfer", np.zeros((1, 1), dtype=bool))
    benefit = cost.prefix_benefit_s(whole, uncached, hit_transfer)

    total, waits = np.empty(shape), np.empty(shape)
    pressure, risk = np.empty(shape), np.empty(shape)
    whole_ends = _ends(prepared, settings, columns, is_alone=is_alone)
    weights = slo.weights.as_tuple()
    budget, error = np.full((1, 1), slo.ttft_s), np.full((1, 1), settings.ttft_error_ratio)
    step = max(1, STRIP_ELEMENTS // max(shape[1], 1))
    for low in range(0, shape[0], step):
        cut = slice(low, min(low + step, shape[0]))
        ends = _Ends(*(getattr(whole_ends, name)[cut] for name in _Ends.__slots__)) if is_alone else whole_ends
        w, c = wait[cut], whole[cut]
        t = transfer if transfer.shape[0] == 1 else transfer[cut]
        b = benefit if benefit.shape[0] == 1 else benefit[cut]
        start = w + c + t
        waits[cut] = _waits(start, ends)
        _pressure(start, ends, pressure[cut], is_alone=is_alone)
        breach = cost.breach_probability(start - b + waits[cut], budget, error)
        risk[cut] = cost.slo_risk_ratio(breach, ends.tpot_breach)
        total[cut] = cost.pair_score(
            w / slo.ttft_s,
            c / slo.ttft_s,
            t / slo.ttft_s,
            waits[cut] / slo.ttft_s,
            pressure[cut],
            risk[cut],
            b / slo.ttft_s,
            *weights,
        )

    codes = np.zeros(shape, dtype=np.uint8)
    is_open = np.isfinite(total)
    if not is_open.all():
        codes[~is_open] = filters.PAIR_UNBOUNDED
        codes[~np.isfinite(pressure)] = filters.PAIR_FULL
    if not is_alone:
        conflicts = filters.pair_conflicts(prepared, settings, rows.tolist(), columns.tolist())
        if conflicts is not None:
            codes[conflicts > 0] = conflicts[conflicts > 0]
    codes[refused[rows]] = filters.PAIR_POOL
    if not is_alone:
        codes[:, refused[columns]] = filters.PAIR_POOL
    if codes.any():
        total[codes > 0] = np.inf
    return ScoreBlock(
        rows=rows,
        columns=columns,
        is_alone=is_alone,
        budget_s=slo.ttft_s,
        total=total,
        prefill_wait_s=np.broadcast_to(wait, shape),
        prefill_compute_s=np.broadcast_to(whole, shape),
        transfer_s=np.broadcast_to(transfer, shape),
        decode_wait_s=waits,
        prefix_benefit_s=np.broadcast_to(benefit, shape),
        kv_pressure=pressure,
        slo_risk=risk,
        codes=codes,
        unknown=unknown,
        bandwidth_bytes_per_s=path.bandwidth_bytes_per_s,
        queued_bytes=path.queued_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Path:
    """The hand-over of every pair, broadcastable."""

    seconds: FloatArray
    hit_seconds: FloatArray
    bandwidth_bytes_per_s: FloatArray
    queued_bytes: FloatArray
    unknown: BoolArray | None


def _no_path(shape: tuple[int, int]) -> _Path:
    zero = np.zeros((1, 1))
    return _Path(np.broadcast_to(zero, shape), zero, np.full((1, 1), np.nan), zero, None)


def _path(prepared: Prepared, links: Sequence[Link], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> _Path:
    """Return TransferTime: the slowest of the two ends and the path, behind the longer of the queues at both ends."""
    link, pools = prepared.link, prepared.arrays.pools
    line, latency, queued = link_columns(
        links, [pools[row].worker_id for row in rows], [pools[column].worker_id for column in columns]
    )
    bandwidth = line
    for end in (link.bandwidth_bytes_per_s[rows][:, None], link.bandwidth_bytes_per_s[columns][None, :]):
        if np.isfinite(end).any():
            bandwidth = np.fmin(bandwidth, end)
    arriving = link.arriving_bytes[columns][None, :]
    ahead = link.travelling_bytes[rows][:, None]
    if arriving.any():
        ahead = np.maximum(ahead, arriving)
    ahead = ahead + queued if queued.any() else ahead
    latency = latency + np.maximum(link.latency_s[rows][:, None], 0.0)
    size = float(prepared.request.prompt_tokens) * link.bytes_per_token[rows][:, None]
    seconds = service.transfer_s(size, bandwidth, latency, ahead)
    hits = prepared.hit_tokens[columns][None, :]
    hit_seconds = (
        hits * link.bytes_per_token[rows][:, None] / np.maximum(bandwidth, 1.0) if hits.any() else np.zeros((1, 1))
    )
    mask = np.isnan(seconds)
    return _Path(seconds, hit_seconds, bandwidth, ahead, mask if mask.any() else None)

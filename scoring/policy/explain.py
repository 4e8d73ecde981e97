"""
The formula with its numbers put in: what one pair costs, term by term, and what one pool's gate says.

Read next: `policy.decide`, which calls this for the chosen pair and its runner-up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring import cost
from scoring.admission import Gate
from scoring.policy import filters
from scoring.policy.prepare import Prepared
from scoring.policy.scorers import PART_NAMES, ScoreBlock

SYMBOLS: Final[Mapping[str, str]] = {
    "prefill_wait": "PrefillWait",
    "prefill_compute": "PrefillCompute",
    "transfer": "TransferTime",
    "decode_wait": "DecodeWait",
    "kv_pressure": "ProjectedKVPressure",
    "slo_risk": "SloRisk",
    "prefix_benefit": "PrefixBenefit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """
    One term of one pair.

    Attributes:
        name: One of `cost.TERMS`.
        seconds: In seconds (pressure and risk: times the budget); None when the term is unknown.
        normalised: Without unit; None when unknown.
        scored_s: The seconds that went into the score, fallback included.
        weight: Of the class.
        contribution: What it adds to the score; negative for the benefit.
        formula: With the numbers put in.
        is_unknown: It rests on a fallback.
    """

    name: str
    seconds: float | None
    normalised: float | None
    scored_s: float
    weight: float
    contribution: float
    formula: str
    is_unknown: bool

    @property
    def symbol(self) -> str:
        """Return the name used in formulas."""
        return SYMBOLS[self.name]


def _n(value: float, digits: int = 0) -> str:
    return "unknown" if np.isnan(value) else "unbounded" if np.isinf(value) else f"{value:,.{digits}f}"


def _s(value: float) -> str:
    if not np.isfinite(value):
        return _n(value)
    return f"{value:.2f} s" if abs(value) >= 0.1 or value == 0.0 else f"{value * 1e3:.2f} ms"


def explain_pair(prepared: Prepared, block: ScoreBlock, row: int, column: int) -> tuple[Term, ...]:
    """Return the seven terms of one pair of a block, each with its formula."""
    weights = prepared.slo.weights.as_tuple()
    cell = block.cell(row, column)
    parts = {name: float(getattr(cell, name).item()) for name in PART_NAMES}
    p, d = int(block.rows[row]), int(block.columns[row] if block.is_alone else block.columns[column])
    terms = []
    for index, name in enumerate(cost.TERMS):
        is_ratio = name in ("kv_pressure", "slo_risk")
        normalised = parts[name] if is_ratio else parts[name] / block.budget_s
        seconds = parts[name] * block.budget_s if is_ratio else parts[name]
        is_unknown = block.is_unknown(name, row, column)
        sign = -1.0 if name == "prefix_benefit" else 1.0
        formula = _formula(prepared, block, p, d, parts, name)
        if is_unknown:
            formula = f"unknown; scored as {_s(seconds)} ({formula})"
        terms.append(
            Term(
                name=name,
                seconds=None if is_unknown or not np.isfinite(seconds) else seconds,
                normalised=None if is_unknown or not np.isfinite(normalised) else normalised,
                scored_s=seconds,
                weight=weights[index],
                contribution=sign * weights[index] * normalised,
                formula=formula,
                is_unknown=is_unknown,
            )
        )
    return tuple(terms)


def _bandwidth(block: ScoreBlock, p: int, d: int) -> float:
    rows, columns = np.flatnonzero(block.rows == p), np.flatnonzero(block.columns == d)
    return float(np.broadcast_to(block.model.starts.bandwidth_bytes_per_s, block.shape)[rows[0], columns[0]])


def _formula(prepared: Prepared, block: ScoreBlock, p: int, d: int, parts: Mapping[str, float], name: str) -> str:
    prefill, room, decode, slo = prepared.prefill, prepared.room, prepared.decode, prepared.slo
    value_s = parts[name]
    prompt = prepared.request.prompt_tokens
    start_s = parts["prefill_wait"] + parts["prefill_compute"] + parts["transfer"]
    if name == "prefill_wait":
        return (
            f"{_n(prefill.queued_tokens[p])} tokens ahead / {_n(prefill.rate_tokens_per_s[p])} tokens/s = {_s(value_s)}"
        )
    if name == "prefill_compute":
        return f"{prompt:,} tokens at {_n(prefill.rate_tokens_per_s[p])} tokens/s and their context = {_s(value_s)}"
    if name == "transfer":
        if block.is_alone:
            return "computed where it is decoded: nothing to hand over = 0 s"
        size = prompt * prepared.link.bytes_per_token[p]
        rate = _bandwidth(block, p, d)
        sizes = f"{_n(size / 1e9, 2)} GB + {_n(parts['queued_bytes'] / 1e9, 2)} GB ahead"
        return f"latency + ({sizes}) / {_n(rate / 1e9, 2)} GB/s = {_s(value_s)}"
    if name == "decode_wait":
        left = room.available_tokens[d] - room.reserved_tokens[d]
        return (
            f"room for {_n(room.demand_tokens[d])} of {_n(left)} tokens, net {_n(room.net_tokens_per_s[d])}/s, slot in "
            f"{_s(decode.slot_wait_s[d])}, after {_s(start_s)}; first step {_s(decode.first_step_s[d])} = {_s(value_s)}"
        )
    if name == "kv_pressure":
        ratio = projected_ratio(prepared, d, start_s)
        usable = max(float(prepared.arrays.usable_tokens[d]), 1.0)
        return (
            f"U = ({_n(room.committed_tokens[d])} {room.net_tokens_per_s[d]:+,.0f}/s x {_s(start_s)} + "
            f"{_n(room.demand_tokens[d])}) / {_n(usable)} = {ratio:.3f}; "
            f"reserve {room.reserve_tokens[d] / usable:.3f}; "
            f"max(reserve / (1 - U) - 1, 0) = {_n(value_s, 3)}"
        )
    if name == "slo_risk":
        ttft_s = start_s - parts["prefix_benefit"] + parts["decode_wait"]
        return (
            f"P(TTFT {_s(ttft_s)} > {_s(slo.ttft_s)} or TPOT {_s(decode.first_step_s[d])} > {_s(slo.tpot_s)}) = "
            f"{value_s:.3f}"
        )
    saved_s = float(prefill.whole_s[p] - prefill.uncached_s[p])
    return (
        f"hit of {_n(prepared.hit_tokens[p])} tokens saves {_s(saved_s)} of prefill"
        + ("" if block.is_alone else f" and {_s(value_s - saved_s)} of transfer")
        + f" = {_s(value_s)}"
    )


def projected_ratio(prepared: Prepared, index: int, horizon_s: float) -> float:
    """Return projected utilization of one pool with the request placed, `horizon_s` from now."""
    room = prepared.room
    usable = float(prepared.arrays.usable_tokens[index])
    projected = cost.projected_tokens(
        float(room.committed_tokens[index]), float(room.net_tokens_per_s[index]), horizon_s, usable
    )
    return float(cost.utilization_ratio(projected, float(room.demand_tokens[index]), usable))


def explain_score(terms: tuple[Term, ...]) -> str:
    """Return the whole score as one line with numbers: weight x term, summed."""
    signs = ["-" if term.name == "prefix_benefit" else "+" for term in terms]
    parts = [f"{sign} {term.weight:g} x {term.scored_s:.3g} s" for sign, term in zip(signs, terms, strict=True)]
    total = sum(term.contribution for term in terms)
    return f"({' '.join(parts).removeprefix('+ ')}) / budget = {total:.4g}"


def gate_of(prepared: Prepared, index: int) -> Gate:
    """Return the admission inequality of one pool with its numbers."""
    room = prepared.room
    available, headroom = float(room.available_tokens[index]), float(room.headroom_tokens[index])
    return Gate(
        pool_id=prepared.arrays.ids[index],
        available_tokens=None if np.isnan(available) else available,
        reserved_tokens=float(room.reserved_tokens[index]),
        queued_ahead_tokens=float(room.queued_ahead_tokens[index]),
        growth_tokens=float(room.growth_tokens[index]),
        reserve_delay_growth_tokens=float(room.delay_growth_tokens[index]),
        reserve_failure_share_tokens=float(room.failure_share_tokens[index]),
        reserve_prediction_error_tokens=float(room.prediction_error_tokens[index]),
        demand_tokens=float(room.demand_tokens[index]),
        headroom_tokens=None if np.isnan(headroom) else headroom,
        is_open=bool(room.have_tokens[index] >= room.need_tokens[index]),
        marks=prepared.notes_of(index),
    )


def explain_pair_refusal(prepared: Prepared, block: ScoreBlock, row: int, column: int) -> str:
    """Return why a pair is refused, in words; "" when it is not."""
    code = int(block.codes[row, column])
    p, d = int(block.rows[row]), int(block.columns[row] if block.is_alone else block.columns[column])
    left, right = prepared.arrays.ids[p], prepared.arrays.ids[d]
    cell = block.cell(row, column)
    start_s = float((cell.prefill_wait + cell.prefill_compute + cell.transfer).item())
    words = {
        filters.PAIR_OK: "",
        filters.PAIR_POOL: f"{left} or {right} is refused by itself",
        filters.PAIR_KV: f"KV of {left} cannot be read by {right}: model or KV format differ",
        filters.PAIR_ZONE: f"{left} and {right} are in different zones",
        filters.PAIR_FULL: f"{right} would be full when decode starts in {_s(start_s)}: "
        f"U = {projected_ratio(prepared, d, start_s):.3f}",
        filters.PAIR_UNBOUNDED: f"the wait through {left} and {right} has no bound",
        filters.PAIR_LOCAL: f"the decider lets {right} compute this prompt itself",
    }
    return words[code]

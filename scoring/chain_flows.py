"""
Gross flows of a pool, step by step: what was generated, what was let in, what was given back.

Between two polls the gauge gives only the net change. Where a counter says what was generated or computed in
between, what is left over is split by its sign: a surplus was let in by admission, a shortfall was given back. Both
are lower bounds (what came and went between the same two polls cancels), their difference is exact.

Read next: `risk` (walks), `alarm`, `chain_evidence`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.capacity import compose_history
from scoring.model import FloatArray, PoolHistory, Role

GAP_S: Final = 10.0
"""Steps longer than this are gaps: nothing is said of what happened in them (as old as a stale figure)."""
COUNTERS: Final = (
    "decode_generated_tokens_total",
    "generated_tokens_total",
    "prefill_uncached_tokens_total",
    "decode_steps_total",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """
    The recent past of one pool as flows, oldest first. n samples, n - 1 steps; NaN where unknown.

    Attributes:
        at_s: Instants of the samples, by the engine's clock moved to ours where it gives one. Shape (n,).
        used_tokens, available_tokens, reserved_tokens, usable_tokens, prefix_tokens: At each sample. Shape (n,).
        step_s: Length of each step; NaN over a gap, a restart, a clock set back or a change of capacity. Shape (n-1,).
        grown_tokens: Generated (decode, unified) and computed (prefill, unified) in each step. Shape (n-1,).
        admitted_tokens: Let in beyond that, at least. Shape (n-1,).
        released_tokens: Given back, at least. Shape (n-1,).
        is_counted: Growth comes from counters; else the gauge's rises stand for it.
        newest_index: Index of the newest sample in the history's columns, -1 without one.
    """

    at_s: FloatArray
    used_tokens: FloatArray
    available_tokens: FloatArray
    reserved_tokens: FloatArray
    usable_tokens: FloatArray
    prefix_tokens: FloatArray
    step_s: FloatArray
    grown_tokens: FloatArray
    admitted_tokens: FloatArray
    released_tokens: FloatArray
    is_counted: bool
    newest_index: int

    def last(self, seconds: float) -> slice:
        """Return the steps that ended within the last `seconds`, after the newest break in the series."""
        if self.step_s.size == 0:
            return slice(0, 0)
        first = int(np.searchsorted(self.at_s[1:], self.at_s[-1] - seconds, side="right"))
        broken = np.flatnonzero(~np.isfinite(self.step_s[first:]))
        return slice(first + (int(broken[-1]) + 1 if broken.size else 0), self.step_s.size)

    def rate_per_s(self, tokens: FloatArray, seconds: float) -> float | None:
        """Return tokens per second over the last `seconds`; None without a step."""
        part = self.last(seconds)
        step_s, amount = self.step_s[part], tokens[part]
        known = np.isfinite(amount)
        elapsed_s = float(step_s[known].sum())
        return float(amount[known].sum()) / elapsed_s if elapsed_s > 0 else None


def flows_of(history: PoolHistory, at_s: float, past_s: float = 120.0) -> Flows:
    """
    Return the flows of the `past_s` seconds before `at_s`.

    A poll that brings the same published figures again is no step; a clock set back, a counter that falls (restart),
    a gap and a changed capacity break the series there.
    """
    received = np.asarray(history.at_s, dtype=np.float64)
    first = int(np.searchsorted(received, at_s - past_s, side="left"))
    part = slice(first, int(np.searchsorted(received, at_s, side="right")))
    columns = {name: np.asarray(values, dtype=np.float64)[part] for name, values in history.columns.items()}
    times = received[part]
    stamps = columns.get("reported_at_s")
    if stamps is not None and times.size and np.isfinite(stamps).all():
        lag = times - stamps
        if float(np.ptp(lag)) < GAP_S:
            times = stamps + float(lag.min())
    fresh = np.append(True, np.diff(times) != 0) if times.size else np.zeros(0, bool)
    columns = {name: values[fresh] for name, values in columns.items()}
    times = times[fresh]
    cut = PoolHistory(last=history.last, at_s=times, columns=columns, labels=history.labels)
    words = compose_history(cut)
    step_s = np.diff(times)
    usable = words["usable_tokens"]
    grown, is_counted, is_restart = _grown(columns, history.last.role, times.size)
    with np.errstate(invalid="ignore"):
        is_broken = (step_s <= 0) | (step_s > GAP_S) | is_restart | (np.diff(usable) != 0)
    step_s = np.where(is_broken, np.nan, step_s)
    change = np.where(is_broken, np.nan, np.diff(words["used_tokens"]))
    grown = np.where(is_broken, np.nan, grown if is_counted else np.maximum(change, 0.0))
    surplus = change - grown
    return Flows(
        at_s=times,
        used_tokens=words["used_tokens"],
        available_tokens=words["available_tokens"],
        reserved_tokens=words["reserved_tokens"],
        usable_tokens=usable,
        prefix_tokens=words["prefix_tokens"],
        step_s=step_s,
        grown_tokens=grown,
        admitted_tokens=np.maximum(surplus, 0.0) if is_counted else np.zeros_like(surplus),
        released_tokens=np.maximum(-surplus, 0.0),
        is_counted=is_counted,
        newest_index=part.stop - 1,
    )


def _grown(columns: dict[str, FloatArray], role: Role, size: int) -> tuple[FloatArray, bool, FloatArray]:
    """Return what counters say was added in each step, whether they say it, and where the worker restarted."""
    steps = max(size - 1, 0)
    restart = np.zeros(steps, bool)
    for name in COUNTERS:
        if name in columns:
            with np.errstate(invalid="ignore"):
                restart |= np.diff(columns[name]) < 0
    generated = _first(columns, ("decode_generated_tokens_total", "generated_tokens_total"))
    computed = columns.get("prefill_uncached_tokens_total")
    wanted = {Role.PREFILL: (computed,), Role.DECODE: (generated,)}.get(role, (generated, computed))
    found = [np.diff(column) for column in wanted if column is not None and np.isfinite(column).any()]
    if not found:
        return np.full(steps, np.nan), False, restart
    return np.sum(found, axis=0), True, restart


def _first(columns: dict[str, FloatArray], names: tuple[str, ...]) -> FloatArray | None:
    """Return the first of `names` that says anything, an idle slot's unknown before the first step taken as 0."""
    for name in names:
        column = columns.get(name)
        if column is not None and np.isfinite(column).any():
            first = int(np.flatnonzero(np.isfinite(column))[0])
            filled = column.copy()
            filled[:first] = 0.0 if name.startswith("decode_") else np.nan
            return filled
    return None

"""
The figures of one pool at one instant that the chain's signs and baselines are made of.

Read next: `chain_evidence`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scoring.calibration_error import step_errors
from scoring.calibration_windows import consecutive_windows, readings_of
from scoring.chain_flows import Flows
from scoring.histogram import Buckets, difference, quantile
from scoring.model import FloatArray, PoolHistory, PoolSnapshot, Role
from scoring.service import ServiceProfile

RECENT_S: Final = 15.0
"""Window of flows and counter differences (chosen: long enough for a handful of finished requests)."""
RECOMPUTE_S: Final = 30.0
"""Retracted work is computed again within about so long (chosen)."""
NEWEST_READINGS: Final = 6
"""Readings whose steps are held against calibrated coefficients (chosen: five seconds of one-second polls)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """
    Calibrated coefficients of a pool's decode steps.

    Attributes:
        profile: What predicts them.
        error_ratio: |error| of a prediction at the promise, held out: a step beyond it is slow.
    """

    profile: ServiceProfile
    error_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """
    The figures of one instant that signs and baselines are made of; None where unknown.

    Attributes:
        queue_count: Requests that wait for room here (decode: ready and blocked by capacity; prefill: bootstrap).
        queue_age_s: How long it has not been empty.
        release_share_per_s: Share of what is held given back in a second.
        growth_share_per_s: Share added in a second.
        ttft_s: 99th percentile of the time to first token, else what `ttft_basis` says.
        expected_step_s: Step time that the pool's own past gives for this batch and context.
        newest_step_s: Mean of the steps of the last seconds, for which `modelled_step_s` is the calibrated prediction.
        step_error_ratio: How far that prediction may be off at the promise.
    """

    queue_count: float | None = None
    queue_name: str = ""
    queue_age_s: float | None = None
    release_share_per_s: float | None = None
    growth_share_per_s: float | None = None
    retracted_count: float | None = None
    retracted_queue_count: float | None = None
    evicted_tokens_per_s: float | None = None
    recomputed_tokens_per_s: float | None = None
    load_back_tokens_per_s: float | None = None
    step_s: float | None = None
    expected_step_s: float | None = None
    newest_step_s: float | None = None
    modelled_step_s: float | None = None
    step_error_ratio: float | None = None
    ttft_s: float | None = None
    ttft_basis: str = ""
    itl_s: float | None = None


def look(
    pool: PoolSnapshot,
    history: PoolHistory,
    flows: Flows,
    before: tuple[Buckets | None, Buckets | None],
    steps: StepModel | None = None,
) -> Look:
    """
    Return the figures of one instant.

    Args:
        pool: At this instant.
        history: Its recent past.
        flows: Of that past.
        before: TTFT and ITL histograms some window ago, None where not kept.
        steps: Calibrated coefficients to hold its steps against, None without any.
    """
    reading = pool.reading
    past = _Past(history, flows)
    name, queue = _queue(pool)
    held = float(flows.used_tokens[-1]) if flows.used_tokens.size else math.nan
    released = flows.rate_per_s(flows.released_tokens, RECENT_S)
    grown, admitted = (flows.rate_per_s(tokens, RECENT_S) for tokens in (flows.grown_tokens, flows.admitted_tokens))
    is_holding = math.isfinite(held) and held > 0
    ttft_s, basis = _ttft(pool, past, flows, admitted, before[0])
    itl = _p99(before[1], reading.itl_buckets)
    recomputed = [past.per_s(each, RECOMPUTE_S) for each in _recompute_counters(reading.role)]
    known = [value for value in recomputed if value is not None]
    newest_step_s, modelled_step_s = (None, None) if steps is None else _modelled(history, flows, steps.profile)
    return Look(
        queue_count=queue,
        queue_name=name,
        queue_age_s=past.since_zero_s(name),
        release_share_per_s=released / held if released is not None and is_holding else None,
        growth_share_per_s=(grown + admitted) / held
        if grown is not None and admitted is not None and is_holding
        else None,
        retracted_count=past.counted("retracted_total", RECENT_S),
        retracted_queue_count=reading.queue_retracted_count,
        evicted_tokens_per_s=past.per_s("evicted_tokens_total", RECENT_S),
        recomputed_tokens_per_s=max(known) if known else None,
        load_back_tokens_per_s=past.per_s("load_back_tokens_total", RECOMPUTE_S),
        step_s=past.step_s(RECENT_S),
        expected_step_s=past.expected_step_s(),
        newest_step_s=newest_step_s,
        modelled_step_s=modelled_step_s,
        step_error_ratio=None if steps is None else steps.error_ratio,
        ttft_s=ttft_s,
        ttft_basis=basis,
        itl_s=itl if itl is not None else past.ratio("itl_s_total", "itl_count_total", RECENT_S),
    )


def _modelled(history: PoolHistory, flows: Flows, profile: ServiceProfile) -> tuple[float | None, float | None]:
    """Return mean step seconds of the newest readings and what a profile predicts, by calibration's own rows."""
    end = flows.newest_index + 1
    part = slice(max(0, end - NEWEST_READINGS), end)
    cut = replace(
        history, at_s=history.at_s[part], columns={name: column[part] for name, column in history.columns.items()}
    )
    rows = [found.decode for found in consecutive_windows(readings_of(cut)) if found.decode is not None]
    settled = step_errors(rows, profile, "", is_held_out=True)
    if not settled:
        return None, None
    weights = [row.step_count for row in rows]
    actual, predicted = ([getattr(each, name) for each in settled] for name in ("actual", "predicted"))
    return float(np.average(actual, weights=weights)), float(np.average(predicted, weights=weights))


def _recompute_counters(role: Role) -> tuple[str, ...]:
    # A decode worker computes prompts only to do retracted work again; elsewhere only the retraction counters tell.
    own = ("retracted_input_tokens_total", "retracted_output_tokens_total")
    return (*own, "prefill_uncached_tokens_total") if role is Role.DECODE else own


def _queue(pool: PoolSnapshot) -> tuple[str, float | None]:
    reading = pool.reading
    names: Sequence[str] = {
        Role.DECODE: ("prealloc_ready_count", "queue_prealloc_count"),
        Role.PREFILL: ("queue_bootstrap_count",),
    }.get(pool.role, ("queue_main_count", "waiting_count"))
    for name in names:
        value = getattr(reading, name)
        if value is not None:
            return name, float(value)
    return names[-1], None


def _p99(before: Buckets | None, after: Buckets | None) -> float | None:
    if after is None or before is None:
        return None
    figure = quantile(difference(before, after), 0.99)
    return figure.value if figure.value is not None else figure.low


def _ttft(
    pool: PoolSnapshot, past: "_Past", flows: Flows, admitted_per_s: float | None, before: Buckets | None
) -> tuple[float | None, str]:
    """Return the time to first token: its 99th percentile, else its mean, else the wait for room by Little's law."""
    found = _p99(before, pool.reading.ttft_buckets)
    if found is not None:
        return found, "99th percentile of the last seconds"
    mean = past.ratio("ttft_s_total", "ttft_count_total", RECENT_S)
    if mean is not None:
        return mean, "mean of the last seconds"
    name, queue = _queue(pool)
    age_s = past.since_zero_s(name)
    if queue is None or age_s is None or not flows.step_s.size:
        return None, ""
    if pool.role is Role.PREFILL:
        done = past.per_s("transfers_total", RECENT_S)
        left = queue / done if done else math.inf
    else:
        waiting = pool.composition.queued_tokens.value
        left = waiting / admitted_per_s if waiting is not None and admitted_per_s else math.inf
    # Nobody has waited longer than the queue has stood; while nothing is let in that is all that is known.
    return (0.0 if queue <= 0 else min(left, age_s)), "wait for room: queue / pace of admission, at most its age"


class _Past:
    """Differences of counters over the newest unbroken stretch."""

    def __init__(self, history: PoolHistory, flows: Flows) -> None:
        self._end = flows.newest_index + 1
        self._columns = history.columns
        self._at_s = np.asarray(history.at_s, dtype=np.float64)[: self._end]
        part = flows.last(math.inf)
        # The stretch in our clock's samples: as far back as the flows' own unbroken stretch reaches.
        reach_s = float(flows.at_s[-1] - flows.at_s[part.start]) if flows.at_s.size else 0.0
        self._reach_s = reach_s + 1e-6

    def _window(self, name: str, seconds: float) -> tuple[FloatArray, FloatArray] | None:
        column = self._columns.get(name)
        if column is None or not self._end:
            return None
        since = self._at_s[-1] - min(seconds, self._reach_s)
        first = int(np.searchsorted(self._at_s, since - 1e-9, side="left"))
        values, times = np.asarray(column, dtype=np.float64)[first : self._end], self._at_s[first:]
        known = np.isfinite(values)
        return (times[known], values[known]) if int(known.sum()) >= 2 else None

    def counted(self, name: str, seconds: float) -> float | None:
        """
        Return what a counter counted; None without two samples.

        A counter that was absent and appears (SGLang creates some at their first event) has counted its whole value.
        """
        found = self._window(name, seconds)
        if found is None:
            return self._appeared(name, seconds)
        rises = np.diff(found[1])
        born = self._appeared(name, seconds) or 0.0
        return float(np.sum(np.maximum(rises, 0.0))) + born

    def _appeared(self, name: str, seconds: float) -> float | None:
        column = self._columns.get(name)
        if column is None or not self._end:
            return None
        first = int(np.searchsorted(self._at_s, self._at_s[-1] - min(seconds, self._reach_s) - 1e-9, side="left"))
        values = np.asarray(column, dtype=np.float64)[first : self._end]
        known = np.flatnonzero(np.isfinite(values))
        return float(values[known[0]]) if known.size and known[0] > 0 else None

    def per_s(self, name: str, seconds: float) -> float | None:
        """Return the same per second."""
        counted = self.counted(name, seconds)
        elapsed_s = min(seconds, self._reach_s)
        return None if counted is None or elapsed_s < 1e-3 else counted / elapsed_s

    def ratio(self, top: str, bottom: str, seconds: float) -> float | None:
        """Return the ratio of two counters' increases; None where the lower one did not rise."""
        above, below = self.counted(top, seconds), self.counted(bottom, seconds)
        return above / below if above is not None and below else None

    def step_s(self, seconds: float) -> float | None:
        """Return seconds per decode step."""
        return self.ratio("decode_step_s_total", "decode_steps_total", seconds)

    def since_zero_s(self, name: str) -> float | None:
        """Return for how long a count has been above 0 without a break; None when not known."""
        column = self._columns.get(name)
        if column is None or not self._end or not math.isfinite(column[self._end - 1]):
            return None
        values = np.asarray(column, dtype=np.float64)[: self._end]
        empty = np.flatnonzero(~(values > 0))
        first = int(empty[-1]) + 1 if empty.size else 0
        return 0.0 if first >= self._end else float(self._at_s[-1] - self._at_s[first])

    def expected_step_s(self) -> float | None:
        """
        Return the step time that the pool's own past gives for its present batch and context.

        Least squares of step seconds on 1, batch and tokens held, over steps at least 5 s old; None with fewer than
        20 of them, or where the present lies outside what was seen (a line says nothing there).
        """
        names = ("decode_steps_total", "decode_step_s_total", "decode_batch_sum_total", "used_tokens")
        columns = [self._columns.get(name) for name in names]
        if any(column is None for column in columns) or self._end < 25:
            return None
        first = max(0, self._end - 300)
        table = np.stack([np.asarray(column, dtype=np.float64)[first : self._end] for column in columns])
        steps, seconds, batch = (np.diff(row) for row in table[:3])
        with np.errstate(all="ignore"):
            is_step = (steps > 0) & (seconds > 0) & (batch > 0)
            step, mean, held = seconds / steps, batch / steps, table[3][1:]
        usable = is_step & np.isfinite(step) & np.isfinite(held)
        old = usable & (self._at_s[first + 1 : self._end] <= self._at_s[-1] - 5.0)
        new = np.flatnonzero(usable)
        if int(old.sum()) < 20 or not new.size:
            return None
        now = int(new[-1])
        if not (mean[old].min() <= mean[now] <= mean[old].max() and held[old].min() <= held[now] <= held[old].max()):
            return None
        design = np.stack([np.ones(int(old.sum())), mean[old], held[old]], axis=1)
        scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
        weights, *_ = np.linalg.lstsq(design / scale, step[old], rcond=None)
        found = float(np.array([1.0, mean[now], held[now]]) / scale @ weights)
        return found if found > 0 else None

"""
What speaks for each of the six stages of the saturation chain, of one pool at one instant.

A sign is a number against a threshold from the pool's own past, with a sentence; `is_seen` None means the source
does not show it. Nothing here remembers anything: `chain` keeps the baselines and decides what lights.

Read next: `chain`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from scoring.alarm import PoolRisk
from scoring.chain_flows import Flows
from scoring.histogram import Buckets, difference, quantile
from scoring.model import FloatArray, PoolHistory, PoolSnapshot, Role


class Stage(IntEnum):
    """Where on the chain a pool stands: the furthest stage that is lit."""

    CANNOT_SEE = -1
    HEALTHY = 0
    THIN_HEADROOM = 1
    ADMISSION_STALLS = 2
    RETRACTION = 3
    RECOMPUTE = 4
    SLOW_RELEASE = 5
    TAIL_LATENCY = 6

    @property
    def word(self) -> str:
        """Return the stable kebab-case word, as stored."""
        return self.name.lower().replace("_", "-")


STAGES: Final = tuple(stage for stage in Stage if stage > Stage.HEALTHY)

RECENT_S: Final = 15.0
"""Window of flows and counter differences (chosen: long enough for a handful of finished requests)."""
RECOMPUTE_S: Final = 30.0
"""Retracted work is computed again within about so long (chosen)."""
QUEUE_AGE_S: Final = 3.0
"""A queue younger than this is a queue in passing (chosen: three one-second polls)."""
BUSY_RATIO: Final = 0.3
"""Below this share held, slow release says nothing: there is little to release (chosen)."""
SLOW_RATIO: Final = 0.5
"""Release is slow at half its own normal share (chosen)."""
STEP_RATIO: Final = 1.25
"""A step is slow at this many times what the pool's own past gives for its batch and context (chosen)."""
TAIL_RATIO: Final = 2.0
"""A tail is long at twice its own normal (chosen until calibrated to an SLO)."""
EVICT_RATIO: Final = 3.0
LEAST_TAIL_S: Final = 1.0
"""Nobody is told of a time to first token below this (chosen: an interactive budget)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """
    One reason for or against a stage.

    Attributes:
        stage: Which.
        is_seen: True, False, or None where the source does not show it.
        value: The number judged, None when unknown.
        threshold: What it was held against, None without one.
        text: One sentence with the numbers.
    """

    stage: Stage
    is_seen: bool | None
    value: float | None = None
    threshold: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """
    What is normal for the pool: means learnt while it was well. None until enough was seen.

    Attributes:
        queue_count: Waiting requests, with their spread.
        release_share_per_s: Share of what is held that is given back in a second.
        evicted_tokens_per_s: Prefix evicted.
        ttft_s, itl_s: 99th percentiles, or the estimate that stands in for the first.
    """

    queue_count: float | None = None
    queue_spread: float | None = None
    release_share_per_s: float | None = None
    evicted_tokens_per_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None


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
    ttft_s: float | None = None
    ttft_basis: str = ""
    itl_s: float | None = None


def look(pool: PoolSnapshot, history: PoolHistory, flows: Flows, before: tuple[Buckets | None, Buckets | None]) -> Look:
    """Return the figures of one instant. `before`: TTFT and ITL histograms some window ago, None where not kept."""
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
        ttft_s=ttft_s,
        ttft_basis=basis,
        itl_s=itl if itl is not None else past.ratio("itl_s_total", "itl_count_total", RECENT_S),
    )


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


def signs(
    pool: PoolSnapshot,
    at: Look,
    risk: PoolRisk,
    normal: Normal,
    *,
    is_thin: bool,
    is_begun: bool,
    is_retracted: bool,
) -> tuple[Sign, ...]:
    """
    Return one sign a stage, in order.

    `is_thin`: headroom is thin, so that queues and evictions are its doing. `is_begun`: admission stalls or work is
    retracted, or was a moment ago, so that repeated work, slow release and long tails are the chain's doing.
    `is_retracted`: work is retracted, so that a slow step may be repeated work.
    """
    return (
        _thin(risk),
        _stalls(pool, at, normal, is_near=is_thin or is_begun),
        _retraction(at, normal, is_thin=is_thin),
        _recompute(at, is_near=is_begun, is_retracted=is_retracted),
        _slow(pool, at, normal, is_near=is_begun),
        _tail(at, normal, is_near=is_begun),
    )


def _thin(risk: PoolRisk) -> Sign:
    stage = Stage.THIN_HEADROOM
    if risk.headroom_tokens is None:
        return Sign(stage=stage, is_seen=None, text=risk.reason or "the reserve is not known")
    text = f"headroom {risk.headroom_tokens:.0f} tokens: available less reserved less safety reserve"
    return Sign(stage=stage, is_seen=risk.headroom_tokens <= 0, value=risk.headroom_tokens, threshold=0.0, text=text)


def _stalls(pool: PoolSnapshot, at: Look, normal: Normal, *, is_near: bool) -> Sign:
    stage = Stage.ADMISSION_STALLS
    if at.queue_count is None or at.queue_age_s is None:
        return Sign(stage=stage, is_seen=None, text="the source does not report who waits for room")
    is_for_room = at.queue_name == "prealloc_ready_count"
    if is_for_room:
        limit = 1.0  # Nobody stands there but for want of room: one is too many, whatever is usual.
    elif normal.queue_count is None:
        return Sign(stage=stage, is_seen=None, value=at.queue_count, text="how many usually wait is not known yet")
    else:
        limit = max(1.0, normal.queue_count + 3.0 * (normal.queue_spread or 0.0))
    # Prefill's queue stands for want of room on decode; the others may wait for compute.
    is_cause = is_near or is_for_room or pool.role is Role.PREFILL
    is_seen = at.queue_count >= limit and at.queue_age_s >= QUEUE_AGE_S and is_cause
    text = (
        f"{at.queue_count:.0f} wait ({at.queue_name}), not empty for {at.queue_age_s:.0f} s; usual at most {limit:.1f}"
    )
    return Sign(stage=stage, is_seen=is_seen, value=at.queue_count, threshold=limit, text=text)


def _retraction(at: Look, normal: Normal, *, is_thin: bool) -> Sign:
    stage = Stage.RETRACTION
    if at.retracted_count:
        text = f"{at.retracted_count:.0f} retracted in {RECENT_S:.0f} s"
        return Sign(stage=stage, is_seen=True, value=at.retracted_count, threshold=0.0, text=text)
    if at.retracted_queue_count:
        text = f"{at.retracted_queue_count:.0f} retracted requests wait to come back"
        return Sign(stage=stage, is_seen=True, value=at.retracted_queue_count, threshold=0.0, text=text)
    rate, usual = at.evicted_tokens_per_s, normal.evicted_tokens_per_s
    if rate is not None and usual is not None and is_thin and rate > max(EVICT_RATIO * usual, 1.0):
        text = f"{rate:.0f} tokens/s of prefix evicted; usual {usual:.0f}"
        return Sign(stage=stage, is_seen=True, value=rate, threshold=EVICT_RATIO * usual, text=text)
    if at.retracted_count is None and at.retracted_queue_count is None and rate is None:
        return Sign(stage=stage, is_seen=None, text="the source reports neither retractions nor evictions")
    return Sign(stage=stage, is_seen=False, value=0.0, threshold=0.0, text="nothing retracted")


def _recompute(at: Look, *, is_near: bool, is_retracted: bool) -> Sign:
    stage = Stage.RECOMPUTE
    for value, words in (
        (at.recomputed_tokens_per_s, "tokens/s to compute again"),
        (at.load_back_tokens_per_s, "tokens/s loaded back"),
    ):
        if value and is_near:
            text = f"{value:.0f} {words} over {RECOMPUTE_S:.0f} s"
            return Sign(stage=stage, is_seen=True, value=value, threshold=0.0, text=text)
    if at.step_s is not None and at.expected_step_s is not None:
        limit = STEP_RATIO * at.expected_step_s
        text = f"step {at.step_s * 1e3:.1f} ms; its own past gives {at.expected_step_s * 1e3:.1f} ms at this batch"
        is_seen = is_retracted and at.step_s > limit
        return Sign(stage=stage, is_seen=is_seen, value=at.step_s, threshold=limit, text=text)
    if at.recomputed_tokens_per_s is None and at.load_back_tokens_per_s is None:
        return Sign(stage=stage, is_seen=None, text="the source reports no recomputed or reloaded tokens")
    return Sign(stage=stage, is_seen=False, value=0.0, threshold=0.0, text="nothing computed again")


def _slow(pool: PoolSnapshot, at: Look, normal: Normal, *, is_near: bool) -> Sign:
    stage = Stage.SLOW_RELEASE
    share, usual = at.release_share_per_s, normal.release_share_per_s
    if share is None or usual is None:
        return Sign(stage=stage, is_seen=None, text="what is usually given back is not known yet")
    used, usable = pool.composition.used_tokens.value, pool.composition.usable_tokens.value
    is_busy = used is not None and bool(usable) and used > BUSY_RATIO * (usable or 1.0)
    limit = SLOW_RATIO * usual
    text = f"{share:.1%} of what is held is given back in a second; usual {usual:.1%}"
    return Sign(stage=stage, is_seen=is_near and is_busy and share < limit, value=share, threshold=limit, text=text)


def _tail(at: Look, normal: Normal, *, is_near: bool) -> Sign:
    stage = Stage.TAIL_LATENCY
    unseen = Sign(stage=stage, is_seen=None, text="the source reports no latency and no queue in tokens")
    if at.ttft_s is not None:
        limit = max(LEAST_TAIL_S, TAIL_RATIO * (normal.ttft_s or 0.0))
        usual = "not known" if normal.ttft_s is None else f"{normal.ttft_s:.2f} s"
        text = f"time to first token {at.ttft_s:.1f} s ({at.ttft_basis}); usual {usual}"
        unseen = Sign(stage=stage, is_seen=is_near and at.ttft_s > limit, value=at.ttft_s, threshold=limit, text=text)
    if not unseen.is_seen and at.itl_s is not None and normal.itl_s is not None:
        limit = TAIL_RATIO * normal.itl_s
        text = f"inter-token latency {at.itl_s * 1e3:.0f} ms; usual {normal.itl_s * 1e3:.0f} ms"
        sign = Sign(stage=stage, is_seen=is_near and at.itl_s > limit, value=at.itl_s, threshold=limit, text=text)
        return sign if sign.is_seen or unseen.is_seen is None else unseen
    return unseen

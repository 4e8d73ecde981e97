"""
How old a pool's figures are, and whether they may be used.

Where the engine says when its figures were true, age is `now - reported`, less the offset between the two clocks.
Where it does not, figures that stop moving while requests wait are taken for frozen: SGLang 0.5.13 to 0.5.15
publish nothing while queues are parked, which is exactly when the figures matter.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.model import COUNTER, GAUGE, FloatArray, PoolHistory, SourceState, signal_names

NOTHING_YET_CODE: Final = "nothing-published-yet"
"""Finding code by which a dialect says that a slot exists and nothing was ever published into it."""
MAX_NODE_SKEW_S: Final = 0.5
"""Reported this much later than answered: the two stamps come from different nodes' clocks (chosen)."""
LARGE_OFFSET_S: Final = 30.0
"""A constant lag beyond this, with figures that keep moving, is a clock and not a delay (chosen)."""

_MOVING: Final = tuple(name for name in (*signal_names(GAUGE), *signal_names(COUNTER)) if name != "reported_at_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessThresholds:
    """
    When figures are old.

    Attributes:
        late_after_s: Age from which figures are late: still scored, drawn as late.
        stale_after_s: Age from which they are stale: not scored.
        frozen_after_polls: Polls without any change, while requests wait, that make figures frozen.
    """

    late_after_s: float = 3.0
    stale_after_s: float = 10.0
    frozen_after_polls: int = 5

    def __post_init__(self) -> None:
        """Refuse thresholds that would make a state unreachable."""
        if not 0 < self.late_after_s < self.stale_after_s:
            raise ValueError(f"late_after_s {self.late_after_s} must be above 0 and below stale_after_s")
        if self.frozen_after_polls < 2:
            raise ValueError(f"frozen_after_polls: {self.frozen_after_polls} is not at least 2")


def clock_offset_s(history: PoolHistory) -> float | None:
    """
    Return how far our clock is ahead of the engine's (negative: behind), or None where the engine gives no time.

    An answer is received a moment after it was built, and built no earlier than its figures: both differences bound
    the offset from above, and the smaller one is taken. Without the time of the answer, the time of the figures
    serves only where it proves an offset: figures from the future, or a large, steady lag of figures that move.
    """
    stamps = _column(history, "reported_at_s")
    lag = np.asarray(history.at_s, dtype=np.float64) - stamps
    lag = lag[np.isfinite(lag)]
    if not lag.size:
        return None
    least = float(np.min(lag))
    last = history.last
    answered, reported = last.answered_at_s, last.reported_at_s
    if answered is not None and reported is not None and reported <= answered + MAX_NODE_SKEW_S:
        return min(least, last.received_at_s - answered)
    if least < 0:
        return least
    if least > LARGE_OFFSET_S and np.unique(stamps[np.isfinite(stamps)]).size >= 3 and float(np.ptp(lag)) < least / 2:
        return least
    return 0.0


def judge_age(
    history: PoolHistory, at_s: float, thresholds: FreshnessThresholds | None = None
) -> tuple[SourceState, float | None, str]:
    """
    Return the state of a pool's newest figures at `at_s`, their age in seconds and one line of reason.

    The state of the last poll comes first (down, unauthorised, not understood); then nothing published yet; then
    age. Age is None before any answer.
    """
    limits = thresholds or FreshnessThresholds()
    age_s, reason = _age(history, at_s, limits)
    if history.poll_state in (SourceState.DOWN, SourceState.UNAUTHORISED, SourceState.NOT_UNDERSTOOD):
        detail = history.poll_detail or history.poll_state.value.replace("_", " ")
        return history.poll_state, age_s, detail
    is_nothing = any(finding.code == NOTHING_YET_CODE for finding in history.last.findings)
    if history.poll_state is SourceState.NOTHING_YET or is_nothing:
        return SourceState.NOTHING_YET, None, "the worker answers, its scheduler has published nothing yet"
    if age_s is None:
        return SourceState.NOTHING_YET, None, "not polled yet"
    if age_s > limits.stale_after_s:
        return SourceState.STALE, age_s, f"{reason}; stale after {limits.stale_after_s:g} s"
    if history.poll_state is SourceState.STALE:
        return SourceState.STALE, age_s, history.poll_detail or reason
    if age_s > limits.late_after_s:
        return SourceState.LATE, age_s, f"{reason}; late after {limits.late_after_s:g} s"
    if history.poll_state is SourceState.LATE:
        return SourceState.LATE, age_s, history.poll_detail or "the last poll failed"
    return SourceState.FRESH, age_s, reason


def _age(history: PoolHistory, at_s: float, limits: FreshnessThresholds) -> tuple[float | None, str]:
    """Return age and how it was found."""
    times = np.asarray(history.at_s, dtype=np.float64)
    if times.size == 0:
        received = history.last.received_at_s
        return (max(0.0, at_s - received), "age since the answer") if received > 0 else (None, "")
    reported = _column(history, "reported_at_s")
    offset = clock_offset_s(history)
    if offset is not None and np.isfinite(reported[-1]):
        age_s = max(0.0, at_s - offset - float(reported[-1]))
        ahead = "behind" if offset > 0 else "ahead"
        clock = f", engine clock {abs(offset):.1f} s {ahead}" if abs(offset) >= 1.0 else ""
        return age_s, f"figures were true {age_s:.1f} s ago by the engine's clock{clock}"
    since_s = max(0.0, at_s - float(times[-1]))
    frozen = frozen_since(history, limits.frozen_after_polls)
    if frozen is not None:
        frozen_s = max(0.0, at_s - frozen)
        text = f"no figure has changed for {frozen_s:.0f} s while requests run or wait: frozen"
        return max(frozen_s, since_s), text
    return since_s, f"answered {since_s:.1f} s ago; the engine gives no time of its own"


def frozen_since(history: PoolHistory, polls: int) -> float | None:
    """
    Return when the figures stopped moving (our clock), or None while they move, idle, or are too few to tell.

    Frozen: the newest `polls` samples are equal in every gauge and counter although requests run or wait.
    """
    times = np.asarray(history.at_s, dtype=np.float64)
    if times.size < polls:
        return None
    busy = 0.0
    for name in ("running_count", "waiting_count", "queue_inflight_count"):
        busy += float(np.nan_to_num(_column(history, name)[-1]))
    if busy <= 0:
        return None
    first = 0
    for name in _MOVING:
        column = history.columns.get(name)
        if column is None:
            continue
        differs = np.flatnonzero((column != column[-1]) & ~(np.isnan(column) & np.isnan(column[-1])))
        if differs.size:
            first = max(first, int(differs[-1]) + 1)
            if times.size - first < polls:
                return None
    return float(times[first])


def _column(history: PoolHistory, name: str) -> FloatArray:
    column = history.columns.get(name)
    size = len(history.at_s)
    return np.full(size, np.nan) if column is None else np.asarray(column, dtype=np.float64)

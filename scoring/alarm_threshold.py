"""
At what probability the saturation alarm goes on: from a stated SLO, by what this fleet's retractions were foretold
with, until there are enough of them by the pool's own history over what simulated runs say.

The promise: this share of first retractions is told of at least LEAD_S before. A retraction's level is the highest
probability that stood (for the alarm's own dwell) early enough before it; the threshold is the quantile of these
levels that leaves the promised share above. How often nothing came of such a level is counted in quiet minutes.

Pure: `step_record` takes the record before and gives the record after. Read next: `alarm`, `chain`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

LEAD_S: Final = 10.0
"""A retraction told of later than this before it is not foretold (the backtest's lead)."""
WINDOW_S: Final = 60.0
"""An alarm is given so long to come true, and a pool must have been free of retractions for so long before a first
one (the backtest's window)."""
OFF_SHARE: Final = 0.4
"""The alarm goes out at this share of what it goes on at (chosen)."""
LEAST_ON: Final = 0.3
MOST_ON: Final = 0.97
"""Bounds of a threshold. Below 0.3 the backtest's alarm tells of no more retractions in time and is wrong more often
than one time in five (docs/backtest.md); above 0.97 it would hardly ever go on (chosen)."""
LEAST_QUIET_COUNT: Final = 10
"""Quiet minutes before a pool's own history counts (chosen)."""
QUIET_PER_HOUR: Final = 60.0
FALSE_PER_HOUR: Final = 1.0
"""A pool's own history may raise its threshold so far that quiet minutes reach it this often (chosen)."""
SLACK_S: Final = 1e-3
"""Instants of today are exact to a quarter of a microsecond as numbers, so spans are compared with some room."""
MINUTES_KEPT: Final = 1440
"""Quiet minutes remembered of a pool: a day."""

FORECAST_BASIS: Final = "forecast"
WALK_BASIS: Final = "walk"
BASES: Final = (FORECAST_BASIS, WALK_BASIS)

_SIMULATED: Final = """
0.028 0.347 0.408 0.671 0.673 0.719 0.821 0.822 0.838 0.849 0.853 0.861 0.863 0.893 0.896 0.903 0.919 0.928 0.937
0.942 0.953 0.956 0.957 0.963 0.964 0.966 0.967 0.971 0.975 0.975 0.976 0.977 0.978 0.981 0.981 0.985 0.985 0.986
0.987 0.988 0.99 0.99 0.991 0.991 0.992 0.992 0.993 0.993 0.994 0.994 0.995 0.995 0.996 0.997 0.997 0.997 0.997
0.997 0.997 0.998 0.998 0.998 0.998 0.998 0.999 0.999 0.999 0.999 0.999 0.999 1.0 1.0 1.0 1.0 1.0 1.0 1.0 1.0 1.0
1.0
"""
SIMULATED: Final = tuple(float(level) for level in _SIMULATED.split())
"""Levels at which the first retractions of the simulated training runs were foretold, ascending
(80 in 56 runs of the families that hold any; `kvscope backtest --fit --seeds 280` prints them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """
    One first retraction and how it was foretold.

    Attributes:
        at_s: When the retraction was seen.
        pool: Its pool.
        basis: "forecast" or "walk": what the alarm was judged by then.
        level: Highest probability that had stood LEAD_S before; 0 when none had.
    """

    at_s: float
    pool: str
    basis: str
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """
    What is remembered of one pool to settle its alarm's probabilities.

    Attributes:
        looks: (at_s, probability) within the dwell, oldest first: known without a break.
        levels: (at_s, level that stood) of the last WINDOW_S.
        basis: Of the newest level.
        minute_at_s: When the minute under way began; None before the first known look.
        minute_level: Highest level in it.
        pending: (end, level) of minutes that a retraction may still follow.
        quiet: Levels of minutes that nothing followed, of the present basis, oldest first.
        retracted: Newest counter of retractions, or queue of retracted requests.
        retracted_at_s: When it last rose; None if never.
        began_at_s: When watching began, or began again.
        last_at_s: Newest look.
    """

    looks: tuple[tuple[float, float], ...] = ()
    levels: tuple[tuple[float, float], ...] = ()
    basis: str = ""
    minute_at_s: float | None = None
    minute_level: float = 0.0
    pending: tuple[tuple[float, float], ...] = ()
    quiet: tuple[float, ...] = ()
    retracted: float | None = None
    retracted_at_s: float | None = None
    began_at_s: float | None = None
    last_at_s: float | None = None


def step_record(
    record: Record,
    at_s: float,
    *,
    pool: str,
    probability: float | None,
    basis: str,
    retracted: float | None,
    is_counter: bool = True,
    dwell_s: float,
) -> tuple[Record, Foretold | None]:
    """
    Return the record after one look, and the first retraction it settles.

    Args:
        record: Before.
        at_s: Of the look.
        pool: Whose.
        probability: What the alarm is judged by; None when not known.
        basis: Of BASES; anything else is as good as unknown.
        retracted: Retractions counted so far, or requests that wait in the queue of retracted ones; None: not reported,
            and nothing settles.
        is_counter: `retracted` only ever falls with a restart.
        dwell_s: How long a probability must hold to raise the alarm.
    """
    is_back = record.last_at_s is not None and at_s <= record.last_at_s
    has_fallen = retracted is not None and record.retracted is not None and retracted < record.retracted
    is_over = is_counter and has_fallen
    is_hole = record.last_at_s is not None and at_s - record.last_at_s > LEAD_S
    if is_back and at_s == record.last_at_s:
        return record, None
    if is_back or is_over or is_hole:
        # A clock set back, a restart, or nobody looked: what stood before says nothing of what came.
        record = Record(quiet=record.quiet, basis=record.basis)
    if record.began_at_s is None:
        record = replace(record, began_at_s=at_s)
    found = None
    has_risen = retracted is not None and record.retracted is not None and retracted > record.retracted
    if has_risen:
        found = _settled(record, at_s, pool)
        record = replace(record, pending=(), minute_at_s=None, minute_level=0.0, retracted_at_s=at_s)
    record = replace(record, retracted=retracted if retracted is not None else record.retracted, last_at_s=at_s)
    if probability is None or basis not in BASES or not math.isfinite(probability):
        return replace(record, looks=(), minute_at_s=None, minute_level=0.0), found
    if basis != record.basis:
        record = replace(record, basis=basis, looks=(), levels=(), quiet=(), pending=(), minute_at_s=None)
    begin_s = at_s - dwell_s
    looks = (*(each for each in record.looks if each[0] >= begin_s - SLACK_S), (at_s, probability))
    if looks[0][0] > begin_s + SLACK_S:
        # Polls do not fall on the dwell's begin: the look before it shows whether the probability held by then.
        looks = (*[each for each in record.looks if each[0] < begin_s][-1:], *looks)
    levels = tuple(each for each in record.levels if each[0] >= at_s - WINDOW_S - LEAD_S)
    if looks[-1][0] - looks[0][0] >= dwell_s - SLACK_S:
        levels = (*levels, (at_s, min(value for _, value in looks)))
    return _minute(replace(record, looks=looks, levels=levels), at_s), found


def _settled(record: Record, at_s: float, pool: str) -> Foretold | None:
    """Return the first retraction; None for one of a row, or where too little was seen before it."""
    is_first = record.retracted_at_s is None or at_s - record.retracted_at_s >= WINDOW_S - SLACK_S
    if not is_first or record.began_at_s is None or at_s - record.began_at_s < LEAD_S - SLACK_S or not record.basis:
        return None
    early = [level for when, level in record.levels if at_s - WINDOW_S - SLACK_S <= when <= at_s - LEAD_S + SLACK_S]
    if not early and not record.levels:
        return None  # Nothing was known: no alarm could have told.
    return Foretold(at_s=at_s, pool=pool, basis=record.basis, level=max(early, default=0.0))


def _minute(record: Record, at_s: float) -> Record:
    """Close the minute under way when it is over, and count those that nothing followed."""
    is_after = record.retracted_at_s is not None and at_s - record.retracted_at_s < WINDOW_S - SLACK_S
    if is_after or record.retracted is None:
        return replace(record, minute_at_s=None, minute_level=0.0)
    quiet, pending = record.quiet, record.pending
    if pending and at_s - pending[0][0] >= WINDOW_S - SLACK_S:
        ended = tuple(level for end, level in pending if at_s - end >= WINDOW_S - SLACK_S)
        quiet = (*quiet, *ended)[-MINUTES_KEPT:]
        pending = tuple(each for each in pending if at_s - each[0] < WINDOW_S - SLACK_S)
    began, level = record.minute_at_s, record.minute_level
    if record.levels and record.levels[-1][0] == at_s:
        level = max(level, record.levels[-1][1])
    if began is None:
        began = at_s
    elif at_s - began >= WINDOW_S - SLACK_S:
        pending, began, level = (*pending, (at_s, level)), at_s, 0.0
    return replace(record, quiet=quiet, pending=pending, minute_at_s=began, minute_level=level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """
    Where the alarm of one pool goes on and off, and why there.

    Attributes:
        on, off: Probabilities.
        basis: "forecast" or "walk".
        source: "calibrated" (this fleet's retractions), "history" (raised by the pool's own quiet minutes),
            "simulated" (the levels of simulated runs), or "chosen" (the walk, before either).
        promise_ratio: Share of first retractions to be told of in time.
        event_count: First retractions of this fleet settled by this basis.
        needed_count: How many it takes.
        kept_ratio: Share of these that the threshold tells of in time; None without any.
        quiet_count: Quiet minutes known of the pool.
        quiet_level: Level that they reach about once an hour; None with too few.
        false_per_hour: How often the pool's quiet minutes reach the threshold; None with too few.
    """

    on: float
    off: float
    basis: str
    source: str
    promise_ratio: float
    event_count: int
    needed_count: int
    kept_ratio: float | None
    quiet_count: int
    quiet_level: float | None
    false_per_hour: float | None


def level_of_promise(levels: Sequence[float], promise_ratio: float) -> float:
    """Return the level that the promised share of `levels` reaches: never above it for a stricter promise."""
    return float(np.quantile(np.asarray(levels, np.float64), 1.0 - promise_ratio, method="lower"))


def threshold(
    basis: str,
    promise_ratio: float,
    levels: Sequence[float],
    quiet: Sequence[float],
    chosen: float,
    simulated: Sequence[float] = SIMULATED,
) -> Threshold:
    """
    Return the threshold of one pool.

    Args:
        basis: What its alarm is judged by.
        promise_ratio: Share of first retractions to be told of LEAD_S before; 0 to 1, exclusive.
        levels: At which this fleet's first retractions were foretold by that basis.
        quiet: Levels of the pool's own quiet minutes.
        chosen: Before anything else is known of this basis.
        simulated: Levels of simulated runs, of the forecast alone.
    """
    needed = math.ceil(1.0 / (1.0 - promise_ratio) - 1e-9)
    past = np.asarray(quiet, np.float64)
    quiet_level = None
    if len(past) >= LEAST_QUIET_COUNT:
        quiet_level = float(np.quantile(past, 1.0 - FALSE_PER_HOUR / QUIET_PER_HOUR, method="higher"))
    if len(levels) >= needed:
        on, source = level_of_promise(levels, promise_ratio), "calibrated"
    else:
        on, source = chosen, "chosen"
        if basis == FORECAST_BASIS and simulated:
            # A promise beyond their reach takes the lowest of them, never more than a lesser promise does.
            on, source = level_of_promise(simulated, promise_ratio), "simulated"
        if quiet_level is not None and quiet_level > on:
            on, source = quiet_level, "history"
    on = min(max(on, LEAST_ON), MOST_ON)
    known = np.asarray(levels, np.float64)
    return Threshold(
        on=on,
        off=OFF_SHARE * on,
        basis=basis,
        source=source,
        promise_ratio=promise_ratio,
        event_count=len(levels),
        needed_count=needed,
        kept_ratio=float(np.mean(known >= on)) if len(known) else None,
        quiet_count=len(past),
        quiet_level=quiet_level,
        false_per_hour=None if quiet_level is None else float(np.mean(past >= on)) * QUIET_PER_HOUR,
    )

"""
Which tiers answer a question about a stretch of time, and the one query over them.

The tier is the coarsest that still gives the points asked for; older parts that retention took from it come from
coarser tiers, the newest part that is not rolled up yet from finer ones, so a series has no hole at either end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collectors.store.columns import (
    IDENTITY_COLUMNS,
    TIERS,
    Tier,
    as_tier_columns,
    merged,
)
from collectors.store.rollups import TierState
from collectors.store.times import US_PER_S


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of `tier` with begin_us <= ts < end_us."""

    tier: Tier
    begin_us: int
    end_us: int


def bucket_step_us(begin_us: int, end_us: int, max_points: int) -> tuple[int, int]:
    """
    Return (bucket length in microseconds, index of the tier to use) for at most `max_points` buckets.

    Buckets lie on multiples of their length since the epoch, so that a sliding window shows the same buckets again;
    therefore one more than the length suggests may be touched.
    """
    if max_points < 2:
        raise ValueError(f"max_points: {max_points}; a series needs room for 2 points at least")
    if end_us <= begin_us:
        raise ValueError(f"time range: it ends at {end_us / US_PER_S} s and begins at {begin_us / US_PER_S} s")
    step_us = -(-(end_us - begin_us) // (max_points - 1))
    index = max(i for i, tier in enumerate(TIERS) if tier.step_s * US_PER_S <= step_us)
    tier_step_us = TIERS[index].step_s * US_PER_S
    if tier_step_us:
        step_us = -(-step_us // tier_step_us) * tier_step_us
    return step_us, index


def segments(states: dict[str, TierState], begin_us: int, end_us: int, index: int) -> list[Segment]:
    """Return segments that cover [begin_us, end_us) without overlap, oldest first; tier `index` where it reaches."""
    found: list[Segment] = []
    at_us = begin_us
    for i in range(len(TIERS) - 1, -1, -1):
        # Coarser tiers give way where the next finer one still has its rows, finer ones begin where this one ends.
        if i > index:
            limit_us = states[TIERS[i - 1].name].deleted_until_us or 0
            limit_us = min(limit_us, _rolled(states, i, end_us))
        else:
            limit_us = _rolled(states, i, end_us)
        limit_us = min(limit_us, end_us)
        if limit_us > at_us:
            found.append(Segment(TIERS[i], at_us, limit_us))
            at_us = limit_us
    return found


def _rolled(states: dict[str, TierState], i: int, end_us: int) -> int:
    if i == 0:
        return end_us
    rolled_us = states[TIERS[i].name].rolled_until_us
    return 0 if rolled_us is None else rolled_us


def series_sql(parts: Sequence[Segment], signals: Sequence[str], step_us: int, where: str = "") -> str:
    """
    Return one query over `parts`; `where` (text of ours with placeholders) is repeated in each of them.

    Columns: worker_id, dp_rank, bucket (index of the bucket since the epoch), last_us (time of its newest sample in
    microseconds), then per signal what `tier_columns` lists.
    """
    selects = []
    for part in parts:
        time_column = "last_at" if part.tier.step_s else "ts"
        columns = [*IDENTITY_COLUMNS, "ts", f"{time_column} as last_at", *as_tier_columns(signals, part.tier)]
        selects.append(
            f"select {', '.join(columns)} from {part.tier.table} "  # noqa: S608 # names of ours only
            f"where ts >= make_timestamp({part.begin_us:d}) and ts < make_timestamp({part.end_us:d}){where}"
        )
    pairs = [pair for name in signals for pair in merged(name, "last_at")]
    return (
        f"select worker_id, dp_rank, epoch_us(ts) // {step_us:d} as bucket, epoch_us(max(last_at)) as last_us"  # noqa: S608
        f"{''.join(f', {expression} as {column}' for column, expression in pairs)} "
        f"from ({' union all '.join(selects)}) as sample "
        "group by worker_id, dp_rank, bucket order by worker_id, dp_rank, bucket"
    )

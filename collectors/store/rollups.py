"""
The tiers: what is left of the past when every second is too much, made a little at a time.

A bucket is rolled up once, when it has ended and its samples have had time to arrive; how far a tier has come is a
row of `tiers`, moved in the transaction that adds the buckets, so a kill neither loses nor doubles one. A sample that
arrives later still takes the tiers back to its bucket (`rewind_tiers`). Each tier is made from the next finer one;
means carry the number of samples that knew the value, so a mean of means is the mean of the samples.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import duckdb

from collectors.store.columns import (
    IDENTITY_COLUMNS,
    TEXT_COLUMNS,
    TIERS,
    Tier,
    as_tier_columns,
    merged,
)
from collectors.store.connection import Database
from collectors.store.times import US_PER_S, floor_us, to_us
from scoring.model import signal_names

LATE_S: Final = 15.0
"""Chosen: longer than a poll may take, so that a bucket is hardly ever made twice."""


@dataclass(frozen=True, slots=True)
class TierState:
    """How far a tier reaches: rows in [deleted_until_us, rolled_until_us) are complete. None: no limit yet."""

    rolled_until_us: int | None
    deleted_until_us: int | None


def tier_states(cursor: duckdb.DuckDBPyConnection) -> dict[str, TierState]:
    """Return the state of every tier by name."""
    rows = cursor.execute("select name, epoch_us(rolled_until), epoch_us(deleted_until) from tiers").fetchall()
    return {name: TierState(rolled, deleted) for name, rolled, deleted in rows}


def _roll_up_sql(source: Tier, target: Tier) -> str:
    signals = signal_names()
    time_column = "last_at" if source.step_s else "ts"
    pairs = [
        ("ts", f"time_bucket(interval '{target.step_s} seconds', ts, timestamp '1970-01-01')"),
        ("last_at", f"max({time_column})"),
        ("sample_count", "sum(sample_count)" if source.step_s else "count(*)"),
        *((name, name) for name in IDENTITY_COLUMNS),
        *((name, f"arg_max({name}, {time_column})") for name in TEXT_COLUMNS),
    ]
    keys = {"ts", *IDENTITY_COLUMNS}
    pairs += [pair for name in signals for pair in merged(name, time_column)]
    inner = ["ts", *IDENTITY_COLUMNS, *TEXT_COLUMNS, *(("last_at", "sample_count") if source.step_s else ())]
    inner += as_tier_columns(signals, source)
    group = ", ".join(expression for column, expression in pairs if column in keys)
    # Identifiers are signal names and tables of TIERS; times are parameters.
    return (
        f"insert into {target.table} ({', '.join(column for column, _ in pairs)}) "  # noqa: S608
        f"select {', '.join(expression for _, expression in pairs)} "
        f"from (select {', '.join(inner)} from {source.table} "
        "where ts >= make_timestamp(?) and ts < make_timestamp(?)) as sample "
        f"group by {group} order by 1, 4, 5"
    )


_STATEMENTS: Final = {target.name: _roll_up_sql(TIERS[i], target) for i, target in enumerate(TIERS[1:])}


def roll_up(database: Database, at_s: float, late_s: float = LATE_S) -> dict[str, int]:
    """
    Make every bucket that has ended `late_s` before `at_s`, and return the rows added to each tier.

    Calling it again for the same time adds nothing.
    """
    added = dict.fromkeys((tier.name for tier in TIERS[1:]), 0)
    end_us = to_us(at_s - late_s)
    for source, target in pairwise(TIERS):
        while True:
            with database.writing(f"rolling up to {target.name}") as cursor:
                rows = _roll_up_once(cursor, source, target, end_us)
            if rows is None:
                break
            added[target.name] += rows
        with database.reading("looking at the tiers") as cursor:
            done_us = tier_states(cursor)[target.name].rolled_until_us
        # A coarser bucket is complete when the finer ones in it are.
        end_us = min(end_us, done_us) if done_us is not None else 0
    return added


def _roll_up_once(cursor: duckdb.DuckDBPyConnection, source: Tier, target: Tier, end_us: int) -> int | None:
    """Make at most one chunk of buckets; return the rows added, or None when nothing is left to do."""
    state = tier_states(cursor)[target.name]
    begin_us = state.rolled_until_us
    limit_us = floor_us(end_us, target.step_s)
    if begin_us is not None and begin_us >= limit_us:
        return None
    # Over a gap without samples the tier moves in one step.
    first = cursor.execute(
        f"select epoch_us(min(ts)) from {source.table} where ts >= make_timestamp(?)",  # noqa: S608 # a table of TIERS
        [begin_us if begin_us is not None else 0],
    ).fetchall()[0][0]
    if first is None and begin_us is None:
        return None
    first_us = limit_us if first is None else min(limit_us, floor_us(first, target.step_s))
    chunk_end_us = min(limit_us, first_us + target.chunk_s * US_PER_S)
    rows = cursor.execute(_STATEMENTS[target.name], [first_us, chunk_end_us]).fetchall()[0][0]
    cursor.execute(
        "update tiers set rolled_until = make_timestamp(?) where name = ?", [chunk_end_us, target.name]
    ).fetchall()
    return int(rows)


def rewind_tiers(cursor: duckdb.DuckDBPyConnection, earliest_us: int) -> None:
    """
    Take the tiers back to the bucket that holds `earliest_us`, where they are past it, so that roll-up makes those
    buckets again with the late sample; never below what retention took from raw, which could not be made again.
    """
    states = tier_states(cursor)
    earliest_us = max(earliest_us, states[TIERS[0].name].deleted_until_us or 0)
    for tier in TIERS[1:]:
        rolled_until_us = states[tier.name].rolled_until_us
        if rolled_until_us is None or earliest_us >= rolled_until_us:
            continue
        from_us = floor_us(earliest_us, tier.step_s)
        cursor.execute(
            f"delete from {tier.table} where ts >= make_timestamp(?)",  # noqa: S608 # a table of TIERS
            [from_us],
        ).fetchall()
        cursor.execute(
            "update tiers set rolled_until = make_timestamp(?) where name = ?", [from_us, tier.name]
        ).fetchall()

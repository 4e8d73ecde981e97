"""
The named reads. Each says its columns and units, is bounded in time, sees one state of the store, and is stopped
after `READ_LIMIT_S`.

Times in and out are epoch seconds of our clock. Unknown is NaN in a float array and None in a row. Histories, which
need more than one query, are in `histories`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from collectors.store.batch import (
    PollOutcome,
    WorkerRecord,
)
from collectors.store.columns import GAUGES, IDENTITY_COLUMNS, TIERS, checked_signals
from collectors.store.connection import Database
from collectors.store.rollups import tier_states
from collectors.store.series import bucket_step_us, segments, series_sql
from collectors.store.times import US_PER_S, to_s, to_us
from scoring.model import Finding, FloatArray, Role, RouterWorker, Severity, SourceState, pool_id

DEFAULT_MAX_POINTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStats:
    """
    How polling went over a stretch of time.

    Attributes:
        cycle_count: Cycles begun in it.
        overrun_count: Cycles that lasted longer than the interval.
        skipped_count: Ticks the scheduler left out.
        poll_count: Polls of single workers.
        failed_poll_count: Polls that did not end in an understood answer.
        reading_count: Readings stored.
        byte_count: Body bytes received.
        median_duration_s: Of a cycle; None without cycles.
        p95_duration_s: Of a cycle; None without cycles.
        max_duration_s: Of a cycle; None without cycles.
        last_cycle_at_s: Begin of the newest; None without cycles.
    """

    cycle_count: int
    overrun_count: int
    skipped_count: int
    poll_count: int
    failed_poll_count: int
    reading_count: int
    byte_count: int
    median_duration_s: float | None
    p95_duration_s: float | None
    max_duration_s: float | None
    last_cycle_at_s: float | None


def fetched(cursor: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return the result of the query just run as arrays by column, masked where NULL."""
    return dict(cursor.fetchnumpy())


def filled(values: Any) -> FloatArray:
    """Return a fetched column as floats, NaN where NULL."""
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(values.astype(np.float64), np.nan))
    return np.asarray(values, dtype=np.float64)


def runs_of_pools(worker_ids: NDArray[Any], dp_ranks: NDArray[Any]) -> Iterator[tuple[str, int, slice]]:
    """Give (worker_id, dp_rank, rows) for columns sorted by both."""
    count = len(worker_ids)
    if not count:
        return
    changes = (worker_ids[1:] != worker_ids[:-1]) | (dp_ranks[1:] != dp_ranks[:-1])
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), count]
    for begin, end in pairwise(edges):
        yield str(worker_ids[begin]), int(dp_ranks[begin]), slice(begin, end)


def _range(start_s: float, end_s: float) -> list[int]:
    return [to_us(start_s), to_us(end_s)]


class Reads:
    """What may be asked; mixed into `Store`."""

    _database: Database

    def pool_series(
        self,
        worker_id: str,
        dp_rank: int,
        start_s: float,
        end_s: float,
        signals: Sequence[str],
        max_points: int = DEFAULT_MAX_POINTS,
    ) -> dict[str, FloatArray]:
        """
        Return the course of one pool in [start_s, end_s), at most `max_points` points, oldest first.

        Keys: `at_s` (time of the newest sample in the bucket) and each signal, in its own unit: a gauge as the mean
        of the bucket, a counter or constant as its newest value; for a gauge also `lowest_<signal>` and
        `highest_<signal>`. Stretches without samples have no points.

        Raises:
            ValueError: An unknown signal, an empty range, max_points below 2.
        """
        found = self._series(signals, start_s, end_s, max_points, (worker_id, dp_rank))
        empty = {name: np.empty(0) for name in _series_keys(checked_signals(signals), has_bounds=True)}
        return found.get(pool_id(worker_id, dp_rank), {"at_s": np.empty(0), **empty})

    def fleet_series(
        self,
        signals: Sequence[str],
        start_s: float,
        end_s: float,
        max_points: int = DEFAULT_MAX_POINTS,
        *,
        has_bounds: bool = False,
    ) -> dict[str, dict[str, FloatArray]]:
        """
        Return the course of every pool that has samples in [start_s, end_s): pool id -> as `pool_series` says.

        `at_s` is the begin of the bucket here, on one grid for all pools, so that they can be stacked or laid out as
        a heat map. `lowest_` and `highest_` only with `has_bounds`.
        """
        return self._series(signals, start_s, end_s, max_points, None, has_bounds=has_bounds)

    def _series(
        self,
        signals: Sequence[str],
        start_s: float,
        end_s: float,
        max_points: int,
        pool: tuple[str, int] | None,
        *,
        has_bounds: bool = True,
    ) -> dict[str, dict[str, FloatArray]]:
        names = checked_signals(signals)
        begin_us, end_us = _range(start_s, end_s)
        step_us, index = bucket_step_us(begin_us, end_us, max_points)
        with self._database.reading("reading a series") as cursor:
            parts = segments(tier_states(cursor), begin_us, end_us, index)
            where = " and worker_id = ? and dp_rank = ?" if pool else ""
            sql = series_sql(parts, names, step_us, where)
            rows = fetched(cursor.execute(sql, list(pool or ()) * len(parts)))
        at_s = rows["last_us"] / US_PER_S if pool else rows["bucket"] * (step_us / US_PER_S)
        columns = {
            key: filled(rows[f"mean_{key}" if key in GAUGES else key])
            for key in _series_keys(names, has_bounds=has_bounds)
        }
        return {
            pool_id(worker_id, dp_rank): {
                "at_s": at_s[span],
                **{key: column[span] for key, column in columns.items()},
            }
            for worker_id, dp_rank, span in runs_of_pools(*(rows[name] for name in IDENTITY_COLUMNS))
        }

    def worker_polls(self, worker_id: str, start_s: float, end_s: float) -> list[PollOutcome]:
        """Return the polls of one worker begun in [start_s, end_s), oldest first."""
        with self._database.reading("reading polls") as cursor:
            rows = cursor.execute(
                "select epoch_us(ts), duration_s, state, error_kind, http_status, byte_count, detail, pool_count, "
                "rejected_count, ignored_count from polls "
                "where ts >= make_timestamp(?) and ts < make_timestamp(?) and worker_id = ? order by ts",
                [*_range(start_s, end_s), worker_id],
            ).fetchall()
        return [
            PollOutcome(
                worker_id=worker_id,
                started_at_s=row[0] / US_PER_S,
                duration_s=row[1],
                state=SourceState(row[2]),
                error_kind=row[3],
                http_status=row[4],
                byte_count=row[5],
                detail=row[6],
                pool_count=row[7],
                rejected_count=row[8],
                ignored_count=row[9],
            )
            for row in rows
        ]

    def cycle_stats(self, start_s: float, end_s: float) -> CycleStats:
        """Return how polling went in [start_s, end_s)."""
        with self._database.reading("reading cycle statistics") as cursor:
            cycles = cursor.execute(
                "select count(*), count(*) filter (is_overrun), coalesce(sum(skipped_count), 0), "
                "coalesce(sum(reading_count), 0), median(duration_s), quantile_cont(duration_s, 0.95), "
                "max(duration_s), epoch_us(max(ts)) "
                "from cycles where ts >= make_timestamp(?) and ts < make_timestamp(?)",
                _range(start_s, end_s),
            ).fetchall()[0]
            polls = cursor.execute(
                "select count(*), count(*) filter (state not in ('fresh', 'nothing_yet')), "
                "coalesce(sum(byte_count), 0) from polls "
                "where cycle_at >= make_timestamp(?) and cycle_at < make_timestamp(?) and ts >= make_timestamp(?)",
                [*_range(start_s, end_s), to_us(start_s - 1.0)],
            ).fetchall()[0]
        return CycleStats(
            cycle_count=cycles[0],
            overrun_count=cycles[1],
            skipped_count=int(cycles[2]),
            poll_count=polls[0],
            failed_poll_count=polls[1],
            reading_count=int(cycles[3]),
            byte_count=int(polls[2]),
            median_duration_s=cycles[4],
            p95_duration_s=cycles[5],
            max_duration_s=cycles[6],
            last_cycle_at_s=None if cycles[7] is None else cycles[7] / US_PER_S,
        )

    def findings(
        self, start_s: float, end_s: float, worker_id: str | None = None, limit: int = 1000
    ) -> list[tuple[float, str, Finding]]:
        """
        Return (at_s, worker_id, finding) in [start_s, end_s), newest first, at most `limit`.

        A finding that lasts has one row when it begins and then one a minute.
        """
        with self._database.reading("reading findings") as cursor:
            rows = cursor.execute(
                "select epoch_us(ts), worker_id, dp_rank, code, severity, text from findings "
                "where ts >= make_timestamp(?) and ts < make_timestamp(?) and not is_over "
                "and coalesce(worker_id = ?, true) order by ts desc, worker_id, dp_rank, code limit ?",
                [*_range(start_s, end_s), worker_id, limit],
            ).fetchall()
        return [
            (row[0] / US_PER_S, row[1], Finding(dp_rank=row[2], code=row[3], severity=Severity(row[4]), text=row[5]))
            for row in rows
        ]

    def router_workers(self, at_s: float, window_s: float) -> list[tuple[str, RouterWorker]]:
        """Return (router's worker_id, what it said) of each router's newest cycle in (at_s - window_s, at_s]."""
        with self._database.reading("reading router views") as cursor:
            rows = cursor.execute(
                "select worker_id, url, dp_rank, role, is_healthy, load_count, load_tokens from router_workers "
                "where ts > make_timestamp(?) and ts <= make_timestamp(?) "
                "qualify rank() over (partition by worker_id order by ts desc) = 1 order by worker_id, url, dp_rank",
                _range(at_s - window_s, at_s),
            ).fetchall()
        return [
            (
                row[0],
                RouterWorker(
                    url=row[1],
                    dp_rank=row[2],
                    role=Role(row[3]),
                    is_healthy=row[4],
                    load_count=row[5],
                    load_tokens=row[6],
                ),
            )
            for row in rows
        ]

    def workers(self, at_s: float) -> dict[str, WorkerRecord]:
        """Return who each worker was at `at_s`, as far as was ever stored; worker_id -> record."""
        with self._database.reading("reading workers") as cursor:
            rows = cursor.execute(
                "select worker_id, url, labels from workers "
                "qualify row_number() over (partition by worker_id "
                # A worker first described after `at_s` is better described by that than not at all.
                "order by valid_from <= make_timestamp(?) desc, abs(epoch_us(valid_from) - ?)) = 1",
                [to_us(at_s), to_us(at_s)],
            ).fetchall()
        return {row[0]: WorkerRecord(worker_id=row[0], url=row[1], labels=json.loads(row[2])) for row in rows}

    def time_span(self) -> tuple[float, float] | None:
        """Return (first, last) time of any reading or poll, over all tiers; None while the store is empty."""
        # `last_at` is the time of a sample; `ts` of a tier is the begin of a bucket and may lie before the first one.
        sources = [("polls", "ts"), *((tier.table, "last_at" if tier.step_s else "ts") for tier in TIERS)]
        with self._database.reading("reading the time span") as cursor:
            found = [
                cursor.execute(f"select min({column}), max({column}) from {table}").fetchall()[0]  # noqa: S608 # of ours
                for table, column in sources
            ]
        spans = [(to_s(low) or 0.0, to_s(high) or 0.0) for low, high in found if low is not None]
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None

    def pools(self, start_s: float, end_s: float) -> list[tuple[str, int, Role]]:
        """Return (worker_id, dp_rank, role) of every pool with samples in [start_s, end_s), ascending."""
        begin_us, end_us = _range(start_s, end_s)
        _, index = bucket_step_us(begin_us, end_us, 2)
        with self._database.reading("reading pools") as cursor:
            parts = segments(tier_states(cursor), begin_us, end_us, index)
            union = " union all ".join(
                f"select worker_id, dp_rank, role, ts from {part.tier.table} "  # noqa: S608 # a table of TIERS
                f"where ts >= make_timestamp({part.begin_us:d}) and ts < make_timestamp({part.end_us:d})"
                for part in parts
            )
            rows = cursor.execute(
                f"select worker_id, dp_rank, arg_max(role, ts) from ({union}) as sample "  # noqa: S608
                "group by worker_id, dp_rank order by worker_id, dp_rank"
            ).fetchall()
        return [(row[0], row[1], Role(row[2])) for row in rows]


def _series_keys(names: Sequence[str], *, has_bounds: bool) -> list[str]:
    keys: list[str] = []
    for name in names:
        keys.append(name)
        if has_bounds and name in GAUGES:
            keys += [f"lowest_{name}", f"highest_{name}"]
    return keys

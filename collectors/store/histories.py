"""
Histories: the recent past of every pool as `scoring.snapshot` wants it, for this instant or any past one.

Which pools belong to the fleet at an instant is what was polled around the last cycle before it. A pool whose worker
has stopped answering keeps its last reading, however old within `LOOKBACK_S`, and says since when; a worker that
never answered has a history without samples, so that it is drawn as down and not forgotten. Histograms are those stored
last (`buckets`), findings those not over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np

from collectors.store.buckets import KEEP_S, from_list
from collectors.store.columns import GAUGES, TEXT_COLUMNS, TIERS, Tier
from collectors.store.reads import Reads, fetched, filled, runs_of_pools
from collectors.store.rollups import TierState, tier_states
from collectors.store.times import US_PER_S, floor_us, to_us
from collectors.store.writes import FINDING_REPEAT_S
from scoring.model import (
    Finding,
    FloatArray,
    PoolHistory,
    PoolReading,
    Role,
    Severity,
    SourceState,
    signal_names,
)

LOOKBACK_S: Final = 6 * 3600.0
"""Chosen: a worker down for longer than a shift is known from its polls alone, without its last figures."""

_SIGNALS: Final = signal_names()
_TEXT_END: Final = 10
"""Where the signals begin in a row of `_last_rows`."""
_NO_SAMPLES: Final = np.empty(0)


@dataclass(frozen=True, slots=True)
class _LastPoll:
    polled_at_s: float
    state: SourceState
    detail: str


def _tier_for(states: Mapping[str, TierState], begin_us: int) -> Tier:
    """Return the finest tier that retention has left whole from `begin_us` on."""
    for tier in TIERS:
        if (states[tier.name].deleted_until_us or 0) <= begin_us:
            return tier
    return TIERS[-1]


def _signal_expressions(tier: Tier) -> list[str]:
    if not tier.step_s:
        return list(_SIGNALS)
    # The engine's clock is a time, of which the newest counts, not the mean.
    return [
        ("highest_reported_at_s as reported_at_s" if name == "reported_at_s" else f"mean_{name} as {name}")
        if name in GAUGES
        else name
        for name in _SIGNALS
    ]


def _last_polls(cursor: duckdb.DuckDBPyConnection, at_us: int, window_us: int) -> dict[str, _LastPoll]:
    """Return the last finished poll at `at_us` of every worker polled within `window_us` of the last cycle."""
    rows = cursor.execute(
        "with last_cycle as (select max(ts) as ts from cycles where ts <= make_timestamp(?) and ts > make_timestamp(?))"
        " select worker_id, epoch_us(max(polls.ts)), arg_max(state, polls.ts), arg_max(detail, polls.ts) "
        "from polls, last_cycle where polls.ts > last_cycle.ts - to_microseconds(?) "
        "and polls.ts > make_timestamp(?) and polls.ts <= make_timestamp(?) "
        "and polls.ts + to_microseconds((duration_s * 1000000)::bigint) <= make_timestamp(?) "
        "group by worker_id",
        [
            at_us,
            at_us - to_us(LOOKBACK_S),
            window_us,
            at_us - to_us(LOOKBACK_S) - window_us,
            at_us,
            at_us,
        ],
    ).fetchall()
    return {row[0]: _LastPoll(row[1] / US_PER_S, SourceState(row[2]), row[3]) for row in rows}


def _samples(cursor: duckdb.DuckDBPyConnection, tier: Tier, begin_us: int, at_us: int) -> dict[str, Any]:
    time_column = "last_at" if tier.step_s else "ts"
    return fetched(
        cursor.execute(
            f"select worker_id, dp_rank, epoch_us({time_column}) as at_us, "  # noqa: S608 # names of ours only
            f"{', '.join(_signal_expressions(tier))} from {tier.table} "
            "where ts > make_timestamp(?) and ts <= make_timestamp(?) order by worker_id, dp_rank, ts",
            [begin_us, at_us],
        )
    )


def _last_rows(
    cursor: duckdb.DuckDBPyConnection, tier: Tier, begin_us: int, at_us: int, worker_ids: Sequence[str] | None = None
) -> list[tuple[Any, ...]]:
    """Return per pool the newest row up to `_TEXT_END`, then its signals when `worker_ids` are given."""
    side = "null, null, null" if tier.step_s else "answered_at_s, expected_rank_count, anomalies"
    signals = "" if worker_ids is None else f", {', '.join(_signal_expressions(tier))}"
    chosen = "" if worker_ids is None else " and list_contains(?::varchar[], worker_id)"
    # The newest row's key first, its wide columns after: a window over all columns would sort them all.
    return cursor.execute(
        f"select worker_id, dp_rank, epoch_us({'last_at' if tier.step_s else 'ts'}), {', '.join(TEXT_COLUMNS)}, "  # noqa: S608
        f"{side}{signals} from {tier.table} where rowid in (select arg_max(rowid, ts) from {tier.table} "
        f"where ts > make_timestamp(?) and ts <= make_timestamp(?){chosen} group by worker_id, dp_rank)",
        [begin_us, at_us, *([] if worker_ids is None else [list(worker_ids)])],
    ).fetchall()


def _last_buckets(
    cursor: duckdb.DuckDBPyConnection, at_us: int, silent: Sequence[str]
) -> dict[tuple[str, int], tuple[Any, Any]]:
    """Return the newest stored (ttft, itl) histogram of each pool, as lists; for `silent` workers further back."""
    rows = cursor.execute(
        "select worker_id, dp_rank, arg_max(ttft_buckets, ts), arg_max(itl_buckets, ts) from readings "
        "where ts > make_timestamp(?) and ts <= make_timestamp(?) and ttft_buckets is not null "
        "and (ts > make_timestamp(?) or list_contains(?::varchar[], worker_id)) group by worker_id, dp_rank",
        [at_us - to_us(LOOKBACK_S if silent else 2 * KEEP_S), at_us, at_us - to_us(2 * KEEP_S), list(silent)],
    ).fetchall()
    return {(row[0], row[1]): (row[2], row[3]) for row in rows}


def _routers(cursor: duckdb.DuckDBPyConnection, at_us: int) -> set[str]:
    """Return the workers that spoke as routers: they have no pool of their own."""
    rows = cursor.execute(
        "select distinct worker_id from router_workers where ts > make_timestamp(?) and ts <= make_timestamp(?)",
        [at_us - to_us(LOOKBACK_S), at_us],
    ).fetchall()
    return {row[0] for row in rows}


def _findings(cursor: duckdb.DuckDBPyConnection, at_us: int) -> dict[str, list[Finding]]:
    """Return what was noticed about each worker and not over at `at_us`."""
    begin_us = at_us - to_us(2 * FINDING_REPEAT_S)
    rows = cursor.execute(
        "select worker_id, dp_rank, code, arg_max(severity, ts), arg_max(text, ts) from findings "
        "where ts > make_timestamp(?) and ts <= make_timestamp(?) "
        "group by worker_id, dp_rank, code having not arg_max(is_over, ts) order by worker_id, dp_rank, code",
        [begin_us, at_us],
    ).fetchall()
    found: dict[str, list[Finding]] = {}
    for worker_id, dp_rank, code, severity, text in rows:
        finding = Finding(dp_rank=dp_rank, code=code, severity=Severity(severity), text=text)
        found.setdefault(worker_id, []).append(finding)
    return found


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a reading had beside its row."""

    findings: Mapping[str, Sequence[Finding]]
    buckets: Mapping[tuple[str, int], tuple[Any, Any]]


def _reading(row: tuple[Any, ...], at_us: int, signals: Mapping[str, Any], beside: _Beside) -> PoolReading:
    worker_id, dp_rank, received_us, role, engine, version, model, answered_at_s, expected, anomalies = row[:_TEXT_END]
    ttft, itl = beside.buckets.get((worker_id, dp_rank), (None, None))
    findings = beside.findings.get(worker_id, ())
    return PoolReading(
        worker_id=worker_id,
        dp_rank=dp_rank,
        received_at_s=min(received_us, at_us) / US_PER_S,
        role=Role(role),
        engine=engine,
        version=version,
        model=model,
        ttft_buckets=from_list(ttft),
        itl_buckets=from_list(itl),
        anomalies=tuple(anomalies or ()),
        answered_at_s=answered_at_s,
        expected_rank_count=expected,
        findings=tuple(finding for finding in findings if finding.dp_rank in (None, dp_rank)),
        **signals,
    )


class Histories(Reads):
    """Histories of pools, on top of the plain reads; mixed into `Store`."""

    def latest_histories(self, at_s: float, window_s: float) -> list[PoolHistory]:
        """
        Return the history of every pool of the fleet at `at_s` (now or any past instant), ascending by pool.

        Columns hold every signal over (at_s - window_s, at_s], NaN where unknown. `last` is the newest reading whole,
        from before the window if need be (then the columns hold that one sample). For an instant older than the raw
        samples the tiers answer: columns are means, histograms are unknown, the window is at least three buckets.
        """
        at_us = to_us(at_s)
        with self._database.reading("reading histories") as cursor:
            tier = _tier_for(tier_states(cursor), at_us - to_us(window_s))
            window_us = max(to_us(window_s), 3 * tier.step_s * US_PER_S)
            begin_us = floor_us(at_us - window_us, tier.step_s) if tier.step_s else at_us - window_us
            polls = _last_polls(cursor, at_us, to_us(window_s))
            columns = _samples(cursor, tier, begin_us, at_us)
            last_rows = {(row[0], row[1]): row for row in _last_rows(cursor, tier, begin_us, at_us)}
            silent = sorted(set(polls) - {worker_id for worker_id, _ in last_rows})
            old_rows = _last_rows(cursor, tier, at_us - to_us(LOOKBACK_S), begin_us, silent) if silent else []
            beside = _Beside(_findings(cursor, at_us), {} if tier.step_s else _last_buckets(cursor, at_us, silent))
            # A worker without any reading is drawn as such, unless it is a router, which has none to give.
            bare = [name for name in silent if polls[name].state is not SourceState.FRESH]
            bare = sorted(set(bare) - {row[0] for row in old_rows} - (_routers(cursor, at_us) if bare else set()))
        workers = self.workers(at_s)
        found: list[PoolHistory] = []

        def add(last: PoolReading, times_s: FloatArray, values: Mapping[str, FloatArray]) -> None:
            poll = polls.get(last.worker_id)
            record = workers.get(last.worker_id)
            found.append(
                PoolHistory(
                    last=last,
                    at_s=times_s,
                    columns=values,
                    polled_at_s=poll.polled_at_s if poll else (last.received_at_s or None),
                    poll_state=poll.state if poll else SourceState.FRESH,
                    poll_detail=poll.detail if poll else "",
                    labels=dict(record.labels) if record else {},
                )
            )

        signals = {name: filled(columns[name]) for name in _SIGNALS}
        times_s = np.minimum(columns["at_us"], at_us) / US_PER_S
        for worker_id, dp_rank, span in runs_of_pools(columns["worker_id"], columns["dp_rank"]):
            if polls and worker_id not in polls:
                continue  # Left the fleet before the last cycle.
            values = {name: column[span] for name, column in signals.items()}
            newest = {name: _known(column[-1]) for name, column in values.items()}
            add(_reading(last_rows[worker_id, dp_rank], at_us, newest, beside), times_s[span], values)
        for row in old_rows:
            known = dict(zip(_SIGNALS, row[_TEXT_END:], strict=True))
            values = {name: np.array([np.nan if value is None else value]) for name, value in known.items()}
            add(_reading(row, at_us, known, beside), np.array([row[2] / US_PER_S]), values)
        for worker_id in bare:
            add(PoolReading(worker_id=worker_id), _NO_SAMPLES, dict.fromkeys(_SIGNALS, _NO_SAMPLES))
        return sorted(found, key=lambda history: (history.last.worker_id, history.last.dp_rank))


def _known(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)

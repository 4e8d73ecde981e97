"""
The tables, as numbered steps: an old store is brought up to date when it is opened for writing, in one transaction.

A step is never changed once published; a new signal, table or column is a new step (`add_signal` writes the four
statements a signal needs). A store that carries a step unknown here was written by a newer KVScope and is refused.

Read next: `columns` (what a signal's columns mean), `reads` (what is asked of the tables).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import duckdb

from collectors.errors import StoreVersionError
from collectors.store.connection import Database
from scoring.model import GAUGE

_GAUGES_1 = [
    "reported_at_s",
    "used_tokens",
    "allocated_tokens",
    "pending_total_tokens",
    "arrived_tokens",
    "prefix_tokens",
    "free_tokens",
    "free_or_prefix_tokens",
    "in_flight_tokens",
    "reported_usage_ratio",
    "usage_high_ratio",
    "window_used_tokens",
    "window_prefix_tokens",
    "window_free_tokens",
    "window_usage_ratio",
    "state_used_count",
    "state_prefix_count",
    "state_free_count",
    "state_usage_ratio",
    "offloaded_tokens",
    "running_count",
    "waiting_count",
    "queue_main_count",
    "queue_bootstrap_count",
    "queue_inflight_count",
    "queue_prealloc_count",
    "queue_transfer_count",
    "queue_retracted_count",
    "queue_grammar_count",
    "queue_paused_count",
    "prealloc_ready_count",
    "prealloc_ready_tokens",
    "waiting_uncached_tokens",
    "generated_tokens_per_s",
    "reported_hit_ratio",
    "transfer_reported_bytes_per_s",
    "transfer_reported_latency_s",
]
_COUNTERS_1 = [
    "prefill_uncached_tokens_total",
    "prefill_busy_s_total",
    "decode_steps_total",
    "decode_batch_sum_total",
    "decode_step_s_total",
    "decode_batch_squared_total",
    "decode_batch_step_s_total",
    "decode_generated_tokens_total",
    "prompt_tokens_total",
    "generated_tokens_total",
    "finished_total",
    "retracted_total",
    "retracted_input_tokens_total",
    "retracted_output_tokens_total",
    "evicted_tokens_total",
    "load_back_tokens_total",
    "prefix_query_tokens_total",
    "prefix_hit_tokens_total",
    "external_query_tokens_total",
    "external_hit_tokens_total",
    "transfer_bytes_total",
    "transfers_total",
    "transfer_latency_s_total",
    "transfer_failed_total",
    "bootstrap_failed_total",
    "ttft_s_total",
    "ttft_count_total",
    "itl_s_total",
    "itl_count_total",
    "e2e_s_total",
    "e2e_count_total",
    "queue_s_total",
    "queue_s_count_total",
]
_CONSTANTS_1 = [
    "usable_tokens",
    "block_size_tokens",
    "kv_bytes",
    "bytes_per_token",
    "accelerator_count",
    "window_usable_tokens",
    "state_slot_count",
    "offload_usable_tokens",
    "max_running_count",
    "reserved_per_request_tokens",
]

_TIER_TABLES = ("readings_10s", "readings_1min", "readings_10min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step: its number, what it is for, and its statements in order."""

    number: int
    name: str
    statements: tuple[str, ...]


def _double(names: Sequence[str]) -> list[str]:
    return [f"{name} double" for name in names]


def _gauge_columns(name: str) -> list[str]:
    return [f"lowest_{name} double", f"mean_{name} double", f"highest_{name} double", f"known_{name} integer"]


def _table(name: str, *columns: str) -> str:
    return f"create table {name} ({', '.join(columns)})"


def _tier_table(name: str) -> str:
    return _table(
        name,
        "ts timestamp not null",
        "last_at timestamp not null",
        "sample_count integer not null",
        "worker_id varchar not null",
        "dp_rank integer not null",
        "role varchar",
        "engine varchar",
        "version varchar",
        "model varchar",
        *(column for gauge in _GAUGES_1 for column in _gauge_columns(gauge)),
        *_double(_COUNTERS_1),
        *_double(_CONSTANTS_1),
    )


def add_signal(name: str, kind: str) -> tuple[str, ...]:
    """Return the statements that give signal `name` its columns in `readings` and in every tier."""
    tier_columns = _gauge_columns(name) if kind == GAUGE else [f"{name} double"]
    return (
        f"alter table readings add column {name} double",
        *(f"alter table {table} add column {column}" for table in _TIER_TABLES for column in tier_columns),
    )


MIGRATIONS: Final[tuple[Migration, ...]] = (
    Migration(
        number=1,
        name="cycles, polls and readings",
        statements=(
            _table(
                "workers",
                "worker_id varchar not null",
                "valid_from timestamp not null",
                "url varchar not null",
                "labels json not null",
            ),
            _table(
                "cycles",
                "ts timestamp not null",
                "duration_s double not null",
                "is_overrun boolean not null",
                "skipped_count integer not null",
                "poll_count integer not null",
                "reading_count integer not null",
                "finding_count integer not null",
                "router_worker_count integer not null",
            ),
            _table(
                "polls",
                "ts timestamp not null",
                "cycle_at timestamp not null",
                "worker_id varchar not null",
                "duration_s double not null",
                "state varchar not null",
                "error_kind varchar",
                "http_status integer",
                "byte_count bigint not null",
                "detail varchar not null",
                "pool_count integer not null",
                "rejected_count integer not null",
                "ignored_count integer not null",
            ),
            _table(
                "findings",
                "ts timestamp not null",
                "cycle_at timestamp not null",
                "worker_id varchar not null",
                "dp_rank integer",
                "code varchar not null",
                "severity varchar not null",
                "text varchar not null",
                "is_over boolean not null",
            ),
            _table(
                "router_workers",
                "ts timestamp not null",
                "cycle_at timestamp not null",
                "worker_id varchar not null",
                "url varchar not null",
                "dp_rank integer",
                "role varchar not null",
                "is_healthy boolean",
                "load_count double",
                "load_tokens double",
            ),
            _table(
                "readings",
                "ts timestamp not null",
                "cycle_at timestamp not null",
                "worker_id varchar not null",
                "dp_rank integer not null",
                "role varchar not null",
                "engine varchar not null",
                "version varchar",
                "model varchar",
                "expected_rank_count integer",
                "ttft_buckets double[]",
                "itl_buckets double[]",
                "anomalies varchar[]",
                *_double(_GAUGES_1),
                *_double(_COUNTERS_1),
                *_double(_CONSTANTS_1),
            ),
        ),
    ),
    Migration(
        number=2,
        name="tiers of 10 s, 1 min and 10 min",
        statements=(
            _table(
                "tiers",
                "name varchar not null",
                "rolled_until timestamp",
                "deleted_until timestamp",
            ),
            "insert into tiers (name) values ('raw'), ('10s'), ('1min'), ('10min')",
            *(_tier_table(name) for name in _TIER_TABLES),
        ),
    ),
    Migration(
        number=3,
        name="events, alerts, profiles and runs",
        statements=(
            _table(
                "events",
                "ts timestamp not null",
                "kind varchar not null",
                "subject varchar not null",
                "text varchar not null",
                "details json not null",
            ),
            _table(
                "alerts",
                "ts timestamp not null",
                "alert_id varchar not null",
                "rule varchar not null",
                "subject varchar not null",
                "state varchar not null",
                "severity varchar not null",
                "text varchar not null",
                "details json not null",
            ),
            _table(
                "profiles",
                "name varchar not null",
                "version integer not null",
                "created_at timestamp not null",
                "applied_at timestamp",
                "profile json not null",
            ),
            _table(
                "runs",
                "name varchar not null",
                "created_at timestamp not null",
                "summary json not null",
                "parquet_path varchar not null",
            ),
        ),
    ),
    Migration(
        number=4,
        name="the engine's clock when it answered",
        statements=("alter table readings add column answered_at_s double",),
    ),
    Migration(
        number=5,
        name="what a decode step reads",
        statements=add_signal("running_tokens", GAUGE),
    ),
)

_LEDGER = (
    "create table if not exists schema_migrations (number integer not null, name varchar not null, "
    "applied_at timestamp not null)"
)


def applied_numbers(cursor: duckdb.DuckDBPyConnection) -> tuple[int, ...] | None:
    """Return the numbers of the steps this store has, ascending; None for a file without our ledger."""
    has_ledger = cursor.execute(
        "select count(*) from information_schema.tables where table_name = 'schema_migrations'"
    ).fetchall()
    if has_ledger == [(0,)]:
        return None
    return tuple(row[0] for row in cursor.execute("select number from schema_migrations order by number").fetchall())


def migrate(database: Database, migrations: Sequence[Migration] = MIGRATIONS) -> tuple[int, ...]:
    """
    Bring the store up to the last of `migrations` and return the numbers of the steps applied now.

    Raises:
        StoreVersionError: Written by a newer KVScope; a DuckDB file of something else; or read-only and behind.
    """
    newest = migrations[-1].number
    with database.reading("looking at its version") as cursor:
        applied = applied_numbers(cursor)
        tables = cursor.execute("select count(*) from information_schema.tables").fetchall()[0][0]
    if applied is None and tables:
        raise StoreVersionError(
            f"store: {database.path} is a DuckDB file with {tables} tables of something else; name another file"
        )
    if applied and applied[-1] > newest:
        raise StoreVersionError(
            f"store: {database.path} has schema {applied[-1]} and this KVScope knows {newest}: a newer KVScope wrote "
            "it; start that version, or name another file"
        )
    pending = [step for step in migrations if step.number not in (applied or ())]
    if not pending:
        return ()
    if database.is_read_only:
        raise StoreVersionError(
            f"store: {database.path} has schema {applied[-1] if applied else 'none'} and this KVScope needs {newest}; "
            "open it once for writing (`kvscope serve` or `kvscope collect`) to upgrade it"
        )
    with database.writing("upgrading its tables") as cursor:
        cursor.execute(_LEDGER).fetchall()
        for step in pending:
            for statement in step.statements:
                cursor.execute(statement).fetchall()
            cursor.execute(
                "insert into schema_migrations values (?, ?, now() at time zone 'UTC')", [step.number, step.name]
            ).fetchall()
    return tuple(step.number for step in pending)

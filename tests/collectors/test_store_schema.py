"""The tables follow `scoring.model`, are brought up to date from any earlier step, and foreign files stay untouched."""

from pathlib import Path

import duckdb
import pytest

from collectors.errors import StoreError, StoreVersionError
from collectors.store import CycleBatch, open_store
from collectors.store.columns import TIERS, tier_columns
from collectors.store.connection import open_database
from collectors.store.migrations import MIGRATIONS, Migration, add_signal, migrate
from scoring.model import PoolReading, signal_names

OTHER_COLUMNS = {
    (
        "ts cycle_at worker_id dp_rank role engine version model expected_rank_count "
        "ttft_buckets itl_buckets anomalies answered_at_s"
    ),
    "ts last_at sample_count worker_id dp_rank role engine version model",
}


def columns_of(path: Path, table: str) -> dict[str, str]:
    """Return column -> type."""
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.execute(
            "select column_name, data_type from information_schema.columns where table_name = ?", [table]
        ).fetchall()
    return dict(rows)


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_every_signal_has_its_columns_and_no_column_is_left_over(tmp_path: Path, tier) -> None:
    """Each signal of the model is stored in every tier; a column without a signal is a mistake too."""
    path = tmp_path / "kv.duckdb"
    open_store(path).close()
    signals = list(signal_names()) if not tier.step_s else tier_columns(signal_names())
    found = columns_of(path, tier.table)
    rest = " ".join(name for name in found if name not in signals)
    assert set(signals) <= set(found), "a new signal needs a migration: migrations.add_signal"
    assert rest in OTHER_COLUMNS
    assert all(found[name] in ("DOUBLE", "INTEGER") for name in signals)


def test_migrations_are_numbered_without_gaps() -> None:
    """Steps are 1, 2, 3, ... so that the newest number says what a store has."""
    assert [step.number for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


@pytest.mark.parametrize("steps", range(1, len(MIGRATIONS)))
def test_an_older_store_is_upgraded_with_its_data(tmp_path: Path, steps: int) -> None:
    """Opening for writing brings any earlier schema to the newest and loses no row."""
    path = tmp_path / "kv.duckdb"
    database = open_database(path)
    migrate(database, MIGRATIONS[:steps])
    with database.writing("filling") as cursor:
        cursor.execute(
            "insert into readings (ts, cycle_at, worker_id, dp_rank, role, engine, used_tokens) "
            "values (make_timestamp(1000000), make_timestamp(1000000), 'w', 3, 'decode', 'sglang', 42)"
        ).fetchall()
    database.close()

    with pytest.raises(StoreVersionError, match="open it once for writing"):
        open_store(path, read_only=True)
    with open_store(path) as store:
        assert store.pool_series("w", 3, 0.0, 10.0, ["used_tokens"])["used_tokens"].tolist() == [42.0]
        store.append_cycle(CycleBatch(cycle_at_s=2.0, duration_s=0.1))
        assert store.events(0.0, 10.0) == []
    with open_store(path, read_only=True) as store:
        assert store.cycle_stats(0.0, 10.0).cycle_count == 1


def test_a_step_for_a_new_signal_reaches_every_tier(tmp_path: Path) -> None:
    """`add_signal` is all that a new signal needs, on a store that has rows already."""
    path = tmp_path / "kv.duckdb"
    with open_store(path) as store:
        store.append_cycle(
            CycleBatch(cycle_at_s=5.0, duration_s=0.1, readings=[PoolReading(worker_id="w", received_at_s=5.0)])
        )
    step = Migration(number=len(MIGRATIONS) + 1, name="one more", statements=add_signal("spare_tokens", "gauge"))
    database = open_database(path)
    assert migrate(database, [*MIGRATIONS, step]) == (step.number,)
    assert migrate(database, [*MIGRATIONS, step]) == ()
    database.close()
    assert columns_of(path, "readings")["spare_tokens"] == "DOUBLE"
    for tier in TIERS[1:]:
        assert {"lowest_spare_tokens", "mean_spare_tokens", "highest_spare_tokens", "known_spare_tokens"} <= set(
            columns_of(path, tier.table)
        )


def test_a_newer_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A schema from the future is not guessed at, neither to read nor to write."""
    path = tmp_path / "kv.duckdb"
    open_store(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("insert into schema_migrations values (999, 'from the future', now()::timestamp)").fetchall()
    for read_only in (False, True):
        with pytest.raises(StoreVersionError, match=r"schema 999 .* a newer KVScope wrote it"):
            open_store(path, read_only=read_only)
    assert columns_of(path, "readings")


def test_a_failing_step_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """An upgrade happens whole or not at all."""
    path = tmp_path / "kv.duckdb"
    database = open_database(path)
    broken = Migration(number=2, name="broken", statements=("create table fine (a integer)", "create table"))
    with pytest.raises(StoreError, match="upgrading its tables failed"):
        migrate(database, [MIGRATIONS[0], broken])
    assert migrate(database) == tuple(step.number for step in MIGRATIONS)
    database.close()
    assert not columns_of(path, "fine")


def test_a_foreign_database_is_refused_and_untouched(tmp_path: Path) -> None:
    """A DuckDB file of something else gets none of our tables."""
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table theirs (a integer)").fetchall()
    with pytest.raises(StoreVersionError, match="1 tables of something else"):
        open_store(path)
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("select table_name from information_schema.tables").fetchall() == [("theirs",)]


def test_what_is_no_database_is_said_in_one_line(tmp_path: Path) -> None:
    """Garbage, a folder and a missing file each end in one sentence that names the path."""
    garbage = tmp_path / "garbage.duckdb"
    garbage.write_bytes(b"not a database " * 1000)
    for path, read_only, words in (
        (garbage, False, "is not a DuckDB file"),
        (tmp_path, False, "is a folder"),
        (tmp_path / "none.duckdb", True, "there is no file"),
    ):
        with pytest.raises(StoreError, match=words) as refused:
            open_store(path, read_only=read_only)
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "none.duckdb").exists()

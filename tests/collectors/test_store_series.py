"""Tiers and series: whatever tier answers, it says what the samples said."""

import math
from itertools import pairwise

import numpy as np
import pytest

from collectors.store import CycleBatch, Retention, Store, open_store
from collectors.store.columns import TIERS
from collectors.store.connection import open_database
from collectors.store.migrations import migrate
from collectors.store.retention import forget
from collectors.store.rollups import roll_up, tier_states
from collectors.store.series import bucket_step_us, segments
from scoring.model import PoolReading

T0_S = 1_790_000_400.0
"""A multiple of ten minutes."""
POOLS = [("a", 0), ("a", 1), ("b", 0)]
LENGTH_S = 2000


def used(pool: int, k: int) -> float | None:
    """Return the gauge of pool `pool` at second k: it is unknown for a while."""
    return None if 300 <= k < 340 and pool == 1 else 1000.0 * pool + 500 + 400 * math.sin(k / 37 + pool)


def batches(seconds: range, order: int = 1) -> list[CycleBatch]:
    """Return one cycle a second; pool b/0 is silent from 700 to 799."""
    return [
        CycleBatch(
            cycle_at_s=T0_S + k,
            duration_s=0.1,
            readings=[
                PoolReading(
                    worker_id=worker_id,
                    dp_rank=dp_rank,
                    received_at_s=T0_S + k + 0.25,
                    engine="sglang",
                    used_tokens=used(i, k),
                    finished_total=float(k * (i + 1)),
                    usable_tokens=5000.0,
                )
                for i, (worker_id, dp_rank) in enumerate(POOLS)
                if not (i == 2 and 700 <= k < 800)
            ][::order],
        )
        for k in seconds
    ]


class Quiet(Store):
    """A store that is maintained only when told."""

    def _maintain_if_due(self, at_s: float) -> None:
        return


def quiet_store() -> Quiet:
    """Return an empty store in memory that leaves maintenance to the test."""
    database = open_database(":memory:")
    migrate(database)
    return Quiet(database)


@pytest.fixture(scope="module")
def raw() -> Quiet:
    """Return a store with samples and no tiers."""
    store = quiet_store()
    for batch in merge(batches(range(LENGTH_S))):
        store.append_cycle(batch)
    yield store
    store.close()


@pytest.fixture(scope="module")
def rolled() -> Quiet:
    """Return the same samples, rolled up."""
    store = quiet_store()
    for batch in merge(batches(range(LENGTH_S))):
        store.append_cycle(batch)
    store.maintain(T0_S + LENGTH_S)
    yield store
    store.close()


def merge(cycles: list[CycleBatch], size: int = 100) -> list[CycleBatch]:
    """Return fewer, larger batches with the same readings, to save time."""
    return [
        CycleBatch(
            cycle_at_s=cycles[i].cycle_at_s,
            duration_s=0.1,
            readings=[one for batch in cycles[i : i + size] for one in batch.readings],
        )
        for i in range(0, len(cycles), size)
    ]


def tier_rows(store: Store, table: str) -> list[tuple]:
    """Return what a tier has, ordered."""
    with store._database.reading("looking") as cursor:
        return cursor.execute(
            "select epoch_us(ts), epoch_us(last_at), sample_count, worker_id, dp_rank, lowest_used_tokens, "
            "round(mean_used_tokens, 6), highest_used_tokens, known_used_tokens, finished_total, usable_tokens "
            f"from {table} order by all"
        ).fetchall()


def expected_bucket(pool: int, ks: list[int]) -> tuple[float, float, float] | None:
    """Return (lowest, mean, highest) of the known values by plain arithmetic."""
    values = [used(pool, k) for k in ks]
    known = [value for value in values if value is not None]
    return (min(known), sum(known) / len(known), max(known)) if known else None


@pytest.mark.parametrize(("length_s", "max_points"), [(LENGTH_S, 2001), (LENGTH_S, 150), (LENGTH_S, 30), (1500, 4)])
@pytest.mark.parametrize("pool", range(3))
def test_a_series_says_what_the_samples_said(raw, rolled, pool: int, length_s: int, max_points: int) -> None:
    """From samples or from any tier: mean, lowest, highest and newest of each bucket equal plain arithmetic."""
    worker_id, dp_rank = POOLS[pool]
    signals = ["used_tokens", "finished_total", "usable_tokens"]
    begin_us, end_us = round(T0_S * 1e6), round((T0_S + length_s) * 1e6)
    step_s = bucket_step_us(begin_us, end_us, max_points)[0] / 1e6
    first = T0_S // step_s
    members: dict[int, list[int]] = {}
    for k in range(length_s):
        if not (pool == 2 and 700 <= k < 800):
            members.setdefault(int((T0_S + k + 0.25) // step_s - first), []).append(k)
    for store in (raw, rolled):
        series = store.pool_series(worker_id, dp_rank, T0_S, T0_S + length_s, signals, max_points)
        assert set(series) == {"at_s", *signals, "lowest_used_tokens", "highest_used_tokens"}
        assert len(series["at_s"]) == len(members) <= max_points
        assert (np.diff(series["at_s"]) > 0).all()
        for i, ks in enumerate(members.values()):
            wanted = expected_bucket(pool, ks)
            found = [series[name][i] for name in ("lowest_used_tokens", "used_tokens", "highest_used_tokens")]
            assert np.isnan(found).all() if wanted is None else np.allclose(found, wanted)
            assert series["finished_total"][i] == ks[-1] * (pool + 1)
            assert series["usable_tokens"][i] == 5000.0
            assert math.isclose(series["at_s"][i], T0_S + ks[-1] + 0.25)


def test_tiers_conserve_the_samples(rolled) -> None:
    """Every tier accounts for each sample once, as far as it has come; coarser never exceeds finer."""
    with rolled._database.reading("looking") as cursor:
        states = tier_states(cursor)
    for tier in TIERS[1:]:
        rows = tier_rows(rolled, tier.table)
        seconds = int(states[tier.name].rolled_until_us / 1e6 - T0_S)
        assert LENGTH_S - 15 - tier.step_s <= seconds <= LENGTH_S - 15
        assert sum(row[2] for row in rows) == 3 * seconds - 100
        assert sum(row[8] for row in rows) == 3 * seconds - 100 - 40
        assert all(row[0] % (tier.step_s * 1_000_000) == 0 for row in rows)


def test_rolling_up_again_or_in_steps_changes_nothing(rolled) -> None:
    """Tiers depend on the samples alone: not on how often, when or in which order they were made."""
    once = {tier.table: tier_rows(rolled, tier.table) for tier in TIERS[1:]}
    assert set(roll_up(rolled._database, T0_S + LENGTH_S).values()) == {0}
    store = quiet_store()
    for batch in merge(batches(range(LENGTH_S), order=-1), 250):
        store.append_cycle(batch)
        roll_up(store._database, batch.cycle_at_s + 250)
    assert {tier.table: tier_rows(store, tier.table) for tier in TIERS[1:]} == once
    store.close()


def test_a_late_sample_is_in_the_tiers_too(rolled) -> None:
    """Samples that arrive after their bucket was made end in the same tiers as if they had been on time."""
    late = range(610, 660)
    store = quiet_store()
    for batch in merge(batches(range(610)) + batches(range(660, LENGTH_S))):
        store.append_cycle(batch)
    store.maintain(T0_S + LENGTH_S)
    assert tier_rows(store, "readings_10s") != tier_rows(rolled, "readings_10s")
    for batch in merge(batches(late), 20):
        store.append_cycle(batch)
        roll_up(store._database, T0_S + LENGTH_S)
    for tier in TIERS[1:]:
        assert tier_rows(store, tier.table) == tier_rows(rolled, tier.table)
    store.close()


def test_retention_takes_the_fine_and_leaves_the_coarse() -> None:
    """When samples are gone the series goes on without a hole or a double; nothing unrolled is ever deleted."""
    store = quiet_store()
    length_s = 4 * 3600
    cycles = [
        CycleBatch(
            cycle_at_s=T0_S + first,
            duration_s=0.1,
            readings=[
                PoolReading(worker_id="a", received_at_s=T0_S + k, engine="x", used_tokens=float(k), finished_total=k)
                for k in range(first, first + 3600, 5)
            ],
        )
        for first in range(0, length_s, 3600)
    ]
    for batch in cycles:
        store.append_cycle(batch)
    retention = Retention(raw_s=3600, tier_10s_s=7200, tier_1min_s=10800, tier_10min_s=20000)
    assert sum(forget(store._database, T0_S + length_s, retention).values()) == 0
    end_s = T0_S + length_s
    before = store.pool_series("a", 0, T0_S, end_s, ["used_tokens", "finished_total"], 25)
    roll_up(store._database, end_s)
    deleted = forget(store._database, end_s, retention)
    assert all(deleted[tier.table] for tier in TIERS[:3])
    assert deleted["readings_10min"] == 0
    after = store.pool_series("a", 0, T0_S, end_s, ["used_tokens", "finished_total"], 25)
    assert before.keys() == after.keys()
    for name, column in before.items():
        assert np.allclose(column, after[name]), name
    fine = store.pool_series("a", 0, T0_S, end_s, ["used_tokens", "finished_total"], 4000)
    assert (np.diff(fine["at_s"]) > 0).all()
    assert (np.diff(fine["finished_total"]) > 0).all()
    assert fine["at_s"][0] < T0_S + 600
    assert fine["at_s"][-1] == end_s - 5
    assert store.time_span() == (T0_S + 595, end_s - 5)
    (old,) = store.latest_histories(T0_S + 1800.0, 60.0)
    assert abs(old.last.used_tokens - 1800) <= 600
    assert old.last.received_at_s <= T0_S + 1800.0
    assert store.pools(T0_S, T0_S + 900) == [("a", 0, old.last.role)]
    assert forget(store._database, end_s, retention) == dict.fromkeys(deleted, 0)
    forget(store._database, end_s + 1e6, retention)
    assert store.time_span() is not None, "what no coarser tier has taken up yet stays"
    store.close()


def test_the_store_looks_after_itself() -> None:
    """Appending alone makes tiers and deletes: nobody has to remember to call it."""
    with open_store(":memory:", retention=Retention(raw_s=1200, tier_10s_s=1200)) as store:
        for batch in merge(batches(range(LENGTH_S + 2000)), 250):
            store.append_cycle(batch)
        with store._database.reading("looking") as cursor:
            states = tier_states(cursor)
            (oldest_us,) = cursor.execute("select epoch_us(min(ts)) from readings").fetchall()[0]
        assert store.maintenance_problem is None
        assert all(states[tier.name].rolled_until_us for tier in TIERS[1:])
        assert oldest_us / 1e6 >= T0_S + 1800


def test_a_fleet_series_shares_one_grid(raw, rolled) -> None:
    """All pools have points on one grid of bucket begins, each as its own series says; absent means no point."""
    for store in (raw, rolled):
        fleet = store.fleet_series(["used_tokens"], T0_S, T0_S + LENGTH_S, 60)
        assert list(fleet) == ["a/0", "a/1", "b/0"]
        grid = sorted({at_s for one in fleet.values() for at_s in one["at_s"]})
        assert len(grid) <= 60
        steps = np.diff(grid)
        assert np.allclose(steps, steps[0])
        for (worker_id, dp_rank), one in zip(POOLS, fleet.values(), strict=True):
            alone = store.pool_series(worker_id, dp_rank, T0_S, T0_S + LENGTH_S, ["used_tokens"], 60)
            assert np.array_equal(one["used_tokens"], alone["used_tokens"], equal_nan=True)
        assert len(fleet["b/0"]["at_s"]) < len(fleet["a/0"]["at_s"])


def test_degenerate_questions(raw) -> None:
    """An empty range or an unknown name is refused with words; an unknown pool is an empty series."""
    for wrong in (
        lambda: raw.pool_series("a", 0, T0_S, T0_S, ["used_tokens"]),
        lambda: raw.pool_series("a", 0, T0_S, T0_S + 1, ["used_tokens; drop table readings"]),
        lambda: raw.fleet_series(["no_such"], T0_S, T0_S + 1),
        lambda: raw.fleet_series(["used_tokens"], T0_S, T0_S + 1, 1),
        lambda: raw.fleet_series(["used_tokens"], T0_S, math.nan),
    ):
        with pytest.raises(ValueError, match=r"signals|time|max_points"):
            wrong()
    nobody = raw.pool_series("'; drop table readings; --", 0, T0_S, T0_S + 10, ["used_tokens"])
    assert {name: len(column) for name, column in nobody.items()} == dict.fromkeys(nobody, 0)
    assert raw.fleet_series(["used_tokens"], 0.0, 10.0) == {}
    assert list(raw.fleet_series([], T0_S, T0_S + 10)["a/0"]) == ["at_s"]


@pytest.mark.parametrize("points", [2, 3, 50, 500, 5000])
@pytest.mark.parametrize("length_s", [1, 59, 3600, 86400, 90 * 86400])
def test_a_grid_never_has_more_points_than_asked(points: int, length_s: int) -> None:
    """Whatever the window and wherever it lies, the buckets it touches fit, and tiers divide them evenly."""
    for offset in (0, 1, 599_999_999):
        begin_us = 1_790_000_400_000_000 + offset
        end_us = begin_us + length_s * 1_000_000
        step_us, index = bucket_step_us(begin_us, end_us, points)
        assert (end_us - 1) // step_us - begin_us // step_us + 1 <= points
        assert TIERS[index].step_s == 0 or step_us % (TIERS[index].step_s * 1_000_000) == 0


def test_segments_cover_the_window_once(rolled) -> None:
    """Whichever tier leads, segments follow one another without gap or overlap from begin to end."""
    with rolled._database.reading("looking") as cursor:
        states = tier_states(cursor)
    begin_us, end_us = round(T0_S * 1e6) - 5, round((T0_S + LENGTH_S) * 1e6)
    for index in range(len(TIERS)):
        parts = segments(states, begin_us, end_us, index)
        assert parts[0].begin_us == begin_us
        assert parts[-1].end_us == end_us
        assert all(left.end_us == right.begin_us for left, right in pairwise(parts))


@pytest.mark.parametrize(
    "ages", [{"raw_s": 0}, {"polls_s": -1}, {"events_s": math.nan}, {"raw_s": 8 * 86400}, {"tier_1min_s": 60}]
)
def test_impossible_ages_are_refused(ages: dict[str, float]) -> None:
    """An age that is not above 0, or a coarser tier that ends before a finer one, is refused by name."""
    with pytest.raises(ValueError, match="retention: "):
        Retention(**ages)

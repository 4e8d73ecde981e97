"""Events, alerts, profiles and runs: kept as given, strict JSON, findable again."""

import math

import pytest

from collectors.errors import StoreError
from collectors.store import AlertRecord, Event, RunRecord, Store, open_store

T0_S = 1_790_000_000.0


@pytest.fixture
def store() -> Store:
    """Return an empty store in memory."""
    with open_store(":memory:") as store:
        yield store


def test_events_come_back_newest_first_by_kind_and_subject(store: Store) -> None:
    """A question about kinds, a subject or a stretch of time gets exactly the events it names."""
    events = [
        Event(
            at_s=T0_S + k,
            kind=["began", "ended"][k % 2],
            subject=f"w/{k % 3}",
            text="é <b>",
            details={"k": k, "x": None},
        )
        for k in range(12)
    ]
    store.append_events(events)
    store.append_events([])
    assert store.events(T0_S, T0_S + 12) == events[::-1]
    assert store.events(T0_S + 3, T0_S + 6) == events[5:2:-1]
    assert store.events(T0_S, T0_S + 12, kinds=["began"]) == [one for one in events[::-1] if one.kind == "began"]
    assert store.events(T0_S, T0_S + 12, kinds=[]) == []
    assert store.events(T0_S, T0_S + 12, kinds=("ended",), subject="w/1", limit=1) == [events[7]]


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, b"bytes"])
def test_what_is_no_json_is_refused_and_nothing_stored(store: Store, value: object) -> None:
    """NaN, infinity and objects JSON cannot say never enter, in whatever record they come."""
    good = Event(at_s=T0_S, kind="k")
    for attempt in (
        lambda: store.append_events([good, Event(at_s=T0_S, kind="k", details={"deep": [value]})]),
        lambda: store.append_alerts([AlertRecord(at_s=T0_S, alert_id="a", rule="r", details={"v": value})]),
        lambda: store.add_profile("p", {"v": value}, T0_S),
        lambda: store.add_run(RunRecord(name="r", created_at_s=T0_S, summary={"v": value})),
    ):
        with pytest.raises(ValueError, match="not strict JSON"):
            attempt()
    assert store.events(0, 2 * T0_S) == []
    assert store.alerts(0, 2 * T0_S) == []
    assert store.profiles() == []
    assert store.runs() == []


def test_the_newest_row_of_an_alert_rules(store: Store) -> None:
    """An alert's life is a list of rows; the newest of each, even within one instant, is its state."""
    rows = [
        AlertRecord(at_s=T0_S, alert_id="a", rule="full", subject="w/0", text="began"),
        AlertRecord(at_s=T0_S + 1, alert_id="b", rule="full", severity="error", details={"v": 1.5}),
        AlertRecord(at_s=T0_S + 2, alert_id="a", rule="full", subject="w/0", state="resolved"),
        AlertRecord(at_s=T0_S + 2, alert_id="a", rule="full", subject="w/0", state="delivered"),
    ]
    store.append_alerts(rows)
    assert store.alerts(T0_S, T0_S + 9) == rows[::-1]
    assert store.newest_alerts(T0_S, T0_S + 9) == [rows[3], rows[1]]
    assert store.newest_alerts(T0_S, T0_S + 1) == [rows[0]]


def test_profiles_are_versions_and_going_back_is_applying(store: Store) -> None:
    """Versions count up per name and never change; which one was applied last is known."""
    assert [store.add_profile("m", {"v": k}, T0_S + k) for k in range(3)] == [1, 2, 3]
    assert store.add_profile("other", {}, T0_S) == 1
    store.apply_profile("m", 3, T0_S + 10)
    store.apply_profile("m", 2, T0_S + 20)
    found = store.profiles("m")
    assert [one.profile["v"] for one in found] == [0, 1, 2]
    assert [one.applied_at_s for one in found] == [None, T0_S + 20, T0_S + 10]
    assert [one.name for one in store.profiles()] == ["m", "m", "m", "other"]
    with pytest.raises(StoreError, match="no version 9 of profile m"):
        store.apply_profile("m", 9, T0_S)


def test_runs_have_names_of_their_own(store: Store) -> None:
    """A kept run is not overwritten by its namesake; deleting is told apart from not finding."""
    run = RunRecord(name="r'1", created_at_s=T0_S, summary={"policies": {"joint": {"ttft_s": 1.0}}}, parquet_path="x")
    store.add_run(run)
    with pytest.raises(StoreError, match="is kept already"):
        store.add_run(run)
    assert store.runs() == [run]
    assert (store.delete_run("r'1"), store.delete_run("r'1")) == (True, False)

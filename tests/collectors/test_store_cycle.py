"""What goes in comes out: a cycle whole or not at all, unknown as unknown, from any thread."""

import math
import random
import threading
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.errors import StoreError, StoreReadOnlyError, StoreTimeoutError
from collectors.store import CycleBatch, Event, PollOutcome, WorkerRecord, open_store
from collectors.store.buckets import PER_CYCLE
from scoring.model import Finding, PoolReading, Role, RouterWorker, Severity, SourceState, signal_names

T0_S = 1_790_000_000.0

numbers = st.none() | st.floats(min_value=-1e15, max_value=1e18, allow_nan=False)
buckets = st.none() | st.lists(
    st.tuples(st.floats(0.0, 1e6) | st.just(math.inf), st.floats(0.0, 1e12)), min_size=1
).map(tuple)
texts = st.none() | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)


@st.composite
def readings(draw: st.DrawFn) -> PoolReading:
    """Draw a reading of one pool with any mix of known and unknown."""
    chosen = draw(st.lists(st.sampled_from(signal_names()), unique=True, max_size=12))
    return PoolReading(
        worker_id="w<b>'1",
        dp_rank=draw(st.integers(0, 63)),
        received_at_s=T0_S + draw(st.integers(0, 999_999)) / 1e6,
        role=draw(st.sampled_from(Role)),
        engine="sglang",
        version=draw(texts),
        model=draw(texts),
        ttft_buckets=draw(buckets),
        itl_buckets=draw(buckets),
        anomalies=tuple(draw(st.lists(st.sampled_from(signal_names()), max_size=3))),
        expected_rank_count=draw(st.none() | st.integers(1, 64)),
        answered_at_s=draw(st.none() | st.floats(0.0, 4e9)),
        **{name: draw(numbers) for name in chosen},
    )


def poll(worker_id: str, at_s: float, state: SourceState = SourceState.FRESH, detail: str = "") -> PollOutcome:
    """Return the outcome of one poll."""
    return PollOutcome(worker_id=worker_id, started_at_s=at_s, duration_s=0.01, state=state, detail=detail)


def reading(worker_id: str, at_s: float, used_tokens: float | None = None, **more) -> PoolReading:
    """Return a small reading."""
    return PoolReading(worker_id=worker_id, received_at_s=at_s, engine="sglang", used_tokens=used_tokens, **more)


@settings(max_examples=12, deadline=None)
@given(st.lists(readings(), min_size=1, max_size=4, unique_by=lambda one: one.dp_rank), st.randoms())
def test_a_reading_comes_back_whole_and_order_does_not_matter(batch: list[PoolReading], shuffle: random.Random) -> None:
    """Every field survives the store, None as None; the order of readings in a cycle changes nothing."""
    shuffled = list(batch)
    shuffle.shuffle(shuffled)
    with open_store(":memory:") as store:
        store.append_cycle(CycleBatch(cycle_at_s=T0_S, duration_s=0.2, polls=[poll("w<b>'1", T0_S)], readings=shuffled))
        histories = store.latest_histories(T0_S + 1.0, 60.0)
    assert [history.last.dp_rank for history in histories] == sorted(one.dp_rank for one in batch)
    for history in histories:
        (sent,) = (one for one in batch if one.dp_rank == history.last.dp_rank)
        assert replace(history.last, received_at_s=sent.received_at_s) == sent
        assert abs(history.last.received_at_s - sent.received_at_s) < 1e-6
        assert set(history.columns) == set(signal_names())
        for name, column in history.columns.items():
            known = getattr(sent, name)
            assert math.isnan(column[-1]) if known is None else column[-1] == known


def test_no_field_of_a_reading_is_left_out() -> None:
    """A reading with everything known comes back equal: a field added to the model must be stored or named here."""
    finding = Finding(code="c", text="t", dp_rank=3, severity=Severity.ERROR)
    others = {
        "worker_id": "w",
        "dp_rank": 3,
        "received_at_s": T0_S,
        "role": Role.PREFILL,
        "engine": "sglang",
        "version": "0.5.23",
        "model": "m",
        "ttft_buckets": ((0.5, 1.0), (math.inf, 2.0)),
        "itl_buckets": ((0.1, 3.0), (math.inf, 4.0)),
        "anomalies": ("kv_bytes",),
        "findings": (finding,),
        "expected_rank_count": 8,
        "answered_at_s": T0_S - 1.25,
    }
    values = {name: 1.5 + i for i, name in enumerate(signal_names())}
    assert {field.name for field in fields(PoolReading)} == {*others, *values}
    sent = PoolReading(**others, **values)
    with open_store(":memory:") as store:
        store.append_cycle(CycleBatch(cycle_at_s=T0_S, duration_s=0.1, readings=[sent], findings=[("w", finding)]))
        (history,) = store.latest_histories(T0_S, 60.0)
    assert history.last == sent


@pytest.mark.parametrize("place", [0, 1501, 2999])
def test_a_rare_value_does_not_fail_its_batch(place: int) -> None:
    """One text, list or flag among thousands of unknown ones is stored like any other, wherever it stands."""
    count = 3000
    names = [f"w{i:04}" for i in range(count)]
    with open_store(":memory:") as store:
        store.append_cycle(
            CycleBatch(
                cycle_at_s=T0_S,
                duration_s=0.1,
                polls=[
                    replace(poll(name, T0_S), error_kind="odd" if i == place else None) for i, name in enumerate(names)
                ],
                readings=[
                    reading(name, T0_S, version="v", anomalies=("kv_bytes",), itl_buckets=((math.inf, 1.0),))
                    if i == place
                    else reading(name, T0_S)
                    for i, name in enumerate(names)
                ],
                router_workers=[
                    ("r", RouterWorker(url=name, is_healthy=True if i == place else None))
                    for i, name in enumerate(names)
                ],
            )
        )
        lasts = [history.last for history in store.latest_histories(T0_S + 1, 5.0)]
        assert [
            i for i, last in enumerate(lasts) if (last.version, last.anomalies, last.itl_buckets) != (None, (), None)
        ] == [place]
        assert [seen.url for _, seen in store.router_workers(T0_S + 1, 5.0) if seen.is_healthy] == [names[place]]
        assert store.worker_polls(names[place], T0_S, T0_S + 1)[0].error_kind == "odd"


@pytest.mark.parametrize("text", ["a\0b", "x\ud800y", "\udcff", "<script>'\";--", "池 🙂", "a" * 100_000])
def test_no_text_of_a_worker_can_fail_the_cycle(text: str) -> None:
    """Whatever a worker calls itself is stored as text, at worst with a sign replaced; the others lose nothing."""
    harmless = text.encode("utf-8", "replace").decode()
    with open_store(":memory:") as store:
        store.append_cycle(
            CycleBatch(
                cycle_at_s=T0_S,
                duration_s=0.1,
                polls=[poll("w", T0_S, detail=text), poll("other", T0_S)],
                readings=[reading("w", T0_S, model=text, anomalies=(text,)), reading("other", T0_S, 5.0)],
                findings=[("w", Finding(code="c", text=text))],
                router_workers=[("r", RouterWorker(url=text))],
                workers=[WorkerRecord(worker_id="w", labels={"rack": text})],
            )
        )
        store.append_events([Event(at_s=T0_S, kind="k", text=text, details={"v": text})])
        other, strange = store.latest_histories(T0_S + 1, 5.0)
        assert other.last.used_tokens == 5.0
        assert (strange.last.model, strange.last.anomalies) == (harmless, (harmless,))
        assert (strange.poll_detail, strange.last.findings[0].text) == (harmless, harmless)
        assert store.events(T0_S, T0_S + 1)[0].text == harmless


def test_what_is_not_finite_is_unknown() -> None:
    """NaN and infinity become NULL at the door: no sum over a column can be poisoned."""
    values = {"used_tokens": math.nan, "prefix_tokens": math.inf, "finished_total": -math.inf, "running_count": 1.0}
    with open_store(":memory:") as store:
        store.append_cycle(
            CycleBatch(
                cycle_at_s=T0_S,
                duration_s=0.1,
                readings=[PoolReading(worker_id="w", received_at_s=T0_S, engine="x", **values)],
            )
        )
        (history,) = store.latest_histories(T0_S + 1, 10)
    assert [getattr(history.last, name) for name in values] == [None, None, None, 1.0]


def test_histories_are_the_past_at_any_instant() -> None:
    """A history at t knows nothing later than t and nothing older than its window; the newest is `last`."""
    with open_store(":memory:") as store:
        for k in range(30):
            at_s = T0_S + k
            store.append_cycle(
                CycleBatch(cycle_at_s=at_s, duration_s=0.1, polls=[poll("w", at_s)], readings=[reading("w", at_s, k)])
            )
        for at, window in ((29, 60), (20, 10), (7, 60), (0, 1)):
            (history,) = store.latest_histories(T0_S + at + 0.5, window)
            expected = [k for k in range(30) if at + 0.5 - window < k <= at + 0.5]
            assert history.columns["used_tokens"].tolist() == expected
            assert np.allclose(history.at_s - T0_S, expected)
            assert history.last.used_tokens == at
            assert history.polled_at_s == T0_S + at
        assert store.latest_histories(T0_S - 1.0, 60.0) == []


def test_a_silent_worker_keeps_its_last_reading_and_says_why() -> None:
    """Down is a state, not a gap: last figures stay, with the poll that failed; who never answered is there too."""
    with open_store(":memory:") as store:
        for k in range(40):
            at_s = T0_S + k
            is_up = k < 10
            store.append_cycle(
                CycleBatch(
                    cycle_at_s=at_s,
                    duration_s=0.1,
                    polls=[
                        poll("a", at_s) if is_up else poll("a", at_s, SourceState.DOWN, "refused"),
                        poll("never", at_s, SourceState.DOWN, "refused"),
                        poll("router", at_s),
                        *([poll("gone", at_s)] if is_up else []),
                    ],
                    readings=[reading("a", at_s, k), reading("gone", at_s, k)] if is_up else [],
                    router_workers=[("router", RouterWorker(url="http://a", dp_rank=1, is_healthy=is_up))],
                    workers=[WorkerRecord(worker_id="a", url="http://a", labels={"rack": "r1"})],
                )
            )
        silent, never = store.latest_histories(T0_S + 39.5, 15.0)
        assert (silent.last.worker_id, silent.last.used_tokens, silent.at_s.tolist()) == ("a", 9.0, [T0_S + 9])
        assert (silent.poll_state, silent.poll_detail) == (SourceState.DOWN, "refused")
        assert silent.labels == {"rack": "r1"}
        assert (never.last, len(never.at_s)) == (PoolReading(worker_id="never"), 0)
        assert never.poll_state is SourceState.DOWN
        assert store.router_workers(T0_S + 39.5, 15.0) == [
            ("router", RouterWorker(url="http://a", dp_rank=1, is_healthy=False))
        ]


def test_labels_are_those_of_the_time() -> None:
    """A worker that moved is shown where it was at the instant asked for."""
    with open_store(":memory:") as store:
        for k, rack in enumerate(["r1", "r1", "r2"]):
            store.append_cycle(
                CycleBatch(
                    cycle_at_s=T0_S + k,
                    duration_s=0.1,
                    workers=[WorkerRecord(worker_id="w", url="http://w", labels={"rack": rack})],
                )
            )
        assert len(store.workers(T0_S)) == 1
        assert [store.workers(T0_S + k)["w"].labels["rack"] for k in (-5, 0, 1, 2, 9)] == ["r1", "r1", "r1", "r2", "r2"]


def test_who_a_worker_is_enters_once_and_without_secrets(tmp_path) -> None:
    """Credentials in a URL are not stored, and a restart does not store what is known already."""
    path = tmp_path / "kv.duckdb"
    record = WorkerRecord(worker_id="w", url="https://user:s3cret@h:1/a@b", labels={"rack": "r1"})
    for k in range(3):
        with open_store(path) as store:
            plain = replace(record, url="https://h:1/a@b")
            store.append_cycle(CycleBatch(cycle_at_s=T0_S + k, duration_s=0.1, workers=[record if k == 0 else plain]))
            assert store.workers(T0_S + k) == {"w": plain}
            with store._database.reading("counting") as cursor:
                assert cursor.execute("select count(*) from workers").fetchall() == [(1,)]
    assert b"s3cret" not in path.read_bytes()


def test_a_failed_append_stores_nothing(tmp_path) -> None:
    """Whatever goes wrong inside a cycle, no part of it stays, and the next one is stored as if nothing had been."""
    with open_store(tmp_path / "kv.duckdb") as store:
        good = [reading("w", T0_S, 1.0)]
        with pytest.raises(ValueError, match="time"):
            store.append_cycle(
                CycleBatch(cycle_at_s=T0_S, duration_s=0.1, readings=[*good, reading("w", math.nan, 2.0)])
            )
        finding = ("w", Finding(code="c", text="t"))
        with pytest.raises(StoreError, match="storing a cycle failed"):
            store.append_cycle(
                CycleBatch(
                    cycle_at_s=T0_S,
                    duration_s=0.1,
                    polls=[replace(poll("w", T0_S), detail=None)],
                    readings=good,
                    findings=[finding],
                )
            )
        assert store.time_span() is None
        assert store.cycle_stats(0.0, 2 * T0_S).cycle_count == 0
        store.append_cycle(CycleBatch(cycle_at_s=T0_S, duration_s=0.1, readings=good, findings=[finding]))
        assert len(store.findings(0.0, 2 * T0_S)) == 1


def test_a_lasting_finding_is_stored_once_a_minute_and_known_all_the_time() -> None:
    """Disk does not grow with how long a fault lasts, yet each instant knows exactly what was wrong."""
    lasting = Finding(code="clock-skew", text="9 s", severity=Severity.ERROR)
    brief = Finding(code="partial", text="1 of 2", dp_rank=0)
    with open_store(":memory:") as store:
        for k in range(90):
            at_s = T0_S + k
            found = [("w", lasting)] if k < 75 else []
            found += [("w", brief)] if 20 <= k < 25 or k == 30 else []
            store.append_cycle(
                CycleBatch(
                    cycle_at_s=at_s,
                    duration_s=0.1,
                    polls=[poll("w", at_s)],
                    readings=[reading("w", at_s, 1.0), reading("w", at_s, 1.0, dp_rank=1)],
                    findings=found,
                )
            )
        rows = store.findings(T0_S, T0_S + 200)
        assert [round(at_s - T0_S) for at_s, _, found in rows if found == lasting] == [60, 0]
        assert [round(at_s - T0_S) for at_s, _, found in rows if found == brief] == [30, 20]
        for k in (0, 1, 19, 20, 24, 25, 29, 30, 31, 60, 74, 75, 89):
            first, second = store.latest_histories(T0_S + k + 0.5, 5.0)
            expected = ((lasting,) if k < 75 else ()) + ((brief,) if 20 <= k < 25 or k == 30 else ())
            assert set(first.last.findings) == set(expected)
            assert set(second.last.findings) == {found for found in expected if found.dp_rank is None}


def test_histograms_of_a_large_fleet_take_turns() -> None:
    """However large the fleet, every pool's histogram is stored within its share of cycles, and never a wrong one."""
    count = 3 * PER_CYCLE + 5
    with open_store(":memory:") as store:
        for k in range(8):
            at_s = T0_S + k
            store.append_cycle(
                CycleBatch(
                    cycle_at_s=at_s,
                    duration_s=0.1,
                    readings=[
                        reading(f"w{i:04}", at_s, ttft_buckets=((0.5, float(k)), (math.inf, float(k + i))))
                        for i in range(count)
                    ],
                )
            )
        ages = []
        for history in store.latest_histories(T0_S + 7.5, 60.0):
            (_, low), (_, high) = history.last.ttft_buckets
            assert high - low == int(history.last.worker_id[1:])
            ages.append(7 - low)
        assert len(ages) == count
        assert max(ages) <= -(-count // PER_CYCLE)
        store.append_cycle(CycleBatch(cycle_at_s=T0_S + 8, duration_s=0.1, readings=[reading("w0000", T0_S + 8)]))
        assert store.latest_histories(T0_S + 8.5, 0.9)[0].last.ttft_buckets is None


def test_many_threads_read_and_write_at_once(tmp_path) -> None:
    """Writers and readers in eight threads: no error, no lost cycle, and every read sees whole cycles only."""
    writer_count, cycle_count, pool_count = 4, 8, 20
    problems: list[BaseException] = []
    is_over = threading.Event()
    with open_store(tmp_path / "kv.duckdb") as store:

        def write(writer: int) -> None:
            for k in range(cycle_count):
                at_s = T0_S + k + writer / 10
                store.append_cycle(
                    CycleBatch(
                        cycle_at_s=at_s,
                        duration_s=0.1,
                        polls=[poll(f"w{writer}", at_s)],
                        readings=[reading(f"w{writer}", at_s, k, dp_rank=rank) for rank in range(pool_count)],
                    )
                )

        def read() -> None:
            while not is_over.is_set():
                for history in store.latest_histories(T0_S + cycle_count, 2.0 * cycle_count):
                    assert (np.diff(history.columns["used_tokens"]) == 1).all()
                lengths = {len(one["at_s"]) for one in store.fleet_series(["used_tokens"], T0_S, T0_S + 60).values()}
                assert len(lengths) <= writer_count  # All ranks of a writer move together.
                store.cycle_stats(T0_S, T0_S + 60)

        def guarded(work, *args) -> None:
            try:
                work(*args)
            except BaseException as error:  # noqa: BLE001 # reported by the main thread
                problems.append(error)

        writers = [threading.Thread(target=guarded, args=(write, i)) for i in range(writer_count)]
        readers = [threading.Thread(target=guarded, args=(read,)) for _ in range(4)]
        for thread in (*writers, *readers):
            thread.start()
        for thread in writers:
            thread.join(60)
        is_over.set()
        for thread in readers:
            thread.join(60)
        assert not problems, problems[0]
        stats = store.cycle_stats(T0_S, T0_S + 60)
        assert stats.cycle_count == stats.poll_count == writer_count * cycle_count
        assert stats.reading_count == writer_count * cycle_count * pool_count
        found = store.fleet_series(["used_tokens"], T0_S, T0_S + 60, 1000)
        assert sum(len(one["at_s"]) for one in found.values()) == stats.reading_count


def test_a_read_that_takes_too_long_is_stopped() -> None:
    """A reader cannot hold a page for longer than it may, and the store works on afterwards."""
    with open_store(":memory:") as store:
        with pytest.raises(StoreTimeoutError, match="took longer"), store._database.reading("counting", 0.05) as cursor:
            cursor.execute("select count(*) from range(100000000000) where range % 7 = 3").fetchall()
        assert store.time_span() is None


def test_a_closed_or_read_only_store_says_so(tmp_path) -> None:
    """Closing twice is fine, using it afterwards or writing to a read-only one is a clear error."""
    path = tmp_path / "kv.duckdb"
    store = open_store(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="after the store was closed"):
        store.time_span()
    with open_store(path, read_only=True) as reader, pytest.raises(StoreReadOnlyError, match="read-only"):
        reader.append_cycle(CycleBatch(cycle_at_s=T0_S, duration_s=0.1))

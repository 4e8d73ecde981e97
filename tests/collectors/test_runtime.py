"""The running whole: one poll an interval whatever the readers, one runtime a process, nothing left after the end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from aiohttp import web

from collectors.errors import StoreError, StoreLockedError
from collectors.runtime import Runtime, get_runtime, start_runtime
from collectors.settings import Settings
from collectors.store import open_store
from scoring.model import FleetSnapshot, Role, SourceState

ROOT = Path(__file__).resolve().parents[2]
INTERVAL_S = 0.25


class FakeFleet:
    """SGLang-speaking workers on loopback, all in one thread; counts what each is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.slow_s: dict[str, float] = {}
        self.status: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-fleet", daemon=True)
        self._runners: dict[str, web.AppRunner] = {}
        self.urls: dict[str, str] = {}
        self._thread.start()

    def add(self, name: str, ranks: int = 1) -> str:
        return asyncio.run_coroutine_threadsafe(self._add(name, ranks), self._loop).result(10)

    async def _add(self, name: str, ranks: int) -> str:
        async def loads(_: web.Request) -> web.Response:
            self.asked[name] += 1
            await asyncio.sleep(self.slow_s.get(name, 0.0))
            if self.status.get(name, 200) != 200:
                return web.Response(status=self.status[name])
            return web.json_response(self._body(name, ranks))

        app = web.Application()
        app.router.add_get("/v1/loads", loads)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._runners[name] = runner
        self.urls[name] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return self.urls[name]

    def _body(self, name: str, ranks: int) -> dict[str, Any]:
        now = time.time()
        used = 1000 + self.asked[name]
        rows = [
            {
                "timestamp": now,
                "dp_rank": rank,
                "num_running_reqs": 1,
                "num_waiting_reqs": 0,
                "num_waiting_uncached_tokens": 0,
                "num_used_tokens": used,
                "num_total_tokens": used,
                "num_active_tokens": used,
                "num_prealloc_ready_tokens": 0,
                "max_total_num_tokens": 100_000,
                "max_running_requests": 128,
                "token_usage": used / 100_000,
                "gen_throughput": 0.0,
                "cache_hit_rate": 0.0,
                "utilization": 0.0,
                "total_prefill_uncached_tokens": used,
                "total_prefill_busy_us": used,
                "decode_moments": None,
                "disaggregation": {"mode": "null"},
                "queues": {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
            }
            for rank in range(ranks)
        ]
        return {"timestamp": "2026-10-31T00:00:00.000000+00:00", "version": "0.5.23", "loads": rows}

    def remove(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self._runners.pop(name).cleanup(), self._loop).result(10)

    def close(self) -> None:
        for name in list(self._runners):
            self.remove(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_runtime_is_left() -> Iterator[None]:
    yield
    left = get_runtime()
    if left is not None:
        left.stop()
    assert left is None, "a test left a runtime behind"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kvscope-")]


def settings_for(folder: Path, urls: dict[str, str], **tables: Any) -> Settings:
    return Settings.model_validate(
        {
            "workers": [{"url": url, "name": name} for name, url in urls.items()],
            "poll": {"interval_s": INTERVAL_S, "timeout_s": 2.0, "jitter_ratio": 0.2, **tables.pop("poll", {})},
            "freshness": {"late_after_s": 1.0, "stale_after_s": 2.0, **tables.pop("freshness", {})},
            "view": {"rate_window_s": 5.0, "history_s": 60.0},
            "store": {"path": folder / "kvscope.duckdb", "lock_wait_s": 0.2},
            **tables,
        }
    )


def until(claim: Callable[[], object], limit_s: float = 45.0) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if claim():
            return
        time.sleep(0.02)
    raise AssertionError("did not come true in time")


def test_each_target_is_polled_once_an_interval_whatever_the_readers(fleet: FakeFleet, tmp_path: Path) -> None:
    """
    Eight readers that ask all the time change nothing: each target is asked once a cycle, all get the same snapshot
    object, and a target that takes four intervals delays only itself.
    """
    urls = {name: fleet.add(name, ranks=2 if name == "dp" else 1) for name in ("quick", "dp", "slow")}
    fleet.slow_s["slow"] = 4 * INTERVAL_S
    runtime = Runtime(settings_for(tmp_path, urls)).start()
    stop = threading.Event()
    errors: list[Exception] = []

    def read() -> None:
        try:
            while not stop.wait(0.03):
                first, second = runtime.snapshot(), runtime.snapshot()
                assert first is second or second.at_s > first.at_s
                runtime.histories()
                runtime.sources()
                runtime.cycle_stats()
        except Exception as error:  # noqa: BLE001 # shown by the assertion below
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(8)]
    try:
        until(lambda: runtime.cycle_stats().cycle_count >= 2)
        for reader in readers:
            reader.start()
        until(lambda: runtime.cycle_stats().cycle_count >= 10)
    finally:
        stop.set()
        for reader in readers:
            if reader.ident is not None:
                reader.join(5)
        stats = runtime.cycle_stats()
        views = {view.worker_id: view for view in runtime.sources()}
        fleet_now = runtime.snapshot()
        runtime.stop()
    assert not errors
    # Each cycle asks /v1/loads once; the first contact asks it as part of finding the engine.
    assert abs(fleet.asked["quick"] - stats.cycle_count) <= 2
    assert abs(fleet.asked["dp"] - stats.cycle_count) <= 2
    assert fleet.asked["slow"] <= stats.cycle_count / 4 + 2
    assert views["slow"].skipped_count >= stats.cycle_count / 2
    assert stats.overrun_count == 0
    assert [pool.pool_id for pool in fleet_now.pools] == ["dp/0", "dp/1", "quick/0", "slow/0"]
    assert views["quick"].state is SourceState.FRESH
    assert views["quick"].engine.startswith("sglang")
    assert views["quick"].version == "0.5.23"


def test_after_stop_nothing_is_asked_and_a_restart_leaves_no_second_poller(fleet: FakeFleet, tmp_path: Path) -> None:
    """Stop joins every thread and frees the store; started again, each target is again asked once an interval."""
    settings = settings_for(tmp_path, {"w": fleet.add("w")})
    for turn in range(2):
        runtime = start_runtime(settings)
        assert start_runtime(settings) is runtime
        assert get_runtime() is runtime
        assert runtime.start() is runtime
        until(lambda: runtime.cycle_stats().cycle_count >= 4)  # noqa: B023 # called before the next turn
        cycles = runtime.cycle_stats().cycle_count
        runtime.stop()
        runtime.stop()
        asked = fleet.asked["w"]
        time.sleep(3 * INTERVAL_S)
        assert fleet.asked["w"] == asked
        with open_store(settings.store.path, read_only=True, wait_s=1.0) as store:
            stats = store.cycle_stats(0.0, time.time() + 1)
        assert stats.cycle_count >= cycles
        # One poll a cycle, but for the one that each stop cut short.
        assert asked <= stats.cycle_count + turn + 1
    with pytest.raises(StoreError):
        _ = runtime.store


def test_a_second_runtime_in_one_process_is_refused(fleet: FakeFleet, tmp_path: Path) -> None:
    """Two pollers in one process cannot be: the second start is an error that says so, the first runs on."""
    settings = settings_for(tmp_path, {"w": fleet.add("w")})
    with_other = settings.model_copy(update={"lease": settings.lease.model_copy(update={"ttl_s": 60.0})})
    runtime = start_runtime(settings)
    try:
        with pytest.raises(RuntimeError, match="already"):
            Runtime(with_other).start()
        with pytest.raises(RuntimeError, match="already"):
            start_runtime(with_other)
        assert get_runtime() is runtime
        until(lambda: runtime.cycle_stats().cycle_count >= 2)
    finally:
        runtime.stop()


def test_every_stored_cycle_is_whole_and_the_past_is_judged_from_the_store(fleet: FakeFleet, tmp_path: Path) -> None:
    """What the pages show live is what the store holds: same pools, same figures at the same instant."""
    settings = settings_for(tmp_path, {"a": fleet.add("a", ranks=2), "b": fleet.add("b")})
    runtime = start_runtime(settings)
    try:
        until(lambda: runtime.cycle_stats().stored_count >= 6)
        live = {(h.last.worker_id, h.last.dp_rank): h for h in runtime.histories()}
        # What came in is in memory first: the newest instant that is whole is the store's.
        at_s = min(h.last.received_at_s for h in runtime.store.latest_histories(time.time(), 60.0))
        past = runtime.snapshot_at(at_s)
        assert [pool.pool_id for pool in past.pools] == ["a/0", "a/1", "b/0"]
        assert runtime.snapshot(at_s).pools == past.pools
        series = runtime.history("a/0", at_s - 60, time.time() + 1, ["used_tokens"], 500)
        kept = live["a", 0]
        both = np.isin(kept.columns["used_tokens"], series["used_tokens"])
        stored = kept.at_s <= at_s
        assert stored.any()
        assert both[stored].all(), "what memory holds up to there is in the store"
        grid = runtime.fleet_series(["used_tokens"], at_s - 60, time.time() + 1, 100)
        assert set(grid) == {"a/0", "a/1", "b/0"}
        assert all(pool.composition.used_tokens.value is not None for pool in runtime.snapshot().pools)
    finally:
        runtime.stop()


def test_a_worker_that_dies_is_drawn_as_down_and_its_figures_are_not_new(fleet: FakeFleet, tmp_path: Path) -> None:
    """From its last answer on it is late, then down; its last figures keep their old time; a return makes it fresh."""
    urls = {name: fleet.add(name) for name in ("stays", "dies")}
    runtime = start_runtime(settings_for(tmp_path, {**urls, "never": "http://127.0.0.1:1"}))

    def state(name: str) -> SourceState | None:
        return next((pool.state for pool in runtime.snapshot().pools if pool.worker_id == name), None)

    try:
        until(lambda: state("dies") is SourceState.FRESH)
        fleet.remove("dies")
        until(lambda: state("dies") is SourceState.DOWN)
        pool = next(pool for pool in runtime.snapshot().pools if pool.worker_id == "dies")
        assert pool.age_s is None or pool.age_s > 0.3
        assert "connect-refused" in pool.state_reason
        assert state("stays") is SourceState.FRESH
        assert state("never") is SourceState.DOWN, "a worker that never answered is not overlooked"
        view = next(view for view in runtime.sources() if view.worker_id == "dies")
        assert view.failures_in_a_row >= 3
        assert view.last_success_at_s is not None
    finally:
        runtime.stop()


def test_a_standing_collector_lets_ages_grow(fleet: FakeFleet, tmp_path: Path) -> None:
    """Without new cycles the snapshot is judged anew at a later time: old figures never stay fresh."""
    now = [time.time()]
    runtime = Runtime(settings_for(tmp_path, {"w": fleet.add("w")}), clock=lambda: now[0])
    runtime.start()
    try:
        until(lambda: runtime.cycle_stats().cycle_count >= 2 and runtime.histories())
        now[0] = time.time()
        assert runtime.snapshot().pools[0].state in (SourceState.FRESH, SourceState.LATE)
        now[0] = time.time() + 3600
        assert runtime.snapshot().pools[0].state is SourceState.STALE
    finally:
        runtime.stop()


def test_hooks_see_every_cycle_in_order_and_a_failing_one_is_recorded(fleet: FakeFleet, tmp_path: Path) -> None:
    """Each stored cycle calls each hook once; what a hook raises is a recorded problem, and the others are called."""
    seen: list[FleetSnapshot] = []

    def failing(_: FleetSnapshot) -> None:
        raise ValueError("a rule divides by zero")

    runtime = Runtime(settings_for(tmp_path, {"w": fleet.add("w")}))
    runtime.on_cycle(failing)
    remove = runtime.on_cycle(seen.append)
    runtime.start()
    try:
        until(lambda: len(seen) >= 4)
        remove()
        time.sleep(INTERVAL_S / 2)
        count = len(seen)
        until(lambda: runtime.cycle_stats().cycle_count >= count + 3)
        stats = runtime.cycle_stats()
    finally:
        runtime.stop()
    assert len(seen) == count
    assert [snapshot.at_s for snapshot in seen] == sorted(snapshot.at_s for snapshot in seen)
    assert len({snapshot.at_s for snapshot in seen}) == count
    assert any("a rule divides by zero" in problem for problem in stats.problems)


def test_a_slow_hook_leaves_no_backlog_and_loses_nothing(fleet: FakeFleet, tmp_path: Path) -> None:
    """What came in while a hook was busy is remembered and stored at once; the hook then sees the newest state."""
    seen: list[FleetSnapshot] = []
    gate = threading.Event()

    def slow(snapshot: FleetSnapshot) -> None:
        seen.append(snapshot)
        assert gate.wait(30)

    runtime = Runtime(settings_for(tmp_path, {"w": fleet.add("w")}))
    runtime.on_cycle(slow)
    runtime.start()
    try:
        until(lambda: len(seen) == 1)
        begun = fleet.asked["w"]
        until(lambda: fleet.asked["w"] >= begun + 5)
        asked = fleet.asked["w"]
        gate.set()
        until(lambda: len(seen) >= 2)
        stats = runtime.cycle_stats()
    finally:
        gate.set()
        runtime.stop()
    (pool,) = seen[1].pools
    # Each answer holds one token more than the one before: the newest but perhaps one that is still on its way.
    assert pool.composition.used_tokens.value >= 1000 + asked - 1
    assert stats.lost_tick_count == 0
    with open_store(tmp_path / "kvscope.duckdb", read_only=True) as store:
        used = store.latest_histories(time.time(), 3600.0)[0].columns["used_tokens"]
    assert np.array_equal(np.diff(used), np.ones(len(used) - 1))
    assert len(used) >= 5


def test_workers_that_a_list_names_are_polled_while_running(fleet: FakeFleet, tmp_path: Path) -> None:
    """A worker added to a list is polled without a restart; one taken off is marked and asked no more."""
    listing = tmp_path / "targets.json"
    hosts = {name: fleet.add(name).removeprefix("http://") for name in ("one", "two")}
    listing.write_text(json.dumps([{"targets": [hosts["one"]], "labels": {"name": "one", "role": "decode"}}]))
    settings = settings_for(tmp_path, {}, discovery={"file_sd": [listing], "refresh_s": 1.0})
    runtime = start_runtime(settings)
    try:
        until(lambda: fleet.asked["one"] >= 2)
        listing.write_text(json.dumps([{"targets": [hosts["two"]], "labels": {"name": "two"}}]))
        until(lambda: fleet.asked["two"] >= 3)
        asked = fleet.asked["one"]
        until(lambda: runtime.cycle_stats().cycle_count and fleet.asked["two"] >= 5)
        assert fleet.asked["one"] <= asked + 1
        views = {view.worker_id: view for view in runtime.sources()}
        assert views["one"].vanished_at_s is not None
        assert views["two"].vanished_at_s is None
        pools = {pool.worker_id: pool for pool in runtime.snapshot().pools}
        assert pools["one"].state is SourceState.DOWN
        assert pools["one"].role is Role.DECODE
        assert "no longer listed" in pools["one"].state_reason
        assert [report.worker_count for report in runtime.lists()] == [1]
    finally:
        runtime.stop()


def test_a_fleet_that_lists_make_large_moves_to_a_child_process(fleet: FakeFleet, tmp_path: Path) -> None:
    """Beyond the limit polling moves out of this process once, and every worker goes on being polled."""
    listing = tmp_path / "targets.json"
    hosts = [fleet.add(f"w{i}").removeprefix("http://") for i in range(3)]
    listing.write_text(json.dumps([{"targets": hosts}]))
    settings = settings_for(
        tmp_path, {}, discovery={"file_sd": [listing], "refresh_s": 1.0}, poll={"child_above_workers": 2}
    )
    runtime = start_runtime(settings)
    try:
        assert runtime.collector_pid == os.getpid()
        until(lambda: runtime.collector_pid not in (None, os.getpid()))
        asked = dict(fleet.asked)
        until(lambda: all(fleet.asked[f"w{i}"] >= asked.get(f"w{i}", 0) + 3 for i in range(3)))
        assert runtime.cycle_stats().is_child
        assert runtime.cycle_stats().restart_count == 0
        assert not [thread.name for thread in threading.enumerate() if thread.name == "kvscope-collector"]
    finally:
        runtime.stop()


def test_a_held_store_is_one_sentence_and_leaves_nothing_running(tmp_path: Path) -> None:
    """While another process owns the file the start fails with its PID; afterwards it succeeds."""
    settings = settings_for(tmp_path, {})
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(settings.store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(StoreLockedError) as caught:
            start_runtime(settings)
        assert str(holder.pid) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert get_runtime() is None
    finally:
        holder.communicate(timeout=10)
    start_runtime(settings).stop()


HOLD = """
import sys
from collectors.store import open_store
with open_store(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_child_process_polls_the_same_and_a_dead_one_is_replaced(fleet: FakeFleet, tmp_path: Path) -> None:
    """Child mode gives the same pools; killed, the child is started again and counted; stopped, it is gone."""
    settings = settings_for(tmp_path, {"a": fleet.add("a", ranks=2), "b": fleet.add("b")}, poll={"process": "child"})
    runtime = start_runtime(settings)
    try:
        until(lambda: len(runtime.snapshot().pools) == 3)
        assert runtime.cycle_stats().is_child
        child = runtime.collector_pid
        assert child is not None
        assert child != os.getpid()
        os.kill(child, signal.SIGKILL)
        cycles = runtime.cycle_stats().cycle_count
        until(lambda: runtime.cycle_stats().cycle_count >= cycles + 3)
        stats = runtime.cycle_stats()
        assert stats.restart_count == 1
        until(lambda: all(pool.state is SourceState.FRESH for pool in runtime.snapshot().pools))
        second = runtime.collector_pid
        assert second not in (None, child)
    finally:
        runtime.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)  # type: ignore[arg-type]


def test_the_child_ends_when_its_parent_is_killed(fleet: FakeFleet, tmp_path: Path) -> None:
    """kill -9 of the server leaves no orphan that goes on polling, and frees the store with all its cycles."""
    settings = settings_for(tmp_path, {"w": fleet.add("w")}, poll={"process": "child"})
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(settings.model_dump_json().encode() + b"\n")
    parent.stdin.flush()
    child, stored = (int(word) for word in parent.stdout.readline().split())
    parent.kill()
    parent.communicate(timeout=10)

    def is_gone() -> bool:
        try:
            # A dead child of a dead parent may stay as a zombie until init looks after it.
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(is_gone, limit_s=5.0)
    asked = fleet.asked["w"]
    time.sleep(3 * INTERVAL_S)
    assert fleet.asked["w"] == asked
    with open_store(settings.store.path, wait_s=2.0) as store:
        assert store.cycle_stats(0.0, time.time() + 1).cycle_count >= stored


PARENT = """
import sys, time
from collectors.runtime import start_runtime
from collectors.settings import Settings
runtime = start_runtime(Settings.model_validate_json(sys.stdin.readline()))
while runtime.cycle_stats().stored_count < 3:
    time.sleep(0.05)
print(runtime.collector_pid, runtime.cycle_stats().stored_count, flush=True)
time.sleep(60)
"""


def _collect(file: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "cli.py", "collect", "--fleet", str(file), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def _refused(file: Path) -> tuple[int, str]:
    """Return status and standard error of a `kvscope collect` that ends by itself."""
    process = _collect(file)
    _, err = process.communicate(timeout=20)
    return process.returncode, err


def test_collect_prints_its_lines_and_ends_in_order_when_told(fleet: FakeFleet, tmp_path: Path) -> None:
    """Headless: one line an interval asked for, SIGTERM ends with status 0 and a store that holds every cycle."""
    file = tmp_path / "fleet.toml"
    file.write_text(f"[poll]\ninterval_s = 0.25\n[[workers]]\nname = 'w'\nurl = '{fleet.add('w')}'\n")
    process = _collect(file, "--every-s", "1")
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 0, err
    assert "collecting 1 workers" in first
    assert "1/1 workers answer" in second
    assert "stopped after" in out
    with open_store(tmp_path / "kvscope.duckdb", read_only=True) as store:
        assert store.cycle_stats(0.0, time.time() + 1).cycle_count >= 3


def test_collect_says_which_list_cannot_be_read(tmp_path: Path) -> None:
    """Discovery that fails is told in the line with the list and the reason, and does not end the collector."""
    file = tmp_path / "fleet.toml"
    file.write_text("[discovery]\nfile_sd = ['none.json']\nhttp_sd = ['http://127.0.0.1:9/sd']\n")
    process = _collect(file, "--every-s", "1", "--seconds", "3")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    last = [line for line in out.splitlines() if "workers answer" in line][-1]
    assert "2 of 2 lists not read (" in last
    assert "none.json" in last or "127.0.0.1:9" in last


def test_collect_says_what_is_wrong_and_ends_with_its_status(tmp_path: Path) -> None:
    """A bad fleet file: status 3 with every problem. A held store: status 1, one sentence, no traceback."""
    bad = tmp_path / "bad.toml"
    bad.write_text("[poll]\nintervall_s = 1\n[[workers]]\nurl = 'ftp://x'\n")
    status, err = _refused(bad)
    assert status == 3
    assert "2 problems" in err
    assert "interval_s" in err
    assert "ftp" not in err or "http://" in err
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    status, err = _refused(empty)
    assert status == 3
    assert "names no worker" in err
    assert not (tmp_path / "kvscope.duckdb").exists()
    good = tmp_path / "good.toml"
    good.write_text("[store]\nlock_wait_s = 0.1\n[[workers]]\nurl = 'http://127.0.0.1:9'\n")
    with open_store(tmp_path / "kvscope.duckdb"):
        status, err = _refused(good)
    assert status == 1
    assert len(err.strip().splitlines()) == 1
    assert str(os.getpid()) in err


def _serve(file: Path, port: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "cli.py", "serve", "--fleet", str(file), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_serve_collects_answers_and_ends_in_order_and_a_second_one_is_refused(fleet: FakeFleet, tmp_path: Path) -> None:
    """One process: dashboard and collector. A second on the same store ends with one sentence; SIGTERM ends with 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = tmp_path / "fleet.toml"
    file.write_text(
        f"[poll]\ninterval_s = 0.25\n[store]\nlock_wait_s = 0.1\n[[workers]]\nname = 'w'\nurl = '{fleet.add('w')}'\n"
    )
    server = _serve(file, port)
    try:

        def answers(path: str) -> Any:
            try:
                return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False).json()
            except (httpx.TransportError, ValueError):
                return None

        until(lambda: (answers("/api/health") or {}).get("is_collecting"), limit_s=40.0)
        until(lambda: (answers("/api/snapshot") or {}).get("pools"))
        second = _serve(file, 0)
        _, err = second.communicate(timeout=40)
        assert second.returncode == 1
        assert len(err.strip().splitlines()) == 1
        assert str(server.pid) in err
        assert fleet.asked["w"] >= 3
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=30)
    assert server.returncode == 0, err
    assert "Traceback" not in err
    asked = fleet.asked["w"]
    time.sleep(3 * INTERVAL_S)
    assert fleet.asked["w"] == asked
    with open_store(tmp_path / "kvscope.duckdb", read_only=True) as store:
        assert store.cycle_stats(0.0, time.time() + 1).cycle_count >= 2

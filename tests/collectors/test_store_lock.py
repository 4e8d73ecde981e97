"""One process owns the file: the others get one clear sentence, and the data over the owner (case P24)."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

from collectors.errors import StoreError, StoreLockedError
from collectors.store import CycleBatch, ExportRequest, open_store
from scoring.model import PoolReading

ROOT = Path(__file__).resolve().parents[2]
T0_S = 1_790_000_000.0

HOLDER = """
import sys
from collectors.store import open_store
with open_store(sys.argv[1], read_only=sys.argv[2] == "reader"):
    print("holding", flush=True)
    sys.stdin.read()
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a Python process in the checkout."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with one cycle in it."""
    path = tmp_path / "kv.duckdb"
    with open_store(path) as store:
        readings = [PoolReading(worker_id="w", received_at_s=T0_S, engine="x", used_tokens=7.0)]
        store.append_cycle(CycleBatch(cycle_at_s=T0_S, duration_s=0.1, readings=readings))
    return path


@pytest.mark.parametrize(("holder", "mine"), [("writer", "writer"), ("writer", "reader"), ("reader", "writer")])
def test_a_second_process_is_refused_in_one_sentence(path: Path, holder: str, mine: str) -> None:
    """Whoever comes second learns who holds the file and what to do, within the bound, and gets in afterwards."""
    other = start("-c", HOLDER, str(path), holder)
    try:
        assert other.stdout.readline() == "holding\n"
        begin = time.monotonic()
        with pytest.raises(StoreLockedError) as refused:
            open_store(path, read_only=mine == "reader", wait_s=0.3)
        assert 0.1 < time.monotonic() - begin < 5.0
        assert refused.value.holder_pid == other.pid
        text = str(refused.value)
        assert str(other.pid) in text
        assert str(path) in text
        assert "/api/export" in text
        assert "\n" not in text
    finally:
        other.communicate("", 20)
    with open_store(path, read_only=mine == "reader") as store:
        assert store.time_span() == (T0_S, T0_S)


def test_a_holder_that_leaves_in_time_is_waited_for(path: Path) -> None:
    """A restart hands over: opening waits while the old process ends, and only so long."""
    other = start("-c", HOLDER, str(path), "writer")
    assert other.stdout.readline() == "holding\n"
    leave = threading.Timer(0.2, other.stdin.close)
    leave.start()
    try:
        with open_store(path, wait_s=20.0) as store:
            assert store.time_span() == (T0_S, T0_S)
    finally:
        leave.join()
        other.wait(20)
        other.stdout.close()
        other.stderr.close()


def test_two_readers_are_fine(path: Path) -> None:
    """Readers do not exclude readers."""
    other = start("-c", HOLDER, str(path), "reader")
    try:
        assert other.stdout.readline() == "holding\n"
        with open_store(path, read_only=True, wait_s=0.0) as store:
            assert store.time_span() == (T0_S, T0_S)
    finally:
        other.communicate("", 20)


def test_two_modes_in_one_process_are_told_apart_from_a_lock(path: Path) -> None:
    """Opening in the other mode while this process has it open is our own mistake and is said so, at once."""
    with open_store(path), pytest.raises(StoreError, match="already open in this process") as refused:
        open_store(path, read_only=True)
    assert not isinstance(refused.value, StoreLockedError)


def test_two_stores_of_one_process_share_the_file(path: Path) -> None:
    """The same mode twice works: both see all cycles, writes of both queue."""
    with open_store(path) as one, open_store(path) as two:
        threads = [
            threading.Thread(
                target=lambda store=store, k=k: [
                    store.append_cycle(CycleBatch(cycle_at_s=T0_S + 10 * k + i, duration_s=0.1)) for i in range(5)
                ]
            )
            for k, store in enumerate((one, two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert one.cycle_stats(T0_S, T0_S + 99).cycle_count == two.cycle_stats(T0_S, T0_S + 99).cycle_count == 11


def export(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kvscope export`."""
    return subprocess.run(
        [sys.executable, "cli.py", "export", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def test_export_is_refused_while_the_store_is_held_and_the_owner_exports(path: Path, tmp_path: Path) -> None:
    """No traceback: one sentence with the PID and the way round; the owner writes the same file meanwhile."""
    out = tmp_path / "out.parquet"
    times = ("--from", str(T0_S), "--to", str(T0_S + 10))
    with open_store(path) as owner:
        refused = export("--store", str(path), *times, "--out", str(out))
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert re.fullmatch(
            rf"kvscope export: {re.escape(str(path))} is in use by process {os.getpid()}; .*/api/export\?.*\n",
            refused.stderr,
        )
        assert not out.exists()
        body = owner.export_bytes(ExportRequest(start_s=T0_S, end_s=T0_S + 10))
        owner.append_cycle(CycleBatch(cycle_at_s=T0_S + 20, duration_s=0.1))
    done = export("--store", str(path), *times, "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 rows" in done.stdout
    with duckdb.connect() as connection:
        (tmp_path / "owner.parquet").write_bytes(body)
        rows = [
            connection.execute("select * from read_parquet(?)", [str(file)]).fetchall()
            for file in (out, tmp_path / "owner.parquet")
        ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 1


def test_an_empty_file_is_no_store_to_read(tmp_path) -> None:
    """A file of no bytes is named as what it is."""
    path = tmp_path / "empty.duckdb"
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        open_store(path, read_only=True)

"""Killed at any moment, the store reopens with every cycle it acknowledged and with no half cycle."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from collectors.store import open_store

ROOT = Path(__file__).resolve().parents[2]
KILL_COUNT = 20
POOL_COUNT = 40
T0_S = 1_790_000_000.0

# For each line "first cycle" a fresh process that acknowledges each cycle after append_cycle returned; 10 s of stored
# time a cycle keep the tiers busy. Forked from one that has imported everything and opened nothing, to save time.
WRITER = """
import os
import sys
from collectors.store import CycleBatch, PollOutcome, open_store
from scoring.model import PoolReading, SourceState
FRESH = SourceState.FRESH
path, pools, t0_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

def say(text):
    os.write(1, (text + "\\n").encode())

def write(first):
    say(f"pid {os.getpid()}")
    with open_store(path) as store:
        for k in range(first, first + 10_000):
            at_s = t0_s + 10.0 * k
            names = [f"w{i}" for i in range(pools)]
            store.append_cycle(CycleBatch(
                cycle_at_s=at_s,
                duration_s=0.1,
                polls=[PollOutcome(worker_id=w, started_at_s=at_s, duration_s=0.1, state=FRESH) for w in names],
                readings=[PoolReading(worker_id=w, received_at_s=at_s + 0.1, engine="x", used_tokens=k) for w in names],
            ))
            say(f"stored {k}")

for line in sys.stdin:
    child = os.fork()
    if not child:
        write(int(line))
        os._exit(1)
    _, status = os.waitpid(child, 0)
    say(f"ended {os.waitstatus_to_exitcode(status)}")
"""

COUNTS = """
with stored as (select cycle_at, count(*) as found from readings group by 1),
asked as (select cycle_at, count(*) as found from polls group by 1),
promised as (select ts, sum(reading_count) as readings, sum(poll_count) as polls from cycles group by 1)
select count(ts), min(epoch_us(ts)), max(epoch_us(ts)),
    count(*) filter (stored.found is distinct from readings or asked.found is distinct from polls)
from promised full join stored on ts = stored.cycle_at full join asked on ts = asked.cycle_at
"""
ROLLED = """
select sum(sample_count), (select count(*) from readings
    where ts < (select rolled_until from tiers where name = '10s')) from readings_10s
"""


def words(writer: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the next thing the writer says."""
    line = writer.stdout.readline()
    assert line, "the writer ended by itself"
    word, number = line.split()
    return word, int(number)


def killed(writer: subprocess.Popen[str], first: int, acknowledged_count: int, pause_s: float) -> int:
    """Let a fresh process store cycles from `first`, kill it some time later, return the last one acknowledged."""
    writer.stdin.write(f"{first}\n")
    writer.stdin.flush()
    word, process_id = words(writer)
    assert word == "pid"
    last = first - 1
    for k in range(acknowledged_count):
        assert words(writer) == ("stored", first + k)
        last = first + k
    time.sleep(pause_s)
    os.kill(process_id, signal.SIGKILL)
    while True:
        word, number = words(writer)
        if word == "ended":
            assert number == -signal.SIGKILL
            return last
        last = number


def test_no_acknowledged_cycle_is_lost_and_none_is_half(tmp_path: Path) -> None:
    """After each of 20 kills at random moments: all acknowledged cycles, each complete, tiers counting each once."""
    path = tmp_path / "kv.duckdb"
    chance = random.Random(11)
    last = -1
    arguments = [sys.executable, "-c", WRITER, str(path), str(POOL_COUNT), str(T0_S)]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as writer:
        for turn in range(KILL_COUNT):
            last = killed(writer, last + 1, chance.randint(1, 3), chance.random() * 0.03)
            # A reader must cope with the dead writer's log just as the next writer does.
            with open_store(path, read_only=turn % 2 == 1) as store, store._database.reading("counting") as cursor:
                # A cycle stored but not yet acknowledged is stored again by the next writer: times count, not rows.
                count, first_us, last_us, half_count = cursor.execute(COUNTS).fetchall()[0]
                rolled_count, due_count = cursor.execute(ROLLED).fetchall()[0]
            assert half_count == 0
            assert count >= last + 1
            assert first_us == T0_S * 1e6
            assert (last_us / 1e6 - T0_S) / 10.0 in (last, last + 1)
            assert (rolled_count or 0) == due_count
        writer.stdin.close()
        assert writer.wait(10) == 0
    assert last >= KILL_COUNT
    assert rolled_count > 0

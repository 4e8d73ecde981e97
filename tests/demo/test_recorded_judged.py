"""
A recorded engine, replayed over HTTP, judges KVScope as the real one does in tests/peers: same watch, same laws.

`kvscope demo --recording` serves what a real SGLang 0.5.23 with two DP ranks said under load that queues; the runtime
and a witness of its own watch it, and the assertions of `tests/peers/test_real_sglang.py` hold.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import test_real_sglang as laws
from tests.peers.seen import Seen
from tests.peers.sglang_rows import COUNTERS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "recordings" / "sglang_dp2_load.jsonl.gz"
SPEED = 3.0
WATCH_S = 10.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the recording and return its worker's address; stopped at the end."""
    folder = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, "-m", "cli", "demo", "--recording", str(FILE), "--speed", f"{SPEED:g}"]
    process = subprocess.Popen(
        [*command, "--fleet-file", str(folder / "fleet.toml")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        said = ""
        end = time.monotonic() + 60.0
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stdout.readline()
            said += line
            assert line, f"the demo ended: {said}"
            assert time.monotonic() < end, said
        yield found[0]
    finally:
        process.terminate()
        process.wait(15)
        process.stdout.close()


@pytest.fixture(scope="module")
def seen(url: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Some seconds of the recording, three times as fast as life."""
    folder = tmp_path_factory.mktemp("seen")
    words = [f"--witness={url}/v1/loads", f"--witness={url}/metrics", f"real={url}"]
    program = str(ROOT / "tests" / "peers" / "watch.py")
    done = subprocess.run(
        [sys.executable, program, "--out", str(folder), "--seconds", f"{WATCH_S:g}", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Seen(folder)


def test_every_poll_is_understood(seen: Seen) -> None:
    """One source, two ranks, no failed poll, and the load that was recorded queues on both."""
    (source,) = seen.summary["sources"]
    assert (source["failure_count"], source["rejected_count"], source["engine"]) == (0, 0, "sglang")
    for name in laws.POOLS:
        pools = [pool for _, pool in seen.samples(name)]
        assert len(pools) >= 5
        assert max(pool.composition.used_tokens.value for pool in pools) > 0.8 * laws.USABLE_TOKENS


@pytest.mark.parametrize("rank", laws.RANKS)
def test_figures_are_the_recorded_engine_s_own(seen: Seen, url: str, rank: int) -> None:
    """Judged, number for number, as another parser reads the same bodies; the parts are the whole."""
    laws.test_every_second_our_figures_are_the_engine_s_own(seen, url, rank)
    laws.test_the_parts_are_the_whole_every_second(seen, url, rank)


@pytest.mark.parametrize("rank", laws.RANKS)
@pytest.mark.parametrize("name", COUNTERS)
def test_counters_lie_between_a_witness_s_before_and_after(seen: Seen, url: str, rank: int, name: str) -> None:
    """Of every counter, ours is never below what the witness read before nor above what it read after."""
    laws.test_counters_lie_between_a_witness_s_before_and_after(seen, url, rank, name)


def test_the_store_keeps_what_was_said(seen: Seen, url: str) -> None:
    """DuckDB gives back the bodies' numbers, and the ranks' shares of the worker's counters add up."""
    laws.test_what_the_store_keeps_is_what_the_engine_said(seen, url)


@pytest.mark.parametrize("rank", laws.RANKS)
def test_step_time_follows_the_recorded_moments(seen: Seen, url: str, rank: int) -> None:
    """Step time is seconds over steps of the bodies within the window, and ages are the engine's own."""
    laws.test_step_time_is_the_difference_of_the_engine_s_moments(seen, url, rank)
    laws.test_ages_are_the_engine_s_and_never_made_up(seen, url, rank)

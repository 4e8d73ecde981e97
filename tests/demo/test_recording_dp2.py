"""The recorded server with two DP ranks under load that queues: it is whole, plays, and is told right when played."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from demo.recording import Playback, Recording, read_recording
from scoring.capacity import compose
from scoring.model import PoolReading, Role, WorkerReading

FILE = Path(__file__).resolve().parents[2] / "examples" / "recordings" / "sglang_dp2_load.jsonl.gz"


@pytest.fixture(scope="module")
def recording() -> Recording:
    """The recording, read once."""
    return read_recording(FILE)


@pytest.fixture(scope="module")
def played(recording: Recording) -> list[tuple[PoolReading, ...]]:
    """What the dialect makes of the answers at each second, played on a clock of our own."""
    (origin,) = recording.tracks
    start_s = 5_000_000.0
    playback = Playback(recording, start_s, 1.0, is_looping=False)
    found = []
    for second in range(5, int(recording.end_s - recording.start_s)):
        now_s = start_s + second
        loads = playback.entry(origin, "/v1/loads", now_s)
        metrics = playback.entry(origin, "/metrics", now_s)
        assert loads is not None
        assert metrics is not None
        answers = {
            "/v1/loads": Answer(
                status=200,
                content_type="application/json",
                body=json.dumps(playback.body(loads, now_s)).encode(),
                received_at_s=now_s,
            ),
            "/metrics": Answer(
                status=200,
                content_type="text/plain",
                body=playback.exposition(metrics, now_s).encode(),
                received_at_s=now_s,
            ),
        }
        reading = ENGINES["sglang"].understand(answers)
        assert isinstance(reading, WorkerReading)
        found.append(reading.pools)
    return found


def test_both_paths_were_taken_about_each_second(recording: Recording) -> None:
    """Two minutes of one server, both paths, no gap above 5 s; no key of the server's start-up is in it."""
    (paths,) = recording.tracks.values()
    assert set(paths) == {"/v1/loads", "/metrics"}
    assert recording.end_s - recording.start_s > 120.0
    for entries in paths.values():
        times = [entry.t for entry in entries]
        assert len(times) > 100
        assert times == sorted(times)
        assert max(b - a for a, b in itertools.pairwise(times)) < 5.0


def test_the_parts_are_the_whole_at_every_second(played: list[tuple[PoolReading, ...]]) -> None:
    """active + in flight + prefix + free + unattributed = usable for both ranks, every part known, none negative."""
    for pools in played:
        assert [pool.dp_rank for pool in pools] == [0, 1]
        for pool in pools:
            assert pool.role is Role.UNIFIED
            parts = compose(pool)
            words = ("active", "in_flight", "prefix", "fragmentation", "free", "unattributed")
            values = [getattr(parts, f"{word}_tokens").value for word in words]
            assert None not in values
            assert min(values) >= 0
            assert sum(values) == pytest.approx(8000.0)


def test_it_fills_queues_and_ends_quiet(played: list[tuple[PoolReading, ...]]) -> None:
    """Both ranks hold above 0.8 for a minute while requests wait; counters never fall; at the end all is prefix."""
    for rank in (0, 1):
        pools = [pools[rank] for pools in played]
        used = np.array([pool.used_tokens for pool in pools]) / 8000.0
        assert int((used > 0.8).sum()) >= 60
        assert max(pool.waiting_count for pool in pools) >= 8
        for name in ("prefill_uncached_tokens_total", "decode_steps_total", "generated_tokens_total"):
            values = np.array([getattr(pool, name) for pool in pools], dtype=np.float64)
            assert np.all(np.diff(values[np.isfinite(values)]) >= 0)
            assert values[-1] > 100
        last = compose(pools[-1])
        assert (last.active_tokens.value, pools[-1].running_count, pools[-1].waiting_count) == (0, 0, 0)
        assert last.prefix_tokens.value > 7000

"""Playback of a recorded fleet: the recorded figures, at the recorded pace, at today's times."""

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.hosting import PortTakenError
from demo.playing import RecordedFleet
from demo.recording import Playback, RecordingError, constants_only, read_lines, read_recording

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "recordings" / "sglang_2p2d.jsonl.gz"
NOW_S = 1_900_000_000.0


def _line(t: float, **fields: Any) -> bytes:
    return json.dumps({"t": t, "url": "http://127.0.0.1:32001/v1/loads", **fields}).encode()


def _loads(t: float, used_tokens: int) -> dict[str, Any]:
    return {"timestamp": "2026-11-30T09:34:27+00:00", "loads": [{"timestamp": t, "num_used_tokens": used_tokens}]}


SMALL = read_lines([_line(100.0 + i, body=_loads(100.0 + i - 0.25, i)) for i in range(4)])


def _used(playback: Playback, wall_s: float) -> int:
    entry = playback.entry("http://127.0.0.1:32001", "/v1/loads", wall_s)
    assert entry is not None
    return playback.body(entry, wall_s)["loads"][0]["num_used_tokens"]


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_pace_and_age_follow_the_recording(speed: float) -> None:
    """What was said at a recorded time is said at that time over speed; its age is its recorded age over speed."""
    playback = Playback(SMALL, NOW_S, speed, is_looping=True)
    for into_s, used in ((0.0, 0), (0.99, 0), (1.0, 1), (2.5, 2), (3.9, 3)):
        wall_s = NOW_S + into_s / speed + 1e-6
        assert _used(playback, wall_s) == used
        entry = playback.entry("http://127.0.0.1:32001", "/v1/loads", wall_s)
        assert entry is not None
        stamp = playback.body(entry, wall_s)["loads"][0]["timestamp"]
        assert stamp == pytest.approx(NOW_S + (used - 0.25) / speed, abs=1e-5)
        assert stamp <= wall_s


def test_a_loop_begins_again_and_a_stay_grows_old() -> None:
    """After the end a loop says the first answer with a new time; without a loop the last answer keeps its time."""
    looping = Playback(SMALL, NOW_S, 1.0, is_looping=True)
    again_s = NOW_S + SMALL.period_s + 0.1
    assert _used(looping, again_s) == 0
    assert looping.position(again_s)[0] == 1
    staying = Playback(SMALL, NOW_S, 1.0, is_looping=False)
    late_s = NOW_S + 60.0
    assert _used(staying, late_s) == 3
    assert staying.is_over(late_s)
    entry = staying.entry("http://127.0.0.1:32001", "/v1/loads", late_s)
    assert entry is not None
    assert late_s - staying.body(entry, late_s)["loads"][0]["timestamp"] == pytest.approx(57.25)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "holds no line"),
        ([b"{"], "line 1"),
        ([_line(1.0, body={}), b"[1, 2]"], "line 2"),
        ([b'{"t": 1}'], "line 1"),
        ([b'{"t": 1, "url": "ftp://x/y", "body": {}}'], "http://host:port/path"),
        ([b'{"t": "now", "url": "http://h:1/p", "body": {}}'], "`t` must be a number"),
        ([_line(1.0)], "line 1"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_its_line(lines: list[bytes], says: str) -> None:
    """Every refusal names the line and what was expected there."""
    with pytest.raises(RecordingError, match=says):
        read_lines(lines)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """A missing file and a file that only looks like gzip are refused, not raised as what they are inside."""
    broken = tmp_path / "x.jsonl.gz"
    broken.write_bytes(b"not gzip")
    for path in (tmp_path / "missing.jsonl", broken):
        with pytest.raises(RecordingError, match="cannot read"):
            read_recording(path)


def test_constants_only_keeps_configuration_and_no_moving_series() -> None:
    """Away from its instant an exposition says capacity and configuration, never a gauge or counter that moves."""
    recording = read_recording(EXAMPLE)
    for paths in recording.tracks.values():
        for entry in paths.get("/metrics", []):
            assert entry.text is not None
            kept = constants_only(entry.text)
            names = {line.split("{")[0] for line in kept.splitlines() if not line.startswith("#")}
            assert {"sglang:max_total_num_tokens", "sglang:page_size"} <= names
            assert not names & {"sglang:kv_evictable_tokens", "sglang:num_running_reqs", "sglang:prompt_tokens_total"}


def _play(check: Callable[[RecordedFleet, httpx.AsyncClient, list[float]], Any]) -> None:
    async def main() -> None:
        now = [NOW_S]
        fleet = RecordedFleet(read_recording(EXAMPLE), clock=lambda: now[0])
        await fleet.start()
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                await check(fleet, client, now)
        finally:
            await fleet.close()

    asyncio.run(main())


def test_every_recorded_body_comes_back_over_http() -> None:
    """At each recorded time the worker says the recorded row, its own timestamps alone moved, and never the future."""
    with gzip.open(EXAMPLE) as recorded_lines:
        raw = [json.loads(line) for line in recorded_lines]
    start_s = raw[0]["t"]
    origin = "http://127.0.0.1:32002"
    lines = [line for line in raw if line["url"] == f"{origin}/v1/loads"][::12]
    assert len(lines) > 10

    async def check(fleet: RecordedFleet, client: httpx.AsyncClient, now: list[float]) -> None:
        for line in lines:
            recorded = line["body"]["loads"][0]
            now[0] = NOW_S + max(line["t"], recorded["timestamp"]) - start_s + 1e-4
            answer = (await client.get(f"{fleet.sites[origin].url}/v1/loads")).json()
            row = answer["loads"][0]
            assert row.pop("timestamp") == pytest.approx(NOW_S + recorded["timestamp"] - start_s, abs=1e-3)
            assert row == {key: value for key, value in recorded.items() if key != "timestamp"}
            assert list(row) == [key for key in recorded if key != "timestamp"]

    _play(check)


def test_a_router_view_points_at_the_playing_workers() -> None:
    """URLs inside a recorded router's bodies are the workers' of now; moving fields are absent off their instant."""

    async def check(fleet: RecordedFleet, client: httpx.AsyncClient, now: list[float]) -> None:
        assert fleet.router_url is not None
        now[0] = NOW_S + 20.0
        playing = {url for _name, url, _role in fleet.workers}
        loads = (await client.get(f"{fleet.router_url}/get_loads")).json()
        assert {row["worker"] for row in loads["loads"]} == playing
        listed = (await client.get(f"{fleet.router_url}/workers")).json()["workers"]
        assert {worker["url"] for worker in listed} == playing
        assert all("load" not in worker and "engine_load" not in worker for worker in listed)
        now[0] = NOW_S + 52.0
        listed = (await client.get(f"{fleet.router_url}/workers")).json()["workers"]
        assert all(worker["load"] > 0 and worker["engine_load"]["loads"] for worker in listed)

    _play(check)


def test_exposition_is_whole_at_its_instant_only() -> None:
    """The split of free and evictable is said about the instant it was true and never beside other loads."""

    async def check(fleet: RecordedFleet, client: httpx.AsyncClient, now: list[float]) -> None:
        url = fleet.sites["http://127.0.0.1:32001"].url
        for into_s, is_whole in ((0.5, False), (51.0, True), (80.0, False)):
            now[0] = NOW_S + into_s
            answer = await client.get(f"{url}/metrics")
            assert answer.headers["content-type"].startswith("text/plain")
            assert ("kv_evictable_tokens" in answer.text) is is_whole
            assert "sglang:page_size" in answer.text

    _play(check)


def test_unknown_paths_and_closed_fleets_answer_as_servers_do() -> None:
    """An unknown path is FastAPI's 404, a wrong method 405; a taken port is one sentence and leaves nothing open."""

    async def check(fleet: RecordedFleet, client: httpx.AsyncClient, now: list[float]) -> None:
        url = fleet.sites["http://127.0.0.1:32001"].url
        missing = await client.get(f"{url}/get_load")
        assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
        assert (await client.post(f"{url}/v1/loads")).status_code == 405
        assert (await client.get(f"{url}/health")).status_code == 200
        info = (await client.get(f"{fleet.sites['http://127.0.0.1:32002'].url}/server_info")).json()
        assert info["num_reserved_decode_tokens"] == 512
        taken = min(site.port for site in fleet.sites.values())
        other = RecordedFleet(fleet.playback.recording, port_base=taken)
        with pytest.raises(PortTakenError, match=f"port {taken} on 127.0.0.1 is taken"):
            await other.start()
        assert not any(site.is_open for site in other.sites.values())

    _play(check)

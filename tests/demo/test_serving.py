"""The demo fleet over real HTTP, and the command that runs it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import cli
from collectors.settings import load_settings
from demo.hosting import PortTakenError
from demo.scenarios import SCENARIOS, Scenario
from demo.serving import ServedFleet

ROOT = Path(__file__).resolve().parents[2]


def _serve(
    check: Callable[[ServedFleet, httpx.AsyncClient], Awaitable[None]], scenario: str | Scenario, **options: Any
) -> None:
    async def main() -> None:
        chosen = scenario if isinstance(scenario, Scenario) else SCENARIOS[scenario]
        served = ServedFleet(replace(chosen, preroll_s=0.0), **options)
        await served.start()
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
                await check(served, client)
                assert served.failure is not None
                assert not served.failure.done()
        finally:
            await served.close()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", served.fleet.workers[0].site.port)) != 0

    asyncio.run(main())


KV_GAUGE = re.compile(r"^sglang:kv_(used|evictable|available)_tokens(\{.*?\}) (\S+)$", re.MULTILINE)


def _gauges(text: str) -> dict[str, dict[str, float]]:
    """Return rank -> KV gauge -> value."""
    ranks: dict[str, dict[str, float]] = {}
    for word, labels, value in KV_GAUGE.findall(text):
        rank = re.search(r'dp_rank="(\d+)"', labels)
        ranks.setdefault(rank[1] if rank else "0", {})[word] = float(value)
    return ranks


def test_every_answer_conserves_capacity_while_the_fleet_runs() -> None:
    """Over HTTP, at high speed: used + evictable + free = capacity, and no figure is from the future."""

    async def check(served: ServedFleet, client: httpx.AsyncClient) -> None:
        newest: dict[tuple[str, int], float] = {}
        capacity: dict[str, dict[int, int]] = {}
        for _ in range(8):
            for worker in served.fleet.workers:
                body = (await client.get(f"{worker.site.url}/v1/loads")).json()
                for row in body["loads"]:
                    assert row["timestamp"] <= time.time() + 1e-3
                    key = (worker.name, row["dp_rank"])
                    assert row["timestamp"] >= newest.get(key, 0.0)
                    newest[key] = row["timestamp"]
                    assert 0 <= row["num_used_tokens"] <= row["max_total_num_tokens"]
                    assert row["token_usage"] == round(row["num_used_tokens"] / row["max_total_num_tokens"], 4)
                    capacity.setdefault(worker.name, {})[row["dp_rank"]] = row["max_total_num_tokens"]
                for rank, gauges in _gauges((await client.get(f"{worker.site.url}/metrics")).text).items():
                    assert len(gauges) == 3
                    assert sum(gauges.values()) == capacity[worker.name][int(rank)]
            await asyncio.sleep(0.1)
        assert len(newest) == 17
        truth = (await client.get(f"{served.control.url}/demo/truth")).json()
        for pool in truth["pools"]:
            words = ("active", "in_flight", "prefix", "fragmentation", "free")
            assert sum(pool[f"{word}_tokens"] for word in words) == pool["usable_tokens"]
        requests = truth["requests"]
        outcomes = ("open", "finished", "rejected", "cancelled", "too_large")
        assert requests["arrived"] == sum(requests[outcome] for outcome in outcomes) > 0

    _serve(check, "saturation", speed=15.0)


def test_a_dead_worker_refuses_connections_and_comes_back_where_it_was() -> None:
    """Node loss is a refused connection on the same port, then a worker whose counters begin again."""

    async def check(served: ServedFleet, client: httpx.AsyncClient) -> None:
        lost = next(worker for worker in served.fleet.workers if worker.name == "decode-3")
        url, states, steps, refusals = lost.site.url, [], [], 0
        end_s = time.monotonic() + 15.0
        while time.monotonic() < end_s and states[-1:] != ["back"]:
            try:
                row = (await client.get(f"{url}/v1/loads")).json()["loads"][0]
                steps.append((row["decode_moments"] or [0.0])[0])
                state = "back" if "gone" in states else "up"
            except httpx.TransportError as error:
                # Cut off in mid-answer at the moment of death, refused from then on.
                refusals += isinstance(error, httpx.ConnectError)
                state = "gone"
            if states[-1:] != [state]:
                states.append(state)
            await asyncio.sleep(0.02)
        assert states == ["up", "gone", "back"]
        assert refusals > 0
        assert steps[-1] < max(steps)

    phases = SCENARIOS["node-loss"].phases
    quick = tuple(replace(phase, start_s=start_s) for phase, start_s in zip(phases, (0.0, 6.0, 14.0), strict=True))
    _serve(check, replace(SCENARIOS["node-loss"], phases=quick, period_s=None), speed=10.0)


def test_scenarios_are_switched_over_http_from_the_control_port_and_from_any_worker() -> None:
    """GET tells, POST switches, wrong posts are refused in words; a collector's paths are untouched by it."""

    async def check(served: ServedFleet, client: httpx.AsyncClient) -> None:
        told = (await client.get(f"{served.control.url}/demo/scenario")).json()
        assert told["scenario"] == "calm"
        assert set(told["scenarios"]) == set(SCENARIOS) - {"two-node"}
        url = f"{served.fleet.workers[0].site.url}/demo/scenario"
        assert (await client.post(url, json={"scenario": "rush"})).json()["scenario"] == "rush"
        assert (await client.get(f"{served.control.url}/demo/scenario")).json()["scenario"] == "rush"
        for content, kind, status in (
            (b'{"scenario": "nope"}', "application/json", 422),
            (b'{"scenario": "two-node"}', "application/json", 422),
            (b"[]", "application/json", 422),
            (b"{", "application/json", 422),
            (b'{"scenario": "calm"}', "text/plain", 415),
        ):
            refused = await client.post(url, content=content, headers={"content-type": kind})
            assert refused.status_code == status
            assert refused.json()["detail"]
        assert (await client.get(f"{served.control.url}/demo/scenario")).json()["scenario"] == "rush"
        assert (await client.get(f"{served.control.url}/v1/loads")).status_code == 404

    _serve(check, "calm")


def test_a_worker_answers_as_a_server_of_its_role(shared: Path) -> None:
    """Keys, order and refusals of every endpoint are a real 0.5.23 server's; roles and sizes agree between them."""
    real = json.loads((shared / "fixtures" / "sglang_real" / "dp2_load_v1_loads.txt").read_text())
    real_info = json.loads((shared / "fixtures" / "sglang_real" / "dp2_load_model_info.txt").read_text())

    def shape(value: Any) -> Any:
        return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else None

    async def check(served: ServedFleet, client: httpx.AsyncClient) -> None:
        await asyncio.sleep(0.3)
        for worker in served.fleet.workers:
            url = worker.site.url
            body = (await client.get(f"{url}/v1/loads")).json()
            assert list(body) == list(real)
            for row in body["loads"]:
                assert json.dumps(shape(row)) == json.dumps(shape(real["loads"][0]))
            info = (await client.get(f"{url}/model_info")).json()
            assert set(info) <= set(real_info)
            server = (await client.get(f"{url}/server_info")).json()
            assert info["disaggregation_mode"] == server["disaggregation_mode"] == worker.plan.mode
            assert server["max_total_num_tokens"] == body["loads"][0]["max_total_num_tokens"]
            assert (server["num_reserved_decode_tokens"], server["dp_size"]) == (512, len(body["loads"]))
            assert not re.search(r"api_key|password|token(?!s|izer|_)", json.dumps(server))
            kv_bytes = body["loads"][0]["memory"]["kv_cache_gb"] * 2**30 * body["num_accelerators"]
            assert kv_bytes / server["max_total_num_tokens"] == pytest.approx(262144, rel=0.01)
            assert (await client.get(f"{url}/health")).content == b""
            plain = await client.get(f"{url}/metrics", headers={"Accept-Encoding": "identity"})
            packed = await client.get(f"{url}/metrics", headers={"Accept-Encoding": "gzip"})
            assert ("content-encoding" in plain.headers, packed.headers["content-encoding"]) == (False, "gzip")
            assert plain.text.splitlines()[:3] == packed.text.splitlines()[:3]
            assert int(packed.headers["content-length"]) < len(plain.content) / 4
            assert (await client.get(f"{url}/v1/loads?include=bogus")).status_code == 500
            assert (await client.get(f"{url}/v1/loads?dp_rank=x")).status_code == 422
            assert (await client.get(f"{url}/v1/loads?dp_rank=9")).json()["loads"] == []
            assert (await client.get(f"{url}/v1/loads?dp_rank=9&format=prometheus")).text == "\n"
            assert (await client.get(f"{url}/get_load")).status_code == 404

    _serve(check, "calm")


def test_a_taken_port_leaves_nothing_open() -> None:
    """One port in the way is one sentence, and the ports already opened are closed again."""

    async def main() -> None:
        with socket.socket() as blocker:
            blocker.bind(("127.0.0.1", 0))
            blocker.listen()
            taken = blocker.getsockname()[1]
            served = ServedFleet(SCENARIOS["calm"], port_base=taken - 3)
            with pytest.raises(PortTakenError, match=f"port {taken} on 127.0.0.1 is taken"):
                await served.start()
            assert not any(worker.site.is_open for worker in served.fleet.workers)

    asyncio.run(main())


def _command(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


@pytest.mark.parametrize("kind", ["simulated", "recorded"])
def test_the_command_writes_a_valid_fleet_file_and_ends_on_sigterm(kind: str, tmp_path: Path) -> None:
    """`kvscope demo` runs until told, its fleet.toml is one that `serve` takes, and SIGTERM ends it with status 0."""
    more = ["--recording", str(ROOT / "examples" / "recordings" / "sglang_2p2d.jsonl.gz")] if kind == "recorded" else []
    process = _command("--speed", "5", *more, cwd=tmp_path)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        assert any("fleet file: var/demo/fleet.toml" in line for line in lines), lines
        settings = load_settings(tmp_path / "var" / "demo" / "fleet.toml")
        assert len(settings.workers) == (4 if kind == "recorded" else 11)
        for worker in settings.workers[:2]:
            assert httpx.get(f"{worker.url}/v1/loads", trust_env=False).json()["version"] == "0.5.23"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, process.stdout.read()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_wrong_use_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A taken dashboard port, a missing recording and impossible numbers end at once with their status."""
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        port = blocker.getsockname()[1]
        for arguments, status, says in (
            (("--serve", "--port", str(port)), 1, f"port {port} on 127.0.0.1 is taken"),
            (("--recording", "missing.jsonl"), 1, "cannot read the recording missing.jsonl"),
            (("--workers", "2"), 3, "--workers must be from 3 to 2000"),
            (("--speed", "0"), 3, "must be a number from 0.01 to 200"),
            (("--port-base", "70000"), 3, "must be a port from 0"),
            (("--scenario", "nope"), 3, "invalid choice"),
            (("--workers", "3", "--scenario", "node-loss"), 1, "needs decode-3"),
            (("--workers", "4", "--scenario", "two-node"), 3, "brings its own workers"),
            (("--workers", "3", "--fleet-file", "/dev/null/fleet.toml"), 1, "cannot write the fleet file"),
            (("--list",), 0, "saturation"),
        ):
            try:
                returned = cli.main(["demo", "--fleet-file", str(tmp_path / "fleet.toml"), *arguments])
            except SystemExit as stop:
                returned = stop.code
            output = "".join(capsys.readouterr())
            assert (returned, says in output) == (status, True), output
    assert not (tmp_path / "fleet.toml").exists()

"""
Demo workers before real routers: smg and sglang-router register them and give back their numbers.

Run by `make test-peers`; skipped where the routers are not installed (KVSCOPE_ENGINES names the folder that holds
`smg/bin/smg` and `router/bin/sglang-router`).
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.plan import default_plan
from demo.state import RankState
from demo.worker import Worker

pytestmark = pytest.mark.peer

ENGINES = Path(os.environ.get("KVSCOPE_ENGINES", Path.home() / ".cache" / "kvscope-engines"))
READY_S = 60.0


def _program(*parts: str) -> Path:
    path = ENGINES.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"no router at {path} (set KVSCOPE_ENGINES)")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _workers() -> list[Worker]:
    """Return two prefill and two decode workers that publish distinct figures."""
    plans = {plan.name: plan for plan in default_plan().workers}
    workers = [Worker(plans[name], clock=time.time) for name in ("prefill-1", "prefill-2", "decode-1", "decode-2")]
    for number, worker in enumerate(workers, start=1):
        for facts in worker.plan.ranks:
            used = 10_000 * number + 1000 * facts.dp_rank
            worker.published[facts.dp_rank] = RankState(
                at_s=time.time(),
                used_tokens=used,
                free_tokens=facts.usable_tokens - used,
                running_count=number + facts.dp_rank,
                waiting_count=number,
            )
    return workers


@asynccontextmanager
async def _routed(command: Callable[[list[Worker], int], list[str]], tmp_path: Path) -> AsyncIterator[Any]:
    """Yield (workers, router URL) with the router running before served workers, and stop both."""
    workers = _workers()
    for worker in workers:
        await worker.site.start()
    port = _free_port()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    with (tmp_path / "router.log").open("wb") as log:
        router = subprocess.Popen(
            command(workers, port), stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            yield workers, f"http://127.0.0.1:{port}"
        finally:
            os.killpg(router.pid, signal.SIGTERM)
            try:
                router.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(router.pid, signal.SIGKILL)
                router.wait(5)
            for worker in workers:
                await worker.site.close()


async def _until(url: str, is_right: Callable[[Any], bool], log: Path) -> Any:
    """Ask until the answer is right; fail with the router's log when it never is."""
    end_s = time.monotonic() + READY_S
    answer: Any = None
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
        while time.monotonic() < end_s:
            try:
                answer = (await client.get(url)).json()
                if is_right(answer):
                    return answer
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                answer = repr(error)
            await asyncio.sleep(0.5)
    pytest.fail(f"{url} never came right; last {str(answer)[:800]}; router log ends {log.read_text()[-1500:]}")


def _pd_arguments(workers: list[Worker], port: int) -> list[str]:
    arguments = ["launch", "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation"]
    for worker in workers:
        if worker.plan.mode == "prefill":
            arguments += ["--prefill", worker.site.url, str(worker.plan.bootstrap_port)]
        else:
            arguments += ["--decode", worker.site.url]
    return [*arguments, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port())]


def test_smg_gives_back_our_numbers(tmp_path: Path) -> None:
    """smg 1.13 takes demo workers for SGLang: healthy, right roles, and every rank's figures unchanged."""
    program = _program("smg", "bin", "smg")

    def command(workers: list[Worker], port: int) -> list[str]:
        more = ["--load-monitor-interval", "1", "--worker-startup-timeout-secs", "60"]
        return [str(program), *_pd_arguments(workers, port), *more]

    async def main() -> None:
        async with _routed(command, tmp_path) as (workers, url):
            log = tmp_path / "router.log"
            expected_ranks = sum(len(worker.plan.ranks) for worker in workers)
            listed = await _until(
                f"{url}/workers", lambda a: sum(w["is_healthy"] for w in a["workers"]) == len(workers), log
            )
            roles = {worker["url"]: worker["worker_type"] for worker in listed["workers"]}
            assert roles == {worker.site.url: worker.plan.mode for worker in workers}
            loads = await _until(f"{url}/get_loads", lambda a: len(a["loads"]) == expected_ranks, log)
            seen = {(row["worker"], row["dp_rank"]): row for row in loads["loads"]}
            for worker in workers:
                for ours in worker.rows():
                    theirs = seen[worker.site.url, ours["dp_rank"]]
                    for name in (
                        *("num_used_tokens", "max_total_num_tokens", "num_running_reqs", "num_waiting_reqs"),
                        *("token_usage", "max_running_requests", "utilization", "memory"),
                    ):
                        assert theirs[name] == ours[name], name
            assert all(worker.requests["/v1/loads", "200"] > 0 for worker in workers)

    asyncio.run(main())


def test_sglang_router_registers_our_workers(tmp_path: Path) -> None:
    """
    sglang-router 0.3.2 finds demo workers healthy and in their roles.

    It asks for loads at `/get_load`, which SGLang dropped in 0.5.21; like any 0.5.23 worker ours answers 404, so the
    router is blind to their loads: it says -1 or nothing, never a made-up number.
    """
    program = _program("router", "bin", "sglang-router")

    def command(workers: list[Worker], port: int) -> list[str]:
        return [str(program), *_pd_arguments(workers, port)]

    async def main() -> None:
        async with _routed(command, tmp_path) as (workers, url):
            log = tmp_path / "router.log"
            listed = await _until(
                f"{url}/workers", lambda a: sum(w["is_healthy"] for w in a["workers"]) == len(workers), log
            )
            roles = {worker["url"]: worker["worker_type"] for worker in listed["workers"]}
            assert roles == {worker.site.url: worker.plan.mode for worker in workers}
            loads = await _until(f"{url}/get_loads", lambda a: len(a["workers"]) > 0, log)
            assert all(worker["load"] == -1 for worker in loads["workers"])

    asyncio.run(main())

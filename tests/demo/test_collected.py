"""
The collectors' dialect before demo workers: taken for SGLang, understood whole, and measured figures are the truth.
"""

import asyncio
import time
from dataclasses import replace

import httpx
import pytest

from collectors.engines import identify
from collectors.engines.contract import Answer
from demo.scenarios import SCENARIOS
from demo.serving import ServedFleet
from scoring.capacity import compose
from scoring.model import Role, Severity, WorkerReading

ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "null": Role.UNIFIED}


async def _answers(client: httpx.AsyncClient, url: str, paths: tuple[str, ...]) -> dict[str, Answer]:
    answers = {}
    for path in paths:
        response = await client.get(url + path, headers={"Accept": "text/plain" if path == "/metrics" else "*/*"})
        kind = response.headers["content-type"].split(";")[0].strip().lower()
        answers[path] = Answer(
            status=response.status_code, content_type=kind, body=response.content, received_at_s=time.time()
        )
    return answers


@pytest.mark.parametrize("name", ["calm", "saturation", "two-node"])
def test_the_dialect_understands_every_worker_and_reads_the_truth(name: str) -> None:
    """
    Identified as SGLang, nothing refused, no warning, roles right; used, prefix and free as the pool has them, and
    the parts that a reader derives for a decode pool (active, in flight) within a block a request of the true ones.
    """

    async def main() -> None:
        now = [time.time()]
        scenario = SCENARIOS[name] if name == "two-node" else replace(SCENARIOS[name], preroll_s=0.0)
        # The clock is ours and stands still while we ask, so that truth and answers are of one moment.
        served = ServedFleet(scenario, speed=1.0, clock=lambda: now[0])
        await served.start()
        fleet = served.fleet
        try:
            seconds = {"calm": 12.0, "saturation": 52.0, "two-node": 0.0}[name]
            for _ in range(round(seconds * 2)):
                now[0] += 0.5
                fleet.advance(now[0])
            truth = {pool["pool_id"]: pool for pool in fleet.truth()["pools"]}
            async with httpx.AsyncClient(trust_env=False) as client:
                for worker in fleet.workers:
                    first = await _answers(client, worker.site.url, ("/v1/loads",))
                    dialect = identify(first)
                    assert dialect is not None
                    paths = tuple(question.path for question in dialect.questions)
                    reading = dialect.understand(await _answers(client, worker.site.url, paths))
                    assert isinstance(reading, WorkerReading)
                    assert (reading.version, len(reading.pools)) == ("0.5.23", len(worker.plan.ranks))
                    assert reading.rejected_count == 0
                    assert [f for f in reading.findings if f.severity is not Severity.INFO] == []
                    for pool, state in zip(reading.pools, worker.published, strict=True):
                        true = truth[f"{worker.name}/{pool.dp_rank}"]
                        assert pool.anomalies == ()
                        assert pool.role is ROLES[worker.plan.mode]
                        assert pool.model == "Qwen/Qwen3-32B"
                        assert (pool.used_tokens, pool.prefix_tokens, pool.free_tokens) == (
                            *(state.used_tokens, state.prefix_tokens, state.free_tokens),
                        )
                        assert pool.usable_tokens == true["usable_tokens"]
                        assert pool.bytes_per_token == pytest.approx(true["profile"]["bytes_per_token"], rel=0.01)
                        if worker.plan.mode == "decode" and state.at_s == fleet.wall_s(fleet.virtual_s):
                            composition = compose(pool)
                            requests = true["queue_transfer_count"] + 1
                            slack = 64 * (true["running_count"] + requests) + true["fragmentation_tokens"]
                            assert composition.in_flight_tokens.value == pytest.approx(
                                true["in_flight_tokens"], abs=slack
                            )
                            assert composition.active_tokens.value == pytest.approx(true["active_tokens"], abs=slack)
        finally:
            await served.close()

    asyncio.run(main())

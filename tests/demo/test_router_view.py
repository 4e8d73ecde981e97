"""The demo's router answers as smg does, and its counts are its own."""

import asyncio
import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from collectors.engines import identify
from collectors.engines.contract import Answer
from demo.scenarios import SCENARIOS
from demo.serving import ServedFleet
from scoring.model import WorkerReading

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "recordings" / "sglang_2p2d.jsonl.gz"


def _recorded(path: str) -> dict[str, Any]:
    with gzip.open(EXAMPLE) as lines:
        return next(line["body"] for line in map(json.loads, lines) if line["url"].endswith(path))


def test_the_router_says_what_smg_says_and_the_dialect_takes_it() -> None:
    """
    Rows have smg's keys in smg's order and the workers' own figures; a dead worker is listed, unhealthy and without
    a row; the load of a decode worker is the requests on it, and the dialect reads all of it.
    """
    real = _recorded("/get_loads")
    real_worker = _recorded("/workers")["workers"][0]

    async def main() -> None:
        now = [time.time()]
        scenario = replace(SCENARIOS["node-loss"], preroll_s=0.0)
        served = ServedFleet(scenario, clock=lambda: now[0])
        await served.start()
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                for seconds, down in ((12.0, set()), (12.0, {"decode-3"})):
                    for _ in range(round(seconds * 2)):
                        now[0] += 0.5
                        served.fleet.advance(now[0])
                    raw = {path: await client.get(served.router.url + path) for path in ("/get_loads", "/workers")}
                    loads, listing = raw["/get_loads"].json(), raw["/workers"].json()
                    assert [list(loads), list(loads["aggregate"])] == [list(real), list(real["aggregate"])]
                    assert all(list(row) == list(real["loads"][0]) for row in loads["loads"])
                    ours = {worker.site.url: worker for worker in served.fleet.workers}
                    for row in loads["loads"]:
                        own = ours[row["worker"]].rows()[row["dp_rank"]]
                        same = ("num_used_tokens", "max_total_num_tokens", "num_waiting_reqs", "token_usage", "memory")
                        assert {name: row[name] for name in same} == {name: own[name] for name in same}
                    in_flight = served.fleet.truth()["router_in_flight"]
                    assert all(set(entry) <= set(real_worker) | {"load"} for entry in listing["workers"])
                    for entry in listing["workers"]:
                        name = ours[entry["url"]].name
                        assert entry["is_healthy"] is (name not in down)
                        assert entry["load"] == in_flight[name]
                        has_rows = any(row["worker"] == entry["url"] for row in loads["loads"])
                        assert has_rows is (name not in down)
                    answers = {
                        path: Answer(
                            status=200, content_type="application/json", body=answer.content, received_at_s=now[0]
                        )
                        for path, answer in raw.items()
                    }
                    dialect = identify(answers)
                    assert dialect is not None
                    assert dialect.name == "router"
                    reading = dialect.understand(answers)
                    assert isinstance(reading, WorkerReading)
                    assert {worker.url for worker in reading.router_workers} == set(ours)
        finally:
            await served.close()

    asyncio.run(main())

"""
The demo's saturation scenario through everything: real HTTP workers, the dialect, the judge, the chains, the store.

The fleet's clock is the test's and moves a second at a time, so that a busy machine changes nothing.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import httpx

from collectors.alerts_watch import ChainWatch, as_event
from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from collectors.recent import RecentPool
from collectors.store import Store, open_store
from demo.scenarios import SCENARIOS
from demo.serving import ServedFleet
from scoring.chain import EVENT_SIGN, EVENT_STAGE
from scoring.chain_evidence import STAGES, Stage
from scoring.model import PoolHistory, WorkerReading
from scoring.snapshot import judge_fleet

ROUND_S = 205
PATHS = ("/v1/loads", "/metrics", "/server_info")


async def _answer(client: httpx.AsyncClient, url: str, path: str, at_s: float) -> tuple[str, Answer]:
    response = await client.get(url + path, headers={"Accept": "text/plain" if path == "/metrics" else "*/*"})
    kind = response.headers["content-type"].split(";")[0].strip().lower()
    answer = Answer(status=response.status_code, content_type=kind, body=response.content, received_at_s=at_s)
    return path, answer


async def _live_through(store: Store) -> dict[str, list[int]]:
    """Poll the scenario's round over HTTP, step the chains, store their events; return pool -> levels walked."""
    now = [float(round(time.time()))]
    scenario = replace(SCENARIOS["saturation"], preroll_s=0.0)
    served = ServedFleet(scenario, worker_count=4, clock=lambda: now[0])
    recent: dict[tuple[str, int], RecentPool] = {}
    watch = ChainWatch()
    levels: dict[str, list[int]] = {}
    await served.start()
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
            for second in range(ROUND_S):
                now[0] += 1.0
                served.fleet.advance(now[0])
                for worker in served.fleet.workers:
                    asked = [_answer(client, worker.site.url, path, now[0]) for path in PATHS]
                    reading = ENGINES["sglang"].understand(dict(await asyncio.gather(*asked)))
                    assert isinstance(reading, WorkerReading)
                    for pool in reading.pools:
                        held = recent.setdefault((worker.name, pool.dp_rank), RecentPool(900))
                        held.append(replace(pool, worker_id=worker.name, received_at_s=now[0]))
                views = [view for held in recent.values() if (view := held.view()) is not None]
                histories = [
                    PoolHistory(last=view.last, at_s=view.at_s, columns=view.columns, polled_at_s=now[0])
                    for view in views
                ]
                store.append_events(
                    [as_event(event) for event in watch.look(judge_fleet(histories, now[0]), histories)]
                )
                for name, state in watch.states.items():
                    path = levels.setdefault(name, [])
                    if not path or path[-1] != state.stage:
                        path.append(int(state.stage))
                is_over = [name for name, path in levels.items() if max(path) == Stage.TAIL_LATENCY and path[-1] == 0]
                if second > 60 and any(name.startswith("decode") for name in is_over):
                    break
    finally:
        await served.close()
    return levels


def test_the_saturation_scenario_walks_all_six_stages_and_back_over_http(tmp_path: Path) -> None:
    """
    On a decode pool every stage lights, thin headroom before retraction and retraction before recompute, every light
    goes out again, and the store holds in order what triggered each and what ended it.
    """
    with open_store(tmp_path / "walk.duckdb") as store:
        levels = asyncio.run(_live_through(store))
        walked = {}
        for name in levels:
            events = list(reversed(store.events(0.0, time.time() + 3600.0, [EVENT_SIGN], name, 5000)))
            walked[name] = [(event.details["stage"], event.details["is_lit"], event.text) for event in events]
        whole = [name for name, rows in walked.items() if {stage for stage, lit, _ in rows if lit} == _every()]
        assert whole, {name: sorted({stage for stage, lit, _ in rows if lit}) for name, rows in walked.items()}
        for name in whole:
            if levels[name][-1] != 0:
                continue
            rows = walked[name]
            began: dict[str, float] = {}
            for event in reversed(store.events(0.0, time.time() + 3600.0, [EVENT_SIGN], name, 5000)):
                if event.details["is_lit"]:
                    began.setdefault(event.details["stage"], event.at_s)
            assert began["thin-headroom"] < began["retraction"] <= began["recompute"]
            lit: set[str] = set()
            for stage, is_lit, text in rows:
                assert text
                assert is_lit == (stage not in lit)
                lit ^= {stage}
            assert not lit
            stages = store.events(0.0, time.time() + 3600.0, [EVENT_STAGE], name, 5000)
            assert stages[0].details["stage"] == stages[-1].details["stage"] == "healthy"
        assert any(levels[name][-1] == 0 and max(levels[name]) == 6 for name in whole)


def _every() -> set[str]:
    return {stage.word for stage in STAGES}

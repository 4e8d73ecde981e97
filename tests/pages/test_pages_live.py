"""The whole way: demo workers over real HTTP -> collector -> DuckDB -> judge -> page; then the workers stop."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from collectors.runtime import Runtime, start_runtime
from collectors.settings import parse_settings
from demo.fleet_file import WorkerLine, fleet_toml
from demo.scenarios import SCENARIOS
from demo.serving import ServedFleet
from pages import _context as context
from scoring.model import Role, SourceState

WAIT_S = 25.0


class Demo:
    """A served demo fleet in a thread of its own, and the collector that watches it."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.served = ServedFleet(SCENARIOS["rush"], seed=3, worker_count=5)
        self.call(self.served.start())
        lines = [WorkerLine(name=worker.name, url=worker.site.url) for worker in self.served.fleet.workers]
        sections = {
            "poll": {"interval_s": 0.25, "timeout_s": 2.0},
            "freshness": {"late_after_s": 1.5, "stale_after_s": 3.0, "down_after_failures": 2},
            "store": {"path": str(folder / "store.duckdb")},
        }
        text = fleet_toml(lines, comment="demo", sections=sections)
        self.runtime: Runtime = start_runtime(parse_settings(text, folder=folder, name="fleet.toml"))

    def call(self, work) -> None:
        """Run a coroutine in the fleet's loop."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    def wait(self, claim) -> None:
        """Wait until `claim(snapshot)` holds."""
        end = time.monotonic() + WAIT_S
        while not claim(self.runtime.snapshot()):
            assert time.monotonic() < end, [(p.pool_id, p.state, p.state_reason) for p in self.runtime.snapshot().pools]
            time.sleep(0.1)

    def close(self) -> None:
        """Stop everything and join."""
        self.runtime.stop()
        self.call(self.served.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)
        self.loop.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Return a running demo with every pool fresh and a few cycles stored."""
    context.set_failure(None)
    context.forget_shared()
    running = Demo(tmp_path_factory.mktemp("demo"))
    try:
        running.wait(lambda fleet: len(fleet.pools) >= 6 and all(pool.state.is_scored for pool in fleet.pools))
        running.wait(lambda _: running.runtime.cycle_stats().stored_count >= 6)
        yield running
    finally:
        running.close()


def _open(page: str = "fleet", **query: str) -> AppTest:
    app = AppTest.from_file("../../app.py", default_timeout=30)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    if page:
        app.switch_page(f"pages/{page}.py").run()
    assert not app.exception, [item.message for item in app.exception]
    return app


def _figures(app: AppTest) -> list[dict]:
    # Other components of a page (sharing, keys) carry no bytes.
    return [json.loads(item.proto.bytes)["figure"] for item in app.get("bidi_component") if item.proto.bytes]


def test_the_fleet_page_draws_what_the_workers_said(demo) -> None:
    """Every pool of the demo has a bar whose length is the capacity its worker reports over HTTP."""
    pools = demo.runtime.snapshot().pools
    app = _open()
    drawn = {}
    for figure in _figures(app):
        bars = [trace for trace in figure["data"] if trace["type"] == "bar" and "base" not in trace]
        for place, (pool_id, _) in enumerate(bars[0]["customdata"]):
            drawn[pool_id] = sum(trace["x"][place] for trace in bars)
    assert set(drawn) == {pool.pool_id for pool in pools}
    for pool in pools:
        assert drawn[pool.pool_id] == pytest.approx(pool.composition.usable_tokens.value, rel=0.006)
    assert app.metric[0].value.endswith(f"of {len(pools)}")


def test_the_worker_page_draws_history_from_memory_and_from_the_store(demo) -> None:
    """Five minutes come from memory, an hour from DuckDB, a past instant from DuckDB; each draws areas."""
    decode = next(pool for pool in demo.runtime.snapshot().pools if pool.role is Role.DECODE)
    for query, words in (({"range": "5m"}, "from memory"), ({"range": "24h"}, "from the store")):
        app = _open("worker", pool=decode.pool_id, **query)
        assert any(words in item.value for item in app.caption), [item.value for item in app.caption]
        areas = [trace for figure in _figures(app) for trace in figure["data"] if trace.get("fill") == "toself"]
        assert areas
    past_s = str(time.time() - 0.5)
    past = _open("worker", pool=decode.pool_id, at=past_s)
    assert any("from the store" in item.value for item in past.caption)
    assert _figures(past)
    # The shell around a page says it, and a switched page runs without its shell here: the opening page has it.
    fleet = _open("", at=past_s)
    assert any("past" in item.value for item in fleet.info)
    assert _figures(fleet)
    assert len(_figures(_open(at=past_s))) >= 2


def test_the_sources_page_says_what_was_asked_and_answered(demo) -> None:
    """Each source of the demo is there with its questions, understood."""
    app = _open("sources")
    tables = [item.value for item in app.dataframe]
    every = next(table for table in tables if "origin" in table)
    assert set(every["name"]) == {view.worker_id for view in demo.runtime.sources()}
    assert all("sglang 0.5.23" in engine for engine in every["engine"])
    asked = next(table for table in tables if "path" in table)
    assert "/v1/loads" in set(asked["path"])
    assert set(asked[asked["path"] == "/v1/loads"]["status"]) == {"200"}


def test_when_the_workers_stop_the_pages_say_so_and_claim_nothing(demo) -> None:
    """Connection refused everywhere: pools go down, bars stay faint with their age, no key figure is made of them."""
    demo.call(demo.served.close())
    demo.wait(lambda fleet: all(pool.state is SourceState.DOWN for pool in fleet.pools))
    app = _open()
    assert app.error
    assert app.metric[0].value.startswith("0 of")
    assert app.metric[1].value == "unknown"
    for figure in _figures(app):
        assert all("down" in text for text in figure["layout"]["yaxis"]["ticktext"])
        assert max(figure["data"][0]["marker"]["opacity"]) < 0.5
    pool = demo.runtime.snapshot().pools[0]
    assert any("down" in item.value for item in _open("worker", pool=pool.pool_id).error)
    assert _open("sources").metric[0].value.startswith("0 of")

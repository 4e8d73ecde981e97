"""Workers that a Prometheus server watches: polled through it, and its own failures never blamed on them."""

import asyncio
import json
from typing import Any

import httpx

from collectors.poll_types import WorkerResult
from collectors.prometheus_poll import PrometheusPoll
from collectors.settings import PrometheusSettings
from scoring.model import SourceState

NOW_S = 1_796_000_000.0
GAUGES = {"sglang:num_running_reqs": 3, "sglang:num_used_tokens": 700, "sglang:max_total_num_tokens": 1000}


def vector(rows: list[tuple[dict[str, str], float]]) -> httpx.Response:
    result = [{"metric": labels, "value": [NOW_S, str(value)]} for labels, value in rows]
    return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})


class Server:
    """The HTTP API of a Prometheus that scrapes two workers, `a` up and `b` as told."""

    def __init__(self) -> None:
        self.is_broken = False
        self.up = {"a:1": 1.0, "b:1": 1.0}

    def respond(self, request: httpx.Request) -> httpx.Response:
        if self.is_broken:
            return httpx.Response(503, text="starting")
        query = request.url.params.get("query") or dict(httpx.QueryParams(request.content.decode())).get("query", "")
        targets = [{"job": "sglang", "instance": instance} for instance in self.up]
        if "timestamp(" in query:
            return vector([(labels, NOW_S - 2.0) for labels in targets])
        if "seconds_bucket" in query:
            return vector([])
        if "(bucket|created)" in query:
            alive = [labels for labels in targets if self.up[labels["instance"]]]
            return vector(
                [
                    ({**labels, "__name__": name, "model_name": "m", "tp_rank": "0"}, value)
                    for labels in alive
                    for name, value in GAUGES.items()
                ]
            )
        return vector([(labels, self.up[labels["instance"]]) for labels in targets])


async def _twice(change: Any) -> tuple[list[WorkerResult], list[WorkerResult], PrometheusPoll]:
    server = Server()
    async with httpx.AsyncClient(transport=httpx.MockTransport(server.respond)) as client:
        settings = PrometheusSettings(url="http://prometheus:9090", matchers=('job="sglang"',))
        source = PrometheusPoll(settings, client, lambda: NOW_S)
        first = await source.poll()
        change(server)
        return first, await source.poll(), source


def states(results: list[WorkerResult]) -> dict[str, SourceState]:
    return {result.poll.worker_id: result.poll.state for result in results}


def test_every_worker_of_the_server_is_a_source_with_its_readings() -> None:
    """The server and both workers are sources; figures carry the scrape's time, not the query's."""
    first, _, source = asyncio.run(_twice(lambda _: None))
    assert states(first) == {
        "prometheus prometheus:9090": SourceState.FRESH,
        "a:1": SourceState.FRESH,
        "b:1": SourceState.FRESH,
    }
    readings = [reading for result in first for reading in result.readings]
    assert {reading.worker_id for reading in readings} == {"a:1", "b:1"}
    assert {reading.reported_at_s for reading in readings} == {NOW_S - 2.0}
    assert {reading.used_tokens for reading in readings} == {700.0}
    assert [target.worker_id for target in source.targets] == ["prometheus prometheus:9090", "a:1", "b:1"]


def test_a_worker_the_server_cannot_scrape_is_down() -> None:
    """`up` 0 makes that worker down and leaves the other alone."""
    _, second, _ = asyncio.run(_twice(lambda server: server.up.update({"b:1": 0.0})))
    assert states(second)["b:1"] is SourceState.DOWN
    assert states(second)["a:1"] is SourceState.FRESH


def test_a_failing_server_is_down_itself_and_its_workers_are_only_late() -> None:
    """When the server cannot be asked, it is the server that is down; nothing is known of the workers."""

    def breaks(server: Server) -> None:
        server.is_broken = True

    _, second, _ = asyncio.run(_twice(breaks))
    found = states(second)
    assert found.pop("prometheus prometheus:9090") is SourceState.DOWN
    assert set(found.values()) == {SourceState.LATE}
    assert len(found) == 2
    assert not any(result.readings for result in second)
    assert json.dumps([result.poll.detail for result in second])

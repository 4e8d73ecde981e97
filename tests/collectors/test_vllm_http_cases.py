"""The field cases over real HTTP: a poller that is told nothing finds each engine and ends in the expected figures."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiohttp import web

from collectors.discovery import Target
from collectors.polling import Poller
from collectors.settings import PollSettings
from collectors.transport import FleetTransport
from scoring.model import SourceState

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"
FAST = PollSettings(interval_s=1.0, timeout_s=3.0, connect_timeout_s=1.0, jitter_ratio=0.0)
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


def file(name):
    return (PAYLOADS / name).read_bytes()


HOSTS = {
    "p01": {"/metrics": (TEXT, file("vllm/cases/P01/metrics.1.prom"))},
    "p03a": {"/metrics": (TEXT, file("vllm/cases/P03/metrics.a.prom"))},
    "p03b": {"/metrics": (TEXT, file("vllm/cases/P03/metrics.b.prom"))},
    "p04": {"/metrics": (TEXT, file("vllm/cases/P04/metrics.prom"))},
    "p04trt": {"/metrics": (JSON, file("trtllm/P04/trtllm_stats.json"))},
    "p07router": {"/get_loads": (JSON, file("router/cases/P07/router_get_loads.json"))},
    "p07d0": {
        "/v1/loads": (JSON, file("router/cases/P07/d0.json")),
        "/metrics": (TEXT, b'sglang:token_usage{dp_rank="0"} 0.9025\nsglang:num_running_reqs{dp_rank="0"} 70\n'),
    },
    "p08router": {
        "/workers": (JSON, file("router/cases/P08/router_workers.json")),
        "/metrics": (TEXT, file("router/cases/P08/router_metrics.prom")),
        "/engine_metrics": ("text/plain", None),
    },
    "p08node2": {"/metrics": (TEXT, file("router/cases/P08/node-2.prom"))},
    "p09trt": {"/metrics": (JSON, file("trtllm/P09/trtllm_all_ranks.json"))},
    "p10old": {"/metrics": (TEXT, file("vllm/cases/P10/old.prom"))},
    "p10both": {"/metrics": (TEXT, file("vllm/cases/P10/both.prom"))},
    "p10new": {"/metrics": (TEXT, file("vllm/cases/P10/new.prom"))},
    "p10underscore": {"/metrics": (TEXT, file("vllm/cases/P10/underscore.prom"))},
    "p13trt": {"/metrics": (JSON, file("trtllm/P13/trtllm_stats.json"))},
    "p13dynamo": {"/metrics": (TEXT, file("dynamo/cases/P13/dynamo_worker.prom"))},
    "p17": {"/metrics": (TEXT, file("vllm/cases/P17/random.1.prom"))},
    "p18router": {"/workers": (JSON, file("router/cases/P18/router.0.json"))},
    "vllm": {
        "/metrics": (TEXT, file("vllm/0.32.0/metrics.txt")),
        "/version": (JSON, b'{"version":"0.32.0"}'),
    },
    "dynamodecode": {"/metrics": (TEXT, file("dynamo/1.6.1/decode_worker_metrics_underload.txt"))},
    "dynamoprefill": {"/metrics": (TEXT, file("dynamo/1.6.1/prefill_worker_metrics_underload.txt"))},
    "smg": {
        "/workers": (JSON, file("smg/1.13.0/router_workers.json")),
        "/get_loads": (JSON, file("smg/1.13.0/router_get_loads.json")),
    },
    "smgmetrics": {"/metrics": (TEXT, file("smg/1.13.0/router_metrics.txt"))},
    "broken": {"/metrics": ("text/plain", None), "/health": (JSON, b"")},
    "html": {"/metrics": ("text/html", b"<html><h1>It works</h1></html>"), "/workers": ("text/html", b"<html>")},
}


def handler(kind, body):
    async def answer(request):
        if body is None:
            return web.Response(status=500, text="All backend requests failed")
        return web.Response(body=body, headers={"Content-Type": kind})

    return answer


async def poll_all():
    """Serve every host on a port of its own and poll them once; return the results by host."""
    runners, targets = [], []
    for name, paths in HOSTS.items():
        app = web.Application()
        for path, (kind, body) in paths.items():
            app.router.add_get(path, handler(kind, body))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        targets.append(Target(worker_id=name, url=f"http://127.0.0.1:{runner.addresses[0][1]}"))
        runners.append(runner)
    poller = Poller(FAST, FleetTransport())
    poller.set_targets(targets)
    found = {"polls": {}, "pools": {}, "routers": {}, "engines": {}, "paths": {}, "findings": {}}
    try:
        deadline = time.monotonic() + 20.0
        while len(found["polls"]) < len(HOSTS) and time.monotonic() < deadline:
            result = await poller.cycle(time.time())
            for poll in result.polls:
                found["polls"].setdefault(poll.worker_id, poll)
            for reading in result.readings:
                found["pools"].setdefault(reading.worker_id, {}).setdefault(reading.dp_rank, reading)
            for worker, row in result.router_workers:
                found["routers"].setdefault(worker, []).append(row)
            for worker, finding in result.findings:
                found["findings"].setdefault(worker, set()).add(finding.code)
            for detail in result.details:
                found["engines"].setdefault(detail.worker_id, detail.engine)
                found["paths"].setdefault(detail.worker_id, [question.path for question in detail.questions])
            await asyncio.sleep(0.02)
    finally:
        await poller.aclose()
        for runner in runners:
            await runner.cleanup()
    return found


@pytest.fixture(scope="module")
def found():
    """Return what one round over all hosts gave."""
    return asyncio.run(poll_all())


def test_every_engine_is_recognised_from_its_answers_alone(found):
    """Nothing but an address is configured: each worker ends in its own dialect and a fresh state."""
    expected = {
        "vllm": (
            "p01",
            "p03a",
            "p03b",
            "p04",
            "p08node2",
            "p10old",
            "p10both",
            "p10new",
            "p10underscore",
            "p17",
            "vllm",
        ),
        "trtllm": ["p04trt", "p09trt", "p13trt"],
        "dynamo": ["p13dynamo", "dynamodecode", "dynamoprefill"],
        "router": ["p07router", "p08router", "p18router", "smg", "smgmetrics"],
        "sglang": ["p07d0"],
    }
    for engine, names in expected.items():
        for name in names:
            assert found["polls"][name].state is SourceState.FRESH, name
            assert found["engines"][name] == engine, name


def test_the_richest_path_is_found_where_a_worker_has_several(found):
    """A worker or router that also has /metrics is still asked at its own path first."""
    assert found["paths"]["p07d0"][0] == "/v1/loads"
    assert found["paths"]["p08router"][0] == found["paths"]["smg"][0] == "/workers"
    assert found["paths"]["p07router"] == ["/get_loads"]
    assert found["paths"]["smgmetrics"] == ["/metrics"]


def test_figures_come_through_unchanged(found):
    """What the dialects' own tests show holds at the end of the poll, too."""
    pools = found["pools"]
    assert len(pools["p01"]) == 8
    assert pools["p01"][7].free_or_prefix_tokens == 115_200
    assert pools["p03a"][0].reported_usage_ratio == 0.653
    assert (pools["p03b"][0].reported_usage_ratio, pools["p03b"][0].usage_high_ratio) == (None, 0.91)
    assert pools["p04"][3].reported_usage_ratio is None
    assert "negative-usage" in found["findings"]["p04"]
    assert "negative-usage" in found["findings"]["p04trt"]
    assert sorted(pools["p08node2"]) == [4, 5, 6, 7]
    assert pools["p09trt"][3].used_tokens / pools["p09trt"][3].usable_tokens == 0.93
    usage = [pools[f"p10{name}"][0].reported_usage_ratio for name in ("old", "both", "new", "underscore")]
    assert usage == [0.31, 9.75e-06, 0.31, 0.31]
    assert (pools["p13trt"][0].usable_tokens, pools["p13trt"][0].used_tokens) == (127_680, 16_000)
    assert pools["p13dynamo"][0].reported_usage_ratio == 0.759
    assert "prefix-hits-inflated" in found["findings"]["p17"]
    assert (pools["vllm"][0].used_tokens, pools["vllm"][0].version) == (5856, "0.32.0")
    assert all(reading.received_at_s > 0 for ranks in pools.values() for reading in ranks.values())


def test_routers_are_rows_and_their_own_faults_are_theirs(found):
    """-1 is unknown; two endpoints stand behind eight rows; a failing /engine_metrics is a finding of the router."""
    assert {row.load_tokens for row in found["routers"]["p07router"]} == {None}
    assert "router-load-unknown" in found["findings"]["p07router"]
    assert len({row.url for row in found["routers"]["p08router"]}) == 2
    assert len(found["routers"]["p08router"]) == 8
    assert "router-engine-metrics-broken" in found["findings"]["p08router"]
    assert len(found["routers"]["smg"]) == 8
    assert not set(found["pools"]) & {"p07router", "p08router", "p18router", "smg", "smgmetrics"}


def test_a_worker_that_answers_wrongly_is_not_down(found):
    """500 at /metrics and an HTML page are not-understood: somebody is there."""
    for name in ("broken", "html"):
        assert found["polls"][name].state is SourceState.NOT_UNDERSTOOD
        assert name not in found["pools"]
    json.dumps({name: poll.detail for name, poll in found["polls"].items()}, allow_nan=False)

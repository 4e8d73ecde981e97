"""
Dynamo 1.6.1: two prefill and two decode mockers with their frontend, both engines, under load.

The mockers simulate the computing; wire, series, router and their gaps are Dynamo's own. What they do not export must
stay unknown. Run by `make test-peers`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scoring.model import PoolSnapshot, Provenance, Role
from tests.peers.kit import Kit
from tests.peers.seen import Body, Seen, bracket

pytestmark = pytest.mark.peer

WORKERS = {"prefill-1": 18081, "prefill-2": 18082, "decode-1": 18083, "decode-2": 18084}
FRONTEND = 18000
LOAD_S = 20.0
CLIENTS = 32
GENERATE = {"dynamo_endpoint": "generate"}


def _metrics(port: int) -> str:
    return f"http://127.0.0.1:{port}/metrics"


def _watch_of(engine: str) -> Callable[[Kit, Path], None]:
    def watch(kit: Kit, folder: Path) -> None:
        kit.need("dynamo", is_namespaced=True)
        kit.up("dynamo", "--engine", engine)
        urls = [f"{name}=http://127.0.0.1:{port}" for name, port in {**WORKERS, "frontend": FRONTEND}.items()]
        kit.watch(
            folder,
            load_url=f"http://127.0.0.1:{FRONTEND}",
            load_s=LOAD_S,
            clients=CLIENTS,
            workers=urls,
            witnesses=[_metrics(port) for port in (*WORKERS.values(), FRONTEND)],
        )

    return watch


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> str:
    """The engine that the mockers play."""
    return str(request.param)


@pytest.fixture(scope="module")
def seen(seen_of: Callable[..., Seen], engine: str) -> Seen:
    """The system under load, and a little after."""
    return seen_of(f"dynamo_{engine}", _watch_of(engine))


def _pairs(seen: Seen, name: str) -> list[tuple[PoolSnapshot, Body]]:
    url = _metrics(WORKERS[name])
    return [(pool, seen.answer_at(url, pool.received_at_s or 0.0)) for _, pool in seen.samples(f"{name}/0")]


def test_every_source_is_understood_as_what_it_is(seen: Seen) -> None:
    """Four workers and a frontend, no failed poll; the frontend has no pool; a prefill worker says that it is one."""
    assert seen.load_summary["errors"] == 0
    sources = {source["worker_id"]: source for source in seen.summary["sources"]}
    assert set(sources) == {*WORKERS, "frontend"}
    for name, source in sources.items():
        assert (source["failure_count"], source["rejected_count"]) == (0, 0), source["last_error"]
        assert source["engine"] == ("dynamo-frontend" if name == "frontend" else "dynamo")
        assert source["is_router"] == (name == "frontend")
    roles = {pool.worker_id: pool.role for pool in seen.judged[-1].fleet.pools}
    # Dynamo calls the component of a decode worker `backend`, as that of a worker that does both: no role is guessed.
    assert roles == {name: Role.PREFILL if "prefill" in name else Role.UNKNOWN for name in WORKERS}


@pytest.mark.parametrize("name", [name for name in WORKERS if "decode" in name])
def test_every_second_our_figures_are_the_worker_s_own(seen: Seen, engine: str, name: str) -> None:
    """Running, waiting, usage, preemptions, finished requests and latencies equal another parser's reading."""
    busiest, read = 0.0, 0
    for pool, body in _pairs(seen, name):
        series, said = body.series, pool.reading
        if not series.all("vllm:num_requests_running") and not series.all("sglang:num_running_reqs"):
            # A mocker exports its engine's series from its first request on: unknown until then, not 0.
            assert (pool.running_count.value, pool.waiting_count.value) == (None, None)
            assert "no-kv-series" in {finding.code for finding in pool.findings}
            continue
        if engine == "vllm":
            assert pool.running_count.value == series.one("vllm:num_requests_running")
            assert pool.waiting_count.value == series.one("vllm:num_requests_waiting")
            assert said.reported_usage_ratio == series.one("vllm:kv_cache_usage_perc")
            assert said.retracted_total == series.one("vllm:num_preemptions_total")
            assert said.ttft_count_total == series.total("vllm:time_to_first_token_seconds_count")
            assert said.finished_total == series.total("dynamo_component_request_duration_seconds_count", **GENERATE)
        else:
            assert pool.running_count.value == series.one("sglang:num_running_reqs")
            assert pool.waiting_count.value == series.one("sglang:num_queue_reqs")
            assert said.finished_total == series.total("sglang:num_requests_total")
            assert said.e2e_s_total == pytest.approx(series.total("sglang:e2e_request_latency_seconds_sum"))
        read += 1
        busiest = max(busiest, pool.running_count.value)
    assert read > 20
    assert busiest >= 8, "the load did not reach this worker"


@pytest.mark.parametrize("name", WORKERS)
def test_what_dynamo_does_not_say_stays_unknown(seen: Seen, name: str) -> None:
    """No worker exports its capacity, a prefill worker nothing of KV or batch: unknown with a reason, never 0."""
    for pool, body in _pairs(seen, name):
        assert not [series for series in body.series.names() if "cache_config_info" in series]
        words = ["usable_tokens", "used_tokens", "committed_tokens", "available_tokens"]
        for figure in (getattr(pool.composition, word) for word in words):
            assert figure.value is None
            assert figure.provenance is Provenance.UNKNOWN
            assert figure.reason
        if "prefill" in name:
            assert "no-kv-series" in {finding.code for finding in pool.findings}
            assert (pool.running_count.value, pool.waiting_count.value) == (None, None)
            assert pool.reading.reported_usage_ratio is None
            finished_own = body.series.total("dynamo_component_request_duration_seconds_count", **GENERATE)
            assert pool.reading.finished_total == finished_own


@pytest.mark.parametrize("name", WORKERS)
def test_finished_requests_lie_between_a_witness_s_before_and_after(seen: Seen, name: str) -> None:
    """A counter of ours is never below what a witness read before, nor above what it read after; and it moves."""
    url, checked = _metrics(WORKERS[name]), 0
    own = "dynamo_component_request_duration_seconds_count"

    def read(body: Body) -> Any:
        return body.series.total(own, **GENERATE)

    pairs = _pairs(seen, name)
    for pool, body in pairs:
        ours = pool.reading.finished_total
        low, _ = bracket(seen.witness[url], body.t, read)
        _, high = bracket(seen.witness[url], pool.received_at_s, read)
        if ours is not None and low is not None and high is not None:
            checked += 1
            # The engine's own count and the component's are moved one after the other.
            assert low - 1 <= ours <= high + 1
    assert checked > 20
    assert pairs[-1][0].reading.finished_total > 50


def test_the_router_s_view_is_the_frontend_s_own(seen: Seen, engine: str) -> None:
    """Each row is a worker and rank of the frontend's gauges, blocks x block size; none is made up or left out."""
    bodies = seen.answers[_metrics(FRONTEND)]
    compared, largest = 0, 0.0
    for judged in seen.judged:
        for view in judged.routers.values():
            candidates = [body for body in bodies if body.received_at_s <= judged.fleet.at_s][-2:]
            rows = {
                (row["url"].removeprefix("dynamo://"), row["dp_rank"]): row["router_tokens"] for row in view["rows"]
            }
            told = []
            for body in candidates:
                series = body.series
                size = series.one("dynamo_frontend_model_kv_cache_block_size")
                expected = {}
                for kind, name, factor in (
                    ("decode", "dynamo_frontend_worker_active_decode_blocks", size),
                    ("prefill", "dynamo_frontend_worker_active_prefill_tokens", 1.0),
                ):
                    for labels, value in series.labelled(name, worker_type=kind):
                        expected[labels["worker_id"], int(labels["dp_rank"])] = value * factor
                told.append(expected)
            assert rows in told
            compared += 1
            largest = max(largest, *rows.values())
    assert compared > 20
    assert largest > 1000
    facts = next(source["facts"] for source in seen.summary["sources"] if source["worker_id"] == "frontend")
    assert (facts["block size (tokens)"], facts["KV blocks of a worker"]) == {
        "vllm": ("16", "2048"),
        "sglang": ("1", "12000"),
    }[engine]


def test_the_frontend_s_rows_are_our_workers_by_their_ids(seen: Seen) -> None:
    """The id a worker writes in hexadecimal is the number the frontend routes by: every row has its worker."""
    sources = {source["worker_id"]: source for source in seen.summary["sources"]}
    ids = {sources[name]["facts"]["worker id"]: name for name in WORKERS}
    rows = next(iter(seen.judged[-1].routers.values()))["rows"]
    assert len(ids) == len(WORKERS)
    assert {row["url"].removeprefix("dynamo://") for row in rows} == set(ids)

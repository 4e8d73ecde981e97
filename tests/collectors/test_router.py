"""Routers: what they say, what they do not know, and where they part from the engines."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from scoring.model import PoolHistory, Role, RouterWorker, Severity, WorkerReading, signal_names
from scoring.router_view import HELD_S, RouterWatch, address, router_divergence, router_rows
from scoring.snapshot import judge_fleet

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"
OLD = PAYLOADS / "router" / "0.3.2"
SMG = PAYLOADS / "smg" / "1.13.0"
CASES = PAYLOADS / "router" / "cases"
AT_S = 1000.0


def answer(body, status=200):
    return Answer(status=status, content_type="", body=body, received_at_s=AT_S)


def read(name, **paths):
    """Return the reading of answers (path word -> bytes or Answer) that the registry must recognise as `name`."""
    given = {f"/{path}": body if isinstance(body, Answer) else answer(body) for path, body in paths.items()}
    assert identify(given) is ENGINES[name]
    reading = ENGINES[name].understand(given)
    assert isinstance(reading, WorkerReading)
    return reading


def by_key(reading):
    return {(worker.url, worker.dp_rank): worker for worker in reading.router_workers}


def fleet(**bodies):
    """Return judged pools of workers: worker id with `_` for `-` -> its body and path."""
    histories = []
    for worker, (path, body) in bodies.items():
        given = {path: answer(body)}
        for pool in identify(given).understand(given).pools:
            pool = replace(pool, worker_id=worker.replace("_", "-") + ":30000", received_at_s=AT_S)
            columns = {name: np.array([np.nan if (v := getattr(pool, name)) is None else v]) for name in signal_names()}
            # The recordings' own clock is another day's; freshness is not what is tested here.
            columns["reported_at_s"] = np.array([np.nan])
            pool = replace(pool, reported_at_s=None)
            histories.append(PoolHistory(last=pool, at_s=np.array([AT_S]), columns=columns, polled_at_s=AT_S))
    return judge_fleet(histories, AT_S).pools


def test_the_old_router_gives_requests_and_tokens_of_each_worker():
    """sglang-router 0.3.2, captured: `load` is requests in /workers and tokens in /get_loads; order does not matter."""
    paths = {
        "workers": (OLD / "router_workers.json").read_bytes(),
        "get_loads": (OLD / "router_get_loads.json").read_bytes(),
        "metrics": (OLD / "sglang_router_metrics.txt").read_bytes(),
    }
    reading = read("router", **paths)
    workers = by_key(reading)
    assert {url[-5:]: (w.load_count, w.load_tokens) for (url, _), w in workers.items()} == {
        "30001": (9, 0),
        "30002": (1, 922),
        "30003": (9, 4094),
        "30004": (1, 1355),
    }
    roles = [workers[f"http://127.0.0.1:3000{n}", None].role for n in (1, 2, 3, 4)]
    assert roles == [Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE]
    assert all(worker.is_healthy for worker in workers.values())
    assert (reading.pools, reading.rejected_count) == ((), 0)
    listed = json.loads(paths["workers"])
    random.Random(3).shuffle(listed["workers"])
    paths["workers"] = json.dumps(listed).encode()
    assert read("router", **paths).router_workers == reading.router_workers


def test_smg_gives_a_row_for_every_rank_and_its_own_for_the_worker():
    """smg 1.13.0, captured: two decode workers of two ranks each; tokens by rank, requests in flight by worker."""
    reading = read(
        "router",
        workers=(SMG / "router_workers.json").read_bytes(),
        get_loads=(SMG / "router_get_loads.json").read_bytes(),
    )
    workers = by_key(reading)
    assert reading.version == "smg-1.13.0"
    assert [workers["http://127.0.0.1:30004", rank].load_tokens for rank in (0, 1)] == [1511, 1162]
    assert workers["http://127.0.0.1:30004", None].load_count == 7
    assert workers["http://127.0.0.1:30002", None].load_tokens == 354
    assert reading.facts["physical workers"] == "4"
    # Its cached /loads is preferred to asking every worker again.
    cached = json.loads((SMG / "router_get_loads.json").read_text())
    cached["loads"][0]["num_used_tokens"] = 77
    reading = read(
        "router",
        workers=(SMG / "router_workers.json").read_bytes(),
        loads=json.dumps(cached).encode(),
        get_loads=(SMG / "router_get_loads.json").read_bytes(),
    )
    assert by_key(reading)["http://127.0.0.1:30001", None].load_tokens == 77


def test_a_metrics_port_alone_shows_workers_in_flight():
    """smg's metrics port, captured: requests in flight and health by worker."""
    workers = by_key(read("router-metrics", metrics=(SMG / "router_metrics.txt").read_bytes()))
    assert [workers[f"http://127.0.0.1:3000{n}", None].load_count for n in (1, 2, 3, 4)] == [1, 0, 7, 5]
    assert all(worker.is_healthy for worker in workers.values())


def test_the_experimental_router_is_its_metrics():
    """The experimental router labels workers worker_url; a removed worker's sentinel below 0 is no load."""
    body = (
        b'sgl_router_worker_inflight_requests{worker_url="http://a:1"} 4\n'
        b'sgl_router_worker_inflight_requests{worker_url="http://b:1"} -1\n'
        b'sgl_router_worker_requests_total{worker_url="http://a:1",mode="plain",outcome="success"} 9\n'
        b'sgl_router_worker_requests_total{worker_url="http://a:1",mode="plain",outcome="error"} 1\n'
    )
    reading = read("router-metrics", metrics=body)
    assert {worker.url: worker.load_count for worker in reading.router_workers} == {"http://a:1": 4}
    assert (reading.facts["requests_total"], reading.facts["requests_failed_total"]) == ("10", "1")


def test_minus_one_is_unknown_and_a_blind_router_is_said_to_be_blind():
    """P07: -1 for 2 of 2 workers that answer themselves: `router-blind`; the engines' figures stand."""
    reading = read("router-loads", get_loads=(CASES / "P07" / "router_get_loads.json").read_bytes())
    assert {worker.load_tokens for worker in reading.router_workers} == {None}
    assert "2 of 2" in reading.findings[0].text
    pools = fleet(
        decode_0=("/v1/loads", (CASES / "P07" / "d0.json").read_bytes()),
        decode_1=("/v1/loads", (CASES / "P07" / "d1.json").read_bytes()),
        decode_2=("/v1/loads", (CASES / "P07" / "d2_legacy.json").read_bytes()),
    )
    assert [pool.composition.used_tokens.value for pool in pools] == [361_000, 52_000, 20_000]
    (finding,) = router_divergence(reading.router_workers, pools)
    assert (finding.code, finding.severity) == ("router-blind", Severity.ERROR)
    assert "2 of 2" in finding.text
    rows = router_rows(reading.router_workers, pools)
    assert [(row.worker_id, row.router_tokens, row.engine_tokens) for row in rows] == [
        ("decode-0:30000", None, 361_000),
        ("decode-1:30000", None, 52_000),
    ]
    assert {row.difference_count for row in rows} == {None}


def test_ranks_are_taken_off_addresses_and_wrong_ranks_are_found():
    """P08: eight virtual workers are two endpoints; node-2 is asked as 0..3 and owns 4..7, so half fail."""
    reading = read(
        "router",
        workers=(CASES / "P08" / "router_workers.json").read_bytes(),
        metrics=(CASES / "P08" / "router_metrics.prom").read_bytes(),
        engine_metrics=answer(b"All backend requests failed", 500),
    )
    assert {worker.url for worker in reading.router_workers} == {"http://node-1:30000", "http://node-2:30000"}
    assert sorted(worker.dp_rank for worker in reading.router_workers) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [finding.code for finding in reading.findings] == ["router-engine-metrics-broken"]
    pools = fleet(
        node_1=("/metrics", (CASES / "P08" / "node-1.prom").read_bytes()),
        node_2=("/metrics", (CASES / "P08" / "node-2.prom").read_bytes()),
    )
    assert [pool.pool_id for pool in pools] == [f"node-{1 + rank // 4}:30000/{rank}" for rank in range(8)]
    (finding,) = router_divergence(reading.router_workers, pools, facts=reading.facts)
    assert (finding.code, finding.severity) == ("router-ranks-differ", Severity.ERROR)
    for words in ("node-2:30000 as ranks 0..3", "owns 4..7", "runs 0 requests", "1280 of 2560", "50%"):
        assert words in finding.text
    assert "node-1" not in finding.text


def test_a_worker_that_shows_one_rank_of_eight_is_not_called_misaddressed():
    """Ranks asked for and not shown are partial coverage while every rank that is shown is asked for."""
    pools = fleet(node_1=("/metrics", (CASES / "P08" / "node-1.prom").read_bytes()))
    asked = [RouterWorker(url="http://node-1:30000", dp_rank=rank) for rank in range(8)]
    assert {f.code for f in router_divergence(asked, pools)} == {"router-blind"}
    shifted = [RouterWorker(url="http://node-1:30000", dp_rank=rank) for rank in range(2, 6)]
    assert "router-ranks-differ" in {f.code for f in router_divergence(shifted, pools)}


def frame(number):
    """Return router rows and judged pools of one frame of P18."""
    reading = read("router", workers=(CASES / "P18" / f"router.{number}.json").read_bytes())
    pools = fleet(
        engine_a=("/v1/loads", (CASES / "P18" / f"a.{number}.json").read_bytes()),
        engine_b=("/v1/loads", (CASES / "P18" / f"b.{number}.json").read_bytes()),
    )
    return reading.router_workers, pools


def test_counters_that_do_not_follow_are_found_from_the_first_frame():
    """P18: router 0 against 60, 130, 204 at engine-a and 0 against 0 at engine-b; gRPC addresses match by host."""
    for number, count in ((0, 60), (1, 130), (2, 204)):
        workers, pools = frame(number)
        rows = {row.worker_id: row for row in router_rows(workers, pools)}
        assert (rows["engine-a:30000"].router_count, rows["engine-a:30000"].engine_count) == (0, count)
        assert (rows["engine-b:30000"].router_count, rows["engine-b:30000"].engine_count) == (0, 0)
        assert rows["engine-a:30000"].difference_count == -count
        (finding,) = router_divergence(workers, pools)
        assert finding.code == "router-counters-diverge"
        assert f"engine-a:30000 0 against {count}" in finding.text


def test_a_real_router_under_load_follows_its_engines():
    """smg 1.13.0 before real SGLang workers with full queues, captured: its counters are within a few requests."""
    body = (PAYLOADS / "smg" / "1.13.0-2p2d" / "smg_workers.json").read_bytes()
    embedded = {row["url"]: json.dumps(row["engine_load"]).encode() for row in json.loads(body)["workers"]}
    bodies = {f"w_{url[-5:]}": ("/v1/loads", text) for url, text in embedded.items()}
    pools = fleet(**bodies)
    urls = {f"w-{url[-5:]}:30000": url for url in embedded}
    reading = read("router", workers=body)
    rows = router_rows(reading.router_workers, pools, urls)
    assert sum(row.engine_count for row in rows) > 60
    assert all(abs(row.difference_count) <= 3 for row in rows)
    assert router_divergence(reading.router_workers, pools, urls) == ()


def test_a_counter_reset_again_and_again_stays_found():
    """A saw-tooth (right now, wrong a moment ago) keeps the finding for a while, then lets it go."""
    workers, pools = frame(1)
    right = tuple(replace(w, load_count=130.0 if "engine-a" in w.url else 0.0) for w in workers)
    watch = RouterWatch()
    assert watch.observe(0.0, right, pools) == ()
    assert [f.code for f in watch.observe(5.0, workers, pools)] == ["router-counters-diverge"]
    assert [f.code for f in watch.observe(10.0, right, pools)] == ["router-counters-diverge"]
    assert watch.observe(5.0 + HELD_S, right, pools) != ()
    assert watch.observe(5.1 + HELD_S, right, pools) == ()


def test_a_router_that_agrees_has_no_findings_in_any_order():
    """The same counts on both sides give nothing, however rows and pools are ordered."""
    workers, pools = frame(2)
    right = [replace(w, load_count=204.0 if "engine-a" in w.url else 0.0) for w in workers]
    assert router_divergence(right, pools) == router_divergence(right[::-1], pools[::-1]) == ()
    assert router_divergence([], pools) == router_divergence(workers, []) == ()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://Host:30000", "host:30000"),
        ("grpc://host:30000", "host:30000"),
        ("http://host:30000@3", "host:30000"),
        ("http://user:secret@host:30000/v1", "host:30000"),
        ("host:30000", "host:30000"),
        ("http://[::1]:30000/", "[::1]:30000"),
    ],
)
def test_addresses_compare_by_host_and_port(url, place):
    """Scheme, case, path, user name and rank suffix are no part of where a worker is."""
    assert address(url) == place


def test_grpc_on_another_port_matches_the_only_worker_of_its_host():
    """A worker that speaks HTTP and gRPC on different ports is one worker where its host has no other."""
    _, pools = frame(0)
    rows = router_rows([RouterWorker(url="grpc://engine-a:40000", load_count=1.0)], pools)
    assert rows[0].worker_id == "engine-a:30000"


def test_rows_without_an_address_are_counted_and_secrets_do_not_pass():
    """A row without a url is rejected; a user name and password in one never reach the reading."""
    listed = {"workers": [{"load": 3}, 7, {"url": "http://user:secret@h:1", "load": "9", "worker_type": ["x"]}]}
    reading = read("router", workers=json.dumps(listed).encode())
    assert reading.rejected_count == 2
    assert reading.router_workers == (RouterWorker(url="http://h:1"),)


@pytest.mark.parametrize("name", ["router", "router-loads", "router-metrics"])
@pytest.mark.parametrize(
    ("body", "status"), [(b"", 200), (b"x", 500), (b"<html>", 200), (b"{}", 200), (b"no", 403), (b"[1,2]", 404)]
)
def test_what_is_no_router_ends_in_a_named_state(name, body, status):
    """Anything else is NotUnderstood with a code; 403 is a refusal of ours."""
    dialect = ENGINES[name]
    result = dialect.understand({dialect.questions[0].path: answer(body, status)})
    assert isinstance(result, NotUnderstood)
    assert result.is_unauthorised == (status == 403)

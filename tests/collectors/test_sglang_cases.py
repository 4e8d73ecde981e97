"""
Cases from the field whose engine is SGLang: each served over real HTTP frame by frame, polled by the collector's own
poll, judged, and compared with what a reader should be told (`cases/<id>/expected.txt`).

Frames carry times relative to one start; the clock of the poll is the case's own, so nothing here waits.
"""

import asyncio
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from collectors.discovery import Target
from collectors.engines import ENGINES, identify
from collectors.poll_types import PollLimits
from collectors.transport import FleetTransport
from collectors.worker_poll import WorkerPoll
from commands.check import history_of
from scoring.model import Link, Provenance, Role, SourceState
from scoring.snapshot import JudgeSettings, fleet_from_json, judge_fleet

CASES = Path(__file__).resolve().parent.parent / "payloads" / "sglang" / "cases"
LIMITS = PollLimits(
    timeout_s=5.0, connect_timeout_s=2.0, metrics_interval_s=0.0, max_body_bytes=10**7, down_after_failures=1
)


class Served:
    """One case on loopback: a port a host, the frame chosen by the test."""

    def __init__(self, case):
        self.folder = CASES / case
        self.routes = json.loads((self.folder / "routes.json").read_text())
        self.frame = 0
        self.servers = {}
        for host, paths in self.routes["hosts"].items():
            if any((self.folder / name).exists() for answer in paths.values() for name in answer.get("frames", ["."])):
                self.servers[host] = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(paths))
                threading.Thread(target=self.servers[host].serve_forever, args=(0.02,), daemon=True).start()

    def _handler(self, paths):
        case = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer = paths.get(self.path.partition("?")[0], {"status": 404, "body": '{"detail":"Not Found"}'})
                body = answer.get("body", "").encode()
                if frames := answer.get("frames"):
                    body = (case.folder / frames[min(case.frame, len(frames) - 1)]).read_bytes()
                self.send_response(answer.get("status", 200))
                self.send_header("Content-Type", answer.get("type", "application/json"))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler

    def close(self):
        """Stop serving."""
        for server in self.servers.values():
            server.shutdown()
            server.server_close()


def run(case, *, frames=None, polls_a_frame=1, links=(), settings=None):
    """Serve a case, poll every host once or more a frame, and return the fleet judged after each frame."""
    served = Served(case)
    count = frames or max(len(a.get("frames", [1])) for p in served.routes["hosts"].values() for a in p.values())
    frame_s = served.routes["frame_s"]
    now = {"s": 0.0}

    async def poll_all():
        way = FleetTransport()
        workers = {
            host: WorkerPoll(
                Target(worker_id=host, url=f"http://127.0.0.1:{server.server_address[1]}"),
                transport=way, limits=LIMITS, token=None, engines=ENGINES, identify_engine=identify,
                clock=lambda: now["s"],
                steady_clock=lambda: now["s"],
            )
            for host, server in served.servers.items()
        }  # fmt: skip
        samples, results, fleets = {}, {}, []
        try:
            for served.frame in range(count):
                for step in range(polls_a_frame):
                    now["s"] = served.routes["t0"] + frame_s * (served.frame + step / polls_a_frame)
                    for host, worker in workers.items():
                        results[host] = await worker.poll()
                        for reading in results[host].readings:
                            samples.setdefault((host, reading.dp_rank), []).append(reading)
                states = {host: (r.poll.state, r.poll.detail) for host, r in results.items()}
                histories = [
                    replace(history_of(readings), poll_state=states[host][0], poll_detail=states[host][1])
                    for (host, _), readings in samples.items()
                ]
                fleets.append(judge_fleet(histories, now["s"], settings or JudgeSettings(), links=links))
        finally:
            await way.aclose()
        return fleets, results

    try:
        return asyncio.run(poll_all())
    finally:
        served.close()


def codes(pool):
    """Codes of a pool's findings."""
    return {finding.code for finding in pool.findings}


def by_id(fleet):
    """Pools by name."""
    return {pool.pool_id: pool for pool in fleet.pools}


def figure(pool, word):
    """Value of a word of the composition."""
    return getattr(pool.composition, f"{word}_tokens").value


def test_p04_a_negative_figure_is_unknown_and_left_out():
    """Rank 1's -512 is unknown with its raw value told; rank 0 is untouched; the fleet says 1 of 2."""
    fleets, results = run("P04", frames=1)
    host = next(iter(results))
    good, bad = by_id(fleets[-1])[f"{host}/0"], by_id(fleets[-1])[f"{host}/1"]
    assert (figure(good, "used"), figure(good, "in_flight"), figure(good, "active")) == (91520, 1520, 90000)
    assert figure(bad, "used") is None
    assert figure(bad, "available") is None
    assert figure(bad, "committed") is None
    assert any("-512" in finding.text for finding in bad.findings if finding.code == "negative-usage")
    (left_out,) = [finding for finding in fleets[-1].findings if finding.code == "pools-left-out"]
    assert left_out.text.startswith("1 of 2 pools")


def test_p05_one_bad_line_costs_one_line():
    """Seven figures are kept, four are unknown, two lines are rejected and counted, and the scrape is fresh."""
    fleets, results = run("P05", frames=1)
    pool = by_id(fleets[-1])["decode-nan/0"]
    assert (figure(pool, "usable"), figure(pool, "used"), figure(pool, "prefix"), figure(pool, "free")) == (
        262144,
        112722,
        64000,
        85422,
    )
    assert figure(pool, "active") == 112722
    assert (pool.running_count.value, pool.queue_main_count.value, pool.reading.reported_usage_ratio) == (17, 0, 0.43)
    assert (pool.rates.generated_tokens_per_s.value, pool.reading.reported_hit_ratio) == (None, None)
    assert results["decode-nan"].poll.rejected_count == 2
    assert pool.state is SourceState.FRESH


def test_p05_a_broken_metrics_page_is_not_a_dead_worker():
    """500 on /metrics while the worker answers elsewhere: not understood, and not down."""
    _, results = run("P05", frames=1)
    assert results["decode-500"].poll.state is SourceState.NOT_UNDERSTOOD
    assert results["decode-500"].readings == ()


def test_p06_an_overwritten_series_draws_no_trend():
    """One series for eight ranks: coverage 1 of 8, usage and throughput unknown, no growth and no net over frames."""
    fleets, results = run("P06")
    for fleet in fleets:
        (pool,) = fleet.pools
        assert "ranks-missing" in codes(pool)
        assert any("1 of 8 ranks" in finding.text for finding in pool.findings)
        assert (figure(pool, "used"), pool.running_count.value, pool.rates.generated_tokens_per_s.value) == (None,) * 3
        assert (pool.rates.net_tokens_per_s.value, pool.rates.growth_tokens_per_s.value) == (None, None)
    detail = results["sglang-old"].detail
    assert detail is None or "0.64" in detail.facts["last reported by some rank"]


def test_p07_workers_are_read_themselves_whatever_the_router_says():
    """Three shapes of decode answers give their use; the old aggregate's -1 enters nothing."""
    fleets, _ = run("P07", frames=1)
    pools = by_id(fleets[-1])
    first = pools["decode-0/0"]
    assert [figure(first, word) for word in ("usable", "used", "active", "in_flight", "queued")] == [
        400000,
        361000,
        352000,
        9000,
        37000,
    ]
    assert first.prealloc_ready_count.value == 6
    assert (figure(pools["decode-1/0"], "used"), figure(pools["decode-2/0"], "used")) == (52000, 20000)
    assert all(pool.reading.anomalies == () for pool in pools.values())


def test_p09_identity_is_the_rank_never_the_order_or_a_process_id():
    """Shuffled series with and without pid are eight ranks: highest 0.93 on rank 3, mean 0.425, 175 running."""
    fleets, _ = run("P09", frames=1)
    pools = fleets[-1].pools
    usage = {pool.dp_rank: pool.reading.reported_usage_ratio for pool in pools}
    assert len(pools) == 8
    assert max(usage, key=usage.get) == 3
    assert (usage[3], sum(usage.values()) / 8) == (0.93, pytest.approx(0.425))
    assert sum(pool.running_count.value for pool in pools) == 175
    retracted = [finding for pool in pools for finding in pool.findings if finding.code == "retracted-in-window"]
    assert [(finding.dp_rank, "5 requests" in finding.text) for finding in retracted] == [(3, True)]
    assert all(pool.reading.transfer_reported_bytes_per_s is None for pool in pools)


def test_p11_a_growing_cache_is_no_leak_and_a_leak_is():
    """Idle frames: prefix grows and active stays 0 without alarm; then tokens held with nothing running are named."""
    fleets, _ = run("P11", polls_a_frame=5)
    expected = [(0, 0, 262144), (0, 49152, 212992), (0, 98304, 163840)]
    for fleet, (active, prefix, free) in zip(fleets[:3], expected, strict=True):
        (pool,) = fleet.pools
        assert (figure(pool, "active"), figure(pool, "prefix"), figure(pool, "free")) == (active, prefix, free)
        assert figure(pool, "available") == 262144
        assert "held-with-nothing-running" not in codes(pool)
        assert figure(pool, "unattributed") == 0
    (last,) = fleets[4].pools
    assert figure(last, "used") == 6144
    assert (figure(last, "unattributed"), figure(last, "active")) == (6144, 0)
    assert figure(last, "available") == 262144 - 6144
    (leak,) = [finding for finding in last.findings if finding.code == "held-with-nothing-running"]
    assert "128 tokens per request" in leak.text
    assert "2000 more" in leak.text


def test_p12_slots_bind_and_pools_keep_their_units():
    """KV 0.35 in tokens, states 32 of 40 in slots; with all 8 requests running and a queue, slots bind, not KV."""
    fleets, _ = run("P12")
    for fleet, queue in zip(fleets[2:4], (3, 6), strict=True):
        (pool,) = fleet.pools
        assert (figure(pool, "used"), figure(pool, "prefix"), figure(pool, "free")) == (210000, 60000, 330000)
        assert (pool.reading.state_used_count, pool.reading.state_slot_count) == (32, 40)
        assert (pool.running_count.value, pool.max_running_count.value, pool.waiting_count.value) == (8, 8, queue)
        (bind,) = [finding for finding in pool.findings if finding.code == "slots-bind"]
        for words in ("8 of 8", f"{queue} wait", "390000 tokens", "8 of 40 state slots"):
            assert words in bind.text
    (idle,) = fleets[4].pools
    assert (idle.reading.reported_usage_ratio, idle.reading.state_usage_ratio) == (0.02, 0.3)
    assert "usage-leaves-out-state-pool" in codes(idle)
    assert "slots-bind" not in codes(idle)


def test_p14_a_prefill_pool_that_never_shakes_hands_takes_no_work():
    """The empty newcomer is not serving, its speed unknown; the fuller old worker serves at its life's speed."""
    fleets, _ = run("P14")
    pools = by_id(fleets[-1])
    new, old = pools["prefill-new/0"], pools["prefill-old/0"]
    assert not new.is_serving
    assert "handshake-not-completing" in codes(new)
    assert new.rates.bootstrap_net_per_s.value == pytest.approx(4.6)
    assert new.rates.prefill_duty_ratio.value == pytest.approx(0.001, abs=2e-4)
    assert new.rates.prefill_tokens_per_s.value is None
    assert (figure(new, "used"), figure(new, "usable"), new.running_count.value) == (64, 640000, None)
    assert old.is_serving
    assert old.rates.prefill_tokens_per_s.value == pytest.approx(15000)
    assert old.waiting_uncached_tokens.value / old.rates.prefill_tokens_per_s.value == pytest.approx(1.4)
    assert (old.queue_main_count.value, old.queue_bootstrap_count.value, old.queue_inflight_count.value) == (4, 2, 9)


def test_p15_many_small_transfers_are_overhead_not_a_full_link():
    """170 transfers drain in about 71 s at the rate the counters prove; the line rate plays no part."""
    link = json.loads((CASES / "P15" / "link.json").read_text())["line_rate_bytes_per_s"]
    fleets, _ = run("P15", links=[Link(source="*", target="*", bandwidth_bytes_per_s=link)])
    pools = fleets[-1].pools
    assert len(pools) == 4
    for pool in pools:
        assert figure(pool, "used") / figure(pool, "usable") == pytest.approx(0.07)
        assert pool.rates.transfers_per_s.value == pytest.approx(2.4)
        assert pool.rates.transfer_bytes_per_s.value == pytest.approx(5.3 * 2**20, rel=0.01)
        assert pool.rates.transfer_drain_s.value == pytest.approx(71, abs=1)
        assert "transfer-overhead" in codes(pool)
        assert "handshake-not-completing" not in codes(pool)
        assert pool.is_serving
        assert pool.composition.in_flight_tokens.provenance is Provenance.ESTIMATED
    (rank0,) = [pool for pool in pools if pool.dp_rank == 0]
    assert figure(rank0, "in_flight") == pytest.approx(170 * 34)


def test_p16_transfer_gauges_are_shown_and_never_used():
    """Both workers moved 18.87 GB/s by their volume counter; the gauges of 112.4 and 0.21 GB/s are marked."""
    fleets, _ = run("P16", links=[Link(source="*", target="*", bandwidth_bytes_per_s=50e9)])
    pools = by_id(fleets[-1])
    for pool in pools.values():
        assert pool.rates.transfer_bytes_per_s.value == pytest.approx(18.87e9, rel=0.001)
        assert pool.rates.transfer_bytes_per_s.provenance is Provenance.DERIVED
    chunked, slow = pools["prefill-chunked/0"], pools["prefill-slowclock/0"]
    assert chunked.reading.transfer_reported_bytes_per_s == pytest.approx(112.4e9)
    assert "transfer-gauge-above-line-rate" in codes(chunked)
    assert slow.reading.transfer_reported_bytes_per_s == pytest.approx(0.21e9)
    assert "transfer-gauge-below-volume" in codes(slow)


def test_p18_the_engines_say_what_the_router_does_not():
    """Engine A holds 60, 130, 204 requests while engine B holds none; A's room shrinks to 35000 tokens."""
    fleets, _ = run("P18")
    held = [
        sum(
            (pool.running_count.value or 0) + pool.waiting_count.value
            for pool in fleet.pools
            if pool.worker_id == "engine-a"
        )
        for fleet in fleets
    ]
    assert held == [60, 130, 204]
    last = by_id(fleets[-1])
    assert figure(last["engine-a/0"], "available") == 35000
    assert figure(last["engine-b/0"], "available") == 500000
    assert (last["engine-b/0"].running_count.value, last["engine-b/0"].waiting_count.value) == (0, 0)


def test_p19_four_pools_by_http_and_by_file():
    """The same four decode pools over HTTP and from the hand-written snapshot have the same use."""
    fleets, _ = run("P19", frames=1)
    by_http = [figure(pool, "used") for pool in fleets[-1].pools]
    by_file = fleet_from_json((CASES / "P19" / "snapshot.json").read_bytes())
    assert by_http == [figure(pool, "used") for pool in by_file.pools] == [120000, 104000, 118000, 117000]
    assert [pool.pool_id for pool in by_file.pools] == ["d0", "d1", "d2", "d3"]
    assert sum(figure(pool, "committed") for pool in by_file.pools) + 16 * 4608 == 532728
    assert all(pool.role is Role.DECODE for pool in fleets[-1].pools)


def test_p20_long_prompts_fill_kv_before_counts_differ():
    """Four engines with 9, 5, 5, 4 requests: the first is 0.97 full with 39 s of prompts waiting."""
    fleets, _ = run("P20", frames=1)
    pools = list(by_id(fleets[-1]).values())
    assert [pool.running_count.value + pool.waiting_count.value for pool in pools] == [9, 5, 5, 4]
    assert [figure(pool, "used") / figure(pool, "usable") for pool in pools] == [
        pytest.approx(x) for x in (0.97, 0.22, 0.24, 0.205)
    ]
    full = pools[0]
    assert figure(full, "available") == 30000
    assert full.waiting_uncached_tokens.value / full.rates.prefill_tokens_per_s.value == pytest.approx(39.0)
    assert figure(full, "queued") == 390000

"""
The recorded cluster: two prefill and two decode SGLang 0.5.23 workers under load, 764 answers.

What an operator must be told about it: decode is committed full while usage says about half, decode room is what
holds prefill up, and a request that queues on both sides is one request.
"""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from commands.check import history_of
from scoring.capacity import WORDS, compose, compose_history
from scoring.evidence import committed_ratio
from scoring.model import Provenance, Role, SourceState
from scoring.rates import pool_rates
from scoring.snapshot import judge_fleet, waiting_once

RECORDING = Path(__file__).resolve().parent.parent / "payloads/sglang/0.5.23-real-2p2d/v1_loads_timeseries.jsonl.gz"


@pytest.fixture(scope="module")
def readings():
    """Worker -> its readings, oldest first, understood from the recorded bodies."""
    found = defaultdict(list)
    with gzip.open(RECORDING, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if not row["url"].endswith("/v1/loads"):
                continue  # The router's own table.
            body = json.dumps(row["body"]).encode()
            answers = {
                "/v1/loads": Answer(status=200, content_type="application/json", body=body, received_at_s=row["t"])
            }
            assert ENGINES["sglang"].recognises(answers)
            reading = ENGINES["sglang"].understand(answers)
            assert reading.findings == ()
            worker = row["url"].split(":")[2].partition("/")[0]
            found[worker] += [replace(pool, worker_id=worker, received_at_s=row["t"]) for pool in reading.pools]
    return dict(found)


def fleet_at(readings, at_s, **more):
    """The fleet judged at a moment of the recording."""
    histories = [history_of([r for r in rows if r.received_at_s <= at_s]) for rows in readings.values()]
    return judge_fleet(histories, at_s, **more)


@pytest.fixture(scope="module")
def start_s(readings):
    """When all four have answered once."""
    return max(rows[0].received_at_s for rows in readings.values())


def test_a_router_s_table_is_no_worker():
    """The router's table of the same four workers looks like their answers and is not taken for one worker's."""
    with gzip.open(RECORDING, "rt") as lines:
        table = next(row for line in lines if "get_loads" in (row := json.loads(line))["url"])
    body = json.dumps(table["body"]).encode()
    answer = Answer(status=200, content_type="application/json", body=body, received_at_s=table["t"])
    assert not ENGINES["sglang"].recognises({"/v1/loads": answer})


def test_every_answer_is_understood(readings):
    """764 answers give 764 readings of four pools: two prefill, two decode, 12000 tokens each."""
    assert sum(map(len, readings.values())) == 764
    roles = {worker: {reading.role for reading in rows} for worker, rows in readings.items()}
    assert sorted(next(iter(r)).value for r in roles.values()) == ["decode", "decode", "prefill", "prefill"]
    assert {reading.usable_tokens for rows in readings.values() for reading in rows} == {12000}


def test_usable_is_the_sum_of_its_parts_at_every_answer(readings):
    """active + in flight + free or prefix + unattributed = usable, available = usable - used, nothing negative."""
    for rows in readings.values():
        for reading in rows:
            c = compose(reading)
            parts = [c.unattributed_tokens.value, c.free_or_prefix_tokens.value]
            for part in (c.active_tokens, c.in_flight_tokens):
                # Bounds stand with their lower end, the unknown with nothing: what they leave is unattributed.
                parts.append(part.value if part.value is not None else part.low or 0.0)
            assert all(part is not None and part >= 0 for part in parts), (reading, parts)
            assert sum(parts) == pytest.approx(c.usable_tokens.value)
            assert c.available_tokens.value == c.usable_tokens.value - c.used_tokens.value
            for part in (c.active_tokens, c.in_flight_tokens):
                if part.low is not None:
                    assert 0 <= part.low <= part.high <= c.used_tokens.value


def test_a_history_and_its_readings_agree_at_every_sample(readings):
    """compose_history says at every sample what compose says of that reading: one formula, not two."""
    for rows in readings.values():
        columns = compose_history(history_of(rows))
        assert set(columns) == set(WORDS)
        for index, reading in enumerate(rows):
            composition = compose(reading)
            for word in WORDS:
                value = getattr(composition, word).value
                got = columns[word][index]
                assert np.isnan(got) if value is None else got == value, (word, index)


def test_decode_is_full_where_usage_says_half(readings, start_s):
    """Whenever many requests queue for decode room, committed is above 0.9 while usage lies near a half."""
    seen = 0
    for second in range(30, 75, 3):
        fleet = fleet_at(readings, start_s + second)
        decode = [pool for pool in fleet.pools if pool.role is Role.DECODE]
        for pool in decode:
            if (pool.waiting_count.value or 0) >= 15:
                seen += 1
                usage = pool.composition.used_tokens.value / pool.composition.usable_tokens.value
                assert 0.4 < usage < 0.62
                assert committed_ratio(pool) > 0.9
                assert pool.composition.committed_tokens.provenance is Provenance.ESTIMATED
    assert seen >= 10


def test_decode_room_is_named_as_what_holds_prefill_up(readings, start_s):
    """Under load the fleet finding says so with its numbers; prefill stays serving; in calm there is no finding."""
    busy = fleet_at(readings, start_s + 45)
    (finding,) = busy.findings
    assert finding.code == "decode-room-holds-prefill"
    prefill = [pool for pool in busy.pools if pool.role is Role.PREFILL]
    assert all(pool.composition.used_tokens.value < 0.2 * 12000 for pool in prefill)
    assert sum(pool.queue_bootstrap_count.value for pool in prefill) >= 30
    assert all(pool.is_serving for pool in busy.pools)
    assert fleet_at(readings, start_s + 100).findings == ()


def test_a_request_that_queues_on_both_sides_is_one(readings, start_s):
    """The fleet's waiting requests are near one side's count, never the sum of both."""
    fleet = fleet_at(readings, start_s + 45)
    prefill, decode = (
        sum(pool.waiting_count.value for pool in fleet.pools if pool.role is role)
        for role in (Role.PREFILL, Role.DECODE)
    )
    total = waiting_once(fleet.pools).value
    assert max(prefill, decode) <= total <= max(prefill, decode) + 5
    assert prefill > 30
    assert decode > 30


def test_reserve_per_request_from_server_info_is_derived(readings):
    """With the reserve read off, committed is derived and the same; a lease adds exactly its tokens."""
    busy = max(readings["32002"], key=lambda reading: reading.running_count or 0)
    guessed, known = compose(busy), compose(replace(busy, reserved_per_request_tokens=512.0))
    assert guessed.committed_tokens.value == known.committed_tokens.value
    assert known.committed_tokens.provenance is Provenance.DERIVED
    with_lease = compose(busy, reserved_lease_tokens=700.0)
    assert with_lease.committed_tokens.value == guessed.committed_tokens.value + 700.0


def test_what_a_decode_step_reads_is_the_engine_s_own_sum():
    """The lengths of a decode worker's batch are read off; a prefill worker has no batch, and its 0 is not one."""
    said = {}
    with gzip.open(RECORDING, "rt") as lines:
        bodies = {row["url"].split(":")[2].partition("/")[0]: row["body"] for row in map(json.loads, lines)}
    for port in ("32001", "32002", "32004"):
        metrics = (RECORDING.parent / f"metrics_{port}.prom").read_bytes()
        answers = {
            "/v1/loads": Answer(
                status=200, content_type="application/json", body=json.dumps(bodies[port]).encode(), received_at_s=1.0
            ),
            "/metrics": Answer(status=200, content_type="text/plain", body=metrics, received_at_s=1.0),
        }
        said[port] = ENGINES["sglang"].understand(answers).pools[0].running_tokens
    assert said == {"32001": None, "32002": 5028.0, "32004": 6466.0}


def test_step_time_and_batch_follow_from_the_moments(readings, start_s):
    """Step time and mean batch of a window are the differences of decode_moments, near the batch the pool reports."""
    rows = [reading for reading in readings["32002"] if reading.received_at_s <= start_s + 60]
    rates = pool_rates(history_of(rows), start_s + 60, 20.0)
    assert 0.02 < rates.step_time_s.value < 0.1
    running = np.mean([reading.running_count for reading in rows if reading.received_at_s > start_s + 40])
    assert rates.mean_batch_count.value == pytest.approx(running, rel=0.2)
    assert rates.growth_tokens_per_s.value - rates.release_tokens_per_s.value == pytest.approx(
        rates.net_tokens_per_s.value
    )


def test_the_clock_offset_is_found(readings, start_s):
    """All clocks were one: every pool is fresh or late throughout, never aged by a made-up offset."""
    for second in range(10, 100, 10):
        for pool in fleet_at(readings, start_s + second).pools:
            assert pool.state in (SourceState.FRESH, SourceState.LATE)
            assert not any(finding.code == "clock-offset" for finding in pool.findings)


@pytest.mark.parametrize("skew_s", [-3600.0, -7.5, 12.0, 86400.0])
def test_another_clock_changes_no_age(readings, start_s, skew_s):
    """Shifting the engine's clock by any amount changes no age and no state, and the offset is told."""
    at_s = start_s + 50
    skewed = {
        worker: [
            replace(r, reported_at_s=r.reported_at_s + skew_s, answered_at_s=r.answered_at_s + skew_s) for r in rows
        ]
        for worker, rows in readings.items()
    }
    for pool, other in zip(fleet_at(readings, at_s).pools, fleet_at(skewed, at_s).pools, strict=True):
        assert other.age_s == pytest.approx(pool.age_s, abs=1e-3)
        assert other.state is pool.state
        assert "clock-offset" in {finding.code for finding in other.findings}

"""Traffic rebuilt from our own store: what was counted comes out again, whatever the order of pools and restarts."""

import pytest

from collectors.store import ExportRequest, open_store
from collectors.store.batch import CycleBatch
from scoring.model import PoolReading, Role
from simulation.trace import TraceError, read_trace
from simulation.trace_formats import FORMATS

START_S = 1_780_000_000.0


def exported(cycles) -> list[str]:
    """Return the CSV lines a real store exports of these cycles of readings."""
    with open_store(":memory:") as store:
        for second, readings in enumerate(cycles):
            store.append_cycle(CycleBatch(cycle_at_s=START_S + second, duration_s=0.1, readings=readings))
        request = ExportRequest(start_s=START_S - 10, end_s=START_S + 10_000, format="csv")
        return store.export_bytes(request).decode().splitlines()


def pool(worker: str, role: Role, second: int, **counters: float) -> PoolReading:
    """Return one reading."""
    return PoolReading(worker_id=worker, role=role, received_at_s=START_S + second, **counters)


def test_requests_and_tokens_of_a_pair_come_out_once() -> None:
    """2 requests a second of 500 + 50 tokens for a minute: as many requests and tokens, none counted on both sides."""
    lines = exported(
        [
            pool("p0", Role.PREFILL, k, finished_total=2.0 * k, prompt_tokens_total=1000.0 * k),
            pool("d0", Role.DECODE, k, finished_total=2.0 * k, generated_tokens_total=100.0 * k),
        ]
        for k in range(61)
    )
    trace = read_trace(lines, FORMATS)
    assert trace.report.format == "kvscope-readings"
    assert len(trace) == 120
    assert trace.traffic.prompt_tokens.sum() == pytest.approx(60_000, rel=0.01)
    assert trace.traffic.output_tokens.sum() == pytest.approx(6_000, rel=0.01)
    assert 50 < trace.report.span_s <= 70
    assert trace.report.reuse_known_count == 0
    assert any("rebuilt from counters" in note for note in trace.report.notes)


def test_a_restart_counts_from_zero_and_is_told() -> None:
    """A counter that falls adds what it shows, not a negative number."""
    totals = [0.0, 5.0, 9.0, 2.0, 4.0]
    lines = exported(
        [
            pool(
                "u0",
                Role.UNIFIED,
                k,
                finished_total=total,
                prompt_tokens_total=100 * total,
                generated_tokens_total=10 * total,
            )
        ]
        for k, total in enumerate(totals)
    )
    trace = read_trace(lines, FORMATS)
    assert len(trace) == 13
    assert any("restarted" in note for note in trace.report.notes)


def test_readings_without_finished_requests_say_so() -> None:
    """Nothing finished, or no token counters: an error with what to do, not an empty trace."""
    still = exported([pool("u0", Role.UNIFIED, k, finished_total=3.0)] for k in range(5))
    with pytest.raises(TraceError, match="no request finished"):
        read_trace(still, FORMATS)
    blind = exported([pool("u0", Role.UNIFIED, k, finished_total=3.0 * k)] for k in range(5))
    with pytest.raises(TraceError, match="lengths are unknown"):
        read_trace(blind, FORMATS)

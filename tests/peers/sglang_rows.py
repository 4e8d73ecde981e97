"""What must hold between a pool of KVScope's and the row of `/v1/loads` that it was read from."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from scoring.model import PoolSnapshot, Provenance, Role

Row = Mapping[str, Any]


def _moment(row: Row, index: int) -> float:
    return float((row["decode_moments"] or [0.0] * 6)[index])


COUNTERS: Mapping[str, Callable[[Row], float]] = {
    "prefill_uncached_tokens_total": lambda row: row["total_prefill_uncached_tokens"],
    "prefill_busy_s_total": lambda row: row["total_prefill_busy_us"] / 1e6,
    "decode_steps_total": lambda row: _moment(row, 0),
    "decode_batch_sum_total": lambda row: _moment(row, 1),
    "decode_step_s_total": lambda row: _moment(row, 2) / 1e6,
    "decode_generated_tokens_total": lambda row: _moment(row, 5),
}
"""Field of a reading -> the same figure read off a row by hand."""

QUEUES: Mapping[str, str] = {
    "queue_bootstrap_count": "prefill_bootstrap_queue_reqs",
    "queue_inflight_count": "prefill_inflight_queue_reqs",
    "queue_prealloc_count": "decode_prealloc_queue_reqs",
    "queue_transfer_count": "decode_transfer_queue_reqs",
    "queue_retracted_count": "decode_retracted_queue_reqs",
}


def assert_is_row(pool: PoolSnapshot, row: Row) -> None:
    """Assert that a pool's figures are the row's, number for number."""
    parts, said = pool.composition, pool.reading
    assert parts.usable_tokens.value == row["max_total_num_tokens"]
    assert parts.used_tokens.value == row["num_used_tokens"]
    assert parts.used_tokens.provenance is Provenance.MEASURED
    assert parts.available_tokens.value == row["max_total_num_tokens"] - row["num_used_tokens"]
    if pool.role is not Role.PREFILL:
        assert pool.running_count.value == row["num_running_reqs"]
    assert pool.waiting_count.value == row["num_waiting_reqs"]
    assert pool.queue_main_count.value == row["queues"]["waiting"]
    assert pool.waiting_uncached_tokens.value == row["num_waiting_uncached_tokens"]
    assert said.pending_total_tokens == row["num_total_tokens"]
    backlog = row["num_total_tokens"] - row["num_used_tokens"]
    assert parts.queued_tokens.value == max(backlog, row["num_waiting_uncached_tokens"])
    assert said.reported_at_s == row["timestamp"]
    for name, read in COUNTERS.items():
        ours = getattr(said, name)
        if ours is None:
            assert row["decode_moments"] is None
            assert name.startswith("decode_")
        else:
            assert ours == pytest.approx(read(row), rel=1e-12)
    if pool.role is Role.UNIFIED:
        return
    for name, source in QUEUES.items():
        if getattr(said, name) is not None:
            assert getattr(said, name) == row["disaggregation"][source], name
    mine = {Role.PREFILL: ("bootstrap", "inflight"), Role.DECODE: ("prealloc", "transfer", "retracted")}[pool.role]
    assert all(getattr(said, f"queue_{word}_count") is not None for word in mine)

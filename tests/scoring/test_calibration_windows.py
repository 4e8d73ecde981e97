"""Readings to rows: counters in, means out; restarts, other models, gaps and skewed clocks bend nothing."""

from dataclasses import replace

import numpy as np
import pytest

from scoring.calibration_windows import consecutive_windows, kind_of, pair_windows, readings_of
from scoring.model import PoolHistory, PoolReading, Role, signal_names

BASE = PoolReading(
    worker_id="d-1",
    engine="sglang",
    version="0.5.23",
    model="org/Model-8B",
    role=Role.DECODE,
    received_at_s=100.0,
    reported_at_s=99.9,
    usable_tokens=100_000.0,
    block_size_tokens=1.0,
    used_tokens=20_000.0,
    arrived_tokens=18_000.0,
    decode_steps_total=1000.0,
    decode_batch_sum_total=10_000.0,
    decode_step_s_total=20.0,
    decode_batch_squared_total=100_000.0,
    prefill_uncached_tokens_total=0.0,
)


def _after(reading: PoolReading = BASE, seconds: float = 1.0, steps: float = 50.0, batch: float = 10.0) -> PoolReading:
    return replace(
        reading,
        received_at_s=reading.received_at_s + seconds,
        reported_at_s=(reading.reported_at_s or 0.0) + seconds,
        arrived_tokens=reading.arrived_tokens + steps * batch,
        used_tokens=reading.used_tokens + steps * batch,
        decode_steps_total=reading.decode_steps_total + steps,
        decode_batch_sum_total=reading.decode_batch_sum_total + steps * batch,
        decode_step_s_total=reading.decode_step_s_total + steps * 0.02,
        decode_batch_squared_total=reading.decode_batch_squared_total + steps * batch * batch,
    )


def test_means_are_counter_differences_and_kv_is_the_middle_of_the_gauge() -> None:
    """Batch, step and KV of a stretch in which nothing came or went are exact, with next to no doubt."""
    window = pair_windows(BASE, _after()).decode
    assert (window.batch_count, window.step_s) == (10.0, pytest.approx(0.02))
    assert window.kv_tokens == pytest.approx(18_250.0)
    assert window.kv_doubt_tokens == pytest.approx(np.sqrt(10 / 12), rel=1e-6)


def test_what_came_or_went_is_doubt() -> None:
    """A jump of the gauge that steps do not explain raises the doubt by its uniform spread."""
    after = replace(_after(), arrived_tokens=18_500.0 - 6_000.0)
    window = pair_windows(BASE, after).decode
    assert window.kv_doubt_tokens == pytest.approx(6_000 / np.sqrt(12), rel=1e-3)


def test_half_a_block_a_sequence_is_taken_off() -> None:
    """Gauges count whole blocks, steps read what is in them."""
    plain = pair_windows(BASE, _after()).decode
    paged = pair_windows(replace(BASE, block_size_tokens=64.0), replace(_after(), block_size_tokens=64.0)).decode
    assert plain.kv_tokens - paged.kv_tokens == pytest.approx(10.0 * 31.5)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"decode_steps_total": 3.0, "decode_step_s_total": 0.1}, "restart"),
        ({"model": "org/Other"}, "other-model"),
        ({"version": "0.5.24"}, "other-model"),
        ({"usable_tokens": 50_000.0}, "other-model"),
        ({"reported_at_s": 99.9}, "same-figures"),
        ({"received_at_s": 200.0}, "gap"),
        ({"received_at_s": 99.0}, "gap"),
    ],
)
def test_nothing_is_taken_across_a_break(change: dict, word: str) -> None:
    """A restart, another model at the address, a hole in polling, old figures: no row, and the reason in a word."""
    found = pair_windows(BASE, replace(_after(), **change))
    assert (found.decode, found.prefill, found.transfer, found.skipped) == (None, None, None, word)


def test_clock_skew_changes_no_row() -> None:
    """An engine clock an hour off, or set back between readings, gives the very same row."""
    skewed = pair_windows(replace(BASE, reported_at_s=3700.0), replace(_after(), reported_at_s=50.0))
    assert skewed == pair_windows(BASE, _after())


def test_unknown_counters_give_no_row() -> None:
    """A source without moments and gaps gives no decode row, and no zero either."""
    bare = PoolReading(worker_id="x", role=Role.DECODE, received_at_s=1.0, used_tokens=5.0)
    found = pair_windows(bare, replace(bare, received_at_s=2.0))
    assert found.decode is None
    assert found.traffic.finished_count is None


def test_retracted_sequences_make_the_kv_gauge_unusable() -> None:
    """While any sequence waits to be computed again, the decode row is left out."""
    held = replace(_after(), queue_retracted_count=1.0)
    assert pair_windows(BASE, held).decode is None


def test_what_the_batch_adds_up_to_is_what_a_step_reads() -> None:
    """
    On a pool that also computes prompts, the engine's sum over its batch stands over what the pool holds, whatever
    that is; the sum is 0 to 40 steps old, so half of them are added and their spread is doubt.
    """
    before = replace(BASE, role=Role.UNIFIED, running_tokens=30_000.0)
    after = replace(_after(before), running_tokens=30_500.0)
    window = pair_windows(before, after).decode
    assert window.is_kv_read
    assert window.kv_tokens == pytest.approx(30_250.0 + 20 * 10.0)
    assert window.kv_doubt_tokens == pytest.approx(40 * 10.0 / np.sqrt(12))
    held = (
        replace(before, used_tokens=1.0, block_size_tokens=64.0),
        replace(after, used_tokens=90_000.0, block_size_tokens=64.0),
    )
    assert pair_windows(*held).decode == window
    assert not pair_windows(replace(before, running_tokens=None), after).decode.is_kv_read


def test_a_sum_that_was_not_written_down_anew_is_not_taken() -> None:
    """The engine leaves its last sum standing when a batch has gone: the same figure twice says nothing of this one."""
    before = replace(BASE, role=Role.UNIFIED, running_tokens=30_000.0)
    window = pair_windows(before, _after(before)).decode
    assert (window.is_kv_read, window.kv_tokens) == (False, pytest.approx(20_250.0))


def test_gaps_between_tokens_stand_in_where_there_are_no_moments() -> None:
    """Engines with an inter-token histogram alone: seconds a gap is the step, the running gauge the batch."""
    before = PoolReading(
        worker_id="v",
        role=Role.UNIFIED,
        engine="vllm",
        received_at_s=1.0,
        used_tokens=10_000.0,
        running_count=8.0,
        itl_s_total=10.0,
        itl_count_total=500.0,
    )
    after = replace(
        before, received_at_s=2.0, itl_s_total=18.0, itl_count_total=900.0, running_count=8.0, used_tokens=10_400.0
    )
    window = pair_windows(before, after).decode
    assert (window.batch_count, window.step_count, window.step_s) == (8.0, 50.0, pytest.approx(0.02))


def test_prompts_and_transfers_alone_are_told_from_others() -> None:
    """A prompt is whole when nothing waited at either end; a hand-over alone when none was under way."""
    before = PoolReading(
        worker_id="p",
        role=Role.PREFILL,
        received_at_s=1.0,
        waiting_uncached_tokens=0.0,
        queue_inflight_count=0.0,
        prefill_uncached_tokens_total=0.0,
        prefill_busy_s_total=0.0,
        transfers_total=4.0,
        transfer_bytes_total=1e9,
        transfer_latency_s_total=0.4,
    )
    after = replace(
        before,
        received_at_s=2.0,
        prefill_uncached_tokens_total=500.0,
        prefill_busy_s_total=0.05,
        transfers_total=5.0,
        transfer_bytes_total=1.5e9,
        transfer_latency_s_total=0.45,
    )
    found = pair_windows(before, after)
    assert (found.prefill.is_whole, found.prefill.request_count) == (True, 1.0)
    assert (found.transfer.is_alone, found.transfer.latency_s) == (True, pytest.approx(0.05))
    busy = pair_windows(before, replace(after, waiting_uncached_tokens=100.0, queue_inflight_count=1.0))
    assert (busy.prefill.is_whole, busy.transfer.is_alone) == (False, False)


def test_a_history_gives_the_rows_its_readings_gave() -> None:
    """Columns of a store or of memory, read back, make the same rows as the readings themselves."""
    readings = [BASE]
    for _ in range(5):
        readings.append(_after(readings[-1]))
    columns = {
        name: np.array([np.nan if getattr(r, name) is None else getattr(r, name) for r in readings])
        for name in signal_names()
    }
    history = PoolHistory(last=readings[-1], at_s=np.array([r.received_at_s for r in readings]), columns=columns)
    assert consecutive_windows(readings_of(history)) == consecutive_windows(readings)


def test_a_kind_has_a_stable_name() -> None:
    """Kebab-case, the same for metrics and loads dialects of one engine."""
    metrics = replace(BASE, engine="sglang-metrics", accelerator_count=2.0)
    assert kind_of(metrics) == kind_of(replace(BASE, accelerator_count=2.0))
    assert kind_of(metrics).name == "model-8b-decode-sglang-0.5.23-x2"
    assert kind_of(metrics, {"accelerator": "H100 64GB"}).name.endswith("x2-h100-64gb")

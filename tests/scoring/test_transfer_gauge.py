"""The engine's transfer gauge beside what its volume counter proves: when they contradict each other, and when not."""

import pytest

from commands.check import history_of
from scoring.model import PoolReading, PoolSnapshot, Role
from scoring.snapshot import judge_fleet

BYTES_EACH = 600_000.0
CODE = "transfer-gauge-below-volume"


def prefill(
    gauges_bytes_per_s: list[float], inflight: list[float], bytes_per_s: float, *, start_s: float = 1000.0
) -> PoolSnapshot:
    """Return a prefill pool polled each second that moved `bytes_per_s` by its counter."""
    readings = [
        PoolReading(
            worker_id="p",
            role=Role.PREFILL,
            engine="sglang",
            received_at_s=start_s + index,
            reported_at_s=start_s + index,
            answered_at_s=start_s + index,
            usable_tokens=12000.0,
            used_tokens=500.0,
            waiting_count=3.0,
            queue_bootstrap_count=3.0,
            queue_inflight_count=travelling,
            transfer_reported_bytes_per_s=gauge,
            transfer_bytes_total=bytes_per_s * index,
            transfers_total=bytes_per_s * index / BYTES_EACH,
            prefill_uncached_tokens_total=100.0 * index,
            prefill_busy_s_total=0.1 * index,
        )
        for index, (gauge, travelling) in enumerate(zip(gauges_bytes_per_s, inflight, strict=True))
    ]
    (pool,) = judge_fleet([history_of(readings)], start_s + len(readings) - 1).pools
    return pool


def found(pool: PoolSnapshot) -> list[str]:
    return [finding.text for finding in pool.findings if finding.code == CODE]


def test_one_slow_transfer_after_faster_ones_contradicts_nothing():
    """
    Seen on a real 2P2D cluster: 592 kB/s moved over the window, the last transfer alone ran at 134 kB/s.

    The gauge is one transfer's speed, the volume many transfers': a slow last one proves no wrong clock.
    """
    gauges = [3_552_288.0, 808_674.0, 78_828.0, 133_684.0]
    assert not found(prefill(gauges, [1.0, 4.0, 4.0, 0.0], 592_350.0))


def test_transfers_that_ran_side_by_side_earlier_count_together():
    """Four in flight at 200 kB/s make 800 kB/s, also when the newest poll sees none of them any more."""
    assert not found(prefill([200_000.0] * 6, [4.0, 4.0, 4.0, 1.0, 0.0, 0.0], 700_000.0))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5])
def test_a_gauge_that_no_number_of_transfers_makes_up_is_marked(scale: float):
    """A gauge far below the volume at every poll is marked at every size of link, with digits that can be read."""
    (text,) = found(prefill([2_000.0 * scale] * 6, [1.0] * 6, 600_000.0 * scale))
    assert "0.00" not in text
    digits = {1.0: ("2.0 kB/s", "0.60 MB/s"), 1e3: ("2.0 MB/s", "0.60 GB/s"), 1e5: ("0.20 GB/s", "60.0 GB/s")}
    for part in digits[scale]:
        assert part in text


def test_one_poll_alone_proves_nothing():
    """Without a difference of the counter there is no volume to compare with."""
    assert not found(prefill([1.0], [1.0], 1e9))

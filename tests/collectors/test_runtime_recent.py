"""Recent histories in memory: the newest samples in order, views that never change, bounded memory."""

import numpy as np
import pytest

from collectors.recent import MIN_SAMPLES, RecentPool, samples_that_fit
from scoring.model import PoolReading, signal_names


def reading(index: int, **signals: float | None) -> PoolReading:
    return PoolReading(worker_id="w", received_at_s=1000.0 + index, **signals)  # type: ignore[arg-type]


def test_the_newest_samples_stay_in_order_whatever_was_dropped() -> None:
    """After any number of samples the view holds the newest ones, ascending, each with its own values."""
    pool = RecentPool(100)
    for index in range(1000):
        pool.append(reading(index, used_tokens=float(index), free_tokens=None if index % 3 else 1.0))
        view = pool.view()
        assert view is not None
        first = max(0, index + 1 - 100)
        assert len(view.at_s) == index + 1 - first
        assert view.at_s[0] == 1000.0 + first
        assert view.columns["used_tokens"][-1] == index
    assert np.array_equal(view.columns["used_tokens"], np.arange(900.0, 1000.0))
    assert np.array_equal(np.isnan(view.columns["free_tokens"]), np.arange(900, 1000) % 3 != 0)


def test_every_signal_is_a_column_and_what_was_never_seen_is_unknown() -> None:
    """Columns are complete; a signal that appears later is unknown before."""
    pool = RecentPool(100)
    pool.append(reading(0, used_tokens=1.0))
    pool.append(reading(1, used_tokens=2.0, prefix_tokens=5.0))
    view = pool.view()
    assert view is not None
    assert set(view.columns) == set(signal_names())
    assert np.isnan(view.columns["prefix_tokens"][0])
    assert view.columns["prefix_tokens"][1] == 5.0
    assert np.isnan(view.columns["queue_s_total"]).all()
    assert {len(column) for column in view.columns.values()} == {2}


def test_a_view_never_changes_and_cannot_be_changed() -> None:
    """What a page holds stays as it was through later samples, new signals and moves to a new array."""
    pool = RecentPool(80)
    for index in range(70):
        pool.append(reading(index, used_tokens=float(index)))
    view = pool.view()
    assert view is not None
    before = {name: column.copy() for name, column in view.columns.items()}
    at_s = view.at_s.copy()
    for index in range(70, 1000):
        pool.append(reading(index, used_tokens=-1.0, running_count=1.0 if index > 500 else None))
    assert np.array_equal(view.at_s, at_s)
    assert all(np.array_equal(view.columns[name], column, equal_nan=True) for name, column in before.items())
    with pytest.raises(ValueError):
        view.columns["used_tokens"][0] = 1.0


def test_a_reading_that_is_not_newer_is_left_out() -> None:
    """An answer that comes twice, or after a newer one, never makes time run backwards."""
    pool = RecentPool(100)
    for index in (5, 5, 3, 6):
        pool.append(reading(index, used_tokens=float(index)))
    view = pool.view()
    assert view is not None
    assert view.at_s.tolist() == [1005.0, 1006.0]


def test_a_clock_set_back_begins_the_past_anew() -> None:
    """After the clock is set back an hour new readings are taken at once; old views stay as they were."""
    pool = RecentPool(100)
    for index in range(4000, 4010):
        pool.append(reading(index, used_tokens=1.0))
    before = pool.view()
    pool.append(reading(400, used_tokens=2.0))
    pool.append(reading(401, used_tokens=3.0))
    after = pool.view()
    assert before is not None
    assert after is not None
    assert len(before.at_s) == 10
    assert (before.columns["used_tokens"] == 1.0).all()
    assert after.columns["used_tokens"].tolist() == [2.0, 3.0]


def test_memory_is_bounded_and_shared_fairly() -> None:
    """Appending for ever holds the same memory; more pools get fewer samples, never fewer than the judge needs."""
    pool = RecentPool(200)
    pool.append(reading(0, used_tokens=1.0))
    held = pool.held_bytes
    for index in range(1, 3000):
        pool.append(reading(index, used_tokens=1.0))
    assert pool.held_bytes == held
    assert RecentPool(10).view() is None
    sizes = [samples_that_fit(900, count, 128 * 2**20) for count in (1, 100, 1000, 10_000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 900
    assert sizes[-1] == MIN_SAMPLES

"""The schedule: runs, overlaps, misses and errors are counted; stopping waits and leaves no thread."""

import asyncio
import threading
import time

import pytest

from collectors.collector import lost_ticks
from collectors.schedule import Schedule


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def until(claim: "object", limit_s: float = 5.0) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if claim():  # type: ignore[operator]
            return
        time.sleep(0.01)
    raise AssertionError("did not come true in time")


def test_a_job_runs_at_its_interval_in_one_thread_of_its_own() -> None:
    """Runs come from the schedule's thread, one at a time; after stop none comes and the thread is gone."""
    runs: list[str] = []

    async def job() -> None:
        runs.append(threading.current_thread().name)

    schedule = Schedule("kvscope-test")
    schedule.start()
    schedule.every("job", 0.05, job)
    until(lambda: len(runs) >= 5)
    assert schedule.stop()
    count = len(runs)
    assert schedule.counts("job").run_count >= count - 1
    time.sleep(0.15)
    assert len(runs) == count
    assert set(runs) == {"kvscope-test"}
    assert "kvscope-test" not in names()
    assert not schedule.is_alive


def test_ticks_left_out_for_a_long_run_are_counted() -> None:
    """A run of three intervals leaves out ticks, each counted, and never overlaps itself."""
    open_now = most = 0

    async def job() -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.17)
        open_now -= 1

    schedule = Schedule("kvscope-test")
    schedule.start()
    schedule.every("job", 0.05, job)
    until(lambda: schedule.counts("job").overlap_count >= 4)
    assert schedule.stop()
    assert most == 1


def test_an_error_is_counted_and_the_next_run_comes(caplog: pytest.LogCaptureFixture) -> None:
    """A job that raises is run again, its error kept as one line."""
    count = 0

    async def job() -> None:
        nonlocal count
        count += 1
        raise ValueError(f"number {count}")

    schedule = Schedule("kvscope-test")
    schedule.start()
    schedule.every("job", 0.05, job)
    until(lambda: schedule.counts("job").error_count >= 2)
    schedule.stop()
    assert schedule.counts("job").last_error.startswith("ValueError: number")


def test_stop_waits_for_the_running_job_and_runs_the_teardown_after_it() -> None:
    """A run in flight ends before the teardown; nothing is cancelled when it ends in time."""
    events: list[str] = []

    async def job() -> None:
        events.append("begin")
        await asyncio.sleep(0.2)
        events.append("end")

    async def teardown() -> None:
        events.append("teardown")

    schedule = Schedule("kvscope-test")
    schedule.start()
    schedule.every("job", 10.0, job)
    until(lambda: events)
    assert schedule.stop(teardown)
    assert events == ["begin", "end", "teardown"]


def test_a_job_that_never_ends_is_cut_off_in_time() -> None:
    """Stopping is bounded: it reports that something had to be cut off."""

    async def job() -> None:
        await asyncio.sleep(60.0)

    schedule = Schedule("kvscope-test")
    schedule.start()
    schedule.every("job", 10.0, job)
    time.sleep(0.1)
    began = time.monotonic()
    assert not schedule.stop(timeout_s=0.3)
    assert time.monotonic() - began < 3.0
    assert "kvscope-test" not in names()


def test_what_the_setup_raises_is_raised_and_leaves_nothing() -> None:
    """A failing start is the caller's exception, and no thread stays."""

    async def setup() -> None:
        raise OSError("no certificate")

    schedule = Schedule("kvscope-test")
    with pytest.raises(OSError, match="no certificate"):
        schedule.start(setup)
    assert "kvscope-test" not in names()


def test_lost_ticks_cover_pauses_that_no_scheduler_reports() -> None:
    """A gap of n intervals is n - 1 lost ticks; jitter is none; the first cycle has none before it."""
    assert lost_ticks(None, 50.0, 1.0) == 0
    assert lost_ticks(10.0, 11.05, 1.0) == 0
    assert lost_ticks(10.0, 12.0, 1.0) == 1
    assert lost_ticks(10.0, 14.9, 1.0) == 4

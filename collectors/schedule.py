"""
When things happen: APScheduler in a thread and event loop of its own, one job = one coroutine.

APScheduler tells only its listeners of runs it left out, and of a pause of the whole process nobody; both are counted
here. Shutting down waits for what is running, so that no half-done cycle is left and no thread behind.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobExecutionEvent,
    JobSubmissionEvent,
)
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

Job = Callable[[], Coroutine[Any, Any, None]]

_START_LIMIT_S: Final = 30.0
_log = logging.getLogger(__name__)
_QUIET: Final = logging.getLogger(f"{__name__}.apscheduler")
_QUIET.setLevel(logging.ERROR)  # Ticks left out are counted and shown; a line for each would fill the log.
logging.getLogger("apscheduler.executors").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """
    What became of the runs of one job.

    Attributes:
        run_count: Runs that ended well.
        overlap_count: Ticks left out because the run before was not over.
        missed_count: Ticks left out because the loop came too late.
        error_count: Runs that raised.
        last_error: One line of the newest error, "" without one.
    """

    run_count: int = 0
    overlap_count: int = 0
    missed_count: int = 0
    error_count: int = 0
    last_error: str = ""


class _Counter:
    __slots__ = ("error", "last_error", "missed", "overlap", "run")

    def __init__(self) -> None:
        self.run = self.overlap = self.missed = self.error = 0
        self.last_error = ""


class Schedule:
    """
    A thread with an event loop and the jobs in it.

    Start it once, add jobs at any time after, stop it once. Jobs run in the loop; blocking work belongs into
    `asyncio.to_thread`.
    """

    def __init__(self, name: str) -> None:
        """`name` is the thread's."""
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduler: AsyncIOScheduler | None = None
        self._counters: dict[str, _Counter] = {}
        self._running: set[str] = set()
        self._idle = threading.Condition()
        self._is_stopping = False

    @property
    def is_alive(self) -> bool:
        """Say whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, setup: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start the thread and run `setup` in its loop; what `setup` raises is raised here and nothing is left."""
        if self._thread is not None:
            raise RuntimeError(f"schedule {self._name}: is started already")
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready, setup), name=self._name, daemon=True)
        self._thread.start()
        try:
            ready.result(timeout=_START_LIMIT_S)
        except BaseException:
            self._thread.join(timeout=5.0)
            self._thread = None
            raise

    def _run(self, ready: "Future[None]", setup: Callable[[], Awaitable[None]] | None) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        try:
            scheduler = AsyncIOScheduler(
                logger=_QUIET,
                event_loop=loop,
                timezone=UTC,
                job_defaults={"coalesce": True, "max_instances": 1},
            )
            scheduler.add_listener(self._hear_run, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
            scheduler.add_listener(self._hear_overlap, EVENT_JOB_MAX_INSTANCES)
            self._scheduler = scheduler

            async def begin() -> None:
                if setup is not None:
                    await setup()
                scheduler.start()

            loop.run_until_complete(begin())
        except BaseException as error:  # noqa: BLE001 # handed to the thread that waits in start()
            ready.set_exception(error)
            loop.close()
            return
        ready.set_result(None)
        try:
            loop.run_forever()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def every(self, job_id: str, seconds: float, job: Job, *, first_in_s: float = 0.0) -> None:
        """Run `job` each `seconds`, first after `first_in_s`; a tick that finds it still running is left out."""
        if self._scheduler is None:
            raise RuntimeError(f"schedule {self._name}: is not started")
        self._counters[job_id] = _Counter()

        async def run() -> None:
            if self._is_stopping:
                return
            with self._idle:
                self._running.add(job_id)
            try:
                await job()
            finally:
                with self._idle:
                    self._running.discard(job_id)
                    self._idle.notify_all()

        self._scheduler.add_job(
            run,
            IntervalTrigger(seconds=seconds, timezone=UTC),
            id=job_id,
            next_run_time=datetime.fromtimestamp(time.time() + first_in_s, UTC),
            # A late loop still runs the tick, unless the next one is due anyway.
            misfire_grace_time=max(1, round(seconds)),
        )

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine in the loop from another thread."""
        if self._loop is None:
            raise RuntimeError(f"schedule {self._name}: is not started")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def counts(self, job_id: str) -> JobCounts:
        """Return what became of the runs of one job so far."""
        counter = self._counters.get(job_id) or _Counter()
        return JobCounts(
            run_count=counter.run,
            overlap_count=counter.overlap,
            missed_count=counter.missed,
            error_count=counter.error,
            last_error=counter.last_error,
        )

    def stop(self, teardown: Callable[[], Awaitable[None]] | None = None, *, timeout_s: float = 10.0) -> bool:
        """
        Start no more runs, let running ones end, run `teardown` in the loop, join the thread.

        Returns:
            Whether everything ended within `timeout_s`; what did not is cancelled.
        """
        if self._thread is None or self._loop is None or self._scheduler is None:
            return True
        deadline = time.monotonic() + timeout_s
        self._is_stopping = True
        scheduler = self._scheduler
        self._loop.call_soon_threadsafe(scheduler.pause)
        with self._idle:
            is_idle = self._idle.wait_for(lambda: not self._running, timeout=timeout_s)

        async def end() -> None:
            scheduler.remove_all_jobs()
            if teardown is not None:
                await teardown()
            # One turn, so that APScheduler sees the ended runs and shuts down without cancelling anything.
            await asyncio.sleep(0)
            scheduler.shutdown(wait=False)

        try:
            self.call(end()).result(timeout=max(1.0, deadline - time.monotonic()))
        except TimeoutError:
            is_idle = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=max(1.0, deadline - time.monotonic()))
        is_joined = not self._thread.is_alive()
        if not is_joined:
            _log.warning("schedule %s did not end within %.0f s", self._name, timeout_s)
        self._thread = None
        return is_idle and is_joined

    def _hear_run(self, event: JobExecutionEvent) -> None:
        counter = self._counters.get(event.job_id)
        if counter is None:
            return
        if event.code == EVENT_JOB_MISSED:
            counter.missed += 1
        elif event.code == EVENT_JOB_ERROR:
            counter.error += 1
            counter.last_error = f"{type(event.exception).__name__}: {event.exception}"[:300]
        else:
            counter.run += 1

    def _hear_overlap(self, event: JobSubmissionEvent) -> None:
        counter = self._counters.get(event.job_id)
        if counter is not None:
            counter.overlap += len(event.scheduled_run_times)

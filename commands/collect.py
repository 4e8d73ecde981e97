"""`kvscope collect`: poll a fleet and store it, without a dashboard; one line a minute."""

import argparse
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from collectors.engines import ENGINES
from collectors.errors import SettingsError, StoreError
from collectors.runtime import Runtime, start_runtime
from collectors.runtime_stats import RuntimeStats
from collectors.settings import load_settings
from collectors.watchers import start_watchers, stop_watchers
from commands import EXIT_WRONG_USE, refuse
from scoring.model import SourceState

HELP = "Poll a fleet and store it, without a dashboard."
EXIT_FAILED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--fleet", type=Path, required=True, metavar="FILE", help="the fleet file (fleet.toml)")
    parser.add_argument("--every-s", type=float, default=60.0, metavar="N", help="seconds between two lines (60)")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="N", help="stop after so long (0: when told to)")


def run(args: argparse.Namespace) -> int:
    """Collect until told to stop; return the exit status."""
    try:
        settings = load_settings(args.fleet, engines=ENGINES)
    except SettingsError as error:
        return print_problems(error)
    if not (settings.workers or settings.discovery.has_lists or settings.prometheus):
        return refuse(
            "collect", f"{args.fleet}: names no worker: add [[workers]], a list of [discovery], or [prometheus]"
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        runtime = start_runtime(settings)
        start_watchers(runtime)
    except StoreError as error:
        print(str(error), file=sys.stderr)
        return EXIT_FAILED
    print(
        f"collecting {len(settings.workers)} workers each {settings.poll.interval_s:g} s into {runtime.store.path}",
        flush=True,
    )
    try:
        _report_until(runtime, stop, every_s=max(1.0, args.every_s), seconds=args.seconds)
    finally:
        before = runtime.cycle_stats()
        stop_watchers(runtime)
        runtime.stop()
    print(f"stopped after {before.cycle_count} cycles", flush=True)
    return 0


def print_problems(error: SettingsError) -> int:
    """Print every problem of a fleet file; return the exit status for wrong use."""
    count = len(error.problems)
    print(f"the fleet file has {count} problem{'' if count == 1 else 's'}:", file=sys.stderr)
    for problem in error.problems:
        print(f"  {problem}", file=sys.stderr)
    return EXIT_WRONG_USE


def _report_until(runtime: Runtime, stop: threading.Event, *, every_s: float, seconds: float) -> None:
    end = time.monotonic() + seconds if seconds > 0 else float("inf")
    before = runtime.cycle_stats()
    while time.monotonic() < end:
        if stop.wait(min(every_s, max(0.0, end - time.monotonic()))):
            return
        now = runtime.cycle_stats()
        print(line(before, now, runtime), flush=True)
        before = now


def line(before: RuntimeStats, now: RuntimeStats, runtime: Runtime) -> str:
    """Return the line of what happened between two looks at the counters."""
    states = [view.state for view in runtime.sources()]
    answered = sum(state is SourceState.FRESH for state in states)
    parts = [
        f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"{answered}/{len(states)} workers answer",
        f"{now.cycle_count - before.cycle_count} cycles",
        f"{now.reading_count - before.reading_count} readings",
        f"{now.failed_poll_count - before.failed_poll_count} failed polls",
        f"{now.lost_tick_count - before.lost_tick_count} lost ticks",
    ]
    if now.median_duration_s is not None:
        parts.append(f"cycle {now.median_duration_s * 1000:.0f} ms")
    if now.median_store_s is not None:
        parts.append(f"store {now.median_store_s * 1000:.0f} ms")
    lists = runtime.lists()
    if broken := [each for each in lists if each.error]:
        parts.append(f"{len(broken)} of {len(lists)} lists not read ({broken[0].source}: {broken[0].error[:160]})")
    if now.store_problem:
        parts.append(now.store_problem)
    if now.problem_count > before.problem_count and now.problems:
        parts.append(now.problems[-1])
    return ", ".join(parts)

"""
1,000 SGLang-speaking workers on loopback polled each second, with the store behind: cycles missed, CPU, memory.

The workers are one separate process of bare sockets, each worker an address of its own (127.0.x.y), so that what is
measured is the poller's side. Load bodies have the 0.5.23 shape with figures that move; /metrics has the size and the
names of a real server's. `KVSCOPE_BENCH=long` watches for five minutes instead of half a one.

Run alone with numbers of its own: `python -m benchmarks.poll --workers 1000 --seconds 30 --watchers`.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collectors.collector import own_rss_bytes
from collectors.runtime import Runtime
from collectors.settings import Settings
from collectors.watchers import start_watchers, stop_watchers

Row = tuple[str, float, str]

WORKERS = 1000
SHORT_S = 30.0
LONG_S = 300.0
WARM_UP_CYCLES = 15


def address(index: int) -> str:
    """Return the loopback address of one worker."""
    return f"127.0.{10 + index // 200}.{1 + index % 200}"


def settings(workers: int, port: int, folder: Path, process: str) -> Settings:
    """Return the fleet of the benchmark."""
    return Settings.model_validate(
        {
            "workers": [{"url": f"http://{address(i)}:{port}", "name": f"w{i:04d}"} for i in range(workers)],
            "poll": {"interval_s": 1.0, "process": process},
            "store": {"path": folder / "bench.duckdb"},
        }
    )


def measure(
    *, workers: int, seconds: float, has_metrics: bool, process: str = "thread", has_watchers: bool = False
) -> list[Row]:
    """Poll for `seconds` after a warm-up and return the rows; `has_watchers`: each cycle is judged, as when serving."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.poll_server", str(workers), str(int(has_metrics))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    port = int(server.stdout.readline())
    try:
        with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
            runtime = Runtime(settings(workers, port, Path(folder), process))
            return _watch(runtime, workers, seconds, has_watchers=has_watchers)
    finally:
        server.stdin.close()
        server.wait(timeout=20)


def _watch(runtime: Runtime, workers: int, seconds: float, *, has_watchers: bool) -> list[Row]:
    runtime.start()
    try:
        if has_watchers:
            start_watchers(runtime)
        _wait_for(lambda: runtime.cycle_stats().cycle_count >= WARM_UP_CYCLES, WARM_UP_CYCLES * 4)
        before, cpu_before = runtime.cycle_stats(), _cpu_s()
        began = time.monotonic()
        memory = []
        while time.monotonic() - began < seconds:
            time.sleep(min(5.0, seconds / 6))
            now = runtime.cycle_stats()
            memory.append(own_rss_bytes() + (now.collector_rss_bytes if now.is_child else 0))
        after, cpu_after = runtime.cycle_stats(), _cpu_s()
        elapsed_s = time.monotonic() - began
        size_bytes = runtime.store.size_bytes() or 0
    finally:
        if has_watchers:
            stop_watchers(runtime)
        runtime.stop()
    own_cores = (cpu_after - cpu_before) / elapsed_s
    child_cores = (after.collector_cpu_s - before.collector_cpu_s) / elapsed_s if after.is_child else 0.0
    readings = after.reading_count - before.reading_count
    polls = after.poll_count - before.poll_count
    half = len(memory) // 2
    return [
        ("workers polled each second", workers, ""),
        ("cycles", after.cycle_count - before.cycle_count, ""),
        ("cycles missed", after.lost_tick_count - before.lost_tick_count, ""),
        ("polls failed", after.failed_poll_count - before.failed_poll_count, ""),
        ("workers passed over", after.skipped_poll_count - before.skipped_poll_count, ""),
        ("readings stored per second", readings / elapsed_s, "1/s"),
        (
            "CPU, poller, store, judge, alerts" if has_watchers else "CPU, poller and store",
            own_cores + child_cores,
            "cores",
        ),
        ("cycles waiting to be judged at the end", after.waiting_count, ""),
        (
            "CPU per poll",
            1e6 * (own_cores + child_cores) * elapsed_s / max(1, polls),
            "us",
        ),
        ("cycle, median (0.6 s of it is spread)", 1e3 * (after.median_duration_s or 0.0), "ms"),
        ("cycle, longest", 1e3 * (after.max_duration_s or 0.0), "ms"),
        ("storing a cycle, median", 1e3 * (after.median_store_s or 0.0), "ms"),
        ("memory at the end", memory[-1] / 2**20, "MiB"),
        (
            "memory growth, first half to second",
            (statistics.mean(memory[half:]) - statistics.mean(memory[:half])) / 2**20,
            "MiB",
        ),
        ("recent histories in memory", after.recent_bytes / 2**20, "MiB"),
        ("store on disk", size_bytes / 2**20, "MiB"),
    ]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _wait_for(claim: "object", limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not claim():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError("the poller did not warm up in time")
        time.sleep(0.1)


def run() -> list[Row]:
    """Return the rows for the table."""
    seconds = LONG_S if os.environ.get("KVSCOPE_BENCH") == "long" else SHORT_S
    rows = measure(workers=WORKERS, seconds=seconds, has_metrics=False)
    with_metrics = measure(workers=WORKERS, seconds=seconds, has_metrics=True, process="child")
    watched = measure(workers=WORKERS, seconds=seconds, has_metrics=False, process="child", has_watchers=True)
    return [
        *rows,
        *((f"with /metrics, child process: {name}", value, unit) for name, value, unit in with_metrics),
        *((f"as served, child process: {name}", value, unit) for name, value, unit in watched),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seconds", type=float, default=SHORT_S)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--process", default="thread")
    parser.add_argument(
        "--watchers", action="store_true", help="judge each cycle and watch alerts, as kvscope serve does"
    )
    args = parser.parse_args()
    for row in measure(
        workers=args.workers,
        seconds=args.seconds,
        has_metrics=args.metrics,
        process=args.process,
        has_watchers=args.watchers,
    ):
        print(f"{row[0]:<44} {row[1]:>12.3f} {row[2]}")

"""
The store's speed and size: appending a cycle of 1,000 pools, and reading 24 h of 64 pools at one sample a second.

`run()` gives (name, value, unit) rows for `python -m benchmarks`; run alone, it prints them.
"""

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np

from collectors.store import CycleBatch, PollOutcome, Store, open_store
from scoring.model import PoolReading, Role, SourceState, signal_names

Row = tuple[str, float, str]

POOL_COUNT = 1000
FLEET_POOL_COUNT = 64
DAY_S = 86400
BEGIN_S = 1_790_000_400
"""A multiple of ten minutes, so that every tier's bucket is whole."""

# What an SGLang worker with metrics fills; the rest is NULL, as in life.
FILLED_GAUGES = (
    "reported_at_s",
    "used_tokens",
    "pending_total_tokens",
    "arrived_tokens",
    "prefix_tokens",
    "free_tokens",
    "reported_usage_ratio",
    "running_count",
    "waiting_count",
    "queue_main_count",
    "queue_prealloc_count",
    "queue_transfer_count",
    "queue_retracted_count",
    "waiting_uncached_tokens",
    "generated_tokens_per_s",
    "reported_hit_ratio",
)
FILLED_COUNTERS = (
    "prefill_uncached_tokens_total",
    "prefill_busy_s_total",
    "decode_steps_total",
    "decode_batch_sum_total",
    "decode_step_s_total",
    "decode_generated_tokens_total",
    "prompt_tokens_total",
    "generated_tokens_total",
    "finished_total",
    "retracted_total",
    "ttft_s_total",
    "ttft_count_total",
)
FILLED_CONSTANTS = ("usable_tokens", "block_size_tokens", "kv_bytes", "bytes_per_token", "max_running_count")


def quantiles(name: str, work: Callable[[int], object], count: int) -> list[Row]:
    """Return median and maximum milliseconds of `count` calls."""
    took = []
    for i in range(count):
        begin = time.perf_counter()
        work(i)
        took.append((time.perf_counter() - begin) * 1e3)
    return [(f"{name}, median", float(np.median(took)), "ms"), (f"{name}, max", max(took), "ms")]


def cycles(count: int, pool_count: int = POOL_COUNT, *, is_full: bool = True) -> list[CycleBatch]:
    """Return cycles one second apart; every signal filled, or what an SGLang worker fills."""
    random = np.random.default_rng(7)
    names = signal_names() if is_full else [*FILLED_GAUGES, *FILLED_COUNTERS, *FILLED_CONSTANTS]
    buckets = tuple((bound, float(i)) for i, bound in enumerate([0.1 * 1.5**k for k in range(20)] + [math.inf]))
    batches = []
    for k in range(count):
        at_s = float(BEGIN_S + k)
        values = random.uniform(0.0, 1e6, (pool_count, len(names))).round()
        readings = [
            PoolReading(
                worker_id=f"worker-{i:04}",
                received_at_s=at_s + 1e-4 * i,
                role=Role.DECODE,
                engine="sglang",
                version="0.5.23",
                model="m",
                ttft_buckets=buckets,
                itl_buckets=buckets,
                **dict(zip(names, row, strict=True)),
            )
            for i, row in enumerate(values.tolist())
        ]
        polls = [
            PollOutcome(worker_id=reading.worker_id, started_at_s=at_s, duration_s=0.01, state=SourceState.FRESH)
            for reading in readings
        ]
        batches.append(CycleBatch(cycle_at_s=at_s, duration_s=0.5, polls=polls, readings=readings))
    return batches


def fill_day(path: Path, pool_count: int = FLEET_POOL_COUNT, length_s: int = DAY_S) -> None:
    """Make a store with `length_s` seconds of `pool_count` pools, as the collector would have left it."""
    open_store(path).close()
    gauges = [
        f"round(5e5 + 4e5 * sin(s / (300.0 + 7 * {i}) + p) + 1e4 * random()) as {n}"
        for i, n in enumerate(FILLED_GAUGES)
    ]
    counters = [f"s * (10 + {i}) + p * 1e6 as {n}" for i, n in enumerate(FILLED_COUNTERS)]
    constants = [f"1e6 + p as {n}" for n in FILLED_CONSTANTS]
    names = [*FILLED_GAUGES, *FILLED_COUNTERS, *FILLED_CONSTANTS]
    with duckdb.connect(str(path), config={"memory_limit": "1GB"}) as connection:
        for first in range(0, length_s, 3600):
            end = min(length_s, first + 3600)
            connection.execute(
                "insert into readings (ts, cycle_at, worker_id, dp_rank, role, engine, version, model, "
                f"{', '.join(names)}) select make_timestamp({BEGIN_S}000000 + s * 1000000 + p * 1000), "
                f"make_timestamp({BEGIN_S}000000 + s * 1000000), format('worker-{{:04d}}', p), 0, "
                f"case when p % 3 = 0 then 'prefill' else 'decode' end, 'sglang', '0.5.23', 'm', "
                f"{', '.join([*gauges, *counters, *constants])} "
                f"from range({first}, {end}) as seconds(s), range({pool_count}) as pools(p) order by s, p"
            ).fetchall()
            connection.execute(
                "insert into cycles select make_timestamp("
                f"{BEGIN_S}000000 + s * 1000000), 0.1, false, 0, {pool_count}, {pool_count}, 0, 0 "
                f"from range({first}, {end}) as seconds(s)"
            ).fetchall()
            connection.execute(
                f"insert into polls select make_timestamp({BEGIN_S}000000 + s * 1000000), "
                f"make_timestamp({BEGIN_S}000000 + s * 1000000), format('worker-{{:04d}}', p), 0.01, 'fresh', null, "
                "200, 4000, '', 1, 0, 0 "
                f"from range({first}, {end}) as seconds(s), range({pool_count}) as pools(p) order by s, p"
            ).fetchall()


def _append(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for label, is_full in (("all columns", True), ("SGLang's columns", False)):
        with open_store(folder / f"append{is_full}.duckdb") as store:
            batches = cycles(60, is_full=is_full)
            begin_s = time.process_time()
            rows += quantiles(
                f"append {POOL_COUNT} pools, {label}", lambda i, b=batches, s=store: s.append_cycle(b[i]), 60
            )
            rows.append(
                (f"append {POOL_COUNT} pools, {label}, CPU a cycle", (time.process_time() - begin_s) / 60e-3, "ms")
            )
    return rows


def _reads(store: Store) -> list[Row]:
    end_s = float(BEGIN_S + DAY_S)
    signals = ("used_tokens", "prefix_tokens", "waiting_count", "finished_total")
    return [
        *quantiles("latest_histories, 60 s", lambda _: store.latest_histories(end_s, 60.0), 15),
        *quantiles("latest_histories, 60 s, 12 h ago", lambda _: store.latest_histories(end_s - DAY_S / 2, 60.0), 15),
        *quantiles(
            "pool_series, 24 h, 4 signals",
            lambda i: store.pool_series(f"worker-{i:04}", 0, end_s - DAY_S, end_s, signals, 500),
            10,
        ),
        *quantiles(
            "pool_series, 10 min, 4 signals",
            lambda i: store.pool_series(f"worker-{i:04}", 0, end_s - 600, end_s, signals, 500),
            10,
        ),
        *quantiles(
            "fleet_series, 24 h, 1 signal", lambda _: store.fleet_series(["used_tokens"], end_s - DAY_S, end_s, 500), 10
        ),
        *quantiles("fleet_series, 1 h, 4 signals", lambda _: store.fleet_series(signals, end_s - 3600, end_s, 300), 10),
        *quantiles("cycle_stats, 1 h", lambda _: store.cycle_stats(end_s - 3600, end_s), 5),
        *quantiles("time_span", lambda _: store.time_span(), 5),
    ]


def run() -> list[Row]:
    """Measure; takes about two minutes and 1 GB of disk in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as name:
        folder = Path(name)
        rows = _append(folder)
        path = folder / "day.duckdb"
        begin = time.perf_counter()
        fill_day(path)
        rows.append((f"make {FLEET_POOL_COUNT} pools x 24 h x 1 s", time.perf_counter() - begin, "s"))
        with open_store(path) as store:
            begin = time.perf_counter()
            store.maintain(float(BEGIN_S + DAY_S))
            rows.append(("roll up those 24 h into three tiers", time.perf_counter() - begin, "s"))
            rows += _reads(store)
        with open_store(path) as store:
            rows.append(("file with tiers", (store.size_bytes() or 0) / 1024**2, "MiB"))
    return rows


if __name__ == "__main__":
    for name, value, unit in run():
        print(f"{name:55} {value:10.2f} {unit}")

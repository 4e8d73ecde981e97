"""
How long one decision takes, whole and term by term, and how much memory it holds.

A decision is everything `decide` returns: filters, every pair's score, ranking, rejections, the chosen pair's and the
runner-up's terms with their formulas. CPU time of this thread, so that a busy machine does not count as ours; the
conversion of a snapshot into columns is listed apart, since it is paid once a snapshot. One core: numpy's element-wise
functions use no threads.
"""

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from scoring import cost, service
from scoring.demand import RequestView, known_output
from scoring.model import FleetSnapshot, Link, Role
from scoring.policy import POLICIES, decide
from scoring.policy.arrays import build_arrays
from scoring.policy.sketch import sketch_fleet, sketch_pool

SIZES = (64, 1_000)
REPEATS = {64: 200, 1_000: 25}
Row = tuple[str, float, str]


def fleet_of(size: int, seed: int = 1) -> FleetSnapshot:
    """Return a fleet of `size` prefill and `size` decode pools, some growing, some nearly full, one link each."""
    rng = np.random.default_rng(seed)
    pools = []
    for index in range(size):
        pools.append(
            sketch_pool(
                f"p{index:04d}/0",
                Role.PREFILL,
                usable_tokens=600_000,
                used_tokens=int(rng.integers(0, 300_000)),
                uncached_tokens=int(rng.integers(0, 60_000)),
                prefill_tokens_per_s=float(rng.uniform(10_000, 30_000)),
                inflight_count=2,
                transfer_drain_s=0.1,
                transfer_bytes_per_s=1e10,
            )
        )
        pools.append(
            sketch_pool(
                f"d{index:04d}/0",
                Role.DECODE,
                used_tokens=int(rng.integers(200_000, 900_000)),
                in_flight_tokens=20_000,
                running_count=int(rng.integers(5, 128)),
                net_tokens_per_s=float(rng.normal(0, 3_000)),
                net_std_tokens_per_s=1_000,
                step_time_s=float(rng.uniform(0.01, 0.06)),
            )
        )
    return sketch_fleet(pools, [Link(source="*", target="*", bandwidth_bytes_per_s=25e9, latency_s=0.002)])


def best_ms(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return (least, median) milliseconds of CPU of one call."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return min(times) * 1e3, float(np.median(times)) * 1e3


def term_rows(size: int) -> list[Row]:
    """Return what each term costs over the whole pair matrix, every input a full matrix or a vector of its end."""
    rng = np.random.default_rng(2)
    row, column, pair = (rng.uniform(0.1, 2.0, shape) for shape in ((size, 1), (1, size), (size, size)))
    tokens, rates = column * 1e6, column * 1e3
    calls: dict[str, Callable[[], object]] = {
        "PrefillWait": lambda: cost.prefill_wait_s(row * 1e4, row * 1e4),
        "PrefillCompute": lambda: service.prefill_s(row * 1e4, row, row, row * 1e-4, row * 1e-9),
        "TransferTime": lambda: service.transfer_s(row * 1e9, np.full((1, 1), 25e9), np.zeros((1, 1)), pair * 1e9),
        "DecodeWait": lambda: cost.decode_wait_s(
            cost.room_wait_s(tokens * 0.1, tokens * 0.3, rates, pair), column * 0.0, pair, column
        ),
        "ProjectedKVPressure": lambda: cost.kv_pressure_ratio(
            cost.utilization_ratio(cost.projected_tokens(tokens, rates, pair, tokens * 2), tokens * 0.1, tokens * 2),
            column * 0.1,
        ),
        "SloRisk": lambda: cost.slo_risk_ratio(
            cost.breach_probability(pair, np.full((1, 1), 1.0), np.full((1, 1), 0.3)), column * 0.1
        ),
        "PrefixBenefit": lambda: cost.prefix_benefit_s(row, row * 0.5, np.zeros((1, 1))),
        "score": lambda: cost.pair_score(
            row, row, pair, column, pair, pair, row * 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0
        ),
    }
    return [(f"{size} x {size}: {name}", best_ms(call, 7)[0], "ms") for name, call in calls.items()]


def run() -> list[Row]:
    """Return the rows of the table."""
    rows: list[Row] = []
    request = RequestView(prompt_tokens=16_000, output=known_output(1_000), prefix_hit_tokens={"p0003/0": 8_000})
    for size in SIZES:
        fleet = fleet_of(size)
        rows.append(
            (f"{size} + {size} pools into columns, once a snapshot", best_ms(partial(build_arrays, fleet), 3)[0], "ms")
        )
        decide(request, fleet)
        least, median = best_ms(partial(decide, request, fleet), REPEATS[size])
        rows.append((f"{size} x {size}: one explained decision, least", least, "ms"))
        rows.append((f"{size} x {size}: one explained decision, median", median, "ms"))
        tracemalloc.start()
        decision = decide(request, fleet)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert decision.chosen is not None
        rows.append(
            (f"{size} x {size}: memory in pair matrices (aim: under 20)", peak_bytes / (8 * size * size), "arrays")
        )
    rows += term_rows(SIZES[-1])
    small = fleet_of(64)
    for name in POLICIES:
        rows.append((f"64 + 64 pools: {name}", best_ms(partial(decide, request, small, name), 40)[0], "ms"))
    return rows

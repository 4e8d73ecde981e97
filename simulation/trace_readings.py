"""
Traffic rebuilt from our own recordings: the counters in exported readings (`kvscope export --table readings`).

A store holds what engines count, not single requests. How many requests finished in each stretch, and the mean
lengths of their prompts and outputs, are measured; that they were alike and evenly spaced within the stretch is an
assumption, and prefix identities are unknown.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from simulation.trace import Trace, TraceError, TraceFormat, TraceOptions
from simulation.trace_csv import NANOSECONDS_PER_S, header_has, instant_ns, read_csv
from simulation.trace_rows import BadRowError, RowTable

NUMBERED = Iterable[tuple[int, str]]
STRETCH_S: Final = 10.0
"""Requests of one stretch are alike (chosen: ten polls, so that prompts and finishes of one request mostly meet)."""
REQUESTS_MAX: Final = 10_000_000
COUNTERS: Final = ("finished_total", "prompt_tokens_total", "generated_tokens_total")


@dataclass(slots=True)
class _Stretch:
    """What was counted in one stretch, by side: what generates, and what only computes prompts."""

    finished: float = 0.0
    generated: float = 0.0
    prompt: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    row: int = 0


def read_readings(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read exported readings.

    Finished requests and output tokens are taken from pools that generate, prompt tokens from prefill and unified
    pools where they count any, else from decode pools, so that a request of a P/D pair is one request. A counter
    that falls has restarted and counts from 0. The first reading of a pool counts nothing.

    Raises:
        TraceError: no request finished in the readings.
    """
    table = RowTable("kvscope-readings", options.hash_block_tokens or 64)
    before: dict[tuple[str, str], dict[str, float]] = {}
    stretches: dict[int, _Stretch] = {}
    origin_s: float | None = None
    restarts = 0
    row_count = 0

    def take(row: int, item: dict[str, str]) -> None:
        nonlocal origin_s, restarts, row_count
        row_count += 1
        at_ns, _ = instant_ns(item["ts"])
        at_s = at_ns / NANOSECONDS_PER_S
        origin_s = at_s if origin_s is None else min(origin_s, at_s)
        is_prefill = item["role"] == "prefill"
        last = before.setdefault((item["worker_id"], item["dp_rank"]), {})
        grown = dict.fromkeys(COUNTERS, 0.0)
        for name in COUNTERS:
            if not item[name]:
                continue
            try:
                value = float(item[name])
            except ValueError:
                raise BadRowError(f"{name} is no number") from None
            if not math.isfinite(value) or value < 0:
                raise BadRowError(f"{name} is no count")
            if name in last:
                restarts += value < last[name]
                grown[name] = value - last[name] if value >= last[name] else value
            last[name] = value
        stretch = stretches.setdefault(int(at_s // STRETCH_S), _Stretch())
        stretch.row = row
        stretch.prompt[is_prefill or item["role"] == "unified"] += grown["prompt_tokens_total"]
        if not is_prefill:
            stretch.finished += grown["finished_total"]
            stretch.generated += grown["generated_tokens_total"]

    wanted = ("ts", "worker_id", "dp_rank", "role", *COUNTERS)
    read_csv(rows, table, options, wanted, (), take, is_telling_unused=False)
    total = sum(stretch.finished for stretch in stretches.values())
    if total < 1:
        raise TraceError(
            f"no request finished in these {row_count} readings: a longer time, or engines that count them"
        )
    if total > REQUESTS_MAX:
        raise TraceError(
            f"{total:,.0f} requests finished in these readings: at most {REQUESTS_MAX:,}, take a shorter time"
        )
    has_prefill = any(stretch.prompt[True] > 0 for stretch in stretches.values())
    mean_prompt = sum(stretch.prompt[has_prefill] for stretch in stretches.values()) / total
    mean_output = sum(stretch.generated for stretch in stretches.values()) / total
    if mean_prompt <= 0 or mean_output <= 0:
        raise TraceError("the readings count requests but no prompt or output tokens: lengths are unknown")
    carried = 0.0
    for number in sorted(stretches):
        stretch = stretches[number]
        exact = stretch.finished + carried
        count = int(exact)
        carried = exact - count
        prompt = stretch.prompt[has_prefill] / stretch.finished if stretch.finished else 0.0
        output = stretch.generated / stretch.finished if stretch.finished else 0.0
        for place in range(count):
            table.add(
                stretch.row,
                arrival_s=number * STRETCH_S + (place + 0.5) * STRETCH_S / count,
                prompt_tokens=max(round(prompt or mean_prompt), 1),
                output_tokens=max(round(output or mean_output), 1),
            )
    table.note(
        f"rebuilt from counters: {len(table)} requests finished in {row_count} readings; all requests of one stretch"
        f" of {STRETCH_S:g} s are alike and evenly spaced, and arrive when they were counted as finished"
    )
    if restarts:
        table.note(f"{restarts} counter(s) fell: the worker restarted and counts from 0")
    return table.finish()


READINGS_FORMATS: Final = (
    TraceFormat(
        name="kvscope-readings",
        summary="exported readings of a KVScope store (CSV): traffic rebuilt from counters",
        recognises=header_has("worker_id", "finished_total", "prompt_tokens_total"),
        read=read_readings,
    ),
)

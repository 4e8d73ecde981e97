"""What `kvscope replay` prints and writes."""

import argparse
from pathlib import Path
from typing import Any

from simulation.compare import Comparison
from simulation.report import LATENCIES
from simulation.report_rows import request_frame
from simulation.trace import Trace


def print_tables(body: dict[str, Any]) -> None:
    """Print the comparison as text."""
    traffic, fleet = body["traffic"], body["fleet"]
    print(
        f"{traffic['request_count']:,} requests over {traffic['span_s']:,.0f} s ({traffic['format']}):"
        f" {traffic['prompt_tokens']:,} prompt and {traffic['output_tokens']:,} output tokens"
    )
    for skip in traffic["rows"]["reasons"]:
        print(f"skipped: {skip['count']} row(s), {skip['reason']} (first: row {skip['first_rows'][0]})")
    pools = ", ".join(f"{count} {role}" for role, count in fleet["pools"].items())
    print(f"fleet: {pools}; {fleet['usable_tokens']:,} tokens; profile {', '.join(fleet['profiles'])}")
    for note in [*traffic["notes"], *body["notes"]]:
        print(f"note: {note}")
    print()
    width = max(len(name) for name in body["policies"]) + 1
    heads = ("TTFT mean", "p50", "p95", "p99", "TPOT mean", "p99", "ITL p99", "E2E mean", "good", "reject", "retract")
    print(" " * width + "".join(f"{head:>10}" for head in heads))
    for name, found in body["policies"].items():
        ttft, tpot, itl, e2e = (found[latency] for latency in LATENCIES)
        cells = [
            *(_seconds(ttft[key]) for key in ("mean", "p50", "p95", "p99")),
            *(_milliseconds(value) for value in (tpot["mean"], tpot["p99"], itl["p99"])),
            _seconds(e2e["mean"]),
            "-" if found["goodput_ratio"] is None else f"{found['goodput_ratio']:.1%}",
            f"{found['rejected_count']:,}",
            f"{found['retraction_count']:,}",
        ]
        print(f"{name:<{width}}" + "".join(f"{cell:>10}" for cell in cells))
    if any(found["differences"] for found in body["policies"].values()):
        print(f"\nagainst {body['baseline']} (difference, 95 % interval of a paired bootstrap):")
    for name, found in body["policies"].items():
        rows = found["differences"]
        if rows:
            parts = [_difference(label, rows[key]) for label, key in _SHOWN if key in rows]
            print(f"{name:<{width}} " + "; ".join(parts))
    print()
    for name, found in body["policies"].items():
        hits = "unknown" if found["prefix_hit_tokens"] is None else f"{found['prefix_hit_tokens']:,}"
        print(
            f"{name:<{width}} prefix hit tokens {hits}; {found['recomputed_tokens']:,} recomputed;"
            f" {found['link_bytes'] / 1e9:,.0f} GB over links; simulated in {found['wall_s']:.2f} s"
            f" ({found['requests_per_s'] or 0:,.0f} requests/s)"
        )
        for recovery in found["recoveries"]:
            took = recovery["time_to_recover_s"]
            told = "never recovered" if took is None else f"recovered {took:,.0f} s after its end"
            print(f"{'':<{width}} {recovery['kind']} at {recovery['began_at_s']:,.0f} s: {told}")
    if "prefix_hit_bounds" in body:
        bounds = body["prefix_hit_bounds"]
        print(
            f"one shared cache of {bounds['capacity_blocks']:,} x {bounds['block_size_tokens']} tokens:"
            f" LRU {bounds['lru_tokens']:,}, oracle {bounds['oracle_tokens']:,}; endless {bounds['infinite_tokens']:,}"
        )


_SHOWN = (
    ("TTFT mean", "ttft_s.mean"),
    ("TTFT p99", "ttft_s.p99"),
    ("TPOT mean", "tpot_s.mean"),
    ("goodput", "goodput_ratio"),
)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.1f} ms"


def _difference(label: str, row: dict[str, float | None]) -> str:
    point, low, high = row["difference"], row["low"], row["high"]
    if point is None:
        return f"{label} unknown"
    scale, unit = (100.0, " pts") if label == "goodput" else (1e3, " ms")
    text = f"{label} {point * scale:+.3g}{unit}"
    if low is None or high is None:
        return f"{text} (too few requests for an interval)"
    told = "" if low > 0 or high < 0 else ", not told apart"
    return f"{text} [{low * scale:+.3g}, {high * scale:+.3g}]{told}"


def write_files(args: argparse.Namespace, comparison: Comparison, trace: Trace, body: dict[str, Any]) -> list[str]:
    """
    Write the files asked for and return their names.

    Raises:
        OSError: one cannot be written.
        ValueError: its ending says no format.
    """
    written = []
    if args.requests:
        frame = request_frame(comparison, trace)
        path = Path(args.requests)
        if path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
        elif path.suffix == ".csv":
            frame.to_csv(path, index=False)
        else:
            raise ValueError(f"--requests {path}: must end in .parquet or .csv")
        written.append(str(path))
    if args.html:
        # Imported here: plotly.js is large, and wanted for this file alone.
        from pages.figures.replay_report import html

        Path(args.html).write_text(html(comparison, body), encoding="utf-8")
        written.append(args.html)
    return written

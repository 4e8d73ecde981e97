"""`kvscope reuse`: how many prompt tokens a prefix cache of given size would have served."""

import argparse
import json

from collectors.trace_files import TraceFileError, trace_lines
from commands import refuse
from simulation.reuse import RULES, prefix_reuse
from simulation.trace import TraceOptions, read_trace
from simulation.trace_formats import FORMATS

HELP = "Prefix hits of a trace for a cache of given size and rule."


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("trace", help="traffic file (see docs/replay.md for the formats), or a folder of sessions")
    parser.add_argument("--block-size", type=int, help="tokens of a cache block; default: the trace's hash block")
    parser.add_argument("--capacity-blocks", type=int, help="size of the cache; not needed by --rule infinite")
    parser.add_argument("--rule", choices=RULES, default="lru", help="which block goes when the cache is full")
    parser.add_argument(
        "--warmup-ratio", type=float, default=0.0, help="share of the requests that fill the cache unmeasured"
    )
    parser.add_argument("--whole-blocks", action="store_true", help="do not cache a part-filled last block")
    parser.add_argument("--format", choices=sorted(FORMATS), help="name the format instead of recognising it")
    parser.add_argument("--hash-block-tokens", type=int, help="tokens one hash id of the trace stands for")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 when measured, 3 when an argument or the file is wrong."""
    try:
        if not 0.0 <= args.warmup_ratio <= 1.0:
            raise ValueError(f"--warmup-ratio is {args.warmup_ratio}: must be between 0 and 1")
        if args.hash_block_tokens is not None and args.hash_block_tokens < 1:
            raise ValueError(f"--hash-block-tokens is {args.hash_block_tokens}: must be at least 1")
        if args.rule != "infinite" and args.capacity_blocks is None:
            raise ValueError(f"--capacity-blocks is missing: --rule {args.rule} needs the size of the cache")
        options = TraceOptions(hash_block_tokens=args.hash_block_tokens)
        trace = read_trace(trace_lines(args.trace), FORMATS, format_name=args.format, options=options)
        block_size_tokens = trace.traffic.hash_block_tokens if args.block_size is None else args.block_size
        result = prefix_reuse(
            trace.traffic,
            block_size_tokens=block_size_tokens,
            rule=args.rule,
            capacity_blocks=args.capacity_blocks,
            warmup_count=int(len(trace) * args.warmup_ratio),
            is_tail_cached=not args.whole_blocks,
        )
    except (TraceFileError, ValueError) as error:
        return refuse("reuse", error)
    is_known = result.unknown_count < result.measured_count
    report = trace.report
    if args.json:
        body = {
            "prefix_hit_tokens": result.prefix_hit_tokens if is_known else None,
            "total_tokens": result.total_tokens,
            "hit_ratio": result.hit_ratio if is_known else None,
            "rule": args.rule,
            "block_size_tokens": block_size_tokens,
            "capacity_blocks": args.capacity_blocks,
            "measured_count": result.measured_count,
            "unknown_count": result.unknown_count,
            "unique_block_count": result.unique_block_count,
            "is_filled": result.is_filled,
            "rows": {"read": report.read_count, "skipped": report.row_count - report.read_count},
            "notes": list(report.notes),
        }
        print(json.dumps(body, allow_nan=False))
        return 0
    for note in report.notes:
        print(f"note: {note}")
    for skip in report.skips:
        print(f"skipped: {skip.count} row(s), {skip.reason} (first: row {skip.first_rows[0]})")
    if not is_known or result.hit_ratio is None:
        print(f"hit ratio unknown: the trace carries no prefix identities ({result.total_tokens:,} prompt tokens)")
        return 0
    print(f"{result.prefix_hit_tokens:,} of {result.total_tokens:,} prompt tokens hit ({result.hit_ratio:.2%})")
    if not result.is_filled:
        print("the cache was not yet full when measuring began")
    return 0

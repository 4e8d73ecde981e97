"""
`kvscope calibrate`: what a fleet's recorded counters say it takes, its versions, and profiles for replay.

Reads a store that no KVScope is running on (while one runs, its Calibration page does all of this). With `--requests`
it makes output-length quantiles from a request log instead. Exit status: 0 done, 1 nothing could be fitted, 2 the
store or file could not be read, 3 wrong use.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from collectors.calibration_outputs import keep_outputs
from collectors.calibration_versions import apply, keep, profile_mapping, roll_back, versions
from collectors.errors import KvscopeError, StoreLockedError
from collectors.store import open_store
from collectors.trace_files import trace_lines
from commands import refuse
from scoring.calibration_error import JudgedFit, judged_fit
from scoring.calibration_windows import Kind, PairWindows, consecutive_windows, kind_of, readings_of
from scoring.model import Role
from scoring.quantile_table import quantile_table
from simulation.trace import TraceError, read_trace
from simulation.trace_formats import FORMATS

HELP = "Service times learnt from a store's counters, with intervals, errors held out and versions."
EXIT_DONE, EXIT_NOTHING, EXIT_NOT_READ = 0, 1, 2
LOCK_WAIT_S: Final = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvscope calibrate`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", metavar="FILE", help="a store file, when no KVScope is running on it")
    source.add_argument("--requests", metavar="FILE", help="a request log (any trace format): output-length quantiles")
    parser.add_argument(
        "--into", metavar="STORE", help="with --requests: keep the quantiles in this store; What-if plans by them"
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="stretch before the store's end (default 15)")
    parser.add_argument("--kind", metavar="NAME", help="one kind of worker (default all)")
    parser.add_argument("--export", metavar="FILE", help="write the kind's newest fit for `kvscope replay --profile`")
    parser.add_argument("--keep", action="store_true", help="keep the fits as new versions in the store")
    parser.add_argument("--apply", type=int, metavar="VERSION", help="put a kept version of --kind to use")
    parser.add_argument("--roll-back", action="store_true", help="go back to the version of --kind in use before")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Fit, or act on versions; see the module for the exit status."""
    if (args.apply is not None or args.roll_back or args.export) and not args.kind:
        return refuse("calibrate", "--apply, --roll-back and --export need --kind")
    if args.into and not args.requests:
        return refuse("calibrate", "--into needs --requests, the log to take output lengths from")
    if args.minutes <= 0:
        return refuse("calibrate", f"--minutes is {args.minutes:g}: must be above 0")
    try:
        if args.requests:
            return _quantiles(args)
        if Path(args.store).is_dir():
            return refuse("calibrate", f"{args.store} is a folder: name the store's file", EXIT_NOT_READ)
        if not Path(args.store).is_file():
            return refuse("calibrate", f"cannot read {args.store}: no such file", EXIT_NOT_READ)
        return _on_store(args)
    except StoreLockedError as error:
        held = f" (held by process {error.holder_pid})" if error.holder_pid else ""
        where = args.store or args.into
        text = f"{where} is in use{held}: use the Calibration page of the running KVScope, or stop it first"
        return refuse("calibrate", text, EXIT_NOT_READ)
    except (KvscopeError, TraceError, OSError, ValueError) as error:
        return refuse("calibrate", error, EXIT_NOT_READ)


def _on_store(args: argparse.Namespace) -> int:
    is_writing = args.keep or args.apply is not None or args.roll_back
    with open_store(args.store, read_only=not is_writing, wait_s=LOCK_WAIT_S) as store:
        if args.apply is not None:
            found = apply(store, args.kind, args.apply, time.time())
            print(f"{args.kind}: version {found.version} is in use")
            return EXIT_DONE
        if args.roll_back:
            found = roll_back(store, args.kind, time.time())
            print(f"{args.kind}: back to version {found.version}")
            return EXIT_DONE
        span = store.time_span()
        if span is None:
            return refuse("calibrate", f"{args.store} holds no readings yet", EXIT_NOTHING)
        fits = judged_fits(store.latest_histories(span[1], args.minutes * 60.0))
        fits = {name: judged for name, judged in fits.items() if args.kind in (None, name)}
        made = {name: judged for name, judged in fits.items() if judged.fit.is_made}
        others = [judged.fit for judged in fits.values()]
        if args.keep:
            for judged in made.values():
                keep(store, judged.fit, judged.fit.profile(others), span[1], "by-hand")
        known = versions(store, args.kind)
        table = {name: as_json(judged, others) for name, judged in fits.items()}
        if args.json:
            listed = [{"name": each.name, "version": each.version, "applied_at_s": each.applied_at_s} for each in known]
            print(json.dumps({"kinds": table, "versions": listed}, indent=1, allow_nan=False))
        else:
            print("\n\n".join(_as_text(name, judged) for name, judged in fits.items()) or "no kind of worker")
            for each in known:
                used = " in use since then" if each.applied_at_s is not None else ""
                print(f"version {each.version} of {each.name}: {each.reason}{used}")
        if args.export and made:
            profile = next(iter(made.values())).fit.profile(others)
            Path(args.export).write_text(json.dumps(profile_mapping(profile), indent=1) + "\n", encoding="utf-8")
            print(f"wrote {args.export}: kvscope replay --profile {args.export}", file=sys.stderr)
        return EXIT_DONE if made else EXIT_NOTHING


def judged_fits(histories: Any) -> dict[str, JudgedFit]:
    """Return a judged fit of every kind of worker in these histories, by name."""
    rows: dict[str, list[PairWindows]] = defaultdict(list)
    kinds: dict[str, Kind] = {}
    sizes: dict[str, float | None] = {}
    for history in histories:
        if len(history.at_s) < 2 or history.last.role is Role.UNKNOWN:
            continue
        kind = kind_of(history.last, history.labels)
        kinds[kind.name] = kind
        sizes[kind.name] = history.last.bytes_per_token or sizes.get(kind.name)
        rows[kind.name] += consecutive_windows(readings_of(history))
    found = {}
    for name, windows in sorted(rows.items()):
        traffic = [each.traffic for each in windows if each.traffic is not None]
        found[name] = judged_fit(
            kinds[name],
            [each.decode for each in windows if each.decode is not None],
            [each.prefill for each in windows if each.prefill is not None],
            [each.transfer for each in windows if each.transfer is not None],
            bytes_per_token=sizes[name],
            hit_tokens=sum(each.hit_tokens or 0.0 for each in traffic),
            query_tokens=sum(each.query_tokens or 0.0 for each in traffic if each.hit_tokens is not None),
        )
    return found


def as_json(judged: JudgedFit, others: Any) -> dict[str, Any]:
    """Return a fit as plain values."""
    fit = judged.fit
    return {
        "profile": profile_mapping(fit.profile(others)),
        "bandwidth_bytes_per_s": fit.bandwidth_bytes_per_s,
        "hit_ratio": fit.hit_ratio,
        "coefficients": {
            each.name: {"value": each.value, "low": each.low, "high": each.high, "told": each.told.value}
            for each in fit.coefficients()
        },
        "rows": {"decode": fit.decode.row_count, "prefill": fit.prefill.row_count, "transfer": fit.transfer.row_count},
        "missing": {
            "decode": fit.decode.missing_count,
            "prefill": fit.prefill.missing_count,
            "transfer": fit.transfer.missing_count,
        },
        "errors": [
            {
                "quantity": each.quantity.value,
                "is_held_out": each.is_held_out,
                "bucket": None if each.bucket == float("inf") else each.bucket,
                "count": each.sample_count,
                "bias_ratio": each.bias_ratio,
                "quantiles": dict(each.quantile_ratios),
            }
            for each in judged.summaries()
        ],
        "notes": [*fit.notes, *(note for part in fit.fits() for note in part.notes)],
    }


def _as_text(name: str, judged: JudgedFit) -> str:
    fit = judged.fit
    lines = [name]
    for part, found in (("decode", fit.decode), ("prefill", fit.prefill), ("transfer", fit.transfer)):
        if not found.row_count:
            continue
        lines.append(f"  {part}: {found.row_count} rows")
        for each in found.coefficients:
            value = "unknown" if each.value is None else f"{each.value:.5g}"
            interval = "" if each.low is None else f"   [{each.low:.5g}, {each.high:.5g}]"
            lines.append(f"    {each.name:24} {value:>12}{interval}   {each.told.value}")
        lines += [f"    note: {note}" for note in found.notes]
    for summary in judged.summaries():
        if summary.bucket == float("inf"):
            side = "held out" if summary.is_held_out else "in the fit"
            sizes = ", ".join(f"p{q * 100:.0f} {value:.1%}" for q, value in summary.quantile_ratios)
            lines.append(f"  {summary.quantity.value}, {side}: {summary.sample_count} rows off by {sizes}")
    lines += [f"  note: {note}" for note in fit.notes]
    return "\n".join(lines)


def _quantiles(args: argparse.Namespace) -> int:
    trace = read_trace(trace_lines(args.requests), FORMATS)
    classes = _classes(trace)
    traffic = trace.traffic
    table = quantile_table(classes, traffic.prompt_tokens.astype(float), traffic.output_tokens.astype(float))
    if args.into:
        with open_store(args.into, wait_s=LOCK_WAIT_S) as store:
            version = keep_outputs(store, table, Path(args.requests).name, time.time())
        print(f"output lengths: version {version} is in use in {args.into}", file=sys.stderr)
    if args.json:
        cells = [
            {
                "class": cell.slo_class,
                "below_tokens": None if cell.upper_tokens == float("inf") else cell.upper_tokens,
                "count": cell.sample_count,
                "missing": cell.missing_count,
                "taken_from": cell.taken_from,
                "quantiles": {str(point.quantile): [point.value, point.low, point.high] for point in cell.points},
            }
            for cell in table.cells
        ]
        print(json.dumps({"cells": cells}, indent=1, allow_nan=False))
    else:
        for cell in table.cells:
            points = "  ".join(f"p{point.quantile * 100:.0f} {point.value:.0f}" for point in cell.points)
            source = f"  ({cell.taken_from})" if cell.taken_from else ""
            print(
                f"{cell.slo_class:16} < {cell.upper_tokens:>7.0f}  {cell.sample_count:6}  {points or 'too few'}{source}"
            )
    return EXIT_DONE if len(trace) else EXIT_NOTHING


def _classes(trace: Any) -> list[str]:
    """Return each request's class: the first label column that tells some apart, else one for all."""
    for name in ("class", "kind", "log_type", "model", "tenant"):
        category = trace.categories.get(name)
        if category is not None:
            return [str(category.names[code]) if code >= 0 else "unlabelled" for code in category.codes.tolist()]
    return ["all"] * len(trace)

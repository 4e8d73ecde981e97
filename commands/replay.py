"""
`kvscope replay`: the same traffic under several policies, headless; the page of the same name does it on screen.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from collectors.errors import KvscopeError
from collectors.trace_files import trace_lines
from commands import _replay_output as output
from commands import refuse
from commands._snapshot import named_snapshot
from scoring.service import PROFILES
from scoring.slo import SLO_CLASSES, SloClass
from simulation.compare import Comparison, compare
from simulation.compare_policies import policy_names
from simulation.compare_variants import SWEEPS, Variant, drill_of, options_of, swept, variants_of
from simulation.faults import KINDS
from simulation.fleet_classes import classes_from_mapping
from simulation.fleet_file import (
    RULES,
    FleetDefaults,
    FleetFileError,
    ReplayFleet,
    fleet_from_mapping,
    fleet_from_shorthand,
    fleet_from_snapshot,
    is_shorthand,
    named_profile,
)
from simulation.report_json import comparison_json, reuse_bounds
from simulation.simulate import SimulationOptions
from simulation.sweep import CancelledError, RayMissingError
from simulation.trace import Trace, TraceOptions, read_trace
from simulation.trace_formats import FORMATS
from simulation.traffic import TrafficArrays
from simulation.workload_shape import Shaping, is_synthetic, shape, synthetic_trace, tenant_names

HELP = "Replay traffic under several policies and compare them."
EXIT_FAILED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvscope replay`."""
    parser.add_argument("trace", help="traffic file, folder of sessions, or synthetic:gamma,rate=4,duration=600,...")
    parser.add_argument(
        "--policies",
        default="round-robin,lowest-utilization,joint",
        help=f"comma-separated, the first is the baseline; any of: {', '.join(policy_names())}",
    )
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument("--fleet", default="6p2d", help="fleet.toml, snapshot .json, URL of a KVScope, or 6p2d, 8u")
    fleet.add_argument("--profile", default="llama-3.1-8b-h100-tp1", help=f"a .json file, or {', '.join(PROFILES)}")
    fleet.add_argument("--blocks", type=int, default=16_384, help="KV blocks of a pool that does not say its capacity")
    fleet.add_argument("--block-size", type=int, default=64, help="tokens of a block, where the fleet does not say")
    fleet.add_argument("--reserve-tokens", type=int, default=0, help="kept back per admitted request, the same")
    fleet.add_argument("--rule", action="append", default=[], metavar="NAME=VALUE", help=f"any of {', '.join(RULES)}")
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument("--format", choices=sorted(FORMATS), help="name the format instead of recognising it")
    traffic.add_argument("--time-unit", choices=("auto", "s", "ms"), default="auto", help="of plain-number times")
    traffic.add_argument("--hash-block-tokens", type=int, help="tokens one hash id stands for")
    traffic.add_argument("--keep-failures", action="store_true", help="replay rows the recorder marks as failed")
    traffic.add_argument("--limit", type=int, help="only the first N requests")
    traffic.add_argument("--from", dest="from_s", type=float, default=0.0, metavar="S", help="arrivals from here on")
    traffic.add_argument("--to", dest="to_s", type=float, metavar="S", help="arrivals before here")
    traffic.add_argument("--prompt", default="", metavar="LOW-HIGH", help="prompts of this range, tokens")
    traffic.add_argument("--output", default="", metavar="LOW-HIGH", help="outputs of this range, tokens")
    traffic.add_argument("--label", action="append", default=[], metavar="COLUMN=VALUE", help="rows with this label")
    traffic.add_argument("--keep-ratio", type=float, default=1.0, help="a random share of the requests")
    traffic.add_argument("--stagger", type=float, metavar="S", help="sessions start so far apart on average")
    traffic.add_argument("--spread-ticks", action="store_true", help="spread quantised arrivals inside their tick")
    traffic.add_argument("--speed", type=float, default=1.0, help="arrivals so many times as fast")
    traffic.add_argument("--slo-class", help="class of requests that do not name one")
    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--seeds", type=int, default=1, help="so many seeds, from --seed on")
    run.add_argument("--drill", action="append", default=[], metavar="KIND,at=S[,until=S][,worker=W][,factor=F]",
                     help=f"what goes wrong; KIND is any of {', '.join(KINDS)}")  # fmt: skip
    run.add_argument("--telemetry-period", type=float, default=0.0, metavar="S", help="between reports to the router")
    run.add_argument("--telemetry-age", type=float, default=0.0, metavar="S", help="how late a report arrives")
    run.add_argument("--leases", action="store_true", help="the router counts what it placed and cannot see yet")
    run.add_argument("--gate-ratio", type=float, default=0.9, help="gate of `guarded`")
    run.add_argument("--reject", action="store_true", help="`guarded` rejects when every pool is beyond its gate")
    run.add_argument("--reserve-ratio", type=float, default=0.1, help="share that `joint` keeps back")
    run.add_argument("--sample-period", type=float, default=1.0, metavar="S", help="of the composition; 0 takes none")
    run.add_argument("--check", action="store_true", help="assert conservation at every sample")
    run.add_argument("--bounds", action="store_true", help="prefix hits of an LRU and an oracle cache, for comparison")
    run.add_argument("--sweep", action="append", default=[], metavar="NAME=V1,V2,...", help=", ".join(SWEEPS))
    run.add_argument("--jobs", type=int, help="processes; default one, or all cores for a sweep; 0 is all cores")
    run.add_argument(
        "--ray", metavar="ADDRESS", help="run on a Ray cluster (extra `ray`): auto, local, ray://host:port"
    )
    results = parser.add_argument_group("results")
    results.add_argument("--json", action="store_true", help="print one JSON object")
    results.add_argument("--html", metavar="FILE", help="write a report in one self-contained file")
    results.add_argument("--requests", metavar="FILE", help="write one row a request (.parquet or .csv)")


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when it could not be run, 3 when an argument or a file is wrong."""
    try:
        document = _fleet_document(args.fleet)
        classes = classes_from_mapping(document) if document is not None else tuple(SLO_CLASSES.values())
        fleet = _fleet(args, document)
        trace = _trace(args, classes, args.seed)
        variants, notes = _variants(args, fleet)
        comparison = _compare(args, trace, fleet, variants, classes)
    except (RayMissingError, CancelledError) as error:
        return refuse("replay", error, EXIT_FAILED)
    except (KvscopeError, ValueError) as error:
        return refuse("replay", error)
    except KeyboardInterrupt:
        return refuse("replay", "stopped", EXIT_FAILED)
    bounds = None
    if args.bounds and trace.report.reuse_known_count:
        bounds = reuse_bounds(trace.traffic, fleet.spec)
    body = comparison_json(comparison, trace, fleet, bounds=bounds, notes=notes)
    written, problem = [], None
    try:
        written = output.write_files(args, comparison, trace, body)
    except ValueError as error:
        return refuse("replay", error, EXIT_FAILED)
    except OSError as error:
        problem = error  # A file that cannot be written must not cost the figures of a long run.
    if args.json:
        print(json.dumps(body, allow_nan=False))
    else:
        output.print_tables(body)
        for name in written:
            print(f"written: {name}")
    return 0 if problem is None else refuse("replay", problem, EXIT_FAILED)


def _fleet_document(name: str) -> dict[str, Any] | None:
    """Return the parsed fleet.toml, or None for a fleet given in another way."""
    if is_shorthand(name) or name.endswith(".json") or name.startswith(("http://", "https://")):
        return None
    try:
        with Path(name).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise FleetFileError(f"{name}: no such fleet file (or write a shorthand such as 6p2d or 8u)") from None
    except OSError as error:
        raise FleetFileError(f"{name}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FleetFileError(f"{name}: {error}") from None


def _fleet(args: argparse.Namespace, document: dict[str, Any] | None) -> ReplayFleet:
    folder = Path(args.fleet).parent
    defaults = _defaults(args)
    rules = _rules(args.rule)
    if is_shorthand(args.fleet):
        return fleet_from_shorthand(args.fleet, defaults, rules)
    if document is not None:
        own = document.get("replay", {})
        document = {**document, "replay": {**own, **rules}} if isinstance(own, Mapping) else document
        return fleet_from_mapping(
            document, defaults, load_profile=lambda path: _profile_file(folder / path), source=Path(args.fleet).name
        )
    if rules:
        raise FleetFileError("--rule goes with a shorthand or a fleet.toml")
    return fleet_from_snapshot(named_snapshot(_snapshot_text(args.fleet), args.fleet), defaults)


def _defaults(args: argparse.Namespace) -> FleetDefaults:
    return FleetDefaults(
        profile=named_profile(args.profile, lambda path: _profile_file(Path(path))),
        blocks=args.blocks,
        block_size_tokens=args.block_size,
        reserve_tokens=args.reserve_tokens,
    )


def _profile_file(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"profile {path}: {error}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f"profile {path}: not a JSON object")
    return found


def _snapshot_text(name: str) -> str | bytes:
    if name.startswith("http"):
        try:
            answer = httpx.get(f"{name.rstrip('/')}/api/snapshot", timeout=10.0)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise FleetFileError(f"{name}: no snapshot from there: {error}") from None
        return answer.content
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise FleetFileError(f"{name}: {error.strerror}") from None


def _rules(words: list[str]) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in RULES:
            raise ValueError(f"--rule {word!r}: write NAME=VALUE with any of {', '.join(RULES)}")
        rules[name] = float(value) if name == "overlap_ratio" else value
    return rules


def _range(text: str, name: str) -> tuple[int, int]:
    if not text:
        return (0, 2**62)
    low, dash, high = text.partition("-")
    try:
        found = (int(low or 0), int(high) if high else 2**62)
    except ValueError:
        found = (1, 0)
    if not dash or found[0] > found[1]:
        raise ValueError(f"--{name} is {text!r}: write LOW-HIGH, either may be left out")
    return found


def _trace(args: argparse.Namespace, classes: tuple[SloClass, ...], seed: int) -> Trace:
    labels = []
    for word in args.label:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--label {word!r}: write COLUMN=VALUE")
        labels.append((name, value))
    if is_synthetic(args.trace):
        trace = synthetic_trace(args.trace, seed=seed)
    else:
        options = TraceOptions(
            time_unit=args.time_unit,
            hash_block_tokens=args.hash_block_tokens,
            keep_failures=args.keep_failures,
        )
        trace = read_trace(trace_lines(args.trace), FORMATS, format_name=args.format, options=options)
    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit {args.limit}: keep at least 1 request, or leave it out for all")
    shaping = Shaping(
        start_s=args.from_s,
        end_s=args.to_s,
        prompt_tokens=_range(args.prompt, "prompt"),
        output_tokens=_range(args.output, "output"),
        labels=tuple(labels),
        max_count=args.limit,
        keep_ratio=args.keep_ratio,
        stagger_s=args.stagger,
        is_spread=args.spread_ticks,
        speed=args.speed,
        class_name=args.slo_class,
    )
    return shape(trace, shaping, classes, seed=seed)


def _options(args: argparse.Namespace) -> SimulationOptions:
    return SimulationOptions(
        sample_period_s=args.sample_period,
        telemetry_period_s=args.telemetry_period,
        telemetry_age_s=args.telemetry_age,
        is_leasing=args.leases,
        is_rejecting=args.reject,
        gate_ratio=args.gate_ratio,
        reserve_ratio=args.reserve_ratio,
        is_checked=args.check,
    )


def _variants(args: argparse.Namespace, fleet: ReplayFleet) -> tuple[tuple[Variant, ...], list[str]]:
    plain = variants_of(args.policies.split(","))
    variants = list(plain)
    for text in args.sweep:
        name, equals, values = text.partition("=")
        if not equals or name not in SWEEPS:
            raise ValueError(f"--sweep {text!r}: write NAME=V1,V2,... with any of {', '.join(SWEEPS)}")
        variants = [
            swept(variant, fleet.spec, name, _number(value, text))
            for variant in variants
            for value in values.split(",")
        ]
    for variant in variants:
        options_of(variant, _options(args))
    return tuple(variants), list(fleet.notes)


def _number(text: str, word: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--sweep {word!r}: {text!r} is no number") from None


def _compare(
    args: argparse.Namespace,
    trace: Trace,
    fleet: ReplayFleet,
    variants: tuple[Variant, ...],
    classes: tuple[SloClass, ...],
) -> Comparison:
    if args.seeds < 1:
        raise ValueError(f"--seeds is {args.seeds}: must be at least 1")
    process_count = args.jobs if args.jobs is not None else (0 if args.sweep else 1)
    on_progress: Callable[[float], bool] | None = None
    if sys.stderr.isatty() and not args.json:
        on_progress = _show_progress
    seeds = range(args.seed, args.seed + args.seeds)
    traffic: TrafficArrays | list[TrafficArrays] = trace.traffic
    if is_synthetic(args.trace):
        # Synthetic traffic is drawn anew for each seed: the interval then covers other draws of the same recipe.
        traffic = [trace.traffic, *(_trace(args, classes, seed).traffic for seed in seeds[1:])]
    return compare(
        traffic,
        fleet.spec,
        variants,
        seeds=seeds,
        faults=[drill_of(text) for text in args.drill],
        options=_options(args),
        classes=classes,
        tenant_names=tenant_names(trace),
        is_reuse_known=trace.report.reuse_known_count > 0,
        process_count=process_count,
        ray_address=args.ray,
        on_progress=on_progress,
    )


def _show_progress(share: float) -> bool:
    print(f"\r{share:4.0%}", end="\n" if share >= 1.0 else "", file=sys.stderr, flush=True)
    return True

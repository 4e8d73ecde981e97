"""
What replays of the shipped traces say, and checks against published figures: the tables of docs/findings_replay.md.

Run it by itself (`python -m benchmarks.replay_findings [NAME...]`): it takes minutes and is no part of `make bench`.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from scoring.model import Role
from scoring.service import PROFILES
from scoring.slo import SLO_CLASSES
from simulation.compare import Comparison, compare
from simulation.compare_variants import Variant, swept, variants_of
from simulation.fleet import FleetSpec, PoolSpec
from simulation.fleet_file import FleetDefaults, fleet_from_shorthand
from simulation.live import LiveFleet, LiveRequest
from simulation.report_json import reuse_bounds
from simulation.simulate import SimulationOptions
from simulation.trace import Trace, read_trace
from simulation.trace_formats import FORMATS
from simulation.traffic import TrafficArrays
from simulation.workload import scale_time, spread_ticks, stagger_sessions
from simulation.workload_shape import Shaping, shape

SHARED = Path(os.environ.get("KVSCOPE_SHARED", Path(__file__).resolve().parents[2] / "shared"))
CLASSES = tuple(SLO_CLASSES.values())
COMPILED = SimulationOptions(is_compiled=True)
PLAIN_POLICIES = ("round-robin", "random", "power-of-two", "lowest-utilization", "guarded", "joint")


def conversation() -> Trace:
    """Return Mooncake's conversation trace, ticks as recorded."""
    with (SHARED / "data/traces/mooncake_conversation.jsonl").open() as file:
        return read_trace(file, FORMATS)


def azure(name: str) -> Trace:
    """Return one of Azure's 2023 traces."""
    with (SHARED / f"data/traces/AzureLLMInferenceTrace_{name}.csv").open(newline="") as file:
        return read_trace(file, FORMATS)


def agents() -> Trace:
    """Return the 40 agent sessions, started 20 s apart on average."""
    with gzip.open(SHARED / "data/traces/kct_sample40_block64.jsonl.gz", "rt") as file:
        return stagger_sessions(read_trace(file, FORMATS), 20.0, seed=1)


def fleet(text: str, blocks: int, profile: str, **rules: str) -> FleetSpec:
    """Return a fleet of equal pools of 64-token blocks."""
    return fleet_from_shorthand(text, FleetDefaults(blocks=blocks, profile=PROFILES[profile]), rules).spec


def table(title: str, comparison: Comparison) -> None:
    """Print a comparison, best p99 of TTFT first."""
    print(f"\n{title}")
    heads = ("TTFT mean", "p99", "TPOT mean", "p99", "good", "hits M", "retract", "refused")
    print(" " * 30 + "".join(f"{head:>10}" for head in heads))
    ranked = sorted(comparison.variants, key=lambda item: item.report.latency["ttft_s"].p99 or np.inf)
    for item in ranked:
        report = item.report
        ttft, tpot = report.latency["ttft_s"], report.latency["tpot_s"]
        told = item.differences.get("ttft_s.mean")
        sign = "" if told is None or told.is_told is None else (" *" if told.is_told else " =")
        hits = "-" if report.prefix_hit_tokens is None else f"{report.prefix_hit_tokens / 1e6:.1f}"
        cells = (
            f"{ttft.mean:.2f} s",
            f"{ttft.p99:.2f} s",
            f"{tpot.mean * 1e3:.1f} ms",
            f"{tpot.p99 * 1e3:.0f} ms",
            f"{report.goodput_ratio:.1%}",
            hits,
            f"{report.retraction_count:,}",
            f"{report.rejected_count:,}",
        )
        print(f"{item.variant.name + sign:30}" + "".join(f"{cell:>10}" for cell in cells))
    sys.stdout.flush()


def policies(
    trace: Trace,
    spec: FleetSpec,
    names: Sequence[str] = PLAIN_POLICIES,
    *,
    speed: float = 1.0,
    class_name: str = "interactive",
    options: SimulationOptions = COMPILED,
) -> Comparison:
    """Return policies on a trace, sped up."""
    shaped = shape(trace, Shaping(speed=speed, class_name=class_name), CLASSES, seed=0)
    known = trace.report.reuse_known_count > 0
    sides = variants_of(list(names))
    return compare(shaped.traffic, spec, sides, options=options, classes=CLASSES, is_reuse_known=known)


def mooncake_figure_5() -> None:
    """Print the ordering of Mooncake's Figure 5 (random, load balancing, local cache, global) on its own trace."""
    trace = conversation()
    spec = fleet("10p6d", 8_192, "llama-3-70b-h100-tp4")
    names = ("random", "lowest-utilization", "dynamo-kv", "mooncake-min-ttft", "joint")
    # Its refusals would take the long waits out of the mean, so the budget is lifted.
    patient = tuple(replace(each, ttft_s=86_400.0, tpot_s=3_600.0) for each in CLASSES)
    # The first 2,000 requests: two of the policies run through the live decision code, milliseconds each.
    shaped = shape(trace, Shaping(speed=3.0, max_count=2_000), CLASSES, seed=0)
    found = compare(shaped.traffic, spec, variants_of(names), options=COMPILED, classes=patient)
    title = "Mooncake figure 5: conversation x3, first 2,000, 10P+6D, Llama-3-70B"
    table(f"{title} (published 19.65, 5.27, 3.58, 3.07 s)", found)


def llmd_workload(rate_per_s: float, duration_s: float, seed: int) -> TrafficArrays:
    """Return llm-d's 37-capacity workload: 83 groups of 3 prompts, 8,000 shared and 1,000 own tokens, output 1,000."""
    count = int(rate_per_s * duration_s)
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 83 * 3, count)
    block = 64
    shared, own = 8_000 // block, -(-1_000 // block)
    ids = []
    for which in prompt:
        group = which // 3
        ids.append(group * shared + np.arange(shared))
        ids.append(83 * shared + which * own + np.arange(own))
    return TrafficArrays(
        arrival_s=np.arange(count) / rate_per_s,
        prompt_tokens=np.full(count, 9_000),
        output_tokens=np.full(count, 1_000),
        offsets=np.arange(count + 1) * (shared + own),
        hash_ids=np.concatenate(ids),
        hash_block_tokens=block,
    )


def llmd_37() -> None:
    """Print llm-d's 37-capacity study: 4 pods of Llama-70B, 461,376 KV tokens each."""
    pods = tuple(
        PoolSpec(
            worker=f"u{i}",
            role=Role.UNIFIED,
            usable_tokens=461_376,
            profile=PROFILES["llama-3-70b-h100-tp4"],
            is_mixed=True,
        )
        for i in range(4)
    )
    names = ("random", "lowest-utilization", "llm-d-weighted", "dynamo-kv", "joint")
    for rate in (4.0, 6.0, 8.0):
        found = compare(llmd_workload(rate, 120.0, 1), FleetSpec(pools=pods), variants_of(names), options=COMPILED)
        table(f"llm-d 37-capacity, {rate:g} requests/s for 120 s (published: precise < default < load, random)", found)


def reserve() -> None:
    """Print what a reserve per request costs and saves: retractions against TTFT, and over-reserving."""
    trace = conversation()
    spec = fleet("2p2d", 8_192, "dynamo-mocker")
    base = Variant(name="round-robin", policy="round-robin")
    sides = [swept(base, spec, "reserve_tokens", value) for value in (0, 32, 128, 512, 1024, 4096)]
    found = compare(scale_time(trace, 2.0).traffic, spec, sides, options=COMPILED)
    print("\nreserve per request: conversation x2, 2P+2D, 8,192 blocks (vLLM #44594: retractions fall, TTFT rises)")
    heads = ("reserve", "retracted", "TTFT p50", "p99", "TPOT p99", "tokens/s")
    print("".join(f"{head:>12}" for head in heads) + f"{'recomputed M':>14}")
    for item in found.variants:
        report = item.report
        ttft = report.latency["ttft_s"]
        cells = (
            f"{item.variant.point[1]:g}" if item.variant.point else "",
            f"{report.retraction_count:,}",
            f"{ttft.p50:.1f} s",
            f"{ttft.p99:.1f} s",
            f"{report.latency['tpot_s'].p99 * 1e3:.0f} ms",
            f"{report.throughput_tokens_per_s:,.0f}",
        )
        print("".join(f"{cell:>12}" for cell in cells) + f"{report.recomputed_tokens / 1e6:>14.2f}")


def closed_loop(spec: FleetSpec, concurrency: int, prompt: int, output: int, rounds: int) -> tuple[float, float, int]:
    """
    Return mean TTFT, mean TPOT and retractions of a closed loop: a new request the moment one ends.

    The first round, in which all begin at once, is left out.
    """
    live = LiveFleet(spec, hash_block_tokens=64)
    sent = 0
    ttft: list[float] = []
    tpot: list[float] = []
    retractions = 0

    def send() -> None:
        nonlocal sent
        live.submit(LiveRequest(request_id=str(sent), prompt_tokens=prompt, output_tokens=output), 0, 0)
        sent += 1

    for _ in range(concurrency):
        send()
    total = concurrency * rounds
    now_s = 0.0
    while len(ttft) < total - concurrency:
        now_s += 0.02
        for done in live.advance(now_s):
            if int(done.request_id) >= concurrency:
                ttft.append(done.first_token_s - done.arrival_s)
                tpot.append((done.finish_s - done.first_token_s) / max(output - 1, 1))
                retractions += done.retraction_count
            if sent < total:
                send()
    return float(np.mean(ttft)), float(np.mean(tpot)), retractions


CLIFF_POINTS = tuple((4096, 1024, count) for count in (8, 16, 32, 48, 64, 96, 128))
"""Prompt, output, concurrency; five of them were measured on the real thing."""


def cliff(points: Iterable[tuple[int, int, int]] = CLIFF_POINTS) -> list[tuple[int, float]]:
    """Print TTFT against concurrency on one Qwen3-32B TP2 pool of 282,496 tokens; return (tokens resident, TTFT)."""
    pool = PoolSpec(
        worker="u0",
        role=Role.UNIFIED,
        usable_tokens=282_496,
        block_size_tokens=16,
        profile=PROFILES["qwen3-32b-h100-tp2"],
        is_mixed=True,
    )
    published = {8: 748.9, 16: 840.3, 32: 979.0, 64: 4375.8, 128: 58752.6}
    print("\nKV cliff: Qwen3-32B TP2, 4,096 + 1,024 tokens, closed loop; capacity 282,496 tokens")
    print(f"{'concurrency':>12}{'tokens':>10}{'TTFT':>9}{'published':>11}{'TPOT':>9}{'retractions':>13}")
    found = []
    for prompt, output, count in points:
        ttft, tpot, retractions = closed_loop(FleetSpec(pools=(pool,)), count, prompt, output, 3)
        known = f"{published[count] / 1e3:.2f} s" if count in published else "-"
        tokens = count * (prompt + output)
        print(f"{count:>12}{tokens:>10,}{ttft:>8.2f}s{known:>11}{tpot * 1e3:>7.0f}ms{retractions:>13,}", flush=True)
        found.append((tokens, ttft))
    return found


def scarcity() -> None:
    """Print what halving the blocks does: 2P+2D, conversation x2."""
    trace = scale_time(conversation(), 2.0)
    for blocks in (16_384, 8_192, 4_096):
        found = policies(trace, fleet("2p2d", blocks, "dynamo-mocker", handshake="after-prefill"))
        table(f"scarcity: conversation x2, 2P+2D, {blocks:,} blocks a pool, Dynamo's curve", found)


def traces() -> None:
    """Print which policy wins where on the shipped traces."""
    profile = "llama-3-70b-h100-tp4"
    talk = conversation()
    cases = (("6p2d", 16_384, 1.0), ("6p2d", 8_192, 2.0), ("12p8d", 8_192, 3.0), ("24p16d", 8_192, 6.0))
    for text, blocks, speed in cases:
        found = policies(talk, fleet(text, blocks, profile), speed=speed, class_name="long_context")
        table(f"conversation x{speed:g}, {text}, {blocks:,} blocks, Llama-3-70B", found)
        if speed == 1.0:
            print(f"bounds: {reuse_bounds(talk.traffic, fleet(text, blocks, profile))}")
    spread = policies(spread_ticks(talk, seed=1), fleet("6p2d", 8_192, profile), speed=2.0, class_name="long_context")
    table("conversation x2, 6p2d, 8,192 blocks, Llama-3-70B, ticks spread", spread)
    found = policies(agents(), fleet("3p3d", 16_384, profile), class_name="long_context")
    table("40 agent sessions, 20 s apart, 3p3d, 16,384 blocks, Llama-3-70B", found)
    for name, speed in (("code", 4.0), ("conv", 4.0)):
        found = policies(azure(name), fleet("2p2d", 4_096, profile), speed=speed)
        table(f"Azure {name} x{speed:g}, 2p2d, 4,096 blocks, Llama-3-70B", found)


def staleness() -> None:
    """Print what late telemetry does to each policy, with and without leases."""
    trace = scale_time(conversation(), 2.0)
    spec = fleet("6p4d", 8_192, "llama-3-70b-h100-tp4")
    for policy in ("lowest-utilization", "power-of-two", "joint"):
        base = Variant(name=policy, policy=policy)
        sides = [swept(base, spec, "telemetry_age_s", value) for value in (0, 1, 4, 16)]
        leased = [
            replace(side, name=f"{side.name} leased", options={**side.options, "is_leasing": True})
            for side in sides[1:]
        ]
        found = compare(trace.traffic, spec, [*sides, *leased], options=COMPILED)
        table(f"staleness: conversation x2, 6P+4D, {policy}", found)


CHECKS: dict[str, Callable[[], object]] = {
    "traces": traces,
    "scarcity": scarcity,
    "reserve": reserve,
    "cliff": cliff,
    "staleness": staleness,
    "llmd": llmd_37,
    "mooncake": mooncake_figure_5,
}


def main() -> int:
    """Print the tables named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_findings", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(CHECKS)} (default: all)")
    names = parser.parse_args().names
    unknown = sorted(set(names) - set(CHECKS))
    if unknown or not SHARED.is_dir():
        print(json.dumps({"unknown": unknown, "shared": str(SHARED), "known": list(CHECKS)}), file=sys.stderr)
        return 3
    print("* differs from the baseline's mean TTFT by a 95 % interval that excludes 0; = does not")
    for name in names or CHECKS:
        CHECKS[name]()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

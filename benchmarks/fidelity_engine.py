"""
Fidelity on a real engine: coefficients from the telemetry of one recorded load, another load predicted request by
request through the simulation.

What the client adds (HTTP, tokenizing, event loop) is no service time: the median of what TTFT of the fit's load has
beyond the simulation's is carried over as one constant, and stated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.fidelity_record import Load, Seen, read
from scoring.calibration_service import (
    DECODE_NAMES,
    PREFILL_NAMES,
    ServiceFit,
    fit_service,
    predicted_prefill_s,
    predicted_steps_s,
)
from scoring.calibration_windows import consecutive_windows, kind_of
from scoring.model import FloatArray, PoolReading, Role
from scoring.service import ServiceProfile
from simulation.fleet import FleetSpec, PoolSpec
from simulation.result import RunResult
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

PREFILL_BUDGET_TOKENS = 4096
"""What this engine's log says of `chunked_prefill_size`."""
NEW_TOKEN_RATIO = 0.7
"""SGLang's first `new_token_ratio`: the share of a request's token limit that admission keeps for it."""
PAIRS = (("busy", "light"), ("busy", "long"), ("long", "busy"), ("busy", "pressure"), ("pressure", "busy"))


@dataclass(frozen=True)
class Figure:
    """One compared figure; `predicted` and `actual` in its unit (seconds, count, share)."""

    name: str
    predicted: float
    actual: float

    @property
    def error_ratio(self) -> float:
        """Return predicted / actual - 1; 0 where both are 0."""
        if self.actual == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.actual - 1.0


@dataclass(frozen=True)
class Study:
    """One pair of loads."""

    fit_name: str
    held_name: str
    request_count: int
    overhead_s: float
    step_scatter_ratio: float
    decode_level_ratio: float
    prefill_level_ratio: float
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Fitted:
    """
    A fit of recordings.

    `decode_level_ratio` and `prefill_level_ratio`: seconds that all steps (prompts) really took over what the robust
    fit says. On a machine whose other work stretches some steps they are above 1; means are predicted with them.
    """

    service: ServiceFit
    profile: ServiceProfile
    decode_level_ratio: float
    prefill_level_ratio: float


def fitted(recordings: Sequence[Sequence[PoolReading]]) -> Fitted:
    """Return the fit of recordings' telemetry."""
    found = [each for readings in recordings for each in consecutive_windows(readings)]
    decode = [each.decode for each in found if each.decode]
    prefill = [each.prefill for each in found if each.prefill]
    service = fit_service(kind_of(recordings[0][-1]), decode, prefill, [], budget_tokens=PREFILL_BUDGET_TOKENS)
    profile = service.profile()
    steps = np.array([each.step_count for each in decode])
    took = float((steps * np.array([each.step_s for each in decode])).sum())
    decode_ratio = took / float((steps * predicted_steps_s(decode, profile)).sum())
    known = [each for each in prefill if each.request_count]
    busy_s = sum(each.busy_s for each in known)
    prefill_ratio = busy_s / sum(predicted_prefill_s(each, profile) for each in known) if known else 1.0
    profile = replace(
        profile,
        name="fitted",
        **{name: getattr(profile, name) * decode_ratio for name in DECODE_NAMES},
        **{name: getattr(profile, name) * prefill_ratio for name in PREFILL_NAMES},
    )
    return Fitted(service, profile, decode_ratio, prefill_ratio)


def replayed(profile: ServiceProfile, seen: Sequence[Seen], last: PoolReading) -> RunResult:
    """Return the simulation of the requests a client sent, on one pool like the engine's."""
    outputs = np.array([each.output_tokens for each in seen], np.int64)
    pool = PoolSpec(
        worker="w",
        role=Role.UNIFIED,
        usable_tokens=int(last.usable_tokens or 20_000),
        block_size_tokens=max(int(last.block_size_tokens or 1), 1),
        profile=profile,
        max_running_count=int(last.max_running_count or 256),
        prefill_budget_tokens=PREFILL_BUDGET_TOKENS,
        reserve_tokens=int(NEW_TOKEN_RATIO * outputs.mean()),
        is_prefix_cached=False,
    )
    traffic = TrafficArrays(
        arrival_s=np.array([each.arrival_s for each in seen]),
        prompt_tokens=np.array([each.prompt_tokens for each in seen], np.int64),
        output_tokens=outputs,
    )
    return simulate(traffic, FleetSpec(pools=(pool,)), options=SimulationOptions(sample_period_s=0.5))


def _client(seen: Sequence[Seen]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return TTFT, TPOT and E2E as clients saw them; NaN where a request failed. Each of shape (n,)."""
    first = np.array([np.nan if each.ttft_s is None else each.ttft_s for each in seen])
    whole = np.array([np.nan if each.e2e_s is None else each.e2e_s for each in seen])
    gaps = np.array([max(each.output_tokens - 1, 1) for each in seen])
    return first, (whole - first) / gaps, whole


def _rounds(folder: Path, name: str) -> list[tuple[Load, list[Seen], list[PoolReading]]]:
    return [read(path) for path in sorted(folder.glob(f"{name}.*.json"))]


def study(folder: Path, fit_name: str, held_name: str) -> Study:
    """
    Fit on all rounds of one load, predict all rounds of another.

    Raises:
        ValueError: A load was not recorded.
    """
    fit_rounds, held_rounds = _rounds(folder, fit_name), _rounds(folder, held_name)
    if not fit_rounds or not held_rounds:
        raise ValueError(f"{folder}: no recordings of {fit_name} or {held_name}; run with --engine first")
    fit = fitted([readings for _, _, readings in fit_rounds])
    beyond = [_client(seen)[0] - replayed(fit.profile, seen, rows[-1]).requests.ttft_s for _, seen, rows in fit_rounds]
    overhead_s = max(float(np.nanmedian(np.concatenate(beyond))), 0.0)
    runs = [replayed(fit.profile, seen, readings[-1]) for _, seen, readings in held_rounds]
    clients = [_client(seen) for _, seen, _ in held_rounds]
    ttft, tpot, e2e = (np.concatenate([client[at] for client in clients]) for at in range(3))
    figures = []
    for name, predicted, actual, quantiles in (
        ("TTFT", np.concatenate([run.requests.ttft_s for run in runs]) + overhead_s, ttft, (0.5, 0.95, 0.99)),
        ("TPOT", np.concatenate([run.requests.tpot_s for run in runs]), tpot, (0.95,)),
        ("E2E", np.concatenate([run.requests.e2e_s for run in runs]) + overhead_s, e2e, (0.5, 0.95)),
    ):
        known = np.isfinite(predicted) & np.isfinite(actual)
        if name != "TTFT":
            figures.append(Figure(f"{name} mean, s", float(predicted[known].mean()), float(actual[known].mean())))
        figures += [
            Figure(
                f"{name} p{q * 100:.0f}, s",
                float(np.quantile(predicted[known], q)),
                float(np.quantile(actual[known], q)),
            )
            for q in quantiles
        ]
    figures += _held_figures(runs, held_rounds)
    return Study(
        fit_name=fit_name,
        held_name=held_name,
        request_count=int(np.isfinite(e2e).sum()),
        overhead_s=overhead_s,
        step_scatter_ratio=fit.service.decode.median_error_ratio or float("nan"),
        decode_level_ratio=fit.decode_level_ratio,
        prefill_level_ratio=fit.prefill_level_ratio,
        figures=tuple(figures),
    )


def _held_figures(
    runs: Sequence[RunResult], rounds: Sequence[tuple[Load, list[Seen], list[PoolReading]]]
) -> list[Figure]:
    """Return retractions and KV use while requests arrived."""
    counts: list[tuple[float, float]] = []
    predicted: list[float] = []
    actual: list[float] = []
    for run, (_, seen, readings) in zip(runs, rounds, strict=True):
        retracted = [each.retracted_total or 0.0 for each in readings]
        counts.append((float(run.requests.retraction_count.sum()), max(retracted) - min(retracted)))
        usable = float(readings[-1].usable_tokens or 1.0)
        until_s = max(each.arrival_s for each in seen)
        start = readings[0].received_at_s
        actual += [(each.used_tokens or 0.0) / usable for each in readings if each.received_at_s - start <= until_s]
        held = run.samples.active_tokens + run.samples.fragmentation_tokens
        predicted += (held[run.samples.at_s <= until_s, 0] / usable).tolist()
    return [
        Figure("retractions", sum(each[0] for each in counts), sum(each[1] for each in counts)),
        Figure("KV used, mean share", float(np.mean(predicted)), float(np.mean(actual))),
        Figure("KV used, peak share", float(np.max(predicted)), float(np.max(actual))),
    ]


def load_words(load: Load) -> str:
    """Return a load in one line."""
    prompts, outputs = load.prompt_tokens, load.output_tokens
    return (
        f"{load.rate_per_s:g} requests/s, prompts {prompts[0]}-{prompts[1]}, outputs {outputs[0]}-{outputs[1]}, "
        f"{load.seconds:g} s"
    )

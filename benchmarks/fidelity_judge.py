"""
Predicted against measured on one pair of loads, each figure beside the floor that no model can beat: how far the
figure differs between two rounds of the very same load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.fidelity_fit import FIRST_STEPS, Fitted, fitted, replayed
from benchmarks.fidelity_loads import Recording, rounds
from benchmarks.fidelity_targets import LINEAR, Target
from scoring.model import FloatArray, PoolReading, Role
from simulation.result import RunResult

AIMS: Final = {"TPOT mean, s": 0.05, "TTFT p50, s": 0.10, "TTFT p99, s": 0.15}
"""Share by which a held-out figure may be off."""
GRID_S: Final = 1.0

Series = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Figure:
    """
    One compared figure.

    Attributes:
        name: With its unit.
        predicted: In its unit (seconds, count, share).
        actual: Over all rounds together.
        floor_ratio: (largest - smallest) / mean of the rounds by themselves; None from one round, or for what has no
            measured figure of its own.
    """

    name: str
    predicted: float
    actual: float
    floor_ratio: float | None = None

    @property
    def error_ratio(self) -> float | None:
        """Return predicted / actual - 1; 0 where both are 0, None where only the measured one is."""
        if self.actual == 0:
            return 0.0 if self.predicted == 0 else None
        return self.predicted / self.actual - 1.0

    @property
    def is_met(self) -> bool | None:
        """Say whether the error is within the aim; None where there is none."""
        aim = AIMS.get(self.name)
        error = self.error_ratio
        return None if aim is None or error is None else abs(error) <= aim


@dataclass(frozen=True)
class Study:
    """
    One pair of loads.

    Attributes:
        request_count: Held-out requests that ended well, all rounds.
        failed_count: Those that did not.
        overhead_s: Carried over from the fit's load.
        kv_gap_ratio: Mean over time of |predicted - measured| KV used, share of a pool.
        kv_floor_ratio: The same between two rounds of the same load; None from one round.
    """

    fit_name: str
    held_name: str
    law: str
    fit: Fitted
    request_count: int
    failed_count: int
    overhead_s: float
    figures: tuple[Figure, ...]
    kv_gap_ratio: float
    kv_floor_ratio: float | None

    def figure(self, name: str) -> Figure:
        """Return a figure by name; KeyError when there is none."""
        for each in self.figures:
            if each.name == name:
                return each
        raise KeyError(name)


@dataclass(frozen=True)
class _Times:
    """TTFT, TPOT and E2E of requests, NaN where unknown; each of shape (n,)."""

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray


def _ended(recording: Recording) -> Recording:
    """Return the recording without the requests that failed: what was refused took no service."""
    return replace(recording, requests=tuple(each for each in recording.requests if each.e2e_s is not None))


def _client(recording: Recording) -> _Times:
    first = np.array([np.nan if each.ttft_s is None else each.ttft_s for each in recording.requests])
    whole = np.array([np.nan if each.e2e_s is None else each.e2e_s for each in recording.requests])
    gaps = np.array([each.output_tokens - 1 if each.output_tokens > 1 else np.nan for each in recording.requests])
    return _Times(first, (whole - first) / gaps, whole)


def _predicted(target: Target, run: RunResult, overhead_s: float = 0.0) -> _Times:
    """Return what clients should see; where decode workers give the first token it comes after a step of theirs."""
    found = run.requests
    step_s = np.nan_to_num(found.tpot_s) if target.dialect == "dynamo" else np.zeros(len(found.ttft_s))
    return _Times(found.ttft_s + overhead_s + FIRST_STEPS * step_s, found.tpot_s, found.e2e_s + overhead_s + step_s)


def _quantile(share: float) -> Callable[[FloatArray], float]:
    return lambda values: float(np.quantile(values, share))


def _mean(values: FloatArray) -> float:
    return float(values.mean())


_FIGURES: Final[tuple[tuple[str, str, Callable[[FloatArray], float]], ...]] = (
    ("TTFT p50, s", "ttft_s", _quantile(0.5)),
    ("TTFT p95, s", "ttft_s", _quantile(0.95)),
    ("TTFT p99, s", "ttft_s", _quantile(0.99)),
    ("TPOT mean, s", "tpot_s", _mean),
    ("TPOT p95, s", "tpot_s", _quantile(0.95)),
    ("E2E mean, s", "e2e_s", _mean),
    ("E2E p50, s", "e2e_s", _quantile(0.5)),
    ("E2E p95, s", "e2e_s", _quantile(0.95)),
)


def _floor(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = float(np.mean(values))
    return (max(values) - min(values)) / mean if mean else 0.0


def _time_figures(predicted: Sequence[_Times], actual: Sequence[_Times]) -> list[Figure]:
    figures = []
    for name, column, take in _FIGURES:
        pairs = [(getattr(said, column), getattr(was, column)) for said, was in zip(predicted, actual, strict=True)]
        known = [(said[both], was[both]) for said, was in pairs if (both := np.isfinite(said) & np.isfinite(was)).any()]
        if not known:
            continue
        figures.append(
            Figure(
                name,
                take(np.concatenate([said for said, _ in known])),
                take(np.concatenate([was for _, was in known])),
                _floor([take(was) for _, was in known]),
            )
        )
    return figures


def _holders(recording: Recording) -> dict[str, list[PoolReading]]:
    """Return the workers in which sequences live: decode workers, or those that do both."""
    return recording.of(Role.DECODE, Role.UNIFIED)


def _grid(recording: Recording) -> FloatArray:
    """Return the seconds at which KV is compared, while requests arrived: the same in every round of a load."""
    return np.arange(0.0, recording.load.seconds, GRID_S)


def _measured_kv(recording: Recording) -> Series:
    """Return (seconds, mean share of a pool used) on a grid while requests arrived."""
    grid = _grid(recording)
    shares = []
    for readings in _holders(recording).values():
        known = [each for each in readings if each.used_tokens is not None and each.usable_tokens]
        at_s = np.array([each.received_at_s - recording.began_at_s for each in known])
        used = np.array([float(each.used_tokens or 0.0) / float(each.usable_tokens or 1.0) for each in known])
        shares.append(np.interp(grid, at_s, used) if len(known) else np.full(len(grid), np.nan))
    return grid, np.mean(shares, axis=0)


def _predicted_kv(run: RunResult, recording: Recording) -> Series:
    grid, names = _grid(recording), set(_holders(recording))
    samples = run.samples
    held = samples.active_tokens + samples.in_flight_tokens + samples.fragmentation_tokens
    places = [place for place, pool in enumerate(run.fleet.pools) if pool.worker in names]
    shares = [np.interp(grid, samples.at_s, held[:, at] / samples.usable_tokens[:, at]) for at in places]
    return grid, np.mean(shares, axis=0)


def _retracted(recording: Recording) -> float:
    """Return how many requests were retracted while a round was played; what is not counted is 0 here."""
    found = 0.0
    for readings in recording.counted(Role.DECODE, Role.UNIFIED).values():
        # The series appears with the first retraction in some engines: what is absent was 0.
        counts = [each.retracted_total or 0.0 for each in readings]
        found += max(counts) - counts[0] if counts else 0.0
    return found


def _held_figures(runs: Sequence[RunResult], held: Sequence[Recording]) -> tuple[list[Figure], float, float | None]:
    """Return retractions and KV use while requests arrived, and the mean gap of KV over time with its floor."""
    counts = [_retracted(each) for each in held]
    figures = [
        Figure(
            "retractions",
            float(sum(run.requests.retraction_count.sum() for run in runs)),
            sum(counts),
            _floor(counts),
        )
    ]
    said = [_predicted_kv(run, recording)[1] for run, recording in zip(runs, held, strict=True)]
    was = [_measured_kv(recording)[1] for recording in held]
    for name, take in (("mean", _mean), ("peak", lambda values: float(values.max()))):
        figures.append(
            Figure(
                f"KV used, {name} share of a pool",
                take(np.concatenate(said)),
                take(np.concatenate(was)),
                _floor([take(each) for each in was]),
            )
        )
    gap = float(np.mean([np.abs(one - other).mean() for one, other in zip(said, was, strict=True)]))
    floor = float(np.abs(was[0] - was[-1]).mean()) if len(was) > 1 else None
    return figures, gap, floor


def study(target: Target, folder: Path, fit_name: str, held_name: str, law: str = LINEAR) -> Study:
    """
    Fit on all rounds of one load, predict all rounds of another.

    Raises:
        StudyError: A load was not recorded, or tells too little.
    """
    known, held = [_ended(each) for each in rounds(folder, fit_name)], rounds(folder, held_name)
    asked_count = sum(len(each.requests) for each in held)
    held = [_ended(each) for each in held]
    fit = fitted(target, known, law)
    beyond = [_client(each).ttft_s - _predicted(target, replayed(target, fit, each)).ttft_s for each in known]
    overhead_s = max(float(np.nanmedian(np.concatenate(beyond))), 0.0)
    runs = [replayed(target, fit, each) for each in held]
    clients = [_client(each) for each in held]
    figures, gap, floor = _held_figures(runs, held)
    count = sum(len(each.requests) for each in held)
    return Study(
        fit_name=fit_name,
        held_name=held_name,
        law=law,
        fit=fit,
        request_count=count,
        failed_count=asked_count - count,
        overhead_s=overhead_s,
        figures=(*_time_figures([_predicted(target, run, overhead_s) for run in runs], clients), *figures),
        kv_gap_ratio=gap,
        kv_floor_ratio=floor,
    )

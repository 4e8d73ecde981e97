"""
Runs for the backtest: the demo's fleet in seeded scenarios, read as the collector reads it, and recordings of a
real one. Out come pool histories and the instants of retractions.

The fleet is the demo's own (`demo.fleet`), driven by an injected clock without network; what it publishes goes
through the wire's rows and the SGLang dialect, so the alarm sees what it would see of a live worker, once a second.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from demo.fleet import TICK_S, DemoFleet
from demo.recording import read_recording
from demo.scenarios import Phase, Scenario
from demo.traffic import BATCH, INTERACTIVE, LONG_CONTEXT, REASONING, TrafficMix
from scoring.model import PoolHistory, PoolReading, Role, WorkerReading, pool_id, signal_names

SPEED: Final = 4.0
"""Virtual seconds a second of the fleet's clock: a look each 0.2 s instead of each 0.05 s, undone in the readings."""
WORKER_COUNT: Final = 4
"""One prefill, two decode (two ranks each, the second smaller), one unified: five pools that can retract."""
RUN_S: Final = 150.0
POLL_S: Final = 1.0
START_S: Final = 1_780_000_000.0
_EVERYDAY: Final = {INTERACTIVE: 0.62, BATCH: 0.31, LONG_CONTEXT: 0.07}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    One run, read.

    Attributes:
        name: Scenario or file.
        seed: Of the run; None for a recording.
        histories: Pool id -> its samples, oldest first. Only pools that can retract.
        retractions: Pool id -> instants at which its retraction counter had grown, ascending.
        duration_s: Length of the run.
    """

    name: str
    seed: int | None
    histories: Mapping[str, PoolHistory]
    retractions: Mapping[str, tuple[float, ...]]
    duration_s: float


def _mix(rate_per_s: float, shares: Mapping[Any, float], burst_factor: float = 1.5) -> TrafficMix:
    return TrafficMix(rate_per_s=rate_per_s, shares=shares, burst_factor=burst_factor)


def _calm(draw: random.Random) -> tuple[Phase, ...]:
    """Everyday traffic at a third to two thirds of the room."""
    return (Phase(start_s=0.0, mix=_mix(draw.uniform(8.0, 16.0), _EVERYDAY)),)


def _rush(draw: random.Random) -> tuple[Phase, ...]:
    """The same in bursts of several times the rate."""
    return (Phase(start_s=0.0, mix=_mix(draw.uniform(10.0, 16.0), _EVERYDAY, draw.uniform(3.0, 7.0))),)


def _full(draw: random.Random) -> tuple[Phase, ...]:
    """More short work than fits: admission is full and queues, nothing outgrows its promise for long."""
    shares = {INTERACTIVE: draw.uniform(0.3, 0.6), BATCH: draw.uniform(0.4, 0.7)}
    rate = draw.uniform(16.0, 30.0)
    return (
        Phase(start_s=0.0, mix=_mix(9.0, _EVERYDAY)),
        Phase(start_s=draw.uniform(15.0, 40.0), mix=_mix(rate, shares)),
    )


def _wave(draw: random.Random) -> tuple[Phase, ...]:
    """A crowd of long answers of one age, higher or lower: some waves break, some only lap."""
    start = draw.uniform(25.0, 60.0)
    end = start + draw.uniform(5.0, 14.0)
    long = {REASONING: draw.uniform(0.6, 1.0), INTERACTIVE: 0.2}
    return (
        Phase(start_s=0.0, mix=_mix(draw.uniform(6.0, 11.0), _EVERYDAY)),
        Phase(start_s=start, mix=TrafficMix(rate_per_s=draw.uniform(50.0, 150.0), shares=long)),
        Phase(start_s=end, mix=_mix(draw.uniform(4.0, 9.0), _EVERYDAY)),
    )


def _creep(draw: random.Random) -> tuple[Phase, ...]:
    """Answers get longer step by step, so that pools fill over minutes."""
    rate = draw.uniform(12.0, 30.0)
    steps = [0.0, 0.2, 0.4, 0.6, 0.8]
    return tuple(
        Phase(start_s=25.0 * i, mix=_mix(rate, {INTERACTIVE: 0.7 - 0.6 * share, REASONING: 0.001 + share, BATCH: 0.2}))
        for i, share in enumerate(steps)
    )


FAMILIES: Final[Mapping[str, Callable[[random.Random], tuple[Phase, ...]]]] = {
    "calm": _calm,
    "rush": _rush,
    "full": _full,
    "wave": _wave,
    "creep": _creep,
}


def scenario_of(family: str, seed: int) -> Scenario:
    """Return the course of events of one seed of a family; equal for equal arguments."""
    phases = FAMILIES[family](random.Random(f"{family}-{seed}"))
    return Scenario(name=family, summary=f"backtest {family}, seed {seed}", phases=phases)


def simulate(family: str, seed: int, duration_s: float = RUN_S) -> Run:
    """Return one simulated run, read each second; equal for equal arguments."""
    clock = [START_S]
    fleet = DemoFleet(
        scenario_of(family, seed),
        seed=seed,
        speed=SPEED,
        worker_count=WORKER_COUNT,
        clock=lambda: clock[0],
        max_lag_s=None,
    )
    fleet.begin()
    columns = _Columns()
    seen: dict[str, int] = {}
    retractions: dict[str, list[float]] = {}
    per_poll = round(POLL_S / (TICK_S * SPEED))
    for tick in range(1, round(duration_s / (TICK_S * SPEED)) + 1):
        clock[0] = START_S + tick * TICK_S
        fleet.advance(clock[0])
        at_s = START_S + tick * TICK_S * SPEED
        for worker in fleet.workers:
            if worker.plan.mode == "prefill":
                continue
            for facts, state in zip(worker.plan.ranks, worker.published, strict=True):
                name = pool_id(worker.name, facts.dp_rank)
                if state.retracted_total > seen.get(name, 0):
                    retractions.setdefault(name, []).append(at_s)
                seen[name] = state.retracted_total
        if tick % per_poll == 0:
            for worker in fleet.workers:
                if worker.plan.mode == "prefill":
                    continue
                body = msgspec.json.encode({**worker.head(), "loads": worker.rows()})
                info = msgspec.json.encode(worker.server_info()) if tick == per_poll else None
                columns.take(worker.name, _understood(worker.name, body, info, columns.facts), at_s, SPEED)
    return Run(
        name=family,
        seed=seed,
        histories=columns.histories(),
        retractions={name: tuple(times) for name, times in retractions.items()},
        duration_s=duration_s,
    )


def _understood(name: str, body: bytes, info: bytes | None, facts: dict[str, Answer]) -> WorkerReading | None:
    if info is not None:
        facts[name] = Answer(status=200, content_type="application/json", body=info, received_at_s=0.0)
    answers = {"/v1/loads": Answer(status=200, content_type="application/json", body=body, received_at_s=0.0)}
    if name in facts:
        answers["/server_info"] = facts[name]
    found = ENGINES["sglang"].understand(answers)
    return found if isinstance(found, WorkerReading) else None


class _Columns:
    """Readings becoming columns."""

    def __init__(self) -> None:
        self.facts: dict[str, Answer] = {}
        self._rows: dict[str, list[PoolReading]] = {}

    def take(self, worker_id: str, reading: WorkerReading | None, at_s: float, speed: float) -> None:
        """Keep what a worker said; seconds of a faster fleet become seconds of life."""
        for pool in () if reading is None else reading.pools:
            if pool.usable_tokens is None:
                continue  # Nothing published yet.
            row = replace(pool, worker_id=worker_id, received_at_s=at_s)
            self._rows.setdefault(pool_id(worker_id, pool.dp_rank), []).append(_in_life(row, at_s, speed))

    def histories(self) -> dict[str, PoolHistory]:
        """Return one history a pool."""
        found = {}
        for name, rows in sorted(self._rows.items()):
            if rows[-1].role is Role.PREFILL:
                continue
            columns = {
                signal: np.array([_or_nan(getattr(row, signal)) for row in rows], np.float64)
                for signal in signal_names()
            }
            kept = {signal: column for signal, column in columns.items() if np.isfinite(column).any()}
            at_s = np.array([row.received_at_s for row in rows])
            found[name] = PoolHistory(last=rows[-1], at_s=at_s, columns=kept)
        return found


def _in_life(reading: PoolReading, at_s: float, speed: float) -> PoolReading:
    if speed == 1.0:
        return reading
    changes: dict[str, Any] = {"answered_at_s": None}
    if reading.reported_at_s is not None:
        changes["reported_at_s"] = START_S + (reading.reported_at_s - START_S) * speed
    for name in signal_names():
        value = getattr(reading, name)
        if value is None:
            continue
        if name.endswith("_s_total"):
            changes[name] = value * speed
        elif name.endswith("_per_s"):
            changes[name] = value / speed
    return replace(reading, received_at_s=at_s, **changes)


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def recorded(path: Path) -> Run:
    """
    Return the run in a recording of SGLang's `/v1/loads` bodies.

    A rise of the retraction counter is an event where the recording carries one; else a queue of retracted requests
    that appears or grows.
    """
    recording = read_recording(path)
    columns = _Columns()
    for origin, paths in sorted(recording.tracks.items()):
        for entry in paths.get("/v1/loads", []):
            reading = _understood(origin, msgspec.json.encode(entry.body), None, columns.facts)
            columns.take(origin.rpartition("//")[2], reading, entry.t, 1.0)
    histories = columns.histories()
    retractions = {name: found for name, past in histories.items() if (found := _seen_retractions(past))}
    return Run(
        name=path.name,
        seed=None,
        histories=histories,
        retractions=retractions,
        duration_s=recording.end_s - recording.start_s,
    )


def _seen_retractions(past: PoolHistory) -> tuple[float, ...]:
    for name in ("retracted_total", "queue_retracted_count"):
        column = past.columns.get(name)
        if column is not None and np.isfinite(column).any():
            rises = np.diff(np.nan_to_num(column)) > 0
            return tuple(float(at) for at in past.at_s[1:][rises])
    return ()


def runs_of(seed_count: int) -> Iterator[tuple[str, int]]:
    """Yield (family, seed) in a fixed order: seeds go round the families, so that any prefix is balanced."""
    names = list(FAMILIES)
    for seed in range(seed_count):
        yield names[seed % len(names)], seed

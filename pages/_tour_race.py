"""
The tour's race: policies on the same requests over a copy of the running fleet, simulated in a process of its own
so that the server goes on drawing.

One race a server, shared by its viewers: a second viewer of the step sees the one that runs. No Streamlit in here.
"""

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from pages.figures.tour_story import Race
from scoring.model import FleetSnapshot, Role
from scoring.service import PROFILES, ServiceProfile
from simulation.compare import Comparison, compare
from simulation.compare_paired import Interval
from simulation.compare_variants import Variant
from simulation.compiled import is_ready
from simulation.faults import Fault
from simulation.fleet import FleetSpec
from simulation.fleet_file import FleetDefaults, fleet_from_snapshot
from simulation.report import RunReport, is_good
from simulation.simulate import SimulationOptions
from simulation.workload import LengthMix, Synthesis, synthesise

PROFILE: Final[ServiceProfile] = PROFILES["qwen3-32b-h100-tp2"]
"""Published service times; telemetry tells rates, not coefficients."""
TRAFFIC: Final = Synthesis(
    rate_per_s=14.0,
    duration_s=45.0,
    arrivals="gamma",
    burstiness=6.0,
    mixes=(
        LengthMix(
            weight=0.9, prompt_median_tokens=900.0, prompt_sigma=0.7, output_median_tokens=900.0, output_sigma=0.6
        ),
        LengthMix(
            weight=0.1, prompt_median_tokens=8_000.0, prompt_sigma=0.5, output_median_tokens=300.0, output_sigma=0.6
        ),
    ),
)
"""Chosen: bursts of long answers with some long prompts among them, about half of what the demo's decode pools hold."""
SLOW_RATIO: Final = 0.02
"""Chosen: what is left of a congested link's rate, as in the demo's scenario `two-choices`."""
ROOM_TOKENS: Final = 1_441_792.0
"""Decode room of the demo fleet, which the rate above is chosen for; other fleets get it in proportion."""
MOST_REQUESTS: Final = 2_000
"""Chosen: a race must be over while somebody talks."""
TELEMETRY: Final = SimulationOptions(telemetry_period_s=1.0, telemetry_age_s=1.0)
LOW, COUNTED, JOINT = "lowest-utilization", "lowest-utilization-leases", "joint"
"""What races: the plain rule, the same rule counting its own promises, and the joint cost, which counts them too.
The one between tells how much of the difference is memory and how much is judgement."""
_END_S: Final = 5.0
REVEAL_S: Final = 14.0
"""Wall seconds in which a finished race is drawn from its start to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What came of a race.

    Attributes:
        race: The curves.
        reports: Policy name -> figures of its run.
        goodput: Share of requests within their promise, joint less lowest utilization, with its interval.
    """

    race: Race
    reports: dict[str, RunReport]
    goodput: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceState:
    """
    Where the race stands.

    Attributes:
        request_count: Requests of one run, 0 until they are drawn.
        progress_ratio: Share of the work done, 0 to 1.
        outcome: None until it is over.
        problem: Why it could not run, "" when it can.
    """

    request_count: int = 0
    progress_ratio: float = 0.0
    outcome: Outcome | None = None
    problem: str = ""


class Racer:
    """Runs at most one race at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: RaceState | None = None
        self._thread: threading.Thread | None = None
        self._seed = 0

    def state(self, fleet: FleetSnapshot, *, again: bool = False) -> RaceState:
        """Return where the race stands; begin one where there is none yet, or `again` and none is running."""
        with self._lock:
            is_running = self._thread is not None and self._thread.is_alive()
            if not is_running and (self._state is None or again):
                self._seed += 1
                self._state = RaceState()
                self._thread = threading.Thread(
                    target=self._follow, args=(fleet, self._seed), name="kvscope-tour-race", daemon=True
                )
                self._thread.start()
            return self._state or RaceState()

    def wait(self, timeout_s: float) -> None:
        """Wait until the race that runs is over, for tests."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._state = replace(self._state or RaceState(), **changes)

    def _follow(self, fleet: FleetSnapshot, seed: int) -> None:
        """Start the process and take what it says until it ends."""
        # Spawned: a fork of a server with threads would copy their locks in any state.
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe(duplex=False)
        process = spawning.Process(target=_serve, args=(fleet, seed, theirs), daemon=True, name="kvscope-tour-race")
        process.start()
        theirs.close()
        while True:
            try:
                kind, value = ours.recv()
            except (EOFError, OSError):
                process.join(_END_S)
                kind, value = "failed", f"the simulation ended with status {process.exitcode}"
            if kind == "count":
                self._set(request_count=value)
            elif kind == "progress":
                self._set(progress_ratio=min(max(value, 0.0), 1.0))
            elif kind == "done":
                self._set(outcome=value, progress_ratio=1.0)
            else:
                self._set(problem=str(value))
            if kind in ("done", "failed"):
                break
        process.join(_END_S)
        ours.close()


def _serve(fleet: FleetSnapshot, seed: int, pipe: Connection) -> None:
    """Run the race and report through the pipe."""

    def heard(ratio: float) -> bool:
        pipe.send(("progress", ratio))
        return True

    with suppress(BrokenPipeError):  # the server is gone; nobody waits for the answer.
        try:
            comparison = race(fleet, seed, heard, lambda count: pipe.send(("count", count)))
            pipe.send(("done", outcome_of(comparison)))
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 # whatever went wrong is told on the page instead of a silent end.
            pipe.send(("failed", f"{type(error).__name__}: {error}"))


def congested(spec: FleetSpec) -> tuple[str, ...]:
    """Return the workers whose links are congested in the race: two of many that decode, one of few, none of one."""
    names = sorted({pool.worker for pool in spec.pools if pool.role is Role.DECODE})
    return tuple(names[1:4:2]) if len(names) >= 4 else tuple(names[1:2])


def race(
    fleet: FleetSnapshot,
    seed: int,
    on_progress: Callable[[float], bool] | None = None,
    on_count: Callable[[int], None] | None = None,
) -> Comparison:
    """
    Return what each policy does with the same requests over a copy of `fleet`.

    Raises:
        ValueError: The fleet has no pools of known size that could serve.
    """
    spec = fleet_from_snapshot(fleet, FleetDefaults(profile=PROFILE)).spec
    room = sum(pool.usable_tokens for pool in spec.pools if pool.role is Role.DECODE) or sum(
        pool.usable_tokens for pool in spec.pools
    )
    rate = min(TRAFFIC.rate_per_s * room / ROOM_TOKENS, MOST_REQUESTS / TRAFFIC.duration_s)
    traffic = synthesise(replace(TRAFFIC, rate_per_s=rate), seed=seed).traffic
    if on_count is not None:
        on_count(len(traffic))
    # Compiling takes half a minute: only where it has been done before.
    options = replace(TELEMETRY, is_compiled=True) if is_ready() else TELEMETRY
    variants = (
        Variant(name=LOW, policy=LOW),
        Variant(name=COUNTED, policy=LOW, options={"is_leasing": True}),
        Variant(name=JOINT, policy=JOINT, options={"is_leasing": True}),
    )
    faults = [Fault(kind="slow-link", at_s=0.0, worker=name, factor=SLOW_RATIO) for name in congested(spec)]
    return compare(traffic, spec, variants, seeds=(seed,), faults=faults, options=options, on_progress=on_progress)


def outcome_of(comparison: Comparison) -> Outcome:
    """Return curves, figures and the difference of a finished comparison."""
    goodput = comparison.of(JOINT).differences.get("goodput_ratio", Interval(difference=None, low=None, high=None))
    reports = {item.variant.name: item.report for item in comparison.variants}
    return Outcome(race=curves(comparison), reports=reports, goodput=goodput)


def curves(comparison: Comparison, points: int = 120) -> Race:
    """Return requests that broke their promise so far, by arrival, for each policy."""
    results = {item.variant.name: item.result for item in comparison.variants}
    end_s = max(float(result.requests.arrival_s.max()) for result in results.values() if result is not None)
    at_s = np.linspace(0.0, end_s, points)
    missed = {}
    for name, result in results.items():
        if result is None:
            raise ValueError(f"the run of {name} was not kept whole")
        late = np.sort(result.requests.arrival_s[~is_good(result, TELEMETRY.slo_classes)])
        missed[name] = np.searchsorted(late, at_s, side="right").astype(np.float64)
    return Race(at_s=at_s, missed=missed, names=(LOW, COUNTED, JOINT))


def reveal_s(race: Race, since_s: float) -> float:
    """Return up to which second of the run a race is drawn, so long after a viewer first saw it finished."""
    return float(race.at_s[-1]) * min(1.0, since_s / REVEAL_S)


RACER: Final = Racer()
"""The server's one."""

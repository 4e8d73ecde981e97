"""
One replay in a process of its own, so that the server goes on serving and a cancel ends it at once. No Streamlit.

`start` gives a `Work`; its owner asks `poll()` now and then. The process dies with the server.
"""

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from collectors.errors import KvscopeError
from collectors.trace_files import trace_lines
from scoring.slo import SLO_CLASSES, SloClass
from simulation.compare import Comparison, compare
from simulation.compare_variants import drill_of, swept, variants_of
from simulation.fleet_file import ReplayFleet
from simulation.report_json import comparison_json
from simulation.report_series import series_json
from simulation.simulate import SimulationOptions
from simulation.trace import Trace, read_trace
from simulation.trace_formats import FORMATS
from simulation.workload_shape import Shaping, is_synthetic, shape, synthetic_trace, tenant_names

_END_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """
    What to replay.

    Attributes:
        source: Path of a traffic file, or the text of a synthetic recipe.
        is_source_ours: The file is a temporary one of ours and goes when the replay ends.
        shaping: Filters and scaling.
        fleet: What serves.
        policies: Names; the first is the baseline.
        drills: Texts as `drill_of` takes them.
        options: How to run.
        classes: SLO classes by id.
        seed_count: Runs of each variant, seeds from 0.
        sweep: (name, values) or None.
    """

    source: str
    is_source_ours: bool = False
    shaping: Shaping = field(default_factory=Shaping)
    fleet: ReplayFleet
    policies: tuple[str, ...]
    drills: tuple[str, ...] = ()
    options: SimulationOptions = field(default_factory=SimulationOptions)
    classes: tuple[SloClass, ...] = tuple(SLO_CLASSES.values())
    seed_count: int = 1
    sweep: tuple[str, tuple[float, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What came of it.

    Attributes:
        body: Figures (`report_json.comparison_json`).
        series: What is drawn (`report_series.series_json`).
        comparison: The runs themselves, for moments and exports.
        trace: The traffic.
    """

    body: dict[str, Any]
    series: dict[str, Any]
    comparison: Comparison
    trace: Trace


def _traffic(order: Order, seed: int) -> Trace:
    if is_synthetic(order.source):
        trace = synthetic_trace(order.source, seed=seed)
    else:
        trace = read_trace(trace_lines(order.source), FORMATS)
    return shape(trace, order.shaping, order.classes, seed=seed)


def carry_out(order: Order, on_progress: Callable[[float], bool] | None = None) -> Outcome:
    """
    Run an order here.

    Raises:
        ValueError: something in it is wrong; the message says what.
        KvscopeError: the traffic cannot be read.
        CancelledError: `on_progress` said False.
    """
    seeds = range(max(order.seed_count, 1))
    trace = _traffic(order, seeds[0])
    traffics = [trace.traffic] * len(seeds)
    if is_synthetic(order.source):
        traffics = [trace.traffic, *(_traffic(order, seed).traffic for seed in seeds[1:])]
    variants = variants_of(order.policies)
    if order.sweep is not None:
        name, values = order.sweep
        variants = tuple(swept(variant, order.fleet.spec, name, value) for variant in variants for value in values)
    comparison = compare(
        traffics,
        order.fleet.spec,
        variants,
        seeds=seeds,
        faults=[drill_of(text) for text in order.drills],
        options=order.options,
        classes=order.classes,
        tenant_names=tenant_names(trace),
        is_reuse_known=trace.report.reuse_known_count > 0,
        on_progress=on_progress,
    )
    body = comparison_json(comparison, trace, order.fleet, notes=order.fleet.notes)
    return Outcome(body=body, series=series_json(comparison), comparison=comparison, trace=trace)


def _serve(order: Order, pipe: Connection) -> None:
    """Carry out the order and report through the pipe: ("progress", share), then ("done", ...) or ("failed", why)."""

    def heard(share: float) -> bool:
        pipe.send(("progress", share))
        return True

    try:
        pipe.send(("done", carry_out(order, heard)))
    except (ValueError, KvscopeError) as error:
        pipe.send(("failed", str(error)))
    except BrokenPipeError:
        return  # the server is gone; nobody waits for the answer.
    except Exception as error:  # noqa: BLE001 # whatever went wrong is told on the page instead of a silent end.
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


class Work:
    """
    A replay under way.

    Attributes:
        state: "running", "done", "failed" or "cancelled".
        share: Share done; None until the traffic is read and the kernel compiled.
        outcome: When done.
        reason: When failed.
    """

    def __init__(self, order: Order) -> None:
        """Start the process."""
        self.order = order
        self.state = "running"
        self.share: float | None = None
        self.outcome: Outcome | None = None
        self.reason = ""
        # Spawned: a fork of a server with threads would copy their locks in any state.
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe(duplex=False)
        self._process = spawning.Process(target=_serve, args=(order, theirs), daemon=True, name="kvscope-replay")
        self._process.start()
        theirs.close()

    def poll(self) -> str:
        """Take what the process has said since and return the state."""
        while self.state == "running":
            try:
                if not self._pipe.poll():
                    return self.state
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                kind, value = "failed", f"the replay ended with status {self._process.exitcode}"
            if kind == "progress":
                self.share = float(value)
            elif kind == "done":
                self.state, self.outcome = "done", value
                self._finish()
            else:
                self.state, self.reason = "failed", str(value)
                self._finish()
        return self.state

    def cancel(self) -> None:
        """End it; nothing is kept."""
        if self.state == "running":
            self.state = "cancelled"
            self._process.terminate()
            self._finish()

    def _finish(self) -> None:
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
        self._pipe.close()
        if self.order.is_source_ours:
            with suppress(OSError):
                Path(self.order.source).unlink()

"""
One run: traffic on a fleet under a policy, from the first arrival until nothing is left.

The same traffic, fleet, policy, options and seed give the same bytes. Read next: `result`, `faults`, `engine`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from scoring.model import FloatArray
from scoring.slo import SLO_CLASSES, SloClass
from simulation import engine
from simulation import layout as lay
from simulation.audit import audit
from simulation.blocks import hit_units
from simulation.compiled import Flat, compiled_run, is_ready, pack
from simulation.faults import Fault, fault_events, recovery, with_bursts
from simulation.fleet import FleetSpec
from simulation.layout import State
from simulation.result import RunResult, counter_columns, itl_edges_s, request_columns, sample_columns
from simulation.state import ends_of, make_state
from simulation.traffic import IntArray, TrafficArrays
from simulation.views import held_ratio, pick_row, waiting_tokens

POLICIES: Final = {
    "round-robin": lay.POLICY_ROUND_ROBIN,
    "random": lay.POLICY_RANDOM,
    "lowest-utilization": lay.POLICY_LOWEST,
    "power-of-two": lay.POLICY_TWO,
    "guarded": lay.POLICY_GUARDED,
    "joint": lay.POLICY_JOINT,
}
"""Built into the kernel. Prefill pools: fewest prompt tokens waiting; decode and unified pools: least ratio held."""
PROGRESS_PERIOD_S: Final = 60.0
_SAMPLES_MAX_BYTES: Final = 4 * 2**30
PLAIN_REQUESTS: Final = 5000
"""Traffic up to here runs plain when the compiled kernel is not at hand (a few seconds against half a minute)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalView:
    """
    What a policy may know of a request that arrives; the output length is not among it.

    Attributes:
        row: The request's row in the traffic.
        at_s: Now (later than the arrival when its worker died and it is placed again).
        prompt_tokens: To be computed; tokens already generated included when placed again.
        hit_tokens: Prompt tokens that each pool's cache holds now (routers learn this from KV events). Shape (pools,).
        class_id: SLO class.
        tenant_id: Tenant.
    """

    row: int
    at_s: float
    prompt_tokens: int
    hit_tokens: IntArray
    class_id: int
    tenant_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """
    What a policy sees of the pools, as old as telemetry is; each array of shape (pools,).

    Attributes:
        at_s: Now.
        seen_at_s: When the pools reported this; NaN before the first report has come through (then all is 0).
        usable_tokens: Capacity.
        held_ratio: (active + in flight + fragmentation + leased) / usable.
        waiting_tokens: Prompt tokens waiting to be computed, leased ones included.
        columns: Raw telemetry, (pools, layout.NX).
        prefill: Indices of pools that may be given prompts for others.
        decode: Indices of pools that may be given sequences computed elsewhere.
        unified: Indices of pools that may do both.
    """

    at_s: float
    seen_at_s: float
    usable_tokens: FloatArray
    held_ratio: FloatArray
    waiting_tokens: FloatArray
    columns: FloatArray
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    unified: tuple[int, ...]


class Policy(Protocol):
    """A policy in Python, asked at each arrival."""

    def choose(self, request: ArrivalView, fleet: FleetView) -> tuple[int, int] | None:
        """Return (prefill, decode) pool indices, the same twice for a unified pool, or None to reject."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """
    How to run.

    Attributes:
        sample_period_s: Between samples of composition; 0 takes none.
        telemetry_period_s: Between reports of the pools to the router; 0 shows it the present.
        telemetry_age_s: How long a report takes to reach it.
        is_leasing: Whether the router adds what it placed and cannot see yet.
        is_rejecting: Whether "guarded" rejects when every pool is beyond the gate (else it takes the least held).
        gate_ratio: Its gate on (held + prompt) / usable.
        reserve_ratio: Share of usable that "joint" keeps back.
        slo_classes: By class id, for "joint"; ids beyond take the last.
        is_checked: Assert conservation at every sample tick (or every second) and at the end.
        is_compiled: Compiled kernel, or the same source as plain Python; both give the same bytes. None compiles
            only for traffic that is worth it: compiling takes half a minute once in a checkout.
        until_s: Stop there; None runs until nothing is left.

    Raises:
        ValueError: naming field and value.
    """

    sample_period_s: float = 1.0
    telemetry_period_s: float = 0.0
    telemetry_age_s: float = 0.0
    is_leasing: bool = False
    is_rejecting: bool = False
    gate_ratio: float = 0.9
    reserve_ratio: float = 0.1
    slo_classes: tuple[SloClass, ...] = field(default=tuple(SLO_CLASSES.values()))
    is_checked: bool = False
    is_compiled: bool | None = None
    until_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("sample_period_s", "telemetry_period_s", "telemetry_age_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}: must be a finite number of at least 0")
        if self.telemetry_age_s > 0 and self.telemetry_period_s == 0:
            raise ValueError(f"telemetry_age_s is {self.telemetry_age_s}: needs a telemetry_period_s above 0")
        for name in ("gate_ratio", "reserve_ratio"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value}: must be in (0, 1]")
        if not self.slo_classes:
            raise ValueError("slo_classes is empty: give at least one")


class _Kernel:
    """The state of a run in the form its kernel takes, and the step function."""

    def __init__(self, state: State, is_compiled: bool) -> None:
        self.is_compiled = is_compiled
        self.run: Callable[[Any, float], int] = compiled_run() if is_compiled else engine.run
        self.put(state)

    def put(self, state: State) -> None:
        """Take a state of arrays; `self.state` is then the arrays that the kernel works on."""
        self.state = state
        self.form: Flat | State
        if self.is_compiled:
            self.form, self.state = pack(state)
            self.plain = plain_state(self.state)
        else:
            self.form = self.plain = plain_state(state)

    def grow_samples(self) -> None:
        """Make room for twice as many samples."""
        samples = self.state.samples
        grown = np.zeros((2 * len(samples) + 64, *samples.shape[1:]))
        grown[: len(samples)] = samples
        self.put(self.state._replace(samples=grown))


def plain_state(state: State) -> State:
    """Return a State of memoryviews of the same memory, for plain Python: Python numbers in and out."""
    return State(*(memoryview(table) if table.size else table for table in state))


def _fill(state: State, traffic: TrafficArrays, keys: IntArray) -> None:
    """Put the traffic into the request rows."""
    count = len(traffic)
    columns = (
        (lay.R_PROMPT, traffic.prompt_tokens),
        (lay.R_OUTPUT, traffic.output_tokens),
        (lay.R_OFFSET, traffic.offsets[:-1]),
        # A hash of a block that the prompt fills only in part is shared with nobody.
        (lay.R_KEYS, np.minimum(np.diff(traffic.offsets), traffic.prompt_tokens // traffic.hash_block_tokens)),
        (lay.R_CLASS, traffic.class_ids),
    )
    for column, values in columns:
        state.ri[:count, column] = values
    state.rf[:count, lay.F_ARRIVAL] = traffic.arrival_s
    state.rf[:count, lay.F_BYTES] = 0.0
    state.keys[: len(keys)] = keys
    state.order[:count] = np.argsort(traffic.arrival_s, kind="stable")
    state.g[lay.G_COUNT] = state.g[lay.G_ARRIVALS] = count


def _dense_keys(hash_ids: IntArray) -> IntArray:
    """Return ids from 0 in the place of any ids: the kernel's table multiplies them."""
    if not len(hash_ids):
        return hash_ids
    if hash_ids.max() < 4 * len(hash_ids):
        return hash_ids
    return np.asarray(np.unique(hash_ids, return_inverse=True)[1].reshape(-1), np.int64)


def _set_options(state: State, options: SimulationOptions, policy_code: int, last_arrival_s: float) -> State:
    g, gf = state.g, state.gf
    g[lay.G_POLICY] = policy_code
    # Round robin and random never look, so they never learn that a lease has become visible either.
    is_looking = policy_code not in (lay.POLICY_ROUND_ROBIN, lay.POLICY_RANDOM)
    g[lay.G_LEASES] = int(options.is_leasing and is_looking)
    g[lay.G_ON_FULL] = int(options.is_rejecting)
    gf[lay.V_GATE] = options.gate_ratio
    gf[lay.V_PERIOD] = options.sample_period_s
    gf[lay.V_AGE] = options.telemetry_age_s
    gf[lay.V_TELEMETRY_PERIOD] = options.telemetry_period_s
    if options.telemetry_period_s > 0:
        gf[lay.V_TELEMETRY] = 0.0
    weights = np.array(
        [(*c.weights.as_tuple(), c.ttft_s, c.tpot_s, options.reserve_ratio) for c in options.slo_classes]
    )
    state = state._replace(weights=weights)
    if options.sample_period_s > 0:
        gf[lay.V_SAMPLE] = 0.0
        ticks = int(last_arrival_s / options.sample_period_s) + 256
        if ticks * len(state.pi) * lay.NX * 8 > _SAMPLES_MAX_BYTES:
            raise ValueError(
                f"the last request arrives after {last_arrival_s:.3g} s, too late to sample {len(state.pi)} pools every"
                f" {options.sample_period_s:g} s: cut the traffic or sample less often"
            )
        state = state._replace(samples=np.zeros((ticks, len(state.pi), lay.NX)))
    return state


def simulate(
    traffic: TrafficArrays,
    fleet: FleetSpec,
    policy: str | Policy = "round-robin",
    seed: int = 0,
    faults: Sequence[Fault] = (),
    options: SimulationOptions | None = None,
    *,
    on_progress: Callable[[float, int], bool] | None = None,
) -> RunResult:
    """
    Run traffic on a fleet.

    A request that no pool it is sent to can ever hold ends as "too_large"; one with output 0 ends with its prefill.
    Requests whose worker dies are placed again and keep the tokens they have given.

    Args:
        traffic: What arrives. Bursts among the faults append rows.
        fleet: What serves it.
        policy: A name in POLICIES, or an object with `choose`.
        seed: Of every random choice.
        faults: Drills.
        options: Sampling, telemetry, leases, checks.
        on_progress: Called about every 60 simulated seconds with (time, requests done); False stops the run there.

    Raises:
        ValueError: unknown policy, a fault or block size that does not fit the fleet, or a policy's bad answer.
        ConservationError: with `is_checked`, when a sum does not hold.
    """
    options = options or SimulationOptions()
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}: must be one of {', '.join(POLICIES)}, or have a method choose")
    traffic = with_bursts(traffic, faults, seed)
    rows = math.ceil(options.telemetry_age_s / options.telemetry_period_s) + 2 if options.telemetry_period_s else 1
    state = make_state(
        fleet,
        request_count=len(traffic),
        key_count=len(traffic.hash_ids),
        hash_block_tokens=traffic.hash_block_tokens,
        seed=seed,
        telemetry_rows=rows,
    )
    _fill(state, traffic, _dense_keys(traffic.hash_ids))
    last_s = float(traffic.arrival_s.max()) if len(traffic) else 0.0
    code = POLICIES[policy] if isinstance(policy, str) else lay.POLICY_PYTHON
    state = _set_options(state, options, code, last_s)
    kinds, times = fault_events(faults, fleet, ends_of(fleet))
    is_compiled = options.is_compiled
    if is_compiled is None:
        is_compiled = len(traffic) > PLAIN_REQUESTS or is_ready()
    kernel = _Kernel(state._replace(faults=kinds, fault_at=times), is_compiled)
    del state  # the kernel has its own copy; a large trace should not be held twice.
    _drive(kernel, options, policy, traffic, on_progress)
    state = kernel.state
    samples = sample_columns(state, options.sample_period_s)
    return RunResult(
        fleet=fleet,
        policy=policy if isinstance(policy, str) else type(policy).__name__,
        seed=seed,
        requests=request_columns(state, traffic.tenant_ids, len(traffic)),
        samples=samples,
        counters=counter_columns(state),
        itl_counts=state.hist.sum(axis=0),
        itl_edges_s=itl_edges_s(),
        end_s=float(state.gf[lay.V_NOW]),
        event_count=int(state.g[lay.G_EVENTS]),
        recoveries=tuple(recovery(fault, samples) for fault in faults) if len(samples.at_s) else (),
    )


def _drive(
    kernel: _Kernel,
    options: SimulationOptions,
    policy: str | Policy,
    traffic: TrafficArrays,
    on_progress: Callable[[float, int], bool] | None,
) -> None:
    """Run the kernel to the end, answering what it cannot do itself."""
    end_s = math.inf if options.until_s is None else options.until_s
    step_s = math.inf
    if options.is_checked:
        step_s = options.sample_period_s or 1.0
    elif on_progress is not None:
        step_s = PROGRESS_PERIOD_S
    until_s = min(step_s, end_s)
    while True:
        status = kernel.run(kernel.form, until_s)
        if status == lay.RUN_SAMPLES:
            kernel.grow_samples()
            continue
        if status == lay.RUN_DECISION:
            assert not isinstance(policy, str)
            _decide(kernel, policy, traffic)
            continue
        if options.is_checked:
            audit(kernel.state)
        if on_progress is not None:
            done = int((kernel.state.ri[:, lay.R_STAGE] == lay.S_DONE).sum())
            if not on_progress(float(kernel.state.gf[lay.V_NOW]), done):
                return
        if status == lay.RUN_DONE or until_s >= end_s:
            return
        until_s = min(until_s + step_s, end_s)


def _decide(kernel: _Kernel, policy: Policy, traffic: TrafficArrays) -> None:
    """Ask a Python policy where the pending request goes."""
    s = kernel.plain
    state = kernel.state
    row = int(s.g[lay.G_PENDING])
    now_s = float(s.gf[lay.V_NOW])
    pick_row(s, now_s)
    prompt = int(s.ri[row, lay.R_PROMPT] + s.ri[row, lay.R_GENERATED])
    pools = range(len(state.pi))
    hits = np.array([hit_units(s, p, row, prompt) * s.pi[p, lay.P_UNIT] for p in pools], np.int64)
    request = ArrivalView(
        row=row,
        at_s=now_s,
        prompt_tokens=prompt,
        hit_tokens=hits,
        class_id=int(s.ri[row, lay.R_CLASS]),
        tenant_id=int(traffic.tenant_ids[row]),
    )
    view = s.g[lay.G_VIEW]
    taking = (state.pi[:, lay.P_UP] != 0) & (state.pi[:, lay.P_OPEN] != 0)
    answer = policy.choose(
        request,
        FleetView(
            at_s=now_s,
            seen_at_s=float(s.seen_at[view]) if view >= 0 else math.nan,
            usable_tokens=(state.pi[:, lay.P_USABLE] * state.pi[:, lay.P_PAGE]).astype(np.float64),
            held_ratio=np.array([held_ratio(s, p, 0) for p in pools]),
            waiting_tokens=np.array([waiting_tokens(s, p) for p in pools]),
            columns=np.array(state.seen[view]) if view >= 0 else np.zeros(state.seen.shape[1:]),
            prefill=_taking(state, taking, 1),
            decode=_taking(state, taking, 2),
            unified=_taking(state, taking, 4),
        ),
    )
    prefill, decode = (-1, -1) if answer is None else answer
    if answer is not None:
        for name, pool in (("prefill", prefill), ("decode", decode)):
            if not 0 <= pool < len(state.pi) or not taking[pool]:
                raise ValueError(f"policy {type(policy).__name__} chose {name} {pool} for row {row}: takes no requests")
        if prefill == decode and state.pi[prefill, lay.P_ROLE] == 1:
            raise ValueError(f"policy {type(policy).__name__} chose prefill pool {prefill} to decode row {row}")
    s.ri[row, lay.R_P] = prefill
    s.ri[row, lay.R_D] = decode


def _taking(state: State, taking: np.ndarray, role: int) -> tuple[int, ...]:
    return tuple(int(p) for p in np.flatnonzero(taking & (state.pi[:, lay.P_ROLE] == role)))

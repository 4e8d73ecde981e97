"""
Drills: what goes wrong when, and how long the fleet takes to be as it was.

Deaths, slow links, drains, frozen telemetry and cancel storms are events of the run; a burst is more traffic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scoring.model import FloatArray
from simulation import layout as lay
from simulation.fleet import FleetSpec
from simulation.result import Recovery, Samples
from simulation.traffic import IntArray, TrafficArrays

KINDS: Final = ("death", "slow-link", "stale-telemetry", "drain", "cancel-storm", "burst")
BEFORE_S: Final = 60.0
"""How far back "as it was before" looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    One drill.

    Attributes:
        kind: One of KINDS.
        at_s: When it strikes.
        until_s: When it is over (a dead worker is back, empty; a link is fast again). Ignored by a cancel storm.
        worker: Whom it strikes: death, slow-link, drain.
        factor: slow-link: share of its rate that is left, in (0, 1]; cancel-storm: share of requests in the system
            that are cancelled, in (0, 1]; burst: arrivals in the window this many times as many, at least 1.

    Raises:
        ValueError: naming field and value.
    """

    kind: str
    at_s: float
    until_s: float = math.inf
    worker: str = ""
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}: must be one of {', '.join(KINDS)}")
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ValueError(f"{self.kind}: at_s is {self.at_s}: must be a finite number of at least 0")
        if self.kind == "cancel-storm":
            object.__setattr__(self, "until_s", self.at_s)
        elif not self.until_s > self.at_s:
            raise ValueError(f"{self.kind}: until_s is {self.until_s}: must lie after at_s {self.at_s}")
        if self.kind == "burst" and not (math.isfinite(self.until_s) and 1 <= self.factor < math.inf):
            raise ValueError(
                f"burst: needs a finite until_s ({self.until_s}) and a factor of at least 1 ({self.factor})"
            )
        if self.kind in ("slow-link", "cancel-storm") and not 0 < self.factor <= 1:
            raise ValueError(f"{self.kind}: factor is {self.factor}: must be in (0, 1]")

    @property
    def is_recoverable(self) -> bool:
        """Say whether it ends, so that recovery can be timed."""
        return math.isfinite(self.until_s)


def fault_events(faults: Sequence[Fault], fleet: FleetSpec, ends: Sequence[str]) -> tuple[IntArray, FloatArray]:
    """
    Return the kernel's fault table in order of time: (n, 2) kind and target, (n, 2) time and value.

    Raises:
        ValueError: when a fault names no worker of the fleet.
    """
    rows: list[tuple[float, int, int, float]] = []
    for fault in faults:
        pools = [i for i, pool in enumerate(fleet.pools) if pool.worker == fault.worker]
        if fault.kind in ("death", "slow-link", "drain") and not pools:
            raise ValueError(f"{fault.kind}: worker is {fault.worker!r}: the fleet has {', '.join(ends)}")
        if fault.kind == "death":
            rows += [(fault.at_s, lay.A_DEATH, i, 0.0) for i in pools]
            rows += [(fault.until_s, lay.A_RECOVERY, i, 0.0) for i in pools]
        elif fault.kind == "drain":
            rows += [(fault.at_s, lay.A_DRAIN, i, 0.0) for i in pools]
            rows += [(fault.until_s, lay.A_UNDRAIN, i, 0.0) for i in pools]
        elif fault.kind == "slow-link":
            rate = fleet.pools[pools[-1]].bandwidth_bytes_per_s
            rows.append((fault.at_s, lay.A_END_RATE, ends.index(fault.worker), rate * fault.factor))
            rows.append((fault.until_s, lay.A_END_RATE, ends.index(fault.worker), rate))
        elif fault.kind == "stale-telemetry":
            rows += [(fault.at_s, lay.A_FREEZE, 0, 0.0), (fault.until_s, lay.A_THAW, 0, 0.0)]
        elif fault.kind == "cancel-storm":
            rows.append((fault.at_s, lay.A_CANCEL, 0, fault.factor))
    rows = sorted((row for row in rows if math.isfinite(row[0])), key=lambda row: row[0])
    kinds = np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2)
    times = np.array([(row[0], row[3]) for row in rows], np.float64).reshape(-1, 2)
    return kinds, times


def with_bursts(traffic: TrafficArrays, faults: Sequence[Fault], seed: int) -> TrafficArrays:
    """
    Return the traffic with the bursts' extra requests appended: copies of requests of the window, spread over it.

    The original rows keep their places. A window without arrivals has nothing to copy and stays empty.
    """
    for number, fault in enumerate(fault for fault in faults if fault.kind == "burst"):
        rng = np.random.default_rng([seed, number])
        inside = np.flatnonzero((traffic.arrival_s >= fault.at_s) & (traffic.arrival_s < fault.until_s))
        extra = round(len(inside) * (fault.factor - 1.0))
        if not extra:
            continue
        chosen = rng.choice(inside, extra)
        lengths = np.diff(traffic.offsets)[chosen]
        ids = [traffic.hash_ids[traffic.offsets[row] : traffic.offsets[row + 1]] for row in chosen]
        traffic = replace(
            traffic,
            arrival_s=np.concatenate([traffic.arrival_s, rng.uniform(fault.at_s, fault.until_s, extra)]),
            prompt_tokens=np.concatenate([traffic.prompt_tokens, traffic.prompt_tokens[chosen]]),
            output_tokens=np.concatenate([traffic.output_tokens, traffic.output_tokens[chosen]]),
            offsets=np.concatenate([traffic.offsets, traffic.offsets[-1] + np.cumsum(lengths)]),
            hash_ids=np.concatenate([traffic.hash_ids, *ids]),
            class_ids=np.concatenate([traffic.class_ids, traffic.class_ids[chosen]]),
            tenant_ids=np.concatenate([traffic.tenant_ids, traffic.tenant_ids[chosen]]),
        )
    return traffic


def recovery(fault: Fault, samples: Samples) -> Recovery:
    """
    Time a recovery: from the fault's end to the first tick at which no more requests wait than before it struck.

    "Before" is the most that waited in the minute before, and at least one, so that a fleet without any queue is not
    held to zero. Needs samples; without a tick before the fault, what waited before is 0.
    """
    waiting = samples.waiting_count.sum(axis=1)
    before = waiting[(samples.at_s >= fault.at_s - BEFORE_S) & (samples.at_s < fault.at_s)]
    normal = max(float(before.max()) if len(before) else 0.0, 1.0)
    after = np.flatnonzero((samples.at_s >= fault.until_s) & (waiting <= normal))
    recovered_at_s = float(samples.at_s[after[0]]) if len(after) and fault.is_recoverable else None
    until_s = math.inf if recovered_at_s is None else recovered_at_s
    during = waiting[(samples.at_s >= fault.at_s) & (samples.at_s <= until_s)]
    return Recovery(
        kind=fault.kind,
        began_at_s=fault.at_s,
        ended_at_s=fault.until_s,
        waiting_before_count=float(before.max()) if len(before) else 0.0,
        waiting_peak_count=float(during.max()) if len(during) else 0.0,
        recovered_at_s=recovered_at_s,
        time_to_recover_s=None if recovered_at_s is None else recovered_at_s - fault.until_s,
    )

"""
What if: the same decision on a fleet changed a little, by every policy, and placed many times over.

A neutral `Scenario` changes nothing. Everything here calls `policy.decide`; there is no second copy of a formula.
Read next: `sensitivity`, `herd`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from scoring import cost
from scoring.demand import RequestView, refuse_outside
from scoring.leases import LeaseLedger
from scoring.model import FleetSnapshot, Link, PoolSnapshot
from scoring.policy import POLICIES, DecideSettings, Decision, RouterState, decide
from scoring.policy.deciding import DEFAULTS, FRESH_STATE
from scoring.slo import SloClass, slo_class, with_weights

COUNT_RANGE: Final = (1, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    Changes to a fleet before the question is asked; the defaults change nothing.

    Attributes:
        without_workers: Workers taken away (died, drained).
        bandwidth_factor: Times every line rate.
        extra_age_s: Telemetry older by this much.
    """

    without_workers: frozenset[str] = frozenset()
    bandwidth_factor: float = 1.0
    extra_age_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse changes out of range."""
        refuse_outside("bandwidth_factor", self.bandwidth_factor, (1e-4, 1e4))
        refuse_outside("extra_age_s", self.extra_age_s, (0.0, 86_400.0))


def apply(scenario: Scenario, fleet: FleetSnapshot) -> FleetSnapshot:
    """Return the fleet as the scenario has it; the same object for a neutral one."""
    if scenario == Scenario():
        return fleet
    pools = tuple(_changed(scenario, pool) for pool in fleet.pools if pool.worker_id not in scenario.without_workers)
    links = tuple(_scaled(link, scenario.bandwidth_factor) for link in fleet.links)
    return replace(fleet, pools=pools, links=links)


def _scaled(link: Link, factor: float) -> Link:
    bandwidth = link.bandwidth_bytes_per_s
    return replace(link, bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * factor)


def _changed(scenario: Scenario, pool: PoolSnapshot) -> PoolSnapshot:
    labels = dict(pool.labels)
    if scenario.bandwidth_factor != 1.0 and "link_bandwidth_bytes_per_s" in labels:
        labels["link_bandwidth_bytes_per_s"] = repr(
            float(labels["link_bandwidth_bytes_per_s"]) * scenario.bandwidth_factor
        )
    age_s = None if pool.age_s is None else pool.age_s + scenario.extra_age_s
    return replace(pool, labels=labels, age_s=age_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything a decision is asked with, so that it can be asked again with one thing changed."""

    request: RequestView
    fleet: FleetSnapshot
    policy: str = "joint"
    settings: DecideSettings = DEFAULTS
    seed: int = 0
    leases: LeaseLedger | None = None
    state: RouterState = FRESH_STATE

    def ask(self) -> Decision:
        """Return the decision."""
        return decide(
            self.request,
            self.fleet,
            self.policy,
            leases=self.leases,
            seed=self.seed,
            settings=self.settings,
            state=self.state,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """One policy's choice for the same request, with what the joint cost says of it (None where it has no score)."""

    policy: str
    decision: Decision
    joint_score: float | None
    is_refused_by_joint: bool


def every_policy(question: Question) -> tuple[PolicyChoice, ...]:
    """Return what each policy of POLICIES would do, in their order."""
    joint = replace(question, policy="joint").ask()
    found = []
    for name in POLICIES:
        decision = joint if name == "joint" else replace(question, policy=name).ask()
        score, refused = None, False
        if decision.chosen is not None and joint.table is not None:
            try:
                block, row, column = joint.table.find(decision.chosen.prefill, decision.chosen.decode)
            except ValueError:
                refused = True  # The pair exists for this policy's decider only.
            else:
                total = float(block.total[row, column])
                refused = not math.isfinite(total)
                score = total if math.isfinite(total) else None
        found.append(PolicyChoice(policy=name, decision=decision, joint_score=score, is_refused_by_joint=refused))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """
    A pool's composition with the demand placed, in tokens; the parts sum to usable, `over_tokens` beyond it.

    The demand takes free first, then evicts prefix.
    """

    pool_id: str
    usable_tokens: float
    held_tokens: float
    reserved_tokens: float
    demand_tokens: float
    prefix_tokens: float
    free_tokens: float
    over_tokens: float
    is_prefix_known: bool

    @property
    def utilization_ratio(self) -> float:
        """Return (held + reserved + demand) / usable; may exceed 1."""
        return (self.held_tokens + self.reserved_tokens + self.demand_tokens) / self.usable_tokens


def placement(decision: Decision, pool_id: str, horizon_s: float = 0.0, count: int = 1) -> Placement | None:
    """
    Return one pool's composition with `count` such requests placed, `horizon_s` from now; None when unknown.

    Held is used now, moved by net * horizon and bounded by 0 and usable.
    """
    prepared = decision.prepared
    index = prepared.arrays.ids.index(pool_id)
    usable = float(prepared.arrays.usable_tokens[index])
    used, prefix = float(prepared.arrays.used_tokens[index]), float(prepared.arrays.prefix_tokens[index])
    if math.isnan(usable) or math.isnan(used):
        return None
    held = float(cost.projected_tokens(used, float(prepared.room.net_tokens_per_s[index]), horizon_s, usable))
    reserved = float(prepared.room.reserved_tokens[index])
    demand = float(prepared.room.demand_tokens[index]) * count
    left = usable - held
    known_prefix = 0.0 if math.isnan(prefix) else min(prefix, left)
    free = left - known_prefix
    taken = reserved + demand
    from_free = min(taken, free)
    from_prefix = min(taken - from_free, known_prefix)
    return Placement(
        pool_id=pool_id,
        usable_tokens=usable,
        held_tokens=held,
        reserved_tokens=min(reserved, left),
        demand_tokens=demand,
        prefix_tokens=known_prefix - from_prefix,
        free_tokens=free - from_free,
        over_tokens=taken - from_free - from_prefix,
        is_prefix_known=not math.isnan(prefix),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Where `count` identical requests go one after the other, each seeing the leases of those before."""

    decisions: tuple[Decision, ...]
    by_pair: Mapping[tuple[str, str], int] = field(default_factory=dict)
    refused_count: int = 0


def place_many(question: Question, count: int) -> Many:
    """
    Return where `count` identical requests would go with leases between them.

    Raises:
        ValueError: count is out of range.
    """
    refuse_outside("count", count, COUNT_RANGE)
    ledger = LeaseLedger()
    for lease in question.leases.open_leases() if question.leases is not None else ():
        ledger.grant(lease)
    decisions, by_pair, refused = [], {}, 0  # type: tuple[list[Decision], dict[tuple[str, str], int], int]
    for number in range(count):
        named = replace(question.request, request_id=f"{question.request.request_id}-{number + 1}")
        decision = replace(question, request=named, leases=ledger, seed=question.seed + number).ask()
        decisions.append(decision)
        if decision.chosen is None:
            refused = count - number  # Nothing frees room meanwhile: the rest is refused as well.
            break
        pair = (decision.chosen.prefill, decision.chosen.decode)
        by_pair[pair] = by_pair.get(pair, 0) + 1
        for lease in decision.leases():
            ledger.grant(lease)
    return Many(decisions=tuple(decisions), by_pair=by_pair, refused_count=refused)


def with_class(settings: DecideSettings, slo: SloClass) -> DecideSettings:
    """Return settings with one class put in place of its namesake."""
    return replace(settings, classes={**settings.classes, slo.name: slo})


def weighted(settings: DecideSettings, class_name: str, changes: Mapping[str, float]) -> DecideSettings:
    """
    Return settings with some weights of one class changed.

    Raises:
        ValueError: Unknown class or term, or a weight out of range.
    """
    return with_class(settings, with_weights(slo_class(class_name, settings.classes), changes))

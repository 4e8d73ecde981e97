"""
The herd experiment: N requests arrive together while telemetry is A seconds old.

Every router sees the same stale snapshot. What differs is what it knows of its own promises (leases, shared or
private) and how it picks. The outcome is judged against the fleet as it has moved on meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scoring import cost
from scoring.demand import RequestView, refuse_outside
from scoring.leases import LeaseLedger
from scoring.model import FleetSnapshot
from scoring.policy import DecideSettings, Decision, RouterState, decide, policy_of
from scoring.policy.arrays import PREFILL, arrays_of
from scoring.policy.deciding import DEFAULTS

HERD_RANGE: Final = (1, 2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Herd:
    """
    Where a herd went and what it did.

    Attributes:
        policy, count, age_s, has_leases, router_count, pick, seed: What was asked.
        placed: Pool id -> requests that decode there, every generating pool listed, ascending by id.
        refused_count: Requests nobody took.
        placed_tokens: Pool id -> demand placed on it.
        utilization: Pool id -> (committed moved on by net * age, + placed) / usable; None where unknown.
        worst_ratio: The highest of them, or None.
        over_reserve_count: Pools pushed into their safety reserve by this herd.
        largest_share: Share of the requests on the pool that got most; 1 is a stampede.
        effective_pool_count: 1 / sum of squared shares: on how many pools the herd was spread evenly in effect.
    """

    policy: str
    count: int
    age_s: float
    has_leases: bool
    router_count: int
    pick: str
    seed: int
    placed: Mapping[str, int]
    refused_count: int
    placed_tokens: Mapping[str, float]
    utilization: Mapping[str, float | None]
    worst_ratio: float | None
    over_reserve_count: int
    largest_share: float
    effective_pool_count: float


def herd(
    request: RequestView,
    fleet: FleetSnapshot,
    policy: str = "lowest-utilization",
    *,
    count: int = 16,
    age_s: float = 1.0,
    has_leases: bool = False,
    router_count: int = 1,
    pick: str = "best",
    seed: int = 0,
    settings: DecideSettings = DEFAULTS,
) -> Herd:
    """
    Return what `count` identical requests do that arrive together.

    Args:
        request: The request; each gets its own id.
        fleet: The snapshot they all see.
        policy: Name in POLICIES.
        count: Requests.
        age_s: How old the snapshot is when they arrive: the fleet has moved on by net * age.
        has_leases: Whether a router counts what it has promised.
        router_count: Routers taking turns, each with its own ledger; 1 is one shared table.
        pick: "best", "two-choices" or "near-tie".
        seed: Of everything drawn.
        settings: As for `decide`; its pick is replaced.

    Raises:
        ValueError: A number is out of range, or a name is not known.
    """
    refuse_outside("count", count, HERD_RANGE)
    refuse_outside("age_s", age_s, (0.0, 3_600.0))
    refuse_outside("router_count", router_count, (1, count))
    # Without leases, or with a table for every request alone, all requests are told the same.
    is_same_for_all = pick == "best" and not policy_of(policy).is_drawn and (not has_leases or router_count == count)
    own = replace(settings, pick=pick)
    arrays = arrays_of(fleet, settings.reserve.failure_count)
    generating = [index for index in range(len(arrays)) if arrays.role[index] != PREFILL]
    placed = {arrays.ids[index]: 0 for index in generating}
    tokens = {arrays.ids[index]: 0.0 for index in generating}
    ledgers = [LeaseLedger() for _ in range(router_count)]
    refused = 0
    last: Decision | None = None
    for number in range(count):
        ledger = ledgers[number % router_count]
        decision = (
            last
            if is_same_for_all and last is not None
            else decide(
                replace(request, request_id=f"herd-{number}"),
                fleet,
                policy,
                leases=ledger if has_leases else None,
                seed=seed + number,
                settings=own,
                state=RouterState(turn=number // router_count),
            )
        )
        last = decision
        if decision.chosen is None:
            refused += 1
            continue
        index = arrays.ids.index(decision.chosen.decode)
        placed[decision.chosen.decode] = placed.get(decision.chosen.decode, 0) + 1
        demand = float(decision.prepared.room.demand_tokens[index])
        tokens[decision.chosen.decode] = tokens.get(decision.chosen.decode, 0.0) + demand
        if has_leases and not is_same_for_all:
            for lease in decision.leases():
                ledger.grant(lease)
    ratios: dict[str, float | None] = {}
    over = 0
    for index in generating:
        name, usable = arrays.ids[index], float(arrays.usable_tokens[index])
        committed, net = float(arrays.committed_tokens[index]), float(arrays.net_tokens_per_s[index])
        if np.isnan(usable) or np.isnan(committed):
            ratios[name] = None
            continue
        moved = cost.projected_tokens(committed, 0.0 if np.isnan(net) else net, age_s, usable)
        ratio = float(cost.utilization_ratio(moved, tokens[name], usable))
        ratios[name] = ratio
        if last is not None and placed[name] > 0:
            over += ratio > 1.0 - float(last.prepared.room.reserve_tokens[index]) / usable
    known = [ratio for ratio in ratios.values() if ratio is not None]
    shares = np.array(list(placed.values()), dtype=np.float64)
    total = float(shares.sum())
    shares = shares / total if total else shares
    return Herd(
        policy=policy,
        count=count,
        age_s=age_s,
        has_leases=has_leases,
        router_count=router_count,
        pick=pick,
        seed=seed,
        placed=placed,
        refused_count=refused,
        placed_tokens=tokens,
        utilization=ratios,
        worst_ratio=max(known) if known else None,
        over_reserve_count=over,
        largest_share=float(shares.max()) if total else 0.0,
        effective_pool_count=float(1.0 / np.square(shares).sum()) if total else 0.0,
    )


VARIANTS: Final = (
    ("best", False, "one"),
    ("best", True, "one"),
    ("best", True, "private"),
    ("two-choices", False, "one"),
    ("near-tie", False, "one"),
    ("two-choices", True, "one"),
    ("near-tie", True, "one"),
)
"""(pick, leases, routers): what the experiment sets side by side."""


def herd_variants(
    request: RequestView,
    fleet: FleetSnapshot,
    policy: str,
    *,
    count: int,
    age_s: float,
    seed: int = 0,
    settings: DecideSettings = DEFAULTS,
) -> tuple[Herd, ...]:
    """Return the herd with leases, two choices and near ties on and off; `private` gives every request a router."""
    return tuple(
        herd(
            request,
            fleet,
            policy,
            count=count,
            age_s=age_s,
            has_leases=has_leases,
            router_count=count if routers == "private" else 1,
            pick=pick,
            seed=seed,
            settings=settings,
        )
        for pick, has_leases, routers in VARIANTS
    )

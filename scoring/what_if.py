"""
What if: the same decision on a fleet changed a little, by every policy, and how much would flip it.

A neutral `Scenario` changes nothing. Everything here calls `policy.decide`; there is no second copy of a formula.
Read next: `herd`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from scoring import cost
from scoring.demand import OUTPUT_RANGE_TOKENS, PROMPT_RANGE_TOKENS, OutputQuantiles, RequestView, refuse_outside
from scoring.leases import LeaseLedger
from scoring.model import FleetSnapshot, Link, PoolSnapshot
from scoring.policy import POLICIES, DecideSettings, Decision, RouterState, decide
from scoring.policy.deciding import DEFAULTS, FRESH_STATE
from scoring.slo import WEIGHT_RANGE, SloClass, slo_class, with_weights

COUNT_RANGE: Final = (1, 1_000)
_STEPS: Final = 8
_HALVINGS: Final = 16


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
class Flip:
    """
    The nearest change of one thing that changes the choice.

    Attributes:
        name: `weight.<term>`, or `prompt_tokens`, `output_tokens`, `ttft_s`, `bandwidth_factor`, `prefix_hit.<pool>`.
        now: Its value now.
        at: The value from which the choice differs; None when none in range does.
        prefill, decode: The pair chosen there, None when nothing is.
        range_: What was searched.
    """

    name: str
    now: float
    at: float | None
    prefill: str | None = None
    decode: str | None = None
    range_: tuple[float, float] = (0.0, 0.0)


def weight_flips(decision: Decision) -> tuple[Flip, ...]:
    """
    Return, for each weight, the nearest value at which another pair wins; exact, for the score is linear in it.

    Only decisions of the joint policy that chose their best pair have any.
    """
    if decision.table is None or decision.chosen is None:
        return ()
    blocks = [block for block in (decision.table.pairs, decision.table.alone) if block is not None]
    own, own_row, own_column = decision.table.find(decision.chosen.prefill, decision.chosen.decode)
    weights = dict(zip(cost.TERMS, decision.prepared.slo.weights.as_tuple(), strict=True))
    base = float(own.total[own_row, own_column])
    flips = []
    for name in cost.TERMS:
        sign = -1.0 if name == "prefix_benefit" else 1.0
        nearest: tuple[float, float, str, str] | None = None
        here = sign * float(own.term(name)[own_row, own_column])
        for block in blocks:
            slope = here - sign * block.term(name)
            with np.errstate(divide="ignore", invalid="ignore"):
                change = (block.total - base) / slope
            at = weights[name] + change
            ok = np.isfinite(change) & (at >= WEIGHT_RANGE[0]) & (at <= WEIGHT_RANGE[1]) & np.isfinite(block.total)
            if block is own:
                ok[own_row, own_column] = False
            if not ok.any():
                continue
            row, column = np.unravel_index(int(np.argmin(np.where(ok, np.abs(change), np.inf))), ok.shape)
            distance = float(abs(change[row, column]))
            if nearest is None or distance < nearest[0]:
                p = decision.table.ids[int(block.rows[row])]
                d = p if block.is_alone else decision.table.ids[int(block.columns[column])]
                nearest = (distance, float(at[row, column]), p, d)
        flips.append(
            Flip(
                name=f"weight.{name}",
                now=weights[name],
                at=None if nearest is None else nearest[1],
                prefill=None if nearest is None else nearest[2],
                decode=None if nearest is None else nearest[3],
                range_=WEIGHT_RANGE,
            )
        )
    return tuple(flips)


def input_flips(question: Question, decision: Decision) -> tuple[Flip, ...]:
    """
    Return, for each input of the request and the fleet, the nearest value at which the choice differs.

    Searched outwards in geometric steps, then by bisection: to about one part in ten thousand of a step.
    """
    request, slo = question.request, decision.prepared.slo
    flips = [
        _search(
            decision,
            "prompt_tokens",
            float(request.prompt_tokens),
            (
                max(PROMPT_RANGE_TOKENS[0], request.prompt_tokens / 64),
                min(PROMPT_RANGE_TOKENS[1], request.prompt_tokens * 64),
            ),
            lambda value: replace(question, request=_with_prompt(request, round(value))),
        ),
        _search(
            decision,
            "output_tokens",
            max(decision.prepared.output_tokens, 1.0),
            (1.0, min(float(OUTPUT_RANGE_TOKENS[1]), max(decision.prepared.output_tokens, 1.0) * 64)),
            lambda value: replace(
                question,
                request=replace(
                    request,
                    output=OutputQuantiles(((0.5, float(round(value))),)),
                    output_cap_tokens=None,
                    segment_tokens=None,
                ),
            ),
        ),
        _search(
            decision,
            "ttft_s",
            slo.ttft_s,
            (max(slo.ttft_s / 64, 1e-3), min(slo.ttft_s * 64, 86_400.0)),
            lambda value: replace(question, settings=_with_class(question.settings, replace(slo, ttft_s=value))),
        ),
        _search(
            decision,
            "bandwidth_factor",
            1.0,
            (1 / 64, 64.0),
            lambda value: replace(question, fleet=apply(Scenario(bandwidth_factor=value), question.fleet)),
        ),
    ]
    if decision.runner_up is not None:
        pool = decision.runner_up.prefill
        held = request.prefix_hit_tokens.get(pool, 0)
        flips.append(
            _search(
                decision,
                f"prefix_hit.{pool}",
                float(held),
                (float(held), float(request.prompt_tokens)),
                lambda value: replace(
                    question,
                    request=replace(request, prefix_hit_tokens={**request.prefix_hit_tokens, pool: round(value)}),
                ),
            )
        )
    return tuple(flips)


def _with_prompt(request: RequestView, prompt_tokens: int) -> RequestView:
    """Return the request with another prompt; hits stay the same share of it."""
    share = prompt_tokens / request.prompt_tokens
    return replace(
        request,
        prompt_tokens=prompt_tokens,
        prefix_hit_tokens={
            name: min(int(hit * share), prompt_tokens) for name, hit in request.prefix_hit_tokens.items()
        },
        active_hit_tokens={
            name: min(int(hit * share), prompt_tokens) for name, hit in request.active_hit_tokens.items()
        },
    )


def _with_class(settings: DecideSettings, slo: SloClass) -> DecideSettings:
    return replace(settings, classes={**settings.classes, slo.name: slo})


def _search(
    decision: Decision,
    name: str,
    now: float,
    range_: tuple[float, float],
    changed: Callable[[float], Question],
) -> Flip:
    chosen = decision.chosen

    def asked(value: float) -> Decision:
        return changed(value).ask()

    found: tuple[float, Decision] | None = None
    for bound in range_:
        if bound == now:
            continue
        low = max(now, 1.0) if bound > now else now
        inside = now
        for step in range(1, _STEPS + 1):
            # Geometric steps reach far; a start at 0 steps from 1.
            value = low * (bound / low) ** (step / _STEPS) if low > 0 else bound * step / _STEPS
            other = asked(value)
            if other.chosen != chosen:
                value, other = _bisect(asked, decision, inside, value, other)
                if found is None or abs(math.log(max(value, 1e-9) / max(now, 1e-9))) < abs(
                    math.log(max(found[0], 1e-9) / max(now, 1e-9))
                ):
                    found = (value, other)
                break
            inside = value
    at, there = (None, None) if found is None else (found[0], found[1].chosen)
    return Flip(
        name=name,
        now=now,
        at=at,
        prefill=None if there is None else there.prefill,
        decode=None if there is None else there.decode,
        range_=range_,
    )


def _bisect(
    asked: Callable[[float], Decision], decision: Decision, inside: float, outside: float, other: Decision
) -> tuple[float, Decision]:
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        answer = asked(middle)
        if answer.chosen != decision.chosen:
            outside, other = middle, answer
        else:
            inside = middle
    return outside, other


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


def weighted(settings: DecideSettings, class_name: str, changes: Mapping[str, float]) -> DecideSettings:
    """
    Return settings with some weights of one class changed.

    Raises:
        ValueError: Unknown class or term, or a weight out of range.
    """
    return _with_class(settings, with_weights(slo_class(class_name, settings.classes), changes))

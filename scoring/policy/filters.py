"""
Hard filters: which pools and pairs are no candidates, and why, as numbers to compare.

A filter answers for all pools at once with a mask of those it refuses; the `Rejection` values are made afterwards,
for the pools that were refused. The first filter that refuses names the reason. A policy lists the filters it
applies (`policy.registry`): what a router cannot see it does not filter on.

Read next: `scorers`, `decide`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.admission import Rejection
from scoring.cost import RATE_FLOOR_TOKENS_PER_S
from scoring.model import PoolSnapshot
from scoring.policy.arrays import NO_ROLE, PREFILL, UNIFIED, BoolArray
from scoring.policy.prepare import Prepared
from scoring.policy.settings import DecideSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFilter:
    """
    One filter over pools.

    Attributes:
        name: Stable kebab-case name, shown and stored.
        reads: Signals it looks at.
        intent: What it protects from.
        refuses: Mask of refused pools, shape (n,).
        explain: Why, for one refused pool.
    """

    name: str
    reads: str
    intent: str
    refuses: Callable[[Prepared, DecideSettings], BoolArray]
    explain: Callable[[Prepared, DecideSettings, int], Rejection]


def _value(number: float) -> float | None:
    return None if np.isnan(number) else float(number)


def _because(name: str, text: Callable[[Prepared, PoolSnapshot], str]) -> Callable[..., Rejection]:
    def explain(prepared: Prepared, _settings: DecideSettings, index: int) -> Rejection:
        pool = prepared.arrays.pools[index]
        return Rejection(pool=pool.pool_id, filter=name, reason=text(prepared, pool))

    return explain


def _no_room(prepared: Prepared, _settings: DecideSettings, index: int) -> Rejection:
    room = prepared.room
    parts = [f"demand {room.demand_tokens[index]:,.0f}"]
    if room.growth_tokens[index] > 0.0:
        parts.append(f"growth {room.growth_tokens[index]:,.0f}")
    parts.append(f"reserve {room.reserve_tokens[index]:,.0f}")
    taken = [f"available {room.available_tokens[index]:,.0f}"]
    if room.reserved_tokens[index] > 0.0:
        taken.append(f"reserved {room.reserved_tokens[index]:,.0f}")
    if room.queued_ahead_tokens[index] > 0.0:
        taken.append(f"requests ahead {room.queued_ahead_tokens[index]:,.0f}")
    usable = prepared.arrays.usable_tokens[index]
    is_never = bool(room.demand_tokens[index] > usable)
    never = f"; it holds {usable:,.0f} in all, so this request never fits here" if is_never else ""
    return Rejection(
        pool=prepared.arrays.ids[index],
        filter="too-large" if is_never else "no-room",
        reason=f"no room: needs {' + '.join(parts)} tokens, has {' - '.join(taken)}{never}",
        have=_value(room.have_tokens[index]),
        need=_value(room.need_tokens[index]),
    )


def _not_serving(prepared: Prepared, _settings: DecideSettings, index: int) -> Rejection:
    pool = prepared.arrays.pools[index]
    rate = prepared.prefill.rate_tokens_per_s[index]
    said = [finding.text for finding in pool.findings if "serv" in finding.code or "handshake" in finding.code]
    return Rejection(
        pool=pool.pool_id,
        filter="not-serving",
        reason="not serving: " + (said[0] if said else "work sent here does not come back; the wait is unbounded"),
        have=_value(rate),
        need=RATE_FLOOR_TOKENS_PER_S,
    )


def _other_tenant(prepared: Prepared, _settings: DecideSettings) -> BoolArray:
    tenant = prepared.request.tenant
    return np.array([allowed is not None and tenant not in allowed for allowed in prepared.arrays.tenants], dtype=bool)


def _elsewhere(prepared: Prepared, _settings: DecideSettings) -> BoolArray:
    domain = prepared.request.data_domain
    if not domain:
        return np.zeros(len(prepared.arrays), dtype=bool)
    return np.array(
        [any(pool.labels.get(name) != value for name, value in domain.items()) for pool in prepared.arrays.pools],
        dtype=bool,
    )


def _other_model(prepared: Prepared, _settings: DecideSettings) -> BoolArray:
    wanted = prepared.request.model
    if wanted is None:
        return np.zeros(len(prepared.arrays), dtype=bool)
    return np.array([model != wanted for model in prepared.arrays.models], dtype=bool)


def _overloaded(prepared: Prepared, _settings: DecideSettings) -> BoolArray:
    arrays = prepared.arrays
    mask: BoolArray = (arrays.role != PREFILL) & (arrays.retracted_count > 0.0)
    return mask


def _rateless(prepared: Prepared) -> BoolArray:
    arrays = prepared.arrays
    computes = (arrays.role == PREFILL) | (arrays.role == UNIFIED)
    is_still: BoolArray = computes & (prepared.prefill.rate_tokens_per_s < RATE_FLOOR_TOKENS_PER_S)
    return ~arrays.is_serving | is_still


def _age_text(pool: PoolSnapshot) -> str:
    return "of unknown age" if pool.age_s is None else f"{pool.age_s:.1f} s old"


FILTERS: Final[Mapping[str, PoolFilter]] = {
    each.name: each
    for each in (
        PoolFilter(
            name="unreachable",
            reads="state",
            intent="Nothing is sent where nobody answers.",
            refuses=lambda prepared, _: prepared.arrays.is_gone,
            explain=_because("unreachable", lambda _, pool: f"{pool.state.value}: {pool.state_reason or 'no answer'}"),
        ),
        PoolFilter(
            name="stale",
            reads="state, age",
            intent="A figure too old to believe is not scored.",
            refuses=lambda prepared, _: ~prepared.arrays.is_scored,
            explain=_because(
                "stale",
                lambda _, pool: (
                    f"{pool.state.value}, {_age_text(pool)}" + (f": {pool.state_reason}" * bool(pool.state_reason))
                ),
            ),
        ),
        PoolFilter(
            name="role",
            reads="role",
            intent="A pool whose role is not known belongs to no pair.",
            refuses=lambda prepared, _: prepared.arrays.role == NO_ROLE,
            explain=_because("role", lambda _, _pool: "its role is not known: set it in the fleet file"),
        ),
        PoolFilter(
            name="draining",
            reads="label draining",
            intent="A worker on its way out takes nothing new.",
            refuses=lambda prepared, _: prepared.arrays.is_draining,
            explain=_because("draining", lambda _, _pool: "draining: takes no new requests"),
        ),
        PoolFilter(
            name="incompatible",
            reads="model",
            intent="The request's model must be served.",
            refuses=_other_model,
            explain=_because(
                "incompatible",
                lambda prepared, pool: f"serves {pool.model or 'an unknown model'}, not {prepared.request.model}",
            ),
        ),
        PoolFilter(
            name="tenant",
            reads="label tenants, request tenant",
            intent="A pool kept for some tenants serves no others.",
            refuses=_other_tenant,
            explain=_because(
                "tenant",
                lambda prepared, pool: (
                    f"kept for {pool.labels.get('tenants')}, not {prepared.request.tenant or 'anyone'}"
                ),
            ),
        ),
        PoolFilter(
            name="data-domain",
            reads="labels, request data_domain",
            intent="Data stays in the domain it may not leave.",
            refuses=_elsewhere,
            explain=_because(
                "data-domain",
                lambda prepared, _pool: (
                    "outside "
                    + ", ".join(f"{name}={value}" for name, value in sorted(prepared.request.data_domain.items()))
                ),
            ),
        ),
        PoolFilter(
            name="not-credible",
            reads="anomalies",
            intent="A negative or contradictory figure is no low figure.",
            refuses=lambda prepared, _: ~prepared.arrays.is_credible,
            explain=_because(
                "not-credible",
                lambda _, pool: f"figure not credible: {', '.join(sorted(set(pool.reading.anomalies)))}",
            ),
        ),
        PoolFilter(
            name="capacity-unknown",
            reads="usable, available, committed",
            intent="Room nobody reports is not promised.",
            refuses=lambda prepared, _: (
                np.isnan(prepared.arrays.usable_tokens)
                | np.isnan(prepared.room.available_tokens)
                | np.isnan(prepared.room.committed_tokens)
            ),
            explain=_because(
                "capacity-unknown",
                lambda _, pool: pool.composition.available_tokens.reason or "usable or used is not known",
            ),
        ),
        PoolFilter(
            name="not-serving",
            reads="is_serving, prefill rate",
            intent="A prefill pool that computes nothing has an unbounded wait, not an empty queue.",
            refuses=lambda prepared, _: _rateless(prepared),
            explain=_not_serving,
        ),
        PoolFilter(
            name="overloaded",
            reads="retracted queue",
            intent="A pool that already throws requests out gets no more until they are back in.",
            refuses=_overloaded,
            explain=lambda prepared, _, index: Rejection(
                pool=prepared.arrays.ids[index],
                filter="overloaded",
                reason="overloaded: retracted requests wait to be recomputed",
                have=prepared.arrays.pools[index].queue_retracted_count.value,
                need=0.0,
            ),
        ),
        PoolFilter(
            name="no-room",
            reads="available, reserved, queued, net growth, reserve",
            intent="Admission: available >= demand + committed growth + safety reserve.",
            refuses=lambda prepared, _: prepared.room.have_tokens < prepared.room.need_tokens,
            explain=_no_room,
        ),
    )
}
"""Every pool filter in the order they are asked."""

REACHABLE: Final = ("unreachable", "role", "draining", "incompatible")
"""What every router checks one way or another: health, role, model."""
EVERY: Final = tuple(FILTERS)
ROOM: Final = frozenset({"no-room", "overloaded"})
"""Filters the `least-bad` fallback may look past; the others never."""

PAIR_OK, PAIR_POOL, PAIR_KV, PAIR_ZONE, PAIR_FULL, PAIR_UNBOUNDED, PAIR_LOCAL = 0, 1, 2, 3, 4, 5, 6
PAIR_FILTERS: Final[Mapping[int, str]] = {
    PAIR_OK: "",
    PAIR_POOL: "pool",
    PAIR_KV: "incompatible",
    PAIR_ZONE: "topology",
    PAIR_FULL: "full-at-decode-start",
    PAIR_UNBOUNDED: "unbounded-wait",
    PAIR_LOCAL: "local-prefill",
}
"""Codes of a refused pair; `pool` means that one of its ends is refused."""


def refusals(prepared: Prepared, settings: DecideSettings, names: tuple[str, ...] = EVERY) -> dict[str, BoolArray]:
    """Return the mask of each filter that refuses anything, first filters first; a pool counts once."""
    found: dict[str, BoolArray] = {}
    open_mask = np.ones(len(prepared.arrays), dtype=bool)
    with np.errstate(invalid="ignore"):
        for name in FILTERS:
            if name not in names:
                continue
            mask = FILTERS[name].refuses(prepared, settings) & open_mask
            if mask.any():
                found[name] = mask
                open_mask &= ~mask
    return found


def rejections_of(
    prepared: Prepared, settings: DecideSettings, found: Mapping[str, BoolArray]
) -> tuple[Rejection, ...]:
    """Return one Rejection a refused pool, ascending by pool."""
    indexed = [
        (int(index), FILTERS[name].explain(prepared, settings, int(index)))
        for name, mask in found.items()
        for index in np.flatnonzero(mask)
    ]
    indexed.sort(key=lambda item: item[0])
    return tuple(rejection for _, rejection in indexed)


def pair_conflicts(
    prepared: Prepared, settings: DecideSettings, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.uint8] | None:
    """
    Return the codes of pairs whose ends cannot work together, of shape (rows, columns), or None when all can.

    Compares the model and the labels of `arrays.PAIR_LABELS` (`zone` only where the settings ask): a pair is refused
    where both ends state a value and they differ.
    """
    codes: NDArray[np.uint8] | None = None
    for name, numbers in prepared.arrays.pair_labels.items():
        if name == "zone" and not settings.is_same_zone:
            continue
        left, right = numbers[rows][:, None], numbers[columns][None, :]
        mask = (left >= 0) & (right >= 0) & (left != right)
        if mask.any():
            codes = np.zeros(mask.shape, dtype=np.uint8) if codes is None else codes
            codes[mask & (codes == PAIR_OK)] = PAIR_ZONE if name == "zone" else PAIR_KV
    return codes

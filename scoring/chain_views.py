"""
Views of a fleet beside the chain: what holds prefill back, and what is left to whom when a node dies.

Pure figures of one judged snapshot; the Saturation page draws them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scoring.chain_reserve import ReserveParts
from scoring.model import FleetSnapshot, PoolSnapshot, Role


def left_tokens(pool: PoolSnapshot) -> float | None:
    """Return available less reserved, None when not known."""
    available, reserved = pool.composition.available_tokens.value, pool.composition.reserved_tokens.value
    return None if available is None else available - (reserved or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backpressure:
    """
    What stands before the prefill side, and what it waits for.

    Attributes:
        bootstrap_count: Waiting for decode to take them (handshake, room): nothing computed yet.
        inflight_count: Computed, and waiting for the link.
        compute_count: Waiting to be computed.
        blocked_by: "decode", "link", "compute" or "nothing": what most of it waits for.
        drain_s: Seconds until the transfers waiting now are through, None when not known.
        ready_count: On decode, blocked by its capacity alone.
    """

    bootstrap_count: float
    inflight_count: float
    compute_count: float
    blocked_by: str
    drain_s: float | None
    ready_count: float


def backpressure(fleet: FleetSnapshot) -> dict[str, Backpressure]:
    """Return prefill pool id -> what holds it back; pools that cannot be seen are left out."""
    decode = [pool for pool in fleet.pools if pool.role is Role.DECODE and pool.state.is_scored]
    ready = sum(pool.prealloc_ready_count.value or 0.0 for pool in decode)
    found = {}
    for pool in fleet.pools:
        if pool.role is not Role.PREFILL or not pool.state.is_scored:
            continue
        bootstrap = pool.queue_bootstrap_count.value or 0.0
        inflight = pool.queue_inflight_count.value or 0.0
        compute = pool.queue_main_count.value or 0.0
        most = max(bootstrap, inflight, compute)
        blocked = (
            "nothing" if most < 1 else "decode" if most == bootstrap else "link" if most == inflight else "compute"
        )
        found[pool.pool_id] = Backpressure(
            bootstrap_count=bootstrap,
            inflight_count=inflight,
            compute_count=compute,
            blocked_by=blocked,
            drain_s=pool.rates.transfer_drain_s.value,
            ready_count=ready,
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """
    One pool before and after a node's death, in tokens; None where unknown.

    Attributes:
        before_tokens: Headroom now.
        inherited_tokens: Its share of what the dead node had committed, by capacity among the survivors of its role.
        after_tokens: Headroom with that, the failure part of the reserve being used up for it.
    """

    before_tokens: float | None
    inherited_tokens: float
    after_tokens: float | None


def death(fleet: FleetSnapshot, kept: Mapping[str, ReserveParts], worker: str) -> dict[str, Inheritance]:
    """Return survivor pool id -> what the death of `worker` does to it; empty when it has no peer."""
    gone = [pool for pool in fleet.pools if pool.worker_id == worker]
    roles = {pool.role for pool in gone}
    survivors = [pool for pool in fleet.pools if pool.worker_id != worker and pool.role in roles]
    found = {}
    for role in roles:
        lost = sum(pool.composition.committed_tokens.value or 0.0 for pool in gone if pool.role is role)
        members = [pool for pool in survivors if pool.role is role]
        room = sum(pool.composition.usable_tokens.value or 0.0 for pool in members)
        for pool in members:
            usable = pool.composition.usable_tokens.value or 0.0
            inherited = lost * usable / room if room > 0 else 0.0
            left, parts = left_tokens(pool), kept.get(pool.pool_id)
            before = None if left is None or parts is None else left - parts.tokens
            after = None if before is None or parts is None else before - inherited + parts.failure_share_tokens
            found[pool.pool_id] = Inheritance(before_tokens=before, inherited_tokens=inherited, after_tokens=after)
    return found

"""
Leases: what we promised and telemetry does not show yet. Pure: time is an argument, the caller holds the lock.

A lease is open from its grant until exactly one of confirm (telemetry counts it now), release (the request ended or
went elsewhere) or expire. Closing twice, or closing what was never granted, changes nothing. At every moment
`granted = confirmed + released + expired + outstanding`, in leases and in tokens.

`decide` never books and the ledger never chooses: the caller grants what a Decision proposes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

VISIBLE_AFTER_S: Final = 0.25
"""A granted request takes this long to appear in the worker's own figures (chosen: dispatch and one scheduler tick)."""
LEASE_TTL_S: Final = 30.0
"""A lease nobody closed ends by itself (chosen; NIXL's lease is 30 s too)."""


class Closing(StrEnum):
    """How a lease ended."""

    CONFIRMED = "confirmed"
    RELEASED = "released"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """
    A promise of demand on one pool.

    Attributes:
        lease_id: Unique; a request holds one lease an end, for example `r17/prefill` and `r17/decode`.
        pool_id: `worker/rank`.
        tokens: Demand promised, in tokens of whole blocks.
        uncached_tokens: Prompt tokens this adds to the pool's compute queue (0 on a decode end).
        transfer_tokens: Tokens whose KV this will bring over the pool's link (0 where nothing is handed over).
        granted_at_s: When it was granted.
        expires_at_s: When it ends by itself; later than granted_at_s.
    """

    lease_id: str
    pool_id: str
    tokens: int
    uncached_tokens: int = 0
    transfer_tokens: int = 0
    granted_at_s: float
    expires_at_s: float

    def __post_init__(self) -> None:
        """Refuse a lease that promises less than nothing or ends before it begins."""
        promised = (self.tokens, self.uncached_tokens, self.transfer_tokens)
        if min(promised) < 0:
            raise ValueError(f"lease {self.lease_id}: tokens must be >= 0, got {promised}")
        if not self.expires_at_s > self.granted_at_s:
            raise ValueError(
                f"lease {self.lease_id}: expires_at_s {self.expires_at_s} is not after {self.granted_at_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the open leases of one pool add up to."""

    tokens: int = 0
    uncached_tokens: int = 0
    transfer_tokens: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTotals:
    """Leases and tokens by fate; `granted = confirmed + released + expired + outstanding` in both."""

    granted_count: int
    confirmed_count: int
    released_count: int
    expired_count: int
    outstanding_count: int
    granted_tokens: int
    confirmed_tokens: int
    released_tokens: int
    expired_tokens: int
    outstanding_tokens: int


class LeaseLedger:
    """The open leases, by pool, with idempotent ends."""

    def __init__(self, *, visible_after_s: float = VISIBLE_AFTER_S) -> None:
        """Start empty; a reading covers leases granted at least `visible_after_s` before it was true."""
        if not visible_after_s >= 0.0:
            raise ValueError(f"visible_after_s must be >= 0, got {visible_after_s}")
        self._visible_after_s = visible_after_s
        self._open: dict[str, Lease] = {}
        self._by_pool: dict[str, dict[str, Lease]] = {}
        self._counts = dict.fromkeys(Closing, 0)
        self._tokens = dict.fromkeys(Closing, 0)
        self._granted_count = 0
        self._granted_tokens = 0

    def grant(self, lease: Lease) -> bool:
        """
        Book a lease; the same lease again changes nothing and returns False.

        Raises:
            ValueError: The id is open with other contents.
        """
        known = self._open.get(lease.lease_id)
        if known is not None:
            if known != lease:
                raise ValueError(f"lease {lease.lease_id} is open with other contents: {known}")
            return False
        self._open[lease.lease_id] = lease
        self._by_pool.setdefault(lease.pool_id, {})[lease.lease_id] = lease
        self._granted_count += 1
        self._granted_tokens += lease.tokens
        return True

    def confirm(self, lease_id: str) -> bool:
        """Close a lease that telemetry now counts; False when it is not open."""
        return self._close(lease_id, Closing.CONFIRMED)

    def release(self, lease_id: str) -> bool:
        """Close a lease whose request ended or never went; False when it is not open."""
        return self._close(lease_id, Closing.RELEASED)

    def expire(self, at_s: float) -> tuple[Lease, ...]:
        """Close every lease whose time is over at `at_s` and return them by id."""
        over = sorted((lease for lease in self._open.values() if lease.expires_at_s <= at_s), key=lambda x: x.lease_id)
        for lease in over:
            self._close(lease.lease_id, Closing.EXPIRED)
        return tuple(over)

    def merge(self, reported_at_s: Mapping[str, float]) -> tuple[Lease, ...]:
        """
        Confirm every lease that a pool's newest reading already counts (pool_id -> when its figures were true).

        Nothing is counted twice: a lease leaves `outstanding` exactly when the reading that includes it arrives.
        """
        seen = [
            lease
            for pool_id, true_at_s in reported_at_s.items()
            for lease in self._by_pool.get(pool_id, {}).values()
            if self._is_covered(lease, true_at_s)
        ]
        seen.sort(key=lambda lease: lease.lease_id)
        for lease in seen:
            self._close(lease.lease_id, Closing.CONFIRMED)
        return tuple(seen)

    def outstanding(self, pool_id: str, at_s: float, reported_at_s: float | None = None) -> Claim:
        """
        Return what open leases claim on a pool at `at_s`: those expired, or counted by a reading, left out.

        Reads only; `expire` and `merge` do the book-keeping.
        """
        tokens = uncached_tokens = transfer_tokens = count = 0
        for lease in self._by_pool.get(pool_id, {}).values():
            if lease.expires_at_s <= at_s or (reported_at_s is not None and self._is_covered(lease, reported_at_s)):
                continue
            tokens += lease.tokens
            uncached_tokens += lease.uncached_tokens
            transfer_tokens += lease.transfer_tokens
            count += 1
        return Claim(tokens=tokens, uncached_tokens=uncached_tokens, transfer_tokens=transfer_tokens, count=count)

    def open_leases(self) -> tuple[Lease, ...]:
        """Return the open leases by id."""
        return tuple(self._open[lease_id] for lease_id in sorted(self._open))

    def pools(self) -> tuple[str, ...]:
        """Return the pools with open leases, ascending."""
        return tuple(sorted(self._by_pool))

    def totals(self) -> LeaseTotals:
        """Return leases and tokens by fate."""
        return LeaseTotals(
            granted_count=self._granted_count,
            confirmed_count=self._counts[Closing.CONFIRMED],
            released_count=self._counts[Closing.RELEASED],
            expired_count=self._counts[Closing.EXPIRED],
            outstanding_count=len(self._open),
            granted_tokens=self._granted_tokens,
            confirmed_tokens=self._tokens[Closing.CONFIRMED],
            released_tokens=self._tokens[Closing.RELEASED],
            expired_tokens=self._tokens[Closing.EXPIRED],
            outstanding_tokens=sum(lease.tokens for lease in self._open.values()),
        )

    def release_all(self, lease_ids: Iterable[str]) -> int:
        """Release several leases and return how many were open."""
        return sum(self.release(lease_id) for lease_id in lease_ids)

    def _is_covered(self, lease: Lease, true_at_s: float) -> bool:
        return lease.granted_at_s + self._visible_after_s <= true_at_s

    def _close(self, lease_id: str, how: Closing) -> bool:
        lease = self._open.pop(lease_id, None)
        if lease is None:
            return False
        pool = self._by_pool[lease.pool_id]
        del pool[lease_id]
        if not pool:
            del self._by_pool[lease.pool_id]
        self._counts[how] += 1
        self._tokens[how] += lease.tokens
        return True

"""
A router's opinion beside the engines' own: where they part, and what that does to routing.

Pure: rows of a router, pools as judged, and (for counters that are reset and fall again and again) a little memory
with time as an argument.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scoring.model import Finding, PoolSnapshot, RouterWorker, Severity

LEAST_COUNT: Final = 8.0
"""Requests at an engine below which a difference is arrival jitter, not divergence (chosen)."""
FOLLOWED_SHARE: Final = 0.5
"""A router that counts less than this share of an engine's requests does not follow it (chosen)."""
HELD_S: Final = 60.0
"""How long divergence is remembered: health checks that reset a router's counters come every 10 to 60 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRow:
    """
    One worker as the router and as the engines see it.

    Attributes:
        url: Address in the router's list, without rank.
        dp_rank: Rank the router addresses, or None for the whole worker.
        worker_id: The worker of ours at that address, or None.
        router_count: Requests the router believes in flight; None when it says -1 or nothing.
        engine_count: Requests running and waiting at the engine; None when it does not say.
        router_tokens: Tokens the router believes held; None when it says -1 or nothing.
        engine_tokens: Tokens the engine says are used.
        difference_count: router_count - engine_count where both are known.
    """

    url: str
    dp_rank: int | None
    worker_id: str | None
    router_count: float | None
    engine_count: float | None
    router_tokens: float | None
    engine_tokens: float | None
    difference_count: float | None


def address(url: str) -> str:
    """Return host:port of an address, whatever its scheme, path, user name or `@rank` suffix."""
    rest = url.partition("://")[2] or url
    rest = rest.split("/", 1)[0]
    head, at, tail = rest.rpartition("@")
    if at:
        rest = head if tail.isdigit() and ":" in head else tail
    return rest.lower()


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _pools_by_address(
    pools: Sequence[PoolSnapshot], urls: Mapping[str, str]
) -> tuple[dict[str, list[PoolSnapshot]], dict[str, str]]:
    """Return pools by host:port, and the one host:port of each host that has only one (gRPC ports differ)."""
    found: dict[str, list[PoolSnapshot]] = {}
    for pool in pools:
        found.setdefault(address(urls.get(pool.worker_id, pool.worker_id)), []).append(pool)
    hosts: dict[str, list[str]] = {}
    for place in found:
        hosts.setdefault(place.rpartition(":")[0] or place, []).append(place)
    return found, {host: places[0] for host, places in hosts.items() if len(places) == 1}


def router_rows(
    router_workers: Sequence[RouterWorker], pools: Sequence[PoolSnapshot], urls: Mapping[str, str] | None = None
) -> tuple[RouterRow, ...]:
    """
    Return the router's list beside the engines' figures, in the router's order.

    Args:
        router_workers: Rows of one router.
        pools: Judged pools of the fleet.
        urls: worker_id -> base URL, where the id is not host:port itself.
    """
    found, alone = _pools_by_address(pools, urls or {})
    rows = []
    for worker in router_workers:
        place = address(worker.url)
        mine = found.get(place) or found.get(alone.get(place.rpartition(":")[0], ""), [])
        if worker.dp_rank is not None:
            mine = [pool for pool in mine if pool.dp_rank == worker.dp_rank]
        mine = [pool for pool in mine if pool.state.is_scored]
        engine_count = _total([_requests(pool) for pool in mine])
        known = worker.load_count is not None and engine_count is not None
        rows.append(
            RouterRow(
                url=worker.url,
                dp_rank=worker.dp_rank,
                worker_id=mine[0].worker_id if mine else None,
                router_count=worker.load_count,
                engine_count=engine_count,
                router_tokens=worker.load_tokens,
                engine_tokens=_total([pool.composition.used_tokens.value for pool in mine]),
                difference_count=(worker.load_count or 0.0) - (engine_count or 0.0) if known else None,
            )
        )
    return tuple(rows)


def _requests(pool: PoolSnapshot) -> float | None:
    running, waiting = pool.running_count.value, pool.waiting_count.value
    if running is None and waiting is None:
        return None
    inflight = pool.queue_inflight_count.value or 0.0
    return (running or 0.0) + (waiting or 0.0) + inflight


def router_divergence(
    router_workers: Sequence[RouterWorker],
    pools: Sequence[PoolSnapshot],
    urls: Mapping[str, str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """
    Return what is wrong between a router's view and the engines'; () when they agree.

    Codes: `router-blind` (it knows no load of workers that answer), `router-counters-diverge` (its counters do not
    follow the engines), `router-ranks-differ` (it addresses ranks that the worker does not own).

    Args:
        router_workers: Rows of one router.
        pools: Judged pools of the fleet.
        urls: worker_id -> base URL.
        facts: The router reading's facts, for the share of requests that failed.
    """
    rows = router_rows(router_workers, pools, urls)
    findings = [_blind(rows), _diverging(rows), _misaddressed(router_workers, pools, urls or {}, facts or {})]
    return tuple(finding for finding in findings if finding is not None)


def _blind(rows: Sequence[RouterRow]) -> Finding | None:
    answering = [row for row in rows if row.engine_count is not None or row.engine_tokens is not None]
    blind = [row for row in answering if row.router_count is None and row.router_tokens is None]
    if not blind:
        return None
    return Finding(
        code="router-blind",
        text=f"Router blind: it knows no load of {len(blind)} of {len(rows)} workers, while all {len(blind)} of them "
        "answer when asked themselves. It routes without looking at load.",
        severity=Severity.ERROR if len(blind) == len(rows) else Severity.WARNING,
    )


def _is_diverging(row: RouterRow) -> bool:
    if row.router_count is None or row.engine_count is None or row.engine_count < LEAST_COUNT:
        return False
    return row.router_count < FOLLOWED_SHARE * row.engine_count


def _diverging(rows: Sequence[RouterRow]) -> Finding | None:
    apart = [row for row in rows if _is_diverging(row)]
    if not apart:
        return None
    shown = ", ".join(f"{_named(row)} {row.router_count:g} against {row.engine_count:g}" for row in apart[:4])
    return Finding(
        code="router-counters-diverge",
        text=f"Router counters do not follow the engines on {len(apart)} of {len(rows)} workers: {shown} (requests in "
        "flight at the router against running and waiting at the engine). Another router may feed them too, or its "
        "counters are reset or never raised: it cannot see imbalance.",
        severity=Severity.WARNING,
    )


def _named(row: RouterRow) -> str:
    place = address(row.url)
    return place if row.dp_rank is None else f"{place} rank {row.dp_rank}"


def _misaddressed(
    router_workers: Sequence[RouterWorker],
    pools: Sequence[PoolSnapshot],
    urls: Mapping[str, str],
    facts: Mapping[str, str],
) -> Finding | None:
    found, _ = _pools_by_address(pools, urls)
    asked: dict[str, set[int]] = {}
    for worker in router_workers:
        if worker.dp_rank is not None:
            asked.setdefault(address(worker.url), set()).add(worker.dp_rank)
    wrong = []
    for place, ranks in sorted(asked.items()):
        owned = {pool.dp_rank for pool in found.get(place, ())}
        # A worker that shows fewer ranks than it has (one series for all of them) is partly seen, not misaddressed:
        # only ranks of its own that nobody asks for prove that the router counts differently.
        if ranks - owned and owned - ranks:
            running = _total([pool.running_count.value for pool in found[place]])
            wrong.append((place, ranks - owned, owned, running))
    if not wrong:
        return None
    parts = []
    for place, ranks, owned, running in wrong[:4]:
        text = f"it addresses {place} as ranks {_span(ranks)}, that worker owns {_span(owned)}"
        parts.append(f"{text} and runs {running:g} requests" if running is not None else text)
    share = _failed_share(facts)
    lost = f" {share}." if share else ""
    return Finding(
        code="router-ranks-differ",
        text=f"The router addresses ranks that do not exist: {'; '.join(parts)}.{lost} "
        "An idle worker here is not free room: requests sent to it fail.",
        severity=Severity.ERROR,
    )


def _span(ranks: set[int]) -> str:
    ordered = sorted(ranks)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}..{ordered[-1]}"
    return ", ".join(str(rank) for rank in ordered[:8])


def _failed_share(facts: Mapping[str, str]) -> str:
    try:
        total, failed = float(facts["requests_total"]), float(facts["requests_failed_total"])
    except (KeyError, ValueError):
        return ""
    return f"{failed:.0f} of {total:.0f} requests failed ({failed / total:.0%})" if total > 0 and failed > 0 else ""


@dataclass(slots=True)
class RouterWatch:
    """
    Remembers divergence of one router for a while, so that a counter that is reset again and again stays found.

    Attributes:
        held_s: How long a finding outlives the instant it was seen.
    """

    held_s: float = HELD_S
    _seen: dict[str, tuple[float, Finding]] = field(default_factory=dict)

    def observe(
        self,
        at_s: float,
        router_workers: Sequence[RouterWorker],
        pools: Sequence[PoolSnapshot],
        urls: Mapping[str, str] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> tuple[Finding, ...]:
        """Return the findings of this instant and those of the last `held_s` seconds, by code."""
        for finding in router_divergence(router_workers, pools, urls, facts):
            self._seen[finding.code] = (at_s, finding)
        self._seen = {code: (seen, f) for code, (seen, f) in self._seen.items() if at_s - seen <= self.held_s}
        return tuple(finding for _, (_, finding) in sorted(self._seen.items()))

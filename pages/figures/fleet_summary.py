"""
The key figures above the bars: how many pools are fresh, how full, how uneven, how much is free, how many wait.

Only pools that are scored count, and only like is compared with like: shares of pools of different size say different
things, so a spread is taken among nodes of one role and one size. What is not known is counted, never taken as zero.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pages.figures.fleet import committed_ratio
from scoring.model import FleetSnapshot, PoolSnapshot, Role, SourceState
from scoring.snapshot import waiting_once
from scoring.units import tokens_to_blocks_down


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The two ends of the largest difference of committed share (0..1) within a group of like pools or nodes."""

    low: str
    low_ratio: float
    high: str
    high_ratio: float

    @property
    def ratio(self) -> float:
        """Return the difference."""
        return self.high_ratio - self.low_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """
    Key figures of some pools.

    Attributes:
        states: Pools per state, workers without any pool added to theirs.
        median_ratio: Median of committed / usable over scored pools, None when none tells it.
        fullest: (pool id, committed / usable) of the fullest scored pool.
        nodes: Largest spread between nodes of one role and size, None when there is nothing to compare.
        ranks: Largest spread between ranks of one node.
        free_blocks: Over scored pools that tell free from prefix, None when none does.
        prefix_blocks: Evictable, over the same pools.
        free_unknown_count: Scored pools that do not tell.
        waiting_count: Requests waiting, each once; None when no scored pool tells.
        waiting_unknown_count: Scored pools that do not tell.
        queued_tokens: Their need where it is known, None when nowhere.
    """

    states: dict[SourceState, int]
    median_ratio: float | None
    fullest: tuple[str, float] | None
    nodes: Spread | None
    ranks: Spread | None
    free_blocks: float | None
    prefix_blocks: float | None
    free_unknown_count: int
    waiting_count: float | None
    waiting_unknown_count: int
    queued_tokens: float | None

    @property
    def pool_count(self) -> int:
        """Return all pools, those of no worker's answer included."""
        return sum(self.states.values())

    @property
    def scored_count(self) -> int:
        """Return the pools whose figures may be scored."""
        return sum(count for state, count in self.states.items() if state.is_scored)


def summarise(pools: Sequence[PoolSnapshot], silent: Iterable[SourceState] = ()) -> Summary:
    """Return the key figures of `pools`; `silent` are the states of workers that have no pool at all."""
    states: dict[SourceState, int] = defaultdict(int)
    for state in [pool.state for pool in pools] + list(silent):
        states[state] += 1
    scored = [pool for pool in pools if pool.state.is_scored]
    ratios = {pool.pool_id: ratio for pool in scored if (ratio := committed_ratio(pool)) is not None}
    free = [blocks for pool in scored if (blocks := _blocks(pool, pool.composition.free_tokens.value)) is not None]
    prefix = [blocks for pool in scored if (blocks := _blocks(pool, pool.composition.prefix_tokens.value)) is not None]
    queued = [pool.composition.queued_tokens.value for pool in scored]
    needs = [value for value in queued if value is not None]
    return Summary(
        states=dict(states),
        median_ratio=median(ratios.values()) if ratios else None,
        fullest=max(ratios.items(), key=lambda item: (item[1], item[0])) if ratios else None,
        nodes=_node_spread(scored),
        ranks=_rank_spread(scored),
        free_blocks=sum(free) if free else None,
        prefix_blocks=sum(prefix) if prefix else None,
        free_unknown_count=len(scored) - len(free),
        waiting_count=waiting_once(scored).value,
        waiting_unknown_count=sum(pool.waiting_count.value is None for pool in scored),
        queued_tokens=sum(needs) if needs else None,
    )


def holders(fleet: FleetSnapshot) -> tuple[Role, list[PoolSnapshot]]:
    """Return the role whose pools hold KV longest here (decode, else unified, else the rest), and those pools."""
    for role in (Role.DECODE, Role.UNIFIED, Role.PREFILL, Role.UNKNOWN):
        pools = [pool for pool in fleet.pools if pool.role is role]
        if pools:
            return role, pools
    return Role.DECODE, []


def _blocks(pool: PoolSnapshot, tokens: float | None) -> float | None:
    block = pool.block_size_tokens.value
    return tokens_to_blocks_down(tokens, block) if tokens is not None and block else None


def _node_spread(pools: Sequence[PoolSnapshot]) -> Spread | None:
    nodes: dict[tuple[Role, str], list[PoolSnapshot]] = defaultdict(list)
    for pool in pools:
        nodes[pool.role, pool.worker_id].append(pool)
    groups: dict[tuple[Role, float], dict[str, float]] = defaultdict(dict)
    for (role, worker), members in nodes.items():
        usable = [pool.composition.usable_tokens.value for pool in members]
        committed = [pool.composition.committed_tokens.value for pool in members]
        if None in usable or None in committed:
            continue
        size = sum(value for value in usable if value is not None)
        if size > 0:
            groups[role, size][worker] = sum(value for value in committed if value is not None) / size
    return _largest(groups.values())


def _rank_spread(pools: Sequence[PoolSnapshot]) -> Spread | None:
    nodes: dict[tuple[str, float | None], dict[str, float]] = defaultdict(dict)
    for pool in pools:
        ratio = committed_ratio(pool)
        if ratio is not None:
            nodes[pool.worker_id, pool.composition.usable_tokens.value][pool.pool_id] = ratio
    return _largest(nodes.values())


def _largest(groups: Iterable[dict[str, float]]) -> Spread | None:
    spreads = []
    for group in groups:
        if len(group) > 1:
            names = sorted(group)
            # Of equal ones the first and the last: the two ends of a spread are never one and the same.
            low, high = min(names, key=group.__getitem__), max(reversed(names), key=group.__getitem__)
            spreads.append(Spread(low=low, low_ratio=group[low], high=high, high_ratio=group[high]))
    return max(spreads, key=lambda spread: (spread.ratio, spread.high), default=None)

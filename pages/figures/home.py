"""
What the opening page says: who is watched, what is wrong, in the order of how much it matters, and what to look at.

Data in, rows out; the page lays them out and puts them into words.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pages.figures.fleet import committed_ratio
from scoring.chain import ChainState
from scoring.chain_evidence import Stage
from scoring.model import FleetSnapshot, PoolSnapshot, Role, Severity, SourceState

FULL_RATIO: Final = 0.95
"""Chosen: committed beyond this is said even where no chain is watched; the chain's own thresholds come first."""
MOST_POOLS: Final = 40
"""Chosen: more tanks than this cannot be told apart; the Fleet page has them all."""
LIKELY: Final = 0.05
"""Chosen: a pool less likely than this to run out within the horizon is not filling, it breathes."""
GRAVE, SERIOUS, NOTABLE = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """
    One thing that is wrong now.

    Attributes:
        rank: GRAVE, SERIOUS or NOTABLE.
        key: Text of `home.` that words it.
        values: What goes into the text; names from outside are still raw.
        page: Where to look.
        query: URL parameters of that link.
    """

    rank: int
    key: str
    values: Mapping[str, Any]
    page: str
    query: Mapping[str, str] = field(default_factory=dict)


def watched(fleet: FleetSnapshot) -> tuple[int, Counter[Role], list[str]]:
    """Return workers, pools by role, and the models served."""
    models = sorted({pool.model for pool in fleet.pools if pool.model})
    return len({pool.worker_id for pool in fleet.pools}), Counter(pool.role for pool in fleet.pools), models


def wrongs(
    fleet: FleetSnapshot, silent: Sequence[tuple[str, SourceState]], chains: Mapping[str, ChainState]
) -> list[Wrong]:
    """
    Return what is wrong, gravest first.

    Args:
        fleet: Judged now.
        silent: Workers without a pool, with their state.
        chains: Saturation chains by pool, empty where none is watched.
    """
    found: list[Wrong] = []
    if silent:
        names = [name for name, _ in silent]
        found.append(
            Wrong(rank=GRAVE, key="wrong_silent", values={"count": len(names), "names": names}, page="sources")
        )
    for state in (s for s in SourceState if not s.is_scored):
        names = [pool.pool_id for pool in fleet.pools if pool.state is state]
        if names:
            values = {"count": len(names), "names": names, "state": state}
            found.append(Wrong(rank=GRAVE, key="wrong_state", values=values, page="sources"))
    late = [pool.pool_id for pool in fleet.pools if pool.state is SourceState.LATE]
    if late:
        values = {"count": len(late), "of": len(fleet.pools), "names": late}
        found.append(Wrong(rank=NOTABLE, key="wrong_late", values=values, page="sources"))
    for pool in fleet.pools:
        found += _of_pool(pool, chains.get(pool.pool_id))
    said: set[str] = set()
    for about, finding in [
        *(("", finding) for finding in fleet.findings),
        *((pool.pool_id, finding) for pool in fleet.pools for finding in pool.findings),
    ]:
        if finding.severity is not Severity.INFO and finding.code not in said:
            said.add(finding.code)
            rank = SERIOUS if finding.severity is Severity.ERROR else NOTABLE
            found.append(
                Wrong(rank=rank, key="wrong_finding", values={"about": about, "text": finding.text}, page="fleet")
            )
    return sorted(found, key=lambda wrong: wrong.rank)


def _of_pool(pool: PoolSnapshot, state: ChainState | None) -> list[Wrong]:
    if not pool.state.is_scored:
        return []
    page, query = "saturation", {"pool": pool.pool_id}
    if state is not None and state.alarm.is_on:
        values = {"pool": pool.pool_id, "probability": state.alarm.probability}
        return [Wrong(rank=GRAVE, key="wrong_alarm", values=values, page=page, query=query)]
    if state is not None and state.stage >= Stage.ADMISSION_STALLS:
        values = {"pool": pool.pool_id, "stage": int(state.stage)}
        return [Wrong(rank=SERIOUS, key="wrong_stage", values=values, page=page, query=query)]
    ratio = committed_ratio(pool)
    if ratio is not None and ratio >= FULL_RATIO:
        full = {"pool": pool.pool_id, "share": ratio}
        return [Wrong(rank=SERIOUS, key="wrong_full", values=full, page=page, query=query)]
    return []


def next_out(fleet: FleetSnapshot, chains: Mapping[str, ChainState]) -> tuple[str, float] | None:
    """Return (pool, expected seconds) of the pool that runs out of room first at its present rate; None without one."""
    times = []
    for pool in fleet.pools:
        state = chains.get(pool.pool_id)
        if state is None or not pool.state.is_scored or (state.risk.exhausted_probability or 0.0) < LIKELY:
            continue
        expected_s = state.risk.expected_exhaustion_s
        if expected_s is not None:
            times.append((expected_s, pool.pool_id))
    first = min(times, default=None)
    return None if first is None else (first[1], first[0])


def shown(fleet: FleetSnapshot) -> FleetSnapshot:
    """Return the fleet with the pools that are drawn: all, or the first MOST_POOLS where there are more."""
    return fleet if len(fleet.pools) <= MOST_POOLS else replace(fleet, pools=fleet.pools[:MOST_POOLS])

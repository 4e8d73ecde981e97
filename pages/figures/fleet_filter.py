"""
Which pools the Fleet page shows, in which order, and what must be said beside them.
"""

import re
from collections.abc import Sequence
from typing import Final

from pages.figures import number
from pages.figures.fleet import MOST_ROWS, committed_ratio, convert, part_figures
from pages.figures.terms import STATES
from pages.texts import Say
from scoring.model import PoolSnapshot, Provenance

ORDERS: Final = ("name", "committed", "waiting")


def order_pools(pools: Sequence[PoolSnapshot], order: str) -> list[PoolSnapshot]:
    """Return pools by `name`, by `committed` (fullest first, unknown last) or by `waiting` (most first)."""
    if order == "committed":
        return sorted(pools, key=lambda pool: (-(committed_ratio(pool) or -1.0), pool.pool_id))
    if order == "waiting":
        return sorted(pools, key=lambda pool: (-(pool.waiting_count.value or 0.0), pool.pool_id))
    return sorted(pools, key=lambda pool: pool.pool_id)


def label_values(pools: Sequence[PoolSnapshot]) -> list[str]:
    """Return every `key=value` label that tells pools apart, the model included, sorted."""
    pairs = {f"{key}={value}" for pool in pools for key, value in _labels(pool).items()}
    return sorted(pair for pair in pairs if not all(pair in _label_pairs(pool) for pool in pools))


def matching(
    pools: Sequence[PoolSnapshot], roles: Sequence[str], labels: Sequence[str], wanted: str
) -> list[PoolSnapshot]:
    """Return pools of any of `roles` that carry one of the values given for each label key, and `wanted` in the id."""
    keys: dict[str, set[str]] = {}
    for pair in labels:
        keys.setdefault(pair.partition("=")[0], set()).add(pair)
    part = wanted.strip().lower()
    return [
        pool
        for pool in pools
        if (not roles or pool.role.value in roles)
        and all(_label_pairs(pool) & values for values in keys.values())
        and part in pool.pool_id.lower()
    ]


def _labels(pool: PoolSnapshot) -> dict[str, str]:
    return {**({"model": pool.model} if pool.model else {}), **pool.labels}


def _label_pairs(pool: PoolSnapshot) -> set[str]:
    return {f"{key}={value}" for key, value in _labels(pool).items()}


def notes(pools: Sequence[PoolSnapshot], unit: str, t: Say) -> list[str]:
    """Return what must be said beside the bars, safe for Markdown: missing conversions, shares, rows left out."""
    said = []
    if unit == "share":
        said.append(t("fleet.share_note"))
    known = [pool for pool in pools if pool.composition.usable_tokens.value is not None]
    missing = [pool for pool in known if convert(1.0, pool, unit) is None]
    if missing:
        names = ", ".join(number.markdown(pool.pool_id, 40) for pool in missing[:6])
        more = f" +{len(missing) - 6}" if len(missing) > 6 else ""
        unit_name = t(f"common.unit_{unit}")
        said.append(
            t("fleet.conversion_missing", count=len(missing), total=len(pools), unit=unit_name, pools=names + more)
        )
    parts = [part_figures(pool) for pool in pools[:MOST_ROWS]]
    looks = {
        "note_hatched": any(f.provenance is Provenance.ESTIMATED for told in parts for f in told.values()),
        "note_crossed": any("unattributed" in told for told in parts),
        "note_hollow": any(pool.composition.usable_tokens.value is None for pool in pools),
        "note_faint": any(not pool.state.is_scored for pool in pools),
    }
    legend = " ".join(t(f"fleet.{key}") for key, is_seen in looks.items() if is_seen)
    if legend:
        said.append(legend)
    if len(pools) > MOST_ROWS:
        said.append(t("fleet.left_out", shown=MOST_ROWS, count=len(pools)))
    return said


def not_scored(pools: Sequence[PoolSnapshot], t: Say) -> list[str]:
    """Return one sentence for each state and reason that keeps pools out of every score, safe for Markdown."""
    groups: dict[tuple[str, str], list[PoolSnapshot]] = {}
    for pool in sorted(pools, key=lambda item: item.pool_id):
        if not pool.state.is_scored:
            groups.setdefault((pool.state.value, _without_age(pool.state_reason)), []).append(pool)
    said = []
    for (state, reason), members in sorted(groups.items()):
        names = ", ".join(number.markdown(pool.pool_id, 40) for pool in members[:8])
        more = f" +{len(members) - 8}" if len(members) > 8 else ""
        ages = [pool.age_s for pool in members if pool.age_s is not None]
        said.append(
            t(
                "fleet.not_scored" if ages else "fleet.not_scored_ever",
                sign=STATES[state][0],
                state=t(f"common.state_{state}"),
                age=number.age(max(ages, default=None), absent=t("common.unknown")),
                pools=names + more,
                reason=number.markdown(t.said(reason)),
            )
        )
    return said


def _without_age(reason: str) -> str:
    """Return a reason without the numbers that differ from pool to pool, so that equal causes stand together."""
    return re.sub(r"\d+(\.\d+)? s ago", "a while ago", reason)

"""
How long things are kept, and forgetting the rest.

Rows go by age with a plain delete: rows are in order of time, so whole blocks become free and are used again, and the
file stays level (measured: 7-8 MB at 500 rows a second). No VACUUM: DuckDB's frees nothing.
"""

from dataclasses import dataclass, fields
from typing import Final

from collectors.store.columns import COARSEST_STEP_S, TIERS
from collectors.store.connection import Database
from collectors.store.rollups import tier_states
from collectors.store.times import floor_us, to_us

_HOUR_S = 3600.0
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """
    Ages in seconds after which rows are deleted.

    Attributes:
        raw_s: Readings and router views as they came.
        tier_10s_s: Buckets of 10 seconds.
        tier_1min_s: Buckets of a minute.
        tier_10min_s: Buckets of ten minutes.
        polls_s: Poll outcomes and cycles.
        events_s: Findings, events and alerts.
    """

    raw_s: float = _DAY_S + _HOUR_S
    tier_10s_s: float = 7 * _DAY_S
    tier_1min_s: float = 30 * _DAY_S
    tier_10min_s: float = 365 * _DAY_S
    polls_s: float = 7 * _DAY_S
    events_s: float = 90 * _DAY_S

    def __post_init__(self) -> None:
        """Raise ValueError for an age that cannot be, or a coarser tier that would end before a finer one."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0.0:
                raise ValueError(f"retention: {field.name} is {value}; an age must be above 0")
        ages = [self.raw_s, self.tier_10s_s, self.tier_1min_s, self.tier_10min_s]
        if ages != sorted(ages):
            raise ValueError(
                f"retention: raw_s, tier_10s_s, tier_1min_s, tier_10min_s are {ages}; each must reach at least as far "
                "as the one before"
            )


DEFAULT_RETENTION: Final = Retention()


def forget(database: Database, at_s: float, retention: Retention = DEFAULT_RETENTION) -> dict[str, int]:
    """
    Delete what is older than `retention` allows at `at_s`, and return the rows deleted from each table.

    Never deletes a sample that its next tier has not taken up yet. Limits fall on whole ten minutes, so that no
    bucket of any tier is cut in two.
    """
    deleted: dict[str, int] = {}
    ages = (retention.raw_s, retention.tier_10s_s, retention.tier_1min_s, retention.tier_10min_s)
    with database.writing("deleting what is too old") as cursor:
        states = tier_states(cursor)
        for i, (tier, age_s) in enumerate(zip(TIERS, ages, strict=True)):
            until_us = to_us(at_s - age_s)
            if i + 1 < len(TIERS):
                until_us = min(until_us, states[TIERS[i + 1].name].rolled_until_us or 0)
            until_us = max(floor_us(until_us, COARSEST_STEP_S), states[tier.name].deleted_until_us or 0)
            deleted[tier.table] = cursor.execute(
                f"delete from {tier.table} where ts < make_timestamp(?)",  # noqa: S608 # a table of TIERS
                [until_us],
            ).fetchall()[0][0]
            if deleted[tier.table]:
                cursor.execute(
                    "update tiers set deleted_until = make_timestamp(?) where name = ?", [until_us, tier.name]
                ).fetchall()
        for table, age_s in (
            ("router_workers", retention.raw_s),
            ("polls", retention.polls_s),
            ("cycles", retention.polls_s),
            ("findings", retention.events_s),
            ("events", retention.events_s),
            ("alerts", retention.events_s),
        ):
            deleted[table] = cursor.execute(
                f"delete from {table} where ts < make_timestamp(?)",  # noqa: S608 # a table named above
                [to_us(at_s - age_s)],
            ).fetchall()[0][0]
    return deleted

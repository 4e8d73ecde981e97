"""
Which columns a signal has in which table, and the SQL that stands for it.

`readings` keeps every signal as it came, one DOUBLE each. The tiers keep what a bucket of time needs: a gauge its
least, mean and greatest value and how many samples knew it; a counter or a constant its newest known value.
Names put the statistic first, so that the unit stays last: `lowest_used_tokens mean_used_tokens highest_used_tokens`,
and `known_used_tokens` for the samples that knew it (`max_...` would collide with `max_running_count`).

Signals enter SQL text as identifiers, never from outside: every list passes `checked_signals`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scoring.model import GAUGE, signal_names

IDENTITY_COLUMNS: Final = ("worker_id", "dp_rank")
TEXT_COLUMNS: Final = ("role", "engine", "version", "model")
SIDE_COLUMNS: Final = ("ttft_buckets", "itl_buckets", "anomalies")
STATISTICS: Final = ("lowest", "mean", "highest", "known")

GAUGES: Final = frozenset(signal_names(GAUGE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """
    One resolution of the past.

    Attributes:
        name: Key in the table `tiers`.
        table: Where its rows are.
        step_s: Length of a bucket; 0 for samples as they came.
        chunk_s: Most time rolled up in one transaction (bounds memory while catching up).
    """

    name: str
    table: str
    step_s: int
    chunk_s: int


TIERS: Final = (
    Tier(name="raw", table="readings", step_s=0, chunk_s=0),
    Tier(name="10s", table="readings_10s", step_s=10, chunk_s=300),
    Tier(name="1min", table="readings_1min", step_s=60, chunk_s=1800),
    Tier(name="10min", table="readings_10min", step_s=600, chunk_s=21600),
)
"""Finest first. Each tier is made from the one before it."""
COARSEST_STEP_S: Final = TIERS[-1].step_s


def checked_signals(signals: Iterable[str]) -> tuple[str, ...]:
    """Return `signals` without repeats, in order; ValueError when one is no stored signal."""
    known = set(signal_names())
    wanted = tuple(dict.fromkeys(signals))
    strangers = [name for name in wanted if name not in known]
    if strangers:
        raise ValueError(f"signals: no such signal {', '.join(strangers)}; scoring.model.signal_names() lists them")
    return wanted


def tier_columns(signals: Sequence[str]) -> list[str]:
    """Return the columns that `signals` have in a tier table."""
    columns: list[str] = []
    for name in signals:
        columns += [f"{word}_{name}" for word in STATISTICS] if name in GAUGES else [name]
    return columns


def as_tier_columns(signals: Sequence[str], tier: Tier) -> list[str]:
    """Return select expressions that make a row of `tier` look like a tier row (a raw sample is a bucket of one)."""
    if tier.step_s:
        return tier_columns(signals)
    columns: list[str] = []
    for name in signals:
        if name in GAUGES:
            columns += [f"{name} as {word}_{name}" for word in ("lowest", "mean", "highest")]
            columns.append(f"({name} is not null)::integer as known_{name}")
        else:
            columns.append(name)
    return columns


def merged(name: str, time_column: str) -> list[tuple[str, str]]:
    """Return (column, aggregate) pairs that merge tier rows of signal `name`; `time_column` orders the newest."""
    if name not in GAUGES:
        return [(name, f"arg_max({name}, {time_column})")]
    return [
        (f"lowest_{name}", f"min(lowest_{name})"),
        # Weighted by the samples that knew the value; no sample gives 0 / 0, which must be NULL and not NaN.
        (f"mean_{name}", f"sum(mean_{name} * known_{name}) / nullif(sum(known_{name}), 0)"),
        (f"highest_{name}", f"max(highest_{name})"),
        (f"known_{name}", f"sum(known_{name})"),
    ]

"""
Which histograms of a cycle are worth storing.

A pool's two histograms weigh as much as all its signals together, change every second under load, and are read as
differences over a minute. So they are stored when they have changed, and of a large fleet only `PER_CYCLE` a cycle,
the longest unstored first: a fleet of that size or less loses nothing, one of 1,000 pools has each every 8 cycles.
In between the column is NULL, and a read takes the newest one stored; an empty list says that there is none any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scoring.model import PoolReading

PER_CYCLE: Final = 128
"""Chosen: 3 ms of a cycle (measured 25 ms for a thousand)."""
KEEP_S: Final = 60.0
"""Chosen: stored again after this even when unchanged, so that a read need not look back further than twice that."""

Buckets = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class StoredBuckets:
    """What the table has of one pool."""

    at_s: float
    ttft: Buckets | None
    itl: Buckets | None


PoolKey = tuple[str, int]


def due_buckets(
    readings: Sequence[PoolReading], stored: dict[PoolKey, StoredBuckets], at_s: float
) -> dict[int, StoredBuckets]:
    """Return index into `readings` -> what to store, for those whose turn it is; `stored` is what the table has."""
    due: list[tuple[float, int]] = []
    for i, reading in enumerate(readings):
        last = stored.get((reading.worker_id, reading.dp_rank))
        if last is None:
            if reading.ttft_buckets is not None or reading.itl_buckets is not None:
                due.append((float("-inf"), i))
        elif (
            not 0.0 <= at_s - last.at_s < KEEP_S or reading.ttft_buckets != last.ttft or reading.itl_buckets != last.itl
        ):
            due.append((last.at_s, i))
    due.sort()
    return {i: StoredBuckets(at_s, readings[i].ttft_buckets, readings[i].itl_buckets) for _, i in due[:PER_CYCLE]}


def as_list(buckets: Buckets | None) -> list[float]:
    """Return bound, count, bound, count, ...; empty when there is no histogram."""
    return [number for pair in buckets or () for number in pair]


def from_list(flat: Sequence[float] | None) -> Buckets | None:
    """Return the histogram of a stored list, None for an empty one and for NULL."""
    if flat is None or not len(flat):
        return None
    return tuple(zip(flat[::2], flat[1::2], strict=True))

"""Between epoch seconds, which the house speaks, and naive UTC timestamps in microseconds, which the store keeps."""

import math
from datetime import UTC, datetime

US_PER_S = 1_000_000
FARTHEST_S = 2.5e11
"""About the year 9900: what is beyond was given in milliseconds or worse."""


def to_us(at_s: float) -> int:
    """Return microseconds since the epoch, the resolution of every stored time; ValueError when no such instant."""
    if not math.isfinite(at_s) or abs(at_s) > FARTHEST_S:
        raise ValueError(f"time: {at_s} is no instant in epoch seconds")
    return round(at_s * US_PER_S)


def to_s(stored: datetime | None) -> float | None:
    """Return epoch seconds of a naive UTC timestamp, None for None."""
    return None if stored is None else stored.replace(tzinfo=UTC).timestamp()


def floor_us(at_us: int, step_s: int) -> int:
    """Return the beginning of the bucket of `step_s` seconds that holds `at_us`."""
    step_us = step_s * US_PER_S
    return at_us // step_us * step_us

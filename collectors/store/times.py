"""Between epoch seconds, which the house speaks, and naive UTC timestamps in microseconds, which the store keeps."""

import math
from datetime import UTC, datetime

US_PER_S = 1_000_000


def to_us(at_s: float) -> int:
    """Return microseconds since the epoch, the resolution of every stored time; ValueError when not finite."""
    if not math.isfinite(at_s):
        raise ValueError(f"time: {at_s} is no instant")
    return round(at_s * US_PER_S)


def to_s(stored: datetime | None) -> float | None:
    """Return epoch seconds of a naive UTC timestamp, None for None."""
    return None if stored is None else stored.replace(tzinfo=UTC).timestamp()


def floor_us(at_us: int, step_s: int) -> int:
    """Return the beginning of the bucket of `step_s` seconds that holds `at_us`."""
    step_us = step_s * US_PER_S
    return at_us // step_us * step_us

"""
Human units of the fleet file: `"500 ms"`, `"7 d"`, `"8 MiB"`, `"50 GB/s"`, `"400 Gbit/s"`.

A bare number is already in the unit the key's name says. Decimal prefixes are powers of 1,000, `Ki Mi Gi Ti`
powers of 1,024; a lower-case `b` or `bit` is a bit, as network vendors write it.
"""

import math
import re
from typing import Final

_QUANTITY: Final = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*$")

DURATION_UNITS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}

_PREFIXES: Final = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 1024.0,
    "Mi": 1024.0**2,
    "Gi": 1024.0**3,
    "Ti": 1024.0**4,
}
_SIZES: Final = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "b": 0.125, "bit": 0.125, "bits": 0.125}


def _quantity(text: str, what: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"is not {what}; write a number with a unit, for example {example}")
    return float(match.group(1)), match.group(2)


def duration_s(value: object) -> float:
    """Return `value` (a number of seconds, or text such as "500 ms") in seconds; ValueError says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('is not a duration; write seconds as a number, or text such as "500 ms"')
    if isinstance(value, int | float):
        return _finite(float(value))
    number, unit = _quantity(value, "a duration", '"500 ms" or "2 h"')
    if unit == "":
        return _finite(number)
    if unit not in DURATION_UNITS:
        raise ValueError(f"has the unknown unit {unit!r}; known: us, ms, s, min, h, d")
    return _finite(number * DURATION_UNITS[unit])


def size_bytes(value: object) -> float:
    """Return `value` (a number of bytes, or text such as "8 MiB") in bytes; ValueError says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('is not a size; write bytes as a number, or text such as "8 MiB"')
    if isinstance(value, int | float):
        return _finite(float(value))
    number, unit = _quantity(value, "a size", '"8 MiB"')
    return _finite(number * _size_unit(unit))


def bandwidth_bytes_per_s(value: object) -> float:
    """Return `value` (a number, or text such as "50 GB/s") in bytes per second; ValueError says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('is not a bandwidth; write bytes per second, or text such as "50 GB/s" or "400 Gbit/s"')
    if isinstance(value, int | float):
        return _finite(float(value))
    number, unit = _quantity(value, "a bandwidth", '"50 GB/s" or "400 Gbit/s"')
    if unit == "":
        return _finite(number)
    if unit.endswith("bps"):
        return _finite(number * _size_unit(unit.removesuffix("ps")))
    if not unit.endswith("/s"):
        raise ValueError(f'has the unit {unit!r}, which is a size; a bandwidth is per second, for example "50 GB/s"')
    return _finite(number * _size_unit(unit.removesuffix("/s")))


def _size_unit(unit: str) -> float:
    if unit == "":
        return 1.0
    for suffix in sorted(_SIZES, key=len, reverse=True):
        prefix = unit.removesuffix(suffix)
        if unit.endswith(suffix) and prefix in _PREFIXES:
            return _PREFIXES[prefix] * _SIZES[suffix]
    raise ValueError(f"has the unknown unit {unit!r}; known: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, and bit for bits")


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number

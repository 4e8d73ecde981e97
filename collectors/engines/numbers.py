"""
Careful number taking: between a payload and a `PoolReading` nothing passes that is not a plausible number.

`Numbers` refuses what is no number (true is not 1), not finite, beyond what a double holds exactly, or negative;
the field becomes None, its name goes into `anomalies`, and a finding keeps the raw value for the reader. Texts are
kept as text, without control characters and bounded, so that a page can escape them and a log line stays a line.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from scoring.model import Finding, Severity

LARGEST: Final = float(2**53)
"""Beyond this a double skips integers: no engine counts so many tokens, so the figure is an error."""
LARGEST_BYTES: Final = 1e18
"""Byte counters may pass 2^53 in days on a fast link; an exabyte is still absurd."""
MAX_TEXT_CHARACTERS: Final = 200


def decode_json(body: bytes) -> Any:
    """
    Return the JSON value, or None when the bytes are not JSON (cut, nested beyond reason).

    NaN tokens and numbers beyond a double are not JSON either, but one such field should not cost the others:
    they come back as non-finite floats, which `as_number` refuses one by one.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError.
        return None


def as_number(raw: object, *, largest: float = LARGEST) -> float | None:
    """Return a credible number as float: int or float, finite, 0 to `largest`; else None."""
    if type(raw) not in (int, float):
        return None
    try:
        value = float(raw)  # type: ignore[arg-type] # an int or float since the line above
    except OverflowError:
        return None
    return value + 0.0 if 0.0 <= value <= largest else None


def as_text(raw: object, *, longest: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Return a string without control characters, cut to `longest`; None for anything else or nothing left."""
    if not isinstance(raw, str):
        return None
    kept = "".join(sign if sign.isprintable() else " " for sign in raw[: 4 * longest]).strip()
    return kept[:longest] or None


def as_mapping(raw: object) -> Mapping[str, Any]:
    """Return `raw` when it is an object, else an empty one."""
    return raw if isinstance(raw, Mapping) else {}


def shown(raw: object) -> str:
    """Return a refused raw value as short, printable text for a finding."""
    if isinstance(raw, float):
        return f"{raw:g}"
    text = str(raw) if not isinstance(raw, int) or abs(raw) < 10**20 else f"a {raw.bit_length()}-bit integer"
    return as_text(text, longest=40) or "an empty text"


@dataclass(slots=True)
class Numbers:
    """
    Takes the numbers of one pool and remembers what it refused.

    Attributes:
        dp_rank: The rank the findings are about, or None.
        anomalies: PoolReading field names refused, in order, each once.
        findings: One per refused field, with the raw value.
    """

    dp_rank: int | None = None
    anomalies: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def take(
        self, raw: object, name: str, *, source: str = "", scale: float = 1.0, largest: float = LARGEST
    ) -> float | None:
        """
        Return `raw * scale`, or None when absent (None) or refused.

        `name` is the PoolReading field, `source` the payload's own word for it (default: `name`).
        """
        if raw is None:
            return None
        value = as_number(raw, largest=largest)
        if value is None:
            self.refuse(raw, name, source=source)
            return None
        return value * scale

    def refuse(self, raw: object, name: str, *, source: str = "", why: str = "") -> None:
        """Record that `name` is unknown because its raw value cannot be right."""
        if name in self.anomalies:
            return
        self.anomalies.append(name)
        is_number = type(raw) in (int, float)
        is_negative = is_number and raw < 0  # type: ignore[operator] # a number
        if not why:
            why = "negative" if is_negative else "too large or not finite" if is_number else "not a number"
        if is_negative and ("used" in name or "usage" in name):
            code = "negative-usage"
        elif is_negative:
            code = "negative-figure"
        else:
            code = "figure-not-credible"
        self.findings.append(
            Finding(
                code=code,
                text=f"{source or name} is {shown(raw)} ({why}): not credible, shown as unknown and not scored.",
                severity=Severity.WARNING,
                dp_rank=self.dp_rank,
            )
        )

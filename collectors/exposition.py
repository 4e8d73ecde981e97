"""
Prometheus text, read line by line: one bad line loses one line, never the scrape.

A strict parser raises on the first malformed line and the whole body is gone. This scan keeps what it can read,
counts what it cannot, and turns every value that is not a finite number into None. It accepts the classic format
and OpenMetrics (timestamps, exemplars, `# EOF`), any bytes at all, and does not raise. In tests its oracle on valid
bodies is prometheus_client's parser.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Final, NamedTuple

MAX_LABELS_CHARACTERS: Final = 4096
"""A label block longer than this is rejected: no engine writes one, and labels are kept in memory."""

# Possessive quantifiers (`*+`, `++`) never give back what they took, so no body can make these patterns slow.
_QUOTED: Final = r'"(?:[^"\\]++|\\.)*+"'
_SERIES_PATTERN: Final = (
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)[ \t]*+"
    rf"(?:\{{(?P<labels>(?:[^\"}}]++|{_QUOTED})*+)\}})?[ \t]*+"
)
_SERIES: Final = re.compile(_SERIES_PATTERN + r"\Z")
_LINE: Final = re.compile(
    rf"(?P<series>{_SERIES_PATTERN})(?P<value>[0-9A-Za-z+.\-]++)"
    r"(?:[ \t]++(?P<at>[0-9eE+.\-]++))?(?:[ \t]++\#[^\n]*+)?[ \t\r]*+\Z"
)
_QUOTED_NAME: Final = re.compile(r'\{[ \t]*+"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:.\-]*+)"[ \t]*+(?:,|(?=\}))')
_PAIR: Final = re.compile(r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|\Z)')
_ESCAPE: Final = re.compile(r"\\(.)")
_UNESCAPED: Final = {"n": "\n", "\\": "\\", '"': '"'}


class Sample(NamedTuple):
    """
    One line understood.

    Attributes:
        name: Metric name as written.
        labels: Label name -> value, unescaped. Shared between samples: read only.
        value: The number, or None where the text says NaN or an infinity.
    """

    name: str
    labels: Mapping[str, str]
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """
    A body, read as far as it goes.

    Attributes:
        samples: Wanted lines in the body's order, each (name, labels) once.
        rejected_count: Lines that are neither comment nor sample: malformed, cut off, or no number.
        ignored_count: Well-formed lines nobody wanted, `_created` among them.
        unknown_count: Lines whose value is NaN or infinite, wanted or not.
        duplicate_count: Repetitions of a wanted series. One that agrees is dropped; one that contradicts makes
            the series' value None, since nothing says which line is right.
    """

    samples: tuple[Sample, ...]
    rejected_count: int = 0
    ignored_count: int = 0
    unknown_count: int = 0
    duplicate_count: int = 0

    @property
    def line_count(self) -> int:
        """Return how many lines carried or should have carried a sample."""
        return len(self.samples) + self.rejected_count + self.ignored_count + self.duplicate_count


class _Series(NamedTuple):
    name: str
    labels: Mapping[str, str]
    identity: tuple[str, tuple[tuple[str, str], ...]]


@lru_cache(maxsize=16384)
def _series(text: str) -> _Series | None:
    """Return `name{labels}` understood, or None. Bodies repeat these texts cycle after cycle, hence the cache."""
    match = _SERIES.match(text)
    if match is None:
        return None
    labels = _labels(match["labels"] or "")
    if labels is None:
        return None
    return _Series(match["name"], labels, (match["name"], tuple(sorted(labels.items()))))


def _labels(text: str) -> Mapping[str, str] | None:
    """Return a label block as a mapping, or None when malformed."""
    if len(text) > MAX_LABELS_CHARACTERS:
        return None
    found: dict[str, str] = {}
    position, end = 0, len(text.rstrip(" \t"))
    while position < end:
        match = _PAIR.match(text, position)
        if match is None or match[1] in found:
            return None
        raw = match[2]
        found[match[1]] = _ESCAPE.sub(lambda m: _UNESCAPED.get(m[1], m[0]), raw) if "\\" in raw else raw
        position = match.end()
    return found


def _slow_line(line: str) -> tuple[_Series, str] | None:
    """Return series and value text of a line with a timestamp, an exemplar, odd spacing or a quoted name."""
    stripped = line.strip()
    match = _LINE.match(stripped) or _LINE.match(_with_plain_name(stripped))
    if match is None:
        return None
    series = _series(match["series"])
    if series is None:
        return None
    if match["at"] is not None:
        try:
            float(match["at"])
        except ValueError:
            return None
    return series, match["value"]


def scan(body: bytes, wanted: frozenset[str] | None = None) -> Exposition:
    """
    Read an exposition, keeping the samples whose name is in `wanted` (None: all).

    A sample line that the body ends in without a line feed is taken for cut off and rejected: `1` may have been
    `17`. Never raises.
    """
    text = body.decode("utf-8", "replace")
    lines = text.split("\n")
    tail = lines.pop()
    is_cut = bool(tail.strip()) and not tail.startswith("#")
    samples: list[Sample] = []
    places: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    rejected, ignored, unknown, duplicates = int(is_cut), 0, 0, 0
    for line in lines:
        if not line or line[0] == "#":
            continue
        series_text, _, value_text = line.rpartition(" ")
        series = _series(series_text) if len(series_text) <= MAX_LABELS_CHARACTERS else None
        if series is None:
            if not line.strip() or line.lstrip()[0] == "#":
                continue
            slow = _slow_line(line)
            if slow is None:
                rejected += 1
                continue
            series, value_text = slow
        try:
            number = float(value_text)
        except ValueError:
            rejected += 1
            continue
        if "_" in value_text or not value_text.isascii():  # Python's float takes `1_0` and other scripts' digits.
            rejected += 1
            continue
        value = number if isfinite(number) else None
        unknown += value is None
        name = series.name
        if (wanted is not None and name not in wanted) or name.endswith("_created"):
            ignored += 1
            continue
        place = places.setdefault(series.identity, len(samples))
        if place == len(samples):
            samples.append(Sample(name, series.labels, value))
        else:
            duplicates += 1
            if samples[place].value != value:
                samples[place] = Sample(name, series.labels, None)
    return Exposition(
        samples=tuple(samples),
        rejected_count=rejected,
        ignored_count=ignored,
        unknown_count=unknown,
        duplicate_count=duplicates,
    )


def _with_plain_name(line: str) -> str:
    """Return `{"name",a="b"} 1`, the newer way to write a sample, as `name{a="b"} 1`; else the line as it is."""
    match = _QUOTED_NAME.match(line)
    if match is None:
        return line
    name = match["name"].replace(".", "_").replace("-", "_")
    return f"{name}{{{line[match.end() :]}"


def spellings(prefix: str, names: Iterable[str]) -> frozenset[str]:
    """
    Return `prefix:name` and `prefix_name` for every name.

    Which one arrives is content negotiation (OpenMetrics has no colon), not a version: want both.
    """
    return frozenset(f"{prefix}{sign}{name}" for name in names for sign in ":_")


@lru_cache(maxsize=8192)
def bare_name(name: str, prefix: str) -> str:
    """Return `name` without `prefix:` or `prefix_`; unchanged when it has neither."""
    size = len(prefix)
    return name[size + 1 :] if name.startswith(prefix) and name[size : size + 1] in (":", "_") else name


def is_exposition(body: bytes) -> bool:
    """Say whether a body looks like Prometheus text, by its first lines: most are comments or samples."""
    head = body[:4096].decode("utf-8", "replace").lstrip()
    if not head or head[0] in "<[":
        return False
    lines = [line.strip() for line in head.split("\n")][: -1 if "\n" in head else None]
    lines = [line for line in lines if line]
    good = sum(line.startswith(("# TYPE ", "# HELP ")) or _slow_line(line) is not None for line in lines)
    return good > 0 and 2 * good >= len(lines)

"""
How an SGLang 0.5.23 server answers `GET /v1/loads`: selection by rank and section, JSON and text forms, refusals.

A row is the plain mapping of one DP rank, keys in the server's order; who makes the rows (the simulation or a
recording) is no matter here. Shapes and refusals were read off captures of a real server.

Read next: `rows` (a simulated pool -> a row) and `recording` (a recorded row -> the same row, brought to now).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

VERSION: Final = "0.5.23"
Row = Mapping[str, Any]

SECTION_INCLUDE: Final = {
    "memory": "memory",
    "speculative": "spec",
    "lora": "lora",
    "disaggregation": "disagg",
    "queues": "queues",
}
"""Section of a row -> the word that asks for it in `?include=`; the same word prefixes its text series."""
VALID_INCLUDE: Final = frozenset({"core", "all", *SECTION_INCLUDE.values()})


class BadQueryError(Exception):
    """
    The server would refuse this query.

    Attributes:
        status: HTTP status of the refusal.
        body: What the server writes.
        content_type: Media type of `body`.
    """

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status
        self.body = body
        self.content_type = content_type


def iso_utc(at_s: float) -> str:
    """Return epoch seconds as the server writes its own time: ISO 8601, microseconds, +00:00."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")


def select(rows: Sequence[Row], dp_rank: str | None, include: str | None) -> list[Row]:
    """
    Return the rows and sections that a query asks for.

    A rank out of range gives no rows. Core fields come with every section. An unknown section breaks the real
    server only once there is a row to write, hence the order of the checks.

    Args:
        rows: Rows of all ranks.
        dp_rank: Raw query value, or None.
        include: Raw query value, or None; empty means all.

    Raises:
        BadQueryError: `dp_rank` is no whole number (422) or `include` names an unknown section (500).
    """
    if dp_rank is not None:
        try:
            wanted = int(dp_rank)
        except ValueError:
            detail = {
                "type": "int_parsing",
                "loc": ["query", "dp_rank"],
                "msg": "Input should be a valid integer, unable to parse string as an integer",
                "input": dp_rank,
            }
            raise BadQueryError(422, msgspec.json.encode({"detail": [detail]}), "application/json") from None
        rows = [row for row in rows if row.get("dp_rank", 0) == wanted]
    words = {word.strip() for word in include.split(",")} if include else {"all"}
    if rows and not words <= VALID_INCLUDE:
        raise BadQueryError(500, b"Internal Server Error", "text/plain")
    if "all" in words:
        return list(rows)
    left_out = {section for section, word in SECTION_INCLUDE.items() if word not in words}
    return [{key: value for key, value in row.items() if key not in left_out} for row in rows]


def to_json(head: Mapping[str, Any], rows: Sequence[Row]) -> bytes:
    """Return the JSON body: the fields of `head`, then the rows under `loads`."""
    return msgspec.json.encode({**head, "loads": rows})


def _number(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return repr(value)


def _flat(row: Row) -> Iterable[tuple[str, str]]:
    for key, value in row.items():
        if key == "dp_rank":
            continue
        if key in SECTION_INCLUDE and isinstance(value, Mapping):
            for name, inner in value.items():
                number = _number(inner)
                if number is not None:
                    yield f"sglang_{SECTION_INCLUDE[key]}_{name}", number
            continue
        number = _number(value)
        if number is not None:
            yield f"sglang_{key}", number


def to_text(rows: Sequence[Row]) -> bytes:
    """Return the `format=prometheus` body: every number a gauge, lists and words left out; a line feed when empty."""
    series: dict[str, list[str]] = {}
    for row in rows:
        for name, number in _flat(row):
            series.setdefault(name, []).append(f'{name}{{dp_rank="{row.get("dp_rank")}"}} {number}')
    lines = [line for name, samples in series.items() for line in (f"# TYPE {name} gauge", *samples)]
    return ("\n".join(lines) + "\n").encode()

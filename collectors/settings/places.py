"""
Where a key stands in a TOML text: key path -> line number, so that a problem can name its place.

`tomllib` gives values without positions. This scan follows table headers, array-of-table headers, dotted keys and
keys of (inline) tables that begin a line; a key inside a one-line inline table has the line of its parent. It is
only run on texts that `tomllib` has accepted.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

KeyPath = tuple[str | int, ...]

_HEADER: Final = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$"""
)
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return key path -> line number (from 1) for every key of `text` that begins a line."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    depth = 0
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if depth == 0 and not quote:
            header = _HEADER.match(line)
            if header is not None:
                table = _resolve(_parts(header.group(2)), counts, is_array=header.group(1) == "[[")
                lines.setdefault(table, number)
                continue
            key = _KEY.match(line)
            if key is not None:
                path = (*table, *_parts(key.group(1)))
                lines.setdefault(path, number)
                depth, quote = _nesting(key.group(2), depth, quote)
                continue
        depth, quote = _nesting(line, depth, quote)
    return lines


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of `path`, or of the nearest table around it that begins a line."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def path_text(path: KeyPath) -> str:
    """Return `workers[2].url` for ("workers", 2, "url")."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _resolve(parts: tuple[str, ...], counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    """Return the path of a header: each array of tables on the way stands at its newest element."""
    path: KeyPath = ()
    for index, part in enumerate(parts):
        path = (*path, part)
        if is_array and index == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _nesting(text: str, depth: int, quote: str) -> tuple[int, str]:
    """Return bracket depth and open multi-line quote after `text`."""
    for mark in _marks(text):
        if quote:
            if mark == quote:
                quote = ""
        elif mark in ('"""', "'''"):
            quote = mark
        elif mark == "#":
            break
        elif mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
    return depth, quote


_MARK: Final = re.compile(r"""\"\"\"|'''|"(?:\\.|[^"\\])*"|'[^']*'|[\[\]{}#]""")


def _marks(text: str) -> Iterator[str]:
    for match in _MARK.finditer(text):
        mark = match.group(0)
        if len(mark) == 1 or mark in ('"""', "'''"):
            yield mark

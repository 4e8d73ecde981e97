"""
docs/config.md, written from the settings themselves: `python -m collectors.settings.documentation > docs/config.md`.

`SETTINGS` is the table of every key with its default and help; a test compares the page and the example with it.
"""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pydantic_core import PydanticUndefined

from collectors.settings.model import Section, Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: table it stands in (`[poll]`, `[[workers]]`), name, default as written in TOML, help."""

    table: str
    name: str
    default: str
    help: str


def _section(annotation: Any) -> tuple[type[Section] | None, bool]:
    """Return the section behind an annotation, and whether it repeats ([[...]])."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return _section(typing.get_args(annotation)[0])[0], True
    if origin in (types.UnionType, typing.Union):
        for argument in typing.get_args(annotation):
            found, is_array = _section(argument)
            if found is not None:
                return found, is_array
    return None, False


def _toml(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, Enum):
        return f'"{value.value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, tuple | dict):
        return "none" if not value else str(value)
    return str(value)


def _keys(section: type[Section], table: str, example: Section | None) -> Iterator[Setting]:
    inner = []
    for name, field in section.model_fields.items():
        found, is_array = _section(field.annotation)
        if found is None:
            default = getattr(example, name) if example is not None else field.get_default(call_default_factory=True)
            yield Setting(table, name, _toml(default), field.description or "")
        else:
            inner.append((name, found, is_array))
    for name, found, is_array in inner:
        path = f"{table.strip('[]')}.{name}" if table else name
        held = getattr(example, name, None) if example is not None else None
        yield from _keys(found, f"[[{path}]]" if is_array else f"[{path}]", held if isinstance(held, Section) else None)


SETTINGS: Final = tuple(_keys(Settings, "", Settings()))
"""Every key of the fleet file, in the order of the model."""

_INTRO: Final = """\
# The fleet file

One TOML file says what KVScope watches: `kvscope serve --fleet fleet.toml`, `kvscope collect --fleet fleet.toml`.
[examples/fleet.toml](../examples/fleet.toml) shows every key. All problems of a file are reported at once, each with
its line and what to write instead.

- Durations: seconds as a number, or text such as `"500 ms"`, `"2 h"`, `"7 d"`. Sizes: bytes, or `"8 MiB"`, `"2 GB"`.
  Bandwidths: bytes per second, or `"50 GB/s"`, `"400 Gbit/s"`. Names with `_ratio` run from 0 to 1.
- Secrets never stand in the file: a `token_env` key holds the *name* of an environment variable, and the variable
  holds the token. Tokens are sent to workers only, never stored and never logged. An address with a user name or
  password in it is refused.
- Relative paths start at the folder of the fleet file.
- A worker's role comes from the fleet file, else from the engine, else from the router.

This page is written from the code (`python -m collectors.settings.documentation`); a test compares the two.
"""


def page() -> str:
    """Return docs/config.md."""
    lines = [_INTRO]
    table = None
    for setting in SETTINGS:
        if setting.table != table:
            table = setting.table
            lines += [f"\n## `{table}`\n", "| key | default | meaning |", "|---|---|---|"]
        text = setting.help.replace("|", "\\|")
        lines.append(f"| `{setting.name}` | `{setting.default}` | {text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 # its only job

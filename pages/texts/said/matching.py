"""
Finds again what was put into a sentence: a template of the catalogue against the sentence that came of it.

A template holds literal words and fields; `{name}` is any text that does not hold the words after it, `{name:n}` a
number, `{name:w}` a word without spaces, `{name:c}` a code such as `no-room`, `{name:t}` a piece that is a sentence of
the catalogue by itself. `«...»` may be there or not, as a whole.
Every quantifier of a pattern is possessive, so that matching never goes back: a hostile sentence costs no more than
its length times the templates that could begin it.
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NUMBER: Final = r"[+\-]?+(?:\d++(?:,\d\d\d)*+(?:\.\d++)?+(?:e[+\-]?+\d++)?+|inf|nan)"
CODE: Final = r"[a-z][a-z0-9]*+(?:-[a-z0-9]++)*+"
OPEN: Final = "«"
CLOSE: Final = "»"
_CLOSED: Final = {"n": NUMBER, "c": CODE}
"""Kinds of fields that say by themselves where they end."""
_ONE: Final = {"w": r"\S"}
"""One letter of a text, by its kind."""


@dataclass(frozen=True, slots=True)
class Field:
    """
    A place for what differs from sentence to sentence.

    Attributes:
        name: As in both languages.
        kind: "" any text, "n" a number, "w" a word without spaces, "c" a code such as `no-room`, "t" a sentence.
    """

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Group:
    """A part that may be left out, as a whole."""

    nodes: tuple["str | Field", ...]


Node = str | Field | Group


def parsed(template: str) -> tuple[Node, ...]:
    """
    Return the words, fields and groups of a template in order.

    Raises:
        ValueError: a group is not closed, or stands in another.
    """
    found: list[Node] = []
    inner: list[str | Field] | None = None
    for words, name, kind, _ in string.Formatter().parse(template):
        for piece in re.split(f"([{OPEN}{CLOSE}])", words):
            if piece == OPEN and inner is None:
                inner = []
            elif piece == CLOSE and inner is not None:
                found.append(Group(tuple(inner)))
                inner = None
            elif piece in (OPEN, CLOSE):
                raise ValueError(f"template {template!r}: a part in {OPEN}{CLOSE} is not closed or stands in another")
            elif piece:
                (found if inner is None else inner).append(piece)
        if name is not None:
            (found if inner is None else inner).append(Field(name, kind or ""))
    if inner is not None:
        raise ValueError(f"template {template!r}: a part in {OPEN}{CLOSE} is not closed")
    return tuple(found)


def _follows(nodes: Sequence[Node], place: int) -> tuple[list[str], bool]:
    """Return the words that may come next at `place`, and whether the sentence may end there."""
    words: list[str] = []
    for at in range(place, len(nodes)):
        node = nodes[at]
        if isinstance(node, str):
            return [*words, node + ("\0" if at == len(nodes) - 1 else "")], False
        if isinstance(node, Field):
            raise ValueError(f"field {node.name} follows a text with no words between")
        first, *rest = node.nodes
        if not isinstance(first, str):
            raise ValueError("a part that may be left out begins with words after a text")
        words.append(first + ("\0" if not rest and at == len(nodes) - 1 else ""))
    return words, True


def pattern_of(nodes: Sequence[Node]) -> str:
    """
    Return the pattern of a template; groups of it are named as its fields, optional parts `_0`, `_1`, ...

    Raises:
        ValueError: two fields touch, so that nobody could tell where one ends.
    """
    count = 0

    def part(node: str | Field, after: Callable[[], tuple[list[str], bool]]) -> str:
        if isinstance(node, str):
            return re.escape(node)
        if node.kind in _CLOSED:
            return f"(?P<{node.name}>{_CLOSED[node.kind]})"
        words, _ = after()
        # Words that end the sentence stop a text only at the end: a full stop also stands inside names.
        stops = [re.escape(word.removesuffix("\0")) + (r"\Z" if word.endswith("\0") else "") for word in words]
        ahead = f"(?!{'|'.join(stops)})" if stops else ""
        return f"(?P<{node.name}>(?:{ahead}{_ONE.get(node.kind, '.')})++)"

    pieces = []
    for place, node in enumerate(nodes):
        if isinstance(node, Group):
            inside = []
            for at, piece in enumerate(node.nodes):
                rest = [*node.nodes[at + 1 :], *nodes[place + 1 :]]
                inside.append(part(piece, lambda rest=rest: _follows(rest, 0)))  # type: ignore[misc]
            pieces.append(f"(?P<_{count}>{''.join(inside)})?+")
            count += 1
        else:
            pieces.append(part(node, lambda place=place: _follows(nodes, place + 1)))  # type: ignore[misc]
    return "".join(pieces)


class Template:
    """
    One sentence in both languages.

    Attributes:
        english: As the code makes it.
        chinese: The same, with the same fields.
        head: Words every sentence of it begins with.
        needle: The longest words that every sentence of it holds.
        weight: Letters that stand fixed: of several that match, the heaviest is meant.
    """

    def __init__(self, english: str, chinese: str) -> None:
        """Read both; the pattern is made at the first match."""
        self.english, self.chinese = english, chinese
        self.nodes, self.target = parsed(english), parsed(chinese)
        first = self.nodes[0] if self.nodes else ""
        self.head = first if isinstance(first, str) else ""
        self.needle = max((node for node in self.nodes if isinstance(node, str)), key=len, default="")
        self.weight = sum(len(node) for node in self.nodes if isinstance(node, str))
        self.kinds = {field.name: field.kind for field in fields_of(self.nodes)}
        self._pattern: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """Return the compiled pattern."""
        if self._pattern is None:
            self._pattern = re.compile(pattern_of(self.nodes), re.DOTALL)
        return self._pattern

    def taken(self, sentence: str) -> Mapping[str, str | None] | None:
        """Return what a sentence puts into the fields and optional parts, None where it is not of this template."""
        match = self.pattern.fullmatch(sentence)
        return None if match is None else match.groupdict()

    def filled(self, values: Mapping[str, str | None]) -> str:
        """Return the Chinese sentence with these values; optional parts as they were in the English one."""
        pieces, count = [], 0
        for node in self.target:
            if isinstance(node, Group):
                if values.get(f"_{count}") is not None:
                    pieces += [_put(each, values) for each in node.nodes]
                count += 1
            else:
                pieces.append(_put(node, values))
        return "".join(pieces)


def _put(node: str | Field, values: Mapping[str, str | None]) -> str:
    return node if isinstance(node, str) else values.get(node.name) or ""


def fields_of(nodes: Sequence[Node]) -> list[Field]:
    """Return every field, those of optional parts included."""
    found: list[Field] = []
    for node in nodes:
        if isinstance(node, Field):
            found.append(node)
        elif isinstance(node, Group):
            found += [each for each in node.nodes if isinstance(each, Field)]
    return found


def words_of(nodes: Sequence[Node]) -> list[str]:
    """Return the fixed words, those of optional parts included."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, str):
            found.append(node)
        elif isinstance(node, Group):
            found += [each for each in node.nodes if isinstance(each, str)]
    return found

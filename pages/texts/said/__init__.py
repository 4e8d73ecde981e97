"""
Sentences that the code below the pages makes in English, in the viewer's language.

Findings, reasons, evidence, notes and refusals are made in one place each, in English, and stored as such. A page
shows them through `translated` (`t.said(sentence)`): the sentence is matched against the templates of this catalogue
(`said/<room>.py`: `SAID`, pairs of English and Chinese), and what was put in is put into the Chinese one. So what an
older KVScope stored, or another process said, is translated too, and a sentence nobody knows is shown as it is.
"""

import importlib
import pkgutil
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final

from pages.texts.said.matching import Template

Needle = tuple[str, Template]
"""Words that every sentence of a template holds, and the template."""
LONGEST: Final = 4_000
"""Characters; a longer text is no sentence of ours."""
_HEAD: Final = 3
_MOST_PARTS: Final = 16
_MOST_RUN: Final = 4
"""Sentences strung together, and those of them that one template may hold: bounds on the work, not on our texts."""
_WORD: Final = re.compile(r"[A-Za-z]{2}")
_JOINTS: Final = (
    (re.compile(r"\n"), "\n", "\n"),
    (re.compile(r"(?<=[.?!]) (?=[A-Z0-9])"), " ", ""),
    (re.compile(r"; "), "; ", "；"),
    (re.compile(r" \+ "), " + ", " + "),
    (re.compile(r" - "), " - ", " - "),
    (re.compile(r", "), ", ", "，"),
)
"""How sentences are strung together: where to cut, what stood there, what stands there in Chinese."""


def rooms() -> list[str]:
    """Return the modules that hold sentences."""
    return sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name != "matching")


@cache
def templates() -> tuple[Template, ...]:
    """Return every sentence of the catalogue, those with most fixed letters first."""
    found = []
    for room in rooms():
        pairs: Sequence[tuple[str, str]] = importlib.import_module(f"{__name__}.{room}").SAID
        found += [Template(english, chinese) for english, chinese in pairs]
    return tuple(sorted(found, key=lambda each: -each.weight))


@cache
def _fixed() -> dict[str, str]:
    return {
        each.nodes[0]: each.chinese for each in templates() if len(each.nodes) == 1 and isinstance(each.nodes[0], str)
    }


@cache
def _by_head() -> tuple[dict[str, tuple[Needle, ...]], tuple[Needle, ...]]:
    """Return templates by the first letters of what they begin with, and those that begin with a field."""
    known: dict[str, list[Needle]] = {}
    open_: list[Needle] = []
    for each in templates():
        if len(each.head) >= _HEAD:
            known.setdefault(each.head[:_HEAD], []).append((each.needle, each))
        elif not each.head or len(each.nodes) > 1:
            open_.append((each.needle, each))
    return {head: tuple(members) for head, members in known.items()}, tuple(open_)


def translated(sentence: str) -> str:
    """Return an English sentence in Chinese; as it is where the catalogue does not know it."""
    return _looked_up(sentence)[0]


def is_known(sentence: str) -> bool:
    """Say whether all of a sentence is in the catalogue; true of what holds no words."""
    return _looked_up(sentence)[1]


@lru_cache(maxsize=16_384)
def _looked_up(sentence: str) -> tuple[str, bool]:
    """Return the sentence in Chinese and whether all of it was known."""
    if len(sentence) > LONGEST:
        return sentence, False
    partly = _matched(sentence)
    if partly is not None and partly[1]:
        return partly
    if _WORD.search(sentence) is None:
        return sentence, True
    strung = _strung(sentence)
    if strung is None or (partly is not None and not strung[1]):
        return partly or (sentence, False)
    return strung


def _matched(sentence: str) -> tuple[str, bool] | None:
    """Return the sentence by one template and whether all put into it is known; None where no template is its."""
    fixed = _fixed().get(sentence)
    if fixed is not None:
        return fixed, True
    by_head, others = _by_head()
    partly = None
    for needle, each in (*by_head.get(sentence[:_HEAD], ()), *others):
        # A look for the longest words first: nearly every template is ruled out by it.
        values = each.taken(sentence) if needle in sentence else None
        if values is None:
            continue
        put, is_whole = dict(values), True
        for name, kind in each.kinds.items():
            value = values[name]
            if kind == "t" and value is not None:
                put[name], is_piece_known = _looked_up(value)
                is_whole &= is_piece_known
        if is_whole:
            return each.filled(put), True
        partly = partly or (each.filled(put), False)
    return partly


def _strung(sentence: str) -> tuple[str, bool] | None:
    """Return a sentence made of several, each by itself, and whether all are known; None where none of them is."""
    best = None
    for joint, was, now in _JOINTS:
        parts = joint.split(sentence)
        if 1 < len(parts) <= _MOST_PARTS:
            found = _parts(parts, was)
            if any(known and _WORD.search(part) for _, known, part in found):
                text, is_whole = now.join(each for each, _, _ in found), all(known for _, known, _ in found)
                if is_whole:
                    return text, True
                best = best or (text, False)
    return best


def _parts(parts: Sequence[str], joint: str) -> list[tuple[str, bool, str]]:
    """Return (Chinese, whether known, English) part by part, the longest runs of parts that are one sentence first."""
    found, at = [], 0
    while at < len(parts):
        for end in range(min(len(parts), at + _MOST_RUN), at, -1):
            piece = joint.join(parts[at:end])
            is_one, is_all = end == at + 1, at == 0 and end == len(parts)
            known = None if is_all else _looked_up(piece) if is_one else _matched(piece)
            if is_one or (known is not None and known[1]):
                text, is_whole = known or (piece, False)
                found.append((text, is_whole, piece))
                at = end
                break
    return found

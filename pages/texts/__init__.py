"""
The two-language catalogue: `pages/texts/<page>.py` holds `TEXTS: dict[key, (English, Chinese)]`.

A full key is `<page>.<key>`, for example `fleet.title`; texts many pages use are `common.<key>`. Numbers go in as
`{name}` fields. A missing key or a missing number raises: tests/pages/test_texts.py draws every text of every page.
"""

import importlib
from collections.abc import Callable
from functools import cache

Say = Callable[..., str]
"""`say(key, **numbers) -> str` in one language."""

LANGUAGES = {"en": "English", "zh": "中文"}


@cache
def catalogue(page: str) -> dict[str, tuple[str, str]]:
    """Return the texts of one page by key without prefix."""
    texts: dict[str, tuple[str, str]] = importlib.import_module(f"pages.texts.{page}").TEXTS
    return texts


@cache
def speaker(language: str) -> Say:
    """
    Return the `say` of one language.

    Raises:
        KeyError: On call, when the key is in no catalogue or a number it needs is not given.
    """
    place = 1 if language == "zh" else 0

    def say(key: str, **numbers: object) -> str:
        page, _, name = key.partition(".")
        text = catalogue(page)[name][place]
        return text.format(**numbers) if numbers else text

    return say

"""
The two-language catalogue: `pages/texts/<page>.py` holds `TEXTS: dict[key, (English, Chinese)]`.

A full key is `<page>.<key>`, for example `fleet.title`; texts many pages use are `common.<key>`. Numbers go in as
`{name}` fields. A missing key or a missing number raises: tests/pages/test_texts.py draws every text of every page.
Sentences made below the pages are in `pages/texts/said/`.
"""

import importlib
from functools import cache

from pages.texts.said import translated

LANGUAGES = {"en": "English", "zh": "中文"}


@cache
def catalogue(page: str) -> dict[str, tuple[str, str]]:
    """Return the texts of one page by key without prefix."""
    texts: dict[str, tuple[str, str]] = importlib.import_module(f"pages.texts.{page}").TEXTS
    return texts


class Say:
    """
    One language speaking.

    Attributes:
        language: `en` or `zh`.
    """

    def __init__(self, language: str) -> None:
        """`language`: any we do not have speaks English."""
        self.language = language if language in LANGUAGES else "en"

    def __call__(self, key: str, **numbers: object) -> str:
        """
        Return a text of the catalogue.

        Raises:
            KeyError: the key is in no catalogue, or a number it needs is not given.
        """
        page, _, name = key.partition(".")
        text = catalogue(page)[name][1 if self.language == "zh" else 0]
        return text.format(**numbers) if numbers else text

    def said(self, sentence: object) -> str:
        """Return a finding, reason, note or refusal that the code below makes in English (see `pages.texts.said`)."""
        text = str(sentence)
        return translated(text) if self.language == "zh" else text


@cache
def speaker(language: str) -> Say:
    """Return the `say` of one language."""
    return Say(language)

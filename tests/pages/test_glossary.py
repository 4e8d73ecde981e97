"""The glossary: every word, provenance and state, in both languages, and a search that finds by any of its texts."""

import re

import pytest
from streamlit.testing.v1 import AppTest

from pages.figures import glossary as figures
from pages.figures.terms import PROVENANCE, STATES, TERMS, label, meaning


def _open(**query: str) -> AppTest:
    app = AppTest.from_file("../../app.py", default_timeout=30)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    app.switch_page("pages/glossary.py").run()
    assert not app.exception, [item.message for item in app.exception]
    return app


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_word_provenance_and_state_is_there(watch, lang) -> None:
    """Complete in both languages, also where no fleet is watched."""
    watch(None)
    said = "\n".join(item.value for item in _open(lang=lang).markdown)
    for term in TERMS.values():
        assert f"`{term.word}`" in said
        assert label(term.word, lang) in said
        assert meaning(term.word, lang) in said
    for sign in (*PROVENANCE.values(), *(sign for sign, _, _ in STATES.values())):
        assert sign in said


def test_a_search_finds_by_word_label_and_meaning() -> None:
    """Any of its texts leads to the word, in either language and any case; nothing leads nowhere."""
    for term in TERMS.values():
        for text in (term.word, term.word.upper(), term.word.replace("_", " "), term.label[0], term.label[1]):
            assert term in figures.matching(text), text
    assert figures.matching("") == list(TERMS.values())
    assert figures.matching("zzz") == []


def test_a_link_opens_one_word_and_a_miss_is_said(watch) -> None:
    """`?term=` is the search; what matches nothing is said as text."""
    watch(None)
    found = "\n".join(item.value for item in _open(term="headroom").markdown)
    assert "`headroom`" in found
    assert "`lease`" not in found
    missed = _open(term="[y](http://evil)")
    assert missed.info
    assert "](http" not in missed.info[0].value


def test_a_swatch_carries_both_themes_and_no_text() -> None:
    """The square follows the viewer's theme; it holds hues only."""
    for term in TERMS.values():
        hues = set(re.findall(r"#[0-9A-Fa-f]{6}", figures.swatch(term)))
        assert {term.light, term.dark} <= hues
        assert term.word not in figures.swatch(term)

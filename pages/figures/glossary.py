"""The glossary's rows: words that match a search, in the order of the vocabulary."""

from typing import Final

from pages.figures.terms import TERMS, Term

THEMES: Final = ("light", "dark")


def matching(text: str) -> list[Term]:
    """Return the words whose name, labels or meanings hold `text`, whatever its case; all for an empty one."""
    wanted = text.strip().lower().replace(" ", "_")
    spaced = wanted.replace("_", " ")
    return [
        term
        for term in TERMS.values()
        if any(wanted in part.lower() or spaced in part.lower() for part in (term.word, *term.label, *term.meaning))
    ]


def swatch(term: Term) -> str:
    """Return a square of the word's colour that follows the viewer's theme, as HTML without any text from outside."""
    return (
        f'<span style="display:inline-block;width:0.9rem;height:0.9rem;border-radius:2px;border:1px solid #7A8594;'
        f'background:light-dark({term.light},{term.dark})"></span>'
    )

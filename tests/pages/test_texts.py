"""The two-language catalogue: complete, equal in its fields, and the only place of visible words."""

import ast
import re
import string
from pathlib import Path

import pytest

from pages.figures.terms import TERMS
from pages.texts import LANGUAGES, catalogue, speaker

PAGES = Path(__file__).resolve().parents[2] / "pages"
TEXTS = sorted(path.stem for path in (PAGES / "texts").glob("*.py") if path.stem != "__init__")
MODULES = sorted([*PAGES.glob("*.py"), *(PAGES / "figures").glob("*.py")])
CALL = re.compile(r"""\bt\(\s*f?["']([a-z_]+\.[a-z_0-9]+)["']""")
VISIBLE_WORDS = {"label", "help", "placeholder", "body", "title", "text", "caption", "icon"}


def _fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("page", TEXTS)
def test_every_text_has_both_languages_with_the_same_fields(page: str) -> None:
    """No text is empty in a language, and a number put into one language is put into the other."""
    texts = catalogue(page)
    assert texts
    for key, pair in texts.items():
        assert len(pair) == len(LANGUAGES), key
        assert all(text.strip() for text in pair), key
        assert _fields(pair[0]) == _fields(pair[1]), key


@pytest.mark.parametrize("page", TEXTS)
def test_chinese_is_chinese_where_english_has_words(page: str) -> None:
    """A sentence of four or more words is translated: its Chinese holds Chinese signs."""
    for key, (english, chinese) in catalogue(page).items():
        if len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{.*?\}", "", english))) >= 4:
            assert re.search(r"[\u4e00-\u9fff]", chinese), f"{page}.{key}"


def test_every_word_of_the_vocabulary_has_label_and_meaning_in_both_languages() -> None:
    """The glossary is complete."""
    for term in TERMS.values():
        assert all(part.strip() for part in (*term.label, *term.meaning)), term.word
        assert re.search(r"[\u4e00-\u9fff]", term.meaning[1]), term.word


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_text_a_module_asks_for_exists(module: Path) -> None:
    """A key written out in a page or figure is in the catalogue."""
    for key in CALL.findall(module.read_text()):
        page, _, name = key.partition(".")
        assert name in catalogue(page), key


def _visible(node: ast.AST) -> list[str]:
    """Return literal texts that would be drawn, what stands inside a call of the catalogue and icons taken off."""
    if isinstance(node, ast.Call):
        # A call makes its own text: the catalogue's, a formatter's, a join of names.
        return []
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = re.sub(r":material/\w+:|:\w+\[|[*`\]\[:]", "", node.value)
        return [node.value] if re.search(r"[A-Za-z\u4e00-\u9fff]{2,}", text) else []
    return [text for child in ast.iter_child_nodes(node) for text in _visible(child)]


@pytest.mark.parametrize("module", sorted(PAGES.glob("*.py")), ids=lambda path: path.stem)
def test_no_page_holds_a_visible_text_of_its_own(module: Path) -> None:
    """What `st.*` draws comes from the catalogue: first arguments and worded options are no literals."""
    quiet = {"st.set_page_config", "st.html", "st.code", "st.columns", "st.Page", "st.switch_page"}
    for call in ast.walk(ast.parse(module.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        if not name.startswith("st.") or name in quiet or "state" in name or "query" in name or "components" in name:
            continue
        arguments = [*call.args[:1], *(word.value for word in call.keywords if word.arg in VISIBLE_WORDS)]
        for argument in arguments:
            assert not _visible(argument), f"{module.name}:{call.lineno} {name} draws a text outside the catalogue"


def test_a_missing_number_is_an_error_and_a_missing_key_too() -> None:
    """A text is never drawn half-filled."""
    say = speaker("en")
    with pytest.raises(KeyError):
        say("fleet.left_out", shown=1)
    with pytest.raises(KeyError):
        say("fleet.no_such_text")


def test_an_unknown_language_speaks_english() -> None:
    """A link with a language we do not have still opens."""
    assert speaker("xx")("fleet.title") == speaker("en")("fleet.title")

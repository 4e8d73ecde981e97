"""Every page of the navigation in a real browser, in both themes and languages: a title, no error, nothing foreign."""

import ast
from pathlib import Path

import pytest

from pages.texts import LANGUAGES, catalogue

pytestmark = pytest.mark.browser

APP = ast.parse((Path(__file__).resolve().parents[2] / "app.py").read_text())
PAGES = next(
    [word for word, _ in ast.literal_eval(node.value)]
    for node in APP.body
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PAGES"
)


@pytest.mark.parametrize("word", PAGES)
def test_a_page_opens_by_its_address_in_both_themes_and_languages(visit, word) -> None:
    """
    A deep link draws the page: a heading, its name marked in the navigation, no error box, contrast of the theme; and
    so does the switch to the other language.
    """
    page = visit(f"{'/' if word == PAGES[0] else f'/{word}'}?lang=zh", plots=0, height=1000)
    names = catalogue("common")[f"nav_{word}"]
    chinese = _drawn(page, names[1])
    for theme, ink in (("dark", "rgb(238, 242, 247)"), ("light", "rgb(27, 36, 48)")):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function("(ink) => getComputedStyle(document.querySelector('h1')).color === ink", arg=ink)
    # The tour has a switch of its own, for its sidebar is out of the way.
    page.get_by_text(LANGUAGES["en"], exact=True).locator("visible=true").first.click()
    page.wait_for_function("(chinese) => document.querySelector('h1').innerText !== chinese", arg=chinese)
    _drawn(page, names[0])


def _drawn(page, name: str) -> str:
    """Wait until the page stands there, marked in the navigation by its name; return its heading."""
    page.wait_for_selector("h1")
    marked = page.locator("[data-testid=stSidebarNav] a[aria-current=page]")
    marked.filter(has_text=name).wait_for(state="attached")
    assert page.locator("[data-testid=stException]").count() == 0
    return page.locator("h1").first.inner_text()

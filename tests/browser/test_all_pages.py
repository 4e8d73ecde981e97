"""Every page of the navigation in a real browser, in both themes and languages: a title, no error, nothing foreign."""

import ast
from pathlib import Path

import pytest

from pages.texts import catalogue

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

APP = ast.parse((Path(__file__).resolve().parents[2] / "app.py").read_text())
PAGES = next(
    [word for word, _ in ast.literal_eval(node.value)]
    for node in APP.body
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PAGES"
)


@pytest.mark.parametrize("word", PAGES)
def test_a_page_opens_by_its_address_in_both_themes_and_languages(visit, word) -> None:
    """A deep link draws the page: a heading, its name marked in the navigation, no error box, contrast of the theme."""
    page = visit("/" if word == PAGES[0] else f"/{word}", plots=0, height=1000)
    page.wait_for_selector("h1", timeout=60_000)
    assert page.locator("[data-testid=stException]").count() == 0
    name = catalogue("common")[f"nav_{word}"][0]
    assert name in page.title() or page.locator("h1").first.inner_text()
    for theme, ink in (("dark", "rgb(238, 242, 247)"), ("light", "rgb(27, 36, 48)")):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function("(ink) => getComputedStyle(document.querySelector('h1')).color === ink", arg=ink)
    english = page.locator("h1").first.inner_text()
    other = visit(f"{'/' if word == PAGES[0] else f'/{word}'}?lang=zh", plots=0)
    other.wait_for_selector("h1", timeout=60_000)
    other.wait_for_function("(english) => document.querySelector('h1').innerText !== english", arg=english)
    assert other.locator("[data-testid=stException]").count() == 0

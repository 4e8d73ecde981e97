"""The glossary in a real browser: one click from every page, and every word has its colour in both themes."""

import pytest

from pages.figures.terms import TERMS

pytestmark = pytest.mark.browser
SQUARES = "[...document.querySelectorAll('[data-testid=stHtml] span')]"


def test_it_is_one_click_from_a_page_and_finds_a_word(visit) -> None:
    """From the Fleet page: one click, then the word by its label."""
    page = visit("/fleet", plots=0)
    page.wait_for_selector("h1")
    page.locator("[data-testid=stSidebarNav]").get_by_text("Glossary").click()
    page.wait_for_url("**/glossary**")
    page.get_by_label("Find").fill("safety reserve")
    page.get_by_label("Find").press("Enter")
    page.wait_for_function("() => new URLSearchParams(location.search).get('term') === 'safety reserve'")
    page.get_by_text("safety_reserve").first.wait_for()
    page.wait_for_function("() => ![...document.querySelectorAll('code')].some(c => c.innerText === 'lease')")


@pytest.fixture(scope="module")
def glossary(stay):
    """Return the glossary with all its words."""
    page = stay("/glossary", plots=0)
    page.wait_for_function(f"() => {SQUARES}.length >= {len(TERMS)}")
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_shows_its_colour_in_the_theme(glossary, theme) -> None:
    """A swatch has the hue that figures use in that theme, and none has the other theme's."""
    glossary.emulate_media(color_scheme=theme)
    first = next(iter(TERMS.values()))
    wanted, other = (first.dark, first.light) if theme == "dark" else (first.light, first.dark)
    drawn = f"{SQUARES}.map(s => getComputedStyle(s).backgroundColor)"
    glossary.wait_for_function(f"(hue) => {drawn}.includes(hue)", arg=_rgb(wanted))
    assert _rgb(other) not in glossary.evaluate(f"() => {drawn}")


def _rgb(hue: str) -> str:
    """Return a hue as the browser tells it."""
    return f"rgb({int(hue[1:3], 16)}, {int(hue[3:5], 16)}, {int(hue[5:7], 16)})"

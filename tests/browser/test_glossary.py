"""The glossary in a real browser: one click from every page, and every word has its colour in both themes."""

import pytest

from pages.figures.terms import TERMS

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def test_it_is_one_click_from_a_page_and_finds_a_word(visit) -> None:
    """From the Fleet page: one click, then the word by its label."""
    page = visit("/fleet", plots=0)
    page.wait_for_selector("h1", timeout=90_000)
    page.locator("[data-testid=stSidebarNav]").get_by_text("Glossary").click()
    page.wait_for_url("**/glossary**")
    page.get_by_label("Find").fill("safety reserve")
    page.get_by_label("Find").press("Enter")
    page.wait_for_function("() => new URLSearchParams(location.search).get('term') === 'safety reserve'")
    page.get_by_text("safety_reserve").first.wait_for()
    page.wait_for_function("() => ![...document.querySelectorAll('code')].some(c => c.innerText === 'lease')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_shows_its_colour_in_the_theme(visit, theme) -> None:
    """A swatch has the hue that figures use in that theme."""
    page = visit("/glossary", theme=theme, plots=0)
    page.wait_for_function(f"() => document.querySelectorAll('[data-testid=stHtml] span').length >= {len(TERMS)}")
    squares = "[...document.querySelectorAll('[data-testid=stHtml] span')]"
    drawn = page.evaluate(f"() => {squares}.map(s => getComputedStyle(s).backgroundColor)")
    first = next(iter(TERMS.values()))
    hue = first.dark if theme == "dark" else first.light
    wanted = f"rgb({int(hue[1:3], 16)}, {int(hue[3:5], 16)}, {int(hue[5:7], 16)})"
    assert wanted in drawn

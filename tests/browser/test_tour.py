"""The tour on the running demo in a real browser: each step by the arrow keys, both themes, both sizes, no scroll."""

import re

import pytest

pytestmark = pytest.mark.browser

SIZES = ((1280, 720), (1920, 1080))
FIGURE = "document.querySelector('.kv-plot[data-ticks]')"
SCENARIOS = ("calm", "calm", "same-share", "calm", "two-choices", "chain", "calm")
SETTLED = """(width) => innerWidth === width && [...document.querySelectorAll('.kv-plot[data-ticks]')].every(
  e => e._fullLayout && Math.abs(e._fullLayout.width - e.clientWidth) < 2
    && Math.abs(e._fullLayout.height - e.clientHeight) < 2)"""
"""The figures are as large as the place they have on a screen of this width."""


@pytest.fixture(scope="module")
def tour(stay):
    """Return the tour as it opens; its tests turn the pages themselves."""
    return stay("/tour", plots=1, width=1280, height=720)


def _overflow(page) -> int:
    """Return how many pixels of the step are below the fold."""
    return page.evaluate(
        "() => { const m = document.querySelector('[data-testid=stMain]'); return m.scrollHeight - m.clientHeight }"
    )


def _step(page, number: int) -> None:
    """Wait until a step stands there with its figure (the race may still be running)."""
    page.get_by_text(f"Step {number} of 7").wait_for()
    page.wait_for_function("() => !document.querySelector('[data-stale=true]')")
    if number < 7:
        page.wait_for_selector(".kv-plot[data-ticks]")


def _turn_to(page, number: int) -> None:
    """Go to a step by the arrow keys."""
    while True:
        here = int(re.search(r"Step (\d)", page.get_by_text(re.compile(r"Step \d of 7")).first.inner_text())[1])
        _step(page, here)
        if here == number:
            return
        page.keyboard.press("ArrowRight" if here < number else "ArrowLeft")
        page.get_by_text(f"Step {here} of 7").wait_for(state="detached")


def test_every_step_by_the_arrow_keys_in_both_themes_and_sizes(tour) -> None:
    """Seven steps forward and one back; each sets its scenario, fits the screen, and draws in the theme's colours."""
    page = tour
    titles = []
    for number, scenario in enumerate(SCENARIOS, start=1):
        _step(page, number)
        page.get_by_text(f"scenario {scenario}").first.wait_for()
        titles.append(page.locator("h1").first.inner_text())
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_function(SETTLED, arg=width)
                assert _overflow(page) <= 4, (number, theme, width)
            if number < 7:
                ink = "#EEF2F7" if theme == "dark" else "#1B2430"
                page.wait_for_function(f"(ink) => {FIGURE}?._fullLayout?.font.color === ink", arg=ink)
        page.set_viewport_size({"width": 1280, "height": 720})
        if number < 7:
            page.keyboard.press("ArrowRight")
    assert len(set(titles)) == 7
    page.keyboard.press("ArrowLeft")
    _step(page, 6)


def test_the_figure_moves_and_the_link_opens_the_step(tour, visit) -> None:
    """A step is live: the next tick brings other figures; its address opens it for another viewer."""
    page = tour
    _turn_to(page, 4)
    before = page.evaluate(f"() => JSON.stringify({FIGURE}.data.map(d => d.y))")
    page.wait_for_function(f"(before) => JSON.stringify({FIGURE}.data.map(d => d.y)) !== before", arg=before)
    other = visit(f"/tour{page.evaluate('() => location.search')}&lang=zh", plots=1)
    other.get_by_text("第 4 步").wait_for()
    assert "踩踏" in other.locator("h1").first.inner_text()


def test_quick_presses_all_count_and_the_way_back_finds_the_place(visit) -> None:
    """Three presses in a row are three steps, in the address too; after a look at another page the step is there."""
    page = visit("/tour", plots=1)
    _step(page, 1)
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    _step(page, 4)
    page.wait_for_function("() => location.search.includes('step=4')")
    page.keyboard.press("PageUp")
    _step(page, 3)
    page.get_by_role("button", name="Explore: Worker").click()
    page.wait_for_url("**/worker**")
    page.wait_for_selector(".kv-plot[data-ticks]")
    page.go_back()
    page.wait_for_url("**/tour**")
    _step(page, 3)


def test_the_guess_comes_before_the_terms(tour) -> None:
    """Step 5: no terms before the guess; after it who is better, and the terms of both pools."""
    page = tour
    _turn_to(page, 5)
    page.wait_for_function(
        "() => [...document.querySelectorAll('button')].some(b => b.innerText.trim() === 'D-A' && !b.disabled)"
    )
    page.wait_for_function("() => document.querySelectorAll('.kv-plot[data-ticks]').length === 1")
    page.get_by_role("button", name="D-A").click()
    page.wait_for_function("() => document.querySelector('h1').innerText.includes('it goes to')")
    page.wait_for_function("() => document.querySelectorAll('.kv-plot[data-ticks]').length === 2")
    page.get_by_text("You said D-A").wait_for()


def test_the_race_ends_with_numbers(tour) -> None:
    """Step 7: the simulation runs now and ends with three figures; the link leads to the page that explores it."""
    page = tour
    _turn_to(page, 7)
    page.wait_for_function("() => document.querySelectorAll('[data-testid=stMetricValue]').length === 3")
    page.wait_for_selector(".kv-plot[data-ticks]")
    page.get_by_role("button", name="Explore: Replay").click()
    page.wait_for_url("**/replay**")

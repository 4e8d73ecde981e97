"""What-if in a real browser on the running demo: another prompt, another answer; the link gives the same screen."""

import json

import pytest

pytestmark = pytest.mark.browser

MAP = "document.querySelectorAll('.kv-plot[data-ticks]')[0]"
SETTLED = (
    "() => document.querySelectorAll('.kv-plot[data-ticks]').length >= {plots} "
    "&& !document.querySelector('[data-testid=stStatusWidget]')"
)

ONCE = "(text) => [...document.querySelectorAll('h3, h4, h5, p')].filter(n => n.innerText.trim() === text).length === 1"
"""A part drawn anew stands beside what it replaces for a moment."""


def _settle(page, plots: int) -> None:
    """Wait until the page has drawn its figures and the script has ended."""
    page.wait_for_function(SETTLED.format(plots=plots))


def _screen(page) -> dict:
    """Return what is on screen: the metrics, the map's scores and crosses, the sentence."""
    return page.evaluate(
        f"""() => {{ const e = {MAP}; return {{
        metrics: [...document.querySelectorAll('[data-testid=stMetricValue]')].map(n => n.innerText.trim()),
        refused: e.data.length > 1 ? e.data[1].x.length : 0,
        rows: e._fullLayout.yaxis.tickvals.length,
        text: JSON.stringify(e.data[0].text),
        frames: (e.layout.shapes || []).length}} }}"""
    )


def _ask(page, tokens: int) -> None:
    """Type another prompt and wait until its address and its answer are there."""
    field = page.get_by_label("Prompt (tokens)")
    field.fill(str(tokens))
    field.press("Enter")
    page.wait_for_function(f"() => location.search.includes('prompt={tokens}')")


@pytest.fixture(scope="module")
def asking(stay, play):
    """Return the What-if page, asked about a short prompt, standing still once the fleet has room for it."""
    play("calm")
    page = stay("/what_if?prompt=2000", plots=4, height=1400)
    page.locator("[data-testid=stSidebar]").get_by_text("Live", exact=True).click()
    page.wait_for_function("() => location.search.includes('live=false')")
    _settle(page, 4)
    return page


def test_another_prompt_is_another_answer_and_the_link_reproduces_it(asking, visit) -> None:
    """From 2k to 128k tokens choice, map and refusals change; the link opened by a new visitor shows the same."""
    page = asking
    small = _screen(page)
    assert small["frames"] == 1
    assert "/" in small["metrics"][0]
    _ask(page, 128_000)
    page.wait_for_function(f"(before) => JSON.stringify({MAP}.data[0].text) !== before", arg=small["text"])
    _settle(page, 2)
    large = _screen(page)
    assert large["refused"] > small["refused"]
    assert large["metrics"] != small["metrics"]
    page.wait_for_function(ONCE, arg="Refused, and why")

    _ask(page, 9_000)
    page.wait_for_function(f"(before) => JSON.stringify({MAP}.data[0].text) !== before", arg=large["text"])
    code = page.locator("[data-testid=stCode]")
    code.filter(has_text="prompt=9000").wait_for()
    link = code.last.inner_text().strip()
    assert link.startswith("/what_if?")
    assert "at=" in link
    screens = []
    for _ in range(2):
        other = visit(link, plots=4, height=1400)
        _settle(other, 4)
        screens.append(_screen(other))
    assert json.dumps(screens[0]) == json.dumps(screens[1])
    assert screens[0]["metrics"][0] != "nothing"
    assert other.get_by_label("Prompt (tokens)").input_value() == "9000"


def test_a_click_on_the_map_sets_a_pair_beside_the_choice(asking) -> None:
    """A clicked cell becomes pair B: it is in the address, and its terms are drawn beside the choice's."""
    page = asking
    _ask(page, 4_000)
    _settle(page, 4)
    spot = page.evaluate(
        f"""() => {{ const e = {MAP}; const r = e.querySelector('.nsewdrag').getBoundingClientRect();
        return [r.x + e._fullLayout.xaxis.l2p(1), r.y + e._fullLayout.yaxis.l2p(1)] }}"""
    )
    page.mouse.click(*spot)
    page.wait_for_function("() => new URLSearchParams(location.search).get('b')?.includes('|')")
    wanted = page.evaluate("() => new URLSearchParams(location.search).get('b')").replace("|", " → ")
    page.wait_for_function(
        "(name) => [...document.querySelectorAll('.kv-plot[data-ticks]')].some(e => "
        "(e.getAttribute('aria-label') || '').includes(name))",
        arg=wanted,
    )

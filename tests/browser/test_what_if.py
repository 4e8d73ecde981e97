"""What-if in a real browser on the running demo: another prompt, another answer; the link gives the same screen."""

import json

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

MAP = "document.querySelectorAll('.kv-plot[data-ticks]')[0]"
SETTLED = (
    "() => document.querySelectorAll('.kv-plot[data-ticks]').length >= {plots} "
    "&& !document.querySelector('[data-testid=stStatusWidget]')"
)


def _settle(page, plots: int) -> None:
    """Wait until the page has drawn its figures and the script has ended."""
    page.wait_for_function(SETTLED.format(plots=plots), timeout=60_000)


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


def test_another_prompt_is_another_answer_and_the_link_reproduces_it(visit) -> None:
    """From 2k to 128k tokens choice, map and refusals change; the link opened by a new visitor shows the same."""
    page = visit("/what_if?prompt=2000&live=false", plots=4, height=1400)
    _settle(page, 4)
    small = _screen(page)
    assert small["frames"] == 1
    assert "/" in small["metrics"][0]
    _ask(page, 128_000)
    page.wait_for_function(f"(before) => JSON.stringify({MAP}.data[0].text) !== before", arg=small["text"])
    _settle(page, 2)
    large = _screen(page)
    assert large["refused"] > small["refused"]
    assert large["metrics"] != small["metrics"]
    assert page.get_by_text("Refused, and why").count() == 1

    _ask(page, 9_000)
    page.wait_for_function(f"(before) => JSON.stringify({MAP}.data[0].text) !== before", arg=large["text"])
    _settle(page, 4)
    link = page.locator("[data-testid=stCode]").last.inner_text().strip()
    assert link.startswith("/what_if?")
    assert "prompt=9000" in link
    assert "at=" in link
    screens = []
    for _ in range(2):
        other = visit(link, plots=4, height=1400)
        _settle(other, 4)
        screens.append(_screen(other))
    assert json.dumps(screens[0]) == json.dumps(screens[1])
    assert screens[0]["metrics"][0] != "nothing"
    assert other.get_by_label("Prompt (tokens)").input_value() == "9000"


def test_a_click_on_the_map_sets_a_pair_beside_the_choice(visit) -> None:
    """A clicked cell becomes pair B: it is in the address, and its terms are drawn beside the choice's."""
    page = visit("/what_if?prompt=4000&live=false", plots=4, height=1400)
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

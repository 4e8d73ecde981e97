"""Fleet, Worker and Sources in a real browser on the running demo: figures move, zoom and scroll stay, links work."""

import re

import pytest

pytestmark = pytest.mark.browser

FIRST = "document.querySelector('.kv-plot[data-ticks]')"


def _state(page, which: str = FIRST) -> dict:
    """Return what a figure shows: ticks so far, its x range, its node's mark, the lengths of its bars."""
    return page.evaluate(
        f"""() => {{ const e = {which}; e.__mark = e.__mark || Math.random();
        return {{ticks: Number(e.dataset.ticks), range: e._fullLayout.xaxis.range.map(Number), mark: e.__mark,
                 bars: JSON.stringify(e.data.map(d => d.x)), title: e.getAttribute('aria-label')}} }}"""
    )


def _later(page, since: dict, ticks: int = 2, which: str = FIRST) -> dict:
    page.wait_for_function(f"() => Number({which}.dataset.ticks) >= {since['ticks'] + ticks}")
    return _state(page, which)


def _drag(page, which: str) -> None:
    """Zoom by dragging over the middle of a figure."""
    box = page.evaluate(f"() => {{ const r = {which}.querySelector('.nsewdrag').getBoundingClientRect(); return r }}")
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
    page.mouse.up()


@pytest.fixture(scope="module")
def fleet(stay):
    """Return the Fleet page as it opens; its tests leave it with a zoom, in shares, fullest first."""
    return stay("/fleet", plots=3)


def test_figures_follow_the_theme(fleet) -> None:
    """The same words, other hues: paper and parts take the theme's colours."""
    papers = {}
    for theme, ink in (("dark", "#EEF2F7"), ("light", "#1B2430")):
        fleet.emulate_media(color_scheme=theme)
        fleet.wait_for_function(f"(ink) => {FIRST}._fullLayout.font.color === ink", arg=ink)
        papers[theme] = fleet.evaluate(f"() => [{FIRST}.data[0].marker.color, {FIRST}.data[0].name]")
    assert papers == {"light": ["#0B5FAE", "active"], "dark": ["#4E9BEA", "active"]}


def test_bars_move_and_zoom_scroll_and_node_stay(fleet) -> None:
    """New data is drawn at every tick into the same node; a zoom and the scroll position outlive the ticks."""
    page = fleet
    before = _state(page)
    after = _later(page, before)
    assert after["bars"] != before["bars"]
    assert after["mark"] == before["mark"]
    page.locator(".kv-plot").first.scroll_into_view_if_needed()
    _drag(page, FIRST)
    page.wait_for_function(f"() => {FIRST}._fullLayout.xaxis.range[0] > 0")
    zoomed = _state(page)
    scroll = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollTop")
    later = _later(page, zoomed, 3)
    assert later["range"] == pytest.approx(zoomed["range"])
    assert later["bars"] != zoomed["bars"]
    assert later["mark"] == before["mark"]
    assert page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollTop") == scroll
    assert "old" in page.locator(".kv-note").first.inner_text()


def test_units_switch_and_the_link_reproduces_the_view(fleet, visit) -> None:
    """Share draws shares, the URL says so, and a second visitor with that URL sees the same in the other language."""
    page = fleet
    page.locator('[data-testid="stMain"] button').get_by_text("share", exact=True).first.click()
    page.wait_for_function(f"() => {FIRST}._fullLayout.xaxis.range[1] < 2")
    page.get_by_text("fullest", exact=True).first.click()
    page.wait_for_function("() => location.search.includes('order=committed')")
    query = page.evaluate("() => location.search")
    assert "unit=share" in query
    other = visit(f"/fleet{query}&lang=zh", plots=3)
    assert _state(other)["range"][1] < 2
    assert other.locator("h1").first.inner_text() == "集群"


def test_a_click_on_a_bar_opens_its_pool_and_the_link_opens_it_again(visit) -> None:
    """The Worker page of the pool that was clicked, with its history; its zoom outlives ticks; the deep link works."""
    page = visit("/fleet?role=decode&order=name", plots=1)
    page.locator(".kv-plot").first.scroll_into_view_if_needed()
    spot = page.evaluate(
        f"""() => {{ const e = {FIRST}; const r = e.querySelector('.nsewdrag').getBoundingClientRect();
        const y = e._fullLayout.yaxis; return [r.x + 8, r.y + y.l2p(3)] }}"""
    )
    wanted = page.evaluate(f"() => {FIRST}.data[0].customdata[3][0]")
    page.mouse.click(*spot)
    page.wait_for_url("**/worker**")
    page.wait_for_function("() => document.querySelectorAll('.kv-plot[data-ticks]').length >= 3")
    assert f"pool={wanted.replace('/', '%2F')}" in page.evaluate("() => location.search")
    history = "document.querySelectorAll('.kv-plot[data-ticks]')[1]"
    page.locator(".kv-plot").nth(1).scroll_into_view_if_needed()
    _drag(page, history)
    page.wait_for_timeout(300)
    zoomed = page.evaluate(f"() => String({history}._fullLayout.xaxis.range)")
    ticks = page.evaluate(f"() => Number({history}.dataset.ticks)")
    page.wait_for_function(f"() => Number({history}.dataset.ticks) >= {ticks + 2}")
    assert page.evaluate(f"() => String({history}._fullLayout.xaxis.range)") == zoomed
    again = visit(f"/worker{page.evaluate('() => location.search')}", plots=3)
    assert again.evaluate(f"() => {FIRST}.data[0].customdata[0][0]") == wanted


def test_sources_answer_and_a_frozen_page_stands_still(visit) -> None:
    """Sources lists every worker; with Live off, nothing moves on the Fleet page and its age goes on counting."""
    page = visit("/sources", plots=0)
    page.get_by_text(re.compile(r"^[1-9]\d* of 1\d$")).first.wait_for()
    # A table says its cells to screen readers only: they are there, not visible.
    page.get_by_text("/v1/loads").or_(page.get_by_text("SGLang: the denominator")).first.wait_for(state="attached")
    page = visit("/fleet?live=false", plots=3)
    before = _state(page)
    first = page.locator(".kv-note").first.inner_text()
    page.wait_for_function(f"() => document.querySelector('.kv-note').textContent !== {first!r}")
    page.wait_for_timeout(2500)
    after = _state(page)
    assert after["bars"] == before["bars"]
    assert after["ticks"] == before["ticks"]

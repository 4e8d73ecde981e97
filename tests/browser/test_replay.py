"""The Replay page in a real browser: run, watch it end, read the figures, click a moment, cancel another run."""

import re

import pytest

pytestmark = pytest.mark.browser
SMALL = "/replay?fleet=shape&shape=1p1d&rate=3&seconds=60&policies=round-robin&policies=joint"
LONG = "/replay?fleet=shape&shape=2p2d&rate=50&seconds=86400&policies=joint"
END_MS = 120_000


def test_a_run_is_drawn_and_a_click_shows_its_moment(visit) -> None:
    """Five figures and their finding; a click on the p99 over time lists requests with their pools."""
    page = visit(SMALL, plots=0)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_function("document.querySelectorAll('.kv-plot[data-ticks]').length >= 5", timeout=END_MS)
    page.get_by_text(re.compile("has the lowest p99 of TTFT")).wait_for()
    plots = page.locator(".kv-plot")
    over_time = plots.filter(has_text="p99 of TTFT by time of arrival").first
    over_time.scroll_into_view_if_needed()
    box = over_time.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    page.wait_for_timeout(300)
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    page.get_by_text(re.compile("The moment")).wait_for()
    assert "joint score would have said" in page.locator("body").inner_text()


def test_a_long_run_is_cancelled_at_once(visit) -> None:
    """Cancel ends it within seconds and nothing is drawn."""
    page = visit(LONG, plots=0)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled; nothing was kept.").wait_for(timeout=20_000)
    assert page.locator(".kv-plot").count() == 0

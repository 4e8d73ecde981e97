"""The opening page in a real browser: live, in both themes, one click from everything it names."""

import pytest

pytestmark = pytest.mark.browser

FIGURE = "document.querySelector('.kv-plot[data-ticks]')"


@pytest.fixture(scope="module")
def opening(stay):
    """Return the opening page."""
    return stay("/", plots=1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_first_and_moves(opening, theme) -> None:
    """The root is the opening page; its tanks follow the fleet in the viewer's theme."""
    page = opening
    page.emulate_media(color_scheme=theme)
    ink = "#EEF2F7" if theme == "dark" else "#1B2430"
    page.wait_for_function(f"(ink) => {FIGURE}._fullLayout.font.color === ink", arg=ink)
    assert page.locator("h1").first.inner_text() == "What is being watched"
    page.get_by_text("11 worker(s)").wait_for()
    before = page.evaluate(f"() => JSON.stringify({FIGURE}.data.map(d => d.y))")
    page.wait_for_function(f"(before) => JSON.stringify({FIGURE}.data.map(d => d.y)) !== before", arg=before)
    assert page.evaluate(f"() => {FIGURE}._fullLayout.font.color") == ink


def test_the_form_is_off_by_default_and_says_how_to_turn_it_on(opening) -> None:
    """A viewer cannot make this server ask anything unless its operator allows it."""
    page = opening
    page.get_by_text("Test a worker's address").first.click()
    page.get_by_text("is_url_test_on").first.wait_for()
    assert page.get_by_label("Worker's base address").count() == 0


def test_a_view_can_be_taken_along(visit) -> None:
    """The share menu: a pinned link that opens the same instant, and files with what is on screen."""
    page = visit("/fleet?unit=share", plots=3)
    page.get_by_role("button", name="Share").click()
    page.get_by_text("This view, at this instant").wait_for()
    codes = page.locator("[data-testid=stPopoverBody] [data-testid=stCode]")
    pinned = codes.filter(has_text="at=").inner_text().strip()
    assert pinned.startswith("/fleet?")
    assert "unit=share" in pinned
    for label, ending in (
        ("Values as CSV", ".csv"),
        ("Values as Parquet", ".parquet"),
        ("Page as one HTML file", ".html"),
    ):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=label).click()
        assert waiting.value.suggested_filename == f"kvscope-fleet{ending}"
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Figures as PNG").click()
    path = waiting.value.path()
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    other = visit(pinned, plots=3)
    other.get_by_text("This is the past").wait_for()

"""Saturation in a real browser: the demo's scenario walks the chain, and an alert leads to its begin."""

from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.browser

PLOTS = "[...document.querySelectorAll('.kv-plot[data-ticks]')]"
STRIP = f"{PLOTS}.find(e => e.data && e.data[0].type === 'heatmap')"
LOOP = f"{PLOTS}.find(e => (e.layout.annotations || []).length >= 13)"
GRAVEST = f"""() => {{ const e = {STRIP}; if (!e) return -9;
  return Math.max(...e.data[0].hovertext.flat().map(name => NAMES.indexOf(name))); }}"""
NAMES = [
    "nothing collected",
    "well",
    "cannot see",
    "thin headroom",
    "admission stalls",
    "eviction and retraction",
    "recompute and swap",
    "slower release",
    "tail latency",
]
SPEED = 2.0


@pytest.fixture(scope="module")
def saturating(serving) -> Iterator[str]:
    """Return the base URL of a dashboard on a small demo fleet that saturates, faster than life."""
    with serving("saturation", "--scenario", "saturation", "--workers", "4", "--speed", f"{SPEED:g}") as place:
        yield place.url


def test_the_chain_lights_up_and_an_alert_leads_to_its_begin(saturating: str, browser) -> None:
    """The strip reaches the last stages, the loop fills, and the alert's link shows the instant it began."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_viewport_size({"width": 1440, "height": 1500})
    page.goto(f"{saturating}/saturation?range=5m")
    page.wait_for_function(f"() => Boolean({STRIP})")
    script = GRAVEST.replace("NAMES", str(NAMES))
    page.wait_for_function(f"() => ({script})() >= {NAMES.index('recompute and swap')}")
    lit = page.evaluate(f"() => {LOOP}.data[0].marker.color.filter((hue, i, all) => hue !== all[i ? 0 : 1]).length")
    assert lit >= 1
    names = page.evaluate(f"() => {LOOP}.layout.annotations.map(item => item.text).join(' ')")
    assert all(name in names for name in NAMES[3:])
    page.get_by_text("Its begin").first.click()
    page.wait_for_function("() => new URLSearchParams(location.search).get('at') !== null")
    page.get_by_text("This is the past").wait_for()
    assert not errors, errors
    page.close()

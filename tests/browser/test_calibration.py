"""Calibration in a real browser on the running demo: fits appear by themselves, figures are drawn, an act is done."""

import json
from pathlib import Path

import pytest

from scoring.service import profile_from_mapping

pytestmark = pytest.mark.browser


def test_the_fleet_is_learnt_and_the_page_shows_it(visit) -> None:
    """
    Decode rows come in by themselves; the scatter holds points near its diagonal; a version can be kept; the export
    is a profile that replay takes; the other language shows the same kind.
    """
    page = visit("/calibration", plots=0)
    # The first fit is made some twenty seconds after the first answers.
    page.wait_for_function("() => document.querySelectorAll('.kv-plot[data-ticks]').length >= 3", timeout=90_000)
    plots = "[...document.querySelectorAll('.kv-plot')]"
    scatter = f"{plots}.find(e => (e.getAttribute('aria-label') || '').startsWith('Predicted'))"
    page.wait_for_function(f"() => {{ const e = {scatter}; return e && e._fullData && e._fullData[0].x.length >= 20 }}")
    spread = page.evaluate(
        f"""() => {{ const d = {scatter}._fullData.filter(s => s.mode === 'markers');
        const off = d.flatMap(s => Array.from(s.x).map((x, i) => Math.abs(s.y[i] / x - 1))).sort((a, b) => a - b);
        return off[Math.floor(off.length / 2)] }}"""
    )
    assert spread < 0.1
    with page.expect_download() as download:
        page.get_by_role("button", name="Profile for replay").first.click()
    profile = profile_from_mapping(json.loads(Path(download.value.path()).read_text(encoding="utf-8")))
    assert 0.01 < profile.decode_base_s < 0.02
    before = page.locator("[data-testid=stSelectbox]").count()
    assert before >= 2
    page.get_by_role("button", name="Keep the newest fit").click()
    page.get_by_text("Done:").first.wait_for()
    query = page.evaluate("() => location.search")
    assert "kind=" in query
    other = visit(f"/calibration{query}&lang=zh", plots=3)
    assert other.locator("h1").first.inner_text() == "校准"

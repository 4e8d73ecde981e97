"""Saturation in a real browser: the demo's scenario walks the chain, and an alert leads to its begin."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

ROOT = Path(__file__).resolve().parents[2]
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
def saturating(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the base URL of a dashboard on a small demo fleet that saturates, twice as fast as life."""
    folder = tmp_path_factory.mktemp("saturation")
    port = _free_port()
    command = [sys.executable, str(ROOT / "cli.py"), "demo", "--serve", "--scenario", "saturation", "--workers", "4"]
    command += ["--speed", str(SPEED), "--port", str(port), "--fleet-file", str(folder / "fleet.toml")]
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 60
    while not _answers(f"{url}/_stcore/health"):
        assert server.poll() is None, (folder / "log.txt").read_text()[-2000:]
        assert time.monotonic() < end, "the dashboard did not come up in 60 s"
        time.sleep(0.2)
    yield url
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(timeout=5)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_chain_lights_up_and_an_alert_leads_to_its_begin(saturating: str, browser) -> None:
    """The strip reaches the last stages, the loop fills, and the alert's link shows the instant it began."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_viewport_size({"width": 1440, "height": 1500})
    page.goto(f"{saturating}/saturation?range=5m")
    page.wait_for_function(f"() => Boolean({STRIP})", timeout=60_000)
    script = GRAVEST.replace("NAMES", str(NAMES))
    page.wait_for_function(f"() => ({script})() >= {NAMES.index('recompute and swap')}", timeout=150_000)
    lit = page.evaluate(f"() => {LOOP}.data[0].marker.color.filter((hue, i, all) => hue !== all[i ? 0 : 1]).length")
    assert lit >= 1
    names = page.evaluate(f"() => {LOOP}.layout.annotations.map(item => item.text).join(' ')")
    assert all(name in names for name in NAMES[3:])
    page.get_by_text("Its begin").first.click()
    page.wait_for_function("() => new URLSearchParams(location.search).get('at') !== null", timeout=60_000)
    page.get_by_text("This is the past").wait_for(timeout=60_000)
    assert not errors, errors
    page.close()

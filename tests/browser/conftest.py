"""
A real Chromium on the dashboard of a running demo: one server and one browser for all browser tests.

Tests take `dashboard` (its base URL) and `visit` (opens a path and gives the page). Without Chromium or Playwright
they skip and say why.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PLOT = ".kv-plot[data-ticks]"


def chromium() -> str | None:
    """Return the browser to drive, None where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    return None


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the base URL of a dashboard with the demo fleet behind it (scenario rush, seed 7)."""
    if chromium() is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    folder = tmp_path_factory.mktemp("browser")
    port = free_port()
    command = [sys.executable, str(ROOT / "cli.py"), "demo", "--serve", "--scenario", "rush", "--seed", "7"]
    command += ["--port", str(port), "--fleet-file", str(folder / "fleet.toml")]
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while not _answers(f"{url}/_stcore/health"):
            assert server.poll() is None, (folder / "log.txt").read_text()[-2000:]
            assert time.monotonic() < end, "the dashboard did not come up in 60 s"
            time.sleep(0.2)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait(timeout=5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="session")
def browser(dashboard: str) -> Iterator[object]:
    """Return a running Chromium's context; its cache is shared, so only the first page loads the front end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = running.new_context()
        context.set_default_timeout(30_000)
        yield context
        running.close()


@pytest.fixture
def visit(browser, dashboard: str) -> Iterator[Callable[..., object]]:
    """
    Return `visit(path, theme="light", width=1440, height=900, plots=1) -> page`.

    Each call is a new visitor. At the end no page may have asked anything off this machine, broken the content
    policy or raised an error in its scripts.
    """
    pages, strangers, errors = [], [], []

    def heard(message) -> None:
        # Streamlit's front end asks /<page>/_stcore/... first on a deep link and recovers from the 404.
        if message.type == "error" and "404" not in message.text:
            errors.append(message.text)

    def is_strange(url: str) -> bool:
        return not url.startswith((dashboard, dashboard.replace("http", "ws"), "data:", "blob:"))

    def go(path: str = "/", *, theme: str = "light", width: int = 1440, height: int = 900, plots: int = 1):
        page = browser.new_page()
        pages.append(page)
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": height})
        page.on("request", lambda request: strangers.append(request.url) if is_strange(request.url) else None)
        page.on("console", heard)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{dashboard}{path}")
        if plots:
            page.wait_for_function(f"document.querySelectorAll('{PLOT}').length >= {plots}")
        return page

    yield go
    for page in pages:
        page.close()
    assert not strangers, strangers
    assert not errors, errors

"""
A real Chromium on the dashboard of a running demo: one server and one browser for all browser tests.

Tests take `dashboard` (its base URL), `visit` (opens a path for a new viewer and gives the page) and `stay` (the same,
for pages that the tests of a file share: opening one takes seconds, reading it does not). Without Chromium or
Playwright they skip and say why.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from collectors.demo_control import DemoControl

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
WAIT_MS = 120_000
"""Other tests run beside: what comes at all comes within this."""
STILL = """
addEventListener('DOMContentLoaded', () => {
  const style = document.createElement('style');
  style.textContent = '*, *::before, *::after { animation: none !important; transition: none !important }';
  document.head.appendChild(style);
});
"""
"""No law is about an animation, and each costs sixty pictures a second."""


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


class Served(NamedTuple):
    """A dashboard with a demo behind it: its base URL, and the fleet file it was given."""

    url: str
    fleet: Path


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """Serve a dashboard with a demo fleet behind it, and end both."""
    if chromium() is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    port = free_port()
    command = [sys.executable, str(ROOT / "cli.py"), "demo", "--serve", *options]
    fleet = folder / "fleet.toml"
    command += ["--port", str(port), "--fleet-file", str(fleet)]
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + WAIT_MS / 1000
        while not _answers(f"{url}/_stcore/health"):
            assert server.poll() is None, (folder / "log.txt").read_text()[-2000:]
            assert time.monotonic() < end, "the dashboard did not come up"
            time.sleep(0.2)
        yield Served(url, fleet)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait(timeout=5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="package")
def serving(tmp_path_factory: pytest.TempPathFactory):
    """Return `serving(name, *options)`: a dashboard on a demo of its own, as a context that gives where it is."""

    def begin(name: str, *options: str) -> AbstractContextManager[Served]:
        return served(tmp_path_factory.mktemp(name), *options)

    return begin


@pytest.fixture(scope="package")
def demo(serving) -> Iterator[Served]:
    """Return where the dashboard of all tests is, with the demo fleet behind it (scenario rush, seed 7)."""
    with serving("browser", "--scenario", "rush", "--seed", "7") as place:
        yield place


@pytest.fixture(scope="package")
def dashboard(demo: Served) -> str:
    """Return its base URL."""
    return demo.url


@pytest.fixture(scope="package")
def play(demo: Served) -> Callable[[str], object]:
    """Return `play(scenario)`, for what must not depend on where the bursts of `rush` stand."""
    workers = tomllib.loads(demo.fleet.read_text(encoding="utf-8"))["workers"]
    return DemoControl([worker["url"] for worker in workers]).switch


@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    """Return a running Chromium's context; its cache is shared, so only the first page loads the front end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if chromium() is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = running.new_context(reduced_motion="reduce")
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(STILL)
        yield context
        running.close()


class Visitors:
    """
    Opens pages of one dashboard, each for a new viewer.

    At the end no page may have asked anything off this machine, broken the content policy or raised an error in its
    scripts.
    """

    def __init__(self, browser, dashboard: str) -> None:
        self.browser = browser
        self.dashboard = dashboard
        self.pages, self.strangers, self.errors = [], [], []

    def __call__(self, path: str = "/", *, theme: str = "light", width: int = 1440, height: int = 900, plots: int = 1):
        """Open a path and return its page once it shows so many figures."""
        page = self.browser.new_page()
        self.pages.append(page)
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": height})
        page.on("request", self._asked)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{self.dashboard}{path}")
        if plots:
            page.wait_for_function(f"document.querySelectorAll('{PLOT}').length >= {plots}")
        return page

    def _heard(self, message) -> None:
        # Streamlit's front end asks /<page>/_stcore/... first on a deep link and recovers from the 404.
        if message.type == "error" and "404" not in message.text:
            self.errors.append(message.text)

    def _asked(self, request) -> None:
        own = (self.dashboard, self.dashboard.replace("http", "ws"), "data:", "blob:")
        if not request.url.startswith(own):
            self.strangers.append(request.url)

    def leave(self) -> None:
        """Close the pages and say what they did that no page may."""
        for page in self.pages:
            page.close()
        assert not self.strangers, self.strangers
        assert not self.errors, self.errors


@pytest.fixture
def visit(browser, dashboard: str) -> Iterator[Visitors]:
    """Return `visit(path, theme="light", width=1440, height=900, plots=1) -> page`, for one test."""
    visitors = Visitors(browser, dashboard)
    yield visitors
    visitors.leave()


@pytest.fixture(scope="module")
def stay(browser, dashboard: str) -> Iterator[Visitors]:
    """Return what `visit` is, for pages that the tests of one file share."""
    visitors = Visitors(browser, dashboard)
    yield visitors
    visitors.leave()

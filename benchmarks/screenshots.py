"""
Draws the pictures of docs/img again: each page in both themes on a running demo, and a real cluster's recording.

`python -m benchmarks.screenshots [NAME ...] [--out FOLDER]` starts `kvscope demo --serve` itself, waits for a few
minutes' worth of figures, drives Chromium, and stops everything. Needs Chromium and Playwright.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "examples" / "recordings" / "sglang_2p2d.jsonl.gz"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
WIDTH = 1440


@dataclass(frozen=True)
class Picture:
    """
    One picture.

    Attributes:
        name: File name without theme.
        demo: What the demo plays.
        path: Page with its query.
        height: Pixels; 0 takes the whole page.
        warm_s: Seconds the demo runs first.
        until: Text to wait for on the page, since a slow machine makes seconds mean little.
        has_figure: Wait for a drawn figure too.
    """

    name: str
    demo: tuple[str, ...]
    path: str
    height: int = 900
    warm_s: float = 60.0
    until: str = ""
    has_figure: bool = True


_FULL = ("--scenario", "saturation", "--seed", "7")
_LOSS = ("--scenario", "node-loss", "--seed", "7")
_REAL = ("--recording", str(RECORDING), "--at-end", "loop")

_CALM = ("--scenario", "calm", "--seed", "7")

PICTURES = (
    Picture("home", _CALM, "/", 1000, warm_s=30.0),
    Picture("glossary", _CALM, "/glossary", 1000, has_figure=False),
    Picture("tour", _CALM, "/tour?step=4", 810, until="scenario calm"),
    Picture("tour-chain", _CALM, "/tour?step=6", 810, until="the alarm came"),
    Picture("saturation", _FULL, "/saturation", 1400),
    Picture("calibration", _FULL, "/calibration", 1400),
    Picture("replay", _FULL, "/replay", 1000, has_figure=False),
    Picture("fleet", _FULL, "/fleet", 1240, warm_s=125.0),
    Picture("fleet-share-zh", _FULL, "/fleet?unit=share&order=committed&lang=zh", 900),
    Picture("worker", _FULL, "/worker?pool=decode-2/0&range=5m", 1500),
    Picture("sources", _FULL, "/sources", 0, has_figure=False),
    Picture("what-if", _FULL, "/what_if", 1400),
    Picture("fleet-node-lost", _LOSS, "/fleet?role=decode&unit=bytes", 900, 20.0, "connect-refused"),
    Picture("fleet-real-2p2d", _REAL, "/fleet", 0, 30.0, "decode-room-holds-prefill"),
)
"""Pictures of one demo follow each other, so that it starts once."""


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[str]:
    """Run a demo with its dashboard on a free port and give its base URL."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="kvscope-shots-") as folder:
        command = [sys.executable, str(ROOT / "cli.py"), "demo", "--serve", "--port", str(port)]
        command += ["--fleet-file", f"{folder}/fleet.toml", *arguments]
        with (Path(folder) / "log.txt").open("wb") as log:
            server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(f"{url}/_stcore/health", server, Path(folder) / "log.txt")
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(timeout=5)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"the demo ended: {log.read_text()[-1000:]}")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.3)
    raise SystemExit("the dashboard did not come up in 90 s")


def shoot(browser: Any, base: str, picture: Picture, theme: str, folder: Path) -> Path:
    """Draw one picture in one theme."""
    page = browser.new_page(viewport={"width": WIDTH, "height": picture.height or 1000}, color_scheme=theme)
    page.goto(f"{base}{picture.path}")
    page.wait_for_selector("h1", timeout=120_000)
    if picture.has_figure:
        page.wait_for_selector(".kv-plot[data-ticks]", timeout=120_000)
    if picture.until:
        page.get_by_text(picture.until).first.wait_for(timeout=300_000)
    page.wait_for_timeout(5000)
    if not picture.height:
        height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": WIDTH, "height": min(int(height) + 10, 2600)})
        page.wait_for_timeout(2500)
    path = folder / f"{picture.name}-{theme}.png"
    page.screenshot(path=path)
    page.close()
    # A page has few hues: a palette of 128 keeps the pictures of the repository small.
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
    return path


def main() -> int:
    """Draw what is asked for, or everything; status 1 without a browser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(p.name for p in PICTURES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--themes", nargs="+", choices=("light", "dark"), default=["light", "dark"])
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium on this machine: apt-get install chromium", file=sys.stderr)
        return 1
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [picture for picture in PICTURES if not args.names or picture.name in args.names]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for demo in dict.fromkeys(picture.demo for picture in wanted):
            mine = [picture for picture in wanted if picture.demo == demo]
            with served(demo) as base:
                time.sleep(max(picture.warm_s for picture in mine))
                for picture in mine:
                    for theme in args.themes:
                        path = shoot(browser, base, picture, theme, args.out)
                        print(f"{path} {path.stat().st_size / 1e3:.0f} kB")
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

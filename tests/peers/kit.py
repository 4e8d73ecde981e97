"""
The kit of real engines: where it is, what is installed, and starting and stopping by it.

The kit is a folder with `engines.sh` (KVSCOPE_SHARED/engines, by default ../shared/engines beside the checkout); it
keeps environments under an ENGINES_DIR. Ours is a folder of its own with links to what is installed (KVSCOPE_ENGINES,
by default ~/.cache/kvscope-engines), so that `down` stops what these tests started and nothing else.

KVSCOPE_PEER_RUNS names a folder in which what was seen of each engine is kept, and from which it is judged again
without starting anything.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(os.environ.get("KVSCOPE_ENGINES", Path.home() / ".cache" / "kvscope-engines"))
KIT = Path(os.environ.get("KVSCOPE_SHARED", ROOT.parent / "shared")) / "engines"
START_LIMIT_S = float(os.environ.get("ENGINES_TIMEOUT", "600"))
"""For one server to be ready: 40 to 90 s on a quiet machine with two cores, several times that on a busy one."""
LOAD_DRAIN_S = 240.0
"""For the requests under way when a load ends: 12 to 24 s seen on a busy machine."""
WATCH_START_S = 90.0
QUIET_BEFORE_S = 2.0
ENVIRONMENTS = ("sglang", "smg", "router", "vllm", "dynamo")


def free_port() -> int:
    """Return a port on loopback that nobody holds right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Kit:
    """One ENGINES_DIR of ours. Everything started here is stopped by `down`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ENVIRONMENTS:
            link = self.folder / name
            if (INSTALLED / name).is_dir() and not link.exists():
                link.symlink_to((INSTALLED / name).resolve())
        self._clients: list[subprocess.Popen[str]] = []

    def need(self, *names: str, is_namespaced: bool = False) -> None:
        """Skip with the reason unless the kit is there and these environments are installed."""
        script = KIT / "engines.sh"
        if not script.is_file():
            pytest.skip(f"no kit of engines at {KIT} (set KVSCOPE_SHARED)")
        for name in names:
            if not (INSTALLED / name / "bin" / "python").exists():
                pytest.skip(f"{name} is not installed in {INSTALLED}: run `engines.sh setup {name}` of {KIT}")
        if is_namespaced and os.geteuid() != 0:
            pytest.skip("needs root: the engines bind all interfaces, so the kit runs them in a network namespace")
        if is_namespaced and shutil.which("ip") is None:
            pytest.skip("needs the `ip` command (Debian: iproute2) for a network namespace")

    def _environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "ENGINES_DIR": str(self.folder),
            "ENGINES_TIMEOUT": f"{START_LIMIT_S:.0f}",
            "no_proxy": "127.0.0.1,localhost",
            "PYTHONPATH": str(ROOT),
            **(more or {}),
        }

    def _command(self, *arguments: str) -> list[str]:
        return ["nice", "-n", "5", "bash", str(KIT / "engines.sh"), *arguments]

    def up(self, *arguments: str, **environment: str) -> None:
        """Start what `engines.sh up ARGUMENTS` starts; fail with the kit's own words when it does not come up."""
        done = subprocess.run(
            self._command("up", *arguments),
            env=self._environment(environment),
            capture_output=True,
            text=True,
            timeout=6 * START_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            self.down()
            pytest.fail(f"engines.sh up {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-3000:]}")

    def down(self) -> None:
        """Stop the load and every server started here; remove the namespace."""
        for client in self._clients:
            if client.poll() is None:
                os.killpg(client.pid, signal.SIGTERM)
            client.wait(30)
            if client.stdout is not None:
                client.stdout.close()
        self._clients.clear()
        if not (self.folder / "run").is_dir():
            return  # The kit keeps its ids there: nothing was ever started.
        subprocess.run(self._command("down"), env=self._environment(), capture_output=True, timeout=300, check=True)

    def load(self, url: str, seconds: float, clients: int, max_tokens: int = 128) -> subprocess.Popen[str]:
        """Begin to send chat requests to `url`; the process prints a JSON summary when the last one is through."""
        return self._begin("load", url, f"{seconds:g}", str(clients), str(max_tokens))

    def inside(self, *command: str) -> subprocess.Popen[str]:
        """Begin a command where the servers are: inside the namespace when there is one."""
        return self._begin("exec", *command)

    def _begin(self, *arguments: str) -> subprocess.Popen[str]:
        client = subprocess.Popen(
            self._command(*arguments),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._clients.append(client)
        return client

    def watch(
        self,
        folder: Path,
        *,
        load_url: str,
        load_s: float,
        clients: int,
        workers: Sequence[str] = (),
        witnesses: Sequence[str] = (),
        router: str | None = None,
        quiet_s: float = 10.0,
    ) -> None:
        """
        Watch these servers with KVScope's own runtime and with a witness, before, under and after a load.

        Args:
            folder: Where `watch.py` leaves what it saw; `load.json` beside it is the load client's summary.
            load_url: Where the chat requests go.
            load_s: For how long requests are begun; those under way are then let finish.
            clients: Requests that exist at a time.
            workers: NAME=URL of what the runtime polls.
            witnesses: What the witness asks.
            router: smg or sglang-router through which workers are found.
            quiet_s: How long to go on watching after the last request.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("started", "stop"):
            (folder / name).unlink(missing_ok=True)
        program = str(Path(__file__).with_name("watch.py"))
        more = [word for url in witnesses for word in ("--witness", url)]
        more += ["--router", router] if router is not None else []
        longest_s = load_s + LOAD_DRAIN_S + quiet_s
        watching = self.inside(
            sys.executable, program, "--out", str(folder), "--seconds", f"{longest_s:g}", *more, *workers
        )
        end = time.monotonic() + WATCH_START_S
        while not (folder / "started").exists() and watching.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        if not (folder / "started").exists():
            pytest.fail(f"the watch did not begin:\n{finished(watching, 1.0)}")
        time.sleep(QUIET_BEFORE_S)
        summary = summary_of(finished(self.load(load_url, load_s, clients), load_s + LOAD_DRAIN_S))
        (folder / "load.json").write_text(json.dumps(summary))
        time.sleep(quiet_s)
        (folder / "stop").touch()
        finished(watching, WATCH_START_S)


def finished(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Return what a process printed; fail with it when the process ended badly or not in time."""
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        text, _ = process.communicate(timeout=30)
        pytest.fail(f"{process.args} did not end in {timeout_s:g} s:\n{text[-3000:]}")
    if process.returncode != 0:
        pytest.fail(f"{process.args} ended with {process.returncode}:\n{text[-3000:]}")
    return text


def summary_of(text: str) -> dict[str, Any]:
    """Return the load client's JSON summary out of what it printed."""
    found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return found

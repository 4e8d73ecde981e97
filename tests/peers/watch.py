"""
Watch real engines for a while, and keep everything that is needed to judge KVScope by them afterwards.

    python tests/peers/watch.py --out FOLDER --seconds 60 [--router URL] [--witness URL/PATH ...] NAME=URL ...

It ends after so many seconds, or earlier when a file FOLDER/stop appears; FOLDER/started says that it polls.

KVScope's own runtime polls the workers each second over its own transport into DuckDB. A witness of its own (standard
library, its own connections, no code of KVScope's) asks the same engines at its own moments. FOLDER then holds

- `answers.jsonl`: every body the runtime received, as it came: {"t", "received_at_s", "url", "status", "text"};
- `witness.jsonl`: every body the witness received, in the same form;
- `judged.jsonl`: after each cycle the judged fleet as a snapshot file, requests waiting, the router's rows;
- `sources.json`: how each source was asked and answered; `kvscope.duckdb`: the store.

It runs where the engines are, so inside the kit's network namespace for those that need one.
"""

import argparse
import http.client
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import httpx

from collectors.runtime import Runtime
from collectors.settings import Settings
from collectors.transport import FleetTransport
from scoring.model import FleetSnapshot
from scoring.router_view import router_divergence, router_rows
from scoring.snapshot import fleet_to_json, waiting_once


class Lines:
    """A file of JSON lines that several threads may write."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w")
        self._lock = threading.Lock()

    def write(self, row: dict[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        with self._lock:
            self._file.close()


class _Tee(httpx.AsyncByteStream):
    """A body on its way to the poller, kept whole when it has ended."""

    def __init__(self, stream: httpx.AsyncByteStream, row: dict[str, Any], lines: Lines) -> None:
        self._stream, self._row, self._lines = stream, row, lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in self._stream:
            body += chunk
            yield chunk
        self._lines.write({**self._row, "received_at_s": time.time(), "text": body.decode("utf-8", "replace")})

    async def aclose(self) -> None:
        await self._stream.aclose()


class KeepingTransport(httpx.AsyncBaseTransport):
    """The fleet's own transport; keeps what passes through it."""

    def __init__(self, lines: Lines) -> None:
        self._inner = FleetTransport()
        self._lines = lines

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked_at_s = time.time()
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        row = {"t": asked_at_s, "url": str(request.url), "status": response.status_code}
        return httpx.Response(
            status_code=response.status_code,
            headers=response.headers.raw,
            stream=_Tee(response.stream, row, self._lines),
            request=request,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class Witness(threading.Thread):
    """Asks one address each second by the standard library, at moments of its own."""

    def __init__(self, url: str, every_s: float, stop: threading.Event, lines: Lines) -> None:
        super().__init__(name=f"witness {url}", daemon=True)
        self._url, self._every_s, self._stop_event, self._lines = url, every_s, stop, lines
        self.error_count = 0

    def run(self) -> None:
        parts = urlsplit(self._url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        while not self._stop_event.is_set():
            began = time.monotonic()
            asked_at_s = time.time()
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
            try:
                connection.request("GET", path, headers={"Accept": "*/*"})
                response = connection.getresponse()
                text = response.read().decode("utf-8", "replace")
                self._lines.write(
                    {
                        "t": asked_at_s,
                        "url": self._url,
                        "status": response.status,
                        "received_at_s": time.time(),
                        "text": text,
                    }
                )
            except (OSError, http.client.HTTPException):
                self.error_count += 1
            finally:
                connection.close()
            self._stop_event.wait(max(0.05, self._every_s - (time.monotonic() - began)))


def _settings(out: Path, workers: dict[str, str], routers: list[str], history_s: float) -> Settings:
    return Settings.model_validate(
        {
            "workers": [{"url": url, "name": name} for name, url in workers.items()],
            "poll": {"interval_s": 1.0, "metrics_interval_s": 0.0},
            "store": {"path": out / "kvscope.duckdb"},
            "view": {"history_s": history_s},
            "discovery": {"sglang_router": routers},
        }
    )


def _routers(runtime: Runtime, fleet: FleetSnapshot) -> dict[str, Any]:
    """Return each router's rows beside the engines', and where they part, as the Sources page shows them."""
    urls = {view.worker_id: view.url for view in runtime.sources()}
    said = {}
    for name, (at_s, workers) in runtime.router_views().items():
        said[name] = {
            "at_s": at_s,
            "rows": [asdict(row) for row in router_rows(workers, fleet.pools, urls)],
            "findings": [finding.code for finding in router_divergence(workers, fleet.pools, urls)],
        }
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", nargs="*", metavar="NAME=URL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--router", action="append", default=[], metavar="URL")
    parser.add_argument("--witness", action="append", default=[], metavar="URL/PATH")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    answers, judged, seen = (Lines(args.out / f"{name}.jsonl") for name in ("answers", "judged", "witness"))
    workers = dict(item.split("=", 1) for item in args.workers)
    settings = _settings(args.out, workers, args.router, 900.0)
    runtime = Runtime(settings, transport=lambda: KeepingTransport(answers))

    def hook(fleet: FleetSnapshot) -> None:
        once = waiting_once(fleet.pools)
        judged.write(
            {
                "fleet": json.loads(fleet_to_json(fleet)),
                "waiting_once": once.value,
                "waiting_once_reason": once.reason,
                "routers": _routers(runtime, fleet),
            }
        )

    stop = threading.Event()
    witnesses = [Witness(url, 1.0, stop, seen) for url in args.witness]
    runtime.on_cycle(hook)
    runtime.start()
    try:
        for witness in witnesses:
            witness.start()
        (args.out / "started").touch()
        end = time.monotonic() + args.seconds
        while time.monotonic() < end and not (args.out / "stop").exists():
            time.sleep(0.2)
    finally:
        stop.set()
        stats = runtime.cycle_stats()
        sources = [asdict(view) for view in runtime.sources()]
        runtime.stop()
        for witness in witnesses:
            witness.join(15)
        for lines in (answers, judged, seen):
            lines.close()
    summary = {
        "sources": sources,
        "stats": asdict(stats),
        "witness_errors": sum(witness.error_count for witness in witnesses),
    }
    (args.out / "sources.json").write_text(json.dumps(summary, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""
Ten people look at the Fleet page at once: CPU and memory of the server, time of a refresh, age of what they see.

Each viewer is a client of Streamlit's protobuf websocket that asks for its fragment as the browser does, every two
seconds, in a process of its own so that its work is not counted. `run()` gives rows for `python -m benchmarks`.
"""

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from benchmarks.screenshots import served

Row = tuple[str, float, str]

VIEWERS = 10
SECONDS = 30.0
WARM_S = 15.0


class Viewer:
    """One session: opens the page, then asks for its live part at the pace the server named."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.socket: Any = None
        self.fragment: tuple[str, float] | None = None
        self.refresh_s: list[float] = []
        self.age_s: list[float] = []
        self.bytes = 0

    async def open(self) -> float:
        """Return seconds until the first page was whole."""
        began = time.perf_counter()
        self.socket = await websockets.connect(self.url, subprotocols=["streamlit"], max_size=None)  # type: ignore[list-item]
        message = BackMsg()
        message.rerun_script.query_string = ""
        await self.socket.send(message.SerializeToString())
        await self._until_finished()
        if self.fragment is None:
            raise RuntimeError("the page has no live part")
        return time.perf_counter() - began

    async def watch(self, end_s: float) -> None:
        """Refresh until then."""
        fragment, interval_s = self.fragment or ("", 2.0)
        due = time.perf_counter()
        while due < end_s:
            began = time.perf_counter()
            message = BackMsg()
            message.rerun_script.query_string = ""
            message.rerun_script.fragment_id = fragment
            message.rerun_script.is_auto_rerun = True
            await self.socket.send(message.SerializeToString())
            await self._until_finished()
            self.refresh_s.append(time.perf_counter() - began)
            due += interval_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def close(self) -> None:
        """Leave."""
        await self.socket.close()

    async def _until_finished(self) -> None:
        while True:
            body = await self.socket.recv()
            self.bytes += len(body)
            message = ForwardMsg()
            message.ParseFromString(body)
            kind = message.WhichOneof("type")
            if kind == "auto_rerun":
                self.fragment = (message.auto_rerun.fragment_id, message.auto_rerun.interval)
            elif kind == "delta" and message.delta.WhichOneof("type") == "new_element":
                self._look(message.delta.new_element)
            elif kind == "script_finished":
                return

    def _look(self, element: Any) -> None:
        kind = element.WhichOneof("type")
        if kind == "exception":
            raise RuntimeError(element.exception.message)
        if kind == "bidi_component" and element.bidi_component.bytes:
            payload = json.loads(element.bidi_component.bytes)
            # What is drawn now was true `age_s` before the instant it was judged at.
            self.age_s.append(time.time() - payload["at_s"] + payload["age_s"])


def _process(pid: int) -> tuple[float, float]:
    """Return CPU seconds and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return (int(fields[11]) + int(fields[12])) / 100.0, pages * 4096.0


def _server_pid(port: int) -> int:
    """Return the process that listens on `port`."""
    inode = next(
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    )
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [link.readlink().name for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if f"socket:[{inode}]" in links:
            return int(process.name)
    raise RuntimeError(f"nobody listens on {port}")


async def _watch(url: str, pid: int, count: int) -> list[Row]:
    viewers = [Viewer(url) for _ in range(count)]
    idle_cpu, _ = _process(pid)
    await asyncio.sleep(5.0)
    idle = (_process(pid)[0] - idle_cpu) / 5.0
    first = [await viewer.open() for viewer in viewers]
    cpu, memory = _process(pid)
    began = time.perf_counter()
    end = began + SECONDS
    await asyncio.gather(*(viewer.watch(end) for viewer in viewers))
    elapsed = time.perf_counter() - began
    cpu_after, memory_after = _process(pid)
    for viewer in viewers:
        await viewer.close()
    refresh = sorted(value for viewer in viewers for value in viewer.refresh_s)
    ages = sorted(value for viewer in viewers for value in viewer.age_s)
    return [
        (f"{count} viewers: server CPU", (cpu_after - cpu) / elapsed, "cores"),
        ("no viewer: server CPU (collecting alone)", idle, "cores"),
        (f"{count} viewers: refresh, median", statistics.median(refresh) * 1e3, "ms"),
        (f"{count} viewers: refresh, 95 %", refresh[int(0.95 * len(refresh))] * 1e3, "ms"),
        (f"{count} viewers: refreshes", len(refresh) / elapsed, "1/s"),
        (f"{count} viewers: age of a figure when it arrives, median", statistics.median(ages), "s"),
        (f"{count} viewers: age, 95 %", ages[int(0.95 * len(ages))], "s"),
        (f"{count} viewers: sent per refresh", sum(v.bytes for v in viewers) / len(refresh) / 1e3, "kB"),
        (f"{count} viewers: first page, median", statistics.median(first) * 1e3, "ms"),
        ("server memory", memory_after / 1e6, "MB"),
        (f"server memory, growth over {SECONDS:.0f} s", (memory_after - memory) / 1e6, "MB"),
    ]


def run(count: int = VIEWERS) -> list[Row]:
    """Start a demo with its dashboard and look at it."""
    with served(("--scenario", "rush", "--seed", "7")) as base:
        time.sleep(WARM_S)
        port = int(base.rpartition(":")[2])
        return asyncio.run(_watch(f"ws://127.0.0.1:{port}/_stcore/stream", _server_pid(port), count))


if __name__ == "__main__":
    for name, value, unit in run():
        print(f"{name:55} {value:10.2f} {unit}")

"""
A recorded fleet, played again: the bodies real workers sent, at their own pace, with their times moved to now.

A recording is a file of JSON lines (gzip when named .gz), ascending by `t`:
`{"t": epoch seconds, "url": "http://host:port/path", "body": {...}}`, or `"text"` in place of `"body"` for an
exposition. Each host and port of the recording becomes one server on loopback; URLs inside bodies are turned into
the new ones, so that a router's view still points at its workers.

An exposition and a router's worker list are one instant of a cluster that moves on. Away from that instant only
what does not move is served: nothing else they say would be true beside the loads of another moment.

At another speed than 1 bodies come faster, and times are moved so that ages hold; seconds counted inside the bodies
stay as recorded, so rates derived from counters rise with the speed.

Read next: `playing` (the servers).
"""

import bisect
import gzip
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from demo import wire

MAX_BYTES: Final = 512 * 1024 * 1024
"""Chosen: an hour of a hundred workers at one second is about this; a mistaken file is refused before memory fills."""
INSTANT_PATHS: Final = ("/metrics", "/workers")
"""Paths that a recording holds once."""
INSTANT_WINDOW_S: Final = 5.0
"""Chosen: how far from its instant such an answer is still served whole."""
MOVING_WORKER_FIELDS: Final = frozenset({"engine_load", "load"})
"""Fields of a router's worker list that are true at their instant only."""
RESERVED_DECODE_TOKENS: Final = 512
"""The engine's default of `num_reserved_decode_tokens`, for recordings that hold no `/server_info`."""

CONSTANT_SERIES: Final = re.compile(
    r"sglang[:_](page_size|num_pages|context_len|max_total_num_tokens\w*|\w+_memory_usage_gb|startup_\w+)$"
)


class RecordingError(Exception):
    """The file is no recording; the message says which line and what was expected."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded answer: when it was true at the earliest, and what it said."""

    t: float
    body: Any = None
    text: str | None = None


@dataclass(slots=True)
class Recording:
    """
    Recorded answers by origin (`http://host:port`) and path, ascending in time.

    Attributes:
        start_s: Time of the first line, the recording's clock.
        end_s: Time of the last one.
    """

    tracks: dict[str, dict[str, list[Entry]]] = field(default_factory=dict)
    start_s: float = 0.0
    end_s: float = 0.0

    @property
    def period_s(self) -> float:
        """Length of one round: the recording plus one mean gap, so that a loop keeps the pace."""
        counts = [len(entries) for paths in self.tracks.values() for entries in paths.values()]
        length_s = self.end_s - self.start_s
        return length_s + length_s / max(max(counts, default=1) - 1, 1)

    def role(self, origin: str) -> str | None:
        """Return prefill, decode or null as the origin's own loads say, router for a router, None when not known."""
        paths = self.tracks[origin]
        if any(path in paths for path in ("/get_loads", "/workers")):
            return "router"
        for entry in paths.get("/v1/loads", []):
            rows = entry.body.get("loads") if isinstance(entry.body, Mapping) else None
            if rows:
                return str(rows[0].get("disaggregation", {}).get("mode", "null"))
        return None


def _newest_s(body: Any, t: float) -> float:
    # A line is stamped when it was asked; what it says may be some milliseconds younger and must not be future.
    rows = body.get("loads") if isinstance(body, Mapping) else None
    stamps = [float(row["timestamp"]) for row in rows or () if isinstance(row.get("timestamp"), int | float)]
    return max([t, *stamps])


def _take(recording: Recording, line: Mapping[str, Any]) -> None:
    t, url = line["t"], line["url"]
    if not isinstance(t, int | float) or not isinstance(url, str):
        raise TypeError("`t` must be a number and `url` a text")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or not parts.path:
        raise ValueError(f"`url` must be like http://host:port/path, not {url[:80]!r}")
    if isinstance(line.get("text"), str):
        entry = Entry(float(t), text=line["text"])
    elif "body" in line:
        entry = Entry(_newest_s(line["body"], float(t)), body=line["body"])
    else:
        raise KeyError("body")
    origin = f"{parts.scheme}://{parts.netloc}"
    recording.tracks.setdefault(origin, {}).setdefault(parts.path, []).append(entry)


def read_lines(lines: Iterable[bytes]) -> Recording:
    """
    Return the recording in `lines`.

    Raises:
        RecordingError: A line is not of the documented shape, or there is none.
    """
    recording = Recording()
    first: float | None = None
    size = 0
    for number, raw in enumerate(lines, start=1):
        size += len(raw)
        if size > MAX_BYTES:
            raise RecordingError(f"the recording is longer than {MAX_BYTES >> 20} MiB; cut it")
        if not raw.strip():
            continue
        try:
            line = msgspec.json.decode(raw)
            _take(recording, line)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
            raise RecordingError(
                f'line {number} is not {{"t": seconds, "url": "http://host:port/path", "body": {{...}}}}: {error}'
            ) from error
        first = float(line["t"]) if first is None else min(first, float(line["t"]))
        recording.end_s = max(recording.end_s, float(line["t"]))
    if first is None:
        raise RecordingError("the recording holds no line")
    recording.start_s = first
    for paths in recording.tracks.values():
        for entries in paths.values():
            entries.sort(key=lambda entry: entry.t)
    return recording


def read_recording(path: Path) -> Recording:
    """
    Return the recording in a file, with the expositions and the router's worker list that lie beside it.

    Beside it may lie `metrics_<port>.txt` (one exposition of the worker on that port) and `smg_workers.json`
    (the router's `/workers`); a recording that already holds such paths is left as it is.

    Raises:
        RecordingError: The file cannot be read or is no recording.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            recording = read_lines(cast("Iterable[bytes]", lines))
    except (OSError, EOFError) as error:
        raise RecordingError(f"cannot read the recording {path}: {error}") from error
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from error
    for origin, paths in recording.tracks.items():
        beside = path.with_name(f"metrics_{urlsplit(origin).port}.txt")
        if "/metrics" not in paths and beside.is_file():
            text = beside.read_text()
            paths["/metrics"] = [Entry(_instant_s(paths.get("/v1/loads", []), text, recording.start_s), text=text)]
        listing = path.with_name("smg_workers.json")
        if "/workers" not in paths and "/get_loads" in paths and listing.is_file():
            body = msgspec.json.decode(listing.read_bytes())
            paths["/workers"] = [Entry(_listed_s(body, recording.start_s), body=body)]
    return recording


def _listed_s(body: Any, default_s: float) -> float:
    """Return when a router's worker list was made: the newest time it says it heard from a worker."""
    stamps = [worker.get("engine_load", {}).get("timestamp") for worker in body.get("workers", [])]
    heard = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps if isinstance(stamp, str)]
    return max(heard, default=default_s)


def _instant_s(loads: list[Entry], text: str, default_s: float) -> float:
    """Return when an exposition was true: the last loads whose counters had not passed its own."""
    computed = _sum(text, "realtime_tokens_total", 'mode="prefill_compute"')
    generated = _sum(text, "realtime_tokens_total", 'mode="decode"')
    found_s = default_s
    for entry in loads:
        rows = entry.body.get("loads", [])
        prefill = sum(row.get("total_prefill_uncached_tokens") or 0 for row in rows)
        decode = sum((row.get("decode_moments") or [0.0] * 6)[5] for row in rows)
        if prefill <= computed and decode <= generated:
            found_s = entry.t
    return found_s


def _sum(text: str, name: str, label: str) -> float:
    found = re.findall(rf"^sglang[:_]{name}\{{[^}}]*{label}[^}}]*\}} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for value in found)


def constants_only(text: str) -> str:
    """Return the part of an exposition that does not move: configuration and capacity."""
    kept = []
    for line in text.splitlines():
        words = line.split(maxsplit=3)
        name = words[2] if line.startswith("#") and len(words) > 2 else line.split("{")[0].split(" ")[0]
        if CONSTANT_SERIES.fullmatch(name):
            kept.append(line)
    return "\n".join(kept) + "\n"


class Playback:
    """
    A recording on a clock: what each path answers now.

    Attributes:
        recording: What is played.
        start_wall_s: Our clock when it began.
        speed: Recorded seconds a second.
        is_looping: Begin again after the end, or stay on the last answers, which then grow old.
    """

    def __init__(self, recording: Recording, start_wall_s: float, speed: float, is_looping: bool) -> None:
        self.recording = recording
        self.start_wall_s = start_wall_s
        self.speed = speed
        self.is_looping = is_looping
        self.origins: dict[str, str] = {}
        """Recorded origin -> the origin that plays it, for URLs inside bodies."""

    def position(self, wall_s: float) -> tuple[int, float]:
        """Return the round (0 is the first) and the time on the recording's clock."""
        elapsed_s = max(wall_s - self.start_wall_s, 0.0) * self.speed
        if not self.is_looping:
            return 0, self.recording.start_s + elapsed_s
        round_index, into_s = divmod(elapsed_s, self.recording.period_s)
        return int(round_index), self.recording.start_s + into_s

    def is_over(self, wall_s: float) -> bool:
        """Whether the last answer of a recording that does not loop has been reached."""
        return not self.is_looping and self.position(wall_s)[1] > self.recording.end_s

    def _wall_s(self, t: float, round_index: int) -> float:
        into_s = t - self.recording.start_s + round_index * self.recording.period_s
        return self.start_wall_s + into_s / self.speed

    def entry(self, origin: str, path: str, wall_s: float) -> Entry | None:
        """Return the newest recorded answer of a path, or None before its first."""
        entries = self.recording.tracks[origin].get(path)
        if not entries:
            return None
        if path in INSTANT_PATHS and len(entries) == 1:
            return entries[0]
        index = bisect.bisect_right(entries, self.position(wall_s)[1], key=lambda entry: entry.t) - 1
        return entries[index] if index >= 0 else None

    def body(self, entry: Entry, wall_s: float) -> Any:
        """Return a recorded body with its times moved to now and its URLs to the playing servers."""
        round_index, _ = self.position(wall_s)
        body = entry.body
        if isinstance(body, Mapping) and "workers" in body and not self._is_near(entry, wall_s):
            still = [
                {key: value for key, value in worker.items() if key not in MOVING_WORKER_FIELDS}
                if isinstance(worker, Mapping) and "url" in worker
                else worker
                for worker in body["workers"]
            ]
            body = {**body, "workers": still}
        return self._moved(body, wall_s, round_index)

    def _is_near(self, entry: Entry, wall_s: float) -> bool:
        return abs(self.position(wall_s)[1] - entry.t) <= INSTANT_WINDOW_S

    def _moved(self, value: Any, wall_s: float, round_index: int) -> Any:
        if isinstance(value, Mapping):
            return {key: self._moved_field(key, inner, wall_s, round_index) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._moved(inner, wall_s, round_index) for inner in value]
        if isinstance(value, str) and value.startswith("http"):
            return self.origins.get(value, value)
        return value

    def _moved_field(self, key: str, value: Any, wall_s: float, round_index: int) -> Any:
        if key == "timestamp" and isinstance(value, str):
            return wire.iso_utc(wall_s)
        if key == "timestamp" and isinstance(value, int | float) and value > 0.0:
            return self._wall_s(value, round_index)
        return self._moved(value, wall_s, round_index)

    def exposition(self, entry: Entry, wall_s: float) -> str:
        """Return a recorded exposition: whole about its instant, only its constants elsewhere."""
        text = entry.text or ""
        return text if self._is_near(entry, wall_s) else constants_only(text)

    def server_info(self, origin: str) -> dict[str, Any]:
        """Return what the recording tells of a worker's start-up, for `/server_info` where none was recorded."""
        paths = self.recording.tracks[origin]
        info: dict[str, Any] = {"status": "ready"}
        for router in self.recording.tracks.values():
            for entry in router.get("/workers", []):
                for worker in entry.body.get("workers", []):
                    if worker.get("url") == origin:
                        info |= {key: _typed(value) for key, value in worker.get("labels", {}).items()}
        loads = paths.get("/v1/loads", [])
        rows = loads[0].body.get("loads", []) if loads else []
        if rows:
            info["version"] = loads[0].body.get("version")
            info["dp_size"] = len(rows)
            info["max_total_num_tokens"] = rows[0].get("max_total_num_tokens")
            info["disaggregation_mode"] = rows[0].get("disaggregation", {}).get("mode", "null")
        for entry in paths.get("/metrics", []):
            found = re.search(r"^sglang[:_]page_size(?:\{[^}]*\})? (\S+)$", entry.text or "", re.MULTILINE)
            if found:
                info["page_size"] = int(float(found[1]))
        if info.get("disaggregation_mode") == "decode":
            info["num_reserved_decode_tokens"] = RESERVED_DECODE_TOKENS
        return info


def _typed(value: Any) -> Any:
    """Return a router label as the worker wrote it: labels are texts, numbers and flags among them."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value.encode())
    except msgspec.DecodeError:
        return value

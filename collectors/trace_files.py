"""
Opens traffic files as text lines for the readers of the simulation, which open nothing themselves.

Plain text and gzip; a folder of session documents reads as one. Pickles are refused unread: loading one runs
whatever its author put in.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from collectors.errors import KvscopeError

GZIP_MAGIC: Final = b"\x1f\x8b"
PICKLE_MAGIC: Final = b"\x80"
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest line read: whole session documents stand on one line. Chosen; the largest published one has 4 MiB."""


class TraceFileError(KvscopeError):
    """A traffic file cannot be opened or read; the message says which and what to do."""


def _file_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as probe:
        head = probe.read(4)
    is_gzip = head.startswith(GZIP_MAGIC)
    if head.startswith(PICKLE_MAGIC):
        raise TraceFileError(f"{path}: looks like a pickle, which is never loaded; export the requests as JSON lines")
    if b"\x00" in head and not is_gzip:
        raise TraceFileError(f"{path}: binary, no text trace")
    with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) if is_gzip else raw as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            if len(line) > LINE_BYTES_MAX:
                raise TraceFileError(f"{path}: a line is longer than {LINE_BYTES_MAX} bytes")
            yield line.decode("utf-8", errors="replace")


def trace_lines(path: str | Path) -> Iterator[str]:
    """
    Yield the lines of a traffic file, or of every *.json session document in a folder, in order of their names.

    Raises:
        TraceFileError: it cannot be opened or is no text; the message names the file.
    """
    path = Path(path)
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths:
        raise TraceFileError(f"{path}: no *.json session documents in this folder")
    try:
        for one in paths:
            yield from _file_lines(one)
    except FileNotFoundError:
        raise TraceFileError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise TraceFileError(f"{path}: cannot be read ({error})") from None

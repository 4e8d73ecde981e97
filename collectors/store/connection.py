"""
The one owner of a DuckDB file: opening it, cursors for readers, one write path.

Why so strict (measured on DuckDB 2.0.1): while a process writes, no other may open the file, not even to read; a
connection used from two threads raises; a result left half read blocks the next call on its connection. So: one
owning process, a cursor an operation, every result drained, writes one after another behind one lock.

Read next: `migrations` (what the tables are), `writes`, `reads`.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from collectors.errors import (
    StoreError,
    StoreLockedError,
    StoreReadOnlyError,
    StoreTimeoutError,
    StoreVersionError,
)

MEMORY: Final = ":memory:"
MEMORY_LIMIT: Final = "1GB"
"""Chosen: DuckDB's own default is 80 % of the machine, which is not ours to take on a shared host."""
LOG_LIMIT: Final = "64MB"
"""Size of the write-ahead log at which it is folded into the file: a fold stops the writer for a while (measured
0.4 s at 1,000 pools a second), so it should be rare; reading a log of this size back after a kill takes as long."""
READ_LIMIT_S: Final = 10.0
"""Chosen: a page that waits longer than this shows its error state instead."""
LOCK_WAIT_S: Final = 3.0
"""Chosen: a restart hands the file over within this; longer means somebody owns it."""

_HOLDER = re.compile(r"held in (?P<program>.+?) \(PID (?P<pid>\d+)\)")
_WRITE_LOCKS: dict[str, threading.RLock] = {}
_WRITE_LOCKS_GUARD = threading.Lock()


def _write_lock(path: str) -> threading.RLock:
    """Return the lock that every Store on `path` in this process writes behind."""
    if path == MEMORY:
        return threading.RLock()
    with _WRITE_LOCKS_GUARD:
        return _WRITE_LOCKS.setdefault(path, threading.RLock())


def store_error(error: duckdb.Error, doing: str) -> StoreError:
    """Translate what DuckDB said while `doing` into a StoreError with one line of text."""
    said = str(error).splitlines()[0]
    if isinstance(error, duckdb.InterruptException):
        return StoreTimeoutError(f"store: {doing} took longer than allowed and was stopped; ask for a shorter range")
    if isinstance(error, duckdb.IOException):
        return StoreError(f"store: {doing} failed: {said}; check free space and permissions of its folder")
    return StoreError(f"store: {doing} failed: {said}")


class Database:
    """
    One opened file (or `:memory:`).

    Thread-safe: any thread may read or write; each operation takes its own cursor, writes queue behind one lock.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: str, *, is_read_only: bool) -> None:
        self._root = connection
        self._root_lock = threading.Lock()
        self._write_lock = _write_lock(path)
        self._is_closed = False
        self.path = path
        self.is_read_only = is_read_only

    def _cursor(self, doing: str) -> duckdb.DuckDBPyConnection:
        with self._root_lock:
            if self._is_closed:
                raise StoreError(f"store: {doing} came after the store was closed")
            return self._root.cursor()

    @contextmanager
    def reading(self, doing: str, limit_s: float = READ_LIMIT_S) -> Iterator[duckdb.DuckDBPyConnection]:
        """
        Give a cursor in its own transaction, so that several queries see one state; stopped after `limit_s`.

        Raises:
            StoreTimeoutError: A query took longer than `limit_s`.
            StoreError: DuckDB refused.
        """
        cursor = self._cursor(doing)
        try:
            cursor.execute(f"set max_execution_time = '{max(1, round(limit_s * 1000))}'").fetchall()
            cursor.execute("begin transaction").fetchall()
            yield cursor
            cursor.execute("commit").fetchall()
        except duckdb.Error as error:
            raise store_error(error, doing) from error
        finally:
            cursor.close()

    @contextmanager
    def writing(self, doing: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """
        Give a cursor in a transaction that commits when the block ends and leaves no trace when it raises.

        Raises:
            StoreReadOnlyError: The store was opened to read.
            StoreError: DuckDB refused; nothing was written.
        """
        if self.is_read_only:
            raise StoreReadOnlyError(f"store: {doing} needs a store opened for writing, this one is read-only")
        with self._write_lock:
            cursor = self._cursor(doing)
            try:
                cursor.execute("begin transaction").fetchall()
                try:
                    yield cursor
                    cursor.execute("commit").fetchall()
                except BaseException:
                    self._roll_back(cursor)
                    raise
            except duckdb.Error as error:
                raise store_error(error, doing) from error
            finally:
                cursor.close()

    @staticmethod
    def _roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
        try:
            cursor.execute("rollback").fetchall()
        except duckdb.Error:
            # A failed commit has already ended the transaction; the first error is the one to report.
            return

    @property
    def is_closed(self) -> bool:
        """Say whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Wait for the writer, fold the log into the file and let go of it; a second call does nothing."""
        with self._write_lock, self._root_lock:
            if not self._is_closed:
                self._is_closed = True
                self._root.close()


def open_database(path: str | Path, *, read_only: bool = False, wait_s: float = LOCK_WAIT_S) -> Database:
    """
    Open the file at `path` (created when missing, with its folder), waiting up to `wait_s` while it is locked.

    Raises:
        StoreLockedError: Another process holds it; names the PID where the system says it.
        StoreVersionError: The file is no DuckDB file, or one that this DuckDB cannot read.
        StoreError: Missing (read_only), no permission, or open in this process in the other mode.
    """
    is_memory = str(path) == MEMORY
    name = MEMORY if is_memory else str(Path(path).expanduser().resolve())
    if not is_memory:
        _check_place(Path(name), read_only=read_only)
    give_up_at = time.monotonic() + wait_s
    pause_s = 0.05
    while True:
        try:
            connection = duckdb.connect(
                name,
                read_only=read_only and not is_memory,
                config={
                    "memory_limit": MEMORY_LIMIT,
                    "wal_autocheckpoint": LOG_LIMIT,
                    # Look at every value of a text or list column before choosing its type: a rare one missed by a
                    # sample would fail the whole batch.
                    "pandas_analyze_sample": "1000000000",
                    # No extension is needed, and a look for one would stall for seconds on a closed network.
                    "autoinstall_known_extensions": "false",
                    "autoload_known_extensions": "false",
                },
            )
        except duckdb.Error as error:
            failure = _open_error(error, name)
            if not isinstance(failure, StoreLockedError) or time.monotonic() + pause_s > give_up_at:
                raise failure from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.5)
        else:
            return Database(connection, name, is_read_only=read_only and not is_memory)


def _check_place(path: Path, *, read_only: bool) -> None:
    if path.is_dir():
        raise StoreError(f"store: {path} is a folder; name a file in it, for example {path / 'kvscope.duckdb'}")
    if read_only and not path.exists():
        raise StoreError(f"store: there is no file {path}; `kvscope serve` and `kvscope collect` make one")
    if read_only and path.stat().st_size == 0:
        raise StoreError(f"store: {path} is empty, no store; `kvscope serve` and `kvscope collect` make one")
    if not read_only:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store: cannot make the folder {path.parent}: {error.strerror}") from error


def _open_error(error: duckdb.Error, name: str) -> StoreError:
    said = str(error).splitlines()[0]
    if "Could not set lock" in said:
        holder = _HOLDER.search(said)
        who = f"process {holder['pid']} ({Path(holder['program']).name})" if holder else "another process"
        return StoreLockedError(
            f"store: {name} is in use by {who}; stop that process first, or ask it for the data over HTTP "
            "(GET /api/export), because DuckDB lets only one process in while one writes",
            int(holder["pid"]) if holder else None,
        )
    if "different configuration" in said:
        return StoreError(f"store: {name} is already open in this process in the other mode; share that Store instead")
    if "not a valid DuckDB" in said or isinstance(error, duckdb.SerializationException):
        return StoreVersionError(f"store: {name} is not a DuckDB file; name another file or move this one away")
    if "storage version" in said or "version number" in said:
        return StoreVersionError(f"store: {name} was written by another DuckDB: {said}")
    return store_error(error, f"opening {name}")

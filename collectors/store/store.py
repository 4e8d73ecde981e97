"""
The store as its callers see it: `open_store`, then append, read, maintain, export, close.

Its parts are one module each: `writes`, `records`, `reads`, `histories`, `rollups` and `retention`, `export`.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from collectors.errors import StoreError
from collectors.store.batch import CycleBatch
from collectors.store.connection import LOCK_WAIT_S, MEMORY, Database, open_database
from collectors.store.export import Exports
from collectors.store.histories import Histories
from collectors.store.migrations import migrate
from collectors.store.records import Records
from collectors.store.retention import DEFAULT_RETENTION, Retention, forget
from collectors.store.rollups import roll_up
from collectors.store.writes import Writes

_LOG = logging.getLogger(__name__)

ROLL_UP_EVERY_S: Final = 30.0
"""Chosen: planning a roll-up costs as much as three buckets of it; until then reads take the newest part from raw."""
FORGET_EVERY_S: Final = 60.0
"""Chosen: small deletes, often (measured 2.5 ms)."""
_FAR_AT_S: Final = 2.0**36


class Store(Writes, Records, Histories, Exports):
    """
    One KVScope store. Any thread may call any method; writes queue, reads do not wait for them.

    Attributes:
        maintenance_problem: Why tiers or retention could not be looked after at the last try, or None.
    """

    def __init__(self, database: Database, retention: Retention = DEFAULT_RETENTION) -> None:
        self._database = database
        self._retention = retention
        self._stored_findings = {}
        self._stored_buckets = {}
        # Who is known already is not stored again at each start.
        self._known_workers = self.workers(_FAR_AT_S)
        self._rolled_up_at_s: float | None = None
        self._forgot_at_s: float | None = None
        self.maintenance_problem: str | None = None

    @property
    def path(self) -> str:
        """Return the file's absolute path, or `:memory:`."""
        return self._database.path

    @property
    def is_read_only(self) -> bool:
        """Say whether the store was opened to read."""
        return self._database.is_read_only

    def size_bytes(self) -> int | None:
        """Return bytes on disk, the log included; None for a store in memory."""
        if self.path == MEMORY:
            return None
        files = (Path(self.path), Path(f"{self.path}.wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def append_cycle(self, batch: CycleBatch) -> None:
        """
        Store one cycle, whole or not at all, then look after the tiers and retention when that is due.

        A batch that was stored survives a kill of the process at any later moment.

        Raises:
            ValueError: A time in the batch is not finite.
            StoreError: DuckDB refused; nothing of the batch was stored.
        """
        self._store_cycle(batch)
        self._maintain_if_due(batch.cycle_at_s)

    def maintain(self, at_s: float) -> None:
        """Make the tiers up to `at_s` and delete what is too old; StoreError when DuckDB refused."""
        roll_up(self._database, at_s)
        forget(self._database, at_s, self._retention)

    def _maintain_if_due(self, at_s: float) -> None:
        """Look after tiers and retention when due by stored time; problems are kept, not raised."""
        try:
            if _is_due(self._rolled_up_at_s, at_s, ROLL_UP_EVERY_S):
                self._rolled_up_at_s = at_s
                roll_up(self._database, at_s)
            if _is_due(self._forgot_at_s, at_s, FORGET_EVERY_S):
                self._forgot_at_s = at_s
                forget(self._database, at_s, self._retention)
        except StoreError as error:
            # The cycle itself is stored; the next due time tries again, and the Sources page shows this.
            self.maintenance_problem = str(error)
            _LOG.warning("%s", error)
        else:
            self.maintenance_problem = None

    def close(self) -> None:
        """Fold the log into the file and let go of it; a second call does nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()


def _is_due(last_at_s: float | None, at_s: float, every_s: float) -> bool:
    # A clock set back makes it due again, rather than never.
    return last_at_s is None or not 0.0 <= at_s - last_at_s < every_s


def open_store(
    path: str | Path,
    read_only: bool = False,
    *,
    retention: Retention = DEFAULT_RETENTION,
    wait_s: float = LOCK_WAIT_S,
) -> Store:
    """
    Open the store at `path`, or a fresh one in memory for ":memory:"; made or upgraded first unless `read_only`.

    Args:
        path: The DuckDB file.
        read_only: Change nothing. Works only while no process has it open for writing.
        retention: How long to keep what.
        wait_s: How long to wait while another process holds it.

    Raises:
        StoreLockedError: Another process holds it.
        StoreVersionError: No store of ours, of a newer KVScope, or behind and read-only.
        StoreError: It cannot be opened for another reason.
    """
    database = open_database(path, read_only=read_only, wait_s=wait_s)
    try:
        migrate(database)
        return Store(database, retention)
    except BaseException:
        database.close()
        raise

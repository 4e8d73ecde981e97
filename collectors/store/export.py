"""
A stretch of time as a file: Parquet (typed, with units in its metadata) or CSV (times as ISO 8601 in UTC).

The process that owns the store exports while it goes on collecting; any other process is refused with the owner's
PID. `/api/export` of a running KVScope and `kvscope export` take the same words (`parse_export_query`).
"""

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from collectors.errors import StoreError
from collectors.store.connection import Database
from collectors.store.times import to_us
from scoring.model import PoolReading

EXPORT_TABLES: Final = (
    "readings",
    "readings_10s",
    "readings_1min",
    "readings_10min",
    "polls",
    "cycles",
    "findings",
    "router_workers",
    "events",
    "alerts",
)
FORMATS: Final = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv"}
"""Format -> media type."""
EXPORT_LIMIT_S: Final = 600.0
"""Chosen: a day of a large fleet is written well within; a reader gone mad is stopped."""

_AGO = re.compile(r"^-?(?P<count>\d+(?:\.\d+)?)(?P<unit>s|min|m|h|d)$")
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """
    What to export.

    Attributes:
        start_s: First instant, included.
        end_s: Last instant, not included.
        table: One of EXPORT_TABLES.
        format: One of FORMATS.
    """

    start_s: float
    end_s: float
    table: str = "readings"
    format: str = "parquet"

    def __post_init__(self) -> None:
        """Raise ValueError, with what may be written instead, for a request that cannot be met."""
        if self.table not in EXPORT_TABLES:
            raise ValueError(f"table: there is no {self.table!r}; choose one of {', '.join(EXPORT_TABLES)}")
        if self.format not in FORMATS:
            raise ValueError(f"format: there is no {self.format!r}; choose one of {', '.join(FORMATS)}")
        if not self.start_s < self.end_s:
            raise ValueError(f"time range: {instant_text(self.end_s)} is not after {instant_text(self.start_s)}")

    @property
    def media_type(self) -> str:
        """Return the media type of the file."""
        return FORMATS[self.format]

    @property
    def file_name(self) -> str:
        """Return a name for the file: table, first instant, format."""
        return f"kvscope_{self.table}_{datetime.fromtimestamp(self.start_s, UTC):%Y%m%dT%H%M%SZ}.{self.format}"


def instant_text(at_s: float) -> str:
    """
    Return epoch seconds as `2026-11-30T14:05:00Z`.

    Raises:
        ValueError, OverflowError, OSError: No calendar reaches there.
    """
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def parse_instant(text: str, now_s: float) -> float:
    """
    Return epoch seconds of `now`, an age (`15min`, `24h`, `7d`), ISO 8601 (UTC unless it says otherwise) or a number.

    Raises:
        ValueError: It is none of these; the text says what may be written.
    """
    word = text.strip()
    try:
        at_s = _instant_of(word, now_s)
        instant_text(at_s)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"time: cannot read {text[:40]!r}; write 2026-11-30T14:05:00Z, epoch seconds, an age such as 15min or "
            "24h, or now"
        ) from None
    return at_s


def _instant_of(word: str, now_s: float) -> float:
    if word == "now":
        return now_s
    ago = _AGO.match(word)
    if ago:
        return now_s - float(ago["count"]) * _UNIT_S[ago["unit"]]
    try:
        return float(word)
    except ValueError:
        moment = datetime.fromisoformat(word)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_export_query(query: Mapping[str, str], now_s: float) -> ExportRequest:
    """
    Return the request of `from`, `to`, `table`, `format` as they stand in a URL or on the command line.

    Defaults: the last hour of readings as Parquet. ValueError says what is wrong with which word.
    """
    return ExportRequest(
        start_s=parse_instant(query.get("from") or "1h", now_s),
        end_s=parse_instant(query.get("to") or "now", now_s),
        table=query.get("table") or "readings",
        format=query.get("format") or "parquet",
    )


def _unit_notes() -> str:
    """Return JSON: signal -> kind and meaning, for the metadata of a Parquet file."""
    return json.dumps(
        {
            field.name: {"kind": field.metadata["kind"], "help": field.metadata["help"]}
            for field in fields(PoolReading)
            if field.metadata
        }
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Exports:
    """Exports; mixed into `Store`."""

    _database: Database

    def export_file(self, request: ExportRequest, path: str | Path) -> int:
        """
        Write what `request` asks for to `path`, whole or not at all, and return the number of rows.

        Columns are those of the table; `ts` is UTC. A file that exists is replaced.

        Raises:
            StoreError: It cannot be written there, or took too long.
        """
        target = Path(path).expanduser()
        if not target.parent.is_dir():
            raise StoreError(f"there is no folder {target.parent}; make it or name another")
        if target.is_dir():
            raise StoreError(f"{target} is a folder; name a file in it, for example {request.file_name}")
        # Beside the target, so that taking its place is one step and no reader meets half a file.
        draft = target.with_name(f".{target.name}.part")
        try:
            count = self._copy(request, draft)
            draft.replace(target)
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)
        return count

    def export_bytes(self, request: ExportRequest) -> bytes:
        """Return the file that `export_file` would write."""
        with tempfile.TemporaryDirectory(prefix="kvscope-export-") as folder:
            path = Path(folder) / request.file_name
            self._copy(request, path)
            return path.read_bytes()

    def _copy(self, request: ExportRequest, path: Path) -> int:
        if request.format == "parquet":
            options = (
                "format parquet, compression zstd, kv_metadata {"
                f"kvscope_table: {_quoted(request.table)}, kvscope_time: 'ts and *_at are UTC', "
                f"kvscope_signals: {_quoted(_unit_notes())}}}"
            )
        else:
            options = "format csv, header, timestampformat '%Y-%m-%dT%H:%M:%S.%fZ'"
        with self._database.reading("exporting", EXPORT_LIMIT_S) as cursor:
            rows = cursor.execute(
                f"copy (select * from {request.table} where ts >= make_timestamp(?) and ts < make_timestamp(?)) "  # noqa: S608
                f"to {_quoted(str(path))} ({options})",
                [to_us(request.start_s), to_us(request.end_s)],
            ).fetchall()
        return int(rows[0][0])

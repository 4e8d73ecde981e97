"""
`kvscope export`: a stretch of time out of a store file, as Parquet or CSV.

While a KVScope collects into the file, no other process may open it: then this says who holds it and how to get the
same file from that process, or fetches it there with `--server`.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import httpx

from collectors.errors import KvscopeError, StoreError, StoreLockedError
from collectors.store import EXPORT_TABLES, FORMATS, ExportRequest, instant_text, open_store, parse_export_query
from commands import refuse

HELP = "Write a stretch of time out of a store to a Parquet or CSV file."
EXIT_FAILED = 1
EXIT_NOT_REACHED = 2
LOCK_WAIT_S = 1.0
"""Chosen: enough for a process that is just ending, short for a person who waits."""
DEFAULT_SERVER = "http://127.0.0.1:8501"
TOKEN_VARIABLE = "KVSCOPE_TOKEN"  # noqa: S105 # the name of a variable, not a token


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvscope export`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", metavar="FILE", help="the store file, when no KVScope is running on it")
    source.add_argument(
        "--server",
        metavar="URL",
        help=f"a running KVScope, for example {DEFAULT_SERVER} (its token, if it asks for one, in {TOKEN_VARIABLE})",
    )
    times = "2026-11-30T14:05:00Z (UTC unless it says otherwise), epoch seconds, an age such as 15min or 24h, or now"
    parser.add_argument("--from", dest="from_", default="1h", metavar="TIME", help=f"first instant: {times}")
    parser.add_argument("--to", default="now", metavar="TIME", help="instant after the last (default now)")
    parser.add_argument("--table", default="readings", choices=EXPORT_TABLES, help="what to export (default readings)")
    parser.add_argument("--format", default="parquet", choices=list(FORMATS), help="default parquet")
    parser.add_argument("--out", metavar="FILE", help="where to write (default a name made of table and time)")


def run(args: argparse.Namespace) -> int:
    """Write the file; 1 when it could not be, 2 when the store could not be reached, 3 when a time makes no sense."""
    query = {"from": args.from_, "to": args.to, "table": args.table, "format": args.format}
    try:
        request = parse_export_query(query, time.time())
    except ValueError as error:
        return refuse("export", error)
    out = Path(args.out or request.file_name)
    try:
        if args.server:
            return _from_server(args.server, request, out)
        return _from_file(args.store, request, out)
    except StoreLockedError as error:
        holder = f"process {error.holder_pid}" if error.holder_pid else "another process"
        return refuse(
            "export",
            f"{args.store} is in use by {holder}; if that is a running KVScope, add "
            f"`--server {DEFAULT_SERVER}` in place of `--store` (or fetch {_url(DEFAULT_SERVER, request)}), "
            "else stop it first",
            EXIT_NOT_REACHED,
        )
    except KvscopeError as error:
        return refuse("export", error, EXIT_FAILED)


def _from_file(store_path: str, request: ExportRequest, out: Path) -> int:
    with open_store(store_path, read_only=True, wait_s=LOCK_WAIT_S) as store:
        count = store.export_file(request, out)
        span = store.time_span()
    if not count:
        reach = "is empty" if span is None else f"reaches from {instant_text(span[0])} to {instant_text(span[1])}"
        print(f"kvscope export: no rows in that time; the store {reach}", file=sys.stderr)
    print(f"{out}: {count} rows of {request.table}")
    return 0


def _from_server(server: str, request: ExportRequest, out: Path) -> int:
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    draft = out.with_name(f".{out.name}.part")
    try:
        with httpx.stream("GET", _url(server, request), headers=headers, timeout=60.0) as answer:
            if answer.status_code != httpx.codes.OK:
                said = answer.read().decode("utf-8", "replace")[:300]
                return refuse("export", f"{server} answered {answer.status_code}: {said}", EXIT_FAILED)
            with draft.open("wb") as file:
                for part in answer.iter_bytes():
                    file.write(part)
        draft.replace(out)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return refuse("export", f"cannot reach {server}: {error}; is KVScope serving there?", EXIT_NOT_REACHED)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    print(f"{out}: {out.stat().st_size} bytes of {request.table}")
    return 0


def _url(server: str, request: ExportRequest) -> str:
    query = httpx.QueryParams(
        {"from": request.start_s, "to": request.end_s, "table": request.table, "format": request.format}
    )
    return f"{server.rstrip('/')}/api/export?{query}"

"""
Agent sessions as recorded by kv-cache-tester: one JSON document a session, sub-agents nested inside.

Block ids are local to a session and are kept apart; `len(hash_ids)` is the prompt's blocks rounded down. Several
documents may follow each other in one input (files joined); every session starts at its own time zero.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from simulation.trace import Trace, TraceError, TraceFormat, TraceOptions
from simulation.trace_json import IdSpaces, add_session_request
from simulation.trace_rows import BadRowError, RowTable, seconds, whole

NUMBERED = Iterable[tuple[int, str]]
NESTING_MAX: Final = 16


def read_sessions(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read one or more session documents; the row number of a request is its place among all requests met.

    Raises:
        TraceError: the text is no JSON, or no document of this kind.
    """
    text = "\n".join(line for _, line in rows)
    table = RowTable("kv-cache-tester", options.hash_block_tokens or 64)
    spaces = IdSpaces()
    reader = json.JSONDecoder()
    at = 0
    session_count = 0
    number = 0

    def walk(items: object, session: str, group: str, start_s: float, depth: int) -> None:
        nonlocal number
        if not isinstance(items, list) or depth > NESTING_MAX:
            number += 1
            table.skip(number, "requests are no list, or nested too deep")
            return
        sub_count = 0
        for item in items:
            if isinstance(item, Mapping) and item.get("type") == "subagent":
                sub_count += 1
                own_start = item.get("t", 0.0)
                begin = start_s + (float(own_start) if isinstance(own_start, int | float) else 0.0)
                walk(item.get("requests"), session, f"{group}:sub{sub_count}", begin, depth + 1)
                continue
            number += 1
            if options.max_rows is not None and number > options.max_rows:
                table.note(f"stopped after {options.max_rows} rows, as asked")
                return
            try:
                if not isinstance(item, Mapping):
                    raise BadRowError("not a JSON object")
                add_session_request(
                    table,
                    number,
                    spaces,
                    session=session,
                    item={**item, "group": group},
                    prompt=whole(item.get("in"), "in", at_least=1),
                    output=whole(item.get("out"), "out", at_least=0),
                    time=start_s + seconds(item.get("t"), "t"),
                )
            except BadRowError as bad:
                table.skip(number, str(bad))

    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            document, at = reader.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"session {session_count + 1} is no whole JSON document: {error}") from None
        documents: list[Any] = document if isinstance(document, list) else [document]
        for one in documents:
            session_count += 1
            if not isinstance(one, Mapping) or "requests" not in one:
                raise TraceError(f"session {session_count} has no `requests` list")
            block = one.get("block_size", 64)
            if options.hash_block_tokens is None and isinstance(block, int) and block > 0:
                if session_count > 1 and block != table.hash_block_tokens:
                    raise TraceError(
                        f"session {session_count} has blocks of {block} tokens, those before"
                        f" {table.hash_block_tokens}: read them apart"
                    )
                table.hash_block_tokens = block
            walk(one["requests"], str(one.get("id", session_count)), "main", 0.0, 0)
    if session_count > 1:
        table.note(f"{session_count} sessions, each from its own time zero: stagger them to spread their starts")
    return table.finish(tenant="session")


def _is_session(lines: list[str]) -> bool:
    head = "".join(lines)[:4000]
    return '"requests"' in head and ('"hash_id_scope"' in head or '"block_size"' in head)


SESSION_FORMATS: Final = (
    TraceFormat(
        name="kv-cache-tester",
        summary="agent session documents with nested sub-agents",
        recognises=_is_session,
        read=read_sessions,
    ),
)

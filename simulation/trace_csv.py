"""
Traces in CSV: Azure's LLM inference traces (2023, 2024) and BurstGPT (both releases).

Neither carries prefix identities: reuse is unknown, and reports say so.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

from simulation.trace import Trace, TraceError, TraceFormat, TraceOptions
from simulation.trace_rows import BadRowError, RowTable, seconds, whole

NUMBERED = Iterable[tuple[int, str]]
NANOSECONDS_PER_S: Final = 1_000_000_000


def instant_ns(text: str) -> tuple[int, bool]:
    """
    Parse `YYYY-mm-dd HH:MM:SS[.fraction][zone]` with up to nine fractional digits.

    Returns:
        Nanoseconds since the epoch (no zone: taken as UTC), and whether a zone was given. Datetime alone keeps six
        digits and would make rows 100 ns apart equal.

    Raises:
        BadRowError: it is no such instant.
    """
    text = text.strip()
    head, tail = text[:19], text[19:]
    fraction = ""
    if tail.startswith("."):
        end = 1
        while end < len(tail) and tail[end].isdigit():
            end += 1
        fraction, tail = tail[1:end], tail[end:]
    if len(fraction) > 9:
        raise BadRowError("TIMESTAMP has more than nine fractional digits")
    try:
        moment = datetime.fromisoformat(head + (tail.strip() or "+00:00"))
    except ValueError:
        raise BadRowError("TIMESTAMP is no date and time") from None
    whole_s = int(moment.timestamp())
    return whole_s * NANOSECONDS_PER_S + int(fraction.ljust(9, "0") or 0), bool(tail.strip())


def _columns(header: list[str], wanted: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, int]:
    known = {name.strip().casefold(): index for index, name in enumerate(header)}
    missing = [name for name in wanted if name.casefold() not in known]
    if missing:
        also = [name for name in optional if name.casefold() not in known]
        tail = f" (optional and missing too: {', '.join(also)})" if also else ""
        raise TraceError(
            f"row 1: the columns {', '.join(missing)} are missing{tail}; found: {', '.join(header)}."
            " Add them or name another format"
        )
    return {name: known[name.casefold()] for name in (*wanted, *optional) if name.casefold() in known}


def _records(rows: NUMBERED) -> Iterator[tuple[int, list[str]]]:
    for number, text in rows:
        try:
            yield number, next(csv.reader([text], strict=True))
        except (csv.Error, StopIteration):
            yield number, []


def read_csv(
    rows: NUMBERED,
    table: RowTable,
    options: TraceOptions,
    wanted: tuple[str, ...],
    optional: tuple[str, ...],
    take: Callable[[int, dict[str, str]], None],
    *,
    is_telling_unused: bool = True,
) -> None:
    """
    Feed each record to `take` by column name; columns may stand in any order and others may stand between.

    Raises:
        TraceError: a wanted column is missing from the header.
    """
    records = _records(rows)
    _, header = next(iter(records))
    places = _columns(header, wanted, optional)
    if is_telling_unused:
        unused = [
            name.strip() for name in header if name.strip().casefold() not in {each.casefold() for each in places}
        ]
        if unused:
            table.note(f"columns not used: {', '.join(unused[:8])}{', ...' if len(unused) > 8 else ''}")
    for number, record in records:
        if options.max_rows is not None and len(table) + table.skipped_count >= options.max_rows:
            table.note(f"stopped after {options.max_rows} rows, as asked")
            break
        try:
            if len(record) != len(header):
                raise BadRowError(f"{len(header)} columns expected, another number found (cut or badly quoted)")
            take(number, {name: record[place].strip() for name, place in places.items()})
        except BadRowError as bad:
            table.skip(number, str(bad))


def read_azure(rows: NUMBERED, options: TraceOptions) -> Trace:
    """Read Azure's LLM inference CSV: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`; no zone is taken as UTC."""
    table = RowTable("azure", options.hash_block_tokens or 64)
    origin_ns: int | None = None

    def take(row: int, item: dict[str, str]) -> None:
        nonlocal origin_ns
        at_ns, has_zone = instant_ns(item["TIMESTAMP"])
        prompt = whole(item["ContextTokens"], "ContextTokens", at_least=1)
        output = whole(item["GeneratedTokens"], "GeneratedTokens", at_least=0)
        if not has_zone:
            table.note("the times carry no zone: taken as UTC")
        if origin_ns is None:
            # Counting from the first row keeps all 100 ns digits in a float.
            origin_ns = at_ns
        table.add(
            row,
            arrival_s=(at_ns - origin_ns) / NANOSECONDS_PER_S,
            prompt_tokens=prompt,
            output_tokens=output,
        )

    read_csv(rows, table, options, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), (), take)
    return table.finish()


def read_burstgpt(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read BurstGPT CSV: `Timestamp` in seconds, `Request tokens`, `Response tokens`, labels; later releases put
    `Session ID` and `Elapsed time` in the middle.

    `Response tokens` 0 marks a failed request: left out unless failures are kept, and counted. The total column
    is not used; rows whose total disagrees are noted.
    """
    table = RowTable("burstgpt", options.hash_block_tokens or 64)
    scale = 1e-3 if options.time_unit == "ms" else 1.0
    odd_total_count = 0
    failed_count = 0
    met_count = 0
    turns: dict[str, tuple[int, int]] = {}
    next_id = 0

    def turn_ids(session: str, prompt: int, output: int) -> list[int]:
        """Let a turn share the whole blocks of the turn before it (its prompt and answer), as an estimate."""
        nonlocal next_id
        shared_blocks = 0
        first = next_id
        if session in turns:
            first_before, tokens_before = turns[session]
            shared_blocks = min(tokens_before, prompt - 1) // table.hash_block_tokens
            first = first_before
        blocks = prompt // table.hash_block_tokens
        ids = [first + index for index in range(min(shared_blocks, blocks))]
        fresh = blocks - len(ids)
        ids.extend(range(next_id, next_id + fresh))
        next_id += fresh
        if ids:
            turns[session] = (ids[0], prompt + output)
        return ids

    def take(row: int, item: dict[str, str]) -> None:
        nonlocal odd_total_count, failed_count, met_count
        met_count += 1
        time = seconds(item["Timestamp"] or None, "Timestamp") * scale
        prompt = whole(item["Request tokens"], "Request tokens", at_least=1)
        output = whole(item["Response tokens"], "Response tokens", at_least=0)
        total = item.get("Total tokens")
        if total and total != str(prompt + output):
            odd_total_count += 1
        if output == 0:
            failed_count += 1
            if not options.keep_failures:
                raise BadRowError("Response tokens is 0: a failed request, not replayed")
        session = item.get("Session ID", "")
        labels = {"model": item.get("Model", ""), "log_type": item.get("Log Type", "")}
        if "Session ID" in item:
            labels["session"] = session
        ids = turn_ids(session, prompt, output) if options.are_turns_reused and session else None
        table.add(row, arrival_s=time, prompt_tokens=prompt, output_tokens=output, hash_ids=ids, categories=labels)

    wanted = ("Timestamp", "Model", "Request tokens", "Response tokens")
    read_csv(rows, table, options, wanted, ("Session ID", "Elapsed time", "Total tokens", "Log Type"), take)
    if failed_count:
        kept = "kept as asked" if options.keep_failures else "left out"
        table.note(f"{failed_count} of {met_count} failed ({kept}): their Response tokens is 0")
    if odd_total_count:
        table.note(f"{odd_total_count} row(s) whose Total tokens is not the sum of both: the column is not used")
    if options.are_turns_reused:
        table.note("reuse between turns of a session is an estimate: at most the turn before, prompt and answer")
    return table.finish(tenant="session")


def header_has(*names: str) -> Callable[[list[str]], bool]:
    """Return what recognises a header that has all these columns."""
    wanted = {name.casefold() for name in names}
    return lambda lines: wanted <= {name.strip().strip('"').casefold() for name in lines[0].split(",")}


CSV_FORMATS: Final = (
    TraceFormat(
        name="azure",
        summary="Azure LLM inference CSV (TIMESTAMP, ContextTokens, GeneratedTokens)",
        recognises=header_has("ContextTokens"),
        read=read_azure,
    ),
    TraceFormat(
        name="burstgpt",
        summary="BurstGPT CSV (Timestamp, Model, Request tokens, Response tokens, ...)",
        recognises=header_has("Request tokens"),
        read=read_burstgpt,
    ),
)

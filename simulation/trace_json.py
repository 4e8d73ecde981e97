"""
Traces of one JSON object a line: Mooncake, RAGPulse, agent sessions made flat, SGLang's exported request
metrics and request log, recorded vLLM runs, and our own.

Each reader says in its docstring what the file's fields mean and how its oddities are treated.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from simulation.trace import MOONCAKE_BLOCK_TOKENS, Trace, TraceFormat, TraceOptions
from simulation.trace_rows import BadRowError, RowTable, seconds, whole

NUMBERED = Iterable[tuple[int, str]]
_DECODE = msgspec.json.Decoder()
MOONCAKE_FIELDS: Final = frozenset(
    ("timestamp", "input_length", "output_length", "hash_ids", "model", "type", "chat_id", "session_id")
)
CANDIDATE_BLOCK_TOKENS: Final = (512, 256, 128, 64, 32, 16)


def parse_object(text: str) -> dict[str, Any]:
    """
    Parse one JSON object.

    Raises:
        BadRowError: it is no JSON, or JSON of another kind.
    """
    try:
        value = _DECODE.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise BadRowError("not a JSON object (cut or malformed)") from None
    if not isinstance(value, dict):
        raise BadRowError("not a JSON object (cut or malformed)")
    return value


def first_object(lines: list[str]) -> dict[str, Any]:
    """Return the first JSON object among opening lines, or an empty one."""
    for line in lines:
        try:
            return parse_object(line[line.find("{") :] if "{" in line else line)
        except BadRowError:
            continue
    return {}


def read_rows(
    rows: NUMBERED, table: RowTable, options: TraceOptions, take: Callable[[int, dict[str, Any]], None]
) -> None:
    """Feed each line's object to `take`; a BadRowError it raises is counted under its message."""
    for row, text in rows:
        if options.max_rows is not None and len(table) + table.skipped_count >= options.max_rows:
            table.note(f"stopped after {options.max_rows} rows, as asked")
            break
        try:
            take(row, parse_object(text))
        except BadRowError as bad:
            table.skip(row, str(bad))


def _blocks_up(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


def read_mooncake(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512-token blocks.

    `len(hash_ids)` is the prompt's blocks rounded up, so the last block is mostly part filled. A row with more
    ids than its prompt has blocks is refused: it would claim hits longer than the prompt. Fractional times that
    would make the whole trace shorter than a second are taken as seconds, and said so.
    """
    block_tokens = options.hash_block_tokens or MOONCAKE_BLOCK_TOKENS
    table = RowTable("mooncake", block_tokens)
    raw_times: list[float] = []
    counts_by_block = dict.fromkeys(CANDIDATE_BLOCK_TOKENS, 0)
    short_count = 0
    checked_count = 0
    is_fractional = False
    unknown: set[str] = set()

    def take(row: int, item: dict[str, Any]) -> None:
        nonlocal short_count, checked_count, is_fractional
        if "input_length" not in item:
            raise BadRowError("no input_length: a row of text needs a tokenizer, which is not part of the trace")
        if "timestamp" not in item:
            raise BadRowError("no timestamp: usable for closed-loop replay only")
        time = seconds(item["timestamp"], "timestamp")
        prompt = whole(item["input_length"], "input_length", at_least=1)
        output = whole(item.get("output_length"), "output_length", at_least=0)
        ids = item.get("hash_ids") or ()
        if not isinstance(ids, list | tuple) or any(type(part) is not int for part in ids):
            raise BadRowError("hash_ids are not a list of whole numbers")
        if ids:
            checked_count += 1
            for candidate in CANDIDATE_BLOCK_TOKENS:
                counts_by_block[candidate] += len(ids) == _blocks_up(prompt, candidate)
        if len(ids) > _blocks_up(prompt, block_tokens):
            raise BadRowError(
                f"more hash_ids than its prompt has blocks of {block_tokens} tokens (say another block size)"
            )
        if len(set(ids)) != len(ids):
            raise BadRowError("a hash id twice in one prompt: ids must stand for a block and all before it")
        unknown.update(name for name in item if name not in MOONCAKE_FIELDS)
        short_count += 0 < len(ids) < prompt // block_tokens
        is_fractional = is_fractional or time != int(time)
        labels: dict[str, str] = {
            name: str(item[name]) for name in ("model", "type", "chat_id", "session_id") if name in item
        }
        table.add(row, arrival_s=time, prompt_tokens=prompt, output_tokens=output, hash_ids=ids, categories=labels)
        raw_times.append(time)

    read_rows(rows, table, options, take)
    unit = options.time_unit
    if unit == "auto":
        span = max(raw_times, default=0.0) - min(raw_times, default=0.0)
        unit = "s" if is_fractional and span < 1000.0 else "ms"
        if unit == "s":
            table.note(
                f"times have fractions and span {span:g}: taken as seconds, not the format's milliseconds"
                f" (as milliseconds {len(table)} requests would arrive within {span:g} ms); --time-unit says otherwise"
            )
    if unit == "ms":
        table.divide_times(1000.0)
    if unknown:
        table.note(f"fields not used: {', '.join(sorted(unknown)[:8])}{', ...' if len(unknown) > 8 else ''}")
    if short_count:
        table.note(f"{short_count} row(s) name fewer whole blocks than their prompt has: the rest is taken as new")
    fitting = [size for size, count in counts_by_block.items() if checked_count and count == checked_count]
    if fitting and block_tokens not in fitting:
        table.note(
            f"every row's hash_ids fit blocks of {fitting[0]} tokens, not {block_tokens}: say --block-size {fitting[0]}"
        )
    return table.finish(tenant="session_id")


def read_ragpulse(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read RAGPulse JSONL: `timestamp` a string of seconds, `hash_ids` an object of content ids by part.

    The ids name pieces of content of varying length whose token counts lie in other files; passages change
    order, so they are no prefix hashes. Prefix reuse is therefore unknown here.
    """
    table = RowTable("ragpulse", options.hash_block_tokens or MOONCAKE_BLOCK_TOKENS)
    scale = 1e-3 if options.time_unit == "ms" else 1.0

    def take(row: int, item: dict[str, Any]) -> None:
        table.add(
            row,
            arrival_s=seconds(item.get("timestamp"), "timestamp") * scale,
            prompt_tokens=whole(item.get("input_length"), "input_length", at_least=1),
            output_tokens=whole(item.get("output_length"), "output_length", at_least=0),
            categories={"session": str(item.get("session_id", ""))},
        )

    read_rows(rows, table, options, take)
    table.note("content ids without token lengths: pieces are reused out of order, prefix reuse cannot be told")
    return table.finish(tenant="session")


def read_sessions_flat(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read agent sessions made flat: one request a line with `trace`, `group`, `t` (s), local block ids.

    Ids count within one session, so they are kept apart by session; a partial last block has no id (floor).
    """
    table = RowTable("kv-cache-tester-flat", options.hash_block_tokens or 64)
    spaces = IdSpaces()

    def take(row: int, item: dict[str, Any]) -> None:
        prompt = whole(item.get("input_length"), "input_length", at_least=1)
        add_session_request(
            table, row, spaces, session=str(item.get("trace", "")), item=item, prompt=prompt,
            output=whole(item.get("output_length"), "output_length", at_least=0), time=seconds(item.get("t"), "t"),
        )  # fmt: skip

    read_rows(rows, table, options, take)
    return table.finish(tenant="session")


class IdSpaces:
    """Gives each session's local block ids numbers that no other session has."""

    def __init__(self) -> None:
        """Begin with no session known."""
        self._known: dict[tuple[str, int], int] = {}

    def own(self, session: str, ids: Iterable[int]) -> list[int]:
        """Return global ids for one session's local ones."""
        known = self._known
        return [known.setdefault((session, part), len(known)) for part in ids]


def add_session_request(
    table: RowTable,
    row: int,
    spaces: IdSpaces,
    *,
    session: str,
    item: Mapping[str, Any],
    prompt: int,
    output: int,
    time: float,
) -> None:
    """Add one agent request; raises BadRowError when it claims more blocks than its prompt holds."""
    ids = item.get("hash_ids") or ()
    if not isinstance(ids, list | tuple) or any(type(part) is not int for part in ids):
        raise BadRowError("hash_ids are not a list of whole numbers")
    if len(ids) > _blocks_up(prompt, table.hash_block_tokens):
        raise BadRowError(f"more hash_ids than its prompt has blocks of {table.hash_block_tokens} tokens")
    if output == 0:
        table.note("some requests have no output: they end with their prefill and have no TPOT")
    observed = {
        f"{name}_s": float(item[name])
        for name in ("api_time", "think_time", "ttft")
        if isinstance(item.get(name), int | float) and not isinstance(item.get(name), bool)
    }
    table.add(
        row,
        arrival_s=time,
        prompt_tokens=prompt,
        output_tokens=output,
        hash_ids=spaces.own(session, ids),
        categories={
            "session": session,
            "model": str(item.get("model", "")),
            "group": str(item.get("group", "main")),
        },
        observed=observed,
    )


def read_sglang_metrics(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read SGLang's `--export-metrics-to-file` JSONL: one finished request a line.

    Arrival is `request_received_ts`, else `request_finished_ts - e2e_latency`; a row with neither has no place
    in time and is skipped. Cached tokens are what the engine saw, not a prefix identity: reuse stays unknown.
    """
    table = RowTable("sglang-metrics", options.hash_block_tokens or 64)
    seen: dict[str, int] = {}
    read_rows(rows, table, options, lambda row, item: _add_meta(table, row, item, {}, seen))
    return table.finish(tenant="routing_key")


def read_sglang_log(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read SGLang's JSON request log: `[time] {json}` lines; only `request.finished` events are requests.

    The log's own timestamps are local time without a zone and are not used; arrival comes from the event's meta
    information as in `read_sglang_metrics`.
    """
    table = RowTable("sglang-log", options.hash_block_tokens or 64)
    seen: dict[str, int] = {}
    other_count = 0

    def take(row: int, item: dict[str, Any]) -> None:
        nonlocal other_count
        if item.get("event") != "request.finished":
            other_count += 1
            raise BadRowError("not a request.finished event")
        out = item.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        if not isinstance(meta, dict):
            raise BadRowError("no out.meta_info")
        headers = item.get("headers")
        key = headers.get("x-smg-routing-key", "") if isinstance(headers, dict) else ""
        _add_meta(table, row, meta, {"routing_key": str(key)}, seen)

    def from_brace(numbered: NUMBERED) -> NUMBERED:
        for row, text in numbered:
            at = text.find("{")
            yield row, text[at:] if at >= 0 else text

    read_rows(from_brace(rows), table, options, take)
    return table.finish(tenant="routing_key")


def _add_meta(table: RowTable, row: int, meta: Mapping[str, Any], labels: dict[str, str], seen: dict[str, int]) -> None:
    """Add a finished request; an id met before is the same request told twice (both ends of a pair log it)."""
    name = meta.get("id")
    if isinstance(name, str) and name and seen.setdefault(name, row) != row:
        table.note(f"request ids told twice are taken once (first: rows {seen[name]} and {row})")
        raise BadRowError("a request id met before")
    e2e = meta.get("e2e_latency")
    if meta.get("request_received_ts") is not None:
        arrival_s = seconds(meta["request_received_ts"], "request_received_ts")
    elif meta.get("request_finished_ts") is not None and e2e is not None:
        arrival_s = seconds(meta["request_finished_ts"], "request_finished_ts") - seconds(e2e, "e2e_latency")
        table.note("some arrivals are taken as request_finished_ts - e2e_latency (no request_received_ts)")
    else:
        raise BadRowError("no arrival time (start the server with --enable-metrics to have request_received_ts)")
    observed = {
        ours: float(meta[theirs])
        for ours, theirs in (
            ("e2e_s", "e2e_latency"),
            ("ttft_s", "first_token_latency"),
            ("queue_s", "queue_time"),
            ("cached_tokens", "cached_tokens"),
            ("retraction_count", "num_retractions"),
        )
        if isinstance(meta.get(theirs), int | float) and not isinstance(meta.get(theirs), bool)
    }
    table.add(
        row,
        arrival_s=arrival_s,
        prompt_tokens=whole(meta.get("prompt_tokens"), "prompt_tokens", at_least=1),
        output_tokens=whole(meta.get("completion_tokens"), "completion_tokens", at_least=0),
        categories={**labels, "dp_rank": str(meta.get("dp_rank", ""))},
        observed=observed,
    )


def read_vllm_run(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read a recorded vLLM run: `input_toks`, `output_toks`, `arrival_time` (epoch), engine instants (monotonic).

    The two clocks differ, so only differences within one clock are kept: queueing and TTFT from `queued_ts`.
    """
    table = RowTable("vllm-run", options.hash_block_tokens or 16)

    def take(row: int, item: dict[str, Any]) -> None:
        observed: dict[str, float] = {}
        instants = {
            name: float(item[name])
            for name in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
            if isinstance(item.get(name), int | float)
        }
        queued = instants.get("queued_ts")
        if queued is not None:
            for ours, theirs in (("queue_s", "scheduled_ts"), ("ttft_s", "first_token_ts"), ("e2e_s", "last_token_ts")):
                if theirs in instants:
                    observed[ours] = instants[theirs] - queued
        table.add(
            row,
            arrival_s=seconds(item.get("arrival_time"), "arrival_time"),
            prompt_tokens=whole(item.get("input_toks"), "input_toks", at_least=1),
            output_tokens=whole(item.get("output_toks"), "output_toks", at_least=0),
            observed=observed,
        )

    read_rows(rows, table, options, take)
    return table.finish()


def read_own(rows: NUMBERED, options: TraceOptions) -> Trace:
    """
    Read our own JSONL: `arrival_s`, `prompt_tokens`, `output_tokens`, optional `hash_ids` with `hash_block_tokens`.

    Optional labels: `class`, `tenant`, `model`. All rows must share one hash block size.
    """
    table = RowTable("kvscope", options.hash_block_tokens or 0)

    def take(row: int, item: dict[str, Any]) -> None:
        block = whole(item.get("hash_block_tokens", table.hash_block_tokens or 64), "hash_block_tokens", at_least=1)
        if table.hash_block_tokens in (0, block):
            table.hash_block_tokens = block
        else:
            raise BadRowError(f"hash_block_tokens differs from {table.hash_block_tokens} of the rows before")
        ids = item.get("hash_ids") or ()
        if not isinstance(ids, list | tuple) or any(type(part) is not int for part in ids):
            raise BadRowError("hash_ids are not a list of whole numbers")
        prompt = whole(item.get("prompt_tokens"), "prompt_tokens", at_least=1)
        if len(ids) > _blocks_up(prompt, block):
            raise BadRowError(f"more hash_ids than its prompt has blocks of {block} tokens")
        table.add(
            row,
            arrival_s=seconds(item.get("arrival_s"), "arrival_s"),
            prompt_tokens=prompt,
            output_tokens=whole(item.get("output_tokens"), "output_tokens", at_least=0),
            hash_ids=ids,
            categories={name: str(item[name]) for name in ("class", "tenant", "model") if name in item},
        )

    read_rows(rows, table, options, take)
    table.hash_block_tokens = table.hash_block_tokens or 64
    return table.finish(tenant="tenant")


def write_own(trace: Trace) -> Iterable[str]:
    """Yield the trace as lines of our own format, exact: reading them back gives the same traffic."""
    traffic = trace.traffic
    labels = {name: column for name, column in trace.categories.items() if name in ("class", "tenant", "model")}
    for index in range(len(traffic)):
        item: dict[str, Any] = {
            "arrival_s": float(traffic.arrival_s[index]),
            "prompt_tokens": int(traffic.prompt_tokens[index]),
            "output_tokens": int(traffic.output_tokens[index]),
        }
        ids = traffic.hash_ids[traffic.offsets[index] : traffic.offsets[index + 1]]
        if len(ids):
            item["hash_block_tokens"] = traffic.hash_block_tokens
            item["hash_ids"] = ids.tolist()
        for name, column in labels.items():
            item[name] = column.names[int(column.codes[index])]
        yield msgspec.json.encode(item).decode() + "\n"


def _has(*names: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(name in first_object(lines) for name in names)


def _is_mooncake(lines: list[str]) -> bool:
    for line in lines:
        found = first_object([line])
        if "output_length" in found and "trace" not in found:
            return not isinstance(found.get("hash_ids"), dict)
    return False


JSON_FORMATS: Final = (
    TraceFormat(
        name="sglang-log",
        summary="SGLang JSON request log ([time] {json})",
        recognises=lambda lines: "event" in first_object(lines) and "rid" in first_object(lines),
        read=read_sglang_log,
    ),
    TraceFormat(
        name="sglang-metrics",
        summary="SGLang --export-metrics-to-file JSONL",
        recognises=_has("prompt_tokens", "completion_tokens"),
        read=read_sglang_metrics,
    ),
    TraceFormat(
        name="vllm-run",
        summary="recorded vLLM run, one finished request a line",
        recognises=_has("input_toks", "output_toks"),
        read=read_vllm_run,
    ),
    TraceFormat(
        name="kvscope",
        summary="our own JSONL (arrival_s, prompt_tokens, output_tokens)",
        recognises=_has("arrival_s", "prompt_tokens", "output_tokens"),
        read=read_own,
    ),
    TraceFormat(
        name="kv-cache-tester-flat",
        summary="agent sessions, one request a line",
        recognises=_has("trace", "t", "input_length"),
        read=read_sessions_flat,
    ),
    TraceFormat(
        name="ragpulse",
        summary="RAGPulse JSONL with content ids by part",
        recognises=lambda lines: isinstance(first_object(lines).get("hash_ids"), dict),
        read=read_ragpulse,
    ),
    TraceFormat(
        name="mooncake",
        summary="Mooncake JSONL with hash_ids of 512-token blocks",
        recognises=_is_mooncake,
        read=read_mooncake,
    ),
)

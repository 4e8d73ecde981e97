"""
Recorded traffic, whatever its format: rows in, `Trace` out, every skipped row counted and told.

Readers take an iterable of text lines and open no file. A format is one reader and one entry in `FORMATS`
(`trace_formats`); `read_trace` picks it by the shape of the first rows. Times become seconds from the first
arrival; rows are sorted by arrival, ties in file order.

Read next: `trace_rows` (how rows are collected), `trace_json`, `trace_csv`, `trace_sessions` (the formats),
`workload` (filters, scaling, synthetic traffic).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from scoring.model import FloatArray
from simulation.traffic import IntArray, TrafficArrays

MOONCAKE_BLOCK_TOKENS: Final = 512
"""Block size of the published Mooncake traces (FAST'25 release notes)."""

TimeUnit = Literal["auto", "s", "ms"]


class TraceError(ValueError):
    """The trace cannot be read at all; the message names the row and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """
    What a reader may be told.

    Attributes:
        time_unit: Unit of plain-number timestamps; "auto" takes the format's own and checks it.
        hash_block_tokens: Tokens a hash id stands for; None takes the format's own.
        keep_failures: Keep rows that the recorder marks as failed (as they are never replayed by default).
        are_turns_reused: BurstGPT with session ids: let a later turn reuse the turn before it. An estimate.
        max_rows: Stop after so many rows read; None reads all.
    """

    time_unit: TimeUnit = "auto"
    hash_block_tokens: int | None = None
    keep_failures: bool = False
    are_turns_reused: bool = False
    max_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """
    Rows left out for one reason.

    Attributes:
        reason: A sentence.
        count: How many rows.
        first_rows: Line numbers (from 1) of the first few.
    """

    reason: str
    count: int
    first_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """
    What reading found, for the reader of a result.

    Attributes:
        format: Key in FORMATS.
        row_count: Data rows met, blank lines and headers not counted.
        read_count: Rows that became requests.
        skips: Why the others did not; the counts add up to row_count - read_count.
        notes: Sentences about treatment: sorting, quantised arrivals, units, missing zones.
        span_s: Last arrival less first.
        distinct_time_count: Different arrival times.
        tick_s: Width of the arrival ticks where arrivals are quantised, else None.
        reuse_known_count: Rows whose shared prefixes are known; for the others the hit ratio is unknown, not 0.
    """

    format: str
    row_count: int
    read_count: int
    skips: tuple[Skip, ...]
    notes: tuple[str, ...]
    span_s: float
    distinct_time_count: int
    tick_s: float | None
    reuse_known_count: int

    @property
    def has_reuse(self) -> bool:
        """Say whether shared prefixes are known for every row."""
        return self.read_count > 0 and self.reuse_known_count == self.read_count


@dataclass(frozen=True, slots=True)
class Category:
    """One label column: `names[codes[i]]` is row i's label, "" where the row has none."""

    codes: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """
    Requests of a recording, ready to replay.

    Attributes:
        traffic: The requests, sorted by arrival.
        report: What was skipped and why.
        row_numbers: Line in the file, from 1, by request. Shape (n,).
        categories: Label columns by name: tenant, model, log_type, kind, session, as the format has them.
        observed: What the recorder measured, NaN where it did not: `ttft_s`, `e2e_s`, `cached_tokens`, ... Shape (n,).
    """

    traffic: TrafficArrays
    report: TraceReport
    row_numbers: IntArray
    categories: Mapping[str, Category] = field(default_factory=dict)
    observed: Mapping[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.traffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """
    One way of writing traffic down.

    Attributes:
        name: Stable key.
        summary: One line for help texts.
        recognises: Says whether the first non-blank lines look like it.
        read: Lines -> Trace; raises TraceError when nothing can be read.
    """

    name: str
    summary: str
    recognises: Callable[[list[str]], bool]
    read: Callable[[Iterable[tuple[int, str]], TraceOptions], Trace]


SNIFFED_LINES: Final = 20


def numbered_lines(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    """Yield (line number from 1, text) without line ends, a byte-order mark or NULs; blank lines are left out."""
    for number, line in enumerate(lines, start=1):
        text = line.lstrip("\ufeff") if number == 1 else line
        text = text.rstrip("\r\n")
        if text.strip():
            yield number, text


def read_trace(
    lines: Iterable[str],
    formats: Mapping[str, TraceFormat],
    *,
    format_name: str | None = None,
    options: TraceOptions | None = None,
) -> Trace:
    """
    Read traffic from text lines.

    Args:
        lines: Lines of the file, with or without their ends; read once, never held whole by line formats.
        formats: The registry, usually `trace_formats.FORMATS`.
        format_name: Force a format; None picks the first that recognises the opening rows.
        options: What the reader may be told.

    Raises:
        TraceError: the file is empty, no format fits, or no row is usable.
    """
    options = options or TraceOptions()
    rows = iter(numbered_lines(lines))
    head: list[tuple[int, str]] = []
    for row in rows:
        head.append(row)
        if len(head) >= SNIFFED_LINES:
            break
    if not head:
        raise TraceError("the trace is empty: not one line that is not blank")

    def all_rows() -> Iterable[tuple[int, str]]:
        yield from head
        yield from rows

    if format_name is not None:
        if format_name not in formats:
            raise TraceError(f"no trace format is called {format_name!r}: there are {', '.join(sorted(formats))}")
        chosen = formats[format_name]
    else:
        opening = [text for _, text in head]
        fitting = [candidate for candidate in formats.values() if candidate.recognises(opening)]
        if not fitting:
            shown = opening[0][:120]
            if "\0" in shown or shown.count("\ufffd") > len(shown) // 8:
                raise TraceError("this is no text: a trace is lines of JSON or CSV, as they are or in gzip")
            raise TraceError(
                f"no trace format fits row {head[0][0]} ({shown!r}): there are {', '.join(sorted(formats))};"
                " say which it is"
            )
        chosen = fitting[0]
    return chosen.read(all_rows(), options)


def take(trace: Trace, rows: IntArray, note: str | None = None) -> Trace:
    """Return the trace with only `rows` (indices in the order wanted); arrivals keep their times."""
    traffic = trace.traffic
    lengths = np.diff(traffic.offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    starts = traffic.offsets[rows]
    flat = np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
    picked = TrafficArrays(
        arrival_s=traffic.arrival_s[rows],
        prompt_tokens=traffic.prompt_tokens[rows],
        output_tokens=traffic.output_tokens[rows],
        offsets=offsets,
        hash_ids=traffic.hash_ids[flat],
        hash_block_tokens=traffic.hash_block_tokens,
        class_ids=traffic.class_ids[rows],
        tenant_ids=traffic.tenant_ids[rows],
    )
    report = trace.report
    arrival_s = picked.arrival_s
    report = replace(
        report,
        read_count=len(picked),
        row_count=len(picked) + sum(skip.count for skip in report.skips),
        notes=report.notes if note is None else (*report.notes, note),
        span_s=float(arrival_s.max() - arrival_s.min()) if len(picked) else 0.0,
        distinct_time_count=len(np.unique(arrival_s)),
        reuse_known_count=int(np.count_nonzero(lengths)) if report.reuse_known_count else 0,
    )
    return Trace(
        traffic=picked,
        report=report,
        row_numbers=trace.row_numbers[rows],
        categories={name: Category(column.codes[rows], column.names) for name, column in trace.categories.items()},
        observed={name: column[rows] for name, column in trace.observed.items()},
    )

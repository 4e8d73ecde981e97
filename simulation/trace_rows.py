"""
Collects the rows of a trace: growing typed columns, skips by reason, notes; and makes the `Trace` of them.

Memory grows with the numbers only (a few dozen bytes a row and eight a hash id), never with the text.
"""

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np

from simulation.trace import Category, Skip, Trace, TraceError, TraceReport
from simulation.traffic import IntArray, TrafficArrays

SHOWN_ROWS: Final = 5
TOKENS_MAX: Final = 100_000_000
"""A request of more tokens than this is a mistake of the file; chosen, a thousand times the longest context served."""
QUANTISED_RATIO: Final = 0.5
"""Fewer distinct times than this share of the rows: arrivals are told as quantised. Chosen."""
QUANTISED_ROWS_MIN: Final = 20


class BadRowError(ValueError):
    """One row cannot become a request; the message is the reason it is counted under."""


def whole(value: object, name: str, *, at_least: int) -> int:
    """
    Take a token count from a parsed value.

    Raises:
        BadRowError: it is missing, no whole number, below `at_least` or absurd.
    """
    if value is None:
        raise BadRowError(f"no {name}")
    if isinstance(value, bool):
        raise BadRowError(f"{name} is no number")
    if isinstance(value, str):
        try:
            value = float(value) if value.strip() else None
        except ValueError:
            raise BadRowError(f"{name} is no number") from None
        if value is None:
            raise BadRowError(f"no {name}")
    if not isinstance(value, int | float):
        raise BadRowError(f"{name} is no number")
    if isinstance(value, float) and (not np.isfinite(value) or value != int(value)):
        raise BadRowError(f"{name} is no whole number")
    number = int(value)
    if number < at_least:
        raise BadRowError(f"{name} is below {at_least}")
    if number > TOKENS_MAX:
        raise BadRowError(f"{name} is above {TOKENS_MAX:,}")
    return number


def seconds(value: object, name: str) -> float:
    """
    Take an instant or a duration from a parsed value.

    Raises:
        BadRowError: it is missing or no finite number.
    """
    if value is None:
        raise BadRowError(f"no {name}")
    if isinstance(value, bool):
        raise BadRowError(f"{name} is no number")
    try:
        number = float(value)  # type: ignore[arg-type] # a wrong type is the case caught below.
    except (TypeError, ValueError):
        raise BadRowError(f"{name} is no number") from None
    if not np.isfinite(number):
        raise BadRowError(f"{name} is not finite")
    return number


class RowTable:
    """
    The rows of one trace as they come.

    `add` takes a request, `skip` counts a row that is none, `note` keeps a sentence once. Every data row must
    end in exactly one of `add` and `skip`.
    """

    def __init__(self, format_name: str, hash_block_tokens: int) -> None:
        """Begin an empty table of the named format."""
        self.format_name = format_name
        self.hash_block_tokens = hash_block_tokens
        self._arrival_s = array("d")
        self._prompt = array("q")
        self._output = array("q")
        self._row = array("q")
        self._lengths = array("q")
        self._hash_ids = array("q")
        self._skips: dict[str, tuple[int, list[int]]] = {}
        self._notes: dict[str, None] = {}
        self._codes: dict[str, array[int]] = {}
        self._names: dict[str, dict[str, int]] = {}
        self._observed: dict[str, array[float]] = {}
        self._reuse_known_count = 0
        self.skipped_count = 0

    def __len__(self) -> int:
        return len(self._row)

    def add(
        self,
        row: int,
        *,
        arrival_s: float,
        prompt_tokens: int,
        output_tokens: int,
        hash_ids: Iterable[int] | None = None,
        categories: dict[str, str] | None = None,
        observed: dict[str, float] | None = None,
    ) -> None:
        """Take one request; `hash_ids` None or empty means its shared prefix is not known."""
        before = len(self._hash_ids)
        if hash_ids is not None:
            try:
                self._hash_ids.extend(hash_ids)
            except (TypeError, OverflowError):
                del self._hash_ids[before:]
                raise BadRowError("hash_ids are not whole numbers of 64 bits") from None
        length = len(self._hash_ids) - before
        if length and min(self._hash_ids[before:]) < 0:
            del self._hash_ids[before:]
            raise BadRowError("hash_ids are negative")
        self._reuse_known_count += length > 0
        self._lengths.append(length)
        self._arrival_s.append(arrival_s)
        self._prompt.append(prompt_tokens)
        self._output.append(output_tokens)
        self._row.append(row)
        count = len(self._row)
        for name, label in (categories or {}).items():
            names = self._names.setdefault(name, {"": 0})
            code = names.setdefault(label[:200], len(names))
            column = self._codes.setdefault(name, array("q"))
            column.extend([0] * (count - 1 - len(column)))
            column.append(code)
        for name, number in (observed or {}).items():
            values = self._observed.setdefault(name, array("d"))
            values.extend([float("nan")] * (count - 1 - len(values)))
            values.append(number)

    def skip(self, row: int, reason: str) -> None:
        """Count one row that is no request, and why."""
        count, rows = self._skips.setdefault(reason, (0, []))
        if len(rows) < SHOWN_ROWS:
            rows.append(row)
        self._skips[reason] = (count + 1, rows)
        self.skipped_count += 1

    def note(self, sentence: str) -> None:
        """Keep a sentence for the report, once."""
        self._notes.setdefault(sentence)

    def divide_times(self, divisor: float) -> None:
        """Divide every arrival taken so far: readers learn the unit only at the end."""
        for index, arrival in enumerate(self._arrival_s):
            self._arrival_s[index] = arrival / divisor

    def skips(self) -> tuple[Skip, ...]:
        """Return the reasons with their counts, the most frequent first."""
        ordered = sorted(self._skips.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple(Skip(reason=reason, count=count, first_rows=tuple(rows)) for reason, (count, rows) in ordered)

    def finish(self, *, tenant: str | None = None) -> Trace:
        """
        Sort by arrival, count from the first, and make the trace; `tenant` names the category used as tenant ids.

        Raises:
            TraceError: no row became a request; the message lists the reasons.
        """
        if not len(self):
            reasons = "; ".join(
                f"{skip.reason} ({skip.count} rows, first {skip.first_rows[0]})" for skip in self.skips()
            )
            raise TraceError(f"no usable row in this {self.format_name} trace: {reasons or 'it has no data rows'}")
        count = len(self)
        arrival_s = np.frombuffer(self._arrival_s, np.float64).copy()
        falls = np.flatnonzero(np.diff(arrival_s) < 0)
        if len(falls):
            first = int(np.frombuffer(self._row, np.int64)[falls[0] + 1])
            self.note(f"{len(falls)} row(s) earlier than the row before, sorted by time (first: row {first})")
        order = np.argsort(arrival_s, kind="stable")
        arrival_s = arrival_s[order] - arrival_s[order[0]]
        lengths = np.frombuffer(self._lengths, np.int64)
        starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
        lengths = lengths[order]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        flat = np.repeat(starts[order] - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        hash_ids = np.frombuffer(self._hash_ids, np.int64)[flat] if len(flat) else np.zeros(0, np.int64)
        categories: dict[str, Category] = {}
        for name, codes in self._codes.items():
            codes.extend([0] * (count - len(codes)))
            categories[name] = Category(np.frombuffer(codes, np.int64)[order], tuple(self._names[name]))
        for values in self._observed.values():
            values.extend([float("nan")] * (count - len(values)))
        tenant_ids: IntArray = categories[tenant].codes if tenant in categories else np.zeros(0, np.int64)
        traffic = TrafficArrays(
            arrival_s=arrival_s,
            prompt_tokens=np.frombuffer(self._prompt, np.int64)[order],
            output_tokens=np.frombuffer(self._output, np.int64)[order],
            offsets=offsets,
            hash_ids=hash_ids,
            hash_block_tokens=self.hash_block_tokens,
            tenant_ids=tenant_ids,
        )
        times = np.unique(arrival_s)
        tick_s: float | None = None
        if count >= QUANTISED_ROWS_MIN and 1 < len(times) < QUANTISED_RATIO * count:
            tick_s = float(np.median(np.diff(times)))
            self.note(
                f"arrivals are quantised to about {tick_s:.3g} s: {count} requests on {len(times)} distinct times;"
                " spread them inside the tick to avoid bursts that are not real"
            )
        if self._reuse_known_count == 0:
            self.note("no prefix information: the hit ratio is unknown, and results that rest on reuse are withheld")
        elif self._reuse_known_count < count:
            missing = count - self._reuse_known_count
            self.note(f"{missing} of {count} requests carry no prefix information: their reuse is unknown, not 0")
        report = TraceReport(
            format=self.format_name,
            row_count=count + self.skipped_count,
            read_count=count,
            skips=self.skips(),
            notes=tuple(self._notes),
            span_s=float(arrival_s[-1]),
            distinct_time_count=len(times),
            tick_s=tick_s,
            reuse_known_count=self._reuse_known_count,
        )
        return Trace(
            traffic=traffic,
            report=report,
            row_numbers=np.frombuffer(self._row, np.int64)[order],
            categories=categories,
            observed={name: np.frombuffer(values, np.float64)[order] for name, values in self._observed.items()},
        )

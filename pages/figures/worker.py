"""
The Worker page's figures over time: composition as stacked areas, queues, step time, prefill duty.

A gap in the samples is a gap in the figure: areas and lines end where the data ends and begin where it begins again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pages.figures import live, number, theme
from pages.figures.terms import STACK, TERMS, label
from pages.texts import Say
from scoring.capacity import compose_history
from scoring.model import FloatArray, PoolHistory, PoolSnapshot

QUEUES: Final = (
    ("running_count", "@running", ""),
    ("queue_main_count", "@s2", ""),
    ("queue_bootstrap_count", "@s4", "dash"),
    ("queue_inflight_count", "@s7", "dot"),
    ("queue_prealloc_count", "@s6", "dash"),
    ("queue_transfer_count", "@s3", "dot"),
    ("queue_retracted_count", "@bad", ""),
    ("queue_grammar_count", "@s8", "dot"),
)
"""Signal -> colour and dash; each is drawn only where the engine reports it."""

_GAP_FACTOR: Final = 4.0
_SHORTEST_GAP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Span:
    """What every figure of the page shares: the window, the age of its newest sample, words."""

    start_s: float
    end_s: float
    age_s: float | None
    t: Say
    language: str

    def pack(self, figure: dict[str, Any], title: str) -> bytes:
        """Return the packed figure over this window."""
        # The window is a line nobody sees and not a range: a range that moves on would undo the viewer's zoom.
        ends = [self.start_s * 1e3, self.end_s * 1e3]
        frame = {"type": "scatter", "mode": "lines", "x": ends, "y": [0.0, 0.0], "opacity": 0.0, "showlegend": False}
        figure["data"].append({**frame, "hoverinfo": "skip"})
        return live.pack(
            figure,
            alt=title,
            filename=f"kvscope-{title.lower().replace(' ', '-')}",
            at_s=self.end_s,
            age_s=self.age_s,
            age_text=self.t("common.data_age", age="{age}"),
            events=(),
        )

    def layout(self, height: int, **more: Any) -> dict[str, Any]:
        """Return the layout with the time axis of this window."""
        axis = {
            "type": "date",
        }
        return theme.layout(
            height=height, xaxis=axis, hovermode="x", margin={"l": 8, "r": 12, "t": 30, "b": 36}, **more
        )


def segments(at_s: FloatArray, *columns: FloatArray) -> list[slice]:
    """Return runs of samples without a gap between them in which every column is known."""
    size = len(at_s)
    if size == 0:
        return []
    steps = np.diff(at_s)
    longest = max(_SHORTEST_GAP_S, _GAP_FACTOR * float(np.median(steps))) if len(steps) else _SHORTEST_GAP_S
    known = np.ones(size, dtype=bool)
    for column in columns:
        known &= np.isfinite(column)
    # A run ends at an unknown sample or before a step that is too long.
    runs, begin = [], None
    for place in range(size):
        if known[place] and begin is not None and at_s[place] - at_s[place - 1] > longest:
            runs.append(slice(begin, place))
            begin = place
        elif known[place] and begin is None:
            begin = place
        elif not known[place] and begin is not None:
            runs.append(slice(begin, place))
            begin = None
    if begin is not None:
        runs.append(slice(begin, size))
    return runs


def with_gaps(at_s: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (milliseconds, values) with a NaN put into each gap, so that a line breaks there."""
    if len(at_s) < 2:
        return at_s * 1e3, values
    steps = np.diff(at_s)
    places = np.flatnonzero(steps > max(_SHORTEST_GAP_S, _GAP_FACTOR * float(np.median(steps)))) + 1
    return np.insert(at_s, places, at_s[places - 1] + 0.001) * 1e3, np.insert(values, places, np.nan)


def factor(pool: PoolSnapshot, unit: str) -> float | None:
    """Return what one token of this pool is in `unit`, None where unknown; a share is of the newest usable."""
    if unit == "tokens":
        return 1.0
    if unit == "blocks":
        block = pool.block_size_tokens.value
        return 1.0 / block if block else None
    if unit == "bytes":
        return pool.bytes_per_token.value or None
    usable = pool.composition.usable_tokens.value
    return 1.0 / usable if usable else None


def _told_parts(words: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the parts to stack: free and prefix where both are told, else their sum; 0 where a part is not visible."""
    split = np.isfinite(words["free_tokens"]) & np.isfinite(words["prefix_tokens"])
    parts: dict[str, FloatArray] = {}
    for word in STACK:
        column = words[f"{word}_tokens"]
        if word in ("free", "prefix"):
            column = np.where(split, column, 0.0)
        elif word == "free_or_prefix":
            column = np.where(split, 0.0, column)
        elif word == "unattributed":
            # Where active and in flight are not told apart, all that is held stays unattributed.
            held = words["usable_tokens"] - np.nan_to_num(words["free_or_prefix_tokens"])
            column = np.where(np.isfinite(words["active_tokens"]), column, held)
        parts[word] = np.nan_to_num(column)
    return parts


def composition(pool: PoolSnapshot, history: PoolHistory, unit: str, span: Span) -> bytes:
    """Return the composition over time as stacked areas with committed and usable as lines."""
    words = compose_history(history)
    scale = factor(pool, unit) or 1.0
    at_s = history.at_s
    runs = segments(at_s, words["usable_tokens"], words["used_tokens"])
    base = np.zeros(len(at_s))
    data: list[dict[str, Any]] = []
    for word, column in _told_parts(words).items():
        if not np.any(column > 0):
            continue
        top = base + column * scale
        data.append(_area(word, at_s, base, top, runs, span.language))
        base = top
    data += [
        _line("usable", at_s, words["usable_tokens"] * scale, span.language, width=1.2, dash="dot"),
        _line("committed", at_s, words["committed_tokens"] * scale, span.language, width=2.0),
        _hover(at_s, words, scale, unit, span),
    ]
    tops = np.concatenate([words["usable_tokens"], words["committed_tokens"]])
    top_value = float(np.nanmax(tops)) * scale if np.any(np.isfinite(tops)) else None
    axis: dict[str, Any] = {"rangemode": "tozero", "title": {"text": span.t(f"common.unit_{unit}")}}
    if unit == "share":
        axis |= {"tickformat": ".0%"}
    elif unit == "bytes" and top_value:
        step = number.nice_binary_step(top_value)
        ticks = [step * place for place in range(8) if step * place <= top_value]
        axis |= {"tickmode": "array", "tickvals": ticks, "ticktext": [number.byte_size(tick) for tick in ticks]}
    else:
        axis |= {"tickformat": "~s"}
    figure = {"data": data, "layout": span.layout(330, yaxis=axis, uirevision=f"{unit}")}
    return span.pack(figure, span.t("worker.composition"))


def _area(
    word: str, at_s: FloatArray, low: FloatArray, high: FloatArray, runs: Sequence[slice], language: str
) -> dict[str, Any]:
    """Return one word's area as closed outlines, one a run, so that a gap stays empty."""
    xs: list[FloatArray] = []
    ys: list[FloatArray] = []
    gap = np.array([np.nan])
    for run in runs:
        if run.stop - run.start < 2:
            continue
        xs += [at_s[run] * 1e3, at_s[run][::-1] * 1e3, gap]
        ys += [high[run], low[run][::-1], gap]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": label(word, language),
        "x": np.concatenate(xs) if xs else [],
        "y": np.concatenate(ys).astype(np.float32) if ys else [],
        "fill": "toself",
        "fillcolor": TERMS[word].color,
        "line": {"width": 0, "color": TERMS[word].color},
        "hoverinfo": "skip",
    }
    if word == "unattributed":
        trace["fillpattern"] = {
            "shape": "x",
            "fgcolor": "@paper",
            "bgcolor": TERMS[word].color,
            "size": 7,
            "solidity": 0.3,
        }
    return trace


def _line(
    word: str, at_s: FloatArray, values: FloatArray, language: str, *, width: float, dash: str = "solid"
) -> dict[str, Any]:
    x, y = with_gaps(at_s, values)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(word, language),
        "x": x,
        "y": y.astype(np.float32),
        "connectgaps": False,
        "line": {"color": TERMS[word].color, "width": width, "dash": dash},
        "hoverinfo": "skip",
    }


def _hover(at_s: FloatArray, words: Mapping[str, FloatArray], scale: float, unit: str, span: Span) -> dict[str, Any]:
    """Return an invisible line that says every part of the sample under the pointer."""
    told = (*STACK, "reserved", "committed", "usable", "queued")
    columns = {word: (words[f"{word}_tokens"] * scale).tolist() for word in told}
    texts = []
    for place, instant in enumerate(at_s.tolist()):
        rows = [f"<b>{number.clock(instant)}</b>"]
        for word in told:
            value = columns[word][place]
            if value == value:
                text = number.amount(value, unit)
                rows.append(f"{label(word, span.language)} {span.t.said(text) if unit == 'blocks' else text}")
        texts.append("<br>".join(rows))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": at_s * 1e3,
        "y": (np.nan_to_num(words["used_tokens"]) * scale).astype(np.float32),
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"width": 0.1, "color": "rgba(0,0,0,0)"},
        "showlegend": False,
    }


def queues(history: PoolHistory, span: Span) -> bytes | None:
    """Return requests running and waiting by queue over time, or None where the engine reports none of them."""
    data = []
    for signal, color, dash in QUEUES:
        column = history.columns.get(signal)
        # A queue that stayed empty is left out; running is drawn even at zero, so that idle looks idle.
        least = -1.0 if signal == "running_count" else 0.0
        if column is None or not np.any(column > least):
            continue
        x, y = with_gaps(history.at_s, column)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": span.t(f"worker.{signal}"),
                "x": x,
                "y": y.astype(np.float32),
                "line": {"color": color, "width": 1.8, "dash": dash or "solid", "shape": "hv"},
                "hovertemplate": "%{y:.0f} %{fullData.name}<extra></extra>",
            }
        )
    if not data:
        return None
    axis = {"rangemode": "tozero", "title": {"text": span.t("worker.requests")}}
    return span.pack({"data": data, "layout": span.layout(260, yaxis=axis)}, span.t("worker.queues"))


def single(
    at_s: FloatArray, values: FloatArray, span: Span, *, title: str, word: str, unit: str, height: int = 260
) -> bytes | None:
    """Return one derived series over time, or None where nothing of it is known."""
    if not np.any(np.isfinite(values)):
        return None
    x, y = with_gaps(at_s, values)
    texts = [number.amount(value, unit) for value in y.tolist()]
    if unit == "requests":
        texts = [span.t.said(text) for text in texts]
    color = TERMS[word].color
    axis: dict[str, Any] = {"rangemode": "tozero", "title": {"text": label(word, span.language)}}
    if unit == "share":
        axis |= {"tickformat": ".0%", "range": [0, 1.05]}
    elif unit == "s":
        axis |= {"ticksuffix": " ms"}
        y = y * 1e3
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": label(word, span.language),
        "x": x,
        "y": y.astype(np.float32),
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": color, "width": 1.8},
        "showlegend": False,
    }
    return span.pack({"data": [trace], "layout": span.layout(height, yaxis=axis)}, title)

"""
The Fleet page's bars: one row a pool, the composition stacked in the order of `terms.STACK`.

What is not known is drawn hollow and worded; estimates are hatched, what no word covers is cross-hatched; a pool whose
figures are old is drawn faint with its age beside the name. The mark on a bar is committed; the thin bar that ends
there is what is reserved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pages.figures import live, number, theme
from pages.figures.terms import PROVENANCE, STACK, STATES, TERMS, label
from pages.texts import Say
from scoring.model import Figure, PoolSnapshot, Provenance, Role, SourceState
from scoring.units import tokens_to_bytes

UNITS: Final = ("tokens", "blocks", "bytes", "share")
ROLES: Final = (Role.DECODE, Role.UNIFIED, Role.PREFILL, Role.UNKNOWN)
"""In the order they are drawn: where KV lives longest comes first."""
MOST_ROWS: Final = 128
"""Chosen: more rows than this read better as a filtered list; the page says how many are left out."""
_QUEUE_SPACE: Final = 1.18
_HATCH = {Provenance.ESTIMATED: "/"}


@dataclass(frozen=True, slots=True)
class _Row:
    """One pool in one unit: its parts as (value, figure), None where the unit cannot be had."""

    pool: PoolSnapshot
    usable: float | None
    parts: dict[str, tuple[float, Figure]]
    hollow: float
    committed: float | None
    reserved: float | None
    queued: float | None


def convert(tokens: float | None, pool: PoolSnapshot, unit: str) -> float | None:
    """Return `tokens` of `pool` in `unit`; None when tokens or the conversion are unknown."""
    if tokens is None:
        return None
    if unit == "tokens":
        return tokens
    if unit == "blocks":
        block = pool.block_size_tokens.value
        return tokens / block if block else None
    if unit == "bytes":
        per_token = pool.bytes_per_token.value
        return tokens_to_bytes(tokens, per_token) if per_token else None
    usable = pool.composition.usable_tokens.value
    return tokens / usable if usable else None


def amount(value: float | None, unit: str, t: Say) -> str:
    """Return a converted value as it is shown, the word for unknown included."""
    text = number.amount(value, unit, absent=t("common.unknown"))
    return t.said(text) if unit == "blocks" else text


def committed_ratio(pool: PoolSnapshot) -> float | None:
    """Return committed / usable, or None where either is unknown."""
    return convert(pool.composition.committed_tokens.value, pool, "share")


def part_figures(pool: PoolSnapshot) -> dict[str, Figure]:
    """
    Return the parts of usable that can be told, by word in the order of STACK; together never more than usable.

    Where free and prefix are not both known their sum stands for them.
    """
    composition = pool.composition
    parts = {word: getattr(composition, f"{word}_tokens") for word in STACK}
    if parts["free"].value is not None and parts["prefix"].value is not None:
        parts.pop("free_or_prefix")
    else:
        parts.pop("free")
        parts.pop("prefix")
    # Where only bounds follow, the lower one is held for sure; what may be either is unattributed.
    told = {
        word: replace(figure, value=figure.low, provenance=Provenance.ESTIMATED)
        if figure.value is None and figure.low is not None
        else figure
        for word, figure in parts.items()
    }
    return {word: figure for word, figure in told.items() if figure.value is not None and figure.value > 0}


def _row(pool: PoolSnapshot, unit: str) -> _Row:
    composition = pool.composition
    usable = convert(composition.usable_tokens.value, pool, unit)
    parts: dict[str, tuple[float, Figure]] = {}
    for word, figure in part_figures(pool).items():
        value = convert(figure.value, pool, unit)
        if value is not None and usable is not None:
            parts[word] = (value, figure)
    rest = 0.0 if usable is None else usable - sum(value for value, _ in parts.values())
    return _Row(
        pool=pool,
        usable=usable,
        parts=parts,
        hollow=rest if usable and rest > 0.005 * usable else 0.0,
        committed=convert(composition.committed_tokens.value, pool, unit),
        reserved=convert(composition.reserved_tokens.value, pool, unit),
        queued=convert(composition.queued_tokens.value, pool, unit),
    )


def oldest_age_s(pools: Sequence[PoolSnapshot]) -> float | None:
    """Return the age of the oldest figure among pools that are scored, else of the newest of the rest."""
    scored = [pool.age_s for pool in pools if pool.age_s is not None and pool.state.is_scored]
    if scored:
        return max(scored)
    return min((pool.age_s for pool in pools if pool.age_s is not None), default=None)


def bars(pools: Sequence[PoolSnapshot], unit: str, t: Say, language: str, title: str) -> bytes:
    """Return the packed figure of these pools (one role), in the order given, at most MOST_ROWS of them."""
    rows = [_row(pool, unit) for pool in pools[:MOST_ROWS]]
    longest = max((row.usable for row in rows if row.usable is not None), default=1.0) or 1.0
    data: list[dict[str, Any]] = [_part(word, rows, unit, t, language) for word in STACK]
    data = [trace for trace in data if any(trace["x"])]
    apart = (
        _hollow(rows, longest, t),
        _reserved(rows, unit, t, language),
        _queued(rows, longest, unit, t, language),
    )
    data += [trace for trace in apart if trace]
    data += [_committed(rows, unit, t, language), _rows_at_right(rows)]
    height = _row_height(len(rows)) * len(rows) + 74
    figure = {"data": data, "layout": _layout(rows, longest, unit, height, t)}
    return live.pack(
        figure,
        alt=t("fleet.bars_alt", title=title, count=len(rows)),
        filename=f"kvscope-{title.lower().replace(' ', '-')}",
        at_s=rows[0].pool.at_s if rows else None,
        age_s=oldest_age_s([row.pool for row in rows]),
        age_text=t("common.data_age", age="{age}"),
    )


def _row_height(count: int) -> int:
    return 28 if count <= 16 else 23 if count <= 40 else 18


def _opacity(pool: PoolSnapshot) -> float:
    return 1.0 if pool.state.is_scored else 0.38


def _hover(pool: PoolSnapshot, word: str, value: float, figure: Figure, unit: str, t: Say, language: str) -> str:
    usable = pool.composition.usable_tokens.value
    parts = [f"<b>{number.plain(pool.pool_id)}</b> · {label(word, language)} <b>{amount(value, unit, t)}</b>"]
    if unit != "share" and usable and figure.value is not None:
        parts[0] += f" ({number.share(figure.value / usable)})"
    provenance = t(f"common.provenance_{figure.provenance.value}")
    parts.append(f"{PROVENANCE[figure.provenance.value]} {provenance}: {number.plain(t.said(figure.reason), 110)}")
    if figure.low is not None or figure.high is not None:
        low, high = (amount(convert(end, pool, unit), unit, t) for end in (figure.low, figure.high))
        parts.append(t("fleet.between", low=low, high=high))
    parts.append(f"{t('common.data_age', age=number.age(pool.age_s))} · {t(f'common.state_{pool.state.value}')}")
    return "<br>".join(parts)


def _hover_of(word: str, row: _Row, value: float | None, unit: str, t: Say, language: str) -> str:
    figure: Figure = getattr(row.pool.composition, f"{word}_tokens")
    return "" if value is None else _hover(row.pool, word, value, figure, unit, t, language)


def _part(word: str, rows: Sequence[_Row], unit: str, t: Say, language: str) -> dict[str, Any]:
    """Return the stacked bars of one word; rows without it have length 0."""
    shapes, lengths, custom = [], [], []
    for row in rows:
        value, figure = row.parts.get(word, (0.0, None))
        lengths.append(value)
        if figure is None:
            shapes.append("")
            custom.append([row.pool.pool_id, ""])
            continue
        shapes.append("x" if word == "unattributed" else _HATCH.get(figure.provenance, ""))
        custom.append([row.pool.pool_id, _hover(row.pool, word, value, figure, unit, t, language)])
    term = TERMS[word]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(word, language),
        "x": lengths,
        "y": list(range(len(rows))),
        "width": 0.66,
        "customdata": custom,
        "hovertemplate": "%{customdata[1]}<extra></extra>",
        "marker": {
            "color": term.color,
            "opacity": [_opacity(row.pool) for row in rows],
            "line": {"color": "@outline" if word in ("free", "free_or_prefix") else "@paper", "width": 0.6},
            "pattern": {"shape": shapes, "fgcolor": "@paper", "bgcolor": term.color, "size": 6, "solidity": 0.35},
        },
    }


def _hollow(rows: Sequence[_Row], longest: float, t: Say) -> dict[str, Any] | None:
    """Return outlines for what is not known: a part of usable, or a whole pool whose usable is unknown."""
    lengths = [longest if row.usable is None else row.hollow for row in rows]
    if not any(lengths):
        return None
    return {
        "type": "bar",
        "orientation": "h",
        "name": t("common.unknown"),
        "x": lengths,
        "y": list(range(len(rows))),
        "width": 0.66,
        "text": [t("common.unknown") if length > 0.12 * longest else "" for length in lengths],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textfont": {"color": "@soft", "size": 11},
        "customdata": [[row.pool.pool_id, _why_hollow(row, t)] for row in rows],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
        "marker": {"color": "rgba(0,0,0,0)", "line": {"color": "@outline", "width": 1.2}},
    }


def _why_hollow(row: _Row, t: Say) -> str:
    pool, composition = row.pool, row.pool.composition
    name = f"<b>{number.plain(pool.pool_id)}</b>"
    if row.usable is not None:
        return f"{name} · {t('fleet.rest_unknown')}"
    if composition.usable_tokens.value is not None:
        return f"{name} · {t('fleet.no_conversion')}: {number.plain(t.said(pool.bytes_per_token.reason), 110)}"
    return f"{name} · {number.plain(t.said(composition.usable_tokens.reason), 110)}"


def _queued(rows: Sequence[_Row], longest: float, unit: str, t: Say, language: str) -> dict[str, Any] | None:
    """Return thin bars behind the end of a pool: what waits for it and holds nothing yet, cut where the space ends."""
    if not any(row.queued for row in rows):
        return None
    edge = longest * _QUEUE_SPACE
    lengths = [max(0.0, min(row.queued or 0.0, edge - (row.usable or edge))) for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label("queued", language),
        "x": lengths,
        "base": [row.usable or 0.0 for row in rows],
        "y": list(range(len(rows))),
        "width": 0.18,
        "offset": -0.09,
        "customdata": [[row.pool.pool_id, _hover_of("queued", row, row.queued, unit, t, language)] for row in rows],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
        "marker": {"color": "@queued", "opacity": [_opacity(row.pool) for row in rows]},
    }


def _reserved(rows: Sequence[_Row], unit: str, t: Say, language: str) -> dict[str, Any] | None:
    """Return thin bars that end at committed: promised and not yet allocated, a claim on what lies under them."""
    if not any(row.reserved for row in rows):
        return None
    lengths = [(row.reserved or 0.0) if row.committed is not None else 0.0 for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label("reserved", language),
        "x": lengths,
        "base": [(row.committed or 0.0) - length for row, length in zip(rows, lengths, strict=True)],
        "y": list(range(len(rows))),
        "width": 0.26,
        "offset": -0.13,
        "customdata": [[row.pool.pool_id, _hover_of("reserved", row, row.reserved, unit, t, language)] for row in rows],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
        "marker": {"color": "@reserved", "opacity": [_opacity(row.pool) for row in rows]},
    }


def _committed(rows: Sequence[_Row], unit: str, t: Say, language: str) -> dict[str, Any]:
    """Return the marks at committed."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label("committed", language),
        "x": [row.committed for row in rows],
        "y": list(range(len(rows))),
        "customdata": [
            [
                row.pool.pool_id,
                "" if row.committed is None else _committed_hover(row, unit, t, language),
            ]
            for row in rows
        ],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
        "marker": {
            "symbol": "line-ns-open",
            "size": _row_height(len(rows)) * 0.78,
            "color": "@committed",
            "opacity": [_opacity(row.pool) for row in rows],
            "line": {"width": 2.4, "color": "@committed"},
        },
    }


def _committed_hover(row: _Row, unit: str, t: Say, language: str) -> str:
    figure = row.pool.composition.committed_tokens
    first = _hover(row.pool, "committed", row.committed or 0.0, figure, unit, t, language)
    reserved = amount(row.reserved, unit, t)
    return f"{first}<br>{label('reserved', language)} {reserved}"


def _rows_at_right(rows: Sequence[_Row]) -> dict[str, Any]:
    """Return the invisible trace that carries the axis at the right, whose labels are the rows' numbers."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [0.0] * len(rows),
        "y": list(range(len(rows))),
        "yaxis": "y2",
        "marker": {"opacity": 0, "size": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _left_label(pool: PoolSnapshot, t: Say) -> str:
    sign = STATES[pool.state.value][0]
    name = f"{sign} {number.plain(pool.pool_id, 34)}"
    if pool.state is SourceState.FRESH:
        return name
    return f"{name} · {t(f'common.state_{pool.state.value}')} {number.age(pool.age_s)}"


def _right_label(pool: PoolSnapshot, t: Say) -> str:
    ratio = committed_ratio(pool)
    share = number.share(ratio, absent=t("common.unknown"))
    running = number.compact(pool.running_count.value, absent="?")
    waiting = number.compact(pool.waiting_count.value, absent="?")
    return t("fleet.row_numbers", committed=f"<b>{share}</b>", running=running, waiting=waiting)


def _layout(rows: Sequence[_Row], longest: float, unit: str, height: int, t: Say) -> dict[str, Any]:
    places = list(range(len(rows)))
    span = [len(rows) - 0.4, -0.6]
    rows_axis = {
        "fixedrange": True,
        "tickmode": "array",
        "tickvals": places,
        "range": span,
        "showgrid": False,
        "zeroline": False,
        "showline": False,
        # Unseen ticks keep the labels off the bars.
        "ticks": "outside",
        "ticklen": 7,
        "tickcolor": "rgba(0,0,0,0)",
    }
    return theme.layout(
        height=height,
        barmode="stack",
        bargap=0.2,
        uirevision=f"{unit}-{len(rows)}",
        margin={"l": 8, "r": 8, "t": 34, "b": 28},
        xaxis={**_value_axis(longest, unit), "range": [0, longest * _QUEUE_SPACE], "fixedrange": False},
        yaxis={**rows_axis, "ticktext": [_left_label(row.pool, t) for row in rows], "tickfont": {"color": "@ink"}},
        yaxis2={
            **rows_axis,
            "ticktext": [_right_label(row.pool, t) for row in rows],
            "overlaying": "y",
            "side": "right",
            "matches": "y",
            "tickfont": {"color": "@ink", "size": 12},
        },
    )


def _value_axis(longest: float, unit: str) -> dict[str, Any]:
    if unit == "share":
        return {"tickformat": ".0%", "dtick": 0.25}
    if unit == "bytes":
        steps = [number.nice_binary_step(longest) * place for place in range(8)]
        steps = [step for step in steps if step <= longest * 1.01]
        return {"tickmode": "array", "tickvals": steps, "ticktext": [number.byte_size(step) for step in steps]}
    return {"tickformat": "~s", "nticks": 7}

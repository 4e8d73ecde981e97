"""
The What-if page's figures: the score of every pair, two pairs' terms side by side, pools with the request placed,
and where a herd goes. Data in, packed figure out; the tables are in `what_if_tables`.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pages.figures import live, number, theme
from pages.figures.terms import TERMS, label
from pages.texts import Say
from scoring.herd import Herd
from scoring.policy import Decision
from scoring.policy.filters import PAIR_OK, PAIR_POOL
from scoring.what_if import Placement

SCALE: Final = [[0.0, "@good/0.9"], [0.35, "@s7/0.55"], [0.7, "@warn/0.7"], [1.0, "@bad/0.85"]]
LABELLED_CELLS: Final = 400
"""Up to this many cells the score stands in the cell; beyond, it is in the hover text alone."""


def pair_name(prefill: str, decode: str) -> str:
    """Return a pair as pages name it; a pool that serves alone by its own name."""
    return prefill if prefill == decode else f"{prefill} → {decode}"


_FIRST_WIDE = "\u2e80"
_PIECE = re.compile(r"[\u2e80-\uffef]|[^\s\u2e80-\uffef]+\s*|\s+")
"""What a line may be cut between: single wide signs, words with the space behind them."""


def score_text(score: float | None) -> str:
    """Return a score as it is shown."""
    if score is None or not math.isfinite(score):
        return number.ABSENT
    return "<0.001" if 0.0 < abs(score) < 0.0005 else number.significant(score)


def _grid(decision: Decision, t: Say) -> tuple[list[str], list[str], np.ndarray, list[list[str]], list[list[str]]]:
    """Return row names, column names, scores (NaN refused), hover texts and ids of every cell."""
    table = decision.table
    assert table is not None  # only joint decisions are drawn as a map
    pools = {each.pool: each for each in decision.rejections}
    rows = list(table.prefill_ids)
    columns = list(table.decode_ids)
    alone = list(table.alone_ids)
    itself = t("what_if.itself")
    names = rows + [name for name in alone if name not in rows]
    heads = columns + ([itself] if alone else [])
    scores = np.full((len(names), len(heads)), np.nan)
    texts = [["" for _ in heads] for _ in names]
    ids = [["" for _ in heads] for _ in names]

    def put(row: int, column: int, prefill: str, decode: str, score: float, code: int) -> None:
        ids[row][column] = f"{prefill}|{decode}"
        head = f"<b>{number.plain(pair_name(prefill, decode), 130)}</b><br>"
        if code == PAIR_OK:
            scores[row, column] = score
            texts[row][column] = head + t("what_if.hover_score", score=score_text(score))
            return
        if code == PAIR_POOL:
            why = pools.get(prefill) or pools.get(decode)
            name, reason = (why.filter, why.reason) if why else ("", "")
        else:
            name, reason = decision.pair_refusal(prefill, decode)
        shown = "<br>".join(number.plain(line, 120) for line in wrapped(t.said(reason)))
        texts[row][column] = head + t("what_if.hover_refused", filter=number.plain(t.said(name))) + "<br>" + shown

    if table.pairs is not None:
        for row, column in np.ndindex(table.pairs.shape):
            code = int(table.pairs.codes[row, column])
            put(row, column, rows[row], columns[column], float(table.pairs.total[row, column]), code)
    if table.alone is not None:
        for index, name in enumerate(alone):
            code = int(table.alone.codes[index, 0])
            put(names.index(name), len(heads) - 1, name, name, float(table.alone.total[index, 0]), code)
    return names, heads, scores, texts, ids


def wrapped(text: str, width: int = 72) -> list[str]:
    """Return text cut into lines for a hover."""
    """Return lines of at most `width` letters; Chinese has no spaces and wide signs, and may break anywhere."""
    lines, taken = [""], 0
    for piece in _PIECE.findall(text):
        size = len(piece) * (2 if piece[0] >= _FIRST_WIDE else 1)
        if taken + size > width and lines[-1]:
            lines.append("")
            taken = 0
        lines[-1] += piece
        taken += size
    return [line.strip() for line in lines]


def score_map(decision: Decision, age_s: float | None, t: Say) -> bytes:
    """Return the P x D heat map: colour is the score, a cross a refused pair, a ring the choice."""
    names, heads, scores, texts, ids = _grid(decision, t)
    is_small = scores.size <= LABELLED_CELLS
    refused = np.array(
        [
            [bool(text) and np.isnan(score) for text, score in zip(*row, strict=True)]
            for row in zip(texts, scores, strict=True)
        ]
    )
    shown = [number.plain(name, 24) for name in names]
    tops = [number.plain(head, 24) for head in heads]
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    columns, rows = np.arange(len(heads)), np.arange(len(names))
    labels = [[score_text(value) if is_small and np.isfinite(value) else "" for value in row] for row in scores]
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": columns,
            "y": rows,
            "z": scores.astype(np.float32),
            "zmin": low,
            "zmax": high if high > low else low + 1.0,
            "colorscale": SCALE,
            "text": labels,
            "texttemplate": "%{text}",
            "textfont": {"size": 13, "color": "@ink"},
            "hovertext": texts,
            "hovertemplate": "%{hovertext}<extra></extra>",
            "customdata": ids,
            "hoverongaps": True,
            "xgap": 2,
            "ygap": 2,
            "colorbar": {"title": {"text": t("what_if.score"), "side": "right"}, "thickness": 10, "outlinewidth": 0},
        }
    ]
    crossed = np.argwhere(refused)
    if len(crossed):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": crossed[:, 1],
                "y": crossed[:, 0],
                "marker": {"symbol": "x-thin", "size": 11 if is_small else 5, "line": {"width": 2, "color": "@bad"}},
                "hovertext": [texts[row][column] for row, column in crossed],
                "hovertemplate": "%{hovertext}<extra></extra>",
                "customdata": [ids[row][column] for row, column in crossed],
                "showlegend": False,
            }
        )
    shapes = []
    if decision.chosen is not None:
        wanted = f"{decision.chosen.prefill}|{decision.chosen.decode}"
        for row, line in enumerate(ids):
            for column, name in enumerate(line):
                if name == wanted:
                    shapes.append(
                        {
                            "type": "rect",
                            "x0": column - 0.5,
                            "x1": column + 0.5,
                            "y0": row - 0.5,
                            "y1": row + 0.5,
                            "line": {"color": "@ink", "width": 3},
                        }
                    )
    count = int(refused.sum())
    alt = t("what_if.map_alt", rows=len(names), columns=len(heads), refused=count)
    layout = theme.layout(
        height=min(max(150, 70 + 30 * len(names)), 620),
        xaxis={
            "tickvals": columns[:: max(1, len(heads) // 40)],
            "ticktext": tops[:: max(1, len(heads) // 40)],
            "side": "top",
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "tickvals": rows[:: max(1, len(names) // 24)],
            "ticktext": shown[:: max(1, len(names) // 24)],
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        shapes=shapes,
        showlegend=False,
        uirevision=f"{len(names)}x{len(heads)}",
    )
    return live.pack(
        {"data": data, "layout": layout},
        alt=alt,
        filename="kvscope-what-if-scores",
        at_s=decision.at_s,
        age_s=age_s,
        age_text=t("common.data_age", age="{age}"),
    )


PARTS: Final = (
    ("held", "@used", ""),
    ("reserved", "@reserved", ""),
    ("demand", "@demand", ""),
    ("prefix", "@prefix", ""),
    ("free", "@free", ""),
)


def placement_bars(
    rows: Sequence[tuple[str, Placement]], age_s: float | None, at_s: float, t: Say, language: str
) -> bytes:
    """Return one bar a row: what is held, reserved, the request, prefix left, free left, as shares of usable."""
    names = [number.plain(name, 60) for name, _ in rows]
    words = {"held": label("used", language), "demand": t("what_if.this_request")}
    data: list[dict[str, Any]] = []
    for part, color, _ in PARTS:
        values = [getattr(placed, f"{part}_tokens") / placed.usable_tokens for _, placed in rows]
        if not any(values):
            continue
        tokens = [number.amount(getattr(placed, f"{part}_tokens"), "tokens") for _, placed in rows]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": words.get(part) or (label(part, language) if part in TERMS else part),
                "x": values,
                "y": names,
                "customdata": tokens,
                "marker": {"color": color},
                "hovertemplate": "<b>%{fullData.name}</b> %{customdata}, %{x:.1%}<extra></extra>",
            }
        )
    layout = theme.layout(
        height=90 + 34 * len(names),
        barmode="stack",
        bargap=0.3,
        yaxis={"autorange": "reversed", "showgrid": False},
        xaxis={"tickformat": ".0%", "rangemode": "tozero"},
        shapes=[
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "y0": -0.5,
                "y1": len(names) - 0.5,
                "line": {"color": "@bad", "width": 2},
            }
        ],
        margin={"l": 8, "r": 12, "t": 40, "b": 30},
        uirevision="placement",
    )
    return live.pack(
        {"data": data, "layout": layout},
        alt=t("what_if.placement_alt", pools=", ".join(names)),
        filename="kvscope-what-if-placement",
        at_s=at_s,
        age_s=age_s,
        age_text=t("common.data_age", age="{age}"),
        events=(),
    )


def herd_bars(herds: Sequence[Herd], age_s: float | None, at_s: float, t: Say) -> bytes:
    """Return requests a pool for each way to pick: one stacked bar a variant, a colour a pool, most loaded first."""
    names = [variant(each, t) for each in herds]
    pools = sorted(herds[0].placed) if herds else []
    totals = {pool: sum(each.placed.get(pool, 0) for each in herds) for pool in pools}
    top = sorted(pools, key=lambda pool: (-totals[pool], pool))[:7]
    data: list[dict[str, Any]] = []
    for place, pool in enumerate([*top, ""] if len(pools) > len(top) else top):
        values = [
            each.placed.get(pool, 0)
            if pool
            else sum(each.placed.values()) - sum(each.placed.get(name, 0) for name in top)
            for each in herds
        ]
        data.append(
            _herd_trace(number.plain(pool, 24) if pool else t("what_if.others"), values, names, f"@s{place + 1}")
        )
    refused = [each.refused_count for each in herds]
    if any(refused):
        data.append(_herd_trace(t("what_if.refused"), refused, names, "@bad/0.35"))
    layout = theme.layout(
        height=100 + 32 * len(names),
        barmode="stack",
        bargap=0.3,
        yaxis={"autorange": "reversed", "showgrid": False},
        xaxis={"title": {"text": t("what_if.axis_requests")}},
        margin={"l": 8, "r": 12, "t": 40, "b": 40},
        uirevision="herd",
    )
    return live.pack(
        {"data": data, "layout": layout},
        alt=t("what_if.herd_alt", count=herds[0].count if herds else 0, pools=len(pools)),
        filename="kvscope-herd",
        at_s=at_s,
        age_s=age_s,
        age_text=t("common.data_age", age="{age}"),
        events=(),
    )


def _herd_trace(name: str, values: Sequence[int], names: Sequence[str], color: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": list(values),
        "y": list(names),
        "marker": {"color": color},
        "text": [str(value) if value else "" for value in values],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "hovertemplate": "<b>%{fullData.name}</b> %{x}<extra></extra>",
    }


def variant(each: Herd, t: Say) -> str:
    """Return how one herd picked, in words."""
    pick = t(f"what_if.pick_{each.pick.replace('-', '_')}")
    if not each.has_leases:
        return pick
    return f"{pick} + {t('what_if.leases_private' if each.router_count > 1 else 'what_if.leases_shared')}"

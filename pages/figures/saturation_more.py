"""
The Saturation page's lower figures: the reserve taken apart, what holds prefill back, and what is left when a node
dies. Data in, packed plotly figures out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pages.figures import number, theme
from pages.figures.saturation import Frame
from scoring.chain_reserve import ReserveParts
from scoring.chain_views import Backpressure, Inheritance, left_tokens
from scoring.model import FleetSnapshot, PoolSnapshot

PARTS: Final = (
    ("delay_growth_tokens", "@growth"),
    ("failure_share_tokens", "@s4"),
    ("prediction_error_tokens", "@s7"),
)
_MOST: Final = 24


def _share(pool: PoolSnapshot, tokens: float) -> float:
    return 100.0 * tokens / (pool.composition.usable_tokens.value or 1.0)


def reserve(pools: Sequence[PoolSnapshot], kept: Mapping[str, ReserveParts], frame: Frame) -> bytes | None:
    """Return the parts of each pool's safety reserve beside what it has left; None where no reserve is known."""
    t = frame.t
    shown = [pool for pool in pools if pool.pool_id in kept][:_MOST]
    if not shown:
        return None
    names = [number.plain(pool.pool_id, 40) for pool in shown]
    traces: list[dict[str, Any]] = []
    for field, hue in PARTS:
        values = [getattr(kept[pool.pool_id], field) for pool in shown]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": t(f"saturation.part_{field.removesuffix('_tokens')}"),
                "y": names,
                "x": [_share(pool, value) for pool, value in zip(shown, values, strict=True)],
                "text": [number.amount(value, "tokens") for value in values],
                "textposition": "none",
                "hovertemplate": "%{y}<br>%{text} · %{x:.1f} %<extra>%{fullData.name}</extra>",
                "marker": {"color": hue, "pattern": {"shape": "/", "size": 5, "solidity": 0.25}},
            }
        )
    left = [left_tokens(pool) for pool in shown]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": t("saturation.left"),
            "y": names,
            "x": [None if each is None else _share(pool, each) for pool, each in zip(shown, left, strict=True)],
            "text": [number.amount(each, "tokens", t("common.unknown")) for each in left],
            "hovertemplate": "%{y}<br>%{text} · %{x:.1f} %<extra>%{fullData.name}</extra>",
            "marker": {"symbol": "line-ns-open", "size": 16, "color": "@ink", "line": {"width": 3, "color": "@ink"}},
        }
    )
    below = sum(
        1 for pool, each in zip(shown, left, strict=True) if each is not None and each < kept[pool.pool_id].tokens
    )
    title = t("saturation.reserve_title", count=below, all=len(shown))
    layout = theme.layout(
        height=120 + 22 * max(len(shown), 3),
        barmode="stack",
        bargap=0.35,
        xaxis={"ticksuffix": " %", "title": {"text": t("saturation.reserve_axis")}},
        yaxis={"autorange": "reversed"},
        margin={"l": 8, "r": 12, "t": 44, "b": 44},
    )
    return frame.pack({"data": traces, "layout": layout}, title, "saturation-reserve")


def prefill(held: Mapping[str, Backpressure], frame: Frame) -> bytes:
    """Return the queues of each prefill pool by what they wait for."""
    t = frame.t
    names = [number.plain(name, 40) for name in held]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": t(f"saturation.wait_{word}"),
            "y": names,
            "x": [getattr(each, field) for each in held.values()],
            "marker": {"color": hue},
            "hovertemplate": "%{y}<br>%{x:.0f}<extra>%{fullData.name}</extra>",
        }
        for word, field, hue in (
            ("decode", "bootstrap_count", "@s6"),
            ("link", "inflight_count", "@in_flight"),
            ("compute", "compute_count", "@s5"),
        )
    ]
    words = {each.blocked_by for each in held.values()} - {"nothing"}
    main = max(words, key=lambda word: sum(each.blocked_by == word for each in held.values())) if words else "nothing"
    title = t(f"saturation.prefill_title_{main}")
    layout = theme.layout(
        height=120 + 26 * max(len(held), 3),
        barmode="stack",
        bargap=0.35,
        xaxis={"title": {"text": t("saturation.prefill_axis")}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
        margin={"l": 8, "r": 12, "t": 44, "b": 44},
    )
    return frame.pack({"data": traces, "layout": layout}, title, "saturation-prefill")


def deaths(fleet: FleetSnapshot, found: Mapping[str, Inheritance], worker: str, frame: Frame) -> bytes:
    """Return headroom before and after as a slope for each survivor."""
    t = frame.t
    usable = {pool.pool_id: pool for pool in fleet.pools}
    rows = [(name, each) for name, each in sorted(found.items()) if each.after_tokens is not None][:_MOST]
    names = [number.plain(name, 40) for name, _ in rows]
    before = [_share(usable[name], each.before_tokens or 0.0) for name, each in rows]
    after = [_share(usable[name], each.after_tokens or 0.0) for name, each in rows]
    lines_x: list[float | None] = []
    lines_y: list[str | None] = []
    for name, left, right in zip(names, before, after, strict=True):
        lines_x += [left, right, None]
        lines_y += [name, name, None]
    marks = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": t(f"saturation.death_{word}"),
            "x": values,
            "y": names,
            "marker": {"size": 11, "symbol": symbol, "color": hue},
            "hovertemplate": "%{y}<br>%{x:.1f} %<extra>%{fullData.name}</extra>",
        }
        for word, values, symbol, hue in (
            ("before", before, "circle-open", "@soft"),
            ("after", after, "circle", ["@bad" if value < 0 else "@good" for value in after]),
        )
    ]
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": lines_x,
        "y": lines_y,
        "line": {"color": "@soft", "width": 1.5},
        "showlegend": False,
        "hoverinfo": "skip",
    }
    broken = sum(value < 0 for value in after)
    title = t("saturation.death_title", worker=number.plain(worker, 40), count=broken, all=len(rows))
    layout = theme.layout(
        height=120 + 22 * max(len(rows), 3),
        xaxis={"ticksuffix": " %", "title": {"text": t("saturation.death_axis")}, "zerolinecolor": "@bad"},
        yaxis={"autorange": "reversed"},
        margin={"l": 8, "r": 12, "t": 44, "b": 44},
    )
    return frame.pack({"data": [line, *marks], "layout": layout}, title, "saturation-death")

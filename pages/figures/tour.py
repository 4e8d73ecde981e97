"""
The tour's figures of the fleet as it is: tanks, one number beside what is in it, two pools of one share.

Large type, titles that state the finding, words at the data: they are read from the back of a room. A figure has no
height of its own, it fills the room the page gives it.

Read next: `tour_herd` (the stampede), `tour_story` (the two-node case, the chain, the race).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pages.figures import live, number, theme
from pages.figures.fleet import oldest_age_s, part_figures
from pages.figures.terms import STACK, label
from pages.texts import Say
from scoring.model import FleetSnapshot, FloatArray, PoolHistory, PoolSnapshot, Role, pool_id

SIZE: Final = 18
"""Letters of a figure for a room, pixels."""
PAST_S: Final = 45.0
AHEAD_S: Final = 30.0
_GAP: Final = 0.9
"""Room between two groups of tanks, in tanks."""


def frame(**more: Any) -> dict[str, Any]:
    """Return the layout of a tour figure: the house's, in letters for a room, as tall as the page lets it be."""
    layout = theme.layout(height=300, **more)
    layout.pop("height")
    layout["font"] = {**layout["font"], "size": SIZE}
    for key, axis in layout.items():
        if key.startswith(("xaxis", "yaxis")):
            axis["tickfont"] = {**axis["tickfont"], "size": SIZE - 2}
            axis["title"] = {**axis.get("title", {}), "font": {"color": "@soft", "size": SIZE - 2}}
    layout["hoverlabel"]["font"]["size"] = SIZE - 2
    return layout


def note(x: float, y: float | str, text: str, **more: Any) -> dict[str, Any]:
    """Return a text at a place of the data."""
    return {"x": x, "y": y, "text": text, "showarrow": False, "font": {"size": SIZE, "color": "@ink"}, **more}


def packed(figure: Mapping[str, Any], name: str, pools: Sequence[PoolSnapshot], at_s: float, t: Say, alt: str) -> bytes:
    """Return a tour figure as the component takes it, with the age of the figures in it."""
    return live.pack(
        dict(figure),
        alt=alt,
        filename=f"kvscope-tour-{name}",
        at_s=at_s,
        age_s=oldest_age_s(pools),
        age_text=t("common.data_age", age="{age}"),
        events=(),
    )


def short(pool: PoolSnapshot) -> str:
    """Return a pool's name for an axis: the rank only where a worker has several."""
    return number.plain(pool.pool_id.removesuffix("/0") if pool.role is not Role.DECODE else pool.pool_id, 16)


def used_ratio(pool: PoolSnapshot) -> float | None:
    """Return used / usable, what a usage gauge shows; None where either is unknown."""
    used, usable = pool.composition.used_tokens.value, pool.composition.usable_tokens.value
    return used / usable if used is not None and usable else None


def filled_ratio(pool: PoolSnapshot) -> float | None:
    """Return the share that holds anything, evictable prefix counted: the memory an allocator sees as taken."""
    free, usable = pool.composition.free_tokens.value, pool.composition.usable_tokens.value
    return 1.0 - free / usable if free is not None and usable else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _places(groups: Sequence[Sequence[PoolSnapshot]]) -> list[list[float]]:
    places, at = [], 0.0
    for group in groups:
        places.append([at + index for index in range(len(group))])
        at += len(group) + _GAP
    return places


def _tanks(groups: Sequence[Sequence[PoolSnapshot]], language: str) -> tuple[list[dict[str, Any]], list[float]]:
    """Return stacked upright bars of shares, and where each stands."""
    places = _places(groups)
    pools = [pool for group in groups for pool in group]
    at = [place for group in places for place in group]
    data: list[dict[str, Any]] = []
    for word in STACK:
        parts = [part_figures(pool).get(word) for pool in pools]
        values = [
            part.value / usable
            if part is not None and part.value is not None and (usable := pool.composition.usable_tokens.value)
            else 0.0
            for part, pool in zip(parts, pools, strict=True)
        ]
        if not any(values):
            continue
        data.append(
            {
                "type": "bar",
                "name": label(word, language),
                "x": at,
                "y": values,
                "width": 0.82,
                "customdata": [[pool.pool_id] for pool in pools],
                "marker": {
                    "color": f"@{word}",
                    "pattern": {"shape": "x" if word == "unattributed" else "", "fgcolor": "@paper", "size": 6},
                    "line": {"width": 0},
                },
                "hovertemplate": "%{customdata[0]}: <b>%{fullData.name}</b> %{y:.0%}<extra></extra>",
            }
        )
    return data, at


def _ticks(groups: Sequence[Sequence[PoolSnapshot]]) -> dict[str, Any]:
    places = _places(groups)
    return {
        "tickvals": [place for group in places for place in group],
        "ticktext": [short(pool) for group in groups for pool in group],
        "tickangle": -35,
        "showgrid": False,
        "zeroline": False,
    }


def two_phases(fleet: FleetSnapshot, t: Say, language: str) -> bytes:
    """Return all pools as tanks: prefill left, decode right, the KV that travels between them."""
    prefill = [pool for pool in fleet.pools if pool.role is Role.PREFILL]
    decode = [pool for pool in fleet.pools if pool.role is Role.DECODE]
    other = [pool for pool in fleet.pools if pool.role in (Role.UNIFIED, Role.UNKNOWN)]
    groups = [group for group in (prefill, decode, other) if group]
    data, _ = _tanks(groups, language)
    places = _places(groups)
    texts = {
        id(prefill): t(
            "tour.two_prefill",
            rate=number.compact(_sum([_busy_rate(pool) for pool in prefill]), t("common.unknown")),
        ),
        id(decode): t(
            "tour.two_decode",
            rate=number.compact(
                _sum([pool.rates.generated_tokens_per_s.value for pool in decode]), t("common.unknown")
            ),
        ),
        id(other): t("tour.two_unified"),
    }
    notes = [
        note((place[0] + place[-1]) / 2, 1.09, f"<b>{texts[id(group)]}</b>")
        for group, place in zip(groups, places, strict=True)
    ]
    if prefill and decode:
        moved = _sum([pool.rates.transfer_bytes_per_s.value for pool in prefill])
        edge = places[0][-1] + 0.5 + _GAP / 2
        words = t("tour.two_link", rate=number.amount(moved, "bytes/s")) if moved else t("tour.two_link_quiet")
        notes.append(note(edge, 1.2, f"{words} ➜", font={"size": SIZE, "color": "@ink"}))
    layout = frame(
        barmode="stack",
        xaxis=_ticks(groups),
        yaxis={"range": [0, 1.26], "tickvals": [0, 0.5, 1], "tickformat": ".0%"},
        margin={"l": 8, "r": 8, "t": 34, "b": 20},
        annotations=notes,
    )
    return packed({"data": data, "layout": layout}, "phases", fleet.pools, fleet.at_s, t, t("tour.two_alt"))


def _busy_rate(pool: PoolSnapshot) -> float | None:
    """Return prompt tokens computed per wall second: the pool's speed for the share of time it computes."""
    speed, duty = pool.rates.prefill_tokens_per_s.value, pool.rates.prefill_duty_ratio.value
    return speed * duty if speed is not None and duty is not None else None


def caching(fleet: FleetSnapshot) -> list[PoolSnapshot]:
    """Return the pools that keep prefixes and say how much of it, the fullest memory first, at most five."""
    told = [pool for pool in fleet.pools if filled_ratio(pool) is not None and pool.role is not Role.DECODE]
    return sorted(told, key=lambda pool: (-(filled_ratio(pool) or 0.0), pool.pool_id))[:5]


def one_number(fleet: FleetSnapshot, t: Say, language: str) -> bytes:
    """Return the same pools twice: as the one number, and as what is in it."""
    pools = caching(fleet)
    groups = [pools, pools]
    parts, _ = _tanks(groups, language)
    places = _places(groups)
    ratios = [filled_ratio(pool) or 0.0 for pool in pools]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": t("tour.one_name"),
            "x": places[0],
            "y": ratios,
            "width": 0.82,
            "marker": {"color": "@s8"},
            "text": [f"<b>{number.share(ratio)}</b>" for ratio in ratios],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "none",
            "textfont": {"size": SIZE + 4, "color": "@paper"},
            "hovertemplate": "%{y:.1%}<extra></extra>",
            "showlegend": False,
        }
    ]
    for trace in parts:
        half = len(pools)
        trace["x"], trace["y"] = trace["x"][half:], trace["y"][half:]
        trace["customdata"] = trace["customdata"][half:]
        data.append(trace)
    notes = []
    for place, pool in zip(places[1], pools, strict=True):
        available, usable = pool.composition.available_tokens.value, pool.composition.usable_tokens.value
        if available is not None and usable:
            text = t("tour.one_available", share=number.share(available / usable))
            notes.append(
                note(
                    place,
                    0.97,
                    f"<b>{text}</b>",
                    yanchor="top",
                    font={"size": SIZE, "color": "@ink"},
                    bgcolor="@paper/0.85",
                )
            )
    heads = (t("tour.one_left"), t("tour.one_right"))
    notes += [
        note((place[0] + place[-1]) / 2, 1.12, f"<b>{head}</b>")
        for place, head in zip(places, heads, strict=True)
        if place
    ]
    layout = frame(
        barmode="stack",
        xaxis=_ticks(groups),
        yaxis={"range": [0, 1.26], "tickvals": [0, 0.5, 1], "tickformat": ".0%"},
        margin={"l": 8, "r": 8, "t": 34, "b": 20},
        annotations=notes,
    )
    return packed({"data": data, "layout": layout}, "one-number", pools, fleet.at_s, t, t("tour.one_alt"))


def _used_past(history: PoolHistory, at_s: float) -> tuple[FloatArray, FloatArray]:
    """Return seconds before `at_s` (negative) and used / usable of the last PAST_S."""
    usable = history.last.usable_tokens or np.nan
    used = history.columns["used_tokens"] / usable
    keep = (history.at_s >= at_s - PAST_S) & (history.at_s <= at_s) & np.isfinite(used)
    return history.at_s[keep] - at_s, used[keep]


def slope_per_s(history: PoolHistory, at_s: float, window_s: float = 6.0) -> float | None:
    """
    Return the least-squares slope of used / usable over the last `window_s`, or over the newest three samples where
    those reach further back (a worker asked every few seconds); None with fewer than three in PAST_S.
    """
    past_s, used = _used_past(history, at_s)
    if len(past_s) < 3:
        return None
    near = past_s >= min(-window_s, past_s[-3])
    if np.ptp(past_s[near]) <= 0:
        return None
    return float(np.polyfit(past_s[near], used[near], 1)[0])


def _future(at_s: float, ratio: float, text: str, pool: PoolSnapshot, now: float, color: str, t: Say) -> dict[str, Any]:
    """Return what is said at the end of a pool's line: where it goes, and what it holds now."""
    detail = t(
        "tour.same_detail",
        running=number.compact(pool.running_count.value, t("common.unknown")),
        share=number.share(now),
    )
    return note(
        at_s + 0.8,
        min(max(ratio, 0.06), 1.0),
        f"<b>{text}<br>{detail}</b>",
        xanchor="left",
        align="left",
        font={"size": SIZE + 1, "color": color},
    )


def same_share(fleet: FleetSnapshot, histories: Sequence[PoolHistory], names: tuple[str, str], t: Say) -> bytes:
    """Return two pools' used share with the straight line ahead of each: one number now, two futures."""
    by_id = {pool_id(item.last.worker_id, item.last.dp_rank): item for item in histories}
    pools = [pool for name in names for pool in fleet.pools if pool.pool_id == name]
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    ends: list[float] = []
    for pool, color in zip(pools, ("@s6", "@s1"), strict=False):
        history, now = by_id.get(pool.pool_id), used_ratio(pool)
        if history is None or now is None:
            continue
        past_s, used = _used_past(history, fleet.at_s)
        name = short(pool)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [*past_s.tolist(), 0.0],
                "y": [*used.tolist(), now],
                "line": {"color": color, "width": 5},
                "hovertemplate": "%{y:.0%}<extra>%{fullData.name}</extra>",
            }
        )
        slope = slope_per_s(history, fleet.at_s)
        if slope is None:
            notes.append(_future(0.0, now, t("tour.same_unknown", pool=name), pool, now, color, t))
            continue
        until = AHEAD_S if slope == 0 else min(AHEAD_S, ((1.0 if slope > 0 else 0.0) - now) / slope)
        end = now + slope * until
        while any(abs(end - other) < 0.09 for other in ends):
            end += 0.1 if end < 0.5 else -0.1
        ends.append(end)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [0.0, until],
                "y": [now, now + slope * until],
                "line": {"color": color, "width": 4, "dash": "dot"},
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
        if slope > 0.002:
            text = t("tour.same_full", pool=name, after=number.duration(float(round(max((1.0 - now) / slope, 0.0)))))
        elif slope < -0.002:
            text = t("tour.same_empties", pool=name, after=number.duration(float(round(max(-now / slope, 0.0)))))
        else:
            text = t("tour.same_still", pool=name)
        notes.append(_future(until, end, text, pool, now, color, t))
    lines = [
        {
            "type": "line",
            "x0": 0,
            "x1": 0,
            "y0": 0,
            "y1": 1.05,
            "line": {"color": "@outline", "width": 1, "dash": "dot"},
        },
        {"type": "line", "x0": -PAST_S, "x1": AHEAD_S, "y0": 1, "y1": 1, "line": {"color": "@bad", "width": 2}},
    ]
    notes.append(note(0, 1.07, t("tour.same_now"), yanchor="bottom", font={"size": SIZE - 2, "color": "@soft"}))
    notes.append(
        note(
            -PAST_S,
            1.01,
            t("tour.same_line"),
            xanchor="left",
            yanchor="bottom",
            font={"size": SIZE - 2, "color": "@bad"},
        )
    )
    layout = frame(
        showlegend=False,
        xaxis={
            "range": [-PAST_S, AHEAD_S + 26.0],
            "tickvals": [-40, -20, 0, 20],
            "ticktext": [t("tour.seconds", count=count) for count in ("−40", "−20", "0", "+20")],
            "zeroline": False,
        },
        yaxis={"range": [0, 1.16], "tickvals": [0, 0.5, 1], "tickformat": ".0%"},
        margin={"l": 8, "r": 8, "t": 8, "b": 20},
        shapes=lines,
        annotations=notes,
    )
    return packed({"data": data, "layout": layout}, "same-share", pools, fleet.at_s, t, t("tour.same_alt"))

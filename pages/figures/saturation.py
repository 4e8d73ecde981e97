"""
The Saturation page's figures: the strip of stages, the chain as a loop, the ranking of times to exhaustion and the
phase plot. Data in, packed plotly figures out.

Read next: `saturation_more` (reserve, prefill, a node's death).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pages.figures import live, number, theme
from pages.texts import Say
from scoring.chain_evidence import CALIBRATED, HISTORY, STAGES, Sign, Stage
from scoring.model import FloatArray
from scoring.risk import Exhaustion

STAGE_COLORS: Final[Mapping[Stage, str]] = {
    Stage.CANNOT_SEE: "@s8",
    Stage.HEALTHY: "@good",
    Stage.THIN_HEADROOM: "@s7",
    Stage.ADMISSION_STALLS: "@s2",
    Stage.RETRACTION: "@s6",
    Stage.RECOMPUTE: "@s4",
    Stage.SLOW_RELEASE: "@s5",
    Stage.TAIL_LATENCY: "@bad",
}
"""One hue a stage, from calm to grave; the number in the cell and in the loop carries it without colour."""
NO_DATA: Final = -2
_LEVELS: Final = tuple(Stage)
_ROW_PX: Final = 19
_MOST_RANKED: Final = 12


def stage_name(stage: Stage, t: Say) -> str:
    """Return the drawn name of a stage."""
    return t(f"saturation.stage_{stage.name.lower()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One pool as the page shows it.

    Attributes:
        stage: Where it stands, since when.
        signs: One a stage, None where nothing was looked at.
        lit: Stages that are lit.
        exhaustion: Time to exhaustion, None when not known.
        trail: (at_s, stage, committed ratio, queue, step seconds), oldest first. Shape (n, 5).
    """

    pool_id: str
    role: str
    stage: Stage
    since_at_s: float | None
    signs: tuple[Sign | None, ...]
    lit: tuple[Stage, ...]
    exhaustion: Exhaustion | None
    exhausted_probability: float | None
    retraction_probability: float | None
    thin_probability: float | None
    high_water_s: float | None
    danger: tuple[bool | None, bool | None, bool | None]
    is_alarm: bool
    reason: str
    trail: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every figure of the page shares."""

    at_s: float
    age_s: float | None
    t: Say

    def pack(self, figure: dict[str, Any], title: str, name: str, events: tuple[str, ...] = ()) -> bytes:
        """Return the packed figure."""
        return live.pack(
            figure,
            alt=title,
            filename=f"kvscope-{name}",
            at_s=self.at_s,
            age_s=self.age_s,
            age_text=self.t("common.data_age", age="{age}"),
            events=events,
        )


def strip(pools: Sequence[str], at_s: FloatArray, levels: FloatArray, frame: Frame) -> bytes:
    """
    Return the heat map of pool by time.

    Args:
        pools: Names, top to bottom.
        at_s: Beginnings of the columns. Shape (n,).
        levels: Stage of each cell, NaN where nothing was collected. Shape (pools, n).
    """
    t = frame.t
    steps = len(_LEVELS)
    colors: list[list[Any]] = []
    for place, stage in enumerate(_LEVELS):
        hue = STAGE_COLORS[stage] + ("/0.35" if stage is Stage.HEALTHY else "")
        colors += [[place / steps, hue], [(place + 1) / steps, hue]]
    names = {float(stage): stage_name(stage, t) for stage in _LEVELS}
    hover = [[names.get(level, t("saturation.no_data")) for level in row] for row in levels.tolist()]
    worst = np.nanmax(levels, initial=0.0) if levels.size else 0.0
    trouble = int(np.sum(np.nanmax(np.where(np.isnan(levels), NO_DATA, levels), axis=1, initial=NO_DATA) > 0))
    title = t("saturation.strip_title", count=trouble, worst=names.get(float(worst), t("saturation.no_data")))
    traces: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": at_s * 1e3,
            "y": [number.plain(name, 40) for name in pools],
            "z": levels.astype(np.float32),
            "zmin": float(min(_LEVELS)) - 0.5,
            "zmax": float(max(_LEVELS)) + 0.5,
            "colorscale": colors,
            "showscale": False,
            "hovertext": hover,
            "hovertemplate": "%{y}<br>%{x|%H:%M:%S}<br>%{hovertext}<extra></extra>",
            "customdata": [[[name]] * len(at_s) for name in pools],
            "ygap": 1,
        }
    ]
    # The legend is made of points nobody sees; it names every hue.
    for stage in _LEVELS:
        hue = STAGE_COLORS[stage]
        sign = "" if stage <= Stage.HEALTHY else f"{int(stage)} "
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [None],
                "y": [None],
                "name": f"{sign}{names[float(stage)]}",
                "marker": {"symbol": "square", "size": 11, "color": hue, "opacity": 0.35 if stage == 0 else 1.0},
                "hoverinfo": "skip",
            }
        )
    layout = theme.layout(
        height=92 + _ROW_PX * max(len(pools), 3),
        xaxis={"type": "date", "showgrid": False},
        yaxis={"autorange": "reversed", "showgrid": False, "fixedrange": False},
        margin={"l": 8, "r": 12, "t": 58, "b": 34},
    )
    return frame.pack({"data": traces, "layout": layout}, title, "saturation-strip", ("click",))


def loop(row: Row, frame: Frame) -> bytes:
    """Return the chain of one pool as a loop of six stages; lit ones are filled, each with its number and limit."""
    t = frame.t
    angles = [math.pi / 2 - 2 * math.pi * place / 6 for place in range(6)]
    xs, ys = [1.45 * math.cos(angle) for angle in angles], [math.sin(angle) for angle in angles]
    arrows = []
    for place in range(6):
        after = (place + 1) % 6
        arrows.append(_arrow(xs[place], ys[place], xs[after], ys[after], is_on=STAGES[place] in row.lit))
    hues = [STAGE_COLORS[stage] if stage in row.lit else "@panel" for stage in STAGES]
    hover = [number.plain(_sign_text(row.signs[place], t), 200) for place in range(6)]
    labels = [
        {
            "x": xs[place] * 1.0,
            "y": ys[place] + (0.30 if ys[place] > -0.2 else -0.32),
            "text": f"<b>{stage_name(stage, t)}</b><br>{_numbers(row.signs[place], t)}",
            "showarrow": False,
            "font": {"size": 12, "color": "@ink"},
            "align": "center",
        }
        for place, stage in enumerate(STAGES)
    ]
    centre = {
        "x": 0,
        "y": 0,
        "text": f"<b>{stage_name(row.stage, t)}</b><br>{number.plain(row.pool_id, 30)}",
        "showarrow": False,
        "font": {"size": 15, "color": "@ink"},
    }
    figure = {
        "data": [
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": xs,
                "y": ys,
                "text": [str(int(stage)) for stage in STAGES],
                "textfont": {"size": 15, "color": ["@paper" if s in row.lit else "@soft" for s in STAGES]},
                "marker": {"size": 36, "color": hues, "line": {"width": 2, "color": "@outline"}},
                "hovertext": hover,
                "hovertemplate": "%{hovertext}<extra></extra>",
                "showlegend": False,
            }
        ],
        "layout": theme.layout(
            height=430,
            xaxis={"visible": False, "range": [-2.35, 2.35], "fixedrange": True},
            yaxis={"visible": False, "range": [-1.6, 1.6], "fixedrange": True},
            annotations=[*arrows, *labels, centre],
            margin={"l": 4, "r": 4, "t": 4, "b": 4},
        ),
    }
    lit = ", ".join(stage_name(stage, t) for stage in row.lit) or stage_name(row.stage, t)
    return frame.pack(figure, t("saturation.loop_alt", pool=row.pool_id, lit=lit), "saturation-chain")


def _arrow(x0: float, y0: float, x1: float, y1: float, *, is_on: bool) -> dict[str, Any]:
    near, far = 0.20, 0.80
    return {
        "ax": x0 + (x1 - x0) * near,
        "ay": y0 + (y1 - y0) * near,
        "x": x0 + (x1 - x0) * far,
        "y": y0 + (y1 - y0) * far,
        "axref": "x",
        "ayref": "y",
        "xref": "x",
        "yref": "y",
        "text": "",
        "showarrow": True,
        "arrowhead": 2,
        "arrowwidth": 3 if is_on else 1.5,
        "arrowcolor": "@ink" if is_on else "@grid",
    }


_UNITS: Final[Mapping[Stage, str]] = {
    Stage.THIN_HEADROOM: "tokens",
    Stage.ADMISSION_STALLS: "count",
    Stage.RETRACTION: "count",
    Stage.RECOMPUTE: "count",
    Stage.SLOW_RELEASE: "share",
    Stage.TAIL_LATENCY: "s",
}


def _numbers(sign: Sign | None, t: Say) -> str:
    if sign is None or sign.is_seen is None:
        return t("saturation.not_shown")
    if sign.value is None:
        return ""
    value = shown(sign, sign.value)
    return t("saturation.of_limit", value=value, limit=shown(sign, sign.threshold)) if sign.threshold else value


def shown(sign: Sign, value: float | None) -> str:
    """Return a sign's value or limit with its unit."""
    unit = _UNITS[sign.stage]
    is_step = sign.rests in (CALIBRATED, HISTORY) or (not sign.rests and sign.value is not None and sign.value < 1.0)
    if sign.stage is Stage.RECOMPUTE and is_step:
        unit = "s"  # A step time rather than tokens per second; older events do not say which.
    return number.duration(value) if unit == "s" else number.amount(value, unit)


def _sign_text(sign: Sign | None, t: Say) -> str:
    return t("saturation.not_looked") if sign is None else t.said(sign.text)


def ranking(rows: Sequence[Row], frame: Frame) -> bytes | None:
    """Return the pools that run out of room soonest, each with its interval; None when no pool fills."""
    t = frame.t
    known = [(row, row.exhaustion) for row in rows if row.exhaustion is not None]
    timed = [(row, found, found.expected_s) for row, found in known if found.expected_s is not None]
    timed.sort(key=lambda item: (item[2], item[0].pool_id))
    timed = timed[:_MOST_RANKED]
    if not timed:
        return None
    names = [number.plain(row.pool_id, 40) for row, _, _ in timed]
    middle = np.array([max(expected, 0.1) for _, _, expected in timed])
    low = np.array([max(found.low_s if found.low_s is not None else expected, 0.1) for _, found, expected in timed])
    high = np.array([found.high_s if found.high_s is not None else 3600.0 for _, found, _ in timed])
    texts = [
        t(
            "saturation.rank_hover",
            expected=number.duration(expected),
            low=number.duration(found.low_s, t("saturation.never")),
            high=number.duration(found.high_s, t("saturation.never")),
            probability=number.share(row.exhausted_probability, t("common.unknown")),
            retraction=number.share(row.retraction_probability, t("common.unknown")),
        )
        for row, found, expected in timed
    ]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": middle,
        "y": names,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": np.maximum(high - middle, 0.0),
            "arrayminus": np.maximum(middle - low, 0.0),
            "color": "@soft",
            "thickness": 1.5,
        },
        "marker": {"size": 12, "color": [STAGE_COLORS[row.stage] for row, _, _ in timed], "symbol": "diamond"},
        "hovertext": texts,
        "hovertemplate": "%{y}<br>%{hovertext}<extra></extra>",
        "customdata": [[row.pool_id] for row, _, _ in timed],
        "showlegend": False,
    }
    soonest = timed[0]
    title = t("saturation.rank_title", pool=number.plain(soonest[0].pool_id, 40), time=number.duration(soonest[2]))
    ticks = [0.1, 1, 10, 30, 60, 300, 1800, 3600]
    layout = theme.layout(
        height=110 + 26 * max(len(timed), 3),
        title=title,
        xaxis={
            "type": "log",
            "tickvals": ticks,
            "ticktext": [number.duration(tick) for tick in ticks],
            "title": {"text": t("saturation.rank_axis")},
        },
        yaxis={"autorange": "reversed"},
    )
    return frame.pack({"data": [trace], "layout": layout}, title, "saturation-time", ("click",))


def phase(row: Row, frame: Frame) -> bytes | None:
    """Return committed share against queue and step time with the path of the last minutes; None without one."""
    t = frame.t
    path = row.trail[np.isfinite(row.trail[:, 2])] if row.trail.size else row.trail
    if len(path) < 2:
        return None
    age = path[-1, 0] - path[:, 0]
    traces: list[dict[str, Any]] = []
    for place, (column, scale) in enumerate(((3, 1.0), (4, 1e3))):
        axis = "" if place == 0 else "2"
        hues = [STAGE_COLORS[Stage(round(level))] for level in path[:, 1]]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": path[:, 2] * 100.0,
                "y": path[:, column] * scale,
                "xaxis": f"x{axis}",
                "yaxis": f"y{axis}",
                "line": {"color": "@grid", "width": 1.5},
                "marker": {
                    "size": np.where(age < 1e-9, 13.0, 5.0),
                    "color": hues,
                    "opacity": np.clip(1.0 - age / max(float(age.max()), 1.0), 0.25, 1.0),
                },
                "text": [number.duration(float(seconds)) for seconds in age],
                "hovertemplate": t("saturation.phase_hover") + "<extra></extra>",
                "showlegend": False,
            }
        )
    axis_title = {"title": {"text": t("saturation.phase_x")}, "ticksuffix": " %"}
    layout = theme.layout(
        height=330,
        xaxis={**axis_title, "domain": [0.0, 0.46]},
        xaxis2={**axis_title, "domain": [0.54, 1.0], "anchor": "y2"},
        yaxis={"title": {"text": t("saturation.phase_queue")}, "rangemode": "tozero"},
        yaxis2={"title": {"text": t("saturation.phase_step")}, "rangemode": "tozero", "anchor": "x2"},
        margin={"l": 8, "r": 12, "t": 12, "b": 44},
    )
    title = t("saturation.phase_alt", pool=row.pool_id)
    return frame.pack({"data": traces, "layout": layout}, title, "saturation-phase")

"""
The Replay page's figures: distributions, latency by bucket, composition over time, throughput against latency,
sweeps. All drawn from the plain dicts of `simulation.report_json` and `report_series`, so that a kept run, a fresh
one and the HTML report show the same.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from pages.figures import live, number, theme
from pages.figures.terms import TERMS, label
from pages.texts import Say

Figure = dict[str, Any]
Body = Mapping[str, Any]

METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")
TABLE_METRICS: Final = (
    *(("ttft_s", each) for each in ("mean", "p50", "p95", "p99")),
    *(("tpot_s", "mean"), ("tpot_s", "p99"), ("itl_s", "p99"), ("e2e_s", "mean"), ("e2e_s", "p99")),
)
GROUPS: Final = ("prompt", "output", "class", "tenant")
PARTS: Final = ("active", "in_flight", "fragmentation", "prefix", "free")
COLORS: Final = tuple(f"@s{place}" for place in range(1, 9))
DASHES: Final = ("solid", "dash", "dot", "dashdot")
SCALE: Final = [[0.0, "@good/0.75"], [0.5, "@grid/0.5"], [1.0, "@bad/0.75"]]
"""Heat map: green is better than the baseline, grey equal, red worse."""
RATIO_MAX: Final = 2.0
"""The heat map's ends: half and twice the baseline (chosen; beyond, the number in the cell tells)."""
SHOWN_BUCKETS: Final = 12


def line_style(place: int) -> tuple[str, str]:
    """Return colour and dash of the variant at a place; beyond eight the dash tells them apart."""
    return COLORS[place % len(COLORS)], DASHES[place // len(COLORS) % len(DASHES)]


def seconds(value: float | None) -> str:
    """Return a latency as it is shown."""
    return number.duration(value)


def pack(figure: Figure, alt: str, name: str, events: tuple[str, ...] = ()) -> bytes:
    """Return a figure as the page mounts it."""
    return live.pack(figure, alt=alt, filename=f"kvscope-replay-{name}", events=events)


def cdf(body: Body, series: Body, metric: str, t: Say) -> Figure:
    """Return the share of requests within a latency, one line a variant; the time axis is logarithmic."""
    data = []
    for place, name in enumerate(body["policies"]):
        values = (series.get(name) or {}).get("cdf", {}).get(metric) or []
        color, dash = line_style(place)
        if not values:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": number.plain(name),
                "x": [max(value, 1e-4) for value in values],
                "y": np.linspace(0.0, 1.0, len(values)).round(4).tolist(),
                "line": {"color": color, "dash": dash, "width": 2},
                "hovertemplate": "%{y:.1%} ≤ %{x:.3s}s<extra>" + number.plain(name) + "</extra>",
            }
        )
    layout = theme.layout(
        height=320,
        title=t("replay.cdf_title", metric=t(f"replay.metric_{metric}")),
        xaxis={"type": "log", "title": {"text": t(f"replay.axis_{metric}")}, "ticksuffix": "s", "dtick": 1},
        yaxis={"title": {"text": t("replay.axis_share")}, "tickformat": ".0%", "range": [0, 1.01]},
        margin={"l": 8, "r": 12, "t": 64, "b": 40},
    )
    return {"data": data, "layout": layout}


def _cell(found: Body, group: str, bucket: str, metric: str, statistic: str) -> float | None:
    each = found.get("groups", {}).get(group, {}).get(bucket)
    if each is None:
        return None
    value = each["goodput_ratio"] if metric == "goodput" else each[metric][statistic]
    return None if value is None else float(value)


def buckets_of(body: Body, group: str) -> list[str]:
    """Return a dimension's buckets over all variants, in the order they come, the largest ones where too many."""
    counts: dict[str, int] = {}
    for found in body["policies"].values():
        for name, each in found.get("groups", {}).get(group, {}).items():
            counts[name] = max(counts.get(name, 0), int(each["arrived_count"]))
    if len(counts) <= SHOWN_BUCKETS:
        return list(counts)
    kept = set(sorted(counts, key=lambda name: -counts[name])[:SHOWN_BUCKETS])
    return [name for name in counts if name in kept]


def heat(body: Body, group: str, metric: str, statistic: str, t: Say) -> Figure:
    """Return a latency (or goodput) by variant and bucket: the number in the cell, colour against the baseline."""
    names = list(body["policies"])
    buckets = buckets_of(body, group)
    base = body["policies"][body["baseline"]]
    z: list[list[float | None]] = []
    words: list[list[str]] = []
    for name in names:
        row: list[float | None] = []
        shown: list[str] = []
        for bucket in buckets:
            value = _cell(body["policies"][name], group, bucket, metric, statistic)
            reference = _cell(base, group, bucket, metric, statistic)
            shown.append(number.share(value) if metric == "goodput" else seconds(value))
            row.append(_against(value, reference, is_more_better=metric == "goodput"))
        z.append(row)
        words.append(shown)
    heads = [f"{number.plain(each)}<br>{number.compact(_arrived(base, group, each))}" for each in buckets]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": heads,
                "y": [number.plain(name) for name in names],
                "z": z,
                "zmin": -1.0,
                "zmax": 1.0,
                "colorscale": SCALE,
                "showscale": False,
                "text": words,
                "texttemplate": "%{text}",
                "textfont": {"size": 13, "color": "@ink"},
                "hovertemplate": "%{y}<br>%{x}<br>%{text}<extra></extra>",
                "xgap": 2,
                "ygap": 2,
            }
        ],
        "layout": theme.layout(
            height=110 + 34 * len(names),
            title=t("replay.heat_title", metric=t(f"replay.metric_{metric}"), group=t(f"replay.group_{group}")),
            yaxis={"autorange": "reversed", "showgrid": False},
            xaxis={"type": "category", "showgrid": False},
            margin={"l": 8, "r": 12, "t": 34, "b": 44},
        ),
    }


def _arrived(found: Body, group: str, bucket: str) -> int:
    each = found.get("groups", {}).get(group, {}).get(bucket)
    return int(each["arrived_count"]) if each else 0


def _against(value: float | None, reference: float | None, *, is_more_better: bool) -> float | None:
    """Return -1 (half the reference or less) to 1 (twice or more) on a logarithmic scale; worse is positive."""
    if value is None or reference is None:
        return None
    floor = 1e-9
    ratio = float(np.log2(max(value, floor) / max(reference, floor)) / np.log2(RATIO_MAX))
    return float(np.clip(-ratio if is_more_better else ratio, -1.0, 1.0))


def composition(series: Body, pool: str, language: str, t: Say) -> Figure:
    """Return one pool's composition over the run, stacked; what is reserved is a line over what is held."""
    at_s = series.get("at_s") or []
    found = series["pools"][pool]
    usable = found["usable_tokens"]
    data: list[Figure] = []
    for part in PARTS:
        values = np.asarray(found[f"{part}_tokens"], np.float32)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label(part, language),
                "x": at_s,
                "y": values,
                "customdata": at_s,
                "stackgroup": "parts",
                "line": {"width": 0, "color": TERMS[part].color},
                "fillcolor": f"{TERMS[part].color}/0.85",
                "hovertemplate": "%{y:.4s}<extra>" + label(part, language) + "</extra>",
            }
        )
    held = np.sum([found[f"{part}_tokens"] for part in ("active", "in_flight", "fragmentation")], axis=0)
    committed = held + np.asarray(found["reserved_tokens"])
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": label("committed", language),
            "x": at_s,
            "y": committed.astype(np.float32),
            "customdata": at_s,
            "line": {"width": 1.5, "color": TERMS["committed"].color},
            "hovertemplate": "%{y:.4s}<extra>" + label("committed", language) + "</extra>",
        }
    )
    layout = theme.layout(
        height=300,
        title=t("replay.composition_title", pool=number.plain(pool), tokens=number.compact(usable)),
        xaxis={"title": {"text": t("replay.axis_time")}, "ticksuffix": " s"},
        yaxis={"title": {"text": t("common.unit_tokens")}, "range": [0, max(usable, float(committed.max(initial=0)))]},
        hovermode="x unified",
        margin={"l": 8, "r": 12, "t": 64, "b": 40},
    )
    return {"data": data, "layout": layout}


def over_time(body: Body, series: Body, t: Say) -> Figure:
    """Return the 99th percentile of TTFT by time of arrival, one line a variant."""
    data = []
    for place, name in enumerate(body["policies"]):
        found = (series.get(name) or {}).get("ttft_over_time") or {}
        color, dash = line_style(place)
        if not found.get("at_s"):
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": number.plain(name),
                "x": found["at_s"],
                "y": found["p99"],
                "customdata": found["at_s"],
                "line": {"color": color, "dash": dash, "width": 1.6},
                "hovertemplate": "%{y:.3s}s<extra>" + number.plain(name) + "</extra>",
            }
        )
    layout = theme.layout(
        height=280,
        title=t("replay.over_time_title"),
        xaxis={"title": {"text": t("replay.axis_time")}, "ticksuffix": " s"},
        yaxis={"title": {"text": t("replay.axis_ttft_s")}, "ticksuffix": "s", "rangemode": "tozero"},
        hovermode="x unified",
        margin={"l": 8, "r": 12, "t": 64, "b": 40},
    )
    return {"data": data, "layout": layout}


def _families(body: Body) -> dict[str, list[str]]:
    """Return variants by policy: a sweep's points of one policy belong on one line."""
    families: dict[str, list[str]] = {}
    for name, found in body["policies"].items():
        families.setdefault(found["policy"], []).append(name)
    return families


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points no other beats: more throughput and less latency, ascending by throughput."""
    ordered = sorted(set(points), key=lambda point: (-point[0], point[1]))
    best = list(accumulate((latency for _, latency in ordered), min))
    kept = [point for place, point in enumerate(ordered) if place == 0 or point[1] < best[place - 1]]
    return sorted(kept)


def pareto(body: Body, t: Say) -> Figure:
    """Return the 99th percentile of TTFT against throughput, a point a variant; the frontier is what none beats."""
    data: list[Figure] = []
    points: list[tuple[float, float]] = []
    for place, (policy, names) in enumerate(_families(body).items()):
        color, dash = line_style(place)
        rows = [
            (found["throughput_tokens_per_s"], found["ttft_s"]["p99"], name)
            for name in names
            if (found := body["policies"][name])["ttft_s"]["p99"] is not None
        ]
        points += [(x, y) for x, y, _ in rows]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": number.plain(policy),
                "x": [row[0] for row in rows],
                "y": [row[1] for row in rows],
                "text": [number.plain(row[2]) for row in rows],
                "customdata": [row[2] for row in rows],
                "marker": {"size": 11, "color": color},
                "line": {"color": color, "dash": dash, "width": 1.5},
                "hovertemplate": "%{text}<br>%{x:.4s} tokens/s<br>p99 %{y:.3s}s<extra></extra>",
            }
        )
    best = frontier(points)
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": t("replay.frontier"),
            "x": [x for x, _ in best],
            "y": [y for _, y in best],
            "line": {"color": "@outline", "width": 1, "dash": "dot", "shape": "vh"},
            "hoverinfo": "skip",
        }
    )
    # Policies that differ by a token a second must not look far apart: the axis spans a tenth of their mean at least.
    low, high = min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0)
    margin = max(0.15 * (high - low), 0.05 * (high + low) / 2.0 - (high - low) / 2.0, 1e-9)
    layout = theme.layout(
        height=320,
        title=t("replay.pareto_title"),
        xaxis={"title": {"text": t("replay.axis_throughput")}, "range": [low - margin, high + margin]},
        yaxis={"title": {"text": t("replay.axis_ttft_p99")}, "ticksuffix": "s", "rangemode": "tozero"},
        margin={"l": 8, "r": 12, "t": 64, "b": 40},
    )
    return {"data": data, "layout": layout}


def is_swept(body: Body) -> bool:
    """Say whether the comparison has points of a sweep."""
    return any("point" in found for found in body["policies"].values())


def sweep(body: Body, t: Say) -> Figure:
    """Return TTFT p99 and retractions over the value swept, one line a policy, above each other."""
    data: list[Figure] = []
    name = ""
    for place, (policy, names) in enumerate(_families(body).items()):
        color, dash = line_style(place)
        found = [body["policies"][each] for each in names if "point" in body["policies"][each]]
        found.sort(key=lambda each: each["point"]["value"])
        if not found:
            continue
        name = str(found[0]["point"]["name"])
        x = [each["point"]["value"] for each in found]
        for axis, values, unit in (
            ("y", [each["ttft_s"]["p99"] for each in found], "s"),
            ("y2", [each["retraction_count"] for each in found], ""),
        ):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": number.plain(policy),
                    "legendgroup": policy,
                    "showlegend": axis == "y",
                    "x": x,
                    "y": values,
                    "yaxis": axis,
                    "line": {"color": color, "dash": dash, "width": 2},
                    "hovertemplate": "%{x}: %{y:.4s}" + unit + "<extra>" + number.plain(policy) + "</extra>",
                }
            )
    layout = theme.layout(
        height=420,
        title=t("replay.sweep_title", name=number.plain(name)),
        xaxis={"title": {"text": number.plain(name)}, "anchor": "y2"},
        yaxis={
            "title": {"text": t("replay.axis_ttft_p99")},
            "ticksuffix": "s",
            "domain": [0.55, 1.0],
            "rangemode": "tozero",
        },
        yaxis2={"title": {"text": t("replay.axis_retractions")}, "domain": [0.0, 0.42], "rangemode": "tozero"},
        margin={"l": 8, "r": 12, "t": 64, "b": 40},
    )
    return {"data": data, "layout": layout}

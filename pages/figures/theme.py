"""
Both themes' hues and the frame every figure shares. Figures name colours as `@name`; `palette()` says what they are.
"""

from collections.abc import Mapping
from typing import Any

from pages.figures.terms import STATES, TERMS

FONT = "Source Sans, Source Sans Pro, Noto Sans, Noto Sans SC, PingFang SC, Microsoft YaHei, sans-serif"

_FRAME = {
    "ink": ("#1B2430", "#EEF2F7"),
    "soft": ("#525C6B", "#AAB4C2"),
    "grid": ("#E3E8EE", "#2C3440"),
    "paper": ("#FFFFFF", "#0E1117"),
    "panel": ("#F5F7FA", "#171C25"),
    "outline": ("#7A8594", "#8893A2"),
    "accent": ("#0B5FAE", "#4E9BEA"),
    "good": ("#1B8A6B", "#3FBF98"),
    "warn": ("#B36B00", "#FFC15A"),
    "bad": ("#B3261E", "#FF7A70"),
    "s1": ("#0B5FAE", "#4E9BEA"),
    "s2": ("#D27A00", "#FFC15A"),
    "s3": ("#1B8A6B", "#3FBF98"),
    "s4": ("#A34F8B", "#D98BC4"),
    "s5": ("#5A46C2", "#B3A6FF"),
    "s6": ("#B93A0E", "#FF8A5C"),
    "s7": ("#3B88A5", "#7FCBE4"),
    "s8": ("#6B7280", "#A3ACB9"),
}
"""Frame hues, and s1..s8 for series that are no word of the vocabulary (pools side by side, policies)."""


def palette() -> dict[str, dict[str, str]]:
    """Return {"light": {name: hue}, "dark": {name: hue}} of every `@name` a figure may use."""
    themes: dict[str, dict[str, str]] = {"light": {}, "dark": {}}
    for name, (light, dark) in _FRAME.items():
        themes["light"][name], themes["dark"][name] = light, dark
    for term in TERMS.values():
        themes["light"][term.word], themes["dark"][term.word] = term.light, term.dark
    for state, (_, light, dark) in STATES.items():
        themes["light"][f"state_{state}"], themes["dark"][f"state_{state}"] = light, dark
    return themes


def layout(*, height: int, title: str = "", uirevision: str = "keep", **more: Any) -> dict[str, Any]:
    """
    Return the layout every figure starts from.

    Args:
        height: Pixels.
        title: The finding, in words; "" where the page has said it.
        uirevision: While it stays the same, the viewer's zoom, legend and selection stay too.
        more: Further layout keys; mappings are merged one level deep.
    """
    axis: dict[str, Any] = {
        "gridcolor": "@grid",
        "zerolinecolor": "@grid",
        "linecolor": "@outline",
        "tickcolor": "@outline",
        "tickfont": {"color": "@soft", "size": 12},
        "title": {"font": {"color": "@soft", "size": 12}},
        "automargin": True,
    }
    frame: dict[str, Any] = {
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": 12, "t": 34 if title else 10, "b": 34},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": "@ink"},
        "hoverlabel": {
            "bgcolor": "@panel",
            "bordercolor": "@outline",
            "font": {"color": "@ink", "size": 12, "family": FONT},
            "align": "left",
            "namelength": -1,
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12, "color": "@ink"},
            "bgcolor": "rgba(0,0,0,0)",
            "traceorder": "normal",
        },
        "xaxis": dict(axis),
        "yaxis": dict(axis),
        "uirevision": uirevision,
        "dragmode": "zoom",
    }
    if title:
        frame["title"] = {"text": title, "x": 0, "xanchor": "left", "font": {"size": 14, "color": "@ink"}}
    for key, value in more.items():
        base = axis if key.startswith(("xaxis", "yaxis")) else frame.get(key)
        merged = {**base, **value} if isinstance(base, Mapping) and isinstance(value, Mapping) else value
        if isinstance(merged, dict) and isinstance(merged.get("title"), Mapping) and base is axis:
            merged["title"] = {**axis["title"], **merged["title"]}
        frame[key] = merged
    return frame

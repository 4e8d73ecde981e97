"""
What is on screen, to take along: the values of the drawn figures as rows, and a page as one HTML file.

Figures are read back from what `live.pack` made, so what is taken along is what was drawn. Names from outside are
data: escaped in HTML, and never a formula in a spreadsheet.
"""

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly

from pages.figures import number
from pages.figures.fleet import committed_ratio
from pages.figures.theme import palette
from pages.figures.tour import used_ratio
from pages.texts import Say
from scoring.model import FleetSnapshot

COLUMNS: Final = ("figure", "series", "x", "y", "value")
MOST_ROWS: Final = 200_000
"""Chosen: a long history of a large fleet; more does not open in a spreadsheet."""
_KINDS: Final = {"f4": "<f4", "f8": "<f8", "i4": "<i4", "i2": "<i2", "u1": "u1"}
_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "\t", "\r")
_SCRIPT_PATH: Final = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """
    What a snapshot of a page says of it.

    Attributes:
        title: Its name.
        link: Address that reproduces the view.
        at: The instant, in words.
        language: `en` or `zh`.
    """

    title: str
    link: str
    at: str
    language: str


def values_of(value: Any) -> list[Any]:
    """Return the values of an axis as a list, typed arrays unpacked; a matrix as a list of rows."""
    if isinstance(value, Mapping) and "bdata" in value:
        flat = np.frombuffer(base64.b64decode(value["bdata"]), _KINDS[value["dtype"]])
        if "shape" in value:
            flat = flat.reshape([int(size) for size in value["shape"].split(",")])
        listed: list[Any] = flat.tolist()
        return listed
    return list(value) if isinstance(value, list) else []


def rows(payloads: Mapping[str, bytes]) -> dict[str, list[Any]]:
    """Return every drawn value as columns COLUMNS, figure by figure, at most MOST_ROWS; empty values left out."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def put(*row: Any) -> None:
        for name, value in zip(COLUMNS, row, strict=True):
            columns[name].append(value)

    for key, payload in payloads.items():
        for index, trace in enumerate(json.loads(payload)["figure"]["data"]):
            series = str(trace.get("name") or index + 1)
            xs, ys, zs = (values_of(trace.get(name)) for name in ("x", "y", "z"))
            if zs:
                for row, line in enumerate(zs):
                    for column, value in enumerate(line if isinstance(line, list) else [line]):
                        if value is not None and len(columns["figure"]) < MOST_ROWS:
                            put(key, series, _at(xs, column, trace, "x"), _at(ys, row, trace, "y"), value)
                continue
            for place in range(max(len(xs), len(ys))):
                x, y = _at(xs, place, trace, "x"), _at(ys, place, trace, "y")
                if len(columns["figure"]) < MOST_ROWS and (x is not None or y is not None):
                    value = x if trace.get("orientation") == "h" else y
                    put(key, series, x, y, value if isinstance(value, int | float) else None)
    return columns


def _at(values: Sequence[Any], place: int, trace: Mapping[str, Any], axis: str) -> Any:
    if place < len(values):
        return values[place]
    if f"{axis}0" in trace and not values:
        start, step = trace[f"{axis}0"], trace.get(f"d{axis}", 1)
        return start + place * step if isinstance(start, int | float) else None
    return place if not values else None


def _harmless(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value


def csv_bytes(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return columns as CSV; text that begins like a formula gets an apostrophe in front."""
    frame = pd.DataFrame({name: [_harmless(value) for value in values] for name, values in columns.items()})
    return frame.to_csv(index=False).encode()


def parquet_bytes(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Return columns as Parquet: figure, series, x and y as text (bars have names where lines have seconds), value."""
    texts = {name: [None if v is None else str(v) for v in columns[name]] for name in COLUMNS[:-1]}
    frame = pd.DataFrame({**texts, "value": pd.to_numeric(pd.Series(columns["value"]), errors="coerce")})
    out = io.BytesIO()
    frame.to_parquet(out, index=False)
    return out.getvalue()


def painted(node: Any, theme: str = "light", *, is_color: bool = False) -> Any:
    """Return a figure with the hues of one theme in place of `@name`, as the live component puts them in."""
    if isinstance(node, str):
        return _hue(node, theme) if is_color and node.startswith("@") else node
    if isinstance(node, list):
        return [painted(item, theme, is_color=is_color) for item in node]
    if isinstance(node, dict):
        return {
            key: value
            if key == "bdata"
            else painted(value, theme, is_color="color" in key.lower() or (is_color and isinstance(value, list)))
            for key, value in node.items()
        }
    return node


def _hue(text: str, theme: str) -> str:
    name, _, opacity = text[1:].partition("/")
    base = palette()[theme].get(name)
    if base is None or not opacity:
        return base or text
    red, green, blue = (int(base[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def fleet_rows(fleet: FleetSnapshot, t: Say) -> list[list[str]]:
    """Return the judged pools as a table of texts, its head first."""
    unknown = t("common.unknown")
    names = ("pool", "role", "state", "used", "committed", "available", "waiting", "age")
    head = [t(f"share.col_{name}") for name in names]
    return [
        head,
        *(
            [
                pool.pool_id,
                t(f"common.role_{pool.role.value}"),
                t(f"common.state_{pool.state.value}"),
                number.share(used_ratio(pool), unknown),
                number.share(committed_ratio(pool), unknown),
                number.amount(pool.composition.available_tokens.value, "tokens", unknown),
                number.compact(pool.waiting_count.value, unknown),
                number.age(pool.age_s, unknown),
            ]
            for pool in fleet.pools
        ),
    ]


def page_html(page: Page, payloads: Mapping[str, bytes], fleet: FleetSnapshot | None, t: Say) -> bytes:
    """
    Return one HTML file with the drawn figures, which still zoom, the judged pools and what was noticed.

    It asks nothing of any network: plotly.js stands in it.
    """
    figures = []
    scripts = []
    for place, payload in enumerate(payloads.values()):
        drawn = json.loads(payload)
        figure = painted(drawn["figure"])
        figure["layout"].setdefault("height", 420)
        # "</" inside a script would end it, whatever the text around.
        data = json.dumps(figure).replace("</", "<\\/")
        figures.append(
            f'<figure><figcaption>{html.escape(drawn["alt"])}</figcaption><div id="figure{place}"></div></figure>'
        )
        scripts.append(
            f"(f => Plotly.newPlot('figure{place}', f.data, f.layout, "
            f"{{responsive: true, displaylogo: false}}))({data});"
        )
    body = [
        f"<h1>{html.escape(page.title)}</h1>",
        f"<p>{html.escape(page.at)}<br><code>{html.escape(page.link)}</code></p>",
        *figures,
    ]
    if fleet is not None and fleet.pools:
        body.append(f"<h2>{html.escape(t('share.pools'))}</h2>{_table(fleet_rows(fleet, t))}")
        noticed = [("", finding) for finding in fleet.findings]
        noticed += [(pool.pool_id, finding) for pool in fleet.pools for finding in pool.findings]
        if noticed:
            lines = "".join(
                f"<li>{html.escape(f'{about}: ' if about else '')}<b>{html.escape(each.code)}</b> "
                f"{html.escape(t.said(each.text))}</li>"
                for about, each in noticed
            )
            body.append(f"<h2>{html.escape(t('share.findings'))}</h2><ul>{lines}</ul>")
    head = (
        f'<!doctype html><html lang="{page.language}"><head><meta charset="utf-8">'
        f"<title>{html.escape(page.title)} · {html.escape(page.at)}</title><style>{_STYLE}</style>"
        f"<script>{_SCRIPT_PATH.read_text(encoding='utf-8')}</script></head><body>"
    )
    return (head + "".join(body) + f"<script>{''.join(scripts)}</script></body></html>").encode()


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    below = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in rest)
    return f"<table><tr>{top}</tr>{below}</table>"


_STYLE: Final = (
    "body{font-family:system-ui,sans-serif;max-width:75rem;margin:1.5rem auto;padding:0 1rem;color:#1B2430}"
    "figure{margin:1.5rem 0}figcaption{font-size:.85rem;color:#525C6B}"
    "table{border-collapse:collapse;font-size:.9rem}"
    "td,th{border:1px solid #E3E8EE;padding:.25rem .6rem;text-align:left}"
    "code{word-break:break-all}"
)

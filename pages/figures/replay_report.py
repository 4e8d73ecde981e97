"""
A comparison as one self-contained HTML file: tables and figures with plotly.js inside, nothing fetched from anywhere.
"""

import html as markup
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from plotly.offline import get_plotlyjs

from pages.figures import live, number, replay, replay_table, theme
from pages.texts import Say, speaker
from simulation.compare import Comparison
from simulation.report_series import series_json

_STYLE = """
body { font: 15px/1.5 "Source Sans 3", "Noto Sans", "Noto Sans SC", system-ui, sans-serif; color: #1B2430;
       max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0.2rem; } h2 { font-size: 1.25rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #E3E8EE; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .soft { color: #525C6B; }
"""


def html(comparison: Comparison, body: Mapping[str, Any], language: str = "en") -> str:
    """Return the report of a comparison in one file."""
    return page(body, series_json(comparison), language)


def painted(node: Any, *, is_color: bool = False) -> Any:
    """Return a figure with the light theme's hues in place of `@name`, as the live component does in the browser."""
    hues = theme.palette()["light"]
    if isinstance(node, str):
        return _hue(node, hues) if is_color and node.startswith("@") else node
    if isinstance(node, Mapping):
        return {
            key: painted(value, is_color="color" in key.lower() or (is_color and isinstance(value, list)))
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [painted(item, is_color=is_color) for item in node]
    return node


def _hue(name: str, hues: Mapping[str, str]) -> str:
    word, _, opacity = name[1:].partition("/")
    base = hues.get(word)
    if base is None:
        return name
    if not opacity:
        return base
    red, green, blue = (int(base[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _table(columns: Mapping[str, list[str]], t: Say) -> str:
    if not columns or not next(iter(columns.values())):
        return ""
    head = "".join(f"<th>{markup.escape(t(f'replay.col_{name}'))}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{markup.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in zip(*columns.values(), strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return live.array(value) if value.dtype in (np.float32, np.float64) else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} does not go into a figure")


def page(body: Mapping[str, Any], series: Mapping[str, Any], language: str) -> str:
    """Return the report from a comparison's figures, as kept in the store or just made."""
    t = speaker(language)
    figures = [replay.pareto(body, t), replay.heat(body, "prompt", "ttft_s", "p99", t)]
    if replay.is_swept(body):
        figures.append(replay.sweep(body, t))
    if any((series.get(name) or {}).get("cdf") for name in body["policies"]):
        figures += [replay.cdf(body, series, metric, t) for metric in replay.METRICS]
        figures.append(replay.over_time(body, series, t))
        best = min(body["policies"], key=lambda name: body["policies"][name]["ttft_s"]["p99"] or float("inf"))
        for pool, found in (series.get(best) or {}).get("pools", {}).items():
            if found["role"] != "prefill":
                figures.append(replay.composition(series[best], pool, language, t))
    traffic = body["traffic"]
    notes = [t.said(note) for note in (*traffic["notes"], *body["notes"])]
    notes += [
        t("replay.skipped", count=each["count"], reason=t.said(each["reason"]), row=each["first_rows"][0])
        for each in traffic["rows"]["reasons"]
    ]
    told = t(
        "replay.told",
        requests=number.compact(traffic["request_count"]),
        span=number.duration(traffic["span_s"]),
        prompt=number.compact(traffic["prompt_tokens"]),
        output=number.compact(traffic["output_tokens"]),
        format=traffic["format"],
    )
    fleet = body["fleet"]
    roles = ", ".join(f"{count} {t(f'common.role_{role}')}" for role, count in fleet["pools"].items())
    # "<" inside the figures' JSON could end the script element early.
    packed = (
        msgspec.json.encode([painted(each) for each in figures], enc_hook=_encoded).decode().replace("<", "\\u003c")
    )
    title = markup.escape(t("replay.report_title"))
    seeds = t("replay.seeds_told", seeds=", ".join(str(seed) for seed in body["seeds"]))
    fleet_told = f"{roles}, {number.compact(fleet['usable_tokens'])} tokens, {', '.join(fleet['profiles'])}; {seeds}"
    divisions = "".join(f'<div id="f{place}"></div>' for place in range(len(figures)))
    listed = "".join(f"<li>{markup.escape(note)}</li>" for note in notes)
    drills = _table(replay_table.drills(body, t), t)
    return f"""<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>{title}</title>
<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>
<h1>{title}</h1>
<p class="soft">{markup.escape(told)}<br>{markup.escape(fleet_told)}</p>
{_table(replay_table.results(body, t), t)}
<h2>{markup.escape(t("replay.differences_title", baseline=body["baseline"]))}</h2>
<p class="soft">{markup.escape(t("replay.differences_help"))}</p>
{_table(replay_table.differences(body), t)}
{drills}
<ul>{listed}</ul>
{divisions}
<p class="soft">{markup.escape(t("replay.definitions"))}</p>
<script>({packed}).forEach((each, place) => Plotly.newPlot("f" + place, each.data, each.layout,
{{ responsive: true, displaylogo: false, plotlyServerURL: "", showSendToCloud: false }}));</script>
</body></html>
"""

"""
The Calibration page's figures and tables: coefficients against published ones, predictions against actuals, errors
over time, what the load has covered, versions, the reserve.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pages.figures import live, number, theme
from pages.texts import Say
from scoring.calibration import Coefficient, Told
from scoring.calibration_error import ErrorSample, ErrorSummary, Quantity
from scoring.calibration_service import ServiceFit, nearest_profile, predicted_steps_s
from scoring.calibration_windows import DecodeWindow
from scoring.service import PROFILES, ServiceProfile

MOST_POINTS: Final = 1500
"""Points of a scatter beyond which every n-th is drawn."""
COLORS: Final[Mapping[Quantity, str]] = {
    Quantity.STEP: "@s1",
    Quantity.PREFILL: "@s2",
    Quantity.TRANSFER: "@s3",
    Quantity.TTFT: "@s4",
    Quantity.OUTPUT: "@s5",
    Quantity.EXHAUSTION: "@s6",
}
_SKIPS: Final = {"restart": "restart", "other-model": "other_model", "gap": "gap", "same-figures": "same_figures"}


def published_of(fit: ServiceFit) -> ServiceProfile:
    """Return the published profile nearest to what was fitted, by its coefficients' ratios."""
    known = {each.name: each.value for each in fit.coefficients() if each.value and each.told is Told.FITTED}

    def distance(profile: ServiceProfile) -> float:
        ratios = [
            abs(math.log(value / getattr(profile, name)))
            for name, value in known.items()
            if getattr(profile, name, 0.0) > 0.0
        ]
        return sum(ratios) / len(ratios) if ratios else math.inf

    candidates = [profile for profile in PROFILES.values() if profile.curve == "linear"]
    return min(candidates, key=distance) if known else nearest_profile([])


def shown_coefficient(name: str, value: float | None) -> str:
    """Return a coefficient with its unit: seconds, seconds per million tokens squared, bytes per second."""
    if value is None:
        return number.ABSENT
    if name == "transfer_s_per_byte":
        return f"{number.significant(1.0 / value / 1e9)} GB/s" if value > 0 else "∞"
    if name == "prefill_per_token2_s":
        return f"{number.significant(value * 1e9)} ns/k²" if value >= 1e-3 else f"{number.significant(value * 1e12)} ps"
    if 0 < value < 1e-6:
        return f"{number.significant(value * 1e9)} ns"
    return number.duration(value)


def _published(profile: ServiceProfile, name: str) -> float | None:
    value = getattr(profile, name, None)
    return float(value) if value else None


def coefficient_table(fit: ServiceFit, published: ServiceProfile, t: Say) -> dict[str, list[str]]:
    """Return one row a coefficient that has rows behind it or a prior."""
    columns: dict[str, list[str]] = {
        name: [] for name in ("coefficient", "value", "low", "high", "told", "prior", "published", "difference")
    }
    for each in fit.coefficients():
        other = _published(published, each.name)
        difference = number.ABSENT
        if other is not None and each.value is not None and each.told is Told.FITTED:
            difference = f"{'+' if each.value >= other else ''}{number.share(each.value / other - 1.0)}"
        # A bandwidth is one over its coefficient: what is low there is high here.
        ends = (each.low, each.high) if each.name != "transfer_s_per_byte" else (each.high, each.low)
        values = (
            t(f"calibration.name_{each.name}"),
            shown_coefficient(each.name, each.value),
            shown_coefficient(each.name, ends[0]),
            shown_coefficient(each.name, ends[1]),
            t(f"calibration.told_{each.told.value}"),
            shown_coefficient(each.name, each.prior),
            shown_coefficient(each.name, other),
            difference,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def forest(fit: ServiceFit, published: ServiceProfile, at_s: float | None, t: Say) -> bytes:
    """Return fitted over published, one line a coefficient, with intervals; other published profiles as ticks."""
    told = [each for each in fit.coefficients() if _drawable(each, published)]
    names = [t(f"calibration.name_{each.name}") for each in told]
    places = list(range(len(told)))
    ratios, lows, highs = [], [], []
    for each in told:
        base = _published(published, each.name) or 1.0
        value = each.value or 0.0
        ratios.append(value / base)
        lows.append((value - (each.low if each.low is not None else value)) / base)
        highs.append(((each.high if each.high is not None else value) - value) / base)
    marks_x, marks_y, marks_text = [], [], []
    for place, each in zip(places, told, strict=True):
        base = _published(published, each.name) or 1.0
        for profile in PROFILES.values():
            other = _published(profile, each.name)
            if profile.curve == "linear" and profile is not published and other is not None and other / base < 4.0:
                marks_x.append(other / base)
                marks_y.append(place)
                marks_text.append(number.plain(profile.name))
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": marks_x,
            "y": marks_y,
            "hovertext": marks_text,
            "hovertemplate": "%{hovertext}: %{x:.2f}<extra></extra>",
            "marker": {"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": "@outline"}},
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": ratios,
            "y": places,
            "error_x": {"type": "data", "symmetric": False, "array": highs, "arrayminus": lows, "color": "@s1"},
            "marker": {"size": 10, "color": "@s1"},
            "hovertext": names,
            "hovertemplate": "%{hovertext}: %{x:.3f}<extra></extra>",
            "showlegend": False,
        },
    ]
    layout = theme.layout(
        height=70 + 34 * max(len(told), 1),
        xaxis={"title": {"text": t("calibration.ratio")}, "rangemode": "tozero"},
        yaxis={"tickvals": places, "ticktext": names, "autorange": "reversed", "showgrid": False},
        shapes=[
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "@good", "width": 2, "dash": "dot"},
            }
        ],
    )
    alt = t("calibration.forest_alt", profile=published.name, count=len(told))
    return _packed({"data": data, "layout": layout}, alt, "coefficients", at_s, t)


def _drawable(each: Coefficient, published: ServiceProfile) -> bool:
    return each.told is Told.FITTED and _published(published, each.name) is not None


def _packed(figure: dict[str, Any], alt: str, name: str, at_s: float | None, t: Say) -> bytes:
    age_text = t("common.data_age", age="{age}")
    return live.pack(
        figure, alt=alt, filename=f"kvscope-calibration-{name}", at_s=at_s, age_s=0.0, age_text=age_text, events=()
    )


def _thinned(count: int) -> slice:
    return slice(None, None, max(1, -(-count // MOST_POINTS)))


def scatter(samples: Sequence[ErrorSample], at_s: float | None, t: Say) -> bytes:
    """Return predicted against actual step times, those in the fit and those held out, on the diagonal or off it."""
    data: list[dict[str, Any]] = []
    largest, error = 0.0, math.nan
    steps = [each for each in samples if each.quantity is Quantity.STEP]
    for is_held_out, color, word in ((False, "@s8", "in_fit"), (True, "@s1", "held_out")):
        side = [each for each in steps if each.is_held_out is is_held_out]
        if not side:
            continue
        predicted = np.array([each.predicted for each in side]) * 1e3
        actual = np.array([each.actual for each in side]) * 1e3
        largest = max(largest, float(predicted.max()), float(actual.max()))
        if is_held_out:
            error = float(np.median(np.abs(actual / predicted - 1.0)))
        keep = _thinned(len(side))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": live.array(predicted[keep].astype(np.float32)),
                "y": live.array(actual[keep].astype(np.float32)),
                "name": t(f"calibration.{word}"),
                "marker": {"size": 5, "color": f"{color}/0.55"},
                "hovertemplate": "%{x:.2f} → %{y:.2f} ms<extra></extra>",
            }
        )
    line = {"color": "@good", "width": 1.5, "dash": "dot"}
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0.0, largest],
            "y": [0.0, largest],
            "line": line,
            "showlegend": False,
            "hoverinfo": "skip",
        }
    )
    layout = theme.layout(
        height=330,
        title=t("calibration.scatter"),
        margin={"l": 8, "r": 12, "t": 64, "b": 34},
        xaxis={"title": {"text": t("calibration.predicted_ms")}},
        yaxis={"title": {"text": t("calibration.actual_ms")}},
    )
    alt = t("calibration.scatter_alt", count=len(steps), error=number.share(error))
    return _packed({"data": data, "layout": layout}, alt, "predicted-actual", at_s, t)


def residuals(
    judged: Sequence[ErrorSample], running: Sequence[ErrorSample], split_at_s: float, at_s: float | None, t: Say
) -> bytes:
    """Return relative errors over time, a colour a quantity; hollow in the fit, full where held out."""
    data: list[dict[str, Any]] = []
    for quantity in Quantity:
        for is_held_out in (False, True):
            side = [each for each in judged if each.quantity is quantity and each.is_held_out is is_held_out]
            if is_held_out and not side:
                side = [each for each in running if each.quantity is quantity]
            if not side:
                continue
            keep = _thinned(len(side))
            times = np.array([each.at_s for each in side])[keep] * 1e3
            errors = np.array([each.error_ratio for each in side])[keep]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": live.array(times),
                    "y": live.array(np.clip(errors, -1.5, 1.5).astype(np.float32)),
                    "name": t(f"calibration.quantity_{quantity.value}"),
                    "legendgroup": quantity.value,
                    "showlegend": is_held_out,
                    "marker": {
                        "size": 5,
                        "color": f"{COLORS[quantity]}/0.6",
                        "symbol": "circle" if is_held_out else "circle-open",
                    },
                    "hovertemplate": "%{y:.1%}<extra></extra>",
                }
            )
    shapes = []
    if math.isfinite(split_at_s):
        shapes.append(
            {
                "type": "line",
                "x0": split_at_s * 1e3,
                "x1": split_at_s * 1e3,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "@soft", "width": 1.5, "dash": "dash"},
            }
        )
    layout = theme.layout(
        height=330,
        title=t("calibration.residuals"),
        margin={"l": 8, "r": 12, "t": 64, "b": 34},
        xaxis={"type": "date"},
        yaxis={"title": {"text": t("calibration.error_ratio")}, "tickformat": ".0%"},
        shapes=shapes,
    )
    when = number.clock(split_at_s if math.isfinite(split_at_s) else None)
    alt = t("calibration.residuals_alt", count=len(judged) + len(running), at=when)
    return _packed({"data": data, "layout": layout}, alt, "errors", at_s, t)


def coverage(windows: Sequence[DecodeWindow], at_s: float | None, t: Say) -> bytes:
    """Return where the rows lie by batch and KV: a line or a point tells less than a cloud."""
    batch = np.array([each.batch_count for each in windows])
    kv = np.array([each.kv_tokens for each in windows])
    step_ms = np.array([each.step_s for each in windows]) * 1e3
    correlation = math.nan
    if len(windows) > 2 and batch.std() > 0 and kv.std() > 0:
        correlation = float(np.corrcoef(batch, kv)[0, 1])
    keep = _thinned(len(windows))
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": live.array(batch[keep].astype(np.float32)),
            "y": live.array(kv[keep].astype(np.float32)),
            "marker": {
                "size": 5,
                "color": live.array(step_ms[keep].astype(np.float32)),
                "colorscale": [[0.0, "@s7"], [1.0, "@s6"]],
                "colorbar": {"title": {"text": "ms", "side": "right"}, "thickness": 10, "outlinewidth": 0},
                "opacity": 0.6,
            },
            "hovertemplate": "%{x:.1f}, %{y:.3s}: %{marker.color:.2f} ms<extra></extra>",
            "showlegend": False,
        }
    ]
    layout = theme.layout(
        height=300,
        xaxis={"title": {"text": t("calibration.batch")}, "rangemode": "tozero"},
        yaxis={"title": {"text": t("calibration.kv_tokens")}, "rangemode": "tozero"},
    )
    shown = number.ABSENT if math.isnan(correlation) else f"{correlation:.2f}"
    alt = t("calibration.coverage_alt", count=len(windows), correlation=shown)
    return _packed({"data": data, "layout": layout}, alt, "coverage", at_s, t)


def improvements(fit: ServiceFit) -> list[str]:
    """Return what is not told and what would tell it, the fits' own sentences; work it does not do is left out."""
    notes = list(fit.notes)
    for part in fit.fits():
        if part.row_count or part is fit.decode:
            notes += part.notes
    return list(dict.fromkeys(notes))


def skipped_text(skipped: Mapping[str, int], t: Say) -> str:
    """Return why pairs of readings were left out, "" when none was."""
    parts = [t(f"calibration.skip_{_SKIPS[word]}", count=count) for word, count in skipped.items() if word in _SKIPS]
    return t("calibration.skipped", reasons=", ".join(parts)) if parts else ""


def error_table(judged: Sequence[ErrorSummary], running: Sequence[ErrorSummary], t: Say) -> dict[str, list[Any]]:
    """Return one row a quantity, class, bucket and side."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("quantity", "class", "bucket", "side", "count", "bias", "p50", "p90", "p95", "p99")
    }
    rows = [(each, "held_out" if each.is_held_out else "in_fit") for each in judged]
    rows += [(each, "live_side") for each in running]
    for each, side in rows:
        quantiles = dict(each.quantile_ratios)
        values = (
            t(f"calibration.quantity_{each.quantity.value}"),
            t("common.all") if each.slo_class == "all" else each.slo_class,
            t("common.all") if math.isinf(each.bucket) else number.compact(each.bucket),
            t(f"calibration.{side}"),
            each.sample_count,
            number.share(each.bias_ratio),
            *(number.share(quantiles.get(q)) for q in (0.5, 0.9, 0.95, 0.99)),
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def version_table(
    versions: Sequence[Any], current: Any, windows: Sequence[DecodeWindow], t: Say
) -> dict[str, list[Any]]:
    """Return one row a version, newest first, compared at the median of the rows at hand."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("version", "created", "applied", "rows", "why", "step", "change")
    }
    base = None if current is None or not windows else float(np.median(predicted_steps_s(windows, current.profile)))
    for each in sorted(versions, key=lambda version: -version.version):
        step = float(np.median(predicted_steps_s(windows, each.profile))) if windows else None
        change = None if step is None or not base else step / base - 1.0
        is_current = current is not None and each.version == current.version
        values = (
            f"{each.version}{' ●' if is_current else ''}",
            number.instant(each.created_at_s),
            number.instant(each.applied_at_s),
            " / ".join(str(count) for count in each.rows.values()),
            t("calibration.by_hand") if each.reason == "by-hand" else t.said(each.reason),
            number.duration(step),
            number.ABSENT if change is None or is_current else number.share(change),
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def cost_curve(points: Sequence[tuple[float, float, float]], reserve_ratio: float, at_s: float | None, t: Say) -> bytes:
    """Return (reserve share, retractions per 100 requests, TTFT p95 s) as two lines over the reserve."""
    shares = [point[0] for point in points]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": shares,
            "y": [point[1] for point in points],
            "name": t("calibration.retractions"),
            "line": {"color": "@bad", "width": 2},
        },
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": shares,
            "y": [point[2] for point in points],
            "name": t("calibration.ttft_p95"),
            "line": {"color": "@s1", "width": 2},
            "yaxis": "y2",
        },
    ]
    layout = theme.layout(
        height=300,
        margin={"l": 8, "r": 8, "t": 40, "b": 34},
        xaxis={"title": {"text": t("calibration.reserve_share")}, "tickformat": ".0%"},
        yaxis={"title": {"text": t("calibration.retractions")}, "rangemode": "tozero"},
        yaxis2={
            "title": {"text": t("calibration.ttft_p95")},
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "showgrid": False,
        },
        shapes=[
            {
                "type": "line",
                "x0": reserve_ratio,
                "x1": reserve_ratio,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "@good", "width": 2, "dash": "dot"},
            }
        ],
    )
    alt = t("calibration.cost_alt", reserve=number.share(reserve_ratio))
    return _packed({"data": data, "layout": layout}, alt, "reserve-cost", at_s, t)

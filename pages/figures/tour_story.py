"""
The tour's figures of a course of events: two nodes to choose between, the saturation chain closing, a race of policies.

Read next: `tour` (the frame and the figures of one instant).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pages.figures import number
from pages.figures.fleet import committed_ratio, part_figures
from pages.figures.terms import STACK, label
from pages.figures.tour import SIZE, frame, note, packed, slope_per_s, used_ratio
from pages.texts import Say
from scoring.model import FleetSnapshot, FloatArray, PoolHistory, PoolSnapshot, pool_id

CHAIN_PAST_S: Final = 110.0
LABEL_S: Final = 28.0
"""So long is the width of the longest label of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """
    The chain of one pool as the tour draws it.

    Attributes:
        pool: Judged now.
        lit: The six stages in order, lit or not; None where nothing is known yet.
        probability: Newest probability of the alarm, None when not known.
        alarm_at_s: When the newest alarm of the time drawn went on, None without one.
        retraction_at_s: When the first retraction since then was noticed, None without one.
    """

    pool: PoolSnapshot
    lit: tuple[bool, ...] | None
    probability: float | None
    alarm_at_s: float | None
    retraction_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """
    Policies on the same requests.

    Attributes:
        at_s: Seconds of the run, ascending.
        missed: Policy name -> requests so far (by arrival) that broke their budget or were refused; same length.
        names: Policies in the order drawn.
    """

    at_s: FloatArray
    missed: dict[str, FloatArray]
    names: tuple[str, ...]


def two_nodes(
    fleet: FleetSnapshot,
    histories: Sequence[PoolHistory],
    names: tuple[str, str],
    t: Say,
    language: str,
    *,
    is_short: bool = False,
) -> bytes:
    """
    Return the two decode pools of the question as bars, with what the one number leaves out beside them.

    `is_short`: there is room for two lines a bar only.
    """
    by_id = {pool_id(item.last.worker_id, item.last.dp_rank): item for item in histories}
    pools = [pool for name in names for pool in fleet.pools if pool.pool_id == name]
    rows = [t("tour.node_a"), t("tour.node_b")][: len(pools)]
    data: list[dict[str, Any]] = []
    for word in STACK:
        values = []
        for pool in pools:
            part, usable = part_figures(pool).get(word), pool.composition.usable_tokens.value
            values.append(part.value / usable if part is not None and part.value is not None and usable else 0.0)
        if any(values):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label(word, language),
                    "y": rows,
                    "x": values,
                    "width": 0.62,
                    "marker": {"color": f"@{word}"},
                    "hovertemplate": "<b>%{fullData.name}</b> %{x:.0%}<extra></extra>",
                }
            )
    notes = []
    for row, pool in zip(rows, pools, strict=True):
        used = used_ratio(pool)
        notes.append(
            note(
                0.012,
                row,
                f"<b>{number.share(used, t('common.unknown'))}</b>",
                xanchor="left",
                font={"size": SIZE + 8, "color": "@ink"},
                bgcolor="@paper/0.85",
                borderpad=3,
            )
        )
        notes.append(
            note(
                1.03,
                row,
                _beside(pool, by_id.get(pool.pool_id), fleet.at_s, t, is_short=is_short),
                xanchor="left",
                align="left",
                font={"size": SIZE, "color": "@ink"},
            )
        )
    layout = frame(
        barmode="stack",
        yaxis={"autorange": "reversed", "showgrid": False, "tickfont": {"size": SIZE + 4, "color": "@ink"}},
        xaxis={"range": [0, 1.8], "tickvals": [0, 0.5, 1], "tickformat": ".0%"},
        margin={"l": 8, "r": 8, "t": 34, "b": 24},
        annotations=notes,
    )
    return packed({"data": data, "layout": layout}, "two-nodes", pools, fleet.at_s, t, t("tour.node_alt"))


def _beside(pool: PoolSnapshot, history: PoolHistory | None, at_s: float, t: Say, *, is_short: bool) -> str:
    """Return what the number leaves out: how many run, whether the pool grows, what its link has to do."""
    slope = slope_per_s(history, at_s) if history is not None else None
    usable = pool.composition.usable_tokens.value
    lines = [t("tour.node_running", count=number.compact(pool.running_count.value, t("common.unknown")))]
    if slope is None or not usable:
        lines.append(t("tour.node_unknown"))
    else:
        key = "tour.node_grows" if slope > 0.001 else "tour.node_shrinks" if slope < -0.001 else "tour.node_still"
        lines.append(t(key, rate=number.amount(abs(slope) * usable, "tokens/s")))
    travelling = pool.composition.in_flight_tokens.value
    is_busy = bool(travelling and usable and travelling > 0.02 * usable)
    lines.append(
        t("tour.node_link_busy", amount=number.amount(travelling, "tokens")) if is_busy else t("tour.node_link_idle")
    )
    return f"{lines[0]}, {lines[1]}<br>{lines[2]}" if is_short else "<br>".join(lines)


def chain(fleet: FleetSnapshot, history: PoolHistory | None, view: ChainView, t: Say) -> bytes:
    """Return one pool's used and committed share over time with alarm and first retraction, and the six stages."""
    data: list[dict[str, Any]] = []
    pool, at_s = view.pool, fleet.at_s
    usable = pool.composition.usable_tokens.value
    notes: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = [
        {"type": "line", "x0": -CHAIN_PAST_S, "x1": 0, "y0": 1, "y1": 1, "line": {"color": "@bad", "width": 2}}
    ]
    if history is not None and usable:
        keep = history.at_s >= at_s - CHAIN_PAST_S
        past_s = history.at_s[keep] - at_s
        used = history.columns["used_tokens"][keep] / usable
        reserve = history.columns["reserved_per_request_tokens"][keep] * history.columns["running_count"][keep]
        committed = used + np.nan_to_num(reserve) / usable
        for key, values, color, width in (
            ("tour.chain_committed", committed, "@reserved", 4),
            ("tour.chain_used", used, "@used", 3),
        ):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": past_s.tolist(),
                    "y": np.minimum(values, 1.3).tolist(),
                    "line": {"color": color, "width": width},
                    "hovertemplate": "%{y:.0%}<extra></extra>",
                    "showlegend": False,
                }
            )
            known = values[np.isfinite(values)]
            if len(known):
                text = t(key, share=number.share(float(known[-1])))
                notes.append(
                    note(
                        1.5,
                        min(float(known[-1]), 1.2),
                        f"<b>{text}</b>",
                        xanchor="left",
                        font={"size": SIZE + 1, "color": color},
                    )
                )
        _apart(notes)
    for when, key, color, place in (
        (view.alarm_at_s, "tour.chain_alarm", "@warn", 1.27),
        (view.retraction_at_s, "tour.chain_retracted", "@bad", 1.16),
    ):
        if when is not None and at_s - when < CHAIN_PAST_S:
            is_right = key == "tour.chain_retracted" and at_s - when > LABEL_S
            shapes.append(
                {
                    "type": "line",
                    "x0": when - at_s,
                    "x1": when - at_s,
                    "y0": 0,
                    "y1": place,
                    "line": {"color": color, "width": 3},
                }
            )
            notes.append(
                note(
                    when - at_s,
                    place,
                    f"<b>{t(key)}</b>",
                    # The alarm comes first: to its left and to the right of what follows, neither hides a line.
                    xanchor="left" if is_right else "right",
                    xshift=4 if is_right else -4,
                    bgcolor="@paper/0.8",
                    font={"size": SIZE + 1, "color": color},
                )
            )
    _stages(view, shapes, notes, t)
    layout = frame(
        xaxis={
            "range": [-CHAIN_PAST_S, 34],
            "tickvals": [-90, -60, -30, 0],
            "ticktext": [t("tour.seconds", count=count) for count in ("−90", "−60", "−30", "0")],
            "zeroline": False,
        },
        yaxis={"range": [0, 1.32], "tickvals": [0, 0.5, 1], "tickformat": ".0%", "domain": [0, 0.8]},
        margin={"l": 8, "r": 8, "t": 8, "b": 20},
        shapes=shapes,
        annotations=notes,
    )
    return packed({"data": data, "layout": layout}, "chain", [pool], at_s, t, t("tour.chain_alt"))


def _apart(notes: list[dict[str, Any]], least: float = 0.11) -> None:
    """Move the two labels at the right end apart where their lines meet."""
    if len(notes) >= 2 and abs(notes[0]["y"] - notes[1]["y"]) < least:
        notes[0]["y"] = notes[1]["y"] + least


def _stages(view: ChainView, shapes: list[dict[str, Any]], notes: list[dict[str, Any]], t: Say) -> None:
    """Add the chain as six boxes along the top, lit ones filled."""
    for index in range(6):
        x0, x1 = index / 6 + 0.004, (index + 1) / 6 - 0.004
        is_lit = view.lit is not None and view.lit[index]
        color = "@warn" if index < 2 else "@bad"
        shapes.append(
            {
                "type": "rect",
                "xref": "paper",
                "yref": "paper",
                "x0": x0,
                "x1": x1,
                "y0": 0.86,
                "y1": 1.0,
                "fillcolor": f"{color}/0.35" if is_lit else "rgba(0,0,0,0)",
                "line": {"color": color if is_lit else "@outline", "width": 3 if is_lit else 1},
            }
        )
        text = f"{index + 1} {t(f'tour.stage_{index + 1}')}"
        notes.append(
            note(
                (x0 + x1) / 2,
                0.93,
                f"<b>{text}</b>" if is_lit else text,
                xref="paper",
                yref="paper",
                xanchor="center",
                yanchor="middle",
                font={"size": SIZE - 2, "color": "@ink" if is_lit else "@soft"},
            )
        )


def race(found: Race, head_s: float, fleet: FleetSnapshot, words: dict[str, str], t: Say) -> bytes:
    """Return how many requests each policy has failed so far, up to `head_s` of the run."""
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    end_s = float(found.at_s[-1])
    place = int(np.searchsorted(found.at_s, min(head_s, end_s), side="right")) - 1
    highest = max(float(values[-1]) for values in found.missed.values()) or 1.0
    ends: list[float] = []
    for name, color in zip(found.names, ("@s6", "@s2", "@s3"), strict=False):
        values = found.missed[name][: place + 1]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": found.at_s[: place + 1].tolist(),
                "y": values.tolist(),
                "line": {"color": color, "width": 5},
                "hovertemplate": "%{y:.0f}<extra></extra>",
                "showlegend": False,
            }
        )
        last = float(values[-1]) if len(values) else 0.0
        while any(abs(last - other) < 0.14 * highest for other in ends):
            last += 0.15 * highest
        ends.append(last)
        text = f"<b>{words[name]}<br>{t('tour.race_missed', count=int(values[-1]) if len(values) else 0)}</b>"
        notes.append(
            note(
                min(head_s, end_s) + 0.012 * end_s,
                last,
                text,
                xanchor="left",
                align="left",
                font={"size": SIZE + 1, "color": color},
            )
        )
    layout = frame(
        xaxis={"range": [0, end_s * 1.42], "zeroline": False, "title": {"text": t("tour.race_x")}},
        yaxis={"range": [-0.04 * highest, highest * 1.2], "title": {"text": t("tour.race_y")}},
        margin={"l": 8, "r": 8, "t": 8, "b": 34},
        annotations=notes,
    )
    return packed({"data": data, "layout": layout}, "race", fleet.pools, fleet.at_s, t, t("tour.race_alt"))


def focus(fleet: FleetSnapshot) -> PoolSnapshot | None:
    """Return the decode pool that fills first: the smallest, by name among equals; None without one of known size."""
    pools = [
        pool
        for pool in fleet.pools
        if pool.role.value in ("decode", "unified")
        and pool.composition.usable_tokens.value
        and committed_ratio(pool) is not None
    ]
    decode = [pool for pool in pools if pool.role.value == "decode"] or pools
    return min(decode, key=lambda pool: (pool.composition.usable_tokens.value or 0.0, pool.pool_id), default=None)

"""
The tour's stampede: one herd of requests placed twice, on every decode pool as it is committed now.
"""

from typing import Any

from pages.figures import number
from pages.figures.fleet import committed_ratio
from pages.figures.tour import frame, note, packed, short
from pages.texts import Say
from scoring.herd import Herd
from scoring.model import FleetSnapshot


def stampede(fleet: FleetSnapshot, plain: Herd, careful: Herd, t: Say) -> bytes:
    """Return two ways to place one herd: each decode pool as it is committed now, and what comes on top."""
    pools = [pool for pool in fleet.pools if pool.pool_id in plain.placed and committed_ratio(pool) is not None]
    pools.sort(key=lambda pool: (committed_ratio(pool) or 0.0, pool.pool_id))
    pools = pools[:14]
    names = [short(pool) for pool in pools]
    now = [committed_ratio(pool) or 0.0 for pool in pools]
    data: list[dict[str, Any]] = []
    top = 1.1
    for place, herd in enumerate((plain, careful)):
        axis = "" if place == 0 else "2"
        added = [
            max((herd.utilization.get(pool.pool_id) or base) - base, 0.0) for pool, base in zip(pools, now, strict=True)
        ]
        added = [value if herd.placed.get(pool.pool_id) else 0.0 for value, pool in zip(added, pools, strict=True)]
        totals = [base + value for base, value in zip(now, added, strict=True)]
        top = max(top, max(totals, default=1.0) + 0.12)
        common = {"type": "bar", "x": names, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": False}
        data.append({**common, "y": now, "marker": {"color": "@used"}, "hovertemplate": "%{y:.0%}<extra></extra>"})
        data.append(
            {
                **common,
                "y": added,
                "marker": {"color": ["@bad" if total > 1 else "@s2" for total in totals]},
                "text": [
                    f"<b>+{herd.placed[pool.pool_id]}</b>" if herd.placed.get(pool.pool_id) else "" for pool in pools
                ],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "+%{y:.0%}<extra></extra>",
            }
        )
    half = [[0.0, 0.485], [0.515, 1.0]]
    axis_x = {"tickangle": -40, "showgrid": False}
    axis_y = {"range": [0, top], "tickvals": [0, 0.5, 1], "tickformat": ".0%"}
    layout = frame(
        barmode="stack",
        bargap=0.18,
        xaxis={**axis_x, "domain": half[0]},
        xaxis2={**axis_x, "domain": half[1], "anchor": "y2"},
        yaxis=axis_y,
        yaxis2={**axis_y, "matches": "y", "showticklabels": False, "anchor": "x2"},
        margin={"l": 8, "r": 8, "t": 64, "b": 20},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": side[0],
                "x1": side[1],
                "y0": 1,
                "y1": 1,
                "line": {"color": "@bad", "width": 2, "dash": "dot"},
            }
            for side in half
        ],
        annotations=[
            note(
                side[0],
                1.0,
                f"<b>{head}</b><br>{_herd_words(herd, t)}",
                xref="paper",
                yref="paper",
                xanchor="left",
                yanchor="bottom",
                align="left",
            )
            for side, head, herd in zip(
                half, (t("tour.herd_plain"), t("tour.herd_joint")), (plain, careful), strict=True
            )
        ],
    )
    return packed({"data": data, "layout": layout}, "stampede", pools, fleet.at_s, t, t("tour.herd_alt"))


def _herd_words(herd: Herd, t: Say) -> str:
    words = t("tour.herd_result", share=number.share(herd.worst_ratio), spread=pools_hit(herd))
    return words + (t("tour.herd_refused", count=herd.refused_count) if herd.refused_count else "")


def pools_hit(herd: Herd) -> int:
    """Return on how many pools a herd went."""
    return sum(count > 0 for count in herd.placed.values())

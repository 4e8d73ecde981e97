"""
The What-if page's bars of the seven terms: two pairs side by side, each term with its numbers and what they rest on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pages.figures import live, number, theme
from pages.figures.what_if import wrapped
from pages.texts import Say
from scoring import cost
from scoring.policy.explain import Term

TERM_COLORS: Final[Mapping[str, str]] = {
    "prefill_wait": "@s2",
    "prefill_compute": "@s1",
    "transfer": "@s7",
    "decode_wait": "@s5",
    "kv_pressure": "@s6",
    "slo_risk": "@bad",
    "prefix_benefit": "@good",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """
    One of the pairs set side by side.

    Attributes:
        name: As drawn.
        terms: The seven, in their order.
        rests: Term -> what its calibrated inputs rest on; terms without any are absent.
    """

    name: str
    terms: Sequence[Term]
    rests: Mapping[str, str] = field(default_factory=dict)


def term_bars(pairs: Sequence[Compared], age_s: float | None, at_s: float, t: Say) -> bytes:
    """Return stacked contributions of the seven terms, one bar a pair; the benefit goes to the left."""
    names = [number.plain(pair.name, 80) for pair in pairs]
    data: list[dict[str, Any]] = []
    for name in cost.TERMS:
        own = [next(term for term in pair.terms if term.name == name) for pair in pairs]
        values = [term.contribution if math.isfinite(term.contribution) else None for term in own]
        if not any(values):
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": t(f"what_if.term_{name}"),
                "x": values,
                "y": names,
                "marker": {
                    "color": TERM_COLORS[name],
                    "pattern": {
                        "shape": ["/" if term.is_unknown else "" for term in own],
                        "fgcolor": "@paper",
                        "size": 6,
                    },
                },
                "text": [
                    t(f"what_if.term_{name}") if value and abs(value) > 0.12 * _widest(pairs) else ""
                    for value in values
                ],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textfont": {"color": "@paper", "size": 12},
                "hovertext": [_hover(term, pair, t) for term, pair in zip(own, pairs, strict=True)],
                "hovertemplate": "<b>%{fullData.name}</b> %{x:.3f}<br>%{hovertext}<extra></extra>",
            }
        )
    layout = theme.layout(
        height=90 + 56 * len(names),
        barmode="relative",
        bargap=0.35,
        yaxis={"autorange": "reversed", "showgrid": False},
        xaxis={"title": {"text": t("what_if.axis_score")}, "zeroline": True, "zerolinecolor": "@outline"},
        margin={"l": 8, "r": 12, "t": 40, "b": 40},
        uirevision="terms",
    )
    return live.pack(
        {"data": data, "layout": layout},
        alt=t("what_if.terms_alt", pairs=", ".join(names)),
        filename="kvscope-what-if-terms",
        at_s=at_s,
        age_s=age_s,
        age_text=t("common.data_age", age="{age}"),
        events=(),
    )


def _hover(term: Term, pair: Compared, t: Say) -> str:
    lines = wrapped(t.said(term.formula))
    if term.name in pair.rests:
        lines += wrapped(t("what_if.rests", text=pair.rests[term.name]))
    return "<br>".join(number.plain(line, 120) for line in lines)


def _widest(pairs: Sequence[Compared]) -> float:
    sums = (
        sum(max(term.contribution, 0.0) for term in pair.terms if math.isfinite(term.contribution)) for pair in pairs
    )
    return max(sums, default=1.0) or 1.0

"""
Pieces several pages lay out: a key figure, findings, a table of pools.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from pages import _context as context
from pages.figures import number
from scoring.model import Finding, Severity

_SIGNS = {Severity.ERROR: ":material/error:", Severity.WARNING: ":material/warning:", Severity.INFO: ":material/info:"}
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "orange", Severity.INFO: "blue"}
_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def key_figure(title: str, value: str, detail: str, help_: str) -> None:
    """Draw one number with a line beneath that is no change of it."""
    with st.container(border=True, gap=None, height="stretch"):
        st.metric(title, value, help=help_)
        st.caption(number.unbroken(detail))


def findings(found: Sequence[tuple[str, Finding]], most: int = 4, *, is_calm: bool = True) -> None:
    """
    Draw findings, gravest first, as (what it is about, finding); one line a code, all that share it named.

    `is_calm`: where there are none, say so; False where something else is wrong already.
    """
    t = context.say()
    by_code: dict[str, list[tuple[str, Finding]]] = {}
    for about, finding in sorted(found, key=lambda item: (_RANK[item[1].severity], item[1].code, item[0])):
        by_code.setdefault(finding.code, []).append((about, finding))
    lines = []
    for code, group in by_code.items():
        about, finding = group[0]
        names = ", ".join(number.markdown(name, 60) for name, _ in group[:6] if name)
        more = f" +{len(group) - 6}" if len(group) > 6 else ""
        badge = f":{_COLORS[finding.severity]}[{_SIGNS[finding.severity]} **{number.markdown(code, 60)}**]"
        lines.append(f"{badge} {names}{more}: {number.markdown(t.said(finding.text))}")
    if not lines and not is_calm:
        return
    if not lines:
        st.caption(f":material/check_circle: {t('fleet.findings_none')}")
        return
    with st.container(border=True, gap="xsmall"):
        for line in lines[:most]:
            st.markdown(line)
        if len(lines) > most:
            with st.expander(t("fleet.findings_more", count=len(lines) - most)):
                for line in lines[most:]:
                    st.markdown(line)


def text_table(
    columns: Mapping[str, Sequence[Any]], page: str, *, wide: Sequence[str] = (), most_rows: int | None = None
) -> None:
    """Draw columns as a table headed by `<page>.col_<name>`; cells are text, never markup."""
    t = context.say()
    size = len(next(iter(columns.values()), ()))
    st.dataframe(
        dict(columns),
        hide_index=True,
        placeholder="–",
        height=min(size, most_rows or size) * 35 + 38,
        column_config={
            name: st.column_config.Column(t(f"{page}.col_{name}"), width="large" if name in wide else None)
            for name in columns
        },
    )

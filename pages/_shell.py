"""
What stands around every page: the language, live and instant controls in the sidebar, and the navigation.
"""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from pages import _context as context
from pages.figures import number
from pages.texts import LANGUAGES

_STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding: 2.2rem 2.5rem 3rem; }
[data-testid="stMetricValue"] { font-size: 1.7rem; }
[data-testid="stMetricLabel"] p { font-weight: 600; }
h1 { padding: 0 0 0.25rem; }
</style>"""
"""An operator's screen: the first row of bars belongs above the fold."""

ROOT = Path(__file__).resolve().parent


def render(pages: Sequence[tuple[str, str]]) -> None:
    """
    Draw the sidebar and run the page the viewer asked for.

    Args:
        pages: (word, icon) in the order of the navigation; the first is the front page. `word` names
            `pages/<word>.py`, its URL `/<word>` and its title `common.nav_<word>`.
    """
    t = context.say()
    st.set_page_config(page_title=t("common.product"), page_icon=":material/stacked_bar_chart:", layout="wide")
    chosen = st.navigation(
        [
            st.Page(
                ROOT / f"{word}.py",
                title=t(f"common.nav_{word}"),
                icon=icon,
                url_path=word,
                default=place == 0,
            )
            for place, (word, icon) in enumerate(pages)
        ]
    )
    st.html(_STYLE)
    with st.sidebar:
        _controls()
    chosen.run()


def _controls() -> None:
    t = context.say()
    st.toggle(t("common.live"), value=True, key="live", help=t("common.live_help"), bind="query-params")
    st.text_input(
        t("common.instant"),
        key="at",
        help=t("common.instant_help"),
        placeholder="2026-11-30 14:05:00",
        bind="query-params",
    )
    text = str(st.session_state.get("at") or "").strip()
    at_s = context.past_at_s()
    if text and at_s is None:
        st.warning(t("common.instant_bad", text=number.markdown(text)))
    st.segmented_control(
        t("common.language"),
        list(LANGUAGES),
        default="en",
        required=True,
        format_func=LANGUAGES.__getitem__,
        key="lang",
        bind="query-params",
    )

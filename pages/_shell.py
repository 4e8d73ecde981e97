"""
What stands around every page: the language, live and instant controls in the sidebar, and the navigation.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages import _share as share
from pages.figures import number
from pages.texts import LANGUAGES, speaker

_STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding: 2.2rem 2.5rem 3rem; }
[data-testid="stMetricValue"] { font-size: clamp(1.05rem, 1.45vw, 1.7rem); }
[data-testid="stMetricLabel"] p { font-weight: 600; }
[data-testid="stMainBlockContainer"] [data-testid="stButtonGroup"] button { min-height: 2.5rem; }
h1 { padding: 0 0 0.25rem; }
</style>"""
"""An operator's screen: the first row of bars belongs above the fold."""

_ALWAYS_NOW = ("sources", "calibration", "replay", "glossary")
"""Pages that show no instant but this one, whatever the link says."""

ROOT = Path(__file__).resolve().parent


def render(pages: Sequence[tuple[str, str]]) -> None:
    """
    Draw the sidebar and run the page the viewer asked for.

    Args:
        pages: (word, icon) in the order of the navigation; the first is the front page. `word` names
            `pages/<word>.py`, its URL `/<word>` and its title `common.nav_<word>`.
    """
    st.set_page_config(
        page_title=speaker("en")("common.product"),
        page_icon=str(ROOT / "static" / "icon.png"),
        layout="wide",
        initial_sidebar_state=220,
    )
    with st.sidebar:
        _language()
    t = context.say()
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
        _global_controls()
    at_s = context.past_at_s()
    if at_s is not None:
        word = "common.past" if at_s <= time.time() else "common.future"
        if chosen.url_path in _ALWAYS_NOW:
            word = "common.always_now"
        st.info(t(word, at=number.instant(at_s)), icon=":material/history:")
    # The front page's own path is empty.
    is_front = not chosen.url_path
    word = chosen.url_path or pages[0][0]
    context.arrive(word)
    share.begin(word)
    chosen.run()
    with st.sidebar:
        share.draw(context.say(), context.language(), context.snapshot_or_none(), is_front=is_front)


def _global_controls() -> None:
    t, language = context.say(), context.language()
    controls.switch("live", t("common.live"), language, t("common.live_help"), default=True)
    text = controls.text(
        "at",
        t("common.instant"),
        language,
        placeholder="2026-11-30 14:05:00",
        help_=t("common.instant_help"),
    )
    if text and context.past_at_s() is None:
        st.warning(t("common.instant_bad", text=number.markdown(text)))


def _language() -> None:
    """Draw the language first of all, since every other text depends on it."""
    st.session_state["lang"] = controls.segments(
        "lang", context.say()("common.language"), list(LANGUAGES), "en", LANGUAGES.__getitem__, "any"
    )

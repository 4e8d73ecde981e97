"""
What stands around a step of the tour: the large type, and the ways to another step and to the other language.
"""

from typing import Final

import streamlit as st

from pages import _context as context
from pages.texts import LANGUAGES

STYLE: Final = """<style>
[data-testid="stSidebar"], [data-testid="stExpandSidebarButton"] { display: none; }
[data-testid="stMainBlockContainer"] { padding: 3.5rem 2.5rem 0.2rem; max-width: 100%; }
[data-testid="stMainBlockContainer"] h1 { font-size: clamp(1.7rem, 2.5vw, 3rem); padding: 0; line-height: 1.15; }
.st-key-tour_text p { font-size: clamp(1.05rem, 1.4vw, 1.7rem); line-height: 1.4; max-width: 75em; }
.st-key-tour_full .kv-plot { height: calc(100vh - 15.6rem - 4vw); min-height: 240px; }
.st-key-tour_mid .kv-plot { height: calc(100vh - 18.6rem - 4vw); min-height: 200px; }
.st-key-tour_half .kv-plot { height: calc((100vh - 18.6rem - 4vw) * 0.5); min-height: 150px; }
.st-key-tour_terms .kv-plot { height: calc((100vh - 18.6rem - 4vw) * 0.5); }
.st-key-tour_stage { min-height: calc(100vh - 10rem); }
.st-key-tour_bar p { white-space: nowrap; }
</style>"""
"""Large type, and figures as tall as the screen lets them be, from 1280x720 to 1920x1080 without scrolling."""


def go(place: int) -> None:
    """Go to another step; its address says it."""
    st.query_params["step"] = str(place + 1)
    st.rerun()


def other_language() -> None:
    """Draw the switch to the other language, since the sidebar that holds it is out of the way here."""
    word = "en" if context.language() == "zh" else "zh"
    if st.button(LANGUAGES[word], type="tertiary", key="tour.lang"):
        st.query_params["lang"] = word
        st.rerun()


def dots(place: int, count: int) -> str:
    """Return where the viewer is, as text and as a row of dots."""
    row = " ".join("●" if index == place else "○" for index in range(count))
    return f"{context.say()('tour.of', step=place + 1, count=count)} {row}"

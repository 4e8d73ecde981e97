"""The opening page: what is being watched, what is wrong now, what to look at; without a fleet, how to begin."""

import streamlit as st

from pages import _context as context
from pages import _home_parts as parts

t = context.say()
st.html(parts.STYLE)
if context.is_unwatched():
    parts.first_minute()
    st.subheader(t("home.probe_title"), anchor=False)
    parts.probe_form()
    st.stop()
context.runtime()
st.title(t("home.title"))


def body() -> None:
    """Draw what follows the tick."""
    fleet = context.snapshot()
    if parts.is_empty(fleet):
        return
    known = parts.chains_or_none()
    parts.watched(fleet)
    parts.wrong(fleet, known)
    st.subheader(t("home.look_title"), anchor=False)
    parts.cards(fleet, known)


context.live_part(body)
parts.questions()
with st.expander(t("home.probe_title")):
    parts.probe_form()

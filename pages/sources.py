"""The Sources page: can this number be trusted? Per worker what was asked, answered, understood, since when."""

import streamlit as st

from pages import _context as context
from pages import _sources_parts as parts

t = context.say()
running = context.runtime()
st.title(t("sources.title"))
st.caption(t("sources.lead"))

names = [view.worker_id for view in running.sources()]
if not names:
    st.info(t("common.no_workers"))
    st.stop()


def body() -> None:
    """Draw what follows the tick."""
    fleet = context.snapshot()
    parts.health()
    parts.overview()
    parts.one(parts.choose(), fleet)
    parts.routers(fleet)
    parts.lists()


context.live_part(body)

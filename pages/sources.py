"""The Sources page."""

import streamlit as st

from pages import _context as context

t = context.say()
st.title(t("common.nav_sources"))
context.runtime()

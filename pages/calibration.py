"""The Calibration page: what this fleet takes, how far predictions are off, and what would make them better."""

import streamlit as st

from collectors.errors import KvscopeError
from pages import _calibration_parts as parts
from pages import _context as context
from pages import _controls as controls

t, language = context.say(), context.language()
st.title(t("calibration.title"))
st.caption(t("calibration.intro"))
learner = parts.learner()
try:
    names = [each.kind.name for each in learner.state().kinds]
except KvscopeError as error:
    context.read_failed(error)
    st.stop()
if not names:
    st.info(t("calibration.nothing"))
    context.live_part(parts.wait_for_kinds)
    st.stop()
spots = st.columns([3, 2, 3])
with spots[0]:
    name = controls.select("kind", t("calibration.kind"), parts.ordered(names), language, width=420)
with spots[1]:
    offered, stated = parts.promises(learner), str(learner.promise_ratio)
    promise = controls.segments("slo", t("calibration.promise"), offered, stated, parts.promise_words, language)
context.live_part(lambda: parts.actions(learner, name), every_s=parts.EVERY_S)
context.live_part(lambda: parts.body(learner, name, float(promise)), every_s=parts.EVERY_S)
parts.cost(learner, name, float(promise))

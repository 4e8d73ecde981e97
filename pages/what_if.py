"""The What-if page: here is a request; where does it go, by how much, and why not elsewhere?"""

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages import _what_if_form as form
from pages import _what_if_given as given
from pages import _what_if_parts as parts
from pages.figures import number
from scoring.calibration_in_use import InUse
from scoring.what_if import Question

t, language = context.say(), context.language()
context.runtime()
st.title(t("what_if.title"))
st.caption(t("what_if.intro"))
asked = form.draw(language)
# One snapshot for everything drawn in one run; a part that ticks by itself later takes the newest.
drawing = {"fleet": context.snapshot()}


def asking(*, is_first: bool = False) -> tuple[Question, InUse] | None:
    """
    Return the form's question on the fleet of this tick, and what calibration gives it; None where there is nothing to
    ask. `is_first`: this part of the page draws why.
    """
    fleet = drawing.get("fleet") or context.snapshot()
    if not fleet.pools:
        if is_first:
            context.draw_empty("what_if.no_pools")
        return None
    try:
        known = form.given(asked, fleet)
        return form.question(asked, fleet, known), known
    except ValueError as error:
        if is_first:
            st.error(t("what_if.bad_request", reason=number.markdown(t.said(error))))
        return None


def choice() -> None:
    """Draw the choice and every pair's score."""
    found = asking(is_first=True)
    if found is None:
        return
    question, _ = found
    absent = form.absent_pools(asked, question.fleet)
    if absent:
        st.warning(t("what_if.unknown_pool", pools=number.markdown(", ".join(absent))))
    decision = parts.decided(question, asked)
    parts.verdict(decision)
    parts.key_figures(decision)
    parts.score_map(decision, asked)


def reasons() -> None:
    """Draw what the choice is made of, what else was possible, and what would change it."""
    found = asking()
    if found is None:
        return
    question, known = found
    decision = parts.decided(question, asked)
    parts.compared(decision, question, pair_words, known)
    given.reserve(decision, question, known)
    given.sources(decision, asked, known)
    parts.lists(decision)
    parts.policies(question, asked)
    parts.placed(decision, question, asked)
    parts.sensitivity(decision, question, asked, is_on=is_sensitive)


def stampede() -> None:
    """Draw the herd experiment and the link."""
    found = asking()
    if found is None:
        return
    question, _ = found
    parts.herd(question, asked, *herd)
    parts.link(question.fleet.at_s)


context.live_part(choice)
st.subheader(t("what_if.terms_title"))
pair_words = form.compare(form.pair_options(drawing["fleet"]), language)
is_sensitive = controls.switch(
    "flips", t("what_if.sensitivity_on"), language, t("what_if.sensitivity_help"), default=True
)
context.live_part(reasons)
st.subheader(t("what_if.herd_title"))
st.caption(t("what_if.herd_intro"))
herd = form.herd(language)
context.live_part(stampede)
drawing.clear()

"""The What-if page: here is a request; where does it go, by how much, and why not elsewhere?"""

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages import _what_if_form as form
from pages import _what_if_parts as parts
from pages.figures import number
from scoring.herd import HERD_RANGE
from scoring.policy import POLICIES

t, language = context.say(), context.language()
context.runtime()
st.title(t("what_if.title"))
st.caption(t("what_if.intro"))
asked = form.draw(language)


def result() -> None:
    """Draw the decision on the fleet as it is at this tick."""
    fleet = context.snapshot()
    if not fleet.pools:
        st.info(t("what_if.no_pools"))
        return
    absent = form.absent_pools(asked, fleet)
    if absent:
        st.warning(t("what_if.unknown_pool", pools=number.markdown(", ".join(absent))))
    try:
        question = form.question(asked, fleet)
    except ValueError as error:
        st.error(t("what_if.bad_request", reason=number.markdown(error)))
        return
    decision = parts.decided(question, asked)
    parts.verdict(decision)
    parts.key_figures(decision)
    parts.score_map(decision, asked)
    st.subheader(t("what_if.terms_title"))
    parts.compared(decision, question, pair_words)
    parts.lists(decision)
    parts.policies(question, asked)
    parts.placed(decision, question, asked)
    parts.sensitivity(decision, question, asked, is_on=is_sensitive)
    st.subheader(t("what_if.herd_title"))
    st.caption(t("what_if.herd_intro"))
    parts.herd(question, asked, herd_policy, herd_count, herd_age_s)
    parts.link(fleet.at_s)


with st.sidebar:
    pair_words = form.compare(form.pair_options(context.snapshot()), language)
    is_sensitive = controls.switch(
        "flips", t("what_if.sensitivity_on"), language, t("what_if.sensitivity_help"), default=True
    )
    st.markdown(f"**{t('what_if.herd_title')}**")
    herd_policy = form.choice(
        "herd",
        t("what_if.herd_policy"),
        ["lowest-utilization", *(name for name in POLICIES if name != "lowest-utilization")],
        lambda name: POLICIES[name].title if name in POLICIES else name,
        language,
    )
    herd_policy = herd_policy if herd_policy in POLICIES else "lowest-utilization"
    herd_count = form.whole("n", t("what_if.herd_count"), 16, (HERD_RANGE[0], 256), language)
    herd_age_s = form.slider("age", t("what_if.herd_age"), 1.0, 60.0, language, "herd")

context.live_part(result)

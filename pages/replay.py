"""The Replay page: the same traffic under another policy; what would it have cost, and is the difference real?"""

import uuid

import streamlit as st

from pages import _context as context
from pages import _replay_form as form
from pages import _replay_jobs as jobs
from pages import _replay_parts as parts
from pages.figures import number

t, language = context.say(), context.language()
context.runtime()
st.title(t("replay.title"))
st.caption(t("replay.intro"))
viewer = st.session_state.setdefault("replay.viewer", uuid.uuid4().hex)
asked = form.Form(language)
work = jobs.of(viewer)
is_running = work is not None and work.state == "running"
if st.button(t("replay.start"), type="primary", icon=":material/play_arrow:", disabled=is_running, key="replay.start"):
    st.session_state.pop("replay.moment", None)
    st.session_state.pop("replay.files", None)
    try:
        jobs.start(viewer, asked.order())
    except (form.NotReadyError, jobs.BusyError) as error:
        st.warning(t.said(error))
    else:
        st.rerun()  # So that the button above knows of it.
st.caption(t("replay.link"))

if work is not None and work.state == "running":
    parts.progress(viewer)
elif work is not None and work.state == "cancelled":
    st.info(t("replay.cancelled"))
elif work is not None and work.state == "failed":
    st.error(t("replay.failed", reason=number.markdown(t.said(work.reason))))

st.subheader(t("replay.kept_title"))
chosen = parts.kept(language)
outcome = work.outcome if work is not None and work.state == "done" else None
shown = dict(chosen)
if outcome is not None and (not chosen or st.session_state.get("replay.with_current")):
    shown = {t("replay.current"): {"body": outcome.body, "series": outcome.series}, **chosen}
if outcome is not None and chosen:
    st.checkbox(t("replay.current"), key="replay.with_current")
if shown:
    body, series, differ = jobs.merged(shown)
    parts.told(body)
    if differ:
        st.warning(t("replay.kept_differ", what=", ".join(differ)))
    parts.results(body)
    at_s = parts.charts(body, series, f"{viewer}.{'|'.join(shown)}.{id(work)}")
    parts.moment(outcome if not chosen else None, at_s)
    parts.pools(body)
    if outcome is not None and not chosen:
        parts.keep(outcome)
elif work is None:
    st.info(t("replay.nothing"))

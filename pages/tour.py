"""The Tour page: the argument as a live story of seven steps, for a room of people."""

import streamlit as st

from pages import _context as context
from pages import _tour_parts as parts
from pages import _tour_stage as stage
from pages.figures import number

t, language = context.say(), context.language()
context.runtime()
st.html(stage.STYLE)
COUNT = len(parts.STEPS)
place = stage.place_now(COUNT)
step = parts.STEPS[place]
is_asked_again = bool(st.session_state.pop("tour.again", False))
parts.enter(place, again=is_asked_again)


def body() -> None:
    """Draw the step from the fleet of this tick."""
    fleet = context.snapshot()
    if not any(pool.state.is_scored for pool in fleet.pools):
        parts.head(t(f"tour.title_{step.word}", **parts.BLANK), t("tour.no_fresh") if fleet.pools else "")
        if not fleet.pools:
            context.draw_empty("tour.no_pools")
        return
    step.draw(fleet)


def footer() -> None:
    """Draw what the demo plays."""
    state = parts.demo_state()
    if state is None:
        st.caption(t("tour.live_fleet"))
        return
    st.caption(
        t("tour.plays", scenario=number.markdown(state.scenario), elapsed=number.duration(round(state.elapsed_s)))
    )


with st.container(key="tour_stage"):
    context.live_part(body, every_s=1.0)
with st.container(horizontal=True, vertical_alignment="center", key="tour_bar"):
    st.button(
        t("tour.back"),
        icon=":material/arrow_back:",
        help=t("tour.keys"),
        disabled=place == 0,
        key="tour.back",
        on_click=stage.turn,
        args=(-1,),
    )
    with st.container(key="tour_where", width="stretch"):
        st.markdown(stage.dots(place, COUNT))
        context.live_part(footer)
    if st.button(t("tour.restart"), icon=":material/replay:", key="tour.restart", type="tertiary"):
        st.session_state["tour.again"] = True
        st.rerun()
    parts.explore(step)
    stage.other_language()
    if st.button(t("tour.leave"), icon=":material/close:", key="tour.leave", type="tertiary"):
        stage.leave("home")
    if place + 1 < COUNT:
        st.button(
            t("tour.next"),
            icon=":material/arrow_forward:",
            type="primary",
            help=t("tour.keys"),
            key="tour.next",
            on_click=stage.turn,
            args=(1,),
        )
    elif st.button(t("tour.finish"), icon=":material/flag:", type="primary", key="tour.finish"):
        stage.leave("fleet")

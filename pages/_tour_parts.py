"""
The tour's seven steps: what each plays on the demo fleet, draws, and links to. The page lays them out.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import streamlit as st

from collectors import alerts
from collectors.demo_control import DemoControl, DemoControlError, DemoState
from collectors.errors import KvscopeError
from pages import _context as context
from pages import _tour_race as racing
from pages._decide_settings import decide_settings
from pages.figures import number
from pages.figures import tour as figures
from pages.figures import tour_herd as herds
from pages.figures import tour_story as story
from pages.figures import what_if_terms as terms_figures
from scoring.chain import EVENT_ALARM, EVENT_SIGN
from scoring.chain_evidence import STAGES, Stage
from scoring.demand import RequestView, known_output
from scoring.herd import herd
from scoring.model import FleetSnapshot, PoolSnapshot, Role, pool_id
from scoring.policy import DecideSettings, Decision, decide

HERD_COUNT: Final = 40
HERD_REQUEST: Final = RequestView(prompt_tokens=3_000, output=known_output(500.0))
CHOICE_REQUEST: Final = RequestView(prompt_tokens=8_000, output=known_output(400.0))
SHARES: Final = ("decode-1/0", "decode-2/0")
NODES: Final = ("decode-4/0", "decode-5/0")
"""The pools that the demo's scenarios `same-share` and `two-choices` act on."""
CASE_GAP_RATIO: Final = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    One step of the tour.

    Attributes:
        word: Key of its texts.
        scenario: What the demo fleet plays.
        page: The page that explores it.
        draw: Draws title, text and figure from the fleet of this tick.
        query: URL parameters of the link.
    """

    word: str
    scenario: str
    page: str
    draw: Callable[[FleetSnapshot], None]
    query: Mapping[str, str]


def head(title: str, text: str) -> None:
    """Draw the title and the two sentences of a step."""
    st.title(title, anchor=False)
    with st.container(key="tour_text"):
        st.markdown(text)


def _decode(fleet: FleetSnapshot) -> list[PoolSnapshot]:
    return [pool for pool in fleet.pools if pool.role is not Role.PREFILL and figures.used_ratio(pool) is not None]


def two_of(fleet: FleetSnapshot, wanted: tuple[str, str]) -> tuple[str, str] | None:
    """Return the wanted pools where the fleet has them, else its least and its most used pool that decodes."""
    pools = sorted(_decode(fleet), key=lambda pool: (figures.used_ratio(pool) or 0.0, pool.pool_id))
    names = [pool.pool_id for pool in pools]
    if set(wanted) <= set(names):
        return wanted
    return (names[0], names[-1]) if len(names) > 1 else None


# The steps.


def phases(fleet: FleetSnapshot) -> None:
    """Draw two phases, one cache."""
    t, language = context.say(), context.language()
    head(t("tour.title_phases"), t("tour.text_phases"))
    figure("phases", fleet, lambda: figures.two_phases(fleet, t, language))


def one_number(fleet: FleetSnapshot) -> None:
    """Draw what one number hides."""
    t, language = context.say(), context.language()
    pools = figures.caching(fleet)
    fullest = max((figures.filled_ratio(pool) or 0.0 for pool in pools), default=None)
    head(t("tour.title_number", share=number.share(fullest, t("common.unknown"))), t("tour.text_number"))
    figure("number", fleet, lambda: figures.one_number(fleet, t, language))


def same_share(fleet: FleetSnapshot) -> None:
    """Draw two pools of one share."""
    t = context.say()
    head(t("tour.title_share"), t("tour.text_share"))
    names = two_of(fleet, SHARES)
    if names is None:
        st.info(t("tour.needs"))
        return
    histories = context.runtime().histories()
    figure("share", fleet, lambda: figures.same_share(fleet, histories, names, t))


def stampede(fleet: FleetSnapshot) -> None:
    """Draw one herd placed twice."""
    t = context.say()
    head(t("tour.title_stampede", count=HERD_COUNT), t("tour.text_stampede"))
    decode = [pool for pool in _decode(fleet) if pool.role is Role.DECODE]
    if len(_decode(fleet)) < 2:
        st.info(t("tour.needs"))
        return
    # Where there are decode pools the story is theirs: what serves a request alone is another choice.
    kept = tuple(pool for pool in fleet.pools if len(decode) < 2 or pool.role in (Role.PREFILL, Role.DECODE))
    asked_of = replace(fleet, pools=kept)
    settings = decide_settings(context.runtime().settings)

    def build() -> bytes:
        asked: dict[str, Any] = {"count": HERD_COUNT, "age_s": 1.0, "settings": settings}
        plain = herd(HERD_REQUEST, asked_of, "lowest-utilization", **asked)
        careful = herd(HERD_REQUEST, asked_of, "joint", has_leases=True, **asked)
        return herds.stampede(fleet, plain, careful, t)

    figure("stampede", fleet, build)


def case_rank(fleet: FleetSnapshot, names: tuple[str, str]) -> int:
    """
    Return how well two pools show the case: 2 when the lower one grows behind a busy link while the higher one empties,
    1 when only the numbers are apart, 0 when they are not.
    """
    pools = {pool.pool_id: pool for pool in fleet.pools}
    if not set(names) <= set(pools):
        return 0
    low, high = (figures.used_ratio(pools[name]) or 0.0 for name in names)
    if high - low < CASE_GAP_RATIO or low < 0.2:
        return 0
    by_id = {pool_id(item.last.worker_id, item.last.dp_rank): item for item in context.runtime().histories()}
    slopes = [figures.slope_per_s(by_id[name], fleet.at_s) if name in by_id else None for name in names]
    is_busy = (pools[names[0]].composition.in_flight_tokens.value or 0.0) > 0
    return 2 if is_busy and (slopes[0] or 0.0) > 0 and (slopes[1] or 0.0) < 0 else 1


def choice(fleet: FleetSnapshot) -> None:
    """Draw the two-node case: the guess, then the terms."""
    t, language = context.say(), context.language()
    names = two_of(fleet, NODES)
    guess: tuple[str, FleetSnapshot] | None = st.session_state.get("tour.guess")
    nodes = (t("tour.node_a"), t("tour.node_b"))
    text = t("tour.text_choice", prompt=number.compact(float(CHOICE_REQUEST.prompt_tokens)))
    if names is None:
        head(t("tour.title_choice"), text)
        st.info(t("tour.needs"))
        return
    rank = case_rank(fleet, names)
    if rank and not all(decision.terms for decision in both_decided(fleet, names)):
        rank = 1 if any(decision.terms for decision in both_decided(fleet, names)) else 0
    kept_rank, case = st.session_state.get("tour.case", (0, None))
    if rank and rank >= kept_rank:
        case = fleet
        st.session_state["tour.case"] = (rank, fleet)
    histories = context.runtime().histories()
    if guess is None:
        head(t("tour.title_choice"), text)
        figure("choice", fleet, lambda: story.two_nodes(fleet, histories, names, t, language), key="tour_mid")
        with st.container(horizontal=True, horizontal_alignment="center", key="tour_guess"):
            for node in nodes:
                if st.button(f"**{node}**", key=f"tour.guess_{node}", disabled=case is None, width=220):
                    st.session_state["tour.guess"] = (node, case)
                    st.rerun(scope="app")
        if case is None:
            st.caption(t("tour.building", after=number.duration(10.0)))
        return
    node, moment = guess
    decided = both_decided(moment, names)
    better = min(range(2), key=lambda place: (cost_of(decided[place]), place))
    at = number.clock(moment.at_s)
    head(t("tour.title_chose", node=nodes[better]), t("tour.text_chose", guess=node, node=nodes[better], at=at))
    figure(
        "chosen", moment, lambda: story.two_nodes(moment, histories, names, t, language, is_short=True), key="tour_half"
    )
    pairs = [
        terms_figures.Compared(name=label, terms=decision.terms)
        for label, decision in zip(nodes, decided, strict=True)
        if decision.terms
    ]
    age_s = moment.at_s and max((pool.age_s or 0.0 for pool in moment.pools), default=0.0)
    payload = context.shared(
        "tour.terms", moment.at_s, (language, names), lambda: terms_figures.term_bars(pairs, age_s, moment.at_s, t)
    )
    with st.container(key="tour_terms"):
        context.draw(payload, key="tour.terms")
    refused = [
        f"{label}: {number.markdown(t.said(next((r.reason for r in decision.rejections), t('common.unknown'))), 160)}"
        for label, decision in zip(nodes, decided, strict=True)
        if not decision.terms
    ]
    if refused:
        st.caption(" · ".join(refused))


def both_decided(fleet: FleetSnapshot, names: tuple[str, str]) -> list[Decision]:
    """Return the joint decision for each of two pools as the only one that decodes; made once a tick."""
    return context.shared("tour.decided", fleet.at_s, names, lambda: [decided_for(fleet, name) for name in names])


def decided_for(fleet: FleetSnapshot, name: str) -> Decision:
    """Return the joint decision where `name` is the only pool that decodes."""
    pools = tuple(pool for pool in fleet.pools if pool.role is Role.PREFILL or pool.pool_id == name)
    known = decide_settings(context.runtime().settings)
    # Two nodes are all there is: nobody else could inherit, so the reserve holds no share for a peer's death.
    settings: DecideSettings = replace(known, reserve=replace(known.reserve, failure_count=0))
    return decide(CHOICE_REQUEST, replace(fleet, pools=pools), "joint", settings=settings)


def cost_of(decision: Decision) -> float:
    """Return the joint score of a decision; infinite where nothing was chosen."""
    return float("inf") if decision.chosen is None or decision.score is None else decision.score


def chain(fleet: FleetSnapshot) -> None:
    """Draw the chain of the pool that fills first, and the alarm."""
    t = context.say()
    head(t("tour.title_chain"), t("tour.text_chain"))
    pool = story.focus(fleet)
    if pool is None:
        st.info(t("tour.needs"))
        return
    running = context.runtime()
    history = next(
        (h for h in running.histories() if (h.last.worker_id, h.last.dp_rank) == (pool.worker_id, pool.dp_rank)), None
    )
    try:
        view = context.shared("tour.chain_view", fleet.at_s, pool.pool_id, lambda: chain_view(fleet, pool))
    except KvscopeError as error:
        st.warning(t("tour.chain_unwatched", reason=number.markdown(t.said(error))))
        return
    name, risk = number.markdown(pool.pool_id), number.share(view.probability, t("common.unknown"))
    if view.alarm_at_s is not None and view.retraction_at_s is not None:
        lead = number.duration(float(round(view.retraction_at_s - view.alarm_at_s)))
        st.markdown(f"**{t('tour.chain_lead', pool=name, lead=lead)}**")
    elif view.alarm_at_s is not None:
        st.markdown(f"**{t('tour.chain_alarm_on', pool=name, probability=risk)}**")
    else:
        st.markdown(t("tour.chain_waiting", pool=name, probability=risk))
    figure("chain", fleet, lambda: story.chain(fleet, history, view, t), key="tour_mid")


def chain_view(fleet: FleetSnapshot, pool: PoolSnapshot) -> story.ChainView:
    """Return the chain of `pool` as the running watch has it, with the newest alarm of the time drawn."""
    running = context.runtime()
    state = alerts.watch(running).chains.states.get(pool.pool_id)
    since_s = fleet.at_s - story.CHAIN_PAST_S
    events = running.store.events(since_s, fleet.at_s + 1.0, [EVENT_ALARM, EVENT_SIGN], pool.pool_id, 200)
    alarm_at_s = next((e.at_s for e in events if e.kind == EVENT_ALARM and e.details.get("is_on")), None)
    thrown = [
        event.at_s
        for event in events
        if event.kind == EVENT_SIGN
        and event.details.get("level") == int(Stage.RETRACTION)
        and event.details.get("is_lit")
        and (alarm_at_s is None or event.at_s >= alarm_at_s)
    ]
    return story.ChainView(
        pool=pool,
        lit=None if state is None else tuple(state.light(stage).is_lit for stage in STAGES),
        probability=None if state is None else state.alarm.probability,
        alarm_at_s=alarm_at_s,
        retraction_at_s=min(thrown, default=None),
    )


def joint(fleet: FleetSnapshot) -> None:
    """Draw the race of two policies."""
    t = context.say()
    state = racing.RACER.state(fleet, again=bool(st.session_state.pop("tour.race_again", False)))
    text = t("tour.text_joint", requests=state.request_count or "…")
    if state.problem:
        head(t("tour.title_joint"), text)
        st.warning(t("tour.race_failed", reason=number.markdown(t.said(state.problem))))
        return
    if state.outcome is None:
        head(t("tour.title_joint"), text)
        st.progress(
            state.progress_ratio,
            t("tour.race_running", requests=state.request_count, share=number.share(state.progress_ratio)),
        )
        return
    low, better = (state.outcome.reports[name] for name in (racing.LOW, racing.JOINT))
    told = state.outcome.goodput
    key = "same" if not told.is_told else "better" if (told.difference or 0.0) > 0 else "worse"
    share, other = (number.share(report.goodput_ratio, t("common.unknown")) for report in (better, low))
    head(t(f"tour.race_{key}", share=share, other=other), text)
    since_s = st.session_state.setdefault("tour.race_since", time.monotonic())
    reveal_s, race = racing.reveal_s(state.outcome.race, time.monotonic() - since_s), state.outcome.race
    words = {
        racing.LOW: t("tour.race_low"),
        racing.COUNTED: t("tour.race_counted"),
        racing.JOINT: t("tour.race_joint"),
    }
    left, right = st.columns([4, 1])
    with left:
        figure("race", fleet, lambda: story.race(race, reveal_s, fleet, words, t), variant=round(reveal_s, 1))
    with right:
        for name, now, was in (
            ("ttft", number.duration(better.latency["ttft_s"].p99), number.duration(low.latency["ttft_s"].p99)),
            ("good", share, other),
            ("retracted", number.compact(float(better.retraction_count)), number.compact(float(low.retraction_count))),
        ):
            st.metric(t(f"tour.race_{name}"), now)
            st.caption(t("tour.race_was", value=was))


def figure(
    name: str, fleet: FleetSnapshot, build: Callable[[], bytes], *, key: str = "tour_full", variant: object = ""
) -> None:
    """Draw one figure of a step in the room its container gives it; made once a tick for all viewers."""
    payload = context.shared(f"tour.{name}", (fleet.at_s, variant), context.language(), build)
    with st.container(key=key):
        context.draw(payload, key=f"tour.figure_{name}")


STEPS: Final = (
    Step(word="phases", scenario="calm", page="fleet", draw=phases, query={}),
    Step(word="number", scenario="calm", page="fleet", draw=one_number, query={"role": "prefill"}),
    Step(word="share", scenario="same-share", page="worker", draw=same_share, query={"pool": SHARES[0]}),
    Step(word="stampede", scenario="calm", page="what_if", draw=stampede, query={}),
    Step(word="choice", scenario="two-choices", page="what_if", draw=choice, query={}),
    Step(word="chain", scenario="chain", page="saturation", draw=chain, query={}),
    Step(word="joint", scenario="calm", page="replay", draw=joint, query={}),
)


# The demo behind it.


def control() -> DemoControl:
    """Return the way to the demo's control, over the addresses the collector polls."""
    return DemoControl(source.url for source in context.runtime().sources() if not source.is_router)


def demo_state() -> DemoState | None:
    """Return what the demo plays, read once a second for all viewers; None where the fleet is no demo."""
    return context.shared("tour.demo", int(time.time()), None, lambda: control().state())


def enter(place: int, *, again: bool = False) -> None:
    """Begin the scenario of a step, once for each time the viewer comes to it or asks for it again."""
    if st.session_state.get("tour.entered") == place and not again:
        return
    st.session_state["tour.entered"] = place
    for name in ("tour.guess", "tour.case", "tour.race_since"):
        st.session_state.pop(name, None)
    # The race is run while the step before is told, so that nobody waits for it.
    st.session_state["tour.race_again"] = STEPS[place].word == "joint" and again
    if STEPS[place].word == "chain":
        racing.RACER.state(context.snapshot(), again=True)
    known = control().state()  # not the shared one: it may be of the scenario before.
    if known is None or STEPS[place].scenario not in known.scenarios:
        return
    if known.scenario == STEPS[place].scenario == "calm":
        return  # Steps that follow each other on everyday traffic go on with it.
    try:
        control().switch(STEPS[place].scenario)
    except DemoControlError as error:
        t = context.say()
        st.toast(t("tour.steer_failed", reason=number.markdown(t.said(error))))


# Laying out.

BLANK: Final[dict[str, object]] = {"share": number.ABSENT, "count": HERD_COUNT, "node": number.ABSENT}


def explore(step: Step) -> None:
    """Draw the link to the page that explores a step, where this server has it."""
    t = context.say()
    if st.button(
        t("tour.explore", page=t(f"common.nav_{step.page}")),
        icon=":material/travel_explore:",
        type="tertiary",
        key="tour.explore",
    ):
        context.open_page(step.page, **dict(step.query))

"""
The opening page's blocks: what is watched, what is wrong, what to look at, and the first minute without a fleet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from collectors import alerts
from collectors import runtime as collector
from collectors.errors import KvscopeError
from collectors.url_probe import ProbeBusyError, ProbeRefusedError, ProbeReport, UrlProbe, fleet_toml
from pages import _context as context
from pages import _fleet_parts as fleet_parts
from pages import _widgets as widgets
from pages.figures import fleet as fleet_figures
from pages.figures import fleet_summary as summaries
from pages.figures import home as figures
from pages.figures import number
from pages.figures import tour as tanks
from scoring.chain import ChainState
from scoring.model import FleetSnapshot, Role, SourceState

_MOST: Final = 5
_MOST_NAMES: Final = 6
_SIGNS: Final = {
    figures.GRAVE: ":red[:material/error:]",
    figures.SERIOUS: ":orange[:material/warning:]",
    figures.NOTABLE: ":blue[:material/info:]",
}
_PROBE: Final = UrlProbe()
STYLE: Final = """<style>
.st-key-home_tanks .kv-plot { height: 350px; }
</style>"""
FLEET_FILE: Final = """[[workers]]
url = "http://10.0.0.11:30000"

[[workers]]
url = "http://10.0.0.21:30000"
"""


def silent_workers(fleet: FleetSnapshot) -> list[tuple[str, SourceState]]:
    """Return workers that are asked and have no pool, with their state."""
    known = {pool.worker_id for pool in fleet.pools}
    return [
        (view.worker_id, view.state or SourceState.NOTHING_YET)
        for view in context.runtime().sources()
        if view.worker_id not in known and not view.is_router
    ]


def chains() -> Mapping[str, ChainState]:
    """Return the saturation chains by pool; nothing while the past is shown, of which they know nothing."""
    return {} if context.past_at_s() is not None else alerts.watch(context.runtime()).chains.states


def is_empty(fleet: FleetSnapshot) -> bool:
    """Draw why there is nothing to draw, and say whether that is so."""
    return not fleet.pools and not fleet_parts.states(fleet)


def watched(fleet: FleetSnapshot) -> None:
    """Draw who is watched and how fresh it is."""
    t = context.say()
    workers, roles, models = figures.watched(fleet)
    counts = t("common.comma").join(
        t("home.role_count", count=roles[role], role=t(f"common.role_{role.value}")) for role in Role if roles[role]
    )
    names = ", ".join(number.markdown(name, 60) for name in models[:4]) + (" …" if len(models) > 4 else "")
    served = t("home.models", names=names) if models else t("home.models_unknown")
    fresh = sum(pool.state is SourceState.FRESH for pool in fleet.pools)
    st.markdown(t("home.watched", workers=workers, pools=len(fleet.pools), roles=counts, models=served))
    age = number.age(fleet_figures.oldest_age_s(fleet.pools), t("common.unknown"))
    st.caption(t("home.fresh", fresh=fresh, count=len(fleet.pools), age=age))
    drawn = figures.shown(fleet)
    payload = context.shared(
        "home.tanks", fleet.at_s, context.language(), lambda: tanks.two_phases(drawn, t, context.language())
    )
    with st.container(key="home_tanks"):
        context.draw(payload, key="home.tanks")
    if len(drawn.pools) < len(fleet.pools):
        st.caption(t("home.pools_left_out", shown=len(drawn.pools), count=len(fleet.pools)))


def wrong(fleet: FleetSnapshot, known: Mapping[str, ChainState]) -> None:
    """Draw what is wrong now, each with the page to look at."""
    t = context.say()
    st.subheader(t("home.wrong_title"), anchor=False)
    found = figures.wrongs(fleet, silent_workers(fleet), known)
    if not any(pool.state.is_scored for pool in fleet.pools):
        st.error(t("home.wrong_cannot_see"))
    elif not found:
        st.success(t("home.wrong_none"), icon=":material/check_circle:")
    for place, each in enumerate(found[:_MOST]):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"{_SIGNS[each.rank]} {words(each)}")
            if st.button(t("home.look"), key=f"home.look_{place}", type="tertiary", icon=":material/arrow_outward:"):
                context.open_page(each.page, **dict(each.query))
    if len(found) > _MOST:
        with st.expander(t("home.wrong_more", count=len(found) - _MOST)):
            for each in found[_MOST:]:
                st.markdown(f"{_SIGNS[each.rank]} {words(each)}")


def words(wrong: figures.Wrong) -> str:
    """Return one thing that is wrong as a sentence, names from outside made safe."""
    t, values = context.say(), wrong.values
    put: dict[str, Any] = {"count": values.get("count"), "of": values.get("of")}
    if "names" in values:
        put["pools"] = put["workers"] = _named(values["names"])
    if "state" in values:
        put["state"] = t(f"common.state_{values['state'].value}")
    if "pool" in values:
        put["pool"] = f"**{number.markdown(values['pool'], 60)}**"
    for name in ("share", "probability"):
        if name in values:
            put[name] = number.share(values[name], t("common.unknown"))
    if "stage" in values:
        put["stage"] = values["stage"]
    if "text" in values:
        about = values["about"]
        put["about"] = f"**{number.markdown(about, 60)}**: " if about else ""
        put["text"] = number.markdown(t.said(values["text"]))
    return t(f"home.{wrong.key}", **put)


def _named(names: Sequence[str]) -> str:
    more = f" +{len(names) - _MOST_NAMES}" if len(names) > _MOST_NAMES else ""
    return ", ".join(number.markdown(name, 60) for name in names[:_MOST_NAMES]) + more


def cards(fleet: FleetSnapshot, known: Mapping[str, ChainState]) -> None:
    """Draw four numbers to look at."""
    t = context.say()
    role, pools = summaries.holders(fleet)
    held = context.shared("home.summary", fleet.at_s, None, lambda: summaries.summarise(pools))
    whole = context.shared("home.whole", fleet.at_s, None, lambda: summaries.summarise(fleet.pools))
    first = figures.next_out(fleet, known)
    unknown = t("common.unknown")
    spot = st.columns(4, gap="small")
    with spot[0]:
        pool, ratio = held.fullest or ("", None)
        detail = (
            t("home.card_fullest_detail", pool=number.markdown(pool, 40), share=number.share(ratio))
            if pool
            else unknown
        )
        widgets.key_figure(
            t("home.card_fullest", role=t(f"common.role_{role.value}")),
            number.share(ratio, unknown),
            detail,
            t("fleet.committed_help", role=t(f"common.role_{role.value}")),
        )
    with spot[1]:
        after = None if first is None else number.duration(float(round(first[1])))
        none = t("common.none"), t("home.card_next_none")
        # Who sees nothing cannot say that nothing fills up.
        absent = none if any(pool.state.is_scored for pool in fleet.pools) else (unknown, unknown)
        detail = (
            absent[1] if first is None else t("home.card_next_detail", pool=number.markdown(first[0], 40), after=after)
        )
        widgets.key_figure(t("home.card_next"), after or absent[0], detail, t("home.ask_saturation"))
    with spot[2]:
        spread = held.nodes
        detail = (
            t("home.card_spread_none")
            if spread is None
            else t(
                "home.card_spread_detail",
                high=number.markdown(spread.high, 24),
                high_share=number.share(spread.high_ratio),
                low=number.markdown(spread.low, 24),
                low_share=number.share(spread.low_ratio),
            )
        )
        value = t.said(number.points(spread.ratio)) if spread else unknown
        widgets.key_figure(
            t("home.card_spread"), value, detail, t("fleet.nodes_help", role=t(f"common.role_{role.value}"))
        )
    with spot[3]:
        widgets.key_figure(
            t("home.card_waiting"),
            number.compact(whole.waiting_count, unknown),
            t("home.card_waiting_detail"),
            t("fleet.waiting_help"),
        )


PAGES: Final = ("tour", "fleet", "saturation", "what_if", "replay", "calibration", "glossary")


def questions() -> None:
    """Draw the questions people arrive with, each a link to the page that answers it."""
    t = context.say()
    st.subheader(t("home.questions"), anchor=False)
    for word in PAGES:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            if st.button(t(f"common.nav_{word}"), key=f"home.to_{word}", width=150):
                context.open_page(word)
            st.markdown(t(f"home.ask_{word}"))


def first_minute() -> None:
    """Draw how to begin: a demo, an own fleet file, one worker asked."""
    t = context.say()
    st.title(t("home.first_title"))
    st.write(t("home.first_how"))
    left, right = st.columns(2)
    with left:
        st.markdown(f"**{t('home.first_demo')}**")
        st.code("make demo", language="bash")
        st.markdown(f"**{t('home.first_check')}**")
        st.code("kvscope check http://10.0.0.11:30000", language="bash")
    with right:
        st.markdown(f"**{t('home.first_own')}**")
        st.caption(t("home.first_file"))
        st.code(FLEET_FILE, language="toml")
        st.code("kvscope serve --fleet fleet.toml", language="bash")


def probe_form() -> None:
    """Draw the form that tests an address, or how to turn it on."""
    t = context.say()
    running = collector.get_runtime()
    settings = None if running is None else running.settings
    if settings is None or not settings.server.is_url_test_on:
        st.info(t("home.probe_off"))
        return
    networks = ", ".join(number.code(network) for network in settings.server.url_test_networks)
    with st.form(key="home.probe", border=False):
        url = st.text_input(t("home.probe_url"), placeholder=t("home.probe_example"), max_chars=300, key="home.url")
        st.caption(t("home.probe_help", networks=networks))
        is_asked = st.form_submit_button(t("home.probe_button"))
    if not is_asked or not url.strip():
        return
    try:
        with st.spinner(t("home.probe_busy")):
            report = _PROBE.ask(url, settings)
    except ProbeBusyError:
        st.warning(t("home.probe_wait"))
    except ProbeRefusedError as error:
        st.error(t("home.probe_refused", reason=number.markdown(t.said(error))))
    else:
        _told(report)


def _told(report: ProbeReport) -> None:
    t = context.say()
    if not report.is_understood:
        st.error(t("home.probe_failed", reason=number.markdown(t.said(report.reason))))
        return
    engine = number.markdown(report.engine)
    if report.router_worker_count:
        st.success(t("home.probe_router", engine=engine, count=report.router_worker_count))
    elif not report.pool_count:
        st.success(t("home.probe_nothing_yet", engine=engine))
    else:
        st.success(
            t(
                "home.probe_ok",
                engine=engine,
                version=number.markdown(report.version or t("common.unknown")),
                role=", ".join(t(f"common.role_{role.value}") for role in report.roles),
                ranks=report.pool_count,
                usable=number.amount(report.usable_tokens, "tokens", t("common.unknown")),
            )
        )
    st.caption(t("home.probe_copy"))
    st.code(fleet_toml(report), language="toml")


def chains_or_none() -> Mapping[str, ChainState]:
    """Return the chains, or nothing and say why where they cannot be read."""
    try:
        return chains()
    except KvscopeError as error:
        t = context.say()
        st.warning(t("home.wrong_failed", reason=number.markdown(t.said(error))))
        return {}

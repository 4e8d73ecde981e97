"""
The Saturation page's blocks, top to bottom: key figures, alerts, strip, chain, ranking, phase, reserve, prefill,
a node's death, silences.
"""

import dataclasses
from typing import Final

import streamlit as st

from collectors.alerts import AlertCenter, Standing
from collectors.errors import KvscopeError
from pages import _context as context
from pages import _saturation_data as reads
from pages import _widgets as widgets
from pages.figures import calibrated, number
from pages.figures import saturation as figures
from pages.figures import saturation_more as more
from pages.figures.saturation_limits import limit_columns
from scoring.chain_evidence import Stage
from scoring.chain_views import backpressure
from scoring.chain_views import death as inherited
from scoring.model import Severity

GRAVEST: Final = "gravest"
"""The choice of whichever pool stands gravest; no pool is named so, their names end in a rank."""
RANGES_S: Final = {"5m": 300.0, "15m": 900.0, "1h": 3600.0, "6h": 21600.0, "24h": 86400.0}
SILENCES_S: Final = {"15m": 900.0, "1h": 3600.0, "8h": 28800.0, "3d": 259200.0}
_PAST_ALERTS_S: Final = 3600.0
_MOST_ROWS: Final = 40
_MOST_NAMED: Final = 4
_SIGNS: Final = {
    Severity.ERROR: ":red[:material/error:]",
    Severity.WARNING: ":orange[:material/warning:]",
    Severity.INFO: ":blue[:material/info:]",
}


def safe(text: object) -> str:
    """Return text from outside as it may stand in Markdown."""
    return number.markdown(text, 80)


def _frame(view: reads.View) -> figures.Frame:
    ages = [pool.age_s for pool in view.fleet.pools if pool.age_s is not None and pool.state.is_scored]
    return figures.Frame(at_s=view.fleet.at_s, age_s=max(ages, default=None), t=context.say())


def chosen_row(view: reads.View, chosen: str) -> figures.Row | None:
    """Return the pool asked for, or the gravest one; None where it is gone."""
    if chosen == GRAVEST:
        return view.rows[0] if view.rows else None
    return next((row for row in view.rows if row.pool_id == chosen), None)


def key_figures(view: reads.View) -> None:
    """Draw the five numbers on top."""
    t, rows = context.say(), view.rows
    unknown = t("common.unknown")
    lit = [row for row in rows if row.stage > Stage.HEALTHY]
    blind = [row for row in rows if row.stage is Stage.CANNOT_SEE]
    on = [row for row in rows if row.is_alarm]
    timed = [
        (row.exhaustion.expected_s, row) for row in rows if row.exhaustion and row.exhaustion.expected_s is not None
    ]
    soonest = min(timed, key=lambda item: (item[0], item[1].pool_id), default=None)
    danger = [row for row in rows if all(sign is True for sign in row.danger)]
    # Who sees nothing cannot say that all is well, or that nobody fills up.
    is_seen = len(blind) < len(rows)
    is_timed = any(row.exhaustion for row in rows)
    is_judged = any(None not in row.danger for row in rows)
    calm = "saturation.stage_healthy" if not blind else "saturation.seen_well"
    risky = max((row.retraction_probability for row in rows if row.retraction_probability is not None), default=None)
    spots = st.columns(6, gap="small")
    names = ("lit", "alarm", "risk", "soonest", "danger", "blind")
    values = (
        t("saturation.n_of", count=len(lit), all=len(rows)) if is_seen else unknown,
        str(len(on)) if is_seen or on else unknown,
        number.share(risky, absent=unknown),
        number.duration(soonest[0]) if soonest else t("saturation.nobody") if is_timed else unknown,
        str(len(danger)) if is_judged else unknown,
        str(len(blind)),
    )
    details = (
        figures.stage_name(max(row.stage for row in lit), t) if lit else t(calm) if is_seen else unknown,
        ", ".join(safe(row.pool_id) for row in on[:2]) or (t("common.none") if is_seen else unknown),
        t("saturation.risk_detail"),
        safe(soonest[1].pool_id) if soonest else t("common.none") if is_timed else unknown,
        ", ".join(safe(row.pool_id) for row in danger[:2]) or (t("common.none") if is_judged else unknown),
        ", ".join(safe(row.pool_id) for row in blind[:2]) or t("common.none"),
    )
    for spot, name, value, detail in zip(spots, names, values, details, strict=True):
        with spot:
            widgets.key_figure(t(f"saturation.key_{name}"), value, detail, t(f"saturation.key_{name}_help"))


def alerts(view: reads.View) -> None:
    """Draw what fires, and how telling goes; while looking at the past, nothing fires."""
    t, running = context.say(), view.center
    if running is None:
        return
    for problem in running.problems:
        st.error(t("saturation.rule_problem", problem=number.markdown(t.said(problem))))
    standing = running.standing()
    if not standing:
        is_seen = any(row.stage is not Stage.CANNOT_SEE for row in view.rows)
        quiet = f":material/check_circle: {t('saturation.no_alerts')}" if is_seen else t("saturation.no_alerts_blind")
        st.caption(f"{quiet} {_telling(running)}")
        return
    groups: dict[tuple[str, bool], list[Standing]] = {}
    for each in standing:
        groups.setdefault((each.alert.rule, each.silence is not None), []).append(each)
    with st.container(border=True, gap="xsmall"):
        for members in groups.values():
            _alerts(running, members)
        st.caption(_telling(running))


def _alerts(running: AlertCenter, members: list[Standing]) -> None:
    """Draw the alerts of one rule as one line: the newest in words, the others by name."""
    t, alert, silence = context.say(), members[0].alert, members[0].silence
    names = ", ".join(safe(each.alert.pool) for each in members[:_MOST_NAMED])
    more_names = t("saturation.more_alerts", count=len(members) - _MOST_NAMED) if len(members) > _MOST_NAMED else ""
    words = t(
        "saturation.alert_line",
        rule=safe(alert.rule),
        pool=f"{names} {more_names}".strip(),
        at=number.clock(min(each.alert.began_at_s for each in members)),
        text=number.markdown(t.said(alert.text), 200),
    )
    text, quiet, instant = st.columns([0.78, 0.11, 0.11], vertical_alignment="center")
    with text:
        badge = f" :gray-badge[:material/notifications_off: {t('saturation.quiet')}]" if silence else ""
        st.markdown(f"{_SIGNS[alert.severity]} {words}{badge}")
    pool = alert.pool if len(members) == 1 else "*"
    with quiet:
        if silence is None and st.button(
            t("saturation.silence_hour"), key=f"saturation.quiet.{alert.rule}", type="tertiary"
        ):
            _keep_quiet(running, alert.rule, pool, 3600.0, "")
    with instant:
        if st.button(t("saturation.see_begin"), key=f"saturation.see.{alert.rule}.{silence is None}", type="tertiary"):
            context.open_page("saturation", at=f"{alert.began_at_s:.3f}", pool=alert.pool)


def _keep_quiet(running: AlertCenter, rule: str, pool: str, seconds: float, comment: str) -> bool:
    t = context.say()
    try:
        running.silence(rule=rule, pool=pool, seconds=seconds, by=t("saturation.by_viewer"), comment=comment)
    except (KvscopeError, ValueError) as error:
        context.read_failed(error)
        return False
    st.toast(t("saturation.silenced", rule=safe(rule), pool=safe(pool)))
    return True


def _telling(running: AlertCenter) -> str:
    t, stats = context.say(), running.deliveries()
    if not running.receiver_names:
        return t("saturation.no_receiver")
    words = t(
        "saturation.telling",
        names=", ".join(running.receiver_names),
        delivered=stats.delivered_count,
        pending=stats.pending_count,
    )
    return f"{words} {number.markdown(t.said(stats.problem))}" if stats.problem else words


def strip(view: reads.View, span: str) -> str | None:
    """Draw the strip of stages; return the pool clicked."""
    t = context.say()
    st.subheader(t("saturation.strip"), anchor=False)
    end_s = view.fleet.at_s
    pools = sorted((row.pool_id for row in view.rows), key=lambda name: (_role_of(view, name), name))
    try:
        payload = context.shared(
            "saturation.strip",
            end_s,
            (span, context.language(), context.past_at_s()),
            lambda: figures.strip(pools, *reads.strip(pools, end_s - RANGES_S[span], end_s), _frame(view)),
        )
    except KvscopeError as error:
        context.read_failed(error)
        return None
    return context.draw(payload, key="saturation.strip")


def _role_of(view: reads.View, name: str) -> str:
    return next(row.role for row in view.rows if row.pool_id == name)


def chain(view: reads.View, row: figures.Row) -> None:
    """Draw the chain of one pool as a loop."""
    t = context.say()
    st.subheader(t("saturation.chain_of", pool=safe(row.pool_id)), anchor=False)
    context.draw(figures.loop(row, _frame(view)), key="saturation.loop")


def verdict(row: figures.Row) -> None:
    """Draw in words where the pool stands and what is known of its time."""
    t, unknown = context.say(), context.say()("common.unknown")
    since = "" if row.since_at_s is None else t("saturation.since", at=number.clock(row.since_at_s))
    st.markdown(f"**{figures.stage_name(row.stage, t)}** {since}")
    if row.reason:
        st.caption(number.markdown(t.said(row.reason)))
    marks = ("saturation.yes", "saturation.no")
    signs = [unknown if sign is None else t(marks[0] if sign else marks[1]) for sign in row.danger]
    expected = row.exhaustion.expected_s if row.exhaustion else None
    st.markdown(
        t(
            "saturation.verdict",
            retraction=number.share(row.retraction_probability, absent=unknown),
            exhausted=number.share(row.exhausted_probability, absent=unknown),
            thin=number.share(row.thin_probability, absent=unknown),
            expected=number.duration(expected, absent=t("saturation.never") if row.exhaustion else unknown),
            high=number.duration(row.high_water_s, absent=unknown),
            long=signs[0],
            fast=signs[1],
            little=signs[2],
        )
    )


def ranking(view: reads.View) -> None:
    """Draw who runs out of room first."""
    t = context.say()
    payload = figures.ranking(view.rows, _frame(view))
    if payload is None:
        is_timed = any(row.exhaustion for row in view.rows)
        st.caption(
            f":material/check_circle: {t('saturation.nobody_fills')}" if is_timed else t("saturation.fills_unknown")
        )
        return
    clicked = context.draw(payload, key="saturation.ranking")
    if clicked:
        context.open_page("saturation", pool=clicked)


def phase(view: reads.View, row: figures.Row) -> None:
    """Draw the path of the last minutes."""
    t = context.say()
    payload = figures.phase(row, _frame(view))
    if payload is None:
        return
    st.subheader(t("saturation.phase_of", pool=safe(row.pool_id)), anchor=False)
    context.draw(payload, key="saturation.phase")


def reserve(view: reads.View) -> None:
    """Draw the safety reserve taken apart."""
    t = context.say()
    st.subheader(t("saturation.reserve"), anchor=False)
    st.caption(t("saturation.reserve_help"))
    order = {row.pool_id: place for place, row in enumerate(view.rows)}
    pools = sorted(view.fleet.pools, key=lambda pool: order.get(pool.pool_id, len(order)))
    payload = more.reserve([pool for pool in pools if pool.state.is_scored], view.reserves, _frame(view))
    if payload is None:
        st.caption(t("saturation.reserve_stale" if view.reserves else "saturation.reserve_unknown"))
        return
    st.caption(calibrated.since_words(view.in_use, t))
    context.draw(payload, key="saturation.reserve")


def reserve_parts(view: reads.View, row: figures.Row) -> None:
    """Draw what each part of the chosen pool's reserve follows from, and what that rests on."""
    parts = view.reserves.get(row.pool_id)
    pool = next((each for each in view.fleet.pools if each.pool_id == row.pool_id), None)
    if parts is None or pool is None:
        return
    st.caption(safe(row.pool_id))
    usable = pool.composition.usable_tokens.value
    for line in calibrated.reserve_lines(parts, usable, view.in_use, context.say()):
        st.markdown(line)


def limits(view: reads.View, row: figures.Row) -> None:
    """Draw what the chosen pool is held against, and what each limit rests on."""
    t = context.say()
    st.subheader(t("saturation.limits", pool=safe(row.pool_id)), anchor=False)
    st.caption(t("saturation.limits_help"))
    threshold, parts = view.thresholds.get(row.pool_id), view.reserves.get(row.pool_id)
    widgets.text_table(limit_columns(row, threshold, parts, view.in_use, t), "saturation", wide=("rests",))


def prefill(view: reads.View) -> None:
    """Draw what is computed and not handed over, and what it waits for."""
    t = context.say()
    held = backpressure(view.fleet)
    if not held:
        return
    st.subheader(t("saturation.prefill"), anchor=False)
    context.draw(more.prefill(held, _frame(view)), key="saturation.prefill")
    ready = next(iter(held.values())).ready_count
    drains = [each.drain_s for each in held.values() if each.drain_s is not None]
    st.caption(
        t(
            "saturation.prefill_detail",
            ready=number.compact(ready),
            drain=number.duration(max(drains, default=None), absent=t("common.unknown")),
        )
    )


def death(view: reads.View, worker: str) -> None:
    """Draw what a node's death leaves to the others."""
    t = context.say()
    st.subheader(t("saturation.death", worker=safe(worker)), anchor=False)
    if all(pool.worker_id != worker for pool in view.fleet.pools):
        st.warning(t("saturation.no_worker", worker=safe(worker)))
        return
    scored = tuple(pool for pool in view.fleet.pools if pool.state.is_scored or pool.worker_id == worker)
    found = inherited(dataclasses.replace(view.fleet, pools=scored), view.reserves, worker)
    if not any(each.after_tokens is not None for each in found.values()):
        st.caption(t("saturation.death_nobody"))
        return
    context.draw(more.deaths(view.fleet, found, worker, _frame(view)), key="saturation.death")
    st.caption(t("saturation.death_help"))


def silences(running: AlertCenter, language: str) -> None:
    """Draw the silences that hold, a form for another, and the alerts of the last hour."""
    t = context.say()
    del language  # Widgets below are keyed by their texts' place, not by language.
    with st.expander(t("saturation.silences", count=len(running.silences())), icon=":material/notifications_off:"):
        for each in running.silences()[:_MOST_ROWS]:
            words, end = st.columns([0.85, 0.15], vertical_alignment="center")
            words.markdown(
                t(
                    "saturation.silence_line",
                    rule=safe(each.rule),
                    pool=safe(each.pool),
                    until=number.instant(each.end_s),
                    by=safe(each.by),
                    comment=number.markdown(each.comment, 200),
                )
            )
            if end.button(t("saturation.silence_end"), key=f"saturation.end.{each.silence_id}"):
                _end_silence(running, each.silence_id)
        with st.form(key="saturation.silence", border=False):
            rule, pool, length, comment = st.columns([1, 1, 1, 2])
            wanted_rule = rule.selectbox(t("saturation.form_rule"), ["*", *(item.name for item in running.rules)])
            wanted_pool = pool.text_input(t("saturation.form_pool"), value="*")
            wanted = length.selectbox(
                t("saturation.form_length"), list(SILENCES_S), format_func=lambda name: t(f"saturation.length_{name}")
            )
            why = comment.text_input(t("saturation.form_comment"))
            if st.form_submit_button(t("saturation.form_go")) and _keep_quiet(
                running, wanted_rule, wanted_pool.strip(), SILENCES_S[wanted], why
            ):
                st.rerun()
    _recent(running)


def _end_silence(running: AlertCenter, silence_id: str) -> None:
    try:
        running.end_silence(silence_id)
    except KvscopeError as error:
        context.read_failed(error)
        return
    except KeyError:
        pass  # Ended by another viewer meanwhile: what was wanted.
    st.rerun()


def _recent(running: AlertCenter) -> None:
    t = context.say()
    end_s = context.past_at_s() or context.snapshot().at_s
    try:
        over = running.past(end_s - _PAST_ALERTS_S, end_s + 1.0, _MOST_ROWS)
    except KvscopeError as error:
        context.read_failed(error)
        return
    with st.expander(t("saturation.recent", count=len(over)), icon=":material/history:"):
        if not over:
            st.caption(t("common.none"))
            return
        widgets.text_table(
            {
                "rule": [alert.rule for alert in over],
                "pool": [alert.pool for alert in over],
                "began": [number.instant(alert.began_at_s) for alert in over],
                "lasted": [number.duration((alert.resolved_at_s or end_s) - alert.began_at_s) for alert in over],
                "text": [t.said(alert.text) for alert in over],
            },
            "saturation",
            wide=("text",),
        )

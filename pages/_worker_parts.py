"""
The Worker page's blocks, top to bottom: state, key figures, findings, composition, history, tables, polls.
"""

from typing import Final

import streamlit as st

from collectors.errors import KvscopeError
from pages import _context as context
from pages import _widgets as widgets
from pages.figures import fleet as fleet_figures
from pages.figures import number, worker_table
from pages.figures import worker as figures
from pages.figures.terms import PROVENANCE, STATES
from scoring.model import Figure, PoolSnapshot, Role, SourceState

RANGES_S: Final = {"5m": 300.0, "15m": 900.0, "1h": 3600.0, "6h": 21600.0, "24h": 86400.0, "7d": 604800.0}
_POLLS_S: Final = 300.0
_POLLS_TICK_S: Final = 5.0
_POINTS: Final = 600
_EVERY_TICK_S: Final = 900.0


def _label(key: str, value: str) -> str:
    """Return a label as `key=value`, a rate in its usual unit."""
    try:
        rate = float(value) if key.endswith("_bytes_per_s") else None
    except ValueError:
        rate = None
    return f"{key}={value}" if rate is None else f"{key.removesuffix('_bytes_per_s')}={number.byte_size(rate)}/s"


def gone(pool_id: str) -> None:
    """Draw that the pool asked for is not there."""
    t = context.say()
    st.warning(t("worker.gone", pool=number.markdown(pool_id, 80)))


def state(pool: PoolSnapshot) -> None:
    """Draw who this is and whether its figures can be trusted."""
    t = context.say()
    sign = STATES[pool.state.value][0]
    name = f"{sign} {t(f'common.state_{pool.state.value}')} · {t('common.data_age', age=number.age(pool.age_s))}"
    engine = " ".join(filter(None, (pool.engine, pool.version))) or t("common.unknown")
    about = t(
        "worker.about",
        role=t(f"common.role_{pool.role.value}"),
        engine=number.markdown(engine, 60),
        model=number.markdown(pool.model or t("common.unknown"), 80),
    )
    labels = " ".join(f"`{number.code(_label(key, value))}`" for key, value in sorted(pool.labels.items()))
    st.markdown(f"**{name}** · {about} {labels}")
    if pool.state is not SourceState.FRESH:
        draw = st.warning if pool.state is SourceState.LATE else st.error
        draw(
            t(
                "worker.stale",
                state=t(f"common.state_{pool.state.value}"),
                age=number.age(pool.age_s, absent=t("common.unknown")),
                reason=number.markdown(t.said(pool.state_reason)),
            )
        )
    if not pool.is_serving:
        st.error(t("worker.not_serving"))


def _badge(figure: Figure) -> str:
    t = context.say()
    provenance = t(f"common.provenance_{figure.provenance.value}")
    return f"{PROVENANCE[figure.provenance.value]} {provenance}: {t.said(figure.reason)}"


def _figure(title: str, figure: Figure, unit: str, detail: str) -> None:
    t = context.say()
    sign = PROVENANCE[figure.provenance.value]
    value = worker_table.shown(figure, unit, t).replace(" tokens", "")
    widgets.key_figure(f"{title} {sign}", value, detail, number.markdown(_badge(figure)))


def key_figures(pool: PoolSnapshot) -> None:
    """Draw the numbers on top; the sign behind a name says how the figure came to be, hovering says from what."""
    t, composition, rates = context.say(), pool.composition, pool.rates
    unknown = t("common.unknown")
    spots = st.columns(6 if pool.role is Role.DECODE else 7, gap="small")
    share = fleet_figures.committed_ratio(pool)
    with spots[0]:
        widgets.key_figure(
            f"{t('worker.committed')} {PROVENANCE[composition.committed_tokens.provenance.value]}",
            number.share(share, absent=unknown),
            t(
                "worker.committed_detail",
                tokens=worker_table.shown(composition.committed_tokens, "tokens", t).removesuffix(" tokens"),
                usable=number.amount(composition.usable_tokens.value, "tokens", absent=unknown),
            ),
            number.markdown(_badge(composition.committed_tokens)),
        )
    with spots[1]:
        free, prefix = composition.free_tokens.value, composition.prefix_tokens.value
        _figure(
            t("worker.available"),
            composition.available_tokens,
            "tokens",
            t("worker.available_detail", free=number.compact(free, "?"), prefix=number.compact(prefix, "?")),
        )
    with spots[2]:
        most = pool.max_running_count.value
        detail = t("worker.running_detail", most=number.compact(most)) if most else t("worker.running_no_cap")
        _figure(t("worker.running"), pool.running_count, "count", detail)
    with spots[3]:
        need = worker_table.shown(composition.queued_tokens, "tokens", t)
        _figure(t("worker.waiting"), pool.waiting_count, "count", t("worker.waiting_detail", tokens=need))
    with spots[4]:
        growth = number.compact(rates.growth_tokens_per_s.value, "?")
        release = number.compact(rates.release_tokens_per_s.value, "?")
        detail = t("worker.net_detail", growth=growth, release=release)
        _figure(t("worker.net"), rates.net_tokens_per_s, "tokens/s", detail)
    with spots[5]:
        batch = number.compact(rates.mean_batch_count.value, unknown)
        _figure(t("worker.step"), rates.step_time_s, "s", t("worker.step_detail", batch=batch))
    if pool.role is Role.DECODE:
        return
    with spots[6]:
        speed = number.amount(rates.prefill_tokens_per_s.value, "tokens/s", absent=unknown)
        _figure(t("worker.duty"), rates.prefill_duty_ratio, "share", t("worker.duty_detail", rate=speed))


def findings(pool: PoolSnapshot) -> None:
    """Draw what was noticed about this pool."""
    widgets.findings([("", finding) for finding in pool.findings])


def now(pool: PoolSnapshot, unit: str) -> None:
    """Draw this pool and the other ranks of its worker as bars; a click goes to that rank."""
    t, language = context.say(), context.language()
    ranks = [item for item in context.snapshot().pools if item.worker_id == pool.worker_id]
    ranks.sort(key=lambda item: (item.pool_id != pool.pool_id, item.dp_rank))
    st.subheader(t("worker.now"), anchor=False)
    payload = fleet_figures.bars(ranks, unit, t, language, t("worker.now"))
    clicked = context.draw(payload, key="worker.now")
    if clicked and clicked != pool.pool_id:
        context.open_page("worker", pool=clicked)


def over_time(pool: PoolSnapshot, span: str, unit: str) -> None:
    """Draw composition, queues, step time and prefill duty over the range asked for."""
    t = context.say()
    end_s = pool.at_s
    start_s = end_s - RANGES_S[span]
    try:
        # A day is not read anew every two seconds: a new point is due only when the range moves by one of its points.
        tick = end_s if RANGES_S[span] <= _EVERY_TICK_S else end_s // (RANGES_S[span] / _POINTS)
        history, is_memory = context.shared(
            "worker.history",
            tick,
            (pool.pool_id, span, context.past_at_s()),
            lambda: context.pool_history(pool, start_s, end_s, _POINTS),
        )
    except KvscopeError as error:
        context.read_failed(error)
        return
    st.subheader(t("worker.composition"), anchor=False)
    if len(history.at_s) == 0:
        st.info(t("worker.history_empty", first=number.instant(context.first_sample_at_s(pool), t("common.none"))))
        return
    key = "worker.history_source_memory" if is_memory else "worker.history_source_store"
    first, last = number.clock(float(history.at_s[0])), number.clock(float(history.at_s[-1]))
    st.caption(t(key, count=len(history.at_s), from_at=first, to_at=last))
    window = figures.Span(start_s=start_s, end_s=end_s, age_s=pool.age_s, t=t, language=context.language())
    if figures.factor(pool, unit) is None:
        st.caption(t("fleet.no_conversion"))
    context.draw(figures.composition(pool, history, unit, window), key="worker.composition")
    left, right = st.columns(2)
    with left:
        st.subheader(t("worker.queues"), anchor=False)
        _drawn(figures.queues(history, window), "worker.queues", t("worker.queues_absent"))
    with right:
        st.subheader(t("worker.step_time"), anchor=False)
        step = worker_table.ratio_of_rises(history, "decode_step_s_total", "decode_steps_total")
        title = t("worker.step_time")
        payload = figures.single(history.at_s, step, window, title=title, word="step_time", unit="s")
        _drawn(payload, "worker.step_time", t("worker.step_absent"))
    if pool.role is not Role.DECODE:
        with left:
            st.subheader(t("worker.prefill_duty"), anchor=False)
            duty = worker_table.ratio_of_rises(history, "prefill_busy_s_total", None)
            title = t("worker.prefill_duty")
            payload = figures.single(history.at_s, duty, window, title=title, word="prefill_duty", unit="share")
            _drawn(payload, "worker.prefill_duty", t("worker.duty_absent"))
    with left if pool.role is Role.DECODE else right:
        st.subheader(t("worker.batch"), anchor=False)
        batch = worker_table.ratio_of_rises(history, "decode_batch_sum_total", "decode_steps_total")
        title = t("worker.batch")
        payload = figures.single(history.at_s, batch, window, title=title, word="running", unit="requests")
        _drawn(payload, "worker.batch", t("worker.step_absent"))


def _drawn(payload: bytes | None, key: str, absent: str) -> None:
    if payload is None:
        st.caption(absent)
    else:
        context.draw(payload, key=key)


def tables(pool: PoolSnapshot) -> None:
    """Draw every word, every rate and every raw figure with where it comes from."""
    t = context.say()
    st.subheader(t("worker.where"), anchor=False)
    widgets.text_table(worker_table.composition(pool, t, context.language()), "worker", wide=("reason", "meaning"))
    st.subheader(t("worker.rates"), anchor=False)
    st.caption(t("worker.rates_window", window=number.duration(pool.rates.window_s)))
    widgets.text_table(worker_table.rates(pool, t), "worker", wide=("reason",))
    with st.expander(t("worker.raw")):
        if pool.reading.anomalies:
            st.warning(t("worker.anomalies", names=number.markdown(", ".join(pool.reading.anomalies))))
        widgets.text_table(worker_table.raw(pool.reading, t), "worker", wide=("meaning",))
        st.caption(t("worker.raw_missing", names=number.markdown(", ".join(worker_table.missing(pool.reading)), 3000)))


def polls(pool: PoolSnapshot) -> None:
    """Draw how asking this worker went."""
    t = context.say()
    with st.expander(t("worker.polls")):
        try:
            outcomes = context.shared(
                "worker.polls",
                pool.at_s // _POLLS_TICK_S,
                pool.worker_id,
                lambda: context.worker_polls(pool.worker_id, pool.at_s - _POLLS_S, pool.at_s + 1.0),
            )
        except KvscopeError as error:
            context.read_failed(error)
            return
        if not outcomes:
            st.caption(t("worker.polls_none"))
            return
        widgets.text_table(worker_table.polls(outcomes, t), "worker", wide=("detail",), most_rows=12)

"""
The Calibration page's blocks: key figures, coefficients, predictions, coverage, versions, reserve and its cost.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from collectors import calibration
from collectors.calibration import Calibrator
from collectors.calibration_state import CalibrationState, KindState
from collectors.calibration_versions import profile_mapping
from collectors.errors import KvscopeError
from pages import _context as context
from pages import _widgets as widgets
from pages._calibration_cost import reserve_cost
from pages._decide_settings import decide_settings
from pages.figures import calibrated, number
from pages.figures import calibration as figures
from scoring.calibration_error import ErrorSample, ErrorSummary, Quantity, summarize
from scoring.calibration_reserve import PROMISES

EVERY_S: Final = 5.0
_ROLES: Final = ("decode", "unified", "prefill")


def learner() -> Calibrator:
    """Return the learner of the running collector, or draw why there is none and stop the page."""
    running = context.runtime()
    found = calibration.calibrator(running)
    if found is None:
        st.info(context.say()("calibration.nothing"))
        st.stop()
    return found


def ordered(names: Sequence[str]) -> list[str]:
    """Return kinds with those that decode first."""
    return sorted(names, key=lambda name: (next((i for i, r in enumerate(_ROLES) if f"-{r}-" in name), 9), name))


def promises(learning: Calibrator) -> list[str]:
    """Return the promises to choose from: those on offer and the one that the fleet file states."""
    return [str(each) for each in sorted({*PROMISES, learning.promise_ratio})]


def promise_words(word: str) -> str:
    """Return a promise as it is shown."""
    return number.share(float(word))


def wait_for_kinds() -> None:
    """Look again until the first kind of worker is known."""
    found = calibration.calibrator(context.runtime())
    if found is not None and found.state().kinds:
        st.rerun()


def _of(state: CalibrationState, name: str) -> KindState | None:
    return next((each for each in state.kinds if each.kind.name == name), None)


def _whole(summaries: Sequence[ErrorSummary], quantity: Quantity) -> ErrorSummary | None:
    return next(
        (
            each
            for each in summaries
            if each.quantity is quantity
            and each.is_held_out
            and each.slo_class == "all"
            and each.bucket == float("inf")
        ),
        None,
    )


def body(learning: Calibrator, name: str, promise: float) -> None:
    """Draw what follows the tick."""
    t = context.say()
    try:
        state = context.shared("calibration.state", context.snapshot().at_s // EVERY_S, "", learning.state)
    except KvscopeError as error:
        context.read_failed(error)
        return
    kind = _of(state, name)
    if state.problem:
        st.warning(t("calibration.problem", reason=number.markdown(t.said(state.problem))))
    if kind is None:
        st.warning(t("calibration.gone", kind=number.markdown(name, 80)))
        return
    judged = () if kind.judged is None else kind.judged.summaries()
    _key_figures(state, kind, judged)
    if kind.judged is not None:
        _coefficients(state, kind)
        _predictions(state, kind)
        st.subheader(t("calibration.errors"))
        st.caption(t("calibration.errors_intro"))
        running = summarize(_running(state, kind))
        widgets.text_table(figures.error_table(judged, running, t), "calibration", most_rows=14)
        counts = {"exhausted": state.exhausted_count, "averted": state.averted_count, "missed": state.missed_count}
        st.caption(t("calibration.exhaustion", **counts))
        _coverage(state, kind)
    _versions(kind)
    _reserve(learning, promise)


def _running(state: CalibrationState, kind: KindState) -> tuple[ErrorSample, ...]:
    """Return the predictions settled while running that are this kind's, its pools' or the fleet's."""
    return tuple(each for each in state.samples if each.subject in (kind.kind.name, "fleet", *kind.pools))


def _key_figures(state: CalibrationState, kind: KindState, judged: Sequence[ErrorSummary]) -> None:
    t = context.say()
    spots = st.columns(5, gap="small")
    with spots[0]:
        counts = {"decode": len(kind.decode), "prefill": len(kind.prefill), "transfer": len(kind.transfer)}
        detail = t("calibration.rows_detail", **counts)
        widgets.key_figure(t("calibration.rows"), str(sum(counts.values())), detail, t("calibration.rows_help"))
    shown = (
        ("step_error", _whole(judged, Quantity.STEP), "error_help"),
        ("prompt_error", _whole(judged, Quantity.PREFILL), "error_help"),
        ("ttft_error", _whole(state.summaries, Quantity.TTFT), "ttft_help"),
    )
    for spot, (word, summary, help_) in zip(spots[1:4], shown, strict=True):
        with spot:
            value = t("common.unknown") if summary is None else number.share(summary.at(0.5))
            p95 = None if summary is None else summary.at(0.95)
            count = 0 if summary is None else summary.sample_count
            detail = t("calibration.error_detail", p95=number.share(p95, t("common.unknown")), count=count)
            widgets.key_figure(t(f"calibration.{word}"), value, detail, t(f"calibration.{help_}"))
    with spots[4]:
        drift = kind.drift
        value, detail = t("calibration.drift_none"), t("calibration.drift_watch", count=drift.count)
        if drift.is_drifting:
            value = t("calibration.drift_found", direction=t(f"calibration.{drift.direction}"))
            detail = t("calibration.drift_detail", at=number.clock(drift.since_at_s))
        widgets.key_figure(t("calibration.drift"), value, detail, t("calibration.drift_help"))


def _coefficients(state: CalibrationState, kind: KindState) -> None:
    t = context.say()
    assert kind.judged is not None
    fit = kind.judged.fit
    published = figures.published_of(fit)
    st.subheader(t("calibration.coefficients"))
    st.caption(t("calibration.coefficients_intro", profile=published.name))
    left, right = st.columns([3, 2])
    with left:
        widgets.text_table(figures.coefficient_table(fit, published, t), "calibration")
    with right:
        variant = (kind.kind.name, context.language())
        payload = context.shared(
            "calibration.forest", state.at_s, variant, lambda: figures.forest(fit, published, state.at_s, t)
        )
        context.draw(payload, key="calibration.forest")


def _predictions(state: CalibrationState, kind: KindState) -> None:
    t = context.say()
    judged = kind.judged
    assert judged is not None
    variant = (kind.kind.name, context.language())
    running = _running(state, kind)
    left, right = st.columns(2)
    with left:
        payload = context.shared(
            "calibration.scatter", state.at_s, variant, lambda: figures.scatter(judged.samples, state.at_s, t)
        )
        context.draw(payload, key="calibration.scatter")
    with right:
        payload = context.shared(
            "calibration.residuals",
            state.at_s,
            variant,
            lambda: figures.residuals(judged.samples, running, judged.split_at_s, state.at_s, t),
        )
        context.draw(payload, key="calibration.residuals")


def _coverage(state: CalibrationState, kind: KindState) -> None:
    t = context.say()
    assert kind.judged is not None
    fit = kind.judged.fit
    left, right = st.columns(2)
    with left:
        st.subheader(t("calibration.coverage"))
        if kind.decode:
            payload = context.shared(
                "calibration.coverage",
                state.at_s,
                (kind.kind.name, context.language()),
                lambda: figures.coverage(kind.decode, state.at_s, t),
            )
            context.draw(payload, key="calibration.coverage")
    with right:
        st.subheader(t("calibration.improve"))
        notes = figures.improvements(fit)
        for note in notes or [t("calibration.improve_none")]:
            st.markdown(f"- {number.markdown(t.said(note))}")
        if fit.hit_ratio is not None:
            hits = {"ratio": number.share(fit.hit_ratio), "tokens": number.compact(fit.hit_query_tokens)}
            st.caption(t("calibration.hit", **hits))
        skipped = figures.skipped_text(kind.skipped, t)
        if skipped:
            st.caption(skipped)


def _versions(kind: KindState) -> None:
    t = context.say()
    st.subheader(t("calibration.versions"))
    st.caption(t("calibration.versions_intro"))
    if kind.versions:
        table = figures.version_table(kind.versions, kind.version, kind.decode, t)
        widgets.text_table(table, "calibration", wide=("why",), most_rows=8)


def _reserve(learning: Calibrator, promise: float) -> None:
    t = context.say()
    st.subheader(t("calibration.reserve"))
    st.caption(t("calibration.reserve_intro", quantile=number.share(promise)))
    found, defaults = learning.reserve(promise), decide_settings(context.runtime().settings)
    errors = {"ttft_error_ratio": defaults.ttft_error_ratio, "tpot_error_ratio": defaults.tpot_error_ratio}
    widgets.text_table(calibrated.knob_columns(found, errors, t), "calibration", wide=("rests",))
    words = calibrated.since_words(learning.in_use(), t)
    stated = learning.promise_ratio
    other = "" if promise == stated else t("calibration.reserve_other", quantile=number.share(promise))
    st.caption(" ".join(filter(None, (t("calibration.reserve_used"), words, other))))


def actions(learning: Calibrator, name: str) -> None:
    """Draw what a person may do with versions, and the export."""
    t = context.say()
    kind = _of(learning.state(), name)
    if kind is None:
        return
    spots = st.columns([2, 2, 2, 2, 3], vertical_alignment="bottom")
    acts: dict[str, Any] = {}
    with spots[0]:
        is_fitted = kind.judged is not None and kind.judged.fit.is_made
        if st.button(t("calibration.keep"), key="calibration.keep", disabled=not is_fitted):
            acts[t("calibration.keep")] = lambda: learning.keep(name, "by-hand")
    numbers = [str(each.version) for each in reversed(kind.versions)]
    with spots[1]:
        chosen = st.selectbox(t("calibration.col_version"), numbers, key=f"calibration.version.{name}")
    with spots[2]:
        is_usable = chosen is not None and (kind.version is None or str(kind.version.version) != chosen)
        if st.button(t("calibration.apply"), key="calibration.apply", disabled=not is_usable):
            acts[t("calibration.apply")] = lambda: learning.apply(name, int(str(chosen)))
    with spots[3]:
        has_earlier = sum(each.applied_at_s is not None for each in kind.versions) > 1
        if st.button(t("calibration.roll_back"), key="calibration.roll_back", disabled=not has_earlier):
            acts[t("calibration.roll_back")] = lambda: learning.roll_back(name)
    with spots[4]:
        if kind.profile is not None:
            st.download_button(
                t("calibration.export"),
                json.dumps(profile_mapping(kind.profile), indent=1),
                file_name=f"{name}.json",
                mime="application/json",
                help=t("calibration.export_help"),
                key="calibration.export",
            )
    for what, act in acts.items():
        try:
            act()
        except (KvscopeError, ValueError) as error:
            st.error(t("calibration.refused", reason=number.markdown(t.said(error))))
        else:
            context.forget_shared()
            st.toast(t("calibration.done", what=what))


def cost(learning: Calibrator, name: str, promise: float) -> None:
    """Draw what keeping room back costs, once asked for: it replays traffic."""
    t = context.say()
    kind = _of(learning.state(), name)
    if kind is None or kind.profile is None:
        return
    st.subheader(t("calibration.cost"))
    if st.button(t("calibration.cost_button"), key="calibration.cost", help=t("calibration.cost_help")):
        pool = next((p for p in context.snapshot().pools if p.pool_id in kind.pools), None)
        usable = None if pool is None else pool.composition.usable_tokens.value
        batch = float(np.median([each.batch_count for each in kind.decode])) if kind.decode else 8.0
        kv = float(np.median([each.kv_tokens for each in kind.decode])) if kind.decode else 16_000.0
        page = 1.0 if pool is None else pool.block_size_tokens.value or 1.0
        points = reserve_cost(kind.profile, usable or 131_072.0, page, mean_tokens=kv / max(batch, 1.0))
        found = learning.reserve(promise).settings.error_buffer_ratio
        context.draw(figures.cost_curve(points, found, learning.state().at_s, t), key="calibration.cost_curve")

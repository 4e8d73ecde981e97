"""
What a what-if rests on: the safety reserve of the chosen pools taken apart, and every value with its provenance.
"""

import numpy as np
import streamlit as st

from pages import _context as context
from pages import _what_if_form as form
from pages._decide_settings import error_defaults
from pages._widgets import text_table
from pages.figures import calibrated, number
from pages.figures import saturation_more as more
from pages.figures.saturation import Frame
from scoring.calibration_in_use import InUse
from scoring.chain_reserve import ReserveParts
from scoring.policy import Decision
from scoring.what_if import Question


def worker_of(pool: str) -> str:
    """Return the worker of a pool id; a name without a rank is its own."""
    return pool.rpartition("/")[0] or pool


def rests(known: InUse, prefill: str, decode: str) -> dict[str, str]:
    """Return term -> what its calibrated inputs rest on, for a pair of pools."""
    return calibrated.term_rests(known, worker_of(prefill), worker_of(decode), context.say())


def _pools(decision: Decision) -> list[str]:
    chosen = decision.chosen
    return [] if chosen is None else list(dict.fromkeys((chosen.decode, chosen.prefill)))


def _reserve_of(decision: Decision, question: Question, pool: str) -> ReserveParts:
    gate, knobs = decision.gate(pool), question.settings.reserve
    age_s = decision.ages_s()[pool]
    delay_s = (age_s or 0.0) if knobs.telemetry_delay_s is None else knobs.telemetry_delay_s
    return ReserveParts(
        delay_growth_tokens=gate.reserve_delay_growth_tokens,
        failure_share_tokens=gate.reserve_failure_share_tokens,
        prediction_error_tokens=gate.reserve_prediction_error_tokens,
        delay_s=delay_s + knobs.decision_delay_s,
        growth_is_known=bool(np.isfinite(gate.reserve_delay_growth_tokens)),
    )


def reserve(decision: Decision, question: Question, known: InUse) -> None:
    """Draw the safety reserve of the chosen pools taken apart, and what each part follows from."""
    t, names = context.say(), _pools(decision)
    if not names:
        return
    st.subheader(t("what_if.reserve_title"))
    st.caption(t("what_if.reserve_caption") if known.is_off else calibrated.since_words(known, t))
    kept = {name: _reserve_of(decision, question, name) for name in names}
    by_id = {pool.pool_id: pool for pool in question.fleet.pools}
    left, right = st.columns([2, 3])
    with left:
        ages = [age for age in decision.ages_s().values() if age is not None]
        frame = Frame(at_s=decision.at_s, age_s=max(ages, default=None), t=t)
        payload = more.reserve([by_id[name] for name in names], kept, frame)
        if payload is not None:
            context.draw(payload, key="what_if.reserve")
    with right:
        usable = by_id[names[0]].composition.usable_tokens.value
        st.caption(number.markdown(names[0]))
        for line in calibrated.reserve_lines(kept[names[0]], usable, known, t):
            st.markdown(line)


def sources(decision: Decision, asked: form.Asked, known: InUse) -> None:
    """Draw every value that the decision takes, with what it rests on or why it is a fallback."""
    t = context.say()
    st.subheader(t("what_if.sources_title"))
    st.caption(t("what_if.sources_caption"))
    expected = form.expected(asked, known)
    tokens = decision.prepared.output_tokens
    columns = calibrated.value_columns(
        known,
        [worker_of(name) for name in _pools(decision)],
        error_defaults(),
        calibrated.output_row(expected, known, tokens, decision.prepared.slo.quantile, t),
        t,
    )
    text_table(columns, "calibrated", wide=("rests",))

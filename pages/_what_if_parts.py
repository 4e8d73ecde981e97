"""
Pieces of the What-if page, in the order they stand on it.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from pages import _context as context
from pages import _what_if_form as form
from pages import _what_if_given as given
from pages._widgets import key_figure, text_table
from pages.figures import number, what_if_terms
from pages.figures import what_if as figures
from pages.figures import what_if_tables as tables
from scoring.calibration_in_use import InUse
from scoring.herd import Herd, herd_variants
from scoring.policy import POLICIES, Decision
from scoring.policy.deciding import terms_of
from scoring.policy.decision import Chosen, Ranked
from scoring.policy.explain import Term
from scoring.sensitivity import Flip, input_flips, weight_flips
from scoring.what_if import (
    Many,
    Placement,
    PolicyChoice,
    Question,
    every_policy,
    place_many,
    placement,
)

SENSITIVE_PAIRS = 20_000
"""Beyond this many pairs a decision takes milliseconds, and sensitivity asks for a hundred: only when switched on."""


def oldest_s(decision: Decision) -> float | None:
    """Return the age of the oldest figure that was scored, None where none is known."""
    ages = [age for age in decision.ages_s().values() if age is not None]
    return max(ages) if ages else None


def decided(question: Question, asked: form.Asked) -> Decision:
    """Return the decision, made once a tick for all viewers who ask the same."""
    return context.shared("what_if.decision", question.fleet.at_s, asked, question.ask)


def key_figures(decision: Decision) -> None:
    """Draw the choice, its score, its lead, the first token and how many pools are refused."""
    t = context.say()
    slo, chosen = decision.prepared.slo, decision.chosen
    with st.container(horizontal=True, gap="small"):
        name = t("what_if.nothing") if chosen is None else figures.pair_name(chosen.prefill, chosen.decode)
        key_figure(t("what_if.chosen"), name, t(f"what_if.class_{slo.name}"), t("what_if.chosen_help"))
        detail = t("what_if.score_detail", budget=number.duration(slo.ttft_s))
        key_figure(t("what_if.score_title"), figures.score_text(decision.score), detail, t("what_if.score_help"))
        other = decision.runner_up
        behind = t("what_if.margin_none")
        if other is not None and not other.is_refused:
            behind = figures.pair_name(other.prefill, other.decode)
        key_figure(t("what_if.margin"), figures.score_text(decision.margin), behind, t("what_if.margin_help"))
        ttft_s, risk = tables.first_token(decision.terms)
        detail = t("what_if.ttft_detail", budget=number.duration(slo.ttft_s), risk=number.share(risk))
        key_figure(t("what_if.ttft"), number.duration(ttft_s), detail, t("what_if.ttft_help"))
        counts = tables.rejection_counts(decision)
        detail = ", ".join(f"{t.said(name)} {count}" for name, count in counts.items()) or t("what_if.fits_none")
        total = f"{sum(counts.values())} / {len(decision.prepared.arrays)}"
        key_figure(t("what_if.fits"), total, number.markdown(detail), t("what_if.fits_help"))


def verdict(decision: Decision) -> None:
    """Draw the finding in a sentence: who wins, by how much, by which term; or why nobody does."""
    t = context.say()
    chosen, other = decision.chosen, decision.runner_up
    if chosen is None:
        st.error(t("what_if.verdict_refused", reason=number.markdown(t.said(decision.fallback or ""))))
        if decision.largest_fit_tokens is not None:
            st.caption(t("what_if.largest_fit", tokens=number.amount(decision.largest_fit_tokens, "tokens")))
        return
    pair = number.markdown(figures.pair_name(chosen.prefill, chosen.decode))
    deciding = tables.deciding_term(decision.terms, decision.runner_up_terms)
    if other is None or other.is_refused or deciding is None:
        st.markdown(t("what_if.verdict_alone", pair=pair))
    else:
        st.markdown(
            t(
                "what_if.verdict",
                pair=pair,
                margin=figures.score_text(decision.margin),
                other=number.markdown(figures.pair_name(other.prefill, other.decode)),
                term=t(f"what_if.term_{deciding[0]}"),
                gain=figures.score_text(deciding[1]),
            )
        )
    marks = dict.fromkeys((*decision.marks(chosen.prefill), *decision.marks(chosen.decode)))
    if marks:
        st.caption(t("what_if.estimated", texts=number.markdown("; ".join(t.said(mark) for mark in marks))))


def score_map(decision: Decision, asked: form.Asked) -> None:
    """Draw the heat map; a click puts the pair beside the choice."""
    t = context.say()
    st.subheader(t("what_if.map_title"))
    st.caption(t("what_if.map_caption"))
    payload = context.shared(
        "what_if.map",
        decision.at_s,
        (asked, context.language()),
        lambda: figures.score_map(decision, oldest_s(decision), t),
    )
    clicked = context.draw(payload, key="what_if.map")
    if clicked and "|" in clicked and st.query_params.get("b") != clicked:
        st.query_params["b"] = clicked
        st.rerun(scope="app")


def _terms(decision: Decision, question: Question, word: str) -> tuple[Chosen | Ranked, tuple[Term, ...]] | None:
    """Return the pair a word stands for and its terms, None where the fleet has no such pair."""
    if word == form.CHOSEN:
        chosen = decision.chosen
        return None if chosen is None else (chosen, decision.terms)
    if word == form.SECOND:
        other = decision.runner_up
        return None if other is None else (other, decision.runner_up_terms)
    prefill, _, decode = word.partition("|")
    pair = Ranked(prefill=prefill, decode=decode, score=0.0)
    try:
        terms = terms_of(decision.prepared, question.settings, question.fleet.links, decision.table, pair)
    except ValueError:
        return None
    return pair, terms


def compared(decision: Decision, question: Question, words: tuple[str, str], known: InUse) -> None:
    """Draw two pairs' terms as bars and the formula with its numbers, each with what it rests on."""
    t = context.say()
    found = [(word, _terms(decision, question, word)) for word in words]
    pairs = [
        what_if_terms.Compared(
            name=figures.pair_name(pair.prefill, pair.decode),
            terms=terms,
            rests=given.rests(known, pair.prefill, pair.decode),
        )
        for pair, terms in (each for _, each in found if each is not None)
    ]
    for word, each in found:
        if each is None and "|" in word:
            st.info(t("what_if.pair_absent", pair=number.markdown(word.replace("|", " → "))))
    if not pairs:
        return
    context.draw(what_if_terms.term_bars(pairs, oldest_s(decision), decision.at_s, t), key="what_if.terms")
    st.markdown(f"**{t('what_if.formula_title')}**")
    for column, pair in zip(st.columns(len(pairs)), pairs, strict=True):
        with column:
            st.caption(number.markdown(pair.name))
            st.code(tables.formula_text(pair, t), language=None, wrap_lines=True)


def lists(decision: Decision) -> None:
    """Draw the ranking and the refused, side by side."""
    t = context.say()
    left, right = st.columns([2, 3])
    with left:
        st.subheader(t("what_if.ranking_title"))
        text_table(tables.ranking_columns(decision), "what_if")
    with right:
        st.subheader(t("what_if.rejections_title"))
        if decision.rejections:
            text_table(tables.rejection_columns(decision, t), "what_if", wide=("reason",), most_rows=10)
        else:
            st.caption(t("what_if.rejections_none"))
        counts = tables.refused_pair_count(decision)
        if counts:
            texts = ", ".join(f"{t.said(name)} {count}" for name, count in counts.items())
            st.caption(t("what_if.rejections_pairs", texts=number.markdown(texts)))


def policies(question: Question, asked: form.Asked) -> None:
    """Draw every policy's choice for the same request."""
    t = context.say()
    st.subheader(t("what_if.policies_title"))
    choices: tuple[PolicyChoice, ...] = context.shared(
        "what_if.policies", question.fleet.at_s, asked, lambda: every_policy(question)
    )
    titles = {name: t(f"what_if.policy_{form.word(name)}") for name in POLICIES}
    text_table(tables.policy_columns(choices, titles, t), "what_if", wide=("note",))
    with st.expander(t("what_if.blind")):
        for policy in POLICIES.values():
            blind = number.markdown(t(f"what_if.blind_{form.word(policy.name)}"))
            st.markdown(f"**{number.markdown(titles[policy.name])}** · {blind}")
            st.caption(number.markdown(t.said(policy.source)))


def sensitivity(decision: Decision, question: Question, asked: form.Asked, *, is_on: bool) -> None:
    """Draw what would flip the choice, and at what value."""
    t = context.say()
    pairs = 0 if decision.table is None or decision.table.pairs is None else decision.table.pairs.total.size
    if decision.chosen is None or not (is_on or pairs <= SENSITIVE_PAIRS):
        return
    st.subheader(t("what_if.sensitivity_title"))
    flips: tuple[Flip, ...] = context.shared(
        "what_if.flips",
        question.fleet.at_s,
        asked,
        lambda: weight_flips(decision) + (input_flips(question, decision) if is_on else ()),
    )
    text_table(tables.flip_columns(flips, t), "what_if")


def placed(decision: Decision, question: Question, asked: form.Asked) -> None:
    """Draw the chosen pools now, with the request, and as decode starts; and where many of them would go."""
    t = context.say()
    if decision.chosen is None:
        return
    st.subheader(t("what_if.placement_title"))
    start_s = tables.decode_start_s(decision.terms)
    rows: list[tuple[str, Placement]] = []
    for name in dict.fromkeys((decision.chosen.prefill, decision.chosen.decode)):
        cases: list[tuple[str, float, int]] = [
            (t("what_if.placement_now", pool=name), 0.0, 0),
            (t("what_if.placement_with", pool=name, count=1), 0.0, 1),
        ]
        if name == decision.chosen.decode:
            after = number.duration(start_s)
            cases.append((t("what_if.placement_start", pool=name, after=after), start_s, 1))
        for text, horizon_s, count in cases:
            found = placement(decision, name, horizon_s, count)
            if found is not None:
                rows.append((text, found))
    if rows:
        figure = figures.placement_bars(rows, oldest_s(decision), decision.at_s, t, context.language())
        context.draw(figure, key="what_if.placement")
    if asked.count > 1:
        many: Many = context.shared(
            "what_if.many", question.fleet.at_s, asked, lambda: place_many(question, asked.count)
        )
        texts = [f"{figures.pair_name(*pair)} × {count}" for pair, count in many.by_pair.items()]
        if many.refused_count:
            texts.append(t("what_if.many_refused", count=many.refused_count))
        st.markdown(t("what_if.many", count=asked.count, texts=number.markdown(", ".join(texts))))


def herd(question: Question, asked: form.Asked, policy: str, count: int, age_s: float) -> None:
    """Draw where many at once go by each way to pick."""
    t = context.say()
    herds: Sequence[Herd] = context.shared(
        "what_if.herd",
        question.fleet.at_s,
        (asked, policy, count, age_s),
        lambda: herd_variants(
            question.request, question.fleet, policy, count=count, age_s=age_s, settings=question.settings
        ),
    )
    ages = [pool.age_s for pool in question.fleet.pools if pool.age_s is not None]
    figure = figures.herd_bars(herds, max(ages) if ages else None, question.fleet.at_s, t)
    context.draw(figure, key="what_if.herd")
    text_table(tables.herd_columns(herds, t), "what_if")


def link(at_s: float) -> None:
    """Draw the address that reproduces this what-if at this instant."""
    t = context.say()
    query: dict[str, Any] = {name: st.query_params.get_all(name) for name in st.query_params}
    query.setdefault("at", [f"{at_s:.3f}"])
    st.markdown(f"**{t('what_if.link_title')}**")
    st.caption(t("what_if.link_caption"))
    st.code(f"/what_if?{urlencode(query, doseq=True)}", language=None)

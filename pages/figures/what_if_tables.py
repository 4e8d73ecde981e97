"""
The What-if page's tables as columns, and the few figures its sentences need. Data in, plain values out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pages.figures import number
from pages.figures.what_if import pair_name, score_text, variant
from pages.figures.what_if_terms import Compared
from pages.texts import Say
from scoring.herd import Herd
from scoring.policy import Decision
from scoring.policy.explain import Term
from scoring.policy.filters import PAIR_FILTERS, PAIR_OK, PAIR_POOL
from scoring.sensitivity import Flip
from scoring.what_if import PolicyChoice


def herd_columns(herds: Sequence[Herd], t: Say) -> dict[str, list[Any]]:
    """Return the herd table: what each way of picking did."""
    return {
        "variant": [variant(each, t) for each in herds],
        "largest": [number.share(each.largest_share) for each in herds],
        "spread": [number.significant(each.effective_pool_count) for each in herds],
        "worst": [number.share(each.worst_ratio) for each in herds],
        "over": [each.over_reserve_count for each in herds],
        "refused": [each.refused_count for each in herds],
    }


def ranking_columns(decision: Decision) -> dict[str, list[Any]]:
    """Return the ranked table: pairs by score, and by how much each is behind."""
    best = decision.ranking[0].score if decision.ranking else 0.0
    return {
        "place": list(range(1, len(decision.ranking) + 1)),
        "pair": [pair_name(each.prefill, each.decode) for each in decision.ranking],
        "score": [score_text(each.score) for each in decision.ranking],
        "behind": [score_text(each.score - best) for each in decision.ranking],
    }


def rejection_columns(decision: Decision, t: Say) -> dict[str, list[Any]]:
    """Return every refused pool with the filter, the two numbers compared and the reason."""
    found: dict[str, list[Any]] = {name: [] for name in ("pool", "filter", "have", "need", "reason")}
    for each in decision.rejections:
        found["pool"].append(each.pool)
        found["filter"].append(t.said(each.filter))
        found["have"].append(None if each.have is None else number.compact(each.have))
        found["need"].append(None if each.need is None else number.compact(each.need))
        found["reason"].append(t.said(each.reason))
    return found


def refused_pair_count(decision: Decision) -> dict[str, int]:
    """Return how many pairs are refused as pairs, by filter."""
    counts: dict[str, int] = {}
    for block in () if decision.table is None else (decision.table.pairs, decision.table.alone):
        if block is None:
            continue
        for code in np.unique(block.codes):
            if int(code) not in (PAIR_OK, PAIR_POOL):
                name = PAIR_FILTERS[int(code)]
                counts[name] = counts.get(name, 0) + int((block.codes == code).sum())
    return counts


def policy_columns(choices: Sequence[PolicyChoice], titles: Mapping[str, str], t: Say) -> dict[str, list[Any]]:
    """Return what every policy would do, and what the joint cost says of it."""
    found: dict[str, list[Any]] = {name: [] for name in ("policy", "choice", "joint", "note")}
    for each in choices:
        chosen = each.decision.chosen
        found["policy"].append(titles[each.policy])
        found["choice"].append(t("what_if.nothing") if chosen is None else pair_name(chosen.prefill, chosen.decode))
        found["joint"].append(t("what_if.refused") if each.is_refused_by_joint else score_text(each.joint_score))
        found["note"].append("; ".join(t.said(text) for text in (each.decision.fallback, *each.decision.notes) if text))
    return found


def flip_columns(flips: Sequence[Flip], t: Say) -> dict[str, list[Any]]:
    """Return the sensitivity table, nearest change first; what nothing flips comes last."""

    def distance(flip: Flip) -> float:
        if flip.at is None:
            return math.inf
        return abs(math.log((flip.at + 1e-6) / (flip.now + 1e-6)))

    found: dict[str, list[Any]] = {name: [] for name in ("what", "now", "at", "then")}
    for flip in sorted(flips, key=lambda each: (distance(each), each.name)):
        kind, _, name = flip.name.partition(".")
        if kind == "weight":
            what = t("what_if.flip_weight", term=t(f"what_if.term_{name}"))
        elif kind == "prefix_hit":
            what = t("what_if.flip_prefix_hit", pool=name)
        else:
            what = t(f"what_if.flip_{kind}")
        found["what"].append(what)
        found["now"].append(number.significant(flip.now) if flip.now < 1_000 else number.compact(flip.now))
        found["at"].append(
            t("what_if.never")
            if flip.at is None
            else number.significant(flip.at)
            if flip.at < 1_000
            else number.compact(flip.at)
        )
        if flip.at is None:
            found["then"].append(None)
        elif flip.prefill is None or flip.decode is None:
            found["then"].append(t("what_if.nothing"))
        else:
            found["then"].append(pair_name(flip.prefill, flip.decode))
    return found


def formula_text(pair: Compared, t: Say) -> str:
    """Return the score of a pair as lines: what each term adds, weight x seconds with the numbers put in, and what
    its calibrated inputs rest on."""
    lines, terms = [], pair.terms
    for term in terms:
        sign = "−" if term.name == "prefix_benefit" else "+"
        lines.append(f"{sign} {score_text(abs(term.contribution)):>7}  {t(f'what_if.term_{term.name}')}")
        lines.append(f"            {term.weight:g} × {t.said(term.formula)}")
        if term.name in pair.rests:
            lines.append(f"            {t('what_if.rests', text=pair.rests[term.name])}")
    return "\n".join([*lines, f"= {score_text(sum(term.contribution for term in terms)):>7}"])


def rejection_counts(decision: Decision) -> dict[str, int]:
    """Return how many pools each filter refuses, most first."""
    counts: dict[str, int] = {}
    for each in decision.rejections:
        counts[each.filter] = counts.get(each.filter, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def first_token(terms: Sequence[Term]) -> tuple[float | None, float | None]:
    """Return predicted seconds to the first token and the risk of breaking the SLO, None without terms."""
    if not terms:
        return None, None
    own = {term.name: term for term in terms}
    before = ("prefill_wait", "prefill_compute", "transfer", "decode_wait")
    return sum(own[name].scored_s for name in before) - own["prefix_benefit"].scored_s, own["slo_risk"].normalised


def decode_start_s(terms: Sequence[Term]) -> float:
    """Return seconds until decode starts: wait, prefill and hand-over."""
    return sum(term.scored_s for term in terms if term.name in ("prefill_wait", "prefill_compute", "transfer"))


def deciding_term(first: Sequence[Term], second: Sequence[Term]) -> tuple[str, float] | None:
    """Return the term that speaks most for the first pair against the second, and by how much; None without two."""
    if not first or not second:
        return None
    gains = [(b.contribution - a.contribution, a.name) for a, b in zip(first, second, strict=True)]
    finite = [gain for gain in gains if math.isfinite(gain[0])]
    if not finite:
        return None
    gain, name = max(finite)
    return name, gain

"""
Sensitivity: the nearest change of one weight or one input that changes a decision, and what wins there.

Weights are exact, for the score is linear in them; inputs are asked again and again, outwards and then by bisection.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scoring import cost
from scoring.demand import OUTPUT_RANGE_TOKENS, PROMPT_RANGE_TOKENS, OutputQuantiles, RequestView
from scoring.policy import Decision
from scoring.slo import WEIGHT_RANGE
from scoring.what_if import Question, Scenario, apply, with_class

_STEPS: Final = 8
_HALVINGS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """
    The nearest change of one thing that changes the choice.

    Attributes:
        name: `weight.<term>`, or `prompt_tokens`, `output_tokens`, `ttft_s`, `bandwidth_factor`, `prefix_hit.<pool>`.
        now: Its value now.
        at: The value from which the choice differs; None when none in range does.
        prefill, decode: The pair chosen there, None when nothing is.
        range_: What was searched.
    """

    name: str
    now: float
    at: float | None
    prefill: str | None = None
    decode: str | None = None
    range_: tuple[float, float] = (0.0, 0.0)


def weight_flips(decision: Decision) -> tuple[Flip, ...]:
    """
    Return, for each weight, the nearest value at which another pair wins; exact, for the score is linear in it.

    Only decisions of the joint policy that chose their best pair have any.
    """
    if decision.table is None or decision.chosen is None:
        return ()
    blocks = [block for block in (decision.table.pairs, decision.table.alone) if block is not None]
    own, own_row, own_column = decision.table.find(decision.chosen.prefill, decision.chosen.decode)
    weights = dict(zip(cost.TERMS, decision.prepared.slo.weights.as_tuple(), strict=True))
    base = float(own.total[own_row, own_column])
    flips = []
    for name in cost.TERMS:
        sign = -1.0 if name == "prefix_benefit" else 1.0
        nearest: tuple[float, float, str, str] | None = None
        here = sign * float(own.term(name)[own_row, own_column])
        for block in blocks:
            slope = here - sign * block.term(name)
            with np.errstate(divide="ignore", invalid="ignore"):
                change = (block.total - base) / slope
            at = weights[name] + change
            ok = np.isfinite(change) & (at >= WEIGHT_RANGE[0]) & (at <= WEIGHT_RANGE[1]) & np.isfinite(block.total)
            if block is own:
                ok[own_row, own_column] = False
            if not ok.any():
                continue
            row, column = np.unravel_index(int(np.argmin(np.where(ok, np.abs(change), np.inf))), ok.shape)
            distance = float(abs(change[row, column]))
            if nearest is None or distance < nearest[0]:
                p = decision.table.ids[int(block.rows[row])]
                d = p if block.is_alone else decision.table.ids[int(block.columns[column])]
                nearest = (distance, float(at[row, column]), p, d)
        flips.append(
            Flip(
                name=f"weight.{name}",
                now=weights[name],
                at=None if nearest is None else nearest[1],
                prefill=None if nearest is None else nearest[2],
                decode=None if nearest is None else nearest[3],
                range_=WEIGHT_RANGE,
            )
        )
    return tuple(flips)


def input_flips(question: Question, decision: Decision) -> tuple[Flip, ...]:
    """
    Return, for each input of the request and the fleet, the nearest value at which the choice differs.

    Searched outwards in geometric steps, then by bisection: to about one part in ten thousand of a step.
    """
    request, slo = question.request, decision.prepared.slo
    flips = [
        _search(
            decision,
            "prompt_tokens",
            float(request.prompt_tokens),
            (
                max(PROMPT_RANGE_TOKENS[0], request.prompt_tokens / 64),
                min(PROMPT_RANGE_TOKENS[1], request.prompt_tokens * 64),
            ),
            lambda value: replace(question, request=_with_prompt(request, round(value))),
        ),
        _search(
            decision,
            "output_tokens",
            max(decision.prepared.output_tokens, 1.0),
            (1.0, min(float(OUTPUT_RANGE_TOKENS[1]), max(decision.prepared.output_tokens, 1.0) * 64)),
            lambda value: replace(
                question,
                request=replace(
                    request,
                    output=OutputQuantiles(((0.5, float(round(value))),)),
                    output_cap_tokens=None,
                    segment_tokens=None,
                ),
            ),
        ),
        _search(
            decision,
            "ttft_s",
            slo.ttft_s,
            (max(slo.ttft_s / 64, 1e-3), min(slo.ttft_s * 64, 86_400.0)),
            lambda value: replace(question, settings=with_class(question.settings, replace(slo, ttft_s=value))),
        ),
        _search(
            decision,
            "bandwidth_factor",
            1.0,
            (1 / 64, 64.0),
            lambda value: replace(question, fleet=apply(Scenario(bandwidth_factor=value), question.fleet)),
        ),
    ]
    if decision.runner_up is not None:
        pool = decision.runner_up.prefill
        held = request.prefix_hit_tokens.get(pool, 0)
        flips.append(
            _search(
                decision,
                f"prefix_hit.{pool}",
                float(held),
                (float(held), float(request.prompt_tokens)),
                lambda value: replace(
                    question,
                    request=replace(request, prefix_hit_tokens={**request.prefix_hit_tokens, pool: round(value)}),
                ),
            )
        )
    return tuple(flips)


def _with_prompt(request: RequestView, prompt_tokens: int) -> RequestView:
    """Return the request with another prompt; hits stay the same share of it."""
    share = prompt_tokens / request.prompt_tokens
    return replace(
        request,
        prompt_tokens=prompt_tokens,
        prefix_hit_tokens={
            name: min(int(hit * share), prompt_tokens) for name, hit in request.prefix_hit_tokens.items()
        },
        active_hit_tokens={
            name: min(int(hit * share), prompt_tokens) for name, hit in request.active_hit_tokens.items()
        },
    )


def _search(
    decision: Decision,
    name: str,
    now: float,
    range_: tuple[float, float],
    changed: Callable[[float], Question],
) -> Flip:
    chosen = decision.chosen

    def asked(value: float) -> Decision:
        return changed(value).ask()

    found: tuple[float, Decision] | None = None
    for bound in range_:
        if bound == now:
            continue
        low = max(now, 1.0) if bound > now else now
        inside = now
        for step in range(1, _STEPS + 1):
            # Geometric steps reach far; a start at 0 steps from 1.
            value = low * (bound / low) ** (step / _STEPS) if low > 0 else bound * step / _STEPS
            other = asked(value)
            if other.chosen != chosen:
                value, other = _bisect(asked, decision, inside, value, other)
                if found is None or abs(math.log(max(value, 1e-9) / max(now, 1e-9))) < abs(
                    math.log(max(found[0], 1e-9) / max(now, 1e-9))
                ):
                    found = (value, other)
                break
            inside = value
    at, there = (None, None) if found is None else (found[0], found[1].chosen)
    return Flip(
        name=name,
        now=now,
        at=at,
        prefill=None if there is None else there.prefill,
        decode=None if there is None else there.decode,
        range_=range_,
    )


def _bisect(
    asked: Callable[[float], Decision], decision: Decision, inside: float, outside: float, other: Decision
) -> tuple[float, Decision]:
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        answer = asked(middle)
        if answer.chosen != decision.chosen:
            outside, other = middle, answer
        else:
            inside = middle
    return outside, other

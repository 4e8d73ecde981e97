"""
From a trace as recorded to the traffic of a run: filters, scaling, spreading, classes; and synthetic traffic by text.

The steps are taken in a fixed order, whatever order they are asked for in: filter, thin, stagger sessions, spread
ticks, speed up, assign classes. Read next: `workload` (each step by itself).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from scoring.slo import SloClass
from simulation.trace import Trace
from simulation.workload import (
    ARRIVALS,
    LengthMix,
    Synthesis,
    scale_time,
    select,
    spread_ticks,
    stagger_sessions,
    synthesise,
    thin,
)

SYNTHETIC: Final = "synthetic"
_ANY: Final = (0, 2**62)
_MIX_WORDS: Final = {
    "prompt": "prompt_median_tokens",
    "prompt_sigma": "prompt_sigma",
    "output": "output_median_tokens",
    "output_sigma": "output_sigma",
    "prefixes": "prefix_count",
    "prefix_tokens": "prefix_tokens",
}
_RECIPE_WORDS: Final = {"rate": "rate_per_s", "duration": "duration_s", "swing": "swing_ratio", "period": "period_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """
    What to make of a trace before it is replayed.

    Attributes:
        start_s: Keep arrivals from here on.
        end_s: Keep arrivals before here; None keeps all.
        prompt_tokens: Inclusive range of prompts kept.
        output_tokens: Inclusive range of outputs kept.
        labels: (column, value) pairs; a row must have one of the values of every column named.
        max_count: Keep the first so many.
        keep_ratio: Keep a random share (1 keeps all): the rate falls, the shape stays.
        stagger_s: Start sessions so many seconds apart on average; None leaves them where they are.
        is_spread: Spread quantised arrivals inside their tick.
        speed: Arrivals so many times as fast.
        class_name: SLO class of rows that do not name one; None takes the first class.
    """

    start_s: float = 0.0
    end_s: float | None = None
    prompt_tokens: tuple[int, int] = _ANY
    output_tokens: tuple[int, int] = _ANY
    labels: tuple[tuple[str, str], ...] = ()
    max_count: int | None = None
    keep_ratio: float = 1.0
    stagger_s: float | None = None
    is_spread: bool = False
    speed: float = 1.0
    class_name: str | None = None


def shape(trace: Trace, shaping: Shaping, classes: Sequence[SloClass], *, seed: int) -> Trace:
    """
    Return the trace as asked for; arrivals count from the first kept one.

    Raises:
        ValueError: nothing is left, or a step cannot be taken; the message says which.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for name, value in shaping.labels:
        labels[name] = (*labels.get(name, ()), value)
    is_filtered = (
        shaping.start_s > 0
        or shaping.end_s is not None
        or shaping.prompt_tokens != _ANY
        or shaping.output_tokens != _ANY
        or labels
        or shaping.max_count is not None
    )
    if is_filtered:
        trace = select(
            trace,
            start_s=shaping.start_s,
            end_s=np.inf if shaping.end_s is None else shaping.end_s,
            prompt_tokens=shaping.prompt_tokens,
            output_tokens=shaping.output_tokens,
            labels=labels,
            max_count=shaping.max_count,
        )
    if shaping.keep_ratio != 1.0:
        trace = thin(trace, shaping.keep_ratio, seed=seed)
    if not len(trace):
        raise ValueError("the filters leave no request: widen them")
    if shaping.stagger_s is not None:
        trace = stagger_sessions(trace, shaping.stagger_s, seed=seed)
    if shaping.is_spread:
        trace = spread_ticks(trace, seed=seed)
    if shaping.speed != 1.0:
        trace = scale_time(trace, shaping.speed)
    first_s = float(trace.traffic.arrival_s.min())
    if first_s > 0:
        trace = replace(trace, traffic=replace(trace.traffic, arrival_s=trace.traffic.arrival_s - first_s))
    return with_classes(trace, classes, shaping.class_name)


def with_classes(trace: Trace, classes: Sequence[SloClass], default: str | None = None) -> Trace:
    """
    Return the trace with class ids: by its `class` label where it has one, else the default (the first class).

    Raises:
        ValueError: the default, or a label, is no class.
    """
    names = [slo.name for slo in classes]
    wanted = names[0] if default is None else default
    if wanted not in names:
        raise ValueError(f"class {wanted!r} is not known: there are {', '.join(names)}")
    column = trace.categories.get("class")
    codes = np.full(len(trace), names.index(wanted), np.int64)
    if column is not None:
        unknown = sorted({name for name in column.names if name and name not in names})
        if unknown:
            raise ValueError(f"the trace names class {unknown[0]!r}: there are {', '.join(names)}")
        by_code = np.array([names.index(name or wanted) for name in column.names], np.int64)
        codes = by_code[column.codes]
    return replace(trace, traffic=replace(trace.traffic, class_ids=codes))


def tenant_names(trace: Trace) -> tuple[str, ...]:
    """Return the names of the trace's tenant ids, empty where it has none."""
    ids = trace.traffic.tenant_ids
    for column in trace.categories.values():
        if len(column.codes) == len(ids) and len(column.names) > 1 and np.array_equal(column.codes, ids):
            return column.names
    return ()


def is_synthetic(text: str) -> bool:
    """Say whether the name of a trace asks for synthetic traffic."""
    return text == SYNTHETIC or text.startswith(f"{SYNTHETIC}:")


def synthesis_of(text: str) -> Synthesis:
    """
    Return the recipe of `synthetic:gamma,rate=4,duration=600,prompt=2000,output=300,prefixes=20,prefix_tokens=1024`.

    The first word may name the arrivals; the others set fields of the recipe, or of its one kind of request.

    Raises:
        ValueError: a word or number is not understood; the message lists what is.
    """
    recipe: dict[str, Any] = {}
    mix: dict[str, Any] = {}
    own = {each.name for each in fields(Synthesis)} - {"mixes", "arrivals"}
    for word in filter(None, (part.strip() for part in text.partition(":")[2].split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            if word not in ARRIVALS:
                raise ValueError(f"{word!r} is no way of arriving: there are {', '.join(ARRIVALS)}")
            recipe["arrivals"] = word
            continue
        name = _RECIPE_WORDS.get(name, name)
        target, key = (recipe, name) if name in own else (mix, _MIX_WORDS.get(name, ""))
        if not key:
            known = sorted({*own, *_RECIPE_WORDS, *_MIX_WORDS})
            raise ValueError(f"synthetic: {name!r} is not known: there are {', '.join(known)}")
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"synthetic: {name} is {value!r}: must be a number") from None
        whole = key in ("prefix_count", "prefix_tokens") or key.endswith(("max_tokens", "block_tokens"))
        target[key] = int(number) if whole else number
    return Synthesis(**recipe, mixes=(LengthMix(**mix),))


def synthetic_trace(text: str, *, seed: int) -> Trace:
    """Return the traffic of a recipe's text; raises ValueError as `synthesis_of` does, or when nothing arrives."""
    trace = synthesise(synthesis_of(text), seed=seed)
    if not len(trace):
        raise ValueError("the recipe brings no request: raise rate or duration")
    return trace

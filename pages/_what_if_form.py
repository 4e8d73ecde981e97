"""
The What-if page's request form: every control in the URL, so that the address reproduces the whole what-if.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import streamlit as st

from collectors.judging import reserve_of
from pages import _context as context
from pages import _controls as controls
from pages._decide_settings import decide_settings
from pages._in_use import in_use
from pages.figures import number
from scoring import cost
from scoring.calibration_in_use import OUTPUT_TOKENS, ExpectedOutput, InUse, expected_output, switched_off
from scoring.demand import OUTPUT_RANGE_TOKENS, PROMPT_RANGE_TOKENS, OutputQuantiles, RequestView, known_output
from scoring.herd import HERD_RANGE
from scoring.model import FleetSnapshot, Role
from scoring.policy import POLICIES, DecideSettings
from scoring.policy.settings import DECIDERS
from scoring.slo import SloClass
from scoring.what_if import COUNT_RANGE, Question, weighted

SLIDER_MAX = 10.0
EVERY_POOL = "*"
HERD_POLICY = "lowest-utilization"
HERD_COUNTS = (HERD_RANGE[0], 256)
CHOSEN, SECOND = "chosen", "second"
CALIBRATED, FLEET_FILE = "calibrated", "fleet-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    What the form holds: plain values, so that a result can be shared under it as a key.

    Attributes:
        output_tokens: None where the viewer leaves it to what is known of this fleet.
        values: CALIBRATED or FLEET_FILE: where times, spreads and the reserve come from.
    """

    prompt_tokens: int
    output_tokens: int | None
    quantiles: tuple[tuple[float, float], ...]
    slo_class: str
    count: int
    hits: tuple[tuple[str, int], ...]
    tenant: str
    model: str
    decider: str
    weights: tuple[tuple[str, float], ...]
    values: str


def word(name: str) -> str:
    """Return a stable kebab-case name as part of a text's key."""
    return name.replace("-", "_")


def whole(param: str, label: str, default: int, bounds: tuple[int, int], language: str, step: int = 1) -> int:
    """Draw a whole number kept in the URL and return it."""
    key = controls._key(param, language)

    controls._adopt(param, key, lambda raw: controls.whole_of(raw[0], bounds), default)
    value = int(st.number_input(label, bounds[0], bounds[1], step=step, key=key))
    controls._publish(param, value, [str(value)], default)
    return value


def whole_or_none(param: str, label: str, bounds: tuple[int, int], hint: str, language: str, step: int) -> int | None:
    """Draw a whole number that may be left empty, kept in the URL, and return it; `hint` says what empty means."""
    key = controls._key(param, language)

    controls._adopt(param, key, lambda raw: controls.whole_of(raw[0], bounds), None)
    drawn = st.number_input(label, bounds[0], bounds[1], value=None, step=step, key=key, placeholder=hint)
    value = None if drawn is None else int(drawn)
    controls._publish(param, value, [] if value is None else [str(value)], None)
    return value


def slider(param: str, label: str, default: float, top: float, language: str, scope: str, step: float = 0.1) -> float:
    """Draw a slider kept in the URL and return its value; `scope` tells apart defaults, such as a class."""
    key = f"{controls._key(param, language)}.{scope}"

    controls._adopt(param, key, lambda raw: controls.number_of(raw[0], (0.0, top)), default)
    value = float(st.slider(label, 0.0, top, step=step, key=key))
    controls._publish(param, value, [f"{value:g}"], default)
    if value == default:
        st.session_state.pop(f"keep.{param}", None)  # A preset is no choice of the viewer's: another class has its own.
    return value


def choice(param: str, label: str, options: Sequence[str], show: Callable[[str], str], language: str) -> str:
    """Draw one choice of many by its stable word and return it; what the URL asks for is offered even when gone."""
    key = controls._key(param, language)
    controls._adopt(param, key, lambda raw: raw[0] or None, options[0])
    current = st.session_state[key]
    offered = list(options) if current in options else [current, *options]
    # A word that is gone, or was never one, has no label: it is shown as the URL has it.
    value = str(st.selectbox(label, offered, format_func=lambda word: show(word) if word in options else word, key=key))
    controls._publish(param, value, [value], options[0])
    return value


def draw(language: str) -> Asked:
    """Draw the form and return what it holds."""
    t = context.say()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        prompt = whole("prompt", t("what_if.prompt"), 8_000, PROMPT_RANGE_TOKENS, language, 1_000)
        hint = t("what_if.output_hint", tokens=OUTPUT_TOKENS)
        output = whole_or_none("output", t("what_if.output"), OUTPUT_RANGE_TOKENS, hint, language, 100)
        settings = decide_settings(context.runtime().settings)
        slo = controls.segments(
            "class",
            t("what_if.class"),
            list(settings.classes),
            "interactive",
            lambda name: t(f"what_if.class_{name}"),
            language,
        )
        count = whole("count", t("what_if.count"), 1, COUNT_RANGE, language)
        values = controls.segments(
            "values",
            t("what_if.values"),
            [CALIBRATED, FLEET_FILE],
            CALIBRATED,
            lambda name: t(f"what_if.values_{word(name)}"),
            language,
        )
    with st.expander(t("what_if.more")):
        hits, quantiles, tenant, model, decider = _more(language)
    with st.expander(t("what_if.weights", name=t(f"what_if.class_{slo}"))):
        weights = _weights(settings.classes[slo], language)
    return Asked(
        prompt_tokens=prompt,
        output_tokens=output,
        quantiles=quantiles,
        slo_class=slo,
        count=count,
        hits=hits,
        tenant=tenant,
        model=model,
        decider=decider,
        weights=weights,
        values=values,
    )


def _more(
    language: str,
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[float, float], ...], str, str, str]:
    t = context.say()
    left, right = st.columns(2)
    with left:
        hits_text = controls.text(
            "hit", t("what_if.hits"), language, placeholder=t("what_if.hits_hint"), help_=t("what_if.hits_help")
        )
        tenant = controls.text("tenant", t("what_if.tenant"), language)
        decider = choice(
            "decider",
            t("what_if.decider"),
            DECIDERS,
            lambda name: t(f"what_if.decider_{word(name)}") if name in DECIDERS else name,
            language,
        )
    with right:
        quantiles_text = controls.text(
            "quantiles",
            t("what_if.quantiles"),
            language,
            placeholder=t("what_if.quantiles_hint"),
            help_=t("what_if.quantiles_help"),
        )
        model = controls.text("model", t("what_if.model"), language)
    hits, bad_hits = parse_pairs(hits_text)
    quantiles, bad_quantiles = parse_pairs(quantiles_text)
    if bad_hits:
        st.warning(t("what_if.bad_hits", text=number.markdown(bad_hits)))
    if bad_quantiles:
        st.warning(t("what_if.bad_quantiles", text=number.markdown(bad_quantiles)))
    points = []
    for name, tokens in quantiles:
        try:
            points.append((float(name), tokens))
        except ValueError:
            st.warning(t("what_if.bad_quantiles", text=number.markdown(name)))
    whole_hits = tuple((name, int(tokens)) for name, tokens in hits)
    return whole_hits, tuple(points), tenant, model, decider if decider in DECIDERS else DECIDERS[0]


def parse_pairs(text: str) -> tuple[tuple[tuple[str, float], ...], str]:
    """Return ((name, number), ...) of `name=number, ...`, and the first part that is not one, or ""."""
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.rpartition("=")
        try:
            found.append((name.strip(), float(value)))
        except ValueError:
            return tuple(found), part
        if not equals or not name.strip():
            return tuple(found[:-1]), part
    return tuple(found), ""


def _weights(slo: SloClass, language: str) -> tuple[tuple[str, float], ...]:
    t = context.say()
    found = []
    for column, name in zip(st.columns(len(cost.TERMS)), cost.TERMS, strict=True):
        preset = float(getattr(slo.weights, name))
        with column:
            value = slider(f"w_{name}", t(f"what_if.term_{name}"), preset, max(SLIDER_MAX, preset), language, slo.name)
        if value != preset:
            found.append((name, value))
    return tuple(found)


def compare(decision_pairs: Sequence[str], language: str) -> tuple[str, str]:
    """Draw the choice of two pairs to compare and return their words."""
    t = context.say()

    def show(word: str) -> str:
        if word in (CHOSEN, SECOND):
            return t(f"what_if.pair_{word}")
        left, _, right = word.partition("|")
        return left if left == right else f"{left} → {right}"

    left, right = st.columns(2)
    with left:
        first = choice("a", t("what_if.pair_a"), (CHOSEN, SECOND, *decision_pairs), show, language)
    with right:
        second = choice("b", t("what_if.pair_b"), (SECOND, CHOSEN, *decision_pairs), show, language)
    return first, second


def herd(language: str) -> tuple[str, int, float]:
    """Draw the herd's controls and return policy, requests at once and telemetry age."""
    t = context.say()
    names = [HERD_POLICY, *(name for name in POLICIES if name != HERD_POLICY)]
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    with left:
        policy = choice(
            "herd",
            t("what_if.herd_policy"),
            names,
            lambda name: t(f"what_if.policy_{word(name)}") if name in POLICIES else name,
            language,
        )
    with middle:
        count = whole("n", t("what_if.herd_count"), 16, HERD_COUNTS, language)
    with right:
        age_s = slider("age", t("what_if.herd_age"), 1.0, 60.0, language, "herd", 0.5)
    return policy if policy in POLICIES else HERD_POLICY, count, age_s


def pair_options(fleet: FleetSnapshot, most: int = 60) -> list[str]:
    """Return the pairs to choose from, as `prefill|decode` words; in a large fleet only the first ones by name."""
    prefill = [pool.pool_id for pool in fleet.pools if pool.role is Role.PREFILL]
    decode = [pool.pool_id for pool in fleet.pools if pool.role is Role.DECODE]
    alone = [f"{pool.pool_id}|{pool.pool_id}" for pool in fleet.pools if pool.role is Role.UNIFIED]
    return [*(f"{p}|{d}" for p in prefill for d in decode)][:most] + alone[:most]


def given(asked: Asked, fleet: FleetSnapshot) -> InUse:
    """Return what calibration gives the question: what is in use, or nothing where the fleet file is asked for."""
    found = in_use(fleet)
    return found if asked.values == CALIBRATED else switched_off(found, reserve_of(context.runtime().settings))


def question(asked: Asked, fleet: FleetSnapshot, known: InUse) -> Question:
    """
    Return the question of the form on a fleet.

    Raises:
        ValueError: A number is out of range; the message gives the allowed range.
    """
    settings = decide_settings(context.runtime().settings, None if known.is_off else known)
    return Question(request=request(asked, fleet, known), fleet=fleet, settings=settings_of(asked, settings))


def settings_of(asked: Asked, settings: DecideSettings) -> DecideSettings:
    """Return the fleet's settings with the form's weights and decider."""
    own = weighted(settings, asked.slo_class, dict(asked.weights)) if asked.weights else settings
    return replace(own, decider=asked.decider)


def expected(asked: Asked, known: InUse) -> ExpectedOutput | None:
    """Return the output to expect where the form leaves it open; None where the form gives it."""
    if asked.quantiles or asked.output_tokens is not None:
        return None
    return expected_output(known, asked.slo_class, asked.prompt_tokens)


def request(asked: Asked, fleet: FleetSnapshot, known: InUse) -> RequestView:
    """Return the request of the form; hits on pools the fleet does not have are left out."""
    if asked.quantiles:
        output = OutputQuantiles(asked.quantiles)
    elif asked.output_tokens is not None:
        output = known_output(asked.output_tokens)
    else:
        output = expected_output(known, asked.slo_class, asked.prompt_tokens).output
    return RequestView(
        prompt_tokens=asked.prompt_tokens,
        output=output,
        prefix_hit_tokens=hits_on(asked.hits, fleet),
        slo_class=asked.slo_class,
        tenant=asked.tenant or None,
        model=asked.model or None,
        request_id="what-if",
    )


def hits_on(hits: Sequence[tuple[str, int]], fleet: FleetSnapshot) -> Mapping[str, int]:
    """Return hits by pool id; `*` stands for every pool, a worker's name for all its ranks."""
    found: dict[str, int] = {}
    for name, tokens in hits:
        for pool in fleet.pools:
            if name in (EVERY_POOL, pool.pool_id, pool.worker_id):
                found[pool.pool_id] = tokens
    return found


def absent_pools(asked: Asked, fleet: FleetSnapshot) -> list[str]:
    """Return names in the form's hits that no pool of the fleet answers to."""
    known = {EVERY_POOL, *(pool.pool_id for pool in fleet.pools), *(pool.worker_id for pool in fleet.pools)}
    return [name for name, _ in asked.hits if name not in known]

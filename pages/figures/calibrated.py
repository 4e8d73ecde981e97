"""
What calibration has in use, in words and tables: every value with what it rests on, or why it is a fallback.

Shared by What-if, Saturation and Calibration, so that the same thing is said in the same words. Data in, plain
values out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pages.figures import number
from pages.figures.calibration import shown_coefficient
from pages.texts import Say
from scoring.calibration_in_use import NO_VERSION, SWITCHED_OFF, ExpectedOutput, InUse, PartInUse
from scoring.calibration_reserve import RESERVE_KNOBS, RISK_KNOBS, CalibratedReserve, Knob
from scoring.chain_reserve import ReserveParts

TERM_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prefill_wait": ("prefill",),
    "prefill_compute": ("prefill",),
    "transfer": ("transfer",),
    "decode_wait": ("decode",),
    "slo_risk": (),
    "kv_pressure": (),
    "prefix_benefit": ("prefill",),
}
"""Term -> parts of the service times that it takes."""
TERM_KNOBS: Final[Mapping[str, tuple[str, ...]]] = {
    "kv_pressure": ("telemetry_delay_s", "error_buffer_ratio"),
    "slo_risk": RISK_KNOBS,
}


def knob_value(name: str, value: float | None, t: Say) -> str:
    """Return a knob's value as it is shown; None is what stands for it."""
    if value is None:
        return t("calibrated.age_of_pool") if name == "telemetry_delay_s" else number.ABSENT
    return number.duration(value) if name.endswith("_s") else number.share(value)


_IN_FILE: Final = ("growth_quantile_ratio", "telemetry_delay_s", "error_buffer_ratio")
"""Knobs that a fleet file can state."""


def knob_rests(knob: Knob, t: Say, *, is_off: bool = False) -> str:
    """Return what a knob rests on; `is_off`: the fleet file was asked for."""
    if is_off:
        return t("calibrated.file" if knob.name in _IN_FILE else "calibrated.chosen")
    word = "told" if knob.is_calibrated else "few"
    return t(f"calibrated.{word}_{knob.name}", count=number.compact(knob.sample_count), needed=knob.needed_count)


def knob_columns(reserve: CalibratedReserve, defaults: Mapping[str, float], t: Say) -> dict[str, list[str]]:
    """
    Return one row a knob: name, without calibration, with it, what it rests on.

    Args:
        reserve: Of one promise.
        defaults: RISK_KNOBS -> what is used where nothing was measured.
        t: The viewer's language.
    """
    columns: dict[str, list[str]] = {name: [] for name in ("knob", "chosen", "calibrated", "rests")}
    for knob in reserve.knobs:
        chosen = defaults.get(knob.name) if knob.chosen is None else knob.chosen
        value = chosen if knob.value is None else knob.value
        columns["knob"].append(t(f"calibration.knob_{knob.name}"))
        columns["chosen"].append(knob_value(knob.name, chosen, t))
        columns["calibrated"].append(knob_value(knob.name, value, t))
        columns["rests"].append(knob_rests(knob, t))
    return columns


def since_words(in_use: InUse, t: Say) -> str:
    """Return for which promise the reserve in use is, and since when."""
    promise = number.share(in_use.reserve.quantile_ratio)
    if in_use.reserve_since_at_s is None:
        word = "reserve_none_then" if in_use.is_past else "reserve_not_yet"
        return t(f"calibrated.{word}", **({} if in_use.is_past else {"promise": promise}))
    return t("calibrated.reserve_in_use", promise=promise, at=number.instant(in_use.reserve_since_at_s))


def part_rests(part: PartInUse, is_past: bool, t: Say) -> str:
    """Return what the coefficients of a part rest on, or what is used instead and why."""
    if part.why_not:
        return t("calibrated.fallback", instead=t(f"calibrated.instead_{part.part}"), why=_why_not(part, is_past, t))
    words = [
        t(
            "calibrated.part_fitted",
            count=number.compact(part.row_count),
            version=part.version,
            at=number.clock(part.since_at_s),
        )
    ]
    if part.is_rough:
        words.append(t("calibrated.part_rough"))
    words += departing_words(part, t)
    return "; ".join(words)


def departing_words(part: PartInUse, t: Say) -> list[str]:
    """Return a sentence for each worker that is too far off its kind's coefficients to be judged by them."""
    return [
        t("calibrated.departing", worker=worker, error=number.share(1.0 + error))
        for worker, error in sorted(part.departing.items())
    ]


def _why_not(part: PartInUse, is_past: bool, t: Say) -> str:
    if part.why_not == SWITCHED_OFF:
        return t("calibrated.switched_off")
    if part.why_not == NO_VERSION:
        if is_past:
            return t("calibrated.no_version_past")
        if part.missing_count:
            return t("calibrated.no_version_missing", missing=part.missing_count)
        return t("calibrated.no_version")
    if part.missing_count:
        return t("calibrated.not_told_missing", version=part.version, missing=part.missing_count)
    return t("calibrated.not_told", version=part.version)


def output_row(
    expected: ExpectedOutput | None, in_use: InUse, tokens: float, quantile: float, t: Say
) -> tuple[str, str, str, str]:
    """
    Return the row of the output that a decision plans for: name, tokens, of what, what it rests on.

    Args:
        expected: Where nobody gave it; None where the form does.
        in_use: What is used.
        tokens: Planned for.
        quantile: Of the class.
        t: The viewer's language.
    """
    if expected is None:
        rests = t("calibrated.output_given")
    elif expected.source != "log" or in_use.outputs is None or expected.cell is None:
        rests = t(f"calibrated.output_{expected.source}")
    else:
        cell, outputs = expected.cell, in_use.outputs
        word = "output_log_wider" if cell.taken_from else "output_log"
        rests = t(
            f"calibrated.{word}",
            count=outputs.request_count if cell.taken_from else cell.sample_count,
            **({"own": cell.sample_count} if cell.taken_from else {}),
            source=outputs.source,
            version=outputs.version,
            at=number.instant(outputs.since_at_s),
        )
    name = t("calibrated.output_at", quantile=number.share(quantile))
    return name, number.amount(tokens, "tokens"), t("calibrated.this_request"), rests


def value_columns(
    in_use: InUse, workers: Sequence[str], defaults: Mapping[str, float], output: tuple[str, str, str, str], t: Say
) -> dict[str, list[Any]]:
    """
    Return one row a value that a decision takes: coefficients of the workers' kinds, spreads, knobs of the reserve.

    Args:
        in_use: What is used.
        workers: Whose kinds; every kind when empty.
        defaults: RISK_KNOBS -> what is used where nothing was measured.
        output: See `output_row`.
        t: The viewer's language.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("value", "now", "of", "rests")}

    def row(value: str, now: str, of: str, rests: str) -> None:
        for column, cell in zip(columns.values(), (value, now, of, rests), strict=True):
            column.append(cell)

    for part in in_use.parts:
        if workers and not set(workers) & set(part.worker_ids):
            continue
        rests = part_rests(part, in_use.is_past, t)
        if not part.values:
            row(t(f"calibrated.part_{part.part}"), number.ABSENT, part.kind, rests)
        for name, value in part.values.items():
            believed = name in part.believed
            why = (
                t("calibrated.part_believed", version=part.version, at=number.clock(part.since_at_s))
                if believed
                else rests
            )
            row(t(f"calibration.name_{name}"), shown_coefficient(name, value), part.kind, why)
    row(*output)
    for name in (*RISK_KNOBS, *RESERVE_KNOBS):
        knob = in_use.reserve.knob(name)
        value_ = defaults.get(name) if knob.value is None else knob.value
        row(
            t(f"calibration.knob_{name}"),
            knob_value(name, value_, t),
            t("calibrated.whole_fleet"),
            knob_rests(knob, t, is_off=in_use.is_off),
        )
    return columns


def reserve_lines(parts: ReserveParts, usable_tokens: float | None, in_use: InUse, t: Say) -> list[str]:
    """
    Return one line of Markdown a part of a pool's safety reserve, with the knobs it follows from and what they rest on.

    Args:
        parts: In tokens, by the knobs in use.
        usable_tokens: Of the pool, None when unknown.
        in_use: Where the knobs come from.
        t: The viewer's language.
    """
    reserve, settings = in_use.reserve, in_use.reserve.settings

    def rests(name: str) -> str:
        return knob_rests(reserve.knob(name), t, is_off=in_use.is_off)

    rows = (
        (
            "delay_growth",
            t(
                "calibrated.growth_rests",
                delay=number.duration(max(parts.delay_s - settings.decision_delay_s, 0.0)),
                decision=number.duration(settings.decision_delay_s),
                quantile=number.share(settings.growth_quantile_ratio),
                delay_rests=rests("telemetry_delay_s"),
            ),
        ),
        (
            "failure_share",
            t(
                "calibrated.failure_rests",
                count=settings.failure_count,
                share=number.share(settings.failure_share_ratio),
            ),
        ),
        (
            "prediction_error",
            t(
                "calibrated.error_rests",
                buffer=number.share(settings.error_buffer_ratio),
                buffer_rests=rests("error_buffer_ratio"),
                spread=number.share(settings.output_error_ratio),
                spread_rests=rests("output_error_ratio"),
            ),
        ),
    )
    lines = []
    for name, words in rows:
        tokens = getattr(parts, f"{name}_tokens")
        lines.append(
            t(
                "calibrated.reserve_line",
                part=t(f"saturation.part_{name}"),
                tokens=number.amount(tokens, "tokens"),
                share=number.share(tokens / usable_tokens) if usable_tokens else number.ABSENT,
                rests=number.markdown(words),
            )
        )
    return lines


def term_rests(in_use: InUse, prefill: str, decode: str, t: Say) -> dict[str, str]:
    """
    Return term -> what its calibrated inputs rest on, for one pair; terms that take nothing calibrated are absent.

    Args:
        in_use: What is used.
        prefill: Worker that computes the prompt.
        decode: Worker that decodes.
        t: The viewer's language.
    """
    found = {}
    for term, names in TERM_PARTS.items():
        words = []
        for name in names:
            worker = decode if name == "decode" else prefill
            part = in_use.part_of(worker, name)
            if part is None:
                continue
            own = {worker: part.departing[worker]} if worker in part.departing else {}
            words.append(part_rests(replace(part, departing=own), in_use.is_past, t))
        words += [
            f"{t(f'calibration.knob_{name}')}: {knob_rests(in_use.reserve.knob(name), t, is_off=in_use.is_off)}"
            for name in TERM_KNOBS.get(term, ())
        ]
        if words:
            found[term] = "; ".join(words)
    return found

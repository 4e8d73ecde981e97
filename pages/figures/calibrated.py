"""
What calibration has in use, in words and tables: every value with what it rests on, or why it is a fallback.

Shared by What-if, Saturation and Calibration, so that the same thing is said in the same words. Data in, plain
values out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pages.figures import number
from pages.figures.calibration import shown_coefficient
from pages.texts import Say
from scoring.calibration_in_use import NO_VERSION, InUse, PartInUse
from scoring.calibration_reserve import RESERVE_KNOBS, RISK_KNOBS, CalibratedReserve, Knob
from scoring.chain_reserve import ReserveParts
from scoring.reserve import ReserveSettings

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


def knob_rests(knob: Knob, t: Say) -> str:
    """Return what a knob rests on."""
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
            at=number.instant(part.since_at_s),
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
    if part.why_not == NO_VERSION:
        if is_past:
            return t("calibrated.no_version_past")
        if part.missing_count:
            return t("calibrated.no_version_missing", missing=part.missing_count)
        return t("calibrated.no_version")
    if part.missing_count:
        return t("calibrated.not_told_missing", version=part.version, missing=part.missing_count)
    return t("calibrated.not_told", version=part.version)


def value_columns(in_use: InUse, workers: Sequence[str], defaults: Mapping[str, float], t: Say) -> dict[str, list[Any]]:
    """
    Return one row a value that a decision takes: coefficients of the workers' kinds, spreads, knobs of the reserve.

    Args:
        in_use: What is used.
        workers: Whose kinds; every kind when empty.
        defaults: RISK_KNOBS -> what is used where nothing was measured.
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
                t("calibrated.part_believed", version=part.version, at=number.instant(part.since_at_s))
                if believed
                else rests
            )
            row(t(f"calibration.name_{name}"), shown_coefficient(name, value), part.kind, why)
    for name in (*RISK_KNOBS, *RESERVE_KNOBS):
        knob = in_use.reserve.knob(name)
        value_ = defaults.get(name) if knob.value is None else knob.value
        row(
            t(f"calibration.knob_{name}"),
            knob_value(name, value_, t),
            t("calibrated.whole_fleet"),
            knob_rests(knob, t),
        )
    return columns


def reserve_columns(
    parts: ReserveParts,
    usable_tokens: float | None,
    settings: ReserveSettings,
    reserve: CalibratedReserve | None,
    t: Say,
) -> dict[str, list[str]]:
    """
    Return one row a part of a pool's safety reserve, with the knobs it follows from and what they rest on.

    Args:
        parts: In tokens.
        usable_tokens: Of the pool, None when unknown.
        settings: Knobs used.
        reserve: Where they come from; None: the fleet file.
        t: The viewer's language.
    """

    def rests(name: str) -> str:
        return t("calibrated.file") if reserve is None else knob_rests(reserve.knob(name), t)

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
                spread_rests=t("calibrated.chosen") if reserve is None else rests("output_error_ratio"),
            ),
        ),
    )
    tokens = [getattr(parts, f"{name}_tokens") for name, _ in rows]
    return {
        "part": [t(f"saturation.part_{name}") for name, _ in rows],
        "tokens": [number.compact(value) for value in tokens],
        "share": [number.share(value / usable_tokens) if usable_tokens else number.ABSENT for value in tokens],
        "rests": [words for _, words in rows],
    }


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
            if worker in part.departing:
                error = number.share(1.0 + part.departing[worker])
                words.append(t("calibrated.departing", worker=worker, error=error))
            else:
                words.append(
                    part_rests(part, in_use.is_past, t).split("; ")[0] if part.values else _short(part, in_use, t)
                )
        words += [
            f"{t(f'calibration.knob_{name}')}: {knob_rests(in_use.reserve.knob(name), t)}"
            for name in TERM_KNOBS.get(term, ())
        ]
        if words:
            found[term] = "; ".join(words)
    return found


def _short(part: PartInUse, in_use: InUse, t: Say) -> str:
    return part_rests(part, in_use.is_past, t)

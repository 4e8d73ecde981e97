"""
The limits a pool of the Saturation page is held against, each with what it rests on: the alarm's threshold and one row
a stage of the chain. Data in, table columns out.
"""

from pages.figures import number
from pages.figures.saturation import Row, shown, stage_name
from pages.texts import Say
from scoring.alarm_threshold import LEAD_S, Threshold
from scoring.calibration_in_use import InUse
from scoring.chain_evidence import RESERVE, STAGES
from scoring.chain_reserve import ReserveParts


def limit_columns(
    row: Row, threshold: Threshold | None, reserve: ReserveParts | None, in_use: InUse, t: Say
) -> dict[str, list[str]]:
    """
    Return one row for the alarm and one a stage: what is judged, its value now, its limit, what the limit rests on.

    Args:
        row: The pool.
        threshold: Of its alarm, None before the first look.
        reserve: Its safety reserve, which is the limit of thin headroom; None when unknown.
        in_use: Where the reserve's knobs come from.
        t: The viewer's language.
    """
    columns: dict[str, list[str]] = {name: [] for name in ("judged", "now", "limit", "rests")}

    def add(judged: str, now: str, limit: str, rests: str) -> None:
        for column, cell in zip(columns.values(), (judged, now, limit, rests), strict=True):
            column.append(cell)

    unknown = t("common.unknown")
    if threshold is not None:
        probability = row.retraction_probability if threshold.basis == "forecast" else row.exhausted_probability
        add(
            t(f"saturation.alarm_by_{threshold.basis}"),
            number.share(probability, absent=unknown),
            t("saturation.on_off", on=number.share(threshold.on), off=number.share(threshold.off)),
            threshold_words(threshold, t),
        )
    for stage, sign in zip(STAGES, row.signs, strict=True):
        if sign is None or sign.is_seen is None:
            add(stage_name(stage, t), unknown, number.ABSENT, t("saturation.not_shown"))
            continue
        now, limit = shown(sign, sign.value), shown(sign, sign.threshold)
        rests = t(f"saturation.rests_{sign.rests}") if sign.rests else number.ABSENT
        if sign.rests == RESERVE and reserve is not None:
            word = "reserve_calibrated" if in_use.reserve.is_calibrated else "reserve_file"
            promise = number.share(in_use.reserve.quantile_ratio)
            left = None if sign.value is None else sign.value + reserve.tokens
            now, limit = number.amount(left, "tokens"), number.amount(reserve.tokens, "tokens")
            rests = t(f"saturation.rests_{word}", promise=promise)
        add(stage_name(stage, t), now, limit, rests)
    return columns


def threshold_words(threshold: Threshold, t: Say) -> str:
    """Return what the alarm's threshold rests on, and how its promise stands."""
    promise = number.share(threshold.promise_ratio)
    numbers = {
        "promise": promise,
        "count": threshold.event_count,
        "needed": threshold.needed_count,
        "lead": number.duration(LEAD_S),
    }
    words = [t(f"saturation.threshold_{threshold.source}", **numbers)]
    if threshold.kept_ratio is not None:
        words.append(t("saturation.threshold_kept", share=number.share(threshold.kept_ratio)))
    if threshold.quiet_level is not None and threshold.false_per_hour is not None:
        words.append(
            t(
                "saturation.threshold_quiet",
                count=threshold.quiet_count,
                level=number.share(threshold.quiet_level),
                false=number.significant(threshold.false_per_hour),
            )
        )
    return "; ".join(words)

"""
Predicted against actual: how far off predictions were, per quantity, class and bucket, in the fit and held out.

A prediction counts as held out when it was made by coefficients that had not seen what it predicts. Only those say
what the next prediction is worth; errors inside the fit are shown beside them and never mixed in.

Read next: `drift`, `calibration_reserve`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from scoring.calibration_service import ServiceFit, fit_service, predicted_prefill_s, predicted_steps_s
from scoring.calibration_windows import DecodeWindow, Kind, PrefillWindow, TransferWindow
from scoring.model import FloatArray
from scoring.service import ServiceProfile

QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)
HOLD_OUT_SHARE: Final = 0.25
"""The newest quarter of the time that rows span judges the fit to the rest (chosen)."""
ALL: Final = "all"


class Quantity(StrEnum):
    """What is predicted; seconds, tokens for OUTPUT."""

    STEP = "step"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    TTFT = "ttft"
    OUTPUT = "output"
    EXHAUSTION = "exhaustion"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSample:
    """
    One prediction that came due.

    Attributes:
        at_s: When the actual was seen.
        quantity: What.
        predicted: In the quantity's unit, above 0.
        actual: The same.
        slo_class: Class, or "all" where telemetry does not tell classes apart.
        bucket: Upper bound of the bucket (batch size for STEP, prompt tokens otherwise); inf for all.
        is_held_out: The prediction had not seen this.
        subject: Pool or kind it is about.
    """

    at_s: float
    quantity: Quantity
    predicted: float
    actual: float
    slo_class: str = ALL
    bucket: float = float("inf")
    is_held_out: bool = True
    subject: str = ""

    @property
    def error_ratio(self) -> float:
        """Return (actual - predicted) / predicted: above 0 took longer than predicted."""
        return (self.actual - self.predicted) / self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """
    Errors of one quantity, class and bucket.

    Attributes:
        sample_count: Predictions.
        bias_ratio: Median of (actual - predicted) / predicted.
        spread_ratio: Robust standard deviation of the same (half the central 68 %); None below 8 samples.
        quantile_ratios: (quantile, |error| at it) for QUANTILES, as far as the samples reach: one beyond it at least.
    """

    quantity: Quantity
    slo_class: str
    bucket: float
    is_held_out: bool
    sample_count: int
    bias_ratio: float
    spread_ratio: float | None
    quantile_ratios: tuple[tuple[float, float], ...]

    def at(self, quantile: float) -> float | None:
        """Return |error| at one of QUANTILES, None where the samples do not reach."""
        return dict(self.quantile_ratios).get(quantile)


def summarize(samples: Iterable[ErrorSample]) -> tuple[ErrorSummary, ...]:
    """
    Return one summary for each quantity, class, bucket and side of the split, and one over all classes and buckets.

    Ascending by quantity, class, bucket; samples whose prediction or actual is not above 0 and finite are left out.
    """
    groups: dict[tuple[Quantity, str, float, bool], list[float]] = {}
    for each in samples:
        if not (0.0 < each.predicted < float("inf") and 0.0 < each.actual < float("inf")):
            continue
        keys = {
            (each.quantity, each.slo_class, each.bucket, each.is_held_out),
            (each.quantity, ALL, float("inf"), each.is_held_out),
        }
        for key in keys:
            groups.setdefault(key, []).append(each.error_ratio)
    return tuple(_summary(key, np.array(groups[key])) for key in sorted(groups))


def _summary(key: tuple[Quantity, str, float, bool], errors: FloatArray) -> ErrorSummary:
    size = np.abs(errors)
    reach = tuple((q, float(np.quantile(size, q))) for q in QUANTILES if len(size) * (1.0 - q) >= 1.0 or q == 0.5)
    low, high = np.quantile(errors, (0.16, 0.84))
    return ErrorSummary(
        quantity=key[0],
        slo_class=key[1],
        bucket=key[2],
        is_held_out=key[3],
        sample_count=len(errors),
        bias_ratio=float(np.median(errors)),
        spread_ratio=float(high - low) / 2.0 if len(errors) >= 8 else None,
        quantile_ratios=reach,
    )


BATCH_BUCKETS: Final = (4.0, 16.0, 64.0, 256.0, float("inf"))


def step_errors(
    windows: Sequence[DecodeWindow], profile: ServiceProfile, subject: str, *, is_held_out: bool
) -> list[ErrorSample]:
    """Return predicted against actual step times, one a window, bucketed by batch size."""
    if not windows:
        return []
    predicted = predicted_steps_s(windows, profile).tolist()
    batches = np.array([window.batch_count for window in windows])
    places = np.searchsorted(np.array(BATCH_BUCKETS[:-1]), batches, side="right")
    return [
        ErrorSample(
            at_s=window.at_s,
            quantity=Quantity.STEP,
            predicted=value,
            actual=window.step_s,
            bucket=BATCH_BUCKETS[place],
            is_held_out=is_held_out,
            subject=subject,
        )
        for window, value, place in zip(windows, predicted, places.tolist(), strict=True)
    ]


def prefill_errors(
    windows: Sequence[PrefillWindow], profile: ServiceProfile, subject: str, *, is_held_out: bool
) -> list[ErrorSample]:
    """Return predicted against actual prompt times of stretches that held one prompt."""
    return [
        ErrorSample(
            at_s=window.at_s,
            quantity=Quantity.PREFILL,
            predicted=predicted_prefill_s(window, profile),
            actual=window.busy_s,
            is_held_out=is_held_out,
            subject=subject,
        )
        for window in windows
        if window.is_whole and window.request_count == 1
    ]


def transfer_errors(
    windows: Sequence[TransferWindow],
    latency_s: float,
    bandwidth_bytes_per_s: float,
    subject: str,
    *,
    is_held_out: bool,
) -> list[ErrorSample]:
    """Return predicted against actual mean hand-over times, one a window."""
    return [
        ErrorSample(
            at_s=window.at_s,
            quantity=Quantity.TRANSFER,
            predicted=latency_s + window.size_bytes / window.transfer_count / bandwidth_bytes_per_s,
            actual=window.latency_s / window.transfer_count,
            is_held_out=is_held_out,
            subject=subject,
        )
        for window in windows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFit:
    """
    A fit to the older rows, judged by the newer ones.

    Attributes:
        fit: To all rows: what one would apply.
        split_at_s: Rows up to here were the fit that is judged, later ones judged it.
        samples: Errors on both sides.
    """

    fit: ServiceFit
    split_at_s: float
    samples: tuple[ErrorSample, ...]

    def summaries(self) -> tuple[ErrorSummary, ...]:
        """Return the errors in a few figures."""
        return summarize(self.samples)


def judged_fit(
    kind: Kind,
    decode: Sequence[DecodeWindow],
    prefill: Sequence[PrefillWindow],
    transfer: Sequence[TransferWindow],
    *,
    prior: ServiceProfile | None = None,
    bytes_per_token: float | None = None,
    hit_tokens: float = 0.0,
    query_tokens: float = 0.0,
    hold_out_share: float = HOLD_OUT_SHARE,
) -> JudgedFit:
    """
    Return the fit to all rows, with the errors of a fit to the older ones: split by time, never at random, since
    neighbouring rows share their batch and a random split would judge the fit by what it has seen.
    """
    times = [each.at_s for rows in (decode, prefill, transfer) for each in rows]
    split_at_s = float("inf")
    if times:
        split_at_s = max(times) - hold_out_share * (max(times) - min(times))
    older = (
        [each for each in decode if each.at_s <= split_at_s],
        [each for each in prefill if each.at_s <= split_at_s],
        [each for each in transfer if each.at_s <= split_at_s],
    )
    newer = (
        [each for each in decode if each.at_s > split_at_s],
        [each for each in prefill if each.at_s > split_at_s],
        [each for each in transfer if each.at_s > split_at_s],
    )
    tried = fit_service(kind, *older, prior=prior, bytes_per_token=bytes_per_token)
    samples: list[ErrorSample] = []
    profile = tried.profile()
    for rows, is_held_out in ((older, False), (newer, True)):
        if tried.decode.is_made:
            samples += step_errors(rows[0], profile, kind.name, is_held_out=is_held_out)
        if tried.prefill.is_made:
            samples += prefill_errors(rows[1], profile, kind.name, is_held_out=is_held_out)
        bandwidth = tried.bandwidth_bytes_per_s
        if bandwidth is not None:
            latency_s = profile.transfer_latency_s
            samples += transfer_errors(rows[2], latency_s, bandwidth, kind.name, is_held_out=is_held_out)
    fit = fit_service(
        kind,
        decode,
        prefill,
        transfer,
        prior=prior,
        bytes_per_token=bytes_per_token,
        hit_tokens=hit_tokens,
        query_tokens=query_tokens,
    )
    return JudgedFit(fit=fit, split_at_s=split_at_s, samples=tuple(samples))

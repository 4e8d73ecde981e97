"""
Rows of a kind of worker -> its service-time coefficients, with intervals, and a `ServiceProfile` to use.

The laws fitted are the ones in `service`: there is no second copy of a formula, only its inverse.

Read next: `calibration_error` (how far predictions are off), `calibration_reserve` (what that costs in room).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from scoring.calibration import Coefficient, LinearFit, Told, fit_linear
from scoring.calibration_windows import DecodeWindow, Kind, PrefillWindow, TransferWindow
from scoring.model import FloatArray, Role
from scoring.service import PROFILES, ServiceProfile, decode_step_s, prefill_s

MIN_DECODE_WINDOWS: Final = 30
MIN_PREFILL_WINDOWS: Final = 20
MIN_TRANSFER_WINDOWS: Final = 20
"""Chosen: fewer rows than this for three (two) coefficients give intervals nobody can use."""
PREFILL_BUDGET_TOKENS: Final = 8192
"""SGLang's chunked prefill on large GPUs; where a fleet has another, say so to the fit."""
ROUGH_PROMPTS: Final = 5.0
"""Prompts of one rough row (chosen): what began in one window and ended in the next is then little of it."""
MANY_WINDOWS: Final = 300
"""Rows of what a step reads stand alone when they are half of all, or this many (chosen: ten times the least)."""
DOUBT_ROUNDS: Final = 4
MOST_FOG_RATIO: Final = 0.9
"""Beyond it the doubt is all there is; the interval is then ten times the value (chosen)."""
POOL_DIFFERS_RATIO: Final = 0.05
"""A pool whose steps are this much off its kind's fit, beyond doubt, is named (chosen)."""

DECODE_NAMES: Final = ("decode_base_s", "decode_per_sequence_s", "decode_per_token_s")
PREFILL_NAMES: Final = ("prefill_base_s", "prefill_per_token_s", "prefill_per_token2_s")
TRANSFER_NAMES: Final = ("transfer_latency_s", "transfer_s_per_byte")
_DECODE_HINTS: Final = (
    "quiet minutes with few sequences would tell it",
    "it takes batches of different size at like context, for example short and long requests at different hours",
    "it takes contexts of different length at like batch, for example long prompts among short ones",
)
_PREFILL_HINTS: Final = (
    "it takes short prompts computed alone",
    "it takes prompts of different length",
    "it takes prompts of many thousand tokens",
)
_ROUGH: Final = "those of a window are taken as equally long, so that base and context term are rough"
_SHARED: Final = (
    "sequences that share a prefix read it once each and hold it once: the part per sequence takes that up, so it "
    "holds for traffic like this one"
)
_TRANSFER_HINTS: Final = ("it takes small hand-overs", "it takes hand-overs of different size")


def decode_design(windows: Sequence[DecodeWindow]) -> tuple[FloatArray, FloatArray]:
    """Return (design of 1, batch, kv; shape (n, 3)) and mean step seconds, shape (n,)."""
    rows = [(1.0, window.batch_count, window.kv_tokens) for window in windows]
    design = np.array(rows, dtype=np.float64).reshape(len(rows), 3)
    return design, np.array([window.step_s for window in windows], dtype=np.float64)


def telling_windows(windows: Sequence[DecodeWindow]) -> Sequence[DecodeWindow]:
    """Return the rows whose KV is what a step reads, where they are enough; else all."""
    read = [window for window in windows if window.is_kv_read]
    return read if 2 * len(read) >= len(windows) or len(read) >= MANY_WINDOWS else windows


def fit_decode(
    windows: Sequence[DecodeWindow], prior: ServiceProfile | None = None, min_rows: int = MIN_DECODE_WINDOWS
) -> LinearFit:
    """
    Return `decode_base_s`, `decode_per_sequence_s`, `decode_per_token_s` of a step.

    Rows are means over steps, so the law is exact for them. A row's variance is that of its steps plus that of the KV
    gauge times the coefficient found so far: rows in which nothing came or went rule, the others still count, and the
    error of the gauge does not flatten the slope (errors in variables).
    """
    windows = telling_windows(windows)
    design, target = decode_design(windows)
    steps = np.array([window.step_count for window in windows], dtype=np.float64)
    doubt = np.array([window.kv_doubt_tokens for window in windows], dtype=np.float64)
    known = None if prior is None else [getattr(prior, name) for name in DECODE_NAMES]
    weights = np.ones(len(target))
    fit = fit_linear(DECODE_NAMES, design, target, weights, prior=known, min_rows=min_rows, hints=_DECODE_HINTS)
    if not fit.is_made:
        return fit
    for _ in range(DOUBT_ROUNDS):
        values = np.array([each.value or 0.0 for each in fit.coefficients])
        residual = np.abs(target - design @ values)
        quiet = doubt <= np.quantile(doubt, 0.25)
        own = max(float(np.median(residual[quiet])) / 0.6745, 1e-5 * float(np.median(target)))
        slope = max(values[2], 1e-12)
        weights = 1.0 / (own**2 * np.median(steps) / np.maximum(steps, 1.0) + (slope * doubt) ** 2)
        fit = fit_linear(DECODE_NAMES, design, target, weights, prior=known, min_rows=min_rows, hints=_DECODE_HINTS)
    return _widened(fit, design, weights, doubt)


def _widened(fit: LinearFit, design: FloatArray, weights: FloatArray, doubt: FloatArray) -> LinearFit:
    """
    Return the fit with intervals that also hold what the doubt about KV may have flattened.

    Where KV came and went inside every stretch (requests that live no longer than a look), least squares finds only
    1 - f of the part per token, f being the doubt's share of what the other columns do not say of KV, and gives the
    rest to these (Fuller 1987, Measurement Error Models, 1.1).
    """
    token = fit.of("decode_per_token_s")
    if token.told is not Told.FITTED or not token.value:
        return fit
    root = np.sqrt(weights)
    others, own = design[:, :2] * root[:, None], design[:, 2] * root
    slopes = np.linalg.lstsq(others, own, rcond=1e-12)[0]
    left = own - others @ slopes
    fog = min(float((weights * doubt * doubt).sum() / max(float(left @ left), 1e-300)), MOST_FOG_RATIO)
    more = token.value * fog / (1.0 - fog)
    shifts = (-more * float(slopes[0]), -more * float(slopes[1]), more)
    moved = [
        each
        if each.low is None or each.high is None
        else replace(each, low=max(each.low + min(shift, 0.0), 0.0), high=each.high + max(shift, 0.0))
        for each, shift in zip(fit.coefficients, shifts, strict=True)
    ]
    return replace(fit, coefficients=tuple(moved))


def stretches(windows: Sequence[PrefillWindow]) -> list[PrefillWindow]:
    """Return consecutive windows of a pool put together until each holds ROUGH_PROMPTS; the rest is left out."""
    found, parts = [], dict[str, PrefillWindow]()
    for each in windows:
        if each.request_count is None:
            continue
        part = parts.pop(each.pool, None)
        if part is not None:
            hits = None if part.hit_tokens is None or each.hit_tokens is None else part.hit_tokens + each.hit_tokens
            each = replace(
                each,
                new_tokens=part.new_tokens + each.new_tokens,
                hit_tokens=hits,
                busy_s=part.busy_s + each.busy_s,
                request_count=(part.request_count or 0.0) + each.request_count,
                is_whole=False,
            )
        if (each.request_count or 0.0) >= ROUGH_PROMPTS:
            found.append(each)
        else:
            parts[each.pool] = each
    return found


def fit_prefill(
    windows: Sequence[PrefillWindow],
    prior: ServiceProfile | None = None,
    min_rows: int = MIN_PREFILL_WINDOWS,
    budget_tokens: float = PREFILL_BUDGET_TOKENS,
) -> LinearFit:
    """
    Return `prefill_base_s`, `prefill_per_token_s`, `prefill_per_token2_s`.

    Counters sum over prompts and the law is quadratic in each, so only stretches with one prompt are exact: n new
    tokens behind h cached ones take `base * batches + b*n + c*(n^2 + 2*n*h)`. Where a pool is never idle there are
    too few of these; then consecutive stretches are put together until they hold ROUGH_PROMPTS, their prompts are
    taken as equally long, and a note says so.
    """
    known = None if prior is None else [getattr(prior, name) for name in PREFILL_NAMES]
    alone = [each for each in windows if each.is_whole and each.request_count == 1]
    notes: tuple[str, ...] = ()
    if len(alone) < min_rows:
        single = [each for each in windows if each.request_count]
        joined = stretches(windows)
        mixed = joined if len(joined) >= min_rows else single
        if len(mixed) >= min_rows and len(single) >= 2 * min_rows:
            notes = (f"only {len(alone)} prompts were computed alone: {_ROUGH}",)
            alone = mixed
    counts = np.array([each.request_count or 1.0 for each in alone])
    new = np.array([each.new_tokens for each in alone]) / counts
    hits = np.array([each.hit_tokens or 0.0 for each in alone]) / counts
    target = np.array([each.busy_s for each in alone])
    batches = np.ceil(new / budget_tokens)
    design = (
        np.stack([batches, new, new * new + 2.0 * new * hits], axis=1) * counts[:, None] if alone else np.empty((0, 3))
    )
    weights = 1.0 / np.maximum(target, 1e-9) ** 2
    fit = fit_linear(PREFILL_NAMES, design, target, weights, prior=known, min_rows=min_rows, hints=_PREFILL_HINTS)
    return replace(_with_notes(fit, notes), is_rough=bool(notes) and fit.is_made)


def fit_transfer(
    windows: Sequence[TransferWindow], prior: ServiceProfile | None = None, min_rows: int = MIN_TRANSFER_WINDOWS
) -> LinearFit:
    """
    Return `transfer_latency_s` and `transfer_s_per_byte` (1 / bandwidth) of one hand-over.

    Hand-overs that had the link for themselves are taken where there are enough; else all, and the bandwidth is then
    what a hand-over gets beside its neighbours. A prior carries no bandwidth, so an untold slope stays unknown.
    """
    alone = [each for each in windows if each.is_alone]
    notes: tuple[str, ...] = ()
    if len(alone) < min_rows:
        alone = list(windows)
        notes = ("few hand-overs were alone on the link: the bandwidth is what one gets beside others",)
    counts = np.array([each.transfer_count for each in alone])
    sizes = np.array([each.size_bytes for each in alone])
    target = np.array([each.latency_s for each in alone])
    design = np.stack([counts, sizes], axis=1).reshape(-1, 2)
    weights = 1.0 / np.maximum(target, 1e-9) ** 2
    known = None
    if prior is not None and prior.transfer_latency_s > 0 and alone:
        rest = max(float(target.sum()) - prior.transfer_latency_s * float(counts.sum()), 0.1 * float(target.sum()))
        known = [prior.transfer_latency_s, rest / max(float(sizes.sum()), 1.0)]
    fit = fit_linear(TRANSFER_NAMES, design, target, weights, prior=known, min_rows=min_rows, hints=_TRANSFER_HINTS)
    return _with_notes(fit, notes if fit.is_made else ())


def _with_notes(fit: LinearFit, notes: tuple[str, ...]) -> LinearFit:
    return replace(fit, notes=(*fit.notes, *notes)) if notes else fit


def nearest_profile(decode: Sequence[DecodeWindow], prefill: Sequence[PrefillWindow] = ()) -> ServiceProfile:
    """
    Return the published profile nearest to the rows by median |log(predicted / actual)|: the prior of first resort.

    With no rows at all the first published one, which is as good as any.
    """
    candidates = [each for each in PROFILES.values() if each.curve == "linear"]

    def distance(profile: ServiceProfile) -> float:
        found = []
        if decode:
            predicted = predicted_steps_s(decode, profile)
            actual = np.array([each.step_s for each in decode])
            found.append(float(np.median(np.abs(np.log(predicted / actual)))))
        known = [each for each in prefill if each.request_count]
        if known:
            ratios = [math.log(predicted_prefill_s(each, profile) / each.busy_s) for each in known]
            found.append(float(np.median(np.abs(ratios))))
        return sum(found)

    return min(candidates, key=distance)


def predicted_steps_s(windows: Sequence[DecodeWindow], profile: ServiceProfile) -> FloatArray:
    """Return the profile's mean step of each window. Shape (n,)."""
    design, _ = decode_design(windows)
    base, sequence, token = profile.decode_base_s, profile.decode_per_sequence_s, profile.decode_per_token_s
    whole = np.ones(len(windows))
    small = decode_step_s(design[:, 1], design[:, 2], base * whole, sequence * whole, token * whole)
    if not profile.large_batch_count:
        return small
    large = decode_step_s(
        design[:, 1],
        design[:, 2],
        profile.large_decode_base_s * whole,
        profile.large_decode_per_sequence_s * whole,
        profile.large_decode_per_token_s * whole,
    )
    return np.where(design[:, 1] >= profile.large_batch_count, large, small)


def predicted_prefill_s(window: PrefillWindow, profile: ServiceProfile) -> float:
    """Return the profile's busy seconds of a window, its prompts taken as equally long."""
    count = window.request_count or 1.0
    new, hits = window.new_tokens / count, (window.hit_tokens or 0.0) / count
    per_token, per_token2 = profile.prefill_per_token_s, profile.prefill_per_token2_s
    return count * prefill_s(new, hits, profile.prefill_base_s, per_token, per_token2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFit:
    """
    What one kind of worker was found to take.

    Attributes:
        kind: Who.
        prior: What was believed before: the applied profile, else the nearest published one.
        decode: Step time.
        prefill: Prompt time.
        transfer: Hand-over time.
        bytes_per_token: KV bytes of a token, or None.
        hit_ratio: Prompt tokens found in the cache / looked up, recently; None when nothing was looked up.
        hit_query_tokens: Prompt tokens looked up behind that ratio.
        pool_bias_ratio: Pool -> mean (actual - fitted) / fitted of its decode steps, where it has enough rows.
        notes: What a reader must know besides the fits' own notes.
    """

    kind: Kind
    prior: ServiceProfile
    decode: LinearFit
    prefill: LinearFit
    transfer: LinearFit
    bytes_per_token: float | None = None
    hit_ratio: float | None = None
    hit_query_tokens: float = 0.0
    pool_bias_ratio: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_made(self) -> bool:
        """Say whether anything at all was fitted."""
        return any(any(each.told is Told.FITTED for each in fit.coefficients) for fit in self.fits())

    def fits(self) -> tuple[LinearFit, LinearFit, LinearFit]:
        """Return decode, prefill, transfer."""
        return self.decode, self.prefill, self.transfer

    def coefficients(self) -> tuple[Coefficient, ...]:
        """Return all coefficients, decode first."""
        return tuple(each for fit in self.fits() for each in fit.coefficients)

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Return the bandwidth of a hand-over, None where it is not told."""
        slope = self.transfer.of("transfer_s_per_byte")
        return 1.0 / slope.value if slope.told is Told.FITTED and slope.value else None

    def profile(self, others: Sequence["ServiceFit"] = ()) -> ServiceProfile:
        """
        Return the profile to use: what was fitted, else what another kind of the same model was fitted, else the
        prior's.

        Args:
            others: Fits of other kinds, for the half of the work this kind does not do (prefill beside decode).
        """
        values: dict[str, Any] = {}
        taken = []
        for part in ("decode", "prefill"):
            own: LinearFit = getattr(self, part)
            source = own
            if not own.is_made:
                siblings = [
                    other for other in others if other.kind.model == self.kind.model and getattr(other, part).is_made
                ]
                siblings.sort(
                    key=lambda other: (other.kind.version == self.kind.version, getattr(other, part).row_count)
                )
                source = getattr(siblings[-1], part) if siblings else own
            for each in source.coefficients:
                values[each.name] = each.value if each.value is not None else float(getattr(self.prior, each.name))
            origin = f"{part} from {source.row_count} windows" if source.is_made else f"{part} from {self.prior.name}"
            taken.append(origin)
        latency = self.transfer.of("transfer_latency_s")
        is_latency_told = self.transfer.is_made and latency.value is not None
        return ServiceProfile(
            name=self.kind.name,
            source=f"fitted to this fleet's telemetry: {', '.join(taken)}",
            transfer_latency_s=float(latency.value or 0.0) if is_latency_told else self.prior.transfer_latency_s,
            bytes_per_token=self.bytes_per_token or self.prior.bytes_per_token,
            **values,
        )


def pool_biases(
    windows: Sequence[DecodeWindow], fit: LinearFit, min_rows: int = MIN_DECODE_WINDOWS
) -> dict[str, float]:
    """Return pool -> median (actual - fitted) / fitted of its steps, for pools with enough rows."""
    values = fit.values()
    if values is None or not fit.is_made:
        return {}
    design, target = decode_design(windows)
    predicted = design @ values
    error = (target - predicted) / predicted
    pools = np.array([window.pool for window in windows])
    found = {}
    for pool in np.unique(pools).tolist():
        is_own = pools == pool
        if is_own.sum() >= min_rows:
            found[str(pool)] = float(np.median(error[is_own]))
    return found


def fit_service(
    kind: Kind,
    decode: Sequence[DecodeWindow],
    prefill: Sequence[PrefillWindow],
    transfer: Sequence[TransferWindow],
    *,
    prior: ServiceProfile | None = None,
    bytes_per_token: float | None = None,
    hit_tokens: float = 0.0,
    query_tokens: float = 0.0,
    budget_tokens: float = PREFILL_BUDGET_TOKENS,
) -> ServiceFit:
    """Return all that can be told of one kind of worker from its rows; see the three fits."""
    base = prior or nearest_profile(decode, prefill)
    decode = telling_windows(decode)
    decode_fit = fit_decode(decode, base)
    biases = pool_biases(decode, decode_fit)
    odd = {pool: bias for pool, bias in biases.items() if abs(bias) > POOL_DIFFERS_RATIO}
    notes = tuple(
        f"{pool} takes {abs(bias):.0%} {'longer' if bias > 0 else 'less'} than its kind: label its hardware apart"
        for pool, bias in sorted(odd.items(), key=lambda item: -abs(item[1]))[:5]
    )
    if kind.role is not Role.DECODE and decode_fit.is_made and not all(window.is_kv_read for window in decode):
        notes += (_SHARED,)
    return ServiceFit(
        kind=kind,
        prior=base,
        decode=decode_fit,
        prefill=fit_prefill(prefill, base, budget_tokens=budget_tokens),
        transfer=fit_transfer(transfer, base),
        bytes_per_token=bytes_per_token,
        hit_ratio=min(hit_tokens / query_tokens, 1.0) if query_tokens > 0 else None,
        hit_query_tokens=query_tokens,
        pool_bias_ratio=biases,
        notes=notes,
    )

"""
One request against one fleet, as columns: demand, reserve with its parts, the two sides of admission, queue and
compute seconds of every pool. Everything that does not depend on the other end of a pair.

An unknown input is replaced by the fallback stated here, never by zero, and the term that rests on it is flagged.

Read next: `filters`, `scorers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scoring import admission, cost, demand, reserve, service
from scoring.demand import RequestView
from scoring.leases import Claim, LeaseLedger
from scoring.model import FloatArray
from scoring.policy.arrays import DECODE, PREFILL, UNIFIED, BoolArray, FleetArrays
from scoring.policy.settings import DecideSettings
from scoring.service import ServiceProfile
from scoring.slo import SloClass

NO_CLAIM: Final = Claim()
AGE_FALLBACK_S: Final = 10.0
"""Age assumed when no pool's is known: where figures stop being trusted by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Room and claims, in tokens, of shape (n,): admission is `have >= need`."""

    demand_tokens: FloatArray
    available_tokens: FloatArray
    reserved_tokens: FloatArray
    committed_tokens: FloatArray
    queued_ahead_tokens: FloatArray
    growth_tokens: FloatArray
    delay_growth_tokens: FloatArray
    failure_share_tokens: FloatArray
    prediction_error_tokens: FloatArray
    have_tokens: FloatArray
    need_tokens: FloatArray
    net_tokens_per_s: FloatArray

    @property
    def reserve_tokens(self) -> FloatArray:
        """Return the three parts of the safety reserve together."""
        return self.delay_growth_tokens + self.failure_share_tokens + self.prediction_error_tokens

    @property
    def headroom_tokens(self) -> FloatArray:
        """Return available - reserved - safety reserve; may be negative."""
        return self.available_tokens - self.reserved_tokens - self.reserve_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSide:
    """What computing the prompt takes on each pool, of shape (n,)."""

    rate_tokens_per_s: FloatArray
    queued_tokens: FloatArray
    wait_s: FloatArray
    whole_s: FloatArray
    uncached_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSide:
    """What each pool's end of the link carries, of shape (n,)."""

    bytes_per_token: FloatArray
    bandwidth_bytes_per_s: FloatArray
    travelling_bytes: FloatArray
    arriving_bytes: FloatArray
    latency_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSide:
    """What generating waits for on each pool, of shape (n,)."""

    slot_wait_s: FloatArray
    first_step_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """
    Columns of shape (n,) for one request; NaN only in pools the filters refuse.

    Attributes:
        output_tokens: Output promised at admission.
        hit_tokens: Prompt tokens each pool holds.
        unknown: Term name -> pools whose term rests on a fallback.
        notes: (mask, text) of every fallback taken here.
    """

    request: RequestView
    slo: SloClass
    arrays: FleetArrays
    output_tokens: float
    hit_tokens: FloatArray
    room: Room
    prefill: PrefillSide
    link: LinkSide
    decode: DecodeSide
    claims: tuple[Claim, ...]
    unknown: Mapping[str, BoolArray]
    notes: tuple[tuple[BoolArray, str], ...]

    def notes_of(self, index: int) -> tuple[str, ...]:
        """Return every estimate and fallback one pool rests on."""
        found = self.arrays.notes_of(index) + tuple(text for mask, text in self.notes if mask[index])
        return tuple(dict.fromkeys(found))


@dataclass(slots=True)
class _Fallbacks:
    """Fills gaps and remembers where, why and for which term."""

    unknown: dict[str, BoolArray] = field(default_factory=dict)
    notes: list[tuple[BoolArray, str]] = field(default_factory=list)

    def fill(
        self, values: FloatArray, other: FloatArray | float, text: str, *terms: str, only: BoolArray | None = None
    ) -> FloatArray:
        """
        Return values with gaps filled from `other`; the terms named are flagged unknown there.

        `only` says where the figure matters: elsewhere the gap is filled and not spoken of.
        """
        gaps = np.isnan(values)
        if not gaps.any():
            return values
        gaps &= ~np.isnan(other)
        mask = gaps if only is None else gaps & only
        if mask.any():
            self.notes.append((mask, text))
            for term in terms:
                self.unknown[term] = self.unknown[term] | mask if term in self.unknown else mask
        return np.where(gaps, other, values)


@dataclass(frozen=True, slots=True)
class _Case:
    """What every part below reads."""

    request: RequestView
    slo: SloClass
    arrays: FleetArrays
    settings: DecideSettings
    generates: BoolArray
    computes: BoolArray
    lease_tokens: FloatArray
    lease_uncached_tokens: FloatArray
    lease_transfer_tokens: FloatArray
    lease_count: FloatArray

    def full(self, value: float) -> FloatArray:
        """Return one value, shaped to broadcast against columns."""
        return np.array([value], dtype=np.float64)

    @property
    def has_profile(self) -> bool:
        """Say whether any pool has service coefficients."""
        return self.settings.profile is not None or bool(self.settings.profiles)

    def profile(self, get: Callable[[ServiceProfile], float]) -> FloatArray:
        """Return one coefficient of every pool, NaN where it has no profile."""
        if not self.settings.profiles:
            value = np.nan if self.settings.profile is None else get(self.settings.profile)
            return np.full(len(self.arrays), value, dtype=np.float64)
        profiles = [self.settings.profile_of(pool.worker_id) for pool in self.arrays.pools]
        return np.array([np.nan if each is None else get(each) for each in profiles], dtype=np.float64)


def claims_of(arrays: FleetArrays, leases: LeaseLedger | None, at_s: float) -> tuple[Claim, ...]:
    """Return what open leases claim on each pool, those left out that the pool's own reading already counts."""
    if leases is None:
        return (NO_CLAIM,) * len(arrays)
    held = set(leases.pools())
    return tuple(
        leases.outstanding(pool.pool_id, at_s, None if pool.age_s is None else pool.at_s - pool.age_s)
        if pool.pool_id in held
        else NO_CLAIM
        for pool in arrays.pools
    )


def prepare(
    request: RequestView,
    arrays: FleetArrays,
    settings: DecideSettings,
    slo: SloClass,
    leases: LeaseLedger | None,
    at_s: float,
) -> Prepared:
    """Return the columns of one request against one fleet."""
    claims = claims_of(arrays, leases, at_s)

    nothing = np.zeros(len(arrays))
    is_claimed = any(claim is not NO_CLAIM for claim in claims)

    def claimed(name: str) -> FloatArray:
        return np.array([getattr(claim, name) for claim in claims], dtype=np.float64) if is_claimed else nothing

    case = _Case(
        request,
        slo,
        arrays,
        settings,
        (arrays.role == DECODE) | (arrays.role == UNIFIED),
        (arrays.role == PREFILL) | (arrays.role == UNIFIED),
        claimed("tokens"),
        claimed("uncached_tokens"),
        claimed("transfer_tokens"),
        claimed("count"),
    )
    gaps = _Fallbacks()
    output_tokens = request.reserved_output_tokens(slo.quantile)
    hit = np.minimum(_hits(arrays, request.prefix_hit_tokens), float(request.prompt_tokens))
    with np.errstate(all="ignore"):
        decode, mean_output, running = _decode(case, gaps, output_tokens)
        return Prepared(
            request=request,
            slo=slo,
            arrays=arrays,
            output_tokens=output_tokens,
            hit_tokens=hit,
            room=_room(case, gaps, output_tokens, mean_output, running),
            prefill=_prefill(case, gaps, hit),
            link=_link(case, gaps),
            decode=decode,
            claims=claims,
            unknown=gaps.unknown,
            notes=tuple(gaps.notes),
        )


def _room(case: _Case, gaps: _Fallbacks, output_tokens: float, mean_output: FloatArray, running: FloatArray) -> Room:
    arrays, knobs, full = case.arrays, case.settings.reserve, case.full
    usable, page = arrays.usable_tokens, arrays.page_tokens
    outputs = np.where(case.generates, output_tokens, 0.0)
    shared = _hits(arrays, case.request.active_hit_tokens)
    wanted = demand.demand_tokens(full(case.request.prompt_tokens), shared, outputs, page)

    kept_ratio = 1.0 - knobs.evictable_share_ratio
    kept = np.fmin(arrays.prefix_tokens, arrays.available_tokens)
    available = arrays.available_tokens - kept_ratio * np.where(np.isnan(kept), arrays.available_tokens, kept)
    reserved = arrays.reserved_tokens + case.lease_tokens

    steepest = _worst(arrays.net_tokens_per_s, case.generates, is_low_worst=False)
    by_size = reserve.UNKNOWN_GROWTH_RATIO * usable / max(knobs.growth_horizon_s, 1.0)
    net = gaps.fill(
        arrays.net_tokens_per_s,
        full(steepest) if steepest > 0.0 else by_size,
        "growth is not known: the fastest known growth of the fleet, or 2 % of usable in the growth horizon",
        "decode_wait",
        "kv_pressure",
        only=case.generates,
    )
    known_age = arrays.age_s[np.isfinite(arrays.age_s)]
    age = np.where(np.isnan(arrays.age_s), known_age.max() if known_age.size else AGE_FALLBACK_S, arrays.age_s)
    seen = age if knobs.telemetry_delay_s is None else full(knobs.telemetry_delay_s)
    delay_growth = gaps.fill(
        reserve.delay_growth_tokens(
            net, arrays.net_std_tokens_per_s, np.maximum(seen, 0.0) + knobs.decision_delay_s, full(knobs.growth_sigmas)
        ),
        reserve.UNKNOWN_GROWTH_RATIO * usable,
        "spread of growth is not known: 2 % of usable is kept back for it",
    )
    failure_share = reserve.failure_share_tokens(
        arrays.peer_lost_tokens, usable, arrays.survivor_usable_tokens, full(knobs.failure_share_ratio)
    )
    error = reserve.prediction_error_tokens(
        usable,
        outputs,
        np.where(case.generates, mean_output, 0.0),
        running,
        full(knobs.error_buffer_ratio),
        full(knobs.output_error_ratio),
    )
    queued = gaps.fill(
        np.where(case.generates, arrays.queued_tokens, 0.0),
        wanted,
        "need of the requests ahead is not known: one like this is assumed",
    )
    growth = admission.committed_growth_tokens(np.where(case.generates, net, 0.0), full(knobs.growth_horizon_s))
    return Room(
        demand_tokens=wanted,
        available_tokens=available,
        reserved_tokens=reserved,
        committed_tokens=arrays.committed_tokens + case.lease_tokens,
        queued_ahead_tokens=queued,
        growth_tokens=growth,
        delay_growth_tokens=delay_growth,
        failure_share_tokens=failure_share,
        prediction_error_tokens=error,
        have_tokens=admission.have_tokens(available, reserved, queued, page),
        need_tokens=admission.need_tokens(wanted, growth, delay_growth + failure_share + error, page),
        net_tokens_per_s=net,
    )


def _prefill(case: _Case, gaps: _Fallbacks, hit: FloatArray) -> PrefillSide:
    arrays = case.arrays
    prompt = case.full(case.request.prompt_tokens)
    base = np.nan_to_num(case.profile(lambda profile: profile.prefill_base_s))
    per_token2 = np.nan_to_num(case.profile(lambda profile: profile.prefill_per_token2_s))
    rate = arrays.prefill_tokens_per_s
    mean_prompt = np.where(np.isnan(arrays.mean_prompt_tokens), prompt, arrays.mean_prompt_tokens)
    if case.has_profile:
        per_token = case.profile(lambda profile: profile.prefill_per_token_s)
        if case.settings.are_profiles_first:
            # The rate at which the linear part below comes out as the profile's own coefficient.
            profiled = mean_prompt / service.prefill_s(mean_prompt, case.full(0.0), base, per_token, per_token2)
            rate = np.where(np.isnan(profiled), rate, profiled)
        modelled = service.prefill_s(prompt, case.full(0.0), base, per_token, per_token2)
        text = "prefill rate is not measured: the service profile is taken"
        rate = gaps.fill(rate, prompt / modelled, text, only=case.computes)
    terms = ("prefill_wait", "prefill_compute")
    slowest = _worst(rate, case.computes & (rate > 0.0), is_low_worst=True)
    text = "prefill rate is not known: the slowest known one of the fleet"
    rate = gaps.fill(rate, slowest, text, *terms, only=case.computes)
    text = "no prefill rate of the fleet is known: one TTFT budget a prompt"
    rate = gaps.fill(rate, prompt / case.slo.ttft_s, text, *terms, only=case.computes)
    if "prefill_compute" in gaps.unknown and hit.any():
        gaps.unknown["prefix_benefit"] = gaps.unknown["prefill_compute"] & (hit > 0.0)
    linear = cost.linear_prefill_s(rate, mean_prompt, base, per_token2)
    text = "prompt tokens ahead are not known: one prompt like this"
    queued = gaps.fill(arrays.uncached_tokens, prompt, text, "prefill_wait", only=case.computes)
    queued = queued + case.lease_uncached_tokens
    return PrefillSide(
        rate_tokens_per_s=rate,
        queued_tokens=queued,
        wait_s=cost.prefill_wait_s(queued, rate),
        whole_s=service.prefill_s(prompt, case.full(0.0), base, linear, per_token2),
        uncached_s=service.prefill_s(prompt - hit, hit, base, linear, per_token2),
    )


def _link(case: _Case, gaps: _Fallbacks) -> LinkSide:
    arrays = case.arrays
    bytes_per_token = arrays.bytes_per_token
    known = bytes_per_token[np.isfinite(bytes_per_token)]
    if known.size:
        text = "KV bytes per token are not known: the fleet's largest"
        bytes_per_token = gaps.fill(bytes_per_token, float(known.max()), text, "transfer")
    promised = case.lease_transfer_tokens * bytes_per_token
    travelling = gaps.fill(
        np.where(arrays.role == PREFILL, arrays.travelling_bytes, 0.0),
        case.request.prompt_tokens * bytes_per_token,
        "bytes on the link are not known: one transfer like this is assumed",
        "transfer",
    )
    # What a receiver waits for is on a link only as far as some sender has handed it over: the rest waits for prefill.
    on_link = arrays.arriving_tokens * bytes_per_token * arrays.handed_over_ratio
    arriving = np.where((arrays.role == DECODE) & ~np.isnan(on_link), on_link, 0.0)
    bandwidth = arrays.bandwidth_bytes_per_s
    known_bandwidths = case.settings.bandwidths_bytes_per_s
    if known_bandwidths:
        calibrated = np.array([known_bandwidths.get(pool.worker_id, np.nan) for pool in arrays.pools])
        bandwidth = gaps.fill(bandwidth, calibrated, "bandwidth is not measured: the calibrated one is taken")
    return LinkSide(
        bytes_per_token=bytes_per_token,
        bandwidth_bytes_per_s=bandwidth,
        travelling_bytes=travelling,
        arriving_bytes=arriving + promised,
        latency_s=np.nan_to_num(case.profile(lambda profile: profile.transfer_latency_s)),
    )


def _decode(case: _Case, gaps: _Fallbacks, output_tokens: float) -> tuple[DecodeSide, FloatArray, FloatArray]:
    """Return the decode side, mean output and running count (with leases), the latter two without gaps."""
    arrays = case.arrays
    text = "running requests are not known: one is assumed for the spread of output lengths"
    running = gaps.fill(arrays.running_count, 1.0, text, only=case.generates) + case.lease_count
    mean_output = np.where(np.isnan(arrays.mean_output_tokens), output_tokens, arrays.mean_output_tokens)
    step = arrays.step_time_s
    if case.has_profile:
        modelled = service.decode_step_s(
            running + 1.0,
            arrays.used_tokens + float(case.request.prompt_tokens),
            case.profile(lambda profile: profile.decode_base_s),
            case.profile(lambda profile: profile.decode_per_sequence_s),
            case.profile(lambda profile: profile.decode_per_token_s),
        )
        if case.settings.are_profiles_first:
            step = np.where(np.isnan(modelled), step, modelled)
        text = "step time is not measured: the service profile is taken"
        step = gaps.fill(step, modelled, text, only=case.generates)
    slowest = _worst(step, case.generates, is_low_worst=False)
    step = gaps.fill(
        step,
        slowest if np.isfinite(slowest) else case.slo.tpot_s,
        "step time is not known: the slowest known one of the fleet, or the class's TPOT budget",
        "decode_wait",
        "slo_risk",
        only=case.generates,
    )
    by_law = arrays.running_count / np.maximum(mean_output * step, 1e-9)
    finished = np.where(arrays.finished_per_s > 0.0, arrays.finished_per_s, by_law)
    slot = cost.slot_wait_s(
        arrays.running_count + case.lease_count, arrays.waiting_count, arrays.max_running_count, finished
    )
    slot = np.where(np.isnan(slot) & (arrays.waiting_count == 0.0), 0.0, slot)
    text = "wait for a batch slot is not known: one TTFT budget is taken"
    slot = gaps.fill(slot, case.slo.ttft_s, text, "decode_wait", only=case.generates)
    return DecodeSide(slot_wait_s=slot, first_step_s=step), mean_output, running


def _worst(values: FloatArray, mask: BoolArray, *, is_low_worst: bool) -> float:
    """Return the worst known value among the pools of a mask, or NaN."""
    known = values[mask & np.isfinite(values)]
    if known.size == 0:
        return float("nan")
    return float(known.min() if is_low_worst else known.max())


def _hits(arrays: FleetArrays, hits: Mapping[str, int]) -> FloatArray:
    column = np.zeros(len(arrays))
    for index, name in enumerate(arrays.ids) if hits else ():
        column[index] = hits.get(name, 0)
    return column

"""
Policies as functions: what people run today, from their published rules, and the plain ones.

Each returns the scores it gives to entry pools (prefill and unified) and to decode pools, lower is better, NaN where
it ranks nothing, with what it did where its rule needs something telemetry does not give. Picking is the caller's.
Sources are in `registry`, rule by rule; constants are the projects' defaults unless the comment says chosen.

Read next: `registry`, `decide`.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from scoring import cost
from scoring.model import FloatArray
from scoring.policy.arrays import DECODE, PREFILL, UNIFIED, BoolArray
from scoring.policy.prepare import Prepared
from scoring.policy.settings import RouterState
from scoring.steadiness import pick_of_two
from scoring.units import tokens_to_blocks_up

SGLANG_CACHE_THRESHOLD: Final = 0.3
SGLANG_BALANCE_ABS_COUNT: Final = 64.0
SGLANG_BALANCE_REL_RATIO: Final = 1.5
SMG_BARRIER_S: Final = 0.15
SMG_THROUGHPUT_TOKENS_PER_S: Final = 2000.0
SMG_MEAN_PROMPT_TOKENS: Final = 1024.0
DYNAMO_OVERLAP_CREDIT: Final = 1.0
DYNAMO_PREFILL_SCALE: Final = 1.0
DYNAMO_DECIDER_TOKENS: Final = 2048.0
DYNAMO_DECIDER_RATIO: Final = 0.7
LLMD_PREFIX_WEIGHT, LLMD_QUEUE_WEIGHT, LLMD_KV_WEIGHT = 3.0, 2.0, 2.0
LLMD_DECIDER_TOKENS: Final = 16.0
MOONCAKE_BALANCING_RATIO: Final = 2.0
"""kvcache_balancing_threshold of Algorithm 1; the paper gives no number (chosen)."""
VLLM_WAITING_WEIGHT: Final = 4.0
RING_POINTS: Final = 32
"""Points of a pool on the hash ring (chosen: shares within about a fifth of each other)."""


@dataclass(frozen=True, slots=True)
class Scores:
    """
    What a policy thinks of each pool.

    Attributes:
        entry: Scores of prefill and unified pools, NaN elsewhere. Shape (n,).
        decode: Scores of decode pools (and unified ones for a policy that starts there), NaN elsewhere.
        is_decode_first: The decode end is chosen before the prefill end.
        is_tie_random: Equal scores are told apart by the seed instead of by id.
        fallback: Named branch, where the rule could not be followed.
        notes: What the policy saw.
        refusal: Why the policy itself refuses the request, or None.
    """

    entry: FloatArray
    decode: FloatArray
    is_decode_first: bool = False
    is_tie_random: bool = False
    fallback: str | None = None
    notes: tuple[str, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a policy function is given."""

    prepared: Prepared
    state: RouterState
    rng: np.random.Generator
    open: BoolArray
    """Pools its filters let through."""

    @property
    def entries(self) -> BoolArray:
        """Return where a prompt can be computed: prefill and unified pools."""
        role = self.prepared.arrays.role
        mask: BoolArray = ((role == PREFILL) | (role == UNIFIED)) & self.open
        return mask

    @property
    def decodes(self) -> BoolArray:
        """Return pools that only generate."""
        mask: BoolArray = (self.prepared.arrays.role == DECODE) & self.open
        return mask

    def split(self, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return one column of scores as (entry, decode)."""
        return np.where(self.entries, scores, np.nan), np.where(self.decodes, scores, np.nan)

    def counts(self) -> FloatArray:
        """Return requests in flight by the router's own counter, else by what the engines show."""
        arrays = self.prepared.arrays
        if self.state.in_flight_count is not None:
            return np.array([self.state.in_flight_count.get(name, 0.0) for name in arrays.ids], dtype=np.float64)
        shown = np.where(np.isnan(arrays.running_count), 0.0, arrays.running_count) + np.where(
            np.isnan(arrays.waiting_count), 0.0, arrays.waiting_count
        )
        is_unknown = np.isnan(arrays.running_count) & np.isnan(arrays.waiting_count)
        return np.where(is_unknown, np.nan, shown + self.claimed_count())

    def claimed_count(self) -> FloatArray:
        """Return open leases of each pool."""
        return np.array([claim.count for claim in self.prepared.claims], dtype=np.float64)

    def claimed_tokens(self) -> FloatArray:
        """Return tokens of open leases of each pool."""
        return np.array([claim.tokens for claim in self.prepared.claims], dtype=np.float64)

    def used_ratio(self) -> FloatArray:
        """Return the utilization people route on: used over usable, else the engine's own gauge; leases included."""
        arrays = self.prepared.arrays
        reported = np.array(
            [np.nan if (value := pool.reading.reported_usage_ratio) is None else value for pool in arrays.pools],
            dtype=np.float64,
        )
        own = (arrays.used_tokens + self.claimed_tokens()) / arrays.usable_tokens
        ratio = np.where(np.isnan(own), reported, own)
        return np.where(arrays.is_credible, ratio, np.nan)


def random(asked: Asked) -> Scores:
    """Return scores drawn at random: every pool equally likely."""
    return Scores(*asked.split(asked.rng.random(len(asked.prepared.arrays))))


def round_robin(asked: Asked) -> Scores:
    """Return the distance from whose turn it is, in order of id."""

    def turns(mask: BoolArray) -> FloatArray:
        scores = np.full(mask.size, np.nan)
        members = np.flatnonzero(mask)
        if members.size:
            scores[members] = (np.arange(members.size) - asked.state.turn) % members.size
        return scores

    return Scores(turns(asked.entries), turns(asked.decodes))


def lowest_utilization(asked: Asked) -> Scores:
    """Return utilization now; pools without a credible figure are not ranked."""
    ratio = asked.used_ratio()
    entry, decode = asked.split(ratio)
    if np.isnan(ratio[asked.open]).all():
        return Scores(*asked.split(asked.counts()), fallback="no pool reports utilization: fewest requests instead")
    return Scores(entry, decode)


def guarded_utilization(asked: Asked) -> Scores:
    """Return projected utilization now (committed + demand over usable) of the pools every gate lets through."""
    room, usable = asked.prepared.room, asked.prepared.arrays.usable_tokens
    return Scores(*asked.split(cost.utilization_ratio(room.committed_tokens, room.demand_tokens, usable)))


def _imbalanced(loads: FloatArray) -> bool:
    known = loads[np.isfinite(loads)]
    if known.size == 0:
        return False
    low, high = float(known.min()), float(known.max())
    return high - low > SGLANG_BALANCE_ABS_COUNT and high > SGLANG_BALANCE_REL_RATIO * low


def sglang_cache_aware(asked: Asked) -> Scores:
    """
    Return in-flight counts when they are out of balance or no prefix matches enough; else the best match first.

    Imbalanced: max - min > 64 and max > 1.5 * min. Matched: hit / prompt > 0.3.
    """
    loads = asked.counts()
    match = asked.prepared.hit_tokens / float(asked.prepared.request.prompt_tokens)
    notes = []

    def side(mask: BoolArray, name: str) -> FloatArray:
        own = np.where(mask, loads, np.nan)
        if not mask.any():
            return own
        best = float(match[mask].max())
        if _imbalanced(own):
            notes.append(f"{name}: counts out of balance, fewest in flight")
            return own
        if best > SGLANG_CACHE_THRESHOLD:
            notes.append(f"{name}: match {best:.2f} > {SGLANG_CACHE_THRESHOLD}, affinity")
            return np.where(mask, -match, np.nan)
        notes.append(f"{name}: match {best:.2f} too low, fewest in flight")
        return own

    entry = side(asked.entries, "prefill")
    decode = side(asked.decodes, "decode")
    return Scores(entry, decode, notes=tuple(notes))


def sglang_power_of_two(asked: Asked) -> Scores:
    """Return the token loads of two pools drawn at random; if either is missing, their request counts."""
    tokens = asked.prepared.arrays.used_tokens + asked.claimed_tokens()
    counts = asked.counts()
    fallbacks = []

    def side(mask: BoolArray) -> FloatArray:
        members = np.flatnonzero(mask)
        if members.size <= 1:
            return np.where(mask, np.nan_to_num(counts), np.nan)
        drawn = np.sort(asked.rng.choice(members, size=2, replace=False))
        loads = tokens[drawn]
        if np.isnan(loads).any():
            loads = counts[drawn]
            fallbacks.append("a token load is missing: request counts of both instead")
        scores = np.full(mask.size, np.nan)
        scores[drawn] = np.nan_to_num(loads, nan=np.inf)
        return scores

    entry, decode = side(asked.entries), side(asked.decodes)
    return Scores(entry, decode, fallback=fallbacks[0] if fallbacks else None)


def smg_least_load(asked: Asked) -> Scores:
    """Return (queued + in flight since the poll) / throughput + 0.15 * k / (1 - k), in seconds."""
    arrays = asked.prepared.arrays
    waiting = np.where(np.isnan(arrays.waiting_count), 0.0, arrays.waiting_count)
    raw = np.array(
        [np.nan if (value := pool.waiting_uncached_tokens.value) is None else value for pool in arrays.pools],
        dtype=np.float64,
    )
    queued = np.where(np.isnan(raw), waiting * SMG_MEAN_PROMPT_TOKENS, raw)
    since = np.array([claim.uncached_tokens for claim in asked.prepared.claims], dtype=np.float64)
    speed = np.where(arrays.generated_tokens_per_s > 0.0, arrays.generated_tokens_per_s, SMG_THROUGHPUT_TOKENS_PER_S)
    used = np.where(np.isnan(asked.used_ratio()), 0.0, asked.used_ratio())
    k = np.minimum(np.maximum(used, 0.0), 0.999)
    return Scores(*asked.split((queued + since) / speed + SMG_BARRIER_S * k / (1.0 - k)))


def dynamo_kv(asked: Asked) -> Scores:
    """
    Return blocks to prefill beyond the overlap plus blocks active after the request, per worker and rank.

    adj = max(active prefill blocks + prompt blocks - overlap blocks, 0); cost = adj + active decode blocks + incoming.
    The decode stage has no prefill left, so its cost is the active blocks. Temperature 0; ties at random.
    """
    prepared = asked.prepared
    arrays, page = prepared.arrays, prepared.arrays.page_tokens
    prompt_blocks = tokens_to_blocks_up(np.full(len(arrays), float(prepared.request.prompt_tokens)), page)
    waiting = np.where(np.isnan(arrays.uncached_tokens), 0.0, arrays.uncached_tokens)
    since = np.array([claim.uncached_tokens for claim in prepared.claims], dtype=np.float64)
    raw = (waiting + since) / page + prompt_blocks
    overlap = DYNAMO_OVERLAP_CREDIT * np.floor(prepared.hit_tokens / page)
    adjusted = np.maximum(raw - overlap, 0.0)
    held = np.where(np.isnan(arrays.active_tokens), 0.0, arrays.active_tokens) + asked.claimed_tokens()
    active = held / page + prompt_blocks
    entry, _ = asked.split(DYNAMO_PREFILL_SCALE * adjusted + active)
    _, decode = asked.split(active)
    return Scores(entry, decode, is_tie_random=True)


def llmd_weighted(asked: Asked) -> Scores:
    """
    Return minus (3 * prefix + 2 * queue + 2 * kv), each in [0, 1] with 1 the best; decode is chosen first.

    prefix = hit / prompt; queue = (max - q) / (max - min), 1 when all are equal; kv = 1 - usage.
    """
    prepared = asked.prepared
    arrays = prepared.arrays
    prefix = prepared.hit_tokens / float(prepared.request.prompt_tokens)
    waiting = np.where(np.isnan(arrays.waiting_count), 0.0, arrays.waiting_count)
    free = 1.0 - np.where(np.isnan(asked.used_ratio()), 1.0, asked.used_ratio())

    def side(mask: BoolArray) -> FloatArray:
        if not mask.any():
            return np.full(mask.size, np.nan)
        low, high = waiting[mask].min(), waiting[mask].max()
        queue = np.ones(mask.size) if high == low else (high - waiting) / (high - low)
        score = LLMD_PREFIX_WEIGHT * prefix + LLMD_QUEUE_WEIGHT * queue + LLMD_KV_WEIGHT * np.clip(free, 0.0, 1.0)
        return np.where(mask, -score, np.nan)

    unified: BoolArray = (arrays.role == UNIFIED) & asked.open
    prefill: BoolArray = (arrays.role == PREFILL) & asked.open
    return Scores(side(prefill), side(asked.decodes | unified), is_decode_first=True, is_tie_random=True)


def mooncake_min_ttft(asked: Asked) -> Scores:
    """
    Return predicted TTFT of each prefill instance and predicted TBT of each decode instance (Algorithm 1).

    The local prefix is used unless another instance holds more than twice as much: then its excess is fetched first.
    The request is refused where the best TTFT or TBT breaks the class's SLO.
    """
    prepared = asked.prepared
    prefill, link = prepared.prefill, prepared.link
    hit = prepared.hit_tokens
    best_hit = float(hit[asked.entries].max()) if asked.entries.any() else 0.0
    with np.errstate(all="ignore"):
        is_remote = best_hit > MOONCAKE_BALANCING_RATIO * hit
        fetch_s = (best_hit - hit) * link.bytes_per_token / link.bandwidth_bytes_per_s
        is_remote &= np.isfinite(fetch_s)
        saved_s = prefill.whole_s - prefill.uncached_s
        per_hit_s = np.where(hit > 0.0, saved_s / hit, 1.0 / prefill.rate_tokens_per_s)
        local_s = prefill.wait_s + prefill.uncached_s
        remote_s = prefill.wait_s + fetch_s + np.maximum(prefill.whole_s - best_hit * per_hit_s, 0.0)
    entry, _ = asked.split(np.where(is_remote, remote_s, local_s))
    _, decode = asked.split(prepared.decode.first_step_s)
    refusal = None
    slo = prepared.slo
    if np.isfinite(entry).any() and float(np.nanmin(entry)) > slo.ttft_s:
        refusal = f"best predicted TTFT {float(np.nanmin(entry)):.2f} s is over the SLO of {slo.ttft_s:g} s"
    elif np.isfinite(decode).any() and float(np.nanmin(decode)) > slo.tpot_s:
        refusal = f"best predicted TBT {float(np.nanmin(decode)):.3f} s is over the SLO of {slo.tpot_s:g} s"
    return Scores(entry, decode, refusal=refusal)


def vllm_dp(asked: Asked) -> Scores:
    """Return waiting * 4 + running, the load of vLLM's data-parallel balancer."""
    arrays = asked.prepared.arrays
    waiting = np.where(np.isnan(arrays.waiting_count), 0.0, arrays.waiting_count)
    running = np.where(np.isnan(arrays.running_count), 0.0, arrays.running_count)
    return Scores(*asked.split(VLLM_WAITING_WEIGHT * waiting + running + asked.claimed_count()))


def production_stack_session(asked: Asked) -> Scores:
    """Return the distance on a hash ring from the session's key; without a session the fewest requests win."""
    session = asked.prepared.request.session_id
    if session is None:
        return Scores(*asked.split(asked.counts()), fallback="no session: fewest requests instead")
    key = _ring(session)
    distance = np.array(
        [min((point - key) % 2**64 for point in _points(name)) for name in asked.prepared.arrays.ids], dtype=np.float64
    )
    return Scores(*asked.split(distance))


@lru_cache(maxsize=8_192)
def _points(name: str) -> tuple[int, ...]:
    return tuple(_ring(f"{name}#{number}") for number in range(RING_POINTS))


def _ring(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def two_choices(asked: Asked, scores: Scores) -> Scores:
    """Return scores with all but two pools a side left out, drawn by the seed."""

    def side(values: FloatArray) -> FloatArray:
        kept = pick_of_two(values, asked.rng)
        out = np.full(values.size, np.nan)
        if kept is not None:
            out[kept] = values[kept]
        return out

    return Scores(
        side(scores.entry),
        side(scores.decode),
        is_decode_first=scores.is_decode_first,
        is_tie_random=scores.is_tie_random,
        fallback=scores.fallback,
        notes=(*scores.notes, "the better of two drawn by the seed"),
        refusal=scores.refusal,
    )


def is_local(name: str, prompt_tokens: int, hit_tokens: FloatArray) -> BoolArray | None:
    """
    Return the decode pools on which the decider computes the prompt, or None for a decider that never does.

    Dynamo: uncached < 2,048 and uncached / prompt < 0.7. llm-d: uncached < 16.
    """
    uncached = float(prompt_tokens) - hit_tokens
    if name == "dynamo":
        both: BoolArray = (uncached < DYNAMO_DECIDER_TOKENS) & (uncached / prompt_tokens < DYNAMO_DECIDER_RATIO)
        return both
    if name == "llm-d":
        few: BoolArray = uncached < LLMD_DECIDER_TOKENS
        return few
    return None

"""
What speaks for each of the six stages of the saturation chain, of one pool at one instant.

A sign is a number against a threshold from the pool's own past, or calibrated to the stated SLO, with a sentence;
`is_seen` None means the source does not show it. Nothing here remembers anything: `chain` keeps the baselines and
decides what lights.

Read next: `chain`.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from scoring.alarm import PoolRisk
from scoring.chain_look import RECENT_S, RECOMPUTE_S, Look
from scoring.model import PoolSnapshot, Role


class Stage(IntEnum):
    """Where on the chain a pool stands: the furthest stage that is lit."""

    CANNOT_SEE = -1
    HEALTHY = 0
    THIN_HEADROOM = 1
    ADMISSION_STALLS = 2
    RETRACTION = 3
    RECOMPUTE = 4
    SLOW_RELEASE = 5
    TAIL_LATENCY = 6

    @property
    def word(self) -> str:
        """Return the stable kebab-case word, as stored."""
        return self.name.lower().replace("_", "-")


STAGES: Final = tuple(stage for stage in Stage if stage > Stage.HEALTHY)

QUEUE_AGE_S: Final = 3.0
"""A queue younger than this is a queue in passing (chosen: three one-second polls)."""
BUSY_RATIO: Final = 0.3
"""Below this share held, slow release says nothing: there is little to release (chosen)."""
SLOW_RATIO: Final = 0.5
"""Release is slow at half its own normal share (chosen)."""
STEP_RATIO: Final = 1.25
"""A step is slow at this many times what the pool's own past gives for its batch and context (chosen)."""
TAIL_RATIO: Final = 2.0
"""A tail is long at twice its own normal (chosen: telemetry tells no classes, so nothing calibrates a pool's tail)."""
EVICT_RATIO: Final = 3.0
LEAST_TAIL_S: Final = 1.0
"""Nobody is told of a time to first token below this where no SLO is stated (the interactive budget by default)."""

RESERVE: Final = "reserve"
CALIBRATED: Final = "calibrated"
SLO: Final = "slo"
HISTORY: Final = "history"
COUNT: Final = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """
    One reason for or against a stage.

    Attributes:
        stage: Which.
        is_seen: True, False, or None where the source does not show it.
        value: The number judged, None when unknown.
        threshold: What it was held against, None without one.
        text: One sentence with the numbers.
        rests: What the threshold rests on: RESERVE, CALIBRATED, SLO, HISTORY, or COUNT (one is too many).
    """

    stage: Stage
    is_seen: bool | None
    value: float | None = None
    threshold: float | None = None
    text: str = ""
    rests: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """
    What is normal for the pool: means learnt while it was well. None until enough was seen.

    Attributes:
        queue_count: Waiting requests, with their spread.
        release_share_per_s: Share of what is held that is given back in a second.
        evicted_tokens_per_s: Prefix evicted.
        ttft_s, itl_s: 99th percentiles, or the estimate that stands in for the first.
    """

    queue_count: float | None = None
    queue_spread: float | None = None
    release_share_per_s: float | None = None
    evicted_tokens_per_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None


def signs(
    pool: PoolSnapshot,
    at: Look,
    risk: PoolRisk,
    normal: Normal,
    *,
    is_thin: bool,
    is_begun: bool,
    is_retracted: bool,
    least_tail_s: float = LEAST_TAIL_S,
) -> tuple[Sign, ...]:
    """
    Return one sign a stage, in order.

    `is_thin`: headroom is thin, so that queues and evictions are its doing. `is_begun`: admission stalls or work is
    retracted, or was a moment ago, so that repeated work, slow release and long tails are the chain's doing.
    `is_retracted`: work is retracted, so that a slow step may be repeated work. `least_tail_s`: time to first token
    that the SLO allows, below which no tail is long.
    """
    return (
        _thin(risk),
        _stalls(pool, at, normal, is_near=is_thin or is_begun),
        _retraction(at, normal, is_thin=is_thin),
        _recompute(at, is_near=is_begun, is_retracted=is_retracted),
        _slow(pool, at, normal, is_near=is_begun),
        _tail(at, normal, is_near=is_begun, least_s=least_tail_s),
    )


def _thin(risk: PoolRisk) -> Sign:
    stage = Stage.THIN_HEADROOM
    if risk.headroom_tokens is None:
        return Sign(stage=stage, is_seen=None, text=risk.reason or "the reserve is not known")
    text = f"headroom {risk.headroom_tokens:.0f} tokens: available less reserved less safety reserve"
    return Sign(
        stage=stage,
        is_seen=risk.headroom_tokens <= 0,
        value=risk.headroom_tokens,
        threshold=0.0,
        text=text,
        rests=RESERVE,
    )


def _stalls(pool: PoolSnapshot, at: Look, normal: Normal, *, is_near: bool) -> Sign:
    stage = Stage.ADMISSION_STALLS
    if at.queue_count is None or at.queue_age_s is None:
        return Sign(stage=stage, is_seen=None, text="the source does not report who waits for room")
    is_for_room = at.queue_name == "prealloc_ready_count"
    if is_for_room:
        limit = 1.0  # Nobody stands there but for want of room: one is too many, whatever is usual.
    elif normal.queue_count is None:
        return Sign(stage=stage, is_seen=None, value=at.queue_count, text="how many usually wait is not known yet")
    else:
        limit = max(1.0, normal.queue_count + 3.0 * (normal.queue_spread or 0.0))
    # Prefill's queue stands for want of room on decode; the others may wait for compute.
    is_cause = is_near or is_for_room or pool.role is Role.PREFILL
    is_seen = at.queue_count >= limit and at.queue_age_s >= QUEUE_AGE_S and is_cause
    text = (
        f"{at.queue_count:.0f} wait ({at.queue_name}), not empty for {at.queue_age_s:.0f} s; usual at most {limit:.1f}"
    )
    rests = COUNT if is_for_room else HISTORY
    return Sign(stage=stage, is_seen=is_seen, value=at.queue_count, threshold=limit, text=text, rests=rests)


def _retraction(at: Look, normal: Normal, *, is_thin: bool) -> Sign:
    stage = Stage.RETRACTION
    if at.retracted_count:
        text = f"{at.retracted_count:.0f} retracted in {RECENT_S:.0f} s"
        return Sign(stage=stage, is_seen=True, value=at.retracted_count, threshold=0.0, text=text, rests=COUNT)
    if at.retracted_queue_count:
        text = f"{at.retracted_queue_count:.0f} retracted requests wait to come back"
        return Sign(stage=stage, is_seen=True, value=at.retracted_queue_count, threshold=0.0, text=text, rests=COUNT)
    rate, usual = at.evicted_tokens_per_s, normal.evicted_tokens_per_s
    if rate is not None and usual is not None and is_thin and rate > max(EVICT_RATIO * usual, 1.0):
        text = f"{rate:.0f} tokens/s of prefix evicted; usual {usual:.0f}"
        return Sign(stage=stage, is_seen=True, value=rate, threshold=EVICT_RATIO * usual, text=text, rests=HISTORY)
    if at.retracted_count is None and at.retracted_queue_count is None and rate is None:
        return Sign(stage=stage, is_seen=None, text="the source reports neither retractions nor evictions")
    return Sign(stage=stage, is_seen=False, value=0.0, threshold=0.0, text="nothing retracted", rests=COUNT)


def _recompute(at: Look, *, is_near: bool, is_retracted: bool) -> Sign:
    stage = Stage.RECOMPUTE
    for value, words in (
        (at.recomputed_tokens_per_s, "tokens/s to compute again"),
        (at.load_back_tokens_per_s, "tokens/s loaded back"),
    ):
        if value and is_near:
            text = f"{value:.0f} {words} over {RECOMPUTE_S:.0f} s"
            return Sign(stage=stage, is_seen=True, value=value, threshold=0.0, text=text, rests=COUNT)
    if at.newest_step_s is not None and at.modelled_step_s is not None and at.step_error_ratio is not None:
        limit = (1.0 + at.step_error_ratio) * at.modelled_step_s
        text = (
            f"step {at.newest_step_s * 1e3:.1f} ms; calibrated coefficients give {at.modelled_step_s * 1e3:.1f} ms "
            f"at this batch, off by at most {at.step_error_ratio:.1%}"
        )
        is_seen = is_retracted and at.newest_step_s > limit
        return Sign(stage=stage, is_seen=is_seen, value=at.newest_step_s, threshold=limit, text=text, rests=CALIBRATED)
    if at.step_s is not None and at.expected_step_s is not None:
        limit = STEP_RATIO * at.expected_step_s
        text = f"step {at.step_s * 1e3:.1f} ms; its own past gives {at.expected_step_s * 1e3:.1f} ms at this batch"
        is_seen = is_retracted and at.step_s > limit
        return Sign(stage=stage, is_seen=is_seen, value=at.step_s, threshold=limit, text=text, rests=HISTORY)
    if at.recomputed_tokens_per_s is None and at.load_back_tokens_per_s is None:
        return Sign(stage=stage, is_seen=None, text="the source reports no recomputed or reloaded tokens")
    return Sign(stage=stage, is_seen=False, value=0.0, threshold=0.0, text="nothing computed again", rests=COUNT)


def _slow(pool: PoolSnapshot, at: Look, normal: Normal, *, is_near: bool) -> Sign:
    stage = Stage.SLOW_RELEASE
    share, usual = at.release_share_per_s, normal.release_share_per_s
    if share is None or usual is None:
        return Sign(stage=stage, is_seen=None, text="what is usually given back is not known yet")
    used, usable = pool.composition.used_tokens.value, pool.composition.usable_tokens.value
    is_busy = used is not None and bool(usable) and used > BUSY_RATIO * (usable or 1.0)
    limit = SLOW_RATIO * usual
    text = f"{share:.1%} of what is held is given back in a second; usual {usual:.1%}"
    is_seen = is_near and is_busy and share < limit
    return Sign(stage=stage, is_seen=is_seen, value=share, threshold=limit, text=text, rests=HISTORY)


def _tail(at: Look, normal: Normal, *, is_near: bool, least_s: float) -> Sign:
    stage = Stage.TAIL_LATENCY
    unseen = Sign(stage=stage, is_seen=None, text="the source reports no latency and no queue in tokens")
    if at.ttft_s is not None:
        own = TAIL_RATIO * (normal.ttft_s or 0.0)
        limit, rests = max(least_s, own), HISTORY if own >= least_s else SLO
        usual = "not known" if normal.ttft_s is None else f"{normal.ttft_s:.2f} s"
        text = f"time to first token {at.ttft_s:.1f} s ({at.ttft_basis}); usual {usual}"
        is_seen = is_near and at.ttft_s > limit
        unseen = Sign(stage=stage, is_seen=is_seen, value=at.ttft_s, threshold=limit, text=text, rests=rests)
    if not unseen.is_seen and at.itl_s is not None and normal.itl_s is not None:
        limit = TAIL_RATIO * normal.itl_s
        text = f"inter-token latency {at.itl_s * 1e3:.0f} ms; usual {normal.itl_s * 1e3:.0f} ms"
        is_seen = is_near and at.itl_s > limit
        sign = Sign(stage=stage, is_seen=is_seen, value=at.itl_s, threshold=limit, text=text, rests=HISTORY)
        return sign if sign.is_seen or unseen.is_seen is None else unseen
    return unseen

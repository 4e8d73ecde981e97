"""What a poll is bounded by and what comes of it: the types between `worker_poll` and those who take its results."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.store.batch import PollOutcome
from scoring.model import Finding, PoolReading, RouterWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """
    What bounds a poll; see `settings.PollSettings`.

    Attributes:
        metrics_interval_s: Least seconds between two readings of /metrics beside a load API.
        warm_up_s: Time over which a large fleet's first rare questions are spread.
    """

    timeout_s: float
    connect_timeout_s: float
    metrics_interval_s: float
    max_body_bytes: int
    down_after_failures: int
    warm_up_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionState:
    """
    One question of a worker and how it fares.

    Attributes:
        status: HTTP status of the newest answer; None when the newest asking failed or none was made.
        error_kind: Why the newest asking failed, or None.
        byte_count: Size of the newest answer.
        asked_at_s: When it was asked last; None before.
        answered_count: Answers with status 200 so far.
        failed_count: Askings without one so far.
    """

    path: str
    every_s: float
    is_essential: bool
    status: int | None = None
    error_kind: str | None = None
    byte_count: int = 0
    asked_at_s: float | None = None
    answered_count: int = 0
    failed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDetail:
    """How a worker is asked and what it said of itself; sent on when it changes and every few seconds."""

    worker_id: str
    engine: str
    version: str | None = None
    questions: tuple[QuestionState, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    expected_rank_count: int | None = None
    is_nothing_yet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What came of one poll of one worker."""

    poll: PollOutcome
    readings: tuple[PoolReading, ...] = ()
    findings: tuple[Finding, ...] = ()
    router_workers: tuple[RouterWorker, ...] = ()
    detail: SourceDetail | None = None


def offset_ratio(worker_id: str) -> float:
    """Return where in the spread a worker starts, 0 up to 1: fixed by its name, so it does not move between cycles."""
    hashed = 2166136261
    for byte in worker_id.encode():
        hashed = ((hashed ^ byte) * 16777619) & 0xFFFFFFFF
    # The last bytes of names differ most (ports, indices): fold the low bits up before scaling.
    return ((hashed * 2654435761) & 0xFFFFFFFF) / 2**32


def half_tick(every_s: float) -> float:
    """Return how much earlier than `every_s` a question is due, so that it does not slip to the tick after."""
    # Polls of one worker are not exactly one interval apart; a question due every 60 s must not slip to the next tick.
    return min(0.5, every_s / 2)

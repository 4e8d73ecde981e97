"""
What is known of each source: whom we ask, what came back, since when it is in which state.

Fed with poll outcomes by one thread; views are made on demand. Addresses carry no credentials (see `discovery`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collectors.discovery import Target
from collectors.poll_types import QuestionState, SourceDetail
from collectors.store.batch import PollOutcome
from scoring.model import Finding, Role, SourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """
    One source as the Sources page shows it.

    Attributes:
        worker_id: Its name.
        url: Its address, without credentials or query.
        origin: The list that names it.
        engine: Dialect it speaks; "" while unknown.
        version: What it says of itself.
        role: As the fleet file or router says; the engine's word is in the pools.
        labels: From the fleet file or the list.
        state: Of its newest poll; None before the first.
        state_reason: One line on why, "" when all is well.
        since_at_s: When it came into that state.
        last_poll_at_s: When its newest poll ended.
        last_success_at_s: When it was understood last.
        last_error_kind: Kind of its newest failure (`exchange.FAILURE_KINDS`), also when it has recovered since.
        last_error: One line of that failure.
        last_error_at_s: When that was.
        http_status: Of the newest essential answer.
        duration_s: Of the newest poll.
        byte_count: Body bytes of the newest poll.
        poll_count: Polls so far.
        failure_count: Polls that were not understood so far.
        failures_in_a_row: Of these, the newest without a success between.
        skipped_count: Ticks at which it was still being asked.
        total_byte_count: Body bytes so far.
        pool_count: Pools in the newest understood answer.
        expected_rank_count: DP ranks it says it has, where it says so.
        rejected_count: Samples of the newest answer that could not be understood.
        ignored_count: Samples of the newest answer that are understood and not needed.
        questions: What is asked, how often, how it went.
        facts: What it says of its configuration.
        findings: What is noticed about its answers.
        is_router: It names workers (a router, a Prometheus server) and has no pools.
        vanished_at_s: Since when no list names it; None while one does.
    """

    worker_id: str
    url: str
    origin: str
    engine: str = ""
    version: str | None = None
    role: Role = Role.UNKNOWN
    labels: Mapping[str, str] = field(default_factory=dict)
    state: SourceState | None = None
    state_reason: str = ""
    since_at_s: float | None = None
    last_poll_at_s: float | None = None
    last_success_at_s: float | None = None
    last_error_kind: str | None = None
    last_error: str = ""
    last_error_at_s: float | None = None
    http_status: int | None = None
    duration_s: float | None = None
    byte_count: int = 0
    poll_count: int = 0
    failure_count: int = 0
    failures_in_a_row: int = 0
    skipped_count: int = 0
    total_byte_count: int = 0
    pool_count: int = 0
    expected_rank_count: int | None = None
    rejected_count: int = 0
    ignored_count: int = 0
    questions: tuple[QuestionState, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    is_router: bool = False
    vanished_at_s: float | None = None


class _Source:
    __slots__ = (
        "detail",
        "failure_at_s",
        "failure_count",
        "failures_in_a_row",
        "last_failure",
        "last_poll",
        "poll_count",
        "pool_count",
        "since_at_s",
        "skipped_count",
        "success_at_s",
        "target",
        "total_byte_count",
    )

    def __init__(self, target: Target) -> None:
        self.target = target
        self.detail: SourceDetail | None = None
        self.last_poll: PollOutcome | None = None
        self.last_failure: PollOutcome | None = None
        self.failure_at_s: float | None = None
        self.since_at_s: float | None = None
        self.success_at_s: float | None = None
        self.poll_count = self.failure_count = self.failures_in_a_row = self.skipped_count = 0
        self.total_byte_count = self.pool_count = 0


class SourceBook:
    """Every source by name. Written by one thread; `views` may be called from any."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Take the newest list; sources that are in it no more are forgotten."""
        sources = {}
        for target in targets:
            source = self._sources.get(target.worker_id)
            if source is None or source.target.url != target.url:
                source = _Source(target)
            source.target = target
            sources[target.worker_id] = source
        self._sources = sources

    def take(self, polls: Iterable[PollOutcome], details: Iterable[SourceDetail], skipped: Iterable[str]) -> None:
        """Take what a cycle brought."""
        for poll in polls:
            source = self._sources.get(poll.worker_id)
            if source is not None:
                _take_poll(source, poll)
        for detail in details:
            source = self._sources.get(detail.worker_id)
            if source is not None:
                source.detail = detail
        for name in skipped:
            source = self._sources.get(name)
            if source is not None:
                source.skipped_count += 1

    def target(self, worker_id: str) -> Target | None:
        """Return who that is, None when no list names it."""
        source = self._sources.get(worker_id)
        return source.target if source is not None else None

    def poll_state(self, worker_id: str) -> tuple[float | None, SourceState, str]:
        """Return (when polled last, state of that poll, one line on why) of a worker."""
        source = self._sources.get(worker_id)
        if source is None:
            return None, SourceState.DOWN, "no longer in the fleet file or any list"
        if source.target.vanished_at_s is not None:
            return source.target.vanished_at_s, SourceState.DOWN, f"no longer listed by {source.target.source}"
        poll = source.last_poll
        if poll is None:
            return None, SourceState.NOTHING_YET, "not polled yet"
        return poll.started_at_s + poll.duration_s, poll.state, _reason(poll)

    def without_pools(self) -> list[Target]:
        """Return the workers that never gave a pool and are no routers: they are drawn as what they are, unknown."""
        return [
            source.target
            for source in list(self._sources.values())
            if source.pool_count == 0 and source.poll_count > 0 and not _is_router(source)
        ]

    def views(self) -> tuple[SourceView, ...]:
        """Return one view a source, ascending by name."""
        sources = self._sources
        return tuple(_view(sources[name]) for name in sorted(sources))


def _take_poll(source: _Source, poll: PollOutcome) -> None:
    ended_at_s = poll.started_at_s + poll.duration_s
    if source.last_poll is None or source.last_poll.state is not poll.state:
        source.since_at_s = ended_at_s
    source.last_poll = poll
    source.poll_count += 1
    source.total_byte_count += poll.byte_count
    if poll.error_kind is None:
        source.success_at_s = ended_at_s
        source.failures_in_a_row = 0
        source.pool_count = poll.pool_count or source.pool_count
    else:
        source.failure_count += 1
        source.failures_in_a_row += 1
        source.last_failure = poll
        source.failure_at_s = ended_at_s


def _reason(poll: PollOutcome) -> str:
    return f"{poll.error_kind}: {poll.detail}" if poll.error_kind else poll.detail


def _is_router(source: _Source) -> bool:
    if source.target.labels.get("kind") in ("router", "prometheus"):
        return True
    return source.success_at_s is not None and source.detail is not None and not source.detail.is_nothing_yet


def _view(source: _Source) -> SourceView:
    target, poll, failure, detail = source.target, source.last_poll, source.last_failure, source.detail
    return SourceView(
        worker_id=target.worker_id,
        url=target.url,
        origin=target.source,
        engine=(detail.engine if detail is not None else "") or ("" if target.engine == "auto" else target.engine),
        version=detail.version if detail is not None else None,
        role=target.role,
        labels=target.labels,
        state=poll.state if poll is not None else None,
        state_reason=_reason(poll) if poll is not None else "not polled yet",
        since_at_s=source.since_at_s,
        last_poll_at_s=poll.started_at_s + poll.duration_s if poll is not None else None,
        last_success_at_s=source.success_at_s,
        last_error_kind=failure.error_kind if failure is not None else None,
        last_error=failure.detail if failure is not None else "",
        last_error_at_s=source.failure_at_s,
        http_status=poll.http_status if poll is not None else None,
        duration_s=poll.duration_s if poll is not None else None,
        byte_count=poll.byte_count if poll is not None else 0,
        poll_count=source.poll_count,
        failure_count=source.failure_count,
        failures_in_a_row=source.failures_in_a_row,
        skipped_count=source.skipped_count,
        total_byte_count=source.total_byte_count,
        pool_count=source.pool_count,
        expected_rank_count=detail.expected_rank_count if detail is not None else None,
        rejected_count=poll.rejected_count if poll is not None else 0,
        ignored_count=poll.ignored_count if poll is not None else 0,
        questions=detail.questions if detail is not None else (),
        facts=detail.facts if detail is not None else {},
        findings=detail.findings if detail is not None else (),
        is_router=source.pool_count == 0 and _is_router(source),
        vanished_at_s=target.vanished_at_s,
    )

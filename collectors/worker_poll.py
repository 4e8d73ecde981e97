"""
One worker being polled: which dialect it speaks, which questions are due, what its answers mean.

The newest answer of every path is kept, each question asked at its own rhythm. A question that is due each cycle and
fails leaves no old answer behind, so that old figures are never taken for new ones.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import httpx

from collectors.discovery import Target
from collectors.engines.contract import Answer, Dialect, NotUnderstood, Question
from collectors.exchange import REACHED_KINDS, Clock, Failure, ask, refusal, unrecognised
from collectors.poll_types import PollLimits, QuestionState, SourceDetail, WorkerResult, half_tick, offset_ratio
from collectors.store.batch import PollOutcome
from scoring.model import PoolReading, Role, SourceState, WorkerReading

Identify = Callable[[Mapping[str, Answer]], Dialect | None]

REIDENTIFY_AFTER: Final = 5
"""Polls in a row that are not understood before the worker is asked anew what it speaks (chosen)."""
LONGEST_PAUSE_S: Final = 60.0
"""Longest pause before an optional question that failed, or an unknown engine, is tried again (chosen)."""
_REIDENTIFY_KINDS: Final = ("not-understood", "http-status", "redirect", "dialect-error")
DETAIL_EVERY_S: Final = 10.0
_GONE_KINDS: Final = frozenset({"connect-refused", "connect-timeout", "cut-off", "dns", "http-status"})
"""How a worker that is being restarted fails."""
_ANSWER_KEPT_FACTOR: Final = 3.0
_USER_AGENT: Final = "kvscope"

_log = logging.getLogger(__name__)


class _Asked:
    """A question of this worker with its prepared request, newest answer and rhythm."""

    __slots__ = ("answer", "answered_tick", "due_tick", "failures", "question", "request", "state")

    def __init__(self, question: Question, request: httpx.Request, every_s: float) -> None:
        self.question = question
        self.request = request
        self.answer: Answer | None = None
        # Ticks are of the steady clock: a wall clock set back must not silence a question.
        self.due_tick = 0.0
        self.answered_tick = 0.0
        self.failures = 0
        self.state = QuestionState(path=question.path, every_s=every_s, is_essential=question.is_essential)


class WorkerPoll:
    """The state of one worker between polls."""

    def __init__(
        self,
        target: Target,
        *,
        transport: httpx.AsyncBaseTransport,
        limits: PollLimits,
        token: str | None,
        engines: Mapping[str, Dialect],
        identify_engine: Identify,
        clock: Clock,
        steady_clock: Clock,
    ) -> None:
        self.target = target
        self._transport = transport
        self._limits = limits
        self._token = token
        self._engines = engines
        self._identify = identify_engine
        self._clock = clock
        self._steady_clock = steady_clock
        self._tick = 0.0
        self._phase = offset_ratio(target.worker_id)
        self._dialect: Dialect | None = engines.get(target.engine)
        self._asked: dict[str, _Asked] = {}
        self._failures = 0
        self._was_gone = False
        self._has_answered = False
        self._not_understood = 0
        self._retry_tick = 0.0
        self._attempts = 0
        self._detail: SourceDetail | None = None
        self._detail_tick = 0.0
        if self._dialect is not None:
            self._prepare(self._dialect)

    def take_over(self, before: "WorkerPoll") -> None:
        """Keep what `before`, the same worker with other labels, has learned."""
        self._dialect = before._dialect
        self._asked = before._asked
        self._failures = before._failures
        self._has_answered = before._has_answered
        if self._token != before._token and self._dialect is not None:
            self._prepare(self._dialect)

    def set_limits(self, limits: PollLimits) -> None:
        """Take new bounds, for example because the fleet has grown."""
        if limits == self._limits:
            return
        self._limits = limits
        for asked in self._asked.values():
            asked.state = replace(asked.state, every_s=self._every_s(asked.question))

    def _every_s(self, question: Question) -> float:
        if question.path.partition("?")[0] == "/metrics" and not question.is_essential:
            return max(question.every_s, self._limits.metrics_interval_s)
        return question.every_s

    def is_due(self) -> bool:
        """Say whether to ask in this cycle: always, unless the engine is unknown and was tried a moment ago."""
        return self._dialect is not None or self._steady_clock() >= self._retry_tick

    async def poll(self) -> WorkerResult:
        """Ask what is due and return the outcome; never raises but for cancellation."""
        started_at_s = self._clock()
        self._tick = self._steady_clock()
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self._limits.timeout_s
        try:
            result = await self._poll(started_at_s, deadline)
        except Exception as error:  # noqa: BLE001 # a defect of ours must not stop the poll of this worker for good
            _log.warning("poll of %s failed: %s: %s", self.target.worker_id, type(error).__name__, error)
            result = self._failed(Failure("poll-error", f"{type(error).__name__}: {error}"[:300]), started_at_s, 0)
        # Written into the outcome just made here: a copy of it would cost more than the whole bookkeeping.
        object.__setattr__(result.poll, "duration_s", loop.time() - began)
        return result

    async def _poll(self, started_at_s: float, deadline: float) -> WorkerResult:
        if self._dialect is None:
            failure = await self._find_engine(started_at_s, deadline)
            if failure is not None or self._dialect is None:
                return self._failed(failure or Failure("engine-unknown", "no dialect"), started_at_s, 0)
        else:
            failure, byte_count = await self._ask_due(started_at_s, deadline)
            if failure is not None:
                return self._failed(failure, started_at_s, byte_count)
        return self._understand(self._dialect, started_at_s)

    async def _find_engine(self, at_s: float, deadline: float) -> Failure | None:
        """Ask the first question of every dialect, once a path, until one dialect recognises what came."""
        answers: dict[str, Answer] = {}
        spoilt: dict[str, Failure] = {}
        for question in self._probes():
            answer = await self._ask(question, self._request(question), deadline)
            if isinstance(answer, Failure):
                if answer.kind not in ("too-large", "bad-encoding", "cut-off"):
                    return answer
                spoilt[question.path] = answer
                continue
            answers[question.path] = answer
            # Dialects are asked in order of preference, so the first that recognises its own answer is the right one.
            if answer.status == 200 and (dialect := self._identify(answers)) is not None:
                break
        else:
            dialect = self._identify(answers)
        if dialect is None:
            self._attempts += 1
            self._retry_tick = self._tick + min(LONGEST_PAUSE_S, 2.0**self._attempts)
            return unrecognised(answers, spoilt)
        self._attempts = 0
        self._not_understood = 0
        self._dialect = dialect
        self._prepare(dialect)
        for path, asked in self._asked.items():
            if path in answers:
                self._note_answer(asked, answers[path], at_s)
        # What was not among the probes is asked now, so that the first reading is whole.
        failure, _ = await self._ask_due(at_s, deadline)
        return failure

    def _probes(self) -> list[Question]:
        probes: dict[str, Question] = {}
        for dialect in self._engines.values():
            essential = [q for q in dialect.questions if q.is_essential] or list(dialect.questions[:1])
            for question in essential:
                probes.setdefault(question.path, question)
        return list(probes.values())

    def _prepare(self, dialect: Dialect) -> None:
        before = self._asked
        self._asked = {}
        for question in dialect.questions:
            self._asked[question.path] = asked = _Asked(question, self._request(question), self._every_s(question))
            if not question.is_essential and self._limits.warm_up_s:
                asked.due_tick = self._tick + self._phase * self._limits.warm_up_s
            if question.path in before:
                asked.answer = before[question.path].answer
                asked.state = before[question.path].state

    def _request(self, question: Question) -> httpx.Request:
        headers = {"Accept": question.accept, "Accept-Encoding": "identity", "User-Agent": _USER_AGENT}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = {
            "connect": self._limits.connect_timeout_s,
            "read": self._limits.timeout_s,
            "write": self._limits.timeout_s,
            "pool": None,
        }
        return httpx.Request("GET", self.target.url + question.path, headers=headers, extensions={"timeout": timeout})

    async def _ask(self, question: Question, request: httpx.Request, deadline: float) -> Answer | Failure:
        max_bytes = min(question.max_bytes, self._limits.max_body_bytes)
        return await ask(self._transport, request, max_bytes=max_bytes, deadline_at=deadline, clock=self._clock)

    async def _ask_due(self, at_s: float, deadline: float) -> tuple[Failure | None, int]:
        """Ask what is due, one after the other on one connection; return the failure of an essential question."""
        byte_count = 0
        for asked in self._asked.values():
            # What came back from the dead may be another model: what is asked rarely is asked again at once.
            is_doubtful = self._was_gone and not asked.question.is_essential
            if asked.due_tick > self._tick and not is_doubtful:
                continue
            answer = await self._ask(asked.question, asked.request, deadline)
            if isinstance(answer, Answer):
                byte_count += len(answer.body)
                self._note_answer(asked, answer, at_s)
                if asked.question.is_essential and (refused := refusal(answer, asked.question.path)) is not None:
                    return refused, byte_count
            else:
                byte_count += answer.byte_count
                self._note_failure(asked, answer, at_s)
                if asked.question.is_essential:
                    return answer, byte_count
        return None, byte_count

    def _note_answer(self, asked: _Asked, answer: Answer, at_s: float) -> None:
        asked.answer = answer
        state = asked.state
        is_ok = answer.status == 200
        asked.failures = 0 if is_ok else asked.failures + 1
        # A path the engine does not have is asked again, but not every second.
        pause_s = 0.0 if is_ok or asked.question.is_essential else min(LONGEST_PAUSE_S, 2.0**asked.failures)
        every_s = state.every_s
        if state.asked_at_s is None:
            # Else a thousand workers first met together would all be asked in the same cycle ever after.
            every_s *= 0.5 + 0.5 * self._phase
        asked.due_tick = self._tick + max(every_s, pause_s) - half_tick(every_s)
        asked.answered_tick = self._tick
        asked.state = QuestionState(
            path=state.path,
            every_s=state.every_s,
            is_essential=state.is_essential,
            status=answer.status,
            byte_count=len(answer.body),
            asked_at_s=at_s,
            answered_count=state.answered_count + is_ok,
            failed_count=state.failed_count + (not is_ok),
        )

    def _note_failure(self, asked: _Asked, failure: Failure, at_s: float) -> None:
        state = asked.state
        asked.failures += 1
        if not asked.question.is_essential:
            asked.due_tick = self._tick + max(state.every_s, min(LONGEST_PAUSE_S, 2.0**asked.failures))
        if self._tick - asked.answered_tick > _ANSWER_KEPT_FACTOR * state.every_s:
            asked.answer = None
        asked.state = replace(
            state, status=None, error_kind=failure.kind, asked_at_s=at_s, failed_count=state.failed_count + 1
        )

    def _understand(self, dialect: Dialect, started_at_s: float) -> WorkerResult:
        answers = {path: asked.answer for path, asked in self._asked.items() if asked.answer is not None}
        byte_count = sum(
            len(asked.answer.body)
            for asked in self._asked.values()
            if asked.answer is not None and asked.answer.received_at_s >= started_at_s
        )
        try:
            reading = dialect.understand(answers)
        except Exception as error:  # noqa: BLE001 # contract: dialects never raise; if one does, only its worker suffers
            _log.warning("dialect %s failed on %s: %s", dialect.name, self.target.worker_id, type(error).__name__)
            return self._failed(
                Failure("dialect-error", f"{type(error).__name__}: {error}"[:300]), started_at_s, byte_count
            )
        if isinstance(reading, NotUnderstood):
            kind = "unauthorised" if reading.is_unauthorised else "not-understood"
            return self._failed(Failure(kind, f"{reading.code}: {reading.text}"), started_at_s, byte_count)
        was_failing = self._failures > 0
        self._failures = 0
        self._was_gone = False
        self._not_understood = 0
        self._has_answered = True
        received_at_s = max((a.received_at_s for path, a in answers.items() if self._is_essential(path)), default=None)
        if received_at_s is None:
            received_at_s = max((answer.received_at_s for answer in answers.values()), default=started_at_s)
        pools = tuple(self._placed(pool, reading, received_at_s) for pool in reading.pools)
        state = SourceState.NOTHING_YET if reading.is_nothing_yet else SourceState.FRESH
        essential = next((asked for asked in self._asked.values() if asked.question.is_essential), None)
        return WorkerResult(
            poll=PollOutcome(
                worker_id=self.target.worker_id,
                started_at_s=started_at_s,
                duration_s=0.0,
                state=state,
                http_status=essential.answer.status if essential is not None and essential.answer is not None else None,
                byte_count=byte_count,
                detail="nothing published yet" if reading.is_nothing_yet else "",
                pool_count=len(pools),
                rejected_count=reading.rejected_count,
                ignored_count=reading.ignored_count,
            ),
            readings=pools,
            findings=reading.findings,
            router_workers=reading.router_workers,
            detail=self._changed_detail(reading, was_failing=was_failing),
        )

    def _is_essential(self, path: str) -> bool:
        return self._asked[path].question.is_essential

    def _placed(self, pool: PoolReading, reading: WorkerReading, received_at_s: float) -> PoolReading:
        role = pool.role
        if self.target.is_role_set or role is Role.UNKNOWN:
            role = self.target.role
        if pool.worker_id:
            # A dialect that gives the same reading twice keeps it as it was placed first.
            pool = replace(pool)
        # A reading fresh from a dialect is not seen by anybody yet; a copy of its 90 fields costs a tenth of a poll.
        place = object.__setattr__
        place(pool, "worker_id", self.target.worker_id)
        place(pool, "received_at_s", received_at_s)
        place(pool, "role", role)
        if not pool.engine:
            place(pool, "engine", reading.engine)
        if not pool.version:
            place(pool, "version", reading.version)
        if not pool.model:
            place(pool, "model", self.target.labels.get("model"))
        return pool

    def _changed_detail(self, reading: WorkerReading, *, was_failing: bool) -> SourceDetail | None:
        before = self._detail
        if (
            before is not None
            and not was_failing
            and self._tick - self._detail_tick < DETAIL_EVERY_S
            and before.engine == reading.engine
            and before.version == reading.version
            and before.expected_rank_count == reading.expected_rank_count
            and before.is_nothing_yet == reading.is_nothing_yet
            and before.facts == reading.facts
            and before.findings == reading.findings
        ):
            return None
        detail = SourceDetail(
            worker_id=self.target.worker_id,
            engine=reading.engine,
            version=reading.version,
            questions=tuple(asked.state for asked in self._asked.values()),
            facts=reading.facts,
            findings=reading.findings,
            expected_rank_count=reading.expected_rank_count,
            is_nothing_yet=reading.is_nothing_yet,
        )
        self._detail = detail
        self._detail_tick = self._tick
        return detail

    def _failed(self, failure: Failure, started_at_s: float, byte_count: int) -> WorkerResult:
        self._failures += 1
        self._was_gone = self._was_gone or failure.kind in _GONE_KINDS
        if (
            failure.kind in ("not-understood", "http-status", "redirect", "dialect-error")
            and self.target.engine == "auto"
        ):
            self._not_understood += 1
            if self._not_understood >= REIDENTIFY_AFTER and self._dialect is not None:
                # Another engine may have taken the address; what was learned of the old one goes.
                self._dialect = None
                self._asked = {}
                self._not_understood = 0
        if failure.kind == "unauthorised":
            state = SourceState.UNAUTHORISED
        elif failure.kind in REACHED_KINDS:
            # One bad answer of a worker that was understood a moment ago is a hiccup, not a change of what it speaks.
            is_hiccup = self._has_answered and self._failures < self._limits.down_after_failures
            state = SourceState.LATE if is_hiccup else SourceState.NOT_UNDERSTOOD
        else:
            state = SourceState.DOWN if self._failures >= self._limits.down_after_failures else SourceState.LATE
        status = next((asked.state.status for asked in self._asked.values() if asked.question.is_essential), None)
        return WorkerResult(
            poll=PollOutcome(
                worker_id=self.target.worker_id,
                started_at_s=started_at_s,
                duration_s=0.0,
                state=state,
                error_kind=failure.kind,
                http_status=status,
                byte_count=byte_count or failure.byte_count,
                detail=failure.detail,
            ),
            detail=self._failed_detail(),
        )

    def _failed_detail(self) -> SourceDetail | None:
        """Return how the questions stand at the first failure and then every few seconds; what is known stays."""
        if self._failures > 1 and self._tick - self._detail_tick < DETAIL_EVERY_S:
            return None
        self._detail_tick = self._tick
        before = self._detail or SourceDetail(worker_id=self.target.worker_id, engine="")
        name = self._dialect.name if self._dialect is not None else ""
        self._detail = replace(
            before,
            engine=before.engine or name,
            questions=tuple(asked.state for asked in self._asked.values()),
        )
        return self._detail

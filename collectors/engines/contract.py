"""
What a dialect is: it names the paths to ask, and turns the answers into a `WorkerReading`. No I/O, no clock.

A dialect is one file and one entry in `ENGINES` (`collectors/engines/__init__.py`). It parses by the shape of a
payload, never by a version string, never raises on a payload, and never lets a raw number through that is
negative, not finite or absurd: such a field becomes None and its name goes into `PoolReading.anomalies`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scoring.model import WorkerReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One path to ask a worker.

    Attributes:
        path: Path with query, for example `/v1/loads`.
        accept: Value of the Accept header (`text/plain` for expositions: it keeps the classic names).
        every_s: Least seconds between two askings; 0 means every cycle.
        is_essential: Without an answer to this one the worker is not understood.
        max_bytes: Body cap of this answer.
    """

    path: str
    accept: str = "application/json"
    every_s: float = 0.0
    is_essential: bool = False
    max_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What came back for one Question.

    Attributes:
        status: HTTP status.
        content_type: Lower-case media type without parameters, "" when absent.
        body: Decoded bytes (content encoding removed), at most max_bytes.
        received_at_s: Our clock when the body was complete.
    """

    status: int
    content_type: str
    body: bytes
    received_at_s: float


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """
    The answers are not this dialect's, or carry nothing usable.

    Attributes:
        code: Stable kebab-case word.
        text: A sentence that says what was expected, what came, and what to do.
        is_unauthorised: The worker refused our credentials (401 or 403).
    """

    code: str
    text: str
    is_unauthorised: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """
    What a dialect may keep of rare answers (model info, server info) between cycles, per worker.

    The poller passes the newest answer of every path, however old, so most dialects need nothing here.
    """

    answers: Mapping[str, Answer] = field(default_factory=dict)


class Dialect(Protocol):
    """One engine's way of speaking."""

    @property
    def name(self) -> str:
        """Stable key in ENGINES and in stored rows."""
        ...

    @property
    def questions(self) -> tuple[Question, ...]:
        """The paths to ask, the essential one first."""
        ...

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether these answers (path -> answer) look like this engine."""
        ...

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Turn the newest answer of each path into a reading; never raise on a payload."""
        ...

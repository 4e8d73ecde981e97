"""Fixtures of the SGLang tests: bodies turned into answers, answers into readings, readings into histories."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.engines import identify
from collectors.engines.contract import Answer, NotUnderstood
from commands.check import history_of
from scoring.model import PoolHistory, PoolReading, WorkerReading

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads" / "sglang"


@pytest.fixture
def payload() -> Callable[[str], bytes]:
    """Return the reader of a file under tests/payloads/sglang."""
    return lambda name: (PAYLOADS / name).read_bytes()


@pytest.fixture
def answer() -> Callable[..., Answer]:
    """Return the maker of an answer: body, status, content type, when."""

    def make(body: bytes | str, status: int = 200, content_type: str = "", at_s: float = 1000.0) -> Answer:
        raw = body.encode() if isinstance(body, str) else body
        return Answer(status=status, content_type=content_type, body=raw, received_at_s=at_s)

    return make


@pytest.fixture
def understand(answer: Callable[..., Answer]) -> Callable[[Mapping[str, bytes | str | Answer]], WorkerReading]:
    """Return the way from path -> body to a reading, by whichever dialect recognises it; fails when none does."""

    def read(bodies: Mapping[str, bytes | str | Answer]) -> WorkerReading:
        answers = {path: body if isinstance(body, Answer) else answer(body) for path, body in bodies.items()}
        dialect = identify(answers)
        assert dialect is not None, f"no dialect recognises {list(bodies)}"
        reading = dialect.understand(answers)
        assert not isinstance(reading, NotUnderstood), reading
        return reading

    return read


@pytest.fixture
def past() -> Callable[..., PoolHistory]:
    """Return the maker of a history: readings of one pool with the moments they were received."""

    def make(readings: list[PoolReading], at_s: list[float], worker_id: str = "w") -> PoolHistory:
        placed = [replace(r, worker_id=worker_id, received_at_s=t) for r, t in zip(readings, at_s, strict=True)]
        return history_of(placed)

    return make

"""
Demo traffic: who asks for what, and when. Seeded, and drawn in one fixed order, so that the same seed and the same
scenario make the same requests whatever the machine is doing.

Chats are sessions: each turn's prompt is a shared system prompt, the whole conversation so far, and something new;
so prefixes are shared the way they are in life. Batch work and long documents share little.

Read next: `scenarios` (what changes) and `routing` (where a request goes).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

HASH_BLOCK_TOKENS: Final = 64
"""One shared block; equal to the demo pools' block size, so that what is shared can be found."""
SYSTEM_PROMPTS: Final = 4
LONGEST_SESSION_TOKENS: Final = 24_000
KEPT_SESSIONS: Final = 160
"""Chosen: conversations alive at once; together they overflow a prefill pool, so that eviction is at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """
    One kind of request. Lengths are log-normal about their median, and cut.

    Attributes:
        name: SLO class: interactive, batch or long_context.
        prompt_tokens: Median of the new part of the prompt.
        output_tokens: Median of the answer.
        spread: Standard deviation of the logarithm of both.
        system_tokens: Length of the shared system prompt.
        continue_ratio: How often it is the next turn of a conversation.
        longest_tokens: Cut of the new part of the prompt.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    spread: float = 0.6
    system_tokens: int = 0
    continue_ratio: float = 0.0
    longest_tokens: int = 16_000


INTERACTIVE: Final = TrafficClass(
    name="interactive", prompt_tokens=500, output_tokens=260, spread=0.7, system_tokens=1024, continue_ratio=0.75
)
BATCH: Final = TrafficClass(name="batch", prompt_tokens=3200, output_tokens=600, spread=0.5, system_tokens=512)
LONG_CONTEXT: Final = TrafficClass(
    name="long_context", prompt_tokens=14_000, output_tokens=450, spread=0.4, longest_tokens=28_000
)
REASONING: Final = TrafficClass(name="interactive", prompt_tokens=900, output_tokens=2600, spread=0.25)
"""Long answers to short questions: what drives decode pools full, since growth is not in the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficMix:
    """
    Arrivals at one moment of a scenario.

    Attributes:
        rate_per_s: Mean arrivals of the whole fleet.
        shares: Class -> share of the arrivals.
        burst_factor: In a burst the rate is this many times as high; 1 is plain Poisson.
        burst_share: Share of the time spent in bursts.
    """

    rate_per_s: float
    shares: Mapping[TrafficClass, float]
    burst_factor: float = 1.0
    burst_share: float = 0.2


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """
    One request.

    Attributes:
        hash_ids: One id a whole block of the prompt; equal ids are equal prefixes.
        session: Conversation it belongs to, or -1.
    """

    arrival_s: float
    class_name: str
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    session: int = -1


@dataclass(slots=True)
class _Session:
    number: int
    tokens: int
    hash_ids: list[int] = field(default_factory=list)


BURST_MEAN_S: Final = 4.0
"""Chosen: mean length of one burst."""


class Traffic:
    """The source of requests. `until` must be called with rising times."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng([seed, 1])
        self._now_s = 0.0
        self._gap = self._random.exponential()
        self._is_burst = False
        self._switch_s = 0.0
        self._next_id = SYSTEM_PROMPTS * 64
        self._sessions: list[_Session] = []
        self._session_count = 0

    def until(self, at_s: float, mix: TrafficMix) -> list[DemoRequest]:
        """Return the arrivals after the last call up to `at_s`, ascending, drawn from `mix`."""
        arrivals: list[DemoRequest] = []
        while self._now_s < at_s:
            end_s = at_s
            if mix.burst_factor > 1.0:
                if self._now_s >= self._switch_s:
                    self._switch(mix)
                end_s = min(end_s, self._switch_s)
            rate = self._rate(mix)
            reach_s = self._now_s + self._gap / rate if rate > 0.0 else math.inf
            if reach_s > end_s:
                self._gap -= (end_s - self._now_s) * rate
                self._now_s = end_s
                continue
            self._now_s = reach_s
            self._gap = self._random.exponential()
            arrivals.append(self.draw(reach_s, mix))
        return arrivals

    def _switch(self, mix: TrafficMix) -> None:
        self._is_burst = not self._is_burst
        calm_mean_s = BURST_MEAN_S * (1.0 - mix.burst_share) / mix.burst_share
        self._switch_s = self._now_s + self._random.exponential(BURST_MEAN_S if self._is_burst else calm_mean_s)

    def _rate(self, mix: TrafficMix) -> float:
        if mix.burst_factor <= 1.0:
            return mix.rate_per_s
        mean = 1.0 + mix.burst_share * (mix.burst_factor - 1.0)
        return mix.rate_per_s * (mix.burst_factor if self._is_burst else 1.0) / mean

    def draw(self, arrival_s: float, mix: TrafficMix) -> DemoRequest:
        """Return one request of the mix."""
        kinds = list(mix.shares)
        shares = np.array([mix.shares[kind] for kind in kinds])
        kind = kinds[int(self._random.choice(len(kinds), p=shares / shares.sum()))]
        return self.draw_class(arrival_s, kind)

    def draw_class(self, arrival_s: float, kind: TrafficClass) -> DemoRequest:
        """Return one request of a class."""
        new_tokens = self._length(kind.prompt_tokens, kind.spread, 16, kind.longest_tokens)
        output_tokens = self._length(kind.output_tokens, kind.spread, 8, 8_000)
        if kind.continue_ratio <= 0.0:
            system = int(self._random.integers(SYSTEM_PROMPTS))
            tokens = kind.system_tokens + new_tokens
            ids = self._system(system, kind.system_tokens)
            return DemoRequest(arrival_s, kind.name, tokens, output_tokens, tuple(self._grown(ids, tokens)))
        session = self._session(kind)
        session.tokens += new_tokens
        session.hash_ids = self._grown(session.hash_ids, session.tokens)
        request = DemoRequest(
            arrival_s, kind.name, session.tokens, output_tokens, tuple(session.hash_ids), session.number
        )
        # The answer is part of the next turn's prompt.
        session.tokens += output_tokens
        return request

    def exact(self, arrival_s: float, class_name: str, prompt_tokens: int, output_tokens: int) -> DemoRequest:
        """Return a request of given lengths that shares nothing."""
        ids = self._grown([], prompt_tokens)
        return DemoRequest(arrival_s, class_name, prompt_tokens, output_tokens, tuple(ids))

    def _length(self, median: int, spread: float, low: int, high: int) -> int:
        return int(min(max(median * math.exp(spread * self._random.standard_normal()), low), high))

    def _session(self, kind: TrafficClass) -> _Session:
        goes_on = self._random.random() < kind.continue_ratio
        if goes_on and self._sessions:
            index = int(self._random.integers(len(self._sessions)))
            if self._sessions[index].tokens < LONGEST_SESSION_TOKENS:
                return self._sessions[index]
            del self._sessions[index]
        system = int(self._random.integers(SYSTEM_PROMPTS))
        fresh = _Session(self._session_count, kind.system_tokens, self._system(system, kind.system_tokens))
        self._session_count += 1
        self._sessions.append(fresh)
        if len(self._sessions) > KEPT_SESSIONS:
            del self._sessions[0]
        return fresh

    @staticmethod
    def _system(number: int, tokens: int) -> list[int]:
        return [number * 64 + block for block in range(min(tokens // HASH_BLOCK_TOKENS, 64))]

    def _grown(self, ids: list[int], tokens: int) -> list[int]:
        missing = tokens // HASH_BLOCK_TOKENS - len(ids)
        fresh = range(self._next_id, self._next_id + max(missing, 0))
        self._next_id += max(missing, 0)
        return [*ids, *fresh]

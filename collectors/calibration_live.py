"""
Predictions made while the fleet runs, each settled when its actual is seen: time to first token, output length, time
to exhaustion. Step, prompt and hand-over times are predicted row by row (`scoring.calibration_error`).

What telemetry cannot tell apart (classes, single requests) is predicted as the mean of a stretch of time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scoring.calibration_error import ErrorSample, Quantity
from scoring.calibration_windows import TrafficWindow
from scoring.model import FleetSnapshot, PoolSnapshot, Role
from scoring.risk import expected_exhaustion_s
from scoring.service import ServiceProfile, prefill_s

TTFT_EVERY_S: Final = 10.0
"""Stretch over which mean TTFT is predicted and settled (chosen: some tens of requests in a small fleet)."""
OUTPUT_EVERY_S: Final = 60.0
LEAST_REQUESTS: Final = 5.0
"""A stretch with fewer requests is not settled: the mean of a handful is luck (chosen)."""
EXHAUSTION_HORIZON_S: Final = 120.0
NO_ROOM_RATIO: Final = 0.01
"""Available less reserved below this share of usable counts as exhausted (chosen)."""


@dataclass(slots=True)
class _Mean:
    """A mean that is added up."""

    total: float = 0.0
    count: float = 0.0

    def add(self, total: float | None, count: float | None) -> None:
        if total is not None and count is not None:
            self.total += total
            self.count += count

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count > 0 else None


@dataclass(slots=True)
class _Open:
    """A prediction of exhaustion that is not settled."""

    at_s: float
    predicted_s: float


@dataclass(slots=True)
class LivePredictions:
    """
    The predictions of one fleet.

    Attributes:
        exhausted_count: Exhaustions that had been predicted and came.
        averted_count: Predicted ones that did not come within three times the predicted time.
        missed_count: Exhaustions that nobody had predicted.
    """

    exhausted_count: int = 0
    averted_count: int = 0
    missed_count: int = 0
    _ttft_began_at_s: float | None = None
    _ttft_predicted_s: float | None = None
    _ttft_seen: _Mean = field(default_factory=_Mean)
    _waits: _Mean = field(default_factory=_Mean)
    _held_back: _Mean = field(default_factory=_Mean)
    _prompt: _Mean = field(default_factory=_Mean)
    _hits: _Mean = field(default_factory=_Mean)
    _output_began_at_s: float | None = None
    _output_seen: _Mean = field(default_factory=_Mean)
    _output_before: float | None = None
    _open: dict[str, _Open] = field(default_factory=dict)
    _full: set[str] = field(default_factory=set)

    def take(
        self,
        fleet: FleetSnapshot,
        traffic: Mapping[str, TrafficWindow],
        profiles: Mapping[str, ServiceProfile],
        transfer_s: float | None,
    ) -> list[ErrorSample]:
        """
        Take one cycle and return the predictions that came due.

        Args:
            fleet: The fleet now.
            traffic: Pool -> what it did since its last reading.
            profiles: Worker -> coefficients in use.
            transfer_s: Mean hand-over lately, where prefill and decode are apart.
        """
        for window in traffic.values():
            self._ttft_seen.add(window.ttft_s, window.ttft_count)
            self._output_seen.add(window.output_tokens, window.finished_count)
            self._hits.add(window.hit_tokens, window.query_tokens)
        prefills = [pool for pool in fleet.pools if pool.role in (Role.PREFILL, Role.UNIFIED) and pool.state.is_scored]
        for pool in prefills:
            window_ = traffic.get(pool.pool_id)
            if window_ is not None and window_.query_tokens:
                count = window_.finished_count if pool.role is Role.PREFILL else window_.ttft_count
                self._prompt.add(window_.query_tokens, count)
            rate = pool.rates.prefill_tokens_per_s.value
            waiting = pool.waiting_uncached_tokens.value
            if rate and waiting is not None:
                self._waits.add(waiting / rate, 1.0)
        self._held_back.add(sum(pool.queue_bootstrap_count.value or 0.0 for pool in prefills), 1.0)
        settled = self._settle_ttft(fleet, prefills, profiles, transfer_s)
        settled += self._settle_output(fleet.at_s)
        return settled + self._settle_exhaustion(fleet)

    def _settle_ttft(
        self,
        fleet: FleetSnapshot,
        prefills: Sequence[PoolSnapshot],
        profiles: Mapping[str, ServiceProfile],
        transfer_s: float | None,
    ) -> list[ErrorSample]:
        if self._ttft_began_at_s is not None and 0.0 <= fleet.at_s - self._ttft_began_at_s < TTFT_EVERY_S:
            return []
        settled = []
        actual = self._ttft_seen.value
        if self._ttft_predicted_s and actual and self._ttft_seen.count >= LEAST_REQUESTS:
            predicted = self._ttft_predicted_s
            settled.append(
                ErrorSample(
                    at_s=fleet.at_s, quantity=Quantity.TTFT, predicted=predicted, actual=actual, subject="fleet"
                )
            )
        elapsed_s = None if self._ttft_began_at_s is None else fleet.at_s - self._ttft_began_at_s
        predicted_s = self._predict_ttft(fleet, prefills, profiles, transfer_s)
        self._ttft_predicted_s = None if predicted_s is None else predicted_s + self._handshake_s(elapsed_s)
        self._ttft_began_at_s = fleet.at_s
        self._ttft_seen, self._waits, self._held_back = _Mean(), _Mean(), _Mean()
        return settled

    def _handshake_s(self, elapsed_s: float | None) -> float:
        """
        Return the wait for decode room by Little's law: prompts held back over first tokens a second lately.

        Where decode is full that is the larger part of TTFT, and no speed of a prefill worker shows it.
        """
        held, done = self._held_back.value or 0.0, self._ttft_seen.count
        return held * elapsed_s / max(done, 1.0) if elapsed_s and elapsed_s > 0 else 0.0

    def _predict_ttft(
        self,
        fleet: FleetSnapshot,
        prefills: Sequence[PoolSnapshot],
        profiles: Mapping[str, ServiceProfile],
        transfer_s: float | None,
    ) -> float | None:
        """Return wait + own prompt + hand-over + first step of a mean request; None where a part is unknown."""
        prompt, hit_ratio, wait = self._prompt.value, self._hits.value, self._waits.value
        known = [profiles[pool.worker_id] for pool in prefills if pool.worker_id in profiles]
        if prompt is None or wait is None or not known:
            return None
        hit = prompt * min(hit_ratio or 0.0, 1.0)
        compute = [
            prefill_s(prompt - hit, hit, each.prefill_base_s, each.prefill_per_token_s, each.prefill_per_token2_s)
            for each in known
        ]
        total = wait + sum(compute) / len(compute)
        decodes = [pool for pool in fleet.pools if pool.role is Role.DECODE and pool.state.is_scored]
        if decodes:
            if transfer_s is None:
                return None
            steps = [pool.rates.step_time_s.value for pool in decodes]
            told = [step for step in steps if step is not None]
            total += transfer_s + (sum(told) / len(told) if told else 0.0)
        return total

    def _settle_output(self, at_s: float) -> list[ErrorSample]:
        if self._output_began_at_s is None:
            self._output_began_at_s = at_s
        if 0.0 <= at_s - self._output_began_at_s < OUTPUT_EVERY_S:
            return []
        settled = []
        actual = self._output_seen.value if self._output_seen.count >= LEAST_REQUESTS else None
        if self._output_before and actual:
            settled.append(
                ErrorSample(
                    at_s=at_s,
                    quantity=Quantity.OUTPUT,
                    predicted=self._output_before,
                    actual=actual,
                    subject="fleet",
                )
            )
        if actual is not None:
            before = self._output_before
            self._output_before = actual if before is None else 0.5 * (before + actual)
        self._output_began_at_s, self._output_seen = at_s, _Mean()
        return settled

    def _settle_exhaustion(self, fleet: FleetSnapshot) -> list[ErrorSample]:
        settled = []
        for pool in fleet.pools:
            usable = pool.composition.usable_tokens.value
            available = pool.composition.available_tokens.value
            if pool.role is Role.PREFILL or not pool.state.is_scored or not usable or available is None:
                continue
            room = available - (pool.composition.reserved_tokens.value or 0.0)
            name = pool.pool_id
            if room <= NO_ROOM_RATIO * usable:
                settled += self._exhausted(fleet.at_s, name)
                continue
            self._full.discard(name)
            held = self._open.get(name)
            if held is not None:
                if fleet.at_s - held.at_s > 3.0 * max(held.predicted_s, 1.0):
                    self.averted_count += 1
                    del self._open[name]
                continue
            net = pool.rates.net_tokens_per_s.value or 0.0
            expected_s = expected_exhaustion_s(room - NO_ROOM_RATIO * usable, -net)
            if expected_s is not None and 0 < expected_s <= EXHAUSTION_HORIZON_S:
                self._open[name] = _Open(fleet.at_s, expected_s)
        return settled

    def _exhausted(self, at_s: float, name: str) -> list[ErrorSample]:
        if name in self._full:
            return []
        self._full.add(name)
        held = self._open.pop(name, None)
        if held is None:
            self.missed_count += 1
            return []
        self.exhausted_count += 1
        return [
            ErrorSample(
                at_s=at_s,
                quantity=Quantity.EXHAUSTION,
                predicted=held.predicted_s,
                actual=max(at_s - held.at_s, 0.1),
                subject=name,
            )
        ]

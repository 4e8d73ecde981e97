"""
When a rank publishes and what: the simulation's view of a pool turned into the engine's own figures.

The real scheduler publishes with every prompt batch, every 15 decode steps, every idle pass and every 50 ms of a
stall; its rate gauges and the length of its batch move every 40 decode steps, and the latter stays when the batch has
gone. Virtual seconds become wall seconds here: a fleet at double speed is one whose every step takes half as long.

Read next: `state` (what is filled) and `fleet` (who calls).
"""

from dataclasses import dataclass, field
from typing import Final

from demo.state import RankState
from demo.worker import SNAPSHOT_STEPS

LOG_STEPS: Final = 40
"""Decode steps between two updates of the rate gauges: the engine's `decode_log_interval`."""


@dataclass(slots=True)
class Publisher:
    """
    The publishing side of one rank.

    Attributes:
        newest: The newest figures, published or not.
        published: What readers see.
    """

    newest: RankState = field(default_factory=RankState)
    published: RankState = field(default_factory=RankState)
    _logged: RankState = field(default_factory=RankState)

    def look(self, now: RankState) -> bool:
        """
        Take the figures of this moment; return whether they were published.

        What moves with the engine's logs is filled here: `generated_per_s`, `recent_retracted_count`,
        `decode_sum_tokens`, `hit_ratio`.
        """
        before, self.newest = self.newest, now
        self._fill_rates(before, now)
        has_decoded = now.decode_steps_total > before.decode_steps_total
        has_computed = now.prefill_passes_total > before.prefill_passes_total
        is_due = now.decode_steps_total - self.published.decode_steps_total >= SNAPSHOT_STEPS
        if has_decoded and not has_computed and not is_due and self.published.at_s > 0.0:
            return False
        self.published = now
        return True

    def _fill_rates(self, before: RankState, now: RankState) -> None:
        logged = self._logged
        steps = now.decode_steps_total - logged.decode_steps_total
        is_idle = now.running_count == 0
        if steps < LOG_STEPS:
            now.decode_sum_tokens = before.decode_sum_tokens
        if steps >= LOG_STEPS or (is_idle and steps > 0):
            seconds = now.at_s - logged.at_s
            generated = now.generated_tokens_total - logged.generated_tokens_total
            now.generated_per_s = 0.0 if is_idle else generated / seconds if seconds > 0.0 else 0.0
            now.recent_retracted_count = now.retracted_total - logged.retracted_total
            self._logged = now
        else:
            now.generated_per_s = 0.0 if is_idle else before.generated_per_s
            now.recent_retracted_count = before.recent_retracted_count
        computed = now.prefill_tokens_total - before.prefill_tokens_total
        cached = now.prefill_cached_tokens_total - before.prefill_cached_tokens_total
        now.hit_ratio = cached / (computed + cached) if computed + cached > 0 else before.hit_ratio

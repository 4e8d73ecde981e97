"""What the fleet file says about judging and about room kept back, in the types of `scoring`."""

from collectors.settings import Settings
from scoring.model import Link
from scoring.reserve import ReserveSettings
from scoring.snapshot import JudgeSettings


def links_of(settings: Settings) -> tuple[Link, ...]:
    """Return the paths of KV hand-over of the fleet file."""
    return tuple(
        Link(
            source=link.source,
            target=link.target,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s,
        )
        for link in settings.links
    )


def judge_settings(settings: Settings) -> JudgeSettings:
    """Return the thresholds of the fleet file as the judge takes them."""
    return JudgeSettings(
        late_after_s=settings.freshness.late_after_s,
        stale_after_s=settings.freshness.stale_after_s,
        frozen_after_polls=settings.freshness.frozen_after_polls,
        rate_window_s=settings.view.rate_window_s,
        evidence_window_s=2 * settings.view.rate_window_s,
    )


def reserve_of(settings: Settings) -> ReserveSettings:
    """
    Return the knobs of the safety reserve of the fleet file; its growth quantile is the promise that calibration keeps.

    A promise below one half is one half: less than every other time is none.
    """
    given = settings.reserve
    return ReserveSettings(
        growth_quantile_ratio=min(max(given.growth_quantile_ratio, 0.5), 0.999999),
        telemetry_delay_s=given.telemetry_delay_s,
        decision_delay_s=given.decision_delay_s,
        failure_count=given.failure_count,
        error_buffer_ratio=given.error_buffer_ratio,
    )

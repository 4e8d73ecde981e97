"""What the fleet file says about judging, in the types of `scoring`."""

from collectors.settings import Settings
from scoring.model import Link
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

"""What the fleet file says about judging, in the types of `scoring`."""

from typing import Any

from collectors.settings import Settings
from scoring.model import Link


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


def judge_settings(settings: Settings) -> Any:
    """Return the thresholds of the fleet file as the judge takes them."""
    try:
        from scoring.snapshot import JudgeSettings
    except ImportError:
        return None
    return JudgeSettings()

"""Routers' own metrics: which workers they see, with what in flight, and how many requests failed."""

from collections.abc import Sequence
from typing import Any, Final

from collectors.exposition import Sample, bare_name

_ACTIVE: Final = (
    ("smg", "worker_requests_active"),
    ("sgl_router", "running_requests"),
    ("sgl_router", "worker_inflight_requests"),
    ("sgl_router", "worker_load"),
)
"""(prefix, name) of requests in flight by worker; sglang-router 0.2.4, 0.3.x and smg, and the experimental one."""
_TOTALS: Final = (
    ("smg", "router_requests_total", "status"),
    ("smg", "http_responses_total", "status_code"),
    ("sgl_router", "worker_requests_total", "outcome"),
)
"""(prefix, name, label that tells success), the most telling first."""
_ADDRESS_LABELS: Final = ("worker", "worker_url", "worker_addr", "url")
_GOOD: Final = frozenset({"success", "ok", "completed"})

_NAMES: Final = (
    *_ACTIVE,
    ("smg", "worker_health"),
    ("smg", "worker_pool_size"),
    ("sgl_router", "active_load"),
    ("sgl_router", "active_workers"),
    *((prefix, name) for prefix, name, _ in _TOTALS),
)
METRIC_WANTED: Final = frozenset(f"{prefix}{sign}{name}" for prefix, name in _NAMES for sign in "_:")


class RouterSeries:
    """Samples of a router's exposition, by what they say."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            for prefix in ("smg", "sgl_router"):
                name = bare_name(sample.name, prefix)
                if name != sample.name:
                    self._samples.setdefault((prefix, name), []).append(sample)

    @property
    def is_router(self) -> bool:
        """Say whether any series here is a router's."""
        return bool(self._samples)

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return address -> words of RouterWorker that the metrics carry."""
        found: dict[str, dict[str, Any]] = {}
        for key in _ACTIVE:
            for sample in self._samples.get(key, ()):
                address = _address(sample)
                # Removed workers are set to a sentinel below 0, not deleted.
                if address is not None and sample.value is not None and sample.value >= 0:
                    found.setdefault(address, {}).setdefault("load_count", sample.value)
        for sample in self._samples.get(("smg", "worker_health"), ()):
            address = _address(sample)
            if address is not None and sample.value in (0.0, 1.0):
                found.setdefault(address, {})["is_healthy"] = sample.value == 1.0
        return found

    def facts(self) -> dict[str, str]:
        """Return how many requests the router counted and how many of them failed, where it tells them apart."""
        for prefix, name, label in _TOTALS:
            rows = [s for s in self._samples.get((prefix, name), ()) if label in s.labels and s.value is not None]
            if not rows:
                continue
            total = sum(s.value for s in rows if s.value is not None and s.value >= 0)
            failed = sum(
                s.value for s in rows if s.value is not None and s.value >= 0 and not _is_good(s.labels[label])
            )
            return {"requests_total": f"{total:.0f}", "requests_failed_total": f"{failed:.0f}"}
        return {}


def _address(sample: Sample) -> str | None:
    return next((sample.labels[label] for label in _ADDRESS_LABELS if sample.labels.get(label)), None)


def _is_good(word: str) -> bool:
    return word.lower() in _GOOD or (len(word) == 3 and word[0] in "123" and word.isdigit())

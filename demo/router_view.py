"""
The demo's router as an operator meets it: smg 1.13's `/workers` and `/get_loads`, over the demo router's own counts.

It says what smg says and no more: no disaggregation section, no total or arrived tokens, no row times; a request
total of 0; an average over prefill and decode together.
Read next: `routing` (whose counts these are).
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from aiohttp import web

from demo import wire
from demo.hosting import application, json_response
from demo.worker import Worker

VERSION: Final = "smg-1.13.0"
WORKER_TYPES: Final = {"prefill": "prefill", "decode": "decode", "null": "regular"}
TAKEN_FIELDS: Final = (
    *("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_total_reqs"),
    *("num_used_tokens", "max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate", "utilization"),
    *("max_running_requests", "memory", "queues"),
)


def _taken(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what smg keeps of a worker's row."""
    kept = {name: row[name] for name in TAKEN_FIELDS if name in row}
    kept["num_total_reqs"] = 0
    if "queues" in kept:
        kept["queues"] = {name: value for name, value in kept["queues"].items() if name != "prealloc_ready"}
    return {name: kept[name] for name in TAKEN_FIELDS if name in kept}


class RouterView:
    """
    The answers of the demo's router.

    Args:
        workers: Those it routes to.
        is_up: Whether a worker answers its health checks.
        in_flight: Worker -> requests it believes under way.
        clock: Wall clock.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        is_up: Callable[[str], bool],
        in_flight: Mapping[str, int],
        clock: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._is_up = is_up
        self._in_flight = in_flight
        self._clock = clock

    def listing(self) -> dict[str, Any]:
        """Return `/workers`."""
        entries = [self._entry(worker) for worker in self._workers]
        count = {kind: sum(entry["worker_type"] == kind for entry in entries) for kind in WORKER_TYPES.values()}
        return {
            "workers": entries,
            "total": len(entries),
            "stats": {f"{kind}_count": count[kind] for kind in ("prefill", "decode", "regular")},
        }

    def _entry(self, worker: Worker) -> dict[str, Any]:
        plan, is_up = worker.plan, self._is_up(worker.name)
        entry: dict[str, Any] = {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, worker.site.url)),
            "model_id": plan.model,
            "url": worker.site.url,
            "worker_type": WORKER_TYPES[plan.mode],
            "connection_mode": "http",
            "runtime_type": "sglang",
            "labels": {"version": wire.VERSION, "dp_size": str(len(plan.ranks)), "disaggregation_mode": plan.mode},
            "priority": 50,
            "cost": 1.0,
            "is_healthy": is_up,
            "status": "ready" if is_up else "not_ready",
            "load": self._in_flight[worker.name],
        }
        if plan.mode == "prefill":
            entry["bootstrap_port"] = plan.bootstrap_port
        return entry

    def loads(self) -> dict[str, Any]:
        """Return `/get_loads`: a row a worker and rank, workers that do not answer left out."""
        rows = [
            {"worker": worker.site.url, "worker_type": WORKER_TYPES[worker.plan.mode], **_taken(row)}
            for worker in self._workers
            if self._is_up(worker.name)
            for row in worker.rows()
        ]
        means = {
            name: round(fmean(row[field] for row in rows), 4) if rows else 0.0
            for name, field in (
                ("avg_token_usage", "token_usage"),
                ("avg_throughput", "gen_throughput"),
                ("avg_utilization", "utilization"),
            )
        }
        sums = {
            "total_running_reqs": sum(row["num_running_reqs"] for row in rows),
            "total_waiting_reqs": sum(row["num_waiting_reqs"] for row in rows),
            "total_reqs": 0,
        }
        head = {"timestamp": wire.iso_utc(self._clock()), "version": VERSION, "dp_rank_count": len(rows)}
        return {**head, "loads": rows, "aggregate": {**sums, **means}}

    def app(self) -> web.Application:
        """Return the router's application."""
        app = application()
        for path, answer in (("/workers", self.listing), ("/get_loads", self.loads), ("/health", dict)):
            app.router.add_get(path, _handler(answer))
        return app


def _handler(answer: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def handle(_request: web.Request) -> web.Response:
        return json_response(answer())

    return handle

"""
The workers that a Prometheus-compatible server already scrapes, as poll results like any other worker's.

The server itself is one more source, so that a reader sees when it is the server that fails and not the workers.
"""

from collections.abc import Callable
from dataclasses import replace

import httpx

from collectors.addresses import host_port
from collectors.discovery import Target
from collectors.errors import KvscopeError
from collectors.poll_types import SourceDetail, WorkerResult
from collectors.prometheus_api import PrometheusResult, PrometheusSource
from collectors.settings import PrometheusSettings, read_secret
from collectors.store.batch import PollOutcome
from scoring.model import SourceState, WorkerReading


class PrometheusPoll:
    """
    Asks one server for all its workers.

    Args:
        settings: Where and which.
        client: How it is asked.
        clock: Our wall clock, epoch seconds.
    """

    def __init__(self, settings: PrometheusSettings, client: httpx.AsyncClient, clock: Callable[[], float]) -> None:
        self._source = PrometheusSource(settings.url, matchers=settings.matchers, token=read_secret(settings.token_env))
        self._client = client
        self._clock = clock
        self._server = Target(
            worker_id=f"prometheus {host_port(settings.url)}",
            url=settings.url,
            engine="prometheus",
            labels={"kind": "prometheus"},
            source="prometheus",
        )
        self._workers: dict[str, Target] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the server and every worker it has named so far."""
        return (self._server, *self._workers.values())

    async def poll(self) -> list[WorkerResult]:
        """Ask once; what fails is an outcome of the server and of every worker it names, never raised."""
        started_at_s = self._clock()
        try:
            found = await self._source.fetch_all(self._client, started_at_s)
        except KvscopeError as error:
            return self._all_failed(str(error), started_at_s)
        duration_s = self._clock() - started_at_s
        names = [name for name, _ in found.readings] + [name for name, _ in found.not_understood] + list(found.down)
        for name in names:
            self._workers.setdefault(
                name, Target(worker_id=name, url=self._server.url, engine="prometheus", source="prometheus")
            )
        return self._results(found, started_at_s, duration_s)

    def _results(self, found: PrometheusResult, started_at_s: float, duration_s: float) -> list[WorkerResult]:
        def outcome(name: str, state: SourceState, kind: str | None = None, detail: str = "") -> PollOutcome:
            return PollOutcome(
                worker_id=name,
                started_at_s=started_at_s,
                duration_s=duration_s,
                state=state,
                error_kind=kind,
                detail=detail,
                rejected_count=found.rejected_count if name == self._server.worker_id else 0,
            )

        results = [WorkerResult(poll=outcome(self._server.worker_id, SourceState.FRESH))]
        down = set(found.down)
        for name, reading in found.readings:
            if name not in down:
                results.append(_understood(outcome(name, SourceState.FRESH), reading))
        for name, why in found.not_understood:
            if name not in down:
                results.append(WorkerResult(poll=outcome(name, SourceState.NOT_UNDERSTOOD, "not-understood", why.text)))
        for name in found.down:
            detail = "the Prometheus server cannot scrape it (up is 0)"
            results.append(WorkerResult(poll=outcome(name, SourceState.DOWN, "scrape-failed", detail)))
        return results

    def _all_failed(self, text: str, started_at_s: float) -> list[WorkerResult]:
        duration_s = self._clock() - started_at_s
        return [
            WorkerResult(
                poll=PollOutcome(
                    worker_id=target.worker_id,
                    started_at_s=started_at_s,
                    duration_s=duration_s,
                    # The workers may be well: their figures grow old instead of being called down.
                    state=SourceState.DOWN if target is self._server else SourceState.LATE,
                    error_kind="prometheus",
                    detail=text[:300],
                )
            )
            for target in self.targets
        ]


def _understood(poll: PollOutcome, reading: WorkerReading) -> WorkerResult:
    return WorkerResult(
        poll=replace(
            poll,
            state=SourceState.NOTHING_YET if reading.is_nothing_yet else SourceState.FRESH,
            pool_count=len(reading.pools),
            rejected_count=reading.rejected_count,
            ignored_count=reading.ignored_count,
        ),
        readings=reading.pools,
        findings=reading.findings,
        detail=SourceDetail(
            worker_id=poll.worker_id,
            engine=reading.engine,
            version=reading.version,
            facts=reading.facts,
            findings=reading.findings,
            expected_rank_count=reading.expected_rank_count,
            is_nothing_yet=reading.is_nothing_yet,
        ),
    )

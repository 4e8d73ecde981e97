"""
A Prometheus-compatible server as a source: the pools of a fleet that is already scraped, without a second poller.

Instant queries bring the newest sample of every engine series; grouped by target they become exposition text again
and go through the same dialects as a worker's own body. A further query brings the scrape times, since an instant
query repeats samples up to five minutes old under its own time: without it, an old figure would pass for a new one.

Read next: `promql_text` (answers of the API -> expositions), `engines` (dialects).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import httpx

from collectors.addresses import safe_url
from collectors.engines import identify
from collectors.engines.contract import Answer, Dialect, NotUnderstood
from collectors.errors import KvscopeError
from collectors.promql_text import (
    BUCKET_NAMES,
    SAMPLE_NAMES,
    TIME_NAMES,
    Instant,
    PromqlError,
    Vector,
    expositions,
    parse_vector,
    selector,
    worker_names,
)
from scoring.model import Finding, PoolReading, Severity, WorkerReading

QUERY_PATH: Final = "/api/v1/query"
METRICS: Final = "/metrics"
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Of one query's answer; about 300 workers of 1,000 series."""
TIMEOUT_S: Final = 20.0

Identify = Callable[[Mapping[str, Answer]], Dialect | None]


class PrometheusError(KvscopeError):
    """The server could not be asked or understood; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusResult:
    """
    One round of queries.

    Attributes:
        readings: (worker id, reading) of every target understood, ascending.
        not_understood: (worker id, why) of targets whose series no dialect takes.
        down: Targets that the server says it cannot scrape (`up` is 0), ascending.
        rejected_count: Series that could not be understood or carry no target.
    """

    readings: tuple[tuple[str, WorkerReading], ...] = ()
    not_understood: tuple[tuple[str, NotUnderstood], ...] = ()
    down: tuple[str, ...] = ()
    rejected_count: int = 0


class PrometheusSource:
    """
    Reads pools through the PromQL HTTP API of Prometheus, VictoriaMetrics, Thanos or Mimir.

    Args:
        url: Base address of the server (what stands before `/api/v1/query`).
        matchers: Label matchers that choose the workers, for example `job="sglang"`.
        worker_label: Label that names a worker; `pod` where an address says nothing.
        token: Bearer token, or None.
        identify_engine: Which dialect recognises a set of answers.
        is_at_given_time: Ask for the figures at `at_s` instead of the server's now (recorded data).
    """

    def __init__(
        self,
        url: str,
        *,
        matchers: Sequence[str] = (),
        worker_label: str = "instance",
        token: str | None = None,
        identify_engine: Identify = identify,
        is_at_given_time: bool = False,
    ) -> None:
        self._url = url.rstrip("/") + QUERY_PATH
        self._matchers = tuple(matchers)
        self._worker_label = worker_label
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._identify = identify_engine
        self._is_at_given_time = is_at_given_time

    async def fetch(self, client: httpx.AsyncClient, at_s: float) -> list[tuple[str, WorkerReading]]:
        """Return (worker id, reading) of every target understood; PrometheusError when the server fails."""
        return list((await self.fetch_all(client, at_s)).readings)

    async def fetch_all(self, client: httpx.AsyncClient, at_s: float) -> PrometheusResult:
        """Return readings, and the targets that gave none and why; PrometheusError when the server fails."""
        plain = selector(SAMPLE_NAMES, self._matchers, without_buckets=True)
        buckets = selector(BUCKET_NAMES, self._matchers)
        times = " or ".join(f"timestamp({selector(name, self._matchers)})" for name in TIME_NAMES)
        by = f"max by (job, {self._worker_label})"
        queries = (plain, buckets, f"{by} ({times})", f"{by} ({selector('up', self._matchers)})")
        series, bucket_series, scraped, up = await self._ask_all(client, queries, at_s)
        names = worker_names((*series.rows, *bucket_series.rows, *up.rows), self._worker_label)
        bodies = expositions((*series.rows, *bucket_series.rows), names, self._worker_label)
        times_s = self._by_worker(scraped, names)
        readings, not_understood = [], []
        for worker, body in sorted(bodies.items()):
            understood = self._understand(body, at_s, times_s.get(worker), worker)
            if isinstance(understood, NotUnderstood):
                not_understood.append((worker, understood))
            else:
                readings.append((worker, understood))
        down = sorted(worker for worker, value in self._by_worker(up, names).items() if value == 0.0)
        placed = sum(body.count(b"\n") for body in bodies.values())
        return PrometheusResult(
            readings=tuple(readings),
            not_understood=tuple(not_understood),
            # `up` covers every job of the server unless matchers say otherwise: only targets with engine series, or
            # any at all where the matchers choose workers, are ours.
            down=tuple(worker for worker in down if self._matchers or worker in bodies),
            rejected_count=sum(part.rejected_count for part in (series, bucket_series, scraped, up))
            + len(series.rows)
            + len(bucket_series.rows)
            - placed,
        )

    async def query_value(self, client: httpx.AsyncClient, expression: str, at_s: float) -> Instant:
        """
        Return the one value of an expression, with the reason where there is none.

        NaN (0/0: nothing finished in the window) and an empty vector are no value and never 0.
        """
        answer = await self._ask(client, expression, at_s)
        if not answer.rows:
            return Instant(value=None, reason="no traffic: the server has no series for this in the window")
        if len(answer.rows) > 1:
            return Instant(value=None, reason=f"ambiguous: the server answered {len(answer.rows)} series, not one")
        value = answer.rows[0].value
        if value is None:
            return Instant(value=None, reason=f"no traffic: the server answered {answer.rows[0].text} (0/0)")
        return Instant(value=value, reason="")

    def _by_worker(self, answer: Vector, names: Mapping[tuple[str, str], str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in answer.rows:
            name = names.get((row.labels.get("job", ""), row.labels.get(self._worker_label, "")))
            if name is not None and row.value is not None:
                found[name] = max(row.value, found.get(name, row.value))
        return found

    def _understand(
        self, body: bytes, at_s: float, scraped_at_s: float | None, worker: str
    ) -> WorkerReading | NotUnderstood:
        answers = {METRICS: Answer(status=200, content_type="text/plain", body=body, received_at_s=at_s)}
        dialect = self._identify(answers)
        if dialect is None:
            return NotUnderstood("engine-unknown", "The server has series of this target, of no engine that is known.")
        reading = dialect.understand(answers)
        if isinstance(reading, NotUnderstood):
            return reading
        note = () if scraped_at_s is not None else (_NO_SCRAPE_TIME,)
        pools = tuple(self._placed(pool, worker, at_s, scraped_at_s, note) for pool in reading.pools)
        facts = {**reading.facts, "source": "Prometheus-compatible server"}
        return replace(reading, pools=pools, facts=facts, findings=(*reading.findings, *note))

    @staticmethod
    def _placed(
        pool: PoolReading, worker: str, at_s: float, scraped_at_s: float | None, note: tuple[Finding, ...]
    ) -> PoolReading:
        reported_at_s = pool.reported_at_s if pool.reported_at_s is not None else scraped_at_s
        return replace(
            pool,
            worker_id=worker,
            received_at_s=at_s,
            reported_at_s=reported_at_s,
            findings=(*pool.findings, *note),
        )

    async def _ask_all(self, client: httpx.AsyncClient, queries: Sequence[str], at_s: float) -> list[Vector]:
        answers = await asyncio.gather(*(self._ask(client, query, at_s) for query in queries), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, Vector)]

    async def _ask(self, client: httpx.AsyncClient, query: str, at_s: float) -> Vector:
        form = {"query": query}
        if self._is_at_given_time:
            form["time"] = f"{at_s:.3f}"
        shown = safe_url(self._url)
        body = bytearray()
        try:
            async with client.stream(
                "POST", self._url, data=form, headers=self._headers, timeout=TIMEOUT_S, follow_redirects=False
            ) as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        raise PrometheusError(
                            f"{shown}: the answer is larger than {MAX_BODY_BYTES:,} bytes; narrow it with matchers."
                        )
                status = response.status_code
        except httpx.HTTPError as error:
            text = str(error) or type(error).__name__
            raise PrometheusError(f"{shown}: not reachable ({text}); check [prometheus] url.") from error
        if status in (401, 403):
            raise PrometheusError(f"{shown}: answered {status}; set [prometheus] token_env.")
        try:
            return parse_vector(bytes(body), status)
        except PromqlError as error:
            raise PrometheusError(f"{shown}: {error}") from error


_NO_SCRAPE_TIME: Final = Finding(
    code="scrape-time-unknown",
    text="The server does not say when it scraped this worker: figures may be up to five minutes old.",
    severity=Severity.WARNING,
)

"""
SGLang's routers: `/workers`, `/get_loads`, `/loads` and their own metrics; what the router believes, never a pool.

Three code bases speak alike: sglang-router 0.2.4 / 0.3.2, its successor smg, and the experimental router that has
metrics only. `load` in `/workers` is requests in flight through this router; in `/get_loads` it is tokens. -1 means
unknown and stops here. A worker written `http://host:port@3` is rank 3 of `http://host:port`.

Three dialects share the reading, since a router may show only one of its doors: the control plane may be closed, and
metrics often lie on a port of their own.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from collectors.addresses import safe_url, split_rank
from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.engines.numbers import as_mapping, as_number, as_text, decode_json
from collectors.engines.ranked_series import refusal
from collectors.engines.router_series import METRIC_WANTED, RouterSeries
from collectors.exposition import is_exposition, scan
from scoring.model import Finding, Role, RouterWorker, WorkerReading

WORKERS: Final = "/workers"
GET_LOADS: Final = "/get_loads"
LOADS: Final = "/loads"
METRICS: Final = "/metrics"
ENGINE_METRICS: Final = "/engine_metrics"
MOST_WORKERS: Final = 10_000
ROLES: Final = {
    "prefill": Role.PREFILL,
    "decode": Role.DECODE,
    "regular": Role.UNIFIED,
    "plain": Role.UNIFIED,
    "unified": Role.UNIFIED,
}

Key = tuple[str, int | None]
"""(base URL, rank the router addresses or None)."""


class _Rows:
    """Rows by worker and rank, merged from every answer; the first word about a field stands."""

    def __init__(self) -> None:
        self.found: dict[Key, dict[str, Any]] = {}
        self.rejected_count = 0
        self.unknown_load_count = 0
        self.load_row_count = 0

    def add(self, url: object, rank: object, **words: Any) -> None:
        """Note what one row says about a worker; a row without a usable address or rank is counted as rejected."""
        key = _key(url, rank)
        if key is None or (key not in self.found and len(self.found) >= MOST_WORKERS):
            self.rejected_count += 1
            return
        known = self.found.setdefault(key, {})
        for name, value in words.items():
            if value is not None:
                known.setdefault(name, value)

    def workers(self) -> tuple[RouterWorker, ...]:
        """Return the rows by address and rank."""
        ordered = sorted(self.found.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1]))
        return tuple(RouterWorker(url=url, dp_rank=rank, **words) for (url, rank), words in ordered)


def _key(url: object, rank: object) -> Key | None:
    text = as_text(url)
    if text is None:
        return None
    base, suffix = split_rank(text)
    if suffix is None and type(rank) is int and 0 <= rank < 1_000_000:
        suffix = rank
    return safe_url(base), suffix


def _load(raw: object) -> float | None:
    """Return a load, None for -1 and anything else that is no count."""
    return as_number(raw)


def _listed(document: object, *keys: str) -> list[Any] | None:
    """Return the list of rows under the first of `keys`, or the document itself when it is a list."""
    if isinstance(document, list):
        return document
    for key in keys:
        rows = as_mapping(document).get(key)
        if isinstance(rows, list):
            return rows
    return None


def _has_addresses(rows: Iterable[object], *keys: str) -> bool:
    return any(isinstance(row, Mapping) and any(isinstance(row.get(key), str) for key in keys) for row in rows)


def _take_workers(answer: Answer | None, rows: _Rows) -> bool:
    if answer is None or answer.status != 200:
        return False
    listed = _listed(decode_json(answer.body), "workers")
    if listed is None:
        return False
    for row in listed:
        words = as_mapping(row)
        healthy = words.get("is_healthy")
        rows.add(
            words.get("url"),
            words.get("dp_rank"),
            role=ROLES.get(str(words.get("worker_type")).lower()),
            is_healthy=healthy if isinstance(healthy, bool) else None,
            load_count=_load(words.get("load")),
        )
    return True


def _take_loads(answer: Answer | None, rows: _Rows) -> bool:
    """Read `/get_loads` or `/loads`: one row a worker (old) or one a rank (smg)."""
    if answer is None or answer.status != 200:
        return False
    listed = _listed(decode_json(answer.body), "loads", "workers")
    if listed is None or (listed and not _has_addresses(listed, "worker", "url")):
        return False
    ranks: dict[object, int] = {}
    for row in listed:
        words = as_mapping(row)
        ranks[str(words.get("worker"))] = ranks.get(str(words.get("worker")), 0) + 1
    for row in listed:
        words = as_mapping(row)
        address = words.get("worker", words.get("url"))
        is_alone = ranks.get(str(address), 0) <= 1
        raw = words["load"] if "load" in words else words.get("num_used_tokens")
        load_tokens = _load(raw)
        rows.load_row_count += 1
        rows.unknown_load_count += load_tokens is None
        rank = None if is_alone else words.get("dp_rank")
        role = ROLES.get(str(words.get("worker_type")).lower())
        rows.add(address, rank, role=role, load_tokens=load_tokens)
    return True


def _take_metrics(answer: Answer | None, rows: _Rows, facts: dict[str, str]) -> tuple[bool, int, int]:
    """Read the router's own metrics; return whether they are a router's, and lines rejected and ignored."""
    if answer is None or answer.status != 200 or not is_exposition(answer.body):
        return False, 0, 0
    exposition = scan(answer.body, METRIC_WANTED)
    series = RouterSeries(exposition.samples)
    for url, words in series.workers().items():
        rows.add(url, None, **words)
    facts.update(series.facts())
    return series.is_router, exposition.rejected_count, exposition.ignored_count


def read_router(answers: Mapping[str, Answer], name: str) -> WorkerReading | NotUnderstood:
    """Return what every open door of the router says; NotUnderstood when none says anything."""
    rows, facts = _Rows(), dict[str, str]()
    has_workers = _take_workers(answers.get(WORKERS), rows)
    has_loads = _take_loads(answers.get(LOADS), rows) or _take_loads(answers.get(GET_LOADS), rows)
    has_metrics, rejected, ignored = _take_metrics(answers.get(METRICS), rows, facts)
    if not (has_workers or has_loads or has_metrics):
        return NotUnderstood(
            "no-router-view", f"{name}: neither {WORKERS}, {GET_LOADS} nor {METRICS} looks like an SGLang router's."
        )
    workers = rows.workers()
    findings: list[Finding] = []
    if rows.unknown_load_count:
        findings.append(
            Finding(
                code="router-load-unknown",
                text=f"The router reports no load (-1) for {rows.unknown_load_count} of {rows.load_row_count} workers. "
                "-1 is unknown: it enters no minimum, mean or sum.",
            )
        )
    engine_metrics = answers.get(ENGINE_METRICS)
    if engine_metrics is not None and engine_metrics.status >= 500:
        findings.append(
            Finding(
                code="router-engine-metrics-broken",
                text=f"The router's {ENGINE_METRICS} answers {engine_metrics.status}: a fault of the router; "
                "the workers behind it are asked directly and are not down for that.",
            )
        )
    facts["workers"] = str(len(workers))
    facts["physical workers"] = str(len({worker.url for worker in workers}))
    version = None
    for path in (LOADS, GET_LOADS):
        if version is None and path in answers and answers[path].status == 200:
            version = as_text(as_mapping(decode_json(answers[path].body)).get("version"), longest=60)
    return WorkerReading(
        engine="router",
        version=version,
        findings=tuple(findings),
        rejected_count=rejected + rows.rejected_count,
        ignored_count=ignored,
        router_workers=workers,
        facts=facts,
    )


class Router:
    """A router whose `/workers` is open."""

    name = "router"
    questions: tuple[Question, ...] = (
        Question(path=WORKERS, is_essential=True),
        # On old routers each asking is passed on to every worker, hence not every cycle.
        Question(path=GET_LOADS, every_s=5.0),
        Question(path=LOADS, every_s=5.0),
        Question(path=METRICS, accept="text/plain"),
        # Asked for its status: a router that fails here is at fault itself. It gathers all workers' metrics: rarely.
        Question(path=ENGINE_METRICS, accept="text/plain", every_s=300.0),
    )
    wanted = METRIC_WANTED
    essential: str = WORKERS

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether `/workers` lists workers with addresses."""
        answer = answers.get(WORKERS)
        if answer is None or answer.status != 200:
            return False
        document = decode_json(answer.body)
        rows = _listed(document, "workers")
        is_empty_list = isinstance(document, Mapping) and rows == [] and "stats" in document
        return is_empty_list or (rows is not None and _has_addresses(rows, "url"))

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Turn the newest answers into rows of workers; never raise on a payload."""
        refused = refusal(answers, self.essential, self.name)
        return refused if refused is not None else read_router(answers, self.name)


class RouterLoads(Router):
    """A router of which only `/get_loads` answers."""

    name = "router-loads"
    questions = (Question(path=GET_LOADS, is_essential=True),)
    essential = GET_LOADS

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether `/get_loads` lists workers with loads."""
        answer = answers.get(GET_LOADS)
        if answer is None or answer.status != 200:
            return False
        rows = _listed(decode_json(answer.body), "loads", "workers")
        return bool(rows) and _has_addresses(rows or (), "worker")


class RouterMetrics(Router):
    """A router's metrics port, or the experimental router, which has nothing else."""

    name = "router-metrics"
    questions = (Question(path=METRICS, accept="text/plain", is_essential=True),)
    essential = METRICS

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether `/metrics` carries series that only a router has."""
        answer = answers.get(METRICS)
        if answer is None or answer.status != 200 or not is_exposition(answer.body):
            return False
        return RouterSeries(scan(answer.body, METRIC_WANTED).samples).is_router

"""
The Sources page's tables and numbers: who is asked, what came back, what was made of it, whose clock is off.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pages.figures import number
from pages.figures.terms import STATES
from pages.texts import Say
from scoring.freshness import clock_offset_s
from scoring.model import Finding, PoolHistory, PoolSnapshot, Provenance, RouterWorker, SourceState
from scoring.router_view import RouterRow, router_divergence, router_rows

DEFINED: Final = ("sglang", "vllm", "trtllm", "dynamo", "router")
"""Families of engines whose definitions the catalogue tells (`sources.says_<family>`)."""

_PARTS: Final = ("usable", "used", "active", "in_flight", "prefix", "free", "reserved", "queued")


def family(engine: str) -> str:
    """Return the family of a dialect's name: `sglang` for `sglang-metrics`; "" where no definitions are told."""
    name = engine.partition("-")[0]
    return name if name in DEFINED else ""


def state_counts(states: Iterable[SourceState | None]) -> Counter[SourceState]:
    """Return sources per state; one never polled counts as nothing published yet."""
    return Counter(state or SourceState.NOTHING_YET for state in states)


def offsets_s(histories: Sequence[PoolHistory]) -> dict[str, float]:
    """Return how far our clock is ahead of each worker's (negative: behind), where the worker tells its time."""
    found: dict[str, float] = {}
    for history in histories:
        offset = clock_offset_s(history)
        if offset is not None:
            found.setdefault(history.last.worker_id, offset)
    return found


def overview(views: Sequence[Any], offsets: Mapping[str, float], at_s: float, t: Say) -> dict[str, list[Any]]:
    """Return one row a source."""
    rows = []
    for view in views:
        state = view.state or SourceState.NOTHING_YET
        rows.append(
            {
                "name": view.worker_id,
                "state": f"{STATES[state.value][0]} {t(f'common.state_{state.value}')}",
                "since": number.duration(None if view.since_at_s is None else max(0.0, at_s - view.since_at_s)),
                "reason": t.said(view.state_reason),
                "engine": " ".join(filter(None, (view.engine, view.version))) or t("common.unknown"),
                "pools": _pools(view),
                "answered": None if view.last_success_at_s is None else round(at_s - view.last_success_at_s, 1),
                "duration": None if view.duration_s is None else round(view.duration_s * 1e3, 1),
                "bytes": view.byte_count,
                "offset": _offset(offsets.get(view.worker_id), t),
                "asked": view.poll_count,
                "failed": view.failure_count,
                "skipped": view.skipped_count,
                "rejected": view.rejected_count,
                "ignored": view.ignored_count,
                "last_error": _last_error(view, t),
                "url": view.url,
                "origin": t.said(view.origin),
            }
        )
    names = list(rows[0]) if rows else []
    return {name: [row[name] for row in rows] for name in names}


def _pools(view: Any) -> str:
    if view.expected_rank_count is not None and view.expected_rank_count != view.pool_count:
        return f"{view.pool_count} / {view.expected_rank_count}"
    return str(view.pool_count)


def _offset(offset_s: float | None, t: Say) -> str:
    if offset_s is None:
        return t("sources.no_clock")
    if abs(offset_s) < 0.05:
        return "0 s"
    return t("sources.ahead" if offset_s < 0 else "sources.behind", span=number.duration(abs(offset_s)))


def _last_error(view: Any, t: Say) -> str:
    if not view.last_error_kind:
        return ""
    return f"{number.clock(view.last_error_at_s)} {view.last_error_kind}: {t.said(view.last_error)}"


def questions(asked: Sequence[Any], at_s: float, t: Say) -> dict[str, list[Any]]:
    """Return one row a question: path, rhythm, need, newest answer, counts."""
    return {
        "path": [question.path for question in asked],
        "every": [
            t("sources.every_cycle") if question.every_s == 0 else number.duration(question.every_s)
            for question in asked
        ],
        "need": [t("sources.essential" if question.is_essential else "sources.optional") for question in asked],
        "status": [
            question.error_kind or (str(question.status) if question.status is not None else t("sources.not_asked"))
            for question in asked
        ],
        "bytes": [question.byte_count for question in asked],
        "asked_ago": [
            None if question.asked_at_s is None else round(max(0.0, at_s - question.asked_at_s), 1)
            for question in asked
        ],
        "answered": [question.answered_count for question in asked],
        "failed": [question.failed_count for question in asked],
    }


def facts(told: Mapping[str, str], t: Say) -> dict[str, list[str]]:
    """Return what a source says of its configuration."""
    return {"fact": [t.said(name) for name in told], "value": [t.said(value) for value in told.values()]}


def definitions(pool: PoolSnapshot, t: Say, label: Any) -> dict[str, list[str]]:
    """Return, for the words that matter, how this source's figure came to be and from which fields."""
    columns: dict[str, list[str]] = {"word": [], "known": [], "because": []}
    for word in _PARTS:
        figure = getattr(pool.composition, f"{word}_tokens")
        columns["word"].append(label(word))
        columns["known"].append(t(f"common.provenance_{figure.provenance.value}"))
        columns["because"].append(t.said(figure.reason))
    for name, figure in (("block", pool.block_size_tokens), ("memory", pool.bytes_per_token)):
        columns["word"].append(t(f"sources.{name}"))
        columns["known"].append(t(f"common.provenance_{figure.provenance.value}"))
        columns["because"].append(_said(figure.reason, figure.provenance, figure.value, t))
    return columns


def _said(reason: str, provenance: Provenance, value: float | None, t: Say) -> str:
    if provenance is Provenance.UNKNOWN:
        return t.said(reason) or t("common.unknown")
    shown = number.compact(value)
    return f"{shown}; {t.said(reason)}" if reason else shown


def router_table(
    rows: Sequence[RouterWorker], pools: Sequence[PoolSnapshot], urls: Mapping[str, str], t: Say
) -> dict[str, list[Any]]:
    """Return the router's view beside the engines', worker by worker."""
    beside = router_rows(rows, pools, urls)
    order = sorted(range(len(rows)), key=lambda place: _row_order(beside[place]))
    beside, rows = tuple(beside[i] for i in order), [rows[i] for i in order]
    health = {True: t("sources.healthy"), False: t("sources.unhealthy"), None: t("common.unknown")}
    return {
        "worker": [row.worker_id or row.url for row in beside],
        "rank": ["–" if row.dp_rank is None else str(row.dp_rank) for row in beside],
        "router_health": [health[worker.is_healthy] for worker in rows],
        "router_requests": [row.router_count for row in beside],
        "engine_requests": [row.engine_count for row in beside],
        "difference": [row.difference_count for row in beside],
        "router_tokens": [row.router_tokens for row in beside],
        "engine_tokens": [row.engine_tokens for row in beside],
    }


def _row_order(row: RouterRow) -> tuple[str, int]:
    return row.worker_id or row.url, -1 if row.dp_rank is None else row.dp_rank


def divergence(
    rows: Sequence[RouterWorker], pools: Sequence[PoolSnapshot], urls: Mapping[str, str], told: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return where the router's view and the engines' part; () when they agree."""
    return router_divergence(rows, pools, urls, told)

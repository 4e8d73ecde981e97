"""
The snapshot file: a judged fleet as JSON, written whole and read forgivingly (docs/snapshot.md).

What `fleet_to_json` writes, `fleet_from_json` gives back unchanged. A file written by hand needs little: pools with
a name, capacity and use. Plain numbers count as measured, missing parts are composed from the rest, and what cannot
be a number is refused with its place, since nobody routes by a typing error.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from scoring.capacity import WORDS, compose
from scoring.freshness import FreshnessThresholds
from scoring.histogram import Buckets, is_histogram
from scoring.model import (
    Composition,
    Figure,
    Finding,
    FleetSnapshot,
    Link,
    PoolRates,
    PoolReading,
    PoolSnapshot,
    Provenance,
    Role,
    Severity,
    SourceState,
    measured,
    pool_id,
    signal_names,
    unknown,
)

FORMAT: Final = "kvscope-snapshot"
VERSION: Final = 1

COUNTS: Final = (
    "running_count",
    "waiting_count",
    "max_running_count",
    "queue_main_count",
    "queue_bootstrap_count",
    "queue_inflight_count",
    "queue_prealloc_count",
    "queue_transfer_count",
    "queue_retracted_count",
    "prealloc_ready_count",
    "waiting_uncached_tokens",
)
"""Figures of a PoolSnapshot that count requests or what they wait for."""
FIGURES: Final = ("block_size_tokens", "bytes_per_token")
"""Its other figures outside composition and rates."""
_RATES: Final = tuple(f.name for f in fields(PoolRates) if f.name != "window_s")
_SIGNALS: Final = frozenset(signal_names())
# What people write by hand -> our word.
_ALIASES: Final[Mapping[str, str]] = {
    "waiting": "waiting_count",
    "running": "running_count",
    "usable": "usable_tokens",
    "used": "used_tokens",
    "prefix": "prefix_tokens",
    "free": "free_tokens",
    "queued": "queued_tokens",
    "max_running": "max_running_count",
    "page_size": "block_size_tokens",
    "block_size": "block_size_tokens",
}
_BUCKETS: Final = ("ttft_buckets", "itl_buckets")
_TEXTS: Final = ("engine", "version", "model", "state_reason")
_KNOWN: Final = frozenset((*COUNTS, *FIGURES, *_RATES, *WORDS, *_ALIASES, *_TEXTS, *_SIGNALS))


class SnapshotFileError(ValueError):
    """The file is no snapshot: one message that lists every problem with its place."""


def fleet_to_json(fleet: FleetSnapshot) -> str:
    """Return the fleet as strict JSON, keys in a fixed order: the same fleet gives the same bytes."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "at_s": fleet.at_s,
        "pools": [_pool_out(pool) for pool in fleet.pools],
        "links": [asdict(link) for link in fleet.links],
        "findings": [_finding_out(finding) for finding in fleet.findings],
    }
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def fleet_from_json(text: str | bytes) -> FleetSnapshot:
    """
    Return the fleet of a snapshot file; raises SnapshotFileError with every problem and its place.

    A pool without a role is unified, without an age new at `at_s`, without a state what its age makes it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SnapshotFileError(f"not JSON: {error}") from error
    if isinstance(document, list):
        document = {"pools": document}
    if not isinstance(document, Mapping) or not isinstance(document.get("pools"), list):
        raise SnapshotFileError('no list "pools"; the least a snapshot needs is {"pools": [{"pool": "d0", ...}]}')
    problems: list[str] = []
    if document.get("version", VERSION) != VERSION:
        problems.append(f"version: {document['version']!r} is not {VERSION}; this KVScope reads version {VERSION}")
    at_s = _number(document, "at_s", "", problems)
    if at_s is None and (milliseconds := _number(document, "t_ms", "", problems)) is not None:
        at_s = milliseconds / 1000.0
    pools = []
    for index, item in enumerate(document["pools"]):
        place = f"pools[{index}]"
        if not isinstance(item, Mapping):
            problems.append(f"{place}: not an object")
            continue
        pools.append(_pool_in(item, place, at_s or 0.0, problems))
    links = [
        _link_in(item, f"links[{index}]", problems) for index, item in enumerate(_items(document, "links", problems))
    ]
    findings = [
        _finding_in(item, f"findings[{index}]", problems)
        for index, item in enumerate(_items(document, "findings", problems))
    ]
    names = [pool.pool_id for pool in pools]
    problems += [
        f"pools: {name} appears {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if problems:
        # A plain number is read as a signal and as a figure: one sentence a place is enough.
        first = {problem.partition(": ")[0]: problem for problem in reversed(problems)}
        raise SnapshotFileError("; ".join(reversed(first.values())))
    pools.sort(key=lambda pool: pool.pool_id)
    return FleetSnapshot(at_s=at_s or 0.0, pools=tuple(pools), links=tuple(links), findings=tuple(findings))


def _figure_out(figure: Figure) -> dict[str, Any]:
    out: dict[str, Any] = {"value": figure.value, "provenance": figure.provenance.value}
    if figure.reason:
        out["reason"] = figure.reason
    if figure.low is not None:
        out["low"] = figure.low
    if figure.high is not None:
        out["high"] = figure.high
    return out


def _finding_out(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "text": finding.text,
        "severity": finding.severity.value,
        "dp_rank": finding.dp_rank,
    }


def _pool_out(pool: PoolSnapshot) -> dict[str, Any]:
    out: dict[str, Any] = {
        "pool": pool.pool_id,
        "worker": pool.worker_id,
        "dp_rank": pool.dp_rank,
        "role": pool.role.value,
        "engine": pool.engine,
        "version": pool.version,
        "model": pool.model,
        "labels": dict(pool.labels),
        "at_s": pool.at_s,
        "received_at_s": pool.received_at_s,
        "age_s": pool.age_s,
        "state": pool.state.value,
        "state_reason": pool.state_reason,
        "is_serving": pool.is_serving,
    }
    for name in FIGURES:
        out[name] = _figure_out(getattr(pool, name))
    for name in WORDS:
        out[name] = _figure_out(getattr(pool.composition, name))
    for name in COUNTS:
        out[name] = _figure_out(getattr(pool, name))
    out["rates"] = {name: _figure_out(getattr(pool.rates, name)) for name in _RATES}
    out["rates"]["window_s"] = pool.rates.window_s
    out["findings"] = [_finding_out(finding) for finding in pool.findings]
    reading = pool.reading
    said: dict[str, Any] = {name: value for name in signal_names() if (value := getattr(reading, name)) is not None}
    for name in ("received_at_s", "answered_at_s", "expected_rank_count"):
        if (value := getattr(reading, name)) is not None:
            said[name] = value
    for name in _BUCKETS:
        if (table := getattr(reading, name)) is not None:
            said[name] = [[bound if math.isfinite(bound) else None, count] for bound, count in table]
    if reading.anomalies:
        said["anomalies"] = list(reading.anomalies)
    out["reading"] = said
    return out


def _pool_in(item: Mapping[str, Any], place: str, at_s: float, problems: list[str]) -> PoolSnapshot:
    name = item.get("pool", item.get("pool_id", item.get("worker", "")))
    if not isinstance(name, str) or not name:
        problems.append(f'{place}.pool: the pool needs a name, for example "d0"')
        name = place
    rank_text = name.rpartition("/")[2]
    worker, rank = (name.rpartition("/")[0], int(rank_text)) if "/" in name and rank_text.isdecimal() else (name, 0)
    if isinstance(item.get("worker"), str):
        worker = item["worker"]
    if (given := _number(item, "dp_rank", place, problems)) is not None:
        rank = int(given)
    role = _word(Role, item.get("role", "unified"), f"{place}.role", problems) or Role.UNKNOWN
    age_s = _number(item, "age_s", place, problems)
    state = _word(SourceState, item.get("state", _state_of(age_s)), f"{place}.state", problems)
    state = state or SourceState.NOT_UNDERSTOOD
    plain = {
        _ALIASES.get(key, key): value
        for key, value in item.items()
        if key in _KNOWN and not isinstance(value, Mapping) and value is not None and key not in _TEXTS
    }
    said = item.get("reading")
    source: dict[str, Any] = {**(said if isinstance(said, Mapping) else {}), **plain}
    values: dict[str, Any] = {}
    for key in source:
        if key in _SIGNALS:
            values[key] = _number(source, key, place if key in plain else f"{place}.reading", problems)
    texts = {key: value if isinstance(value := item.get(key), str) else None for key in _TEXTS}
    received = _number(source, "received_at_s", place, problems)
    if received is None:
        received = _number(item, "received_at_s", place, problems)
    expected = _number(source, "expected_rank_count", place, problems)
    findings = tuple(
        _finding_in(entry, f"{place}.findings[{index}]", problems)
        for index, entry in enumerate(_items(item, "findings", problems, place))
    )
    anomalies = source.get("anomalies", ())
    reading = PoolReading(
        worker_id=worker,
        dp_rank=rank,
        received_at_s=at_s if received is None else received,
        role=role,
        engine=texts["engine"] or "",
        version=texts["version"],
        model=texts["model"],
        answered_at_s=_number(source, "answered_at_s", place, problems),
        expected_rank_count=None if expected is None else int(expected),
        anomalies=tuple(str(entry) for entry in anomalies) if isinstance(anomalies, Sequence) else (),
        ttft_buckets=_buckets_in(source.get("ttft_buckets"), f"{place}.reading.ttft_buckets", problems),
        itl_buckets=_buckets_in(source.get("itl_buckets"), f"{place}.reading.itl_buckets", problems),
        **values,
    )
    composed = compose(reading)
    words = {word: _figure_in(item.get(word), f"{place}.{word}", problems) for word in WORDS}
    composition = Composition(**{word: given or getattr(composed, word) for word, given in words.items()})
    labels = item.get("labels")
    rates_in = item.get("rates")
    rates_item: Mapping[str, Any] = rates_in if isinstance(rates_in, Mapping) else {}
    rates = {
        key: _figure_in(rates_item.get(key, item.get(key)), f"{place}.rates.{key}", problems)
        or unknown("not in the snapshot file")
        for key in _RATES
    }
    figures = {}
    for key in (*FIGURES, *COUNTS):
        given_figure = _figure_in(item.get(key), f"{place}.{key}", problems)
        if given_figure is None:
            value = values.get(key)
            given_figure = (
                measured(value, "read from the snapshot file")
                if value is not None
                else unknown("not in the snapshot file")
            )
        figures[key] = given_figure
    at = _number(item, "at_s", place, problems)
    is_serving = item.get("is_serving", True)
    return PoolSnapshot(
        pool_id=name if isinstance(item.get("pool", item.get("pool_id")), str) else pool_id(worker, rank),
        worker_id=worker,
        dp_rank=rank,
        role=role,
        engine=reading.engine,
        version=reading.version,
        model=reading.model,
        labels={str(key): str(value) for key, value in labels.items()} if isinstance(labels, Mapping) else {},
        at_s=at_s if at is None else at,
        received_at_s=received if received is not None or "received_at_s" in item else at_s,
        age_s=age_s if "age_s" in item else 0.0,
        state=state,
        state_reason=texts["state_reason"] or ("" if "state_reason" in item else "as the snapshot file says"),
        composition=composition,
        rates=PoolRates(**rates, window_s=_number(rates_item, "window_s", place, problems) or 0.0),
        reading=reading,
        findings=findings,
        is_serving=is_serving if isinstance(is_serving, bool) else True,
        **figures,
    )


def _state_of(age_s: float | None) -> SourceState:
    """Return the state of figures of that age by the usual thresholds; an age that is not given is none."""
    limits = FreshnessThresholds()
    if age_s is None or age_s < limits.late_after_s:
        return SourceState.FRESH
    return SourceState.LATE if age_s < limits.stale_after_s else SourceState.STALE


def _number(item: Mapping[str, Any], key: str, place: str, problems: list[str]) -> float | None:
    """Return a finite, non-negative number; absent and null are None, anything else is a problem."""
    raw = item.get(key)
    if raw is None:
        return None
    where = f"{place}.{key}".lstrip(".")
    if type(raw) not in (int, float):
        problems.append(f"{where}: {str(raw)[:60]!r} is not a number")
        return None
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0:
        problems.append(
            f"{where}: {raw if abs(value) < 1e300 else 'a huge number'} is not a finite number of at least 0"
        )
        return None
    return value


def _figure_in(raw: object, place: str, problems: list[str]) -> Figure | None:
    """Return a figure written whole or as a plain number; None when absent."""
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        value = _signed({"value": raw}, "value", place, problems)
        return measured(value, "read from the snapshot file") if value is not None else None
    provenance = _word(Provenance, raw.get("provenance", "measured"), f"{place}.provenance", problems)
    value, low, high = (_signed(raw, key, place, problems) for key in ("value", "low", "high"))
    if value is None and low is None and high is None:
        provenance = Provenance.UNKNOWN
    reason = raw.get("reason", "")
    return Figure(
        value=value,
        provenance=provenance or Provenance.UNKNOWN,
        reason=reason if isinstance(reason, str) else "",
        low=low,
        high=high,
    )


def _buckets_in(raw: object, place: str, problems: list[str]) -> Buckets | None:
    """Return a cumulative histogram written as [bound, count] pairs, null for the infinite bound; None when absent."""
    if raw is None:
        return None
    try:
        table = tuple((math.inf if bound is None else float(bound), float(count)) for bound, count in raw)  # type: ignore[attr-defined] # refused below
    except (TypeError, ValueError):
        table = ()
    if not is_histogram(table):
        problems.append(f"{place}: not a cumulative histogram of [bound, count] pairs that ends with [null, count]")
        return None
    return table


def _signed(item: Mapping[str, Any], key: str, place: str, problems: list[str]) -> float | None:
    raw = item.get(key)
    if raw is None:
        return None
    if type(raw) not in (int, float) or not math.isfinite(raw):
        problems.append(f"{place}: {str(raw)[:60]!r} is not a finite number")
        return None
    return float(raw)


def _word(kind: Any, raw: object, place: str, problems: list[str]) -> Any:
    try:
        return kind(raw)
    except ValueError:
        problems.append(f"{place}: {str(raw)[:60]!r} is none of {', '.join(member.value for member in kind)}")
        return None


def _items(item: Mapping[str, Any], key: str, problems: list[str], place: str = "") -> Sequence[Any]:
    raw = item.get(key)
    if raw is None:
        return ()
    if not isinstance(raw, list):
        problems.append(f"{place}.{key}: not a list".lstrip("."))
        return ()
    return raw


def _finding_in(raw: object, place: str, problems: list[str]) -> Finding:
    item: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    code, text = item.get("code"), item.get("text", "")
    if not isinstance(code, str) or not isinstance(text, str):
        problems.append(f"{place}: a finding needs a code and a text")
        code, text = "unreadable", ""
    severity = _word(Severity, item.get("severity", "warning"), f"{place}.severity", problems) or Severity.WARNING
    rank = _number(item, "dp_rank", place, problems)
    return Finding(code=code, text=text, severity=severity, dp_rank=None if rank is None else int(rank))


def _link_in(raw: object, place: str, problems: list[str]) -> Link:
    item: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    source, target = item.get("source", "*"), item.get("target", "*")
    if not isinstance(raw, Mapping) or not isinstance(source, str) or not isinstance(target, str):
        problems.append(f"{place}: a link is an object with source, target and bandwidth_bytes_per_s")
        source, target = "*", "*"
    return Link(
        source=source,
        target=target,
        bandwidth_bytes_per_s=_number(item, "bandwidth_bytes_per_s", place, problems),
        latency_s=_number(item, "latency_s", place, problems) or 0.0,
        queued_bytes=_number(item, "queued_bytes", place, problems) or 0.0,
    )

"""
The one write path of polling: a cycle becomes arrays, and the arrays one transaction.

Unknown is NULL in the tables, because a single NaN would make every sum and quantile over it NaN. Read next:
`arrays` (how columns go in), `records` (what else is kept).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectors.store.arrays import Columns, insert, json_text, numbers, storable, texts, times
from collectors.store.batch import CycleBatch, WorkerRecord
from collectors.store.buckets import PoolKey, StoredBuckets, as_list, due_buckets
from collectors.store.connection import Database
from collectors.store.rollups import rewind_tiers
from collectors.store.times import to_us
from scoring.model import Finding, FloatArray, PoolReading, signal_names

FINDING_REPEAT_S: Final = 60.0
"""Chosen: a finding that lasts is stored once a minute, not once a cycle, so that a broken fleet fills no disk."""

_Finding = tuple[str, Finding]
_FindingKey = tuple[str, int | None, str]
_SIGNALS = signal_names()
_signals_of = attrgetter(*_SIGNALS)


def signal_matrix(readings: Sequence[PoolReading]) -> FloatArray:
    """Return the signals of `readings`, shape (signals, readings), NaN where unknown or not finite."""
    matrix = np.array([_signals_of(reading) for reading in readings], dtype=np.float64)
    columns = np.ascontiguousarray(matrix.reshape(len(readings), len(_SIGNALS)).T)
    columns[~np.isfinite(columns)] = np.nan
    return columns


def _reading_columns(batch: CycleBatch, buckets: Mapping[int, StoredBuckets]) -> Columns:
    readings = batch.readings
    columns: dict[str, NDArray[Any]] = {
        "ts": times([reading.received_at_s for reading in readings]),
        "cycle_at": times([batch.cycle_at_s] * len(readings)),
        "worker_id": texts([reading.worker_id for reading in readings]),
        "dp_rank": np.array([reading.dp_rank for reading in readings], dtype=np.int32),
        "role": texts([reading.role.value for reading in readings]),
        "engine": texts([reading.engine for reading in readings]),
        "version": texts([reading.version for reading in readings]),
        "model": texts([reading.model for reading in readings]),
    }
    # Columns that nobody fills are left out: NULL by default, and an insert costs by the column.
    rows = zip(_SIGNALS, signal_matrix(readings), strict=True)
    columns |= {name: row for name, row in rows if not np.isnan(row).all()}
    if any(reading.answered_at_s is not None for reading in readings):
        columns["answered_at_s"] = numbers([reading.answered_at_s for reading in readings])
    if any(reading.expected_rank_count is not None for reading in readings):
        columns["expected_rank_count"] = numbers([reading.expected_rank_count for reading in readings])
    if any(reading.anomalies for reading in readings):
        columns["anomalies"] = texts([[storable(name) for name in reading.anomalies] or None for reading in readings])
    if buckets:
        for name, of in (("ttft_buckets", attrgetter("ttft")), ("itl_buckets", attrgetter("itl"))):
            columns[name] = texts([as_list(of(buckets[i])) if i in buckets else None for i in range(len(readings))])
    return columns


def _poll_columns(batch: CycleBatch) -> Columns:
    polls = batch.polls
    return {
        "ts": times([poll.started_at_s for poll in polls]),
        "cycle_at": times([batch.cycle_at_s] * len(polls)),
        "worker_id": texts([poll.worker_id for poll in polls]),
        "duration_s": numbers([poll.duration_s for poll in polls]),
        "state": texts([poll.state.value for poll in polls]),
        "error_kind": texts([poll.error_kind for poll in polls]),
        "http_status": numbers([poll.http_status for poll in polls]),
        "byte_count": np.array([poll.byte_count for poll in polls], dtype=np.int64),
        "detail": texts([poll.detail for poll in polls]),
        "pool_count": np.array([poll.pool_count for poll in polls], dtype=np.int32),
        "rejected_count": np.array([poll.rejected_count for poll in polls], dtype=np.int32),
        "ignored_count": np.array([poll.ignored_count for poll in polls], dtype=np.int32),
    }


class Writes:
    """Storing cycles; mixed into `Store`."""

    _database: Database
    _stored_findings: dict[_FindingKey, tuple[float, Finding]]
    _stored_buckets: dict[PoolKey, StoredBuckets]
    _known_workers: dict[str, WorkerRecord]

    def _store_cycle(self, batch: CycleBatch) -> None:
        """Store one cycle in one transaction; see `Store.append_cycle`."""
        begun, over = self._changed_findings(batch)
        findings = [*((*item, False) for item in begun), *((*item, True) for item in over)]
        buckets = due_buckets(batch.readings, self._stored_buckets, batch.cycle_at_s)
        router_workers = batch.router_workers
        workers = [replace(record, url=_without_credentials(record.url)) for record in batch.workers]
        workers = [record for record in workers if self._known_workers.get(record.worker_id) != record]
        tables: dict[str, Columns] = {
            "cycles": {
                "ts": times([batch.cycle_at_s]),
                "duration_s": numbers([batch.duration_s]),
                "is_overrun": np.array([batch.is_overrun]),
                "skipped_count": np.array([batch.skipped_count], dtype=np.int32),
                "poll_count": np.array([len(batch.polls)], dtype=np.int32),
                "reading_count": np.array([len(batch.readings)], dtype=np.int32),
                "finding_count": np.array([len(findings)], dtype=np.int32),
                "router_worker_count": np.array([len(router_workers)], dtype=np.int32),
            }
        }
        if batch.polls:
            tables["polls"] = _poll_columns(batch)
        if batch.readings:
            tables["readings"] = _reading_columns(batch, buckets)
        if findings:
            tables["findings"] = {
                "ts": times([batch.cycle_at_s] * len(findings)),
                "cycle_at": times([batch.cycle_at_s] * len(findings)),
                "worker_id": texts([worker_id for worker_id, _, _ in findings]),
                "dp_rank": numbers([finding.dp_rank for _, finding, _ in findings]),
                "code": texts([finding.code for _, finding, _ in findings]),
                "severity": texts([finding.severity.value for _, finding, _ in findings]),
                "text": texts([finding.text for _, finding, _ in findings]),
                "is_over": np.array([is_over for _, _, is_over in findings]),
            }
        if router_workers:
            tables["router_workers"] = {
                "ts": times([batch.cycle_at_s] * len(router_workers)),
                "cycle_at": times([batch.cycle_at_s] * len(router_workers)),
                "worker_id": texts([worker_id for worker_id, _ in router_workers]),
                "url": texts([seen.url for _, seen in router_workers]),
                "dp_rank": numbers([seen.dp_rank for _, seen in router_workers]),
                "role": texts([seen.role.value for _, seen in router_workers]),
                "is_healthy": texts([seen.is_healthy for _, seen in router_workers]),
                "load_count": numbers([seen.load_count for _, seen in router_workers]),
                "load_tokens": numbers([seen.load_tokens for _, seen in router_workers]),
            }
        if workers:
            tables["workers"] = _worker_columns(workers, batch.cycle_at_s)
        earliest_s = min((reading.received_at_s for reading in batch.readings), default=None)
        with self._database.writing("storing a cycle") as cursor:
            for table, columns in tables.items():
                insert(cursor, table, columns)
            if earliest_s is not None:
                rewind_tiers(cursor, to_us(earliest_s))
        self._known_workers.update({record.worker_id: record for record in workers})
        for i, stored in buckets.items():
            self._stored_buckets[batch.readings[i].worker_id, batch.readings[i].dp_rank] = stored
        for worker_id, finding in begun:
            self._stored_findings[_finding_key(worker_id, finding)] = (batch.cycle_at_s, finding)
        for worker_id, finding in over:
            del self._stored_findings[_finding_key(worker_id, finding)]

    def _changed_findings(self, batch: CycleBatch) -> tuple[list[_Finding], list[_Finding]]:
        """Return findings to store (begun, or a minute old) and those that are over since the previous cycle."""
        present = {_finding_key(worker_id, finding): (worker_id, finding) for worker_id, finding in batch.findings}
        begun: list[_Finding] = []
        for key, item in present.items():
            stored = self._stored_findings.get(key)
            if stored is None or not 0.0 <= batch.cycle_at_s - stored[0] < FINDING_REPEAT_S:
                begun.append(item)
        polled = {poll.worker_id for poll in batch.polls}
        over = [
            (key[0], finding)
            for key, (_, finding) in self._stored_findings.items()
            if key not in present and key[0] in polled
        ]
        return begun, over


def _finding_key(worker_id: str, finding: Finding) -> _FindingKey:
    return worker_id, finding.dp_rank, finding.code


def _without_credentials(url: str) -> str:
    """Return `url` without `user:password@`: the store is shown and exported, so no secret may enter."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}" if mark else url


def _worker_columns(workers: Sequence[WorkerRecord], at_s: float) -> Columns:
    return {
        "worker_id": texts([record.worker_id for record in workers]),
        "valid_from": times([at_s] * len(workers)),
        "url": texts([record.url for record in workers]),
        "labels": texts([json_text(dict(record.labels), f"labels of {record.worker_id}") for record in workers]),
    }

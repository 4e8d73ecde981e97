"""
What the poller hands to the store in one piece: a cycle, and what became of every poll in it.

A failed poll is data like any other (`PollOutcome`), so a cycle in which nobody answered is stored as carefully as
one in which all did. Read next: `writes` (how a batch becomes one transaction).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scoring.model import Finding, PoolReading, RouterWorker, SourceState


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOutcome:
    """
    What became of one poll of one worker.

    Attributes:
        worker_id: Whom we asked.
        started_at_s: Our clock when we began to ask.
        duration_s: Until the answer was understood or given up.
        state: FRESH when understood, else why not (DOWN, UNAUTHORISED, NOT_UNDERSTOOD, NOTHING_YET).
        error_kind: Stable kebab-case word (`timeout`, `refused`, `too-big`, ...), or None when all went well.
        http_status: Status of the essential answer, or None when none came.
        byte_count: Body bytes received over all questions.
        detail: One line for the reader; "" when all went well.
        pool_count: Readings that came of it.
        rejected_count: Samples that could not be understood.
        ignored_count: Samples understood and not needed.
    """

    worker_id: str
    started_at_s: float
    duration_s: float
    state: SourceState
    error_kind: str | None = None
    http_status: int | None = None
    byte_count: int = 0
    detail: str = ""
    pool_count: int = 0
    rejected_count: int = 0
    ignored_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """
    Who a worker is, as far as the fleet file and discovery know. Stored when it changes.

    Attributes:
        url: Base URL without user info, query or fragment: what the reader may see.
        labels: model, rack, zone, tenants, link bandwidth, as text.
    """

    worker_id: str
    url: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleBatch:
    """
    One polling cycle, stored whole or not at all.

    Attributes:
        cycle_at_s: When the cycle began; the key that polls and readings of the cycle share.
        duration_s: From its begin to the last answer.
        is_overrun: It lasted longer than the interval.
        skipped_count: Ticks the scheduler left out since the previous cycle.
        polls: One outcome a worker asked.
        readings: One a pool, `received_at_s` set by the collector.
        findings: (worker_id, finding); the store keeps the first of a kind and then one a minute.
        router_workers: (worker_id of the router, what it says about one worker).
        workers: Who the workers are; only needed when it may have changed.
    """

    cycle_at_s: float
    duration_s: float
    is_overrun: bool = False
    skipped_count: int = 0
    polls: Sequence[PollOutcome] = ()
    readings: Sequence[PoolReading] = ()
    findings: Sequence[tuple[str, Finding]] = ()
    router_workers: Sequence[tuple[str, RouterWorker]] = ()
    workers: Sequence[WorkerRecord] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    Something that happened and is worth finding again (a stage began, a profile was applied, a worker joined).

    Attributes:
        at_s: When it happened.
        kind: Stable kebab-case word.
        subject: What it is about: a pool id, a worker id, or "" for the fleet.
        text: A sentence with the numbers.
        details: JSON object; finite numbers only.
    """

    at_s: float
    kind: str
    subject: str = ""
    text: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """
    One change in the life of an alert (began, delivered, silenced, resolved). Append-only: the newest row rules.

    Attributes:
        at_s: When it changed.
        alert_id: The same for all rows of one alert.
        rule: Name of the rule.
        subject: Pool id, worker id or "" for the fleet.
        state: Stable word, for example `firing`, `resolved`.
        severity: `info`, `warning` or `error`.
        details: JSON object; finite numbers only.
    """

    at_s: float
    alert_id: str
    rule: str
    subject: str = ""
    state: str = "firing"
    severity: str = "warning"
    text: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """
    One version of a named profile (service times, quantiles), as JSON.

    Attributes:
        version: 1 for the first of a name, then ascending; given by the store.
        applied_at_s: When it was last put to use, or None if never.
    """

    name: str
    version: int
    created_at_s: float
    applied_at_s: float | None
    profile: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """
    One kept replay run.

    Attributes:
        name: Unique.
        summary: JSON object; finite numbers only.
        parquet_path: Where its rows are, or "" when only the summary was kept.
    """

    name: str
    created_at_s: float
    summary: Mapping[str, Any]
    parquet_path: str = ""

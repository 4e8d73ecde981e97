"""
The store: the only SQL of the house. One DuckDB file, one owning process, whole cycles or nothing.

Start with `store` (what callers use) and `batch` (what the poller hands over); `connection` says why it is so strict.
"""

from collectors.store.batch import (
    AlertRecord,
    CycleBatch,
    Event,
    PollOutcome,
    ProfileRecord,
    RunRecord,
    WorkerRecord,
)
from collectors.store.export import EXPORT_TABLES, FORMATS, ExportRequest, instant_text, parse_export_query
from collectors.store.reads import CycleStats
from collectors.store.retention import Retention
from collectors.store.store import Store, open_store

__all__ = [
    "EXPORT_TABLES",
    "FORMATS",
    "AlertRecord",
    "CycleBatch",
    "CycleStats",
    "Event",
    "ExportRequest",
    "PollOutcome",
    "ProfileRecord",
    "Retention",
    "RunRecord",
    "Store",
    "WorkerRecord",
    "instant_text",
    "open_store",
    "parse_export_query",
]

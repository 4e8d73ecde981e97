"""The trace formats this house reads, the first that recognises a file's opening rows wins."""

from typing import Final

from simulation.trace import TraceFormat
from simulation.trace_csv import CSV_FORMATS
from simulation.trace_json import JSON_FORMATS
from simulation.trace_readings import READINGS_FORMATS
from simulation.trace_sessions import SESSION_FORMATS

FORMATS: Final[dict[str, TraceFormat]] = {
    entry.name: entry for entry in (*SESSION_FORMATS, *READINGS_FORMATS, *CSV_FORMATS, *JSON_FORMATS)
}
"""Trace formats by name."""

"""
The links of a fleet as columns: the path of every (prefill, decode) pair.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scoring.model import FloatArray, Link, PoolSnapshot


def _is_exact(links: Sequence[Link]) -> bool:
    return any(link.source != "*" or link.target != "*" for link in links)


def link_columns(
    links: Sequence[Link], pools: Sequence[PoolSnapshot], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    Return (bandwidth_bytes_per_s, latency_s, queued_bytes) of the path of every pair.

    Of shape (1, 1) where every path is alike, else (len(rows), len(columns)). Of several links that match a pair the
    last one counts, as in the fleet file. No link at all: bandwidth NaN, latency 0.
    """
    is_exact = _is_exact(links)
    shape = (len(rows), len(columns)) if is_exact else (1, 1)
    bandwidth, latency, queued = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape)
    sources = np.array([pools[row].worker_id for row in rows] if is_exact else [], dtype=object)
    targets = np.array([pools[column].worker_id for column in columns] if is_exact else [], dtype=object)
    for link in links:
        cells = np.ix_(
            np.arange(shape[0]) if link.source == "*" else np.flatnonzero(sources == link.source),
            np.arange(shape[1]) if link.target == "*" else np.flatnonzero(targets == link.target),
        )
        bandwidth[cells] = np.nan if link.bandwidth_bytes_per_s is None else link.bandwidth_bytes_per_s
        latency[cells] = link.latency_s
        queued[cells] = link.queued_bytes
    return bandwidth, latency, queued

"""
The Worker page's tables: every word and every rate with where it comes from, the raw figures with their meaning.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from pages.figures import number
from pages.figures.fleet import convert
from pages.figures.terms import PROVENANCE, label, meaning
from pages.texts import Say
from scoring.model import (
    CONSTANT,
    COUNTER,
    GAUGE,
    Composition,
    Figure,
    FloatArray,
    PoolHistory,
    PoolRates,
    PoolReading,
    PoolSnapshot,
)

WORDS: Final = tuple(f.name.removesuffix("_tokens") for f in fields(Composition))

RATE_UNITS: Final = {
    "growth_tokens_per_s": "tokens/s",
    "release_tokens_per_s": "tokens/s",
    "net_tokens_per_s": "tokens/s",
    "net_std_tokens_per_s": "tokens/s",
    "prefill_tokens_per_s": "tokens/s",
    "prefill_duty_ratio": "share",
    "step_time_s": "s",
    "mean_batch_count": "requests",
    "generated_tokens_per_s": "tokens/s",
    "finished_per_s": "requests/s",
    "retracted_per_s": "requests/s",
    "evicted_tokens_per_s": "tokens/s",
    "transfer_bytes_per_s": "bytes/s",
    "transfer_time_s": "s",
    "transfers_per_s": "requests/s",
    "transfer_drain_s": "s",
    "bootstrap_net_per_s": "requests/s",
    "prefix_hit_ratio": "share",
    "mean_prompt_tokens": "tokens",
    "mean_output_tokens": "tokens",
    "ttft_mean_s": "s",
    "itl_mean_s": "s",
}
"""Every rate of PoolRates -> unit; a test fails when one is missing."""


def badge(figure: Figure, t: Say) -> str:
    """Return the sign and word of how a figure came to be."""
    return f"{PROVENANCE[figure.provenance.value]} {t(f'common.provenance_{figure.provenance.value}')}"


def shown(figure: Figure, unit: str, t: Say) -> str:
    """Return a figure as text: the point, else its bounds, else the word for unknown."""
    if figure.value is not None:
        return t.said(number.amount(figure.value, unit))
    if figure.low is not None or figure.high is not None:
        low, high = number.amount(figure.low, unit, "?"), number.amount(figure.high, unit, "?")
        return t("worker.bounds", low=low, high=high)
    return t("common.unknown")


def composition(pool: PoolSnapshot, t: Say, language: str) -> dict[str, list[str]]:
    """Return one row a word of the vocabulary: tokens, blocks, bytes, share, provenance, reason, meaning."""
    columns: dict[str, list[str]] = {
        name: [] for name in ("word", "tokens", "blocks", "bytes", "share", "from", "reason", "meaning")
    }
    for word in WORDS:
        figure: Figure = getattr(pool.composition, f"{word}_tokens")
        columns["word"].append(label(word, language))
        columns["tokens"].append(shown(figure, "tokens", t).removesuffix(" tokens"))
        for unit in ("blocks", "bytes", "share"):
            text = number.amount(convert(figure.value, pool, unit), unit, absent="–")
            columns[unit].append(text.removesuffix(" blocks"))
        columns["from"].append(badge(figure, t))
        columns["reason"].append(t.said(figure.reason))
        columns["meaning"].append(meaning(word, language))
    return columns


def rates(pool: PoolSnapshot, t: Say) -> dict[str, list[str]]:
    """Return one row a rate: name, value, provenance, reason; the known ones first, then in declared order."""
    rows = [(name, unit, getattr(pool.rates, name)) for name, unit in RATE_UNITS.items()]
    rows.sort(key=lambda row: row[2].value is None)
    return {
        "rate": [t(f"worker.rate_{name}") for name, _, _ in rows],
        "value": [shown(figure, unit, t) for _, unit, figure in rows],
        "from": [badge(figure, t) for _, _, figure in rows],
        "reason": [t.said(figure.reason) for _, _, figure in rows],
    }


def rate_names() -> list[str]:
    """Return the figures of PoolRates, window aside."""
    return [f.name for f in fields(PoolRates) if f.name != "window_s"]


def raw(reading: PoolReading, t: Say) -> dict[str, list[Any]]:
    """Return every raw signal the source gave: name, value, kind, meaning; what it did not give is left out."""
    known = [
        (f.name, getattr(reading, f.name), f.metadata["kind"], f.metadata["help"])
        for f in fields(PoolReading)
        if f.metadata and getattr(reading, f.name) is not None
    ]
    return {
        "name": [name for name, _, _, _ in known],
        "value": [float(value) for _, value, _, _ in known],
        "kind": [t.said(kind) for _, _, kind, _ in known],
        "meaning": [t.said(text) for _, _, _, text in known],
    }


def missing(reading: PoolReading) -> list[str]:
    """Return the signals the source did not give, in declared order."""
    kinds = (GAUGE, COUNTER, CONSTANT)
    return [
        f.name
        for f in fields(PoolReading)
        if f.metadata and f.metadata["kind"] in kinds and getattr(reading, f.name) is None
    ]


def polls(outcomes: Sequence[Any], t: Say) -> dict[str, list[Any]]:
    """Return the newest polls first: when, state, duration, status, bytes, pools, understood, left out, detail."""
    newest = list(outcomes)[::-1]
    return {
        "at": [number.clock(poll.started_at_s) for poll in newest],
        "state": [t(f"common.state_{poll.state.value}") for poll in newest],
        "duration": [round(poll.duration_s * 1e3, 1) for poll in newest],
        "status": [poll.http_status for poll in newest],
        "bytes": [poll.byte_count for poll in newest],
        "pools": [poll.pool_count for poll in newest],
        "rejected": [poll.rejected_count for poll in newest],
        "ignored": [poll.ignored_count for poll in newest],
        "detail": [" ".join(filter(None, (poll.error_kind, t.said(poll.detail)))) for poll in newest],
    }


def ratio_of_rises(history: PoolHistory, above: str, below: str | None) -> FloatArray:
    """
    Return, sample by sample, the rise of counter `above` over the rise of counter `below` (of time when None).

    NaN at the first sample, over a restart (a counter that fell), where nothing rose below, and where unknown.
    """
    at_s = history.at_s
    unknown = np.full(len(at_s), np.nan)
    if len(at_s) < 2:
        return unknown
    top = np.diff(history.columns.get(above, unknown))
    bottom = np.diff(at_s) if below is None else np.diff(history.columns.get(below, unknown))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((top >= 0) & (bottom > 0), top / bottom, np.nan)
    return np.concatenate([[np.nan], ratio])

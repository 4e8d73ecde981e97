"""
Samples of an exposition by DP rank: what vLLM, TensorRT-LLM and Dynamo bodies share.

Identity is the rank label, never the process: several API server processes behind one port may each export a gauge
under their own `pid`. Such copies are neither summed nor averaged; where more than one is alive the value is not
known and the largest is its upper bound.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from collectors.engines.contract import Answer, NotUnderstood
from collectors.engines.numbers import Numbers, as_text
from collectors.exposition import Exposition, Sample, bare_name

MOST_RANKS: Final = 1024
"""More ranks behind one port than any deployment has; a body that names more is not believed beyond it."""
MOST_BUCKETS: Final = 128
_PROCESS_LABELS: Final = frozenset({"pid", "process", "multiprocess_mode"})
_NO_RANK: Final = frozenset({"", "None", "none", "null"})


@dataclass(frozen=True, slots=True)
class Gauge:
    """
    What a rank's copies of one gauge say together.

    Attributes:
        value: The one live value, or None when unknown or when live copies disagree.
        high: The largest live copy where they disagree, else None.
        live_count: Copies with a value other than 0.
    """

    value: float | None
    high: float | None = None
    live_count: int = 0


@dataclass(slots=True)
class Histogram:
    """Sum and count of a histogram of one rank, None where unknown."""

    sum: float | None = None
    count: float | None = None


@dataclass(slots=True)
class RankedSeries:
    """
    Samples under one prefix, by bare name and rank.

    Attributes:
        samples: (bare name, rank) -> samples.
        ranks: Ranks seen, ascending.
        rejected_count: Samples whose rank label is no rank.
    """

    samples: dict[tuple[str, int], list[Sample]] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    rejected_count: int = 0

    @classmethod
    def of(
        cls, exposition: Exposition, prefix: str, rank_labels: tuple[str, ...] = ("engine", "dp_rank")
    ) -> "RankedSeries":
        """Return the samples of `prefix:` and `prefix_` names; a sample without a rank label belongs to rank 0."""
        made = cls()
        ranks: set[int] = set()
        for sample in exposition.samples:
            name = bare_name(sample.name, prefix)
            if name == sample.name:
                continue
            rank = _rank(sample.labels, rank_labels)
            if rank is None or (rank not in ranks and len(ranks) >= MOST_RANKS):
                made.rejected_count += 1
                continue
            ranks.add(rank)
            made.samples.setdefault((name, rank), []).append(sample)
        made.ranks = sorted(ranks)
        return made

    def gauge(self, rank: int, *names: str) -> Gauge:
        """Return the first of `names` that the rank has, copies of processes merged."""
        for name in names:
            found = self.samples.get((name, rank))
            if found:
                return _merged(found)
        return Gauge(None)

    def total(self, rank: int, *names: str, **only: str) -> float | None:
        """Return a counter summed over its own labels (finish reason, source), copies of processes merged first."""
        for name in names:
            found = self.samples.get((name, rank))
            if found and only:
                found = [s for s in found if all(s.labels.get(label) == value for label, value in only.items())]
            if not found:
                continue
            if len(found) == 1:
                return found[0].value
            parts = [_merged(copies).value for copies in _by_labels(found, _PROCESS_LABELS).values()]
            return None if any(part is None for part in parts) else sum(p for p in parts if p is not None)
        return None

    def histogram(self, rank: int, *names: str) -> Histogram:
        """Return the first histogram of `names` that the rank has; buckets of several label sets are added by bound."""
        for name in names:
            made = Histogram(sum=self.total(rank, f"{name}_sum"), count=self.total(rank, f"{name}_count"))
            if made.sum is not None or made.count is not None:
                return made
        return Histogram()

    def buckets(self, rank: int, *names: str) -> tuple[tuple[float, float], ...] | None:
        """Return the cumulative buckets of the first of `names` that has them whole, label sets added by bound."""
        for name in names:
            if (f"{name}_bucket", rank) in self.samples:
                return self._buckets(rank, f"{name}_bucket")
        return None

    def _buckets(self, rank: int, name: str) -> tuple[tuple[float, float], ...] | None:
        found = self.samples.get((name, rank))
        if not found or len({sample.labels.get("le") for sample in found}) > MOST_BUCKETS:
            return None
        bounds: dict[float, float] = {}
        for copies in _by_labels(found, _PROCESS_LABELS).values():
            value = _merged(copies).value
            try:
                bound = float(copies[0].labels.get("le", "nan"))
            except ValueError:
                return None
            if value is None or bound != bound or value < 0:
                return None
            bounds[bound] = bounds.get(bound, 0.0) + value
        rows = tuple(sorted(bounds.items()))
        is_whole = rows[-1][0] == float("inf")
        is_rising = all(left[1] <= right[1] for left, right in pairwise(rows))
        return rows if is_whole and is_rising else None

    def label(self, rank: int, name: str, *labels: str) -> str | None:
        """Return the first of `labels` on a sample of `name` for the rank, as bounded text."""
        for sample in self.samples.get((name, rank), ()):
            for label in labels:
                text = as_text(sample.labels.get(label))
                if text is not None:
                    return text
        return None

    def any_label(self, rank: int, label: str) -> str | None:
        """Return `label` of any sample of the rank, as bounded text."""
        for (_, at), samples in self.samples.items():
            if at == rank:
                for sample in samples:
                    text = as_text(sample.labels.get(label))
                    if text is not None:
                        return text
        return None


def _rank(labels: Mapping[str, str], rank_labels: tuple[str, ...]) -> int | None:
    for label in rank_labels:
        text = labels.get(label)
        if text is None or text in _NO_RANK:
            continue
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None
    return 0


def _by_labels(samples: Iterable[Sample], without: frozenset[str]) -> dict[tuple[tuple[str, str], ...], list[Sample]]:
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        labels = sample.labels
        kept = labels.items() if without.isdisjoint(labels) else [(k, v) for k, v in labels.items() if k not in without]
        key = tuple(sorted(kept))
        groups.setdefault(key, []).append(sample)
    return groups


def _merged(copies: list[Sample]) -> Gauge:
    """Merge copies of one series: the one that is not 0 counts; several that differ leave the value unknown."""
    if len(copies) == 1:
        value = copies[0].value
        return Gauge(value, live_count=int(bool(value)))
    known = [sample.value for sample in copies if sample.value is not None]
    live = sorted({value for value in known if value != 0.0})
    if len(live) > 1:
        return Gauge(None, high=live[-1], live_count=len(live))
    if live:
        return Gauge(live[0], live_count=1)
    return Gauge(0.0 if known else None)


def take_gauge(numbers: Numbers, gauge: Gauge, name: str, source: str, *, largest: float | None = None) -> float | None:
    """Return a merged gauge as a credible number; copies that disagree are refused and named."""
    if gauge.high is not None:
        numbers.refuse(
            gauge.high, name, source=source, why=f"{gauge.live_count} processes disagree, this is the largest"
        )
        return None
    if largest is None:
        return numbers.take(gauge.value, name, source=source)
    return numbers.take(gauge.value, name, source=source, largest=largest)


def refusal(answers: Mapping[str, Answer], path: str, engine: str) -> NotUnderstood | None:
    """Return why the essential answer at `path` cannot be read, or None when it is a 200 with a body."""
    answer = answers.get(path)
    if answer is None:
        return NotUnderstood("no-answer", f"{engine}: nothing came back for {path}; is the address right?")
    if answer.status in (401, 403):
        return NotUnderstood(
            "unauthorised",
            f"{engine}: {path} answered {answer.status}; give the worker's token in the fleet file.",
            is_unauthorised=True,
        )
    if answer.status >= 500:
        return NotUnderstood(
            "metrics-broken", f"{engine}: {path} answered {answer.status}: the worker is alive, its figures are not."
        )
    if answer.status != 200:
        return NotUnderstood(
            "wrong-status", f"{engine}: {path} answered {answer.status}, expected 200; are metrics switched on?"
        )
    if not answer.body.strip():
        return NotUnderstood("empty-body", f"{engine}: {path} answered 200 with nothing in it.")
    return None

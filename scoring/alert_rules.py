"""
Alert rules: when somebody is told, when it is over, and what is kept quiet. Pure; the clock is an argument.

A rule compares one figure of a pool (or of the saturation chain) with a limit. It fires after the comparison has held
for `for_s` and resolves after it has not for `clear_s`; between `value` and `clear_value` nothing changes, so that a
figure on the edge does not flap. A figure that is not known neither fires nor resolves anything.

Read next: `collectors.alerts` (delivery, store).
"""

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from scoring.chain import ChainState
from scoring.chain_evidence import Stage
from scoring.model import PoolSnapshot, Severity

Values = Mapping[str, float | None]

FIRING: Final = "firing"
RESOLVED: Final = "resolved"
GROUPINGS: Final = ("pool", "worker", "role", "rule")


def _ratio(pool: PoolSnapshot) -> float | None:
    committed, usable = pool.composition.committed_tokens.value, pool.composition.usable_tokens.value
    return committed / usable if committed is not None and usable else None


_CHAIN_FIGURES: Final[Mapping[str, Callable[[ChainState], float | None]]] = {
    "alarm": lambda chain: float(chain.alarm.is_on) if chain.alarm.basis else None,
    "stage": lambda chain: float(chain.stage),
    "danger": lambda chain: float(chain.risk.is_danger),
    "retraction_probability": lambda chain: chain.risk.retraction_probability,
    "exhausted_probability": lambda chain: chain.risk.exhausted_probability,
    "thin_probability": lambda chain: chain.risk.thin_probability,
    "exhaustion_s": lambda chain: chain.risk.expected_exhaustion_s,
    "headroom_tokens": lambda chain: chain.risk.headroom_tokens,
    "high_water_s": lambda chain: chain.risk.high_water_s,
    "ttft_s": lambda chain: chain.at.ttft_s,
    "itl_s": lambda chain: chain.at.itl_s,
}
_POOL_FIGURES: Final[Mapping[str, Callable[[PoolSnapshot], float | None]]] = {
    "committed_ratio": _ratio,
    "available_tokens": lambda pool: pool.composition.available_tokens.value,
    "waiting_count": lambda pool: pool.waiting_count.value,
    "bootstrap_count": lambda pool: pool.queue_bootstrap_count.value,
    "inflight_count": lambda pool: pool.queue_inflight_count.value,
    "prealloc_ready_count": lambda pool: pool.prealloc_ready_count.value,
    "retracted_per_s": lambda pool: pool.rates.retracted_per_s.value,
    "evicted_tokens_per_s": lambda pool: pool.rates.evicted_tokens_per_s.value,
    "transfer_drain_s": lambda pool: pool.rates.transfer_drain_s.value,
}
BLIND_FIGURES: Final = ("cannot_see", "age_s")
"""Figures that are known exactly when nothing else is."""
FIGURES: Final = (*_CHAIN_FIGURES, *_POOL_FIGURES, *BLIND_FIGURES)


def values_of(pool: PoolSnapshot, chain: ChainState) -> dict[str, float | None]:
    """Return every figure a rule may ask of a pool; None where unknown, all but two where nothing can be seen."""
    is_blind = chain.stage is Stage.CANNOT_SEE or chain.blind_at_s is not None
    values: dict[str, float | None] = {"cannot_see": float(chain.stage is Stage.CANNOT_SEE), "age_s": pool.age_s}
    for name, of in _CHAIN_FIGURES.items():
        values[name] = None if is_blind else of(chain)
    for name, of_pool in _POOL_FIGURES.items():
        values[name] = None if is_blind else of_pool(pool)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One rule, as a table of the fleet file's `[[alerts.rules]]`.

    Attributes:
        name: Unique.
        figure: One of FIGURES.
        above: Fires at or above this ...
        below: ... or at or below this; exactly one of the two.
        clear_value: Resolves only beyond this; the limit itself when absent.
        for_s: How long it must hold before it fires.
        clear_s: How long it must not before it resolves.
        severity: info, warning or error.
        roles: Roles it is about; every role when empty.
        pools: Patterns of pool ids (`decode-*`), every pool when empty.
        group_by: What is told together: pool, worker, role or rule.
    """

    name: str
    figure: str
    above: float | None = None
    below: float | None = None
    clear_value: float | None = None
    for_s: float = 0.0
    clear_s: float = 15.0
    severity: Severity = Severity.WARNING
    roles: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    group_by: str = "worker"

    def wants(self, pool: PoolSnapshot) -> bool:
        """Say whether the rule is about this pool."""
        if self.roles and pool.role.value not in self.roles:
            return False
        return not self.pools or any(fnmatch.fnmatchcase(pool.pool_id, pattern) for pattern in self.pools)

    def holds(self, value: float) -> bool:
        """Say whether the comparison holds."""
        return value >= self.above if self.above is not None else value <= (self.below or 0.0)

    def is_clear(self, value: float) -> bool:
        """Say whether the figure is on the good side of `clear_value`."""
        if self.above is not None:
            return value < (self.above if self.clear_value is None else self.clear_value)
        return value > ((self.below or 0.0) if self.clear_value is None else self.clear_value)

    @property
    def limit(self) -> float:
        """Return the limit."""
        return self.above if self.above is not None else self.below or 0.0


DEFAULT_RULES: Final = (
    Rule(name="saturation-alarm", figure="alarm", above=1.0, clear_s=5.0),
    Rule(name="retraction", figure="stage", above=float(Stage.RETRACTION), severity=Severity.ERROR, clear_s=15.0),
    Rule(name="danger-triple", figure="danger", above=1.0, for_s=5.0, clear_s=20.0),
    Rule(name="cannot-see", figure="cannot_see", above=1.0, for_s=20.0, clear_s=5.0),
)
"""What is watched when the fleet file names no rule of its own."""

_NUMBERS: Final = ("above", "below", "clear_value", "for_s", "clear_s")


def parse_rules(tables: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """
    Return the rules that tables describe; DEFAULT_RULES for none.

    Raises:
        ValueError: Every problem of every table, one a line, each with the rule's name.
    """
    problems: list[str] = []
    rules: list[Rule] = []
    for number, table in enumerate(tables, start=1):
        found = _problems(table, {rule.name for rule in rules})
        name = table.get("name")
        label = f"rule {name}" if isinstance(name, str) and name else f"rule {number}"
        problems += [f"{label}: {problem}" for problem in found]
        if not found:
            taken: dict[str, Any] = {
                key: float(value) if key in _NUMBERS else tuple(value) if isinstance(value, list | tuple) else value
                for key, value in table.items()
            }
            taken["severity"] = Severity(taken.get("severity", Severity.WARNING))
            rules.append(Rule(**taken))
    if problems:
        raise ValueError("\n".join(problems))
    return tuple(rules) or DEFAULT_RULES


def _problems(table: Mapping[str, Any], names: set[str]) -> list[str]:
    known = [spec.name for spec in fields(Rule)]
    found = [f"{key!r} is no key (known: {', '.join(known)})" for key in table if key not in known]
    name, figure = table.get("name"), table.get("figure")
    if not isinstance(name, str) or not name:
        found.append("name is missing: it must be a unique text")
    elif name in names:
        found.append("name is taken by an earlier rule")
    if figure not in FIGURES:
        found.append(f"figure is {figure!r}: must be one of {', '.join(FIGURES)}")
    if ("above" in table) == ("below" in table):
        found.append("needs exactly one of above and below")
    for key in _NUMBERS:
        value = table.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            found.append(f"{key} is {value!r}: must be a finite number")
        elif key.endswith("_s") and not 0 <= value <= 86_400:
            found.append(f"{key} is {value}: must be from 0 to 86400 seconds")
    if table.get("severity", "warning") not in [severity.value for severity in Severity]:
        found.append(f"severity is {table['severity']!r}: must be info, warning or error")
    if table.get("group_by", "worker") not in GROUPINGS:
        found.append(f"group_by is {table['group_by']!r}: must be one of {', '.join(GROUPINGS)}")
    for key in ("roles", "pools"):
        value = table.get(key, ())
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            found.append(f"{key} must be a list of texts")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """
    What is kept quiet for a while: known, shown, not delivered.

    Attributes:
        silence_id: Unique.
        rule, pool: Patterns (`*` for all).
        start_s, end_s: From and until when.
        by, comment: Who and why; free text.
    """

    silence_id: str
    rule: str = "*"
    pool: str = "*"
    start_s: float = 0.0
    end_s: float = math.inf
    by: str = ""
    comment: str = ""

    def covers(self, rule: str, pool: str, at_s: float) -> bool:
        """Say whether an alert is kept quiet at an instant."""
        return (
            self.start_s <= at_s < self.end_s
            and fnmatch.fnmatchcase(rule, self.rule)
            and fnmatch.fnmatchcase(pool, self.pool)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """
    One alert, from its begin to its end.

    Attributes:
        alert_id: `rule|pool|begin`, the same for its whole life.
        began_at_s: When the comparison began to hold; what the link of the alert points to.
        fired_at_s: When it fired: `for_s` later.
        resolved_at_s: None while it fires.
        value: Newest figure.
        text: A sentence with the numbers, as it fired or ended.
    """

    alert_id: str
    rule: str
    pool: str
    worker: str
    role: str
    severity: Severity
    figure: str
    limit: float
    value: float
    began_at_s: float
    fired_at_s: float
    resolved_at_s: float | None = None
    text: str = ""

    @property
    def state(self) -> str:
        """Return FIRING or RESOLVED."""
        return FIRING if self.resolved_at_s is None else RESOLVED

    def group(self, group_by: str) -> str:
        """Return the key under which it is told together with others."""
        return {
            "pool": f"{self.rule}|{self.pool}",
            "worker": f"{self.rule}|{self.worker}",
            "role": f"{self.rule}|{self.role}",
            "rule": self.rule,
        }[group_by]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One rule on one pool: its alert while it fires, and since when a change has been indicated."""

    alert: Alert | None = None
    pending_at_s: float | None = None
    seen_at_s: float | None = None


Watches = Mapping[tuple[str, str], Watch]
GONE_S: Final = 60.0
"""A pool that is not watched any more for so long ends its alerts (chosen)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A pool as rules see it."""

    pool: PoolSnapshot
    values: Values
    text: str = ""
    """What the chain says, added to the alert's sentence."""


def step_rules(
    watches: Watches, rules: Sequence[Rule], subjects: Sequence[Subject], at_s: float
) -> tuple[dict[tuple[str, str], Watch], tuple[Alert, ...]]:
    """Return the watches after one look at the fleet, and the alerts that fired or resolved with it."""
    after: dict[tuple[str, str], Watch] = {}
    changes: list[Alert] = []
    for rule in rules:
        for subject in subjects:
            if rule.wants(subject.pool):
                key = (rule.name, subject.pool.pool_id)
                after[key] = _watched(watches.get(key, Watch()), rule, subject, at_s, changes)
    for key, watch in watches.items():
        if key in after or watch.alert is None:
            continue
        if watch.seen_at_s is not None and at_s - watch.seen_at_s < GONE_S:
            after[key] = watch
        else:
            changes.append(replace(watch.alert, resolved_at_s=at_s, text="no longer watched: pool or rule is gone"))
    return after, tuple(changes)


def _watched(watch: Watch, rule: Rule, subject: Subject, at_s: float, changes: list[Alert]) -> Watch:
    value = subject.values.get(rule.figure)
    if value is None or not math.isfinite(value):
        return Watch(alert=watch.alert, seen_at_s=at_s)
    is_firing = watch.alert is not None
    wants_change = rule.is_clear(value) if is_firing else rule.holds(value)
    newest = None if watch.alert is None else replace(watch.alert, value=value)
    if not wants_change:
        return Watch(alert=newest, seen_at_s=at_s)
    pending = watch.pending_at_s if watch.pending_at_s is not None and watch.pending_at_s <= at_s else at_s
    if at_s - pending < (rule.clear_s if is_firing else rule.for_s):
        return Watch(alert=newest, pending_at_s=pending, seen_at_s=at_s)
    if newest is not None:
        text = f"{_figure_text(rule, value)}; {subject.text}" if subject.text else _figure_text(rule, value)
        changes.append(replace(newest, resolved_at_s=at_s, text=f"over: {text}"))
        return Watch(seen_at_s=at_s)
    fired = _fired(rule, subject, value, pending, at_s)
    changes.append(fired)
    return Watch(alert=fired, seen_at_s=at_s)


def _fired(rule: Rule, subject: Subject, value: float, began_at_s: float, at_s: float) -> Alert:
    pool = subject.pool
    text = f"{_figure_text(rule, value)}; {subject.text}" if subject.text else _figure_text(rule, value)
    return Alert(
        alert_id=f"{rule.name}|{pool.pool_id}|{began_at_s:.3f}",
        rule=rule.name,
        pool=pool.pool_id,
        worker=pool.worker_id,
        role=pool.role.value,
        severity=rule.severity,
        figure=rule.figure,
        limit=rule.limit,
        value=value,
        began_at_s=began_at_s,
        fired_at_s=at_s,
        text=text,
    )


def _figure_text(rule: Rule, value: float) -> str:
    if rule.figure == "stage":
        return f"stage {Stage(round(value)).word}"
    if rule.figure in _FLAGS:
        return _FLAGS[rule.figure][value >= 1.0]
    return f"{rule.figure} is {value:.6g} (limit {rule.limit:.6g})"


_FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "alarm": ("no longer near a retraction", "a retraction is near"),
    "danger": ("not all three signs of danger any more", "high for long, growing fast, little to reclaim"),
    "cannot_see": ("can be seen again", "cannot be seen"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """What silences there are; the newest of an id counts."""

    silences: tuple[Silence, ...] = field(default_factory=tuple)

    def covers(self, alert: Alert, at_s: float) -> Silence | None:
        """Return the silence that keeps an alert quiet at an instant, or None."""
        return next((each for each in self.silences if each.covers(alert.rule, alert.pool, at_s)), None)

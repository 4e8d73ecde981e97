"""
Alerts of a running fleet: after each cycle the chains are stepped, the rules judged, changes stored together with
the documents that tell of them, and the documents handed over by a thread of their own.

`watch(runtime)` is the only way in: one center a runtime, started with it or at the first page that asks. The store
holds all that must survive: alerts that fire, silences, documents not yet taken.

Read next: `scoring.alert_rules`, `alerts_outbox`, `alerts_watch`.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from collectors.alerts_delivery import (
    ALERTMANAGER,
    Receiver,
    alert_of,
    alertmanager_alerts,
    as_row,
    receivers_of,
    webhook_document,
)
from collectors.alerts_outbox import DELIVERY, DeliveryStats, Outbox
from collectors.alerts_thresholds import EVENT_FORETOLD
from collectors.alerts_watch import EVENT_WATCH, ChainWatch, as_event
from collectors.calibration import learner_of
from collectors.errors import StoreError
from collectors.judging import reserve_of
from collectors.settings import Settings
from collectors.store import AlertRecord, Event, Store
from scoring.alert_rules import (
    DEFAULT_RULES,
    FIRING,
    Alert,
    Quiet,
    Rule,
    Silence,
    Subject,
    Watch,
    parse_rules,
    step_rules,
    values_of,
)
from scoring.calibration_in_use import InUse
from scoring.chain import ChainSettings, ChainState
from scoring.model import FleetSnapshot, PoolHistory, Severity

EVENT_SILENCE: Final = "alert-silence"
LOOK_BACK_S: Final = 90 * 86_400.0
"""How far back a start looks for alerts that still fire (the store's default for events)."""
_FAR_S: Final = 366 * 86_400.0
_MOST: Final = 100_000
_log = logging.getLogger(__name__)


class Watched(Protocol):
    """What is asked of a running collector (`collectors.runtime.Runtime`)."""

    settings: Settings

    @property
    def store(self) -> Store:
        """Return the open store."""
        ...

    def histories(self) -> list[PoolHistory]:
        """Return the recent past of every pool."""
        ...

    def on_cycle(self, hook: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        """Call `hook` after each cycle; returns what takes it off again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An alert as a page shows it: fires or is over, and whether somebody keeps it quiet."""

    alert: Alert
    silence: Silence | None = None


class AlertCenter:
    """
    Watches a running fleet. Thread-safe.

    Args:
        runtime: Where snapshots, histories and the store come from.
        receivers: Who is told; the fleet file's when None.
        chain: Knobs of the chains; the fleet file's SLO sets what tail is long when None.
        given: Asked after each cycle for what calibration has in use: the reserve and every limit follow from it.
        clock: Wall clock, epoch seconds.
        first_wait_s: Wait after a first failed delivery.
    """

    def __init__(
        self,
        runtime: Watched,
        *,
        receivers: Sequence[Receiver] | None = None,
        chain: ChainSettings | None = None,
        given: Callable[[], InUse | None] = lambda: None,
        clock: Callable[[], float] = time.time,
        first_wait_s: float = 1.0,
    ) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._clock = clock
        self._public_url = None if settings.alerts.public_url is None else str(settings.alerts.public_url)
        self.problems: tuple[str, ...] = ()
        self.rules = self._rules_of(settings)
        known = receivers_of(settings.alerts) if receivers is None else tuple(receivers)
        self._receivers = {receiver.name: receiver for receiver in known}
        self._outbox = Outbox(
            lambda: runtime.store, known, clock=clock, first_wait_s=first_wait_s, reminders=self._reminders
        )
        known_chain = chain or ChainSettings(least_tail_s=settings.slo.interactive.ttft_budget_s)
        self.chains = ChainWatch(known_chain, reserve_of(settings), given=given)
        self._watches: Mapping[tuple[str, str], Watch] = {}
        self._told: set[str] = set()
        self._silences: dict[str, Silence] = {}
        self._unstored_events: list[Event] = []
        self._unstored_alerts: list[AlertRecord] = []
        self._lock = threading.RLock()
        self._remove: Callable[[], None] | None = None

    def _rules_of(self, settings: Settings) -> tuple[Rule, ...]:
        try:
            return parse_rules(settings.alerts.rules)
        except ValueError as error:
            # A fleet goes on being watched by the default rules; the page and the log say what is wrong.
            self.problems = tuple(str(error).splitlines())
            _log.error("alert rules refused, the default ones watch: %s", error)
            return DEFAULT_RULES

    # Life.

    def start(self) -> "AlertCenter":
        """Take up what the store holds, follow the cycles, begin to deliver; StoreError when it cannot be read."""
        with self._lock:
            if self._remove is None:
                self._restore()
                self._outbox.start()
                self._remove = self._runtime.on_cycle(self.look)
        return self

    def stop(self) -> None:
        """Stop following and delivering; what is pending stays in the store."""
        with self._lock:
            remove, self._remove = self._remove, None
        if remove is not None:
            remove()
        self._outbox.stop()

    def _restore(self) -> None:
        now_s = self._clock()
        store = self._runtime.store
        rows = store.newest_alerts(now_s - LOOK_BACK_S, now_s + _FAR_S, _MOST)
        self._outbox.load(rows)
        watches = {}
        for row in rows:
            if row.rule != DELIVERY and row.state == FIRING:
                alert = alert_of(row)
                watches[row.rule, row.subject] = Watch(alert=alert, seen_at_s=now_s)
                if row.details.get("is_told"):
                    self._told.add(alert.alert_id)
        self._watches = watches
        for event in reversed(store.events(now_s - LOOK_BACK_S, now_s + _FAR_S, [EVENT_SILENCE], None, _MOST)):
            silence = Silence(**event.details)
            self._silences[silence.silence_id] = silence
        self.chains.alarms.restore(store.events(now_s - LOOK_BACK_S, now_s + _FAR_S, [EVENT_FORETOLD], None, _MOST))
        self._unstored_events.append(
            Event(at_s=now_s, kind=EVENT_WATCH, text="saturation is watched from here on", details={})
        )

    # After each cycle.

    def look(self, fleet: FleetSnapshot) -> None:
        """Judge one snapshot. Changes that the store does not take are kept and stored with the next."""
        with self._lock:
            events = self.chains.look(fleet, self._runtime.histories())
            self._unstored_events += [as_event(event) for event in events]
            subjects = [
                Subject(pool=pool, values=values_of(pool, chain), text=_chain_text(chain))
                for pool in fleet.pools
                if (chain := self.chains.states.get(pool.pool_id)) is not None
            ]
            watches, changes = step_rules(self._watches, self.rules, subjects, fleet.at_s)
            before = set(self._told)
            documents = self._documents(watches, changes, fleet.at_s)
            # An alert told later than it fired (a silence ended) is noted as told, so that a restart knows it.
            changed = {alert.alert_id for alert in changes}
            late = [each.alert for each in watches.values() if each.alert is not None]
            late = [alert for alert in late if alert.alert_id in self._told - before - changed]
            rows = [self._record(alert, fleet.at_s) for alert in (*changes, *late)]
            rows += self._outbox.records(documents, fleet.at_s)
            self._watches = watches
            self._store(rows)

    def _documents(
        self, watches: Mapping[tuple[str, str], Watch], changes: Sequence[Alert], at_s: float
    ) -> dict[str, tuple[str, str, Any]]:
        """Return what must be told: alerts that fire untold and unsilenced, and ends of those that were told."""
        group_by = {rule.name: rule.group_by for rule in self.rules}
        quiet = Quiet(silences=tuple(self._silences.values()))
        groups: dict[str, list[Alert]] = {}
        for watch in watches.values():
            alert = watch.alert
            if alert is not None and alert.alert_id not in self._told and quiet.covers(alert, at_s) is None:
                groups.setdefault(alert.group(group_by.get(alert.rule, "worker")), []).append(alert)
                self._told.add(alert.alert_id)
        for alert in changes:
            if alert.resolved_at_s is not None and alert.alert_id in self._told:
                groups.setdefault(alert.group(group_by.get(alert.rule, "worker")), []).append(alert)
                self._told.discard(alert.alert_id)
        documents: dict[str, tuple[str, str, Any]] = {}
        for group, alerts in groups.items():
            for name in self._receivers:
                document_id = f"{DELIVERY}:{name}:{uuid.uuid4().hex}"
                body = (
                    alertmanager_alerts(alerts, at_s, self._public_url)
                    if name == ALERTMANAGER
                    else webhook_document(group, alerts, document_id, self._public_url)
                )
                documents[document_id] = (name, group, body)
        return documents

    def _record(self, alert: Alert, at_s: float) -> AlertRecord:
        return AlertRecord(
            at_s=at_s,
            alert_id=alert.alert_id,
            rule=alert.rule,
            subject=alert.pool,
            state=alert.state,
            severity=alert.severity.value,
            text=alert.text,
            details={
                **as_row(alert, self._public_url),
                "began_at_s": alert.began_at_s,
                "fired_at_s": alert.fired_at_s,
                "resolved_at_s": alert.resolved_at_s,
                "is_told": alert.alert_id in self._told,
            },
        )

    def _store(self, rows: Sequence[AlertRecord]) -> None:
        self._unstored_alerts += rows
        try:
            store = self._runtime.store
            if self._unstored_events:
                store.append_events(self._unstored_events)
                self._unstored_events = []
            if self._unstored_alerts:
                store.append_alerts(self._unstored_alerts)
        except StoreError as error:
            _log.warning("alerts wait for the store: %s", error)
            return
        taken, self._unstored_alerts = self._unstored_alerts, []
        self._outbox.take([row for row in taken if row.rule == DELIVERY])

    def _reminders(self) -> dict[str, Any]:
        """Return what an Alertmanager must hear again and again, or it takes it for over; asked by the outbox."""
        if ALERTMANAGER not in self._receivers:
            return {}
        told = [each.alert for each in self.standing() if each.silence is None and each.alert.alert_id in self._told]
        return {ALERTMANAGER: alertmanager_alerts(told, self._clock(), self._public_url)} if told else {}

    # What pages ask and do.

    def standing(self) -> list[Standing]:
        """Return the alerts that fire, gravest and newest first."""
        with self._lock:
            at_s = self._clock()
            quiet = Quiet(silences=tuple(self._silences.values()))
            found = [
                Standing(alert=watch.alert, silence=quiet.covers(watch.alert, at_s))
                for watch in self._watches.values()
                if watch.alert is not None
            ]
        grave = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
        return sorted(found, key=lambda each: (grave[each.alert.severity], -each.alert.began_at_s, each.alert.alert_id))

    def past(self, start_s: float, end_s: float, limit: int = 200) -> list[Alert]:
        """Return alerts that ended in [start_s, end_s), newest first; StoreError when the store cannot be read."""
        rows = self._runtime.store.alerts(start_s, end_s, 20 * limit)
        ended = [alert_of(row) for row in rows if row.rule != DELIVERY and row.state != FIRING]
        return ended[:limit]

    def chain(self, name: str) -> ChainState | None:
        """Return the chain of a pool, None before its first look."""
        return self.chains.states.get(name)

    def deliveries(self) -> DeliveryStats:
        """Return how telling goes."""
        return self._outbox.stats()

    @property
    def receiver_names(self) -> tuple[str, ...]:
        """Return who is told."""
        return tuple(self._receivers)

    def silences(self) -> list[Silence]:
        """Return the silences that hold now or later, the soonest to end first."""
        with self._lock:
            now_s = self._clock()
            return sorted((each for each in self._silences.values() if each.end_s > now_s), key=lambda each: each.end_s)

    def silence(
        self, rule: str = "*", pool: str = "*", seconds: float = 3600.0, by: str = "", comment: str = ""
    ) -> Silence:
        """
        Keep matching alerts quiet from now on for `seconds` and return the silence.

        Raises:
            ValueError: Not above 0, more than 30 days, or an empty pattern.
            StoreError: It could not be stored; then it does not hold either.
        """
        if not 0.0 < seconds <= 30 * 86_400.0:
            raise ValueError(f"seconds is {seconds}: a silence lasts above 0 and at most 30 days")
        if not rule or not pool:
            raise ValueError("rule and pool: write * for all")
        now_s = self._clock()
        made = Silence(
            silence_id=uuid.uuid4().hex,
            rule=rule,
            pool=pool,
            start_s=now_s,
            end_s=now_s + seconds,
            by=by[:200],
            comment=comment[:500],
        )
        self._keep(made, now_s, f"quiet for {seconds:.0f} s: {rule} on {pool}")
        return made

    def end_silence(self, silence_id: str) -> None:
        """End a silence now; what still fires under it is told. KeyError when there is none, StoreError."""
        with self._lock:
            before = self._silences[silence_id]
        now_s = self._clock()
        ended = Silence(
            silence_id=before.silence_id,
            rule=before.rule,
            pool=before.pool,
            start_s=before.start_s,
            end_s=now_s,
            by=before.by,
            comment=before.comment,
        )
        self._keep(ended, now_s, f"no longer quiet: {before.rule} on {before.pool}")

    def _keep(self, silence: Silence, at_s: float, text: str) -> None:
        details = {
            "silence_id": silence.silence_id,
            "rule": silence.rule,
            "pool": silence.pool,
            "start_s": silence.start_s,
            "end_s": silence.end_s,
            "by": silence.by,
            "comment": silence.comment,
        }
        self._runtime.store.append_events([Event(at_s=at_s, kind=EVENT_SILENCE, text=text, details=details)])
        with self._lock:
            self._silences[silence.silence_id] = silence


def _chain_text(chain: ChainState) -> str:
    if chain.stage > 0:
        sign = chain.light(chain.stage).sign
        return f"{chain.stage.word}: {sign.text}" if sign is not None else chain.stage.word
    return chain.blind_reason


def _given_of(runtime: Watched) -> InUse | None:
    learner = learner_of(runtime)
    return None if learner is None else learner.in_use()


_centers: list[tuple[Watched, AlertCenter]] = []
_guard = threading.Lock()


def watch(runtime: Watched) -> AlertCenter:
    """Return the center of this runtime, started at the first call; that of an earlier runtime is stopped."""
    with _guard:
        for known, center in _centers:
            if known is runtime:
                return center
        for _, center in _centers:
            center.stop()
        made = AlertCenter(runtime, given=lambda: _given_of(runtime)).start()
        _centers[:] = [(runtime, made)]
        return made

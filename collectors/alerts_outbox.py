"""
The outbox: what must be told and has not been taken yet. It lives in the store's alerts table, so that a restart or
a receiver that is away loses nothing.

A document is stored as `queued` in the same transaction as the change it tells of, and as `delivered` (or
`given-up`, after a day) when that is so. Delivery is at least once. Documents of one group and receiver keep their
order; a group that does not get through holds up no other.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collectors.alerts_delivery import RESEND_S, Receiver
from collectors.errors import DeliveryError, StoreError
from collectors.store import AlertRecord, Store

DELIVERY: Final = "delivery"
QUEUED, DELIVERED, GIVEN_UP = "queued", "delivered", "given-up"
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
GIVE_UP_S: Final = 86_400.0


@dataclass(slots=True)
class Pending:
    """
    One document on its way.

    Attributes:
        document_id: The same at every attempt and after a restart.
        queued_at_s: When it was stored.
        next_at_s: Not before; by the steady clock.
    """

    document_id: str
    receiver: str
    group: str
    queued_at_s: float
    body: Any
    attempts: int = 0
    next_at_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStats:
    """How telling goes, since the start."""

    delivered_count: int = 0
    failed_count: int = 0
    given_up_count: int = 0
    pending_count: int = 0
    problem: str = ""


def wait_s(attempts: int, draw: random.Random) -> float:
    """Return how long to wait after so many failures: twice as long each time, a little by chance, at most a minute."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (attempts - 1)) * draw.uniform(0.75, 1.0)


class Outbox:
    """
    Documents on their way, and the thread that hands them over.

    Args:
        store: Where they are kept.
        receivers: Who can be told; documents for others stay queued until a start that knows them, or are given up.
        clock: Wall clock, epoch seconds.
        reminders: Asked each RESEND_S: receiver -> what it must hear again. Handed over by the same thread as
            everything else, so that a reminder never overtakes the end of what it reminds of; kept nowhere.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        receivers: Sequence[Receiver],
        *,
        clock: Callable[[], float] = time.time,
        first_wait_s: float = FIRST_WAIT_S,
        reminders: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._store = store
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._clock = clock
        self._scale = first_wait_s / FIRST_WAIT_S
        self._draw = random.Random()
        self._pending: dict[str, Pending] = {}
        self._unstored: list[AlertRecord] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._end = False
        self._reminders = reminders
        self._remind_at_s = time.monotonic() + RESEND_S
        self._thread: threading.Thread | None = None
        self._delivered = self._failed = self._given_up = 0
        self._problem = ""

    def load(self, rows: Sequence[AlertRecord]) -> None:
        """Take up what a previous life left: the newest row of each document."""
        for row in sorted(rows, key=lambda each: each.at_s):
            if row.rule == DELIVERY and row.state == QUEUED:
                details = row.details
                self._pending[row.alert_id] = Pending(
                    row.alert_id, str(details["receiver"]), str(details["group"]), row.at_s, details["body"]
                )

    def start(self) -> None:
        """Begin to hand over."""
        self._thread = threading.Thread(target=self._run, name="kvscope-alerts", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; what is pending stays stored."""
        self._end = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        for receiver in self._receivers.values():
            receiver.close()

    def records(self, documents: Mapping[str, tuple[str, str, Any]], at_s: float) -> list[AlertRecord]:
        """Return the rows to store with a change: id -> (receiver, group, body)."""
        return [
            AlertRecord(
                at_s=at_s,
                alert_id=name,
                rule=DELIVERY,
                subject=group,
                state=QUEUED,
                severity="info",
                text=f"for {receiver}",
                details={"receiver": receiver, "group": group, "body": body},
            )
            for name, (receiver, group, body) in documents.items()
        ]

    def take(self, rows: Sequence[AlertRecord]) -> None:
        """Hand over what `records` made, once it is stored."""
        with self._lock:
            self.load(rows)
        self._wake.set()

    def stats(self) -> DeliveryStats:
        """Return how it goes."""
        with self._lock:
            return DeliveryStats(
                delivered_count=self._delivered,
                failed_count=self._failed,
                given_up_count=self._given_up,
                pending_count=len(self._pending),
                problem=self._problem,
            )

    def _run(self) -> None:
        while not self._end:
            self._wake.clear()
            for item in self._due():
                if self._end:
                    return
                self._attempt(item)
            self._remind_if_due()
            self._wake.wait(self._pause_s())

    def _remind_if_due(self) -> None:
        if time.monotonic() < self._remind_at_s:
            return
        self._remind_at_s = time.monotonic() + RESEND_S
        for name, body in self._reminders().items():
            try:
                self._receivers[name].send(body)
            except DeliveryError as error:
                with self._lock:
                    self._problem = f"{error} (a reminder)"

    def _due(self) -> list[Pending]:
        now_s = time.monotonic()
        with self._lock:
            heads: dict[tuple[str, str], Pending] = {}
            for item in self._pending.values():
                heads.setdefault((item.receiver, item.group), item)
            return [item for item in heads.values() if item.next_at_s <= now_s]

    def _pause_s(self) -> float:
        with self._lock:
            soonest = min((item.next_at_s for item in self._pending.values()), default=None)
        due_s = self._remind_at_s if soonest is None else min(soonest, self._remind_at_s)
        return min(RESEND_S, max(0.01, due_s - time.monotonic()))

    def _attempt(self, item: Pending) -> None:
        receiver = self._receivers.get(item.receiver)
        try:
            if receiver is None:
                raise DeliveryError(f"{item.receiver}: the fleet file names no such receiver any more")
            receiver.send(item.body)
        except DeliveryError as error:
            self._failed_once(item, str(error))
            return
        self._close(item, DELIVERED, f"delivered to {item.receiver} at attempt {item.attempts + 1}")

    def _failed_once(self, item: Pending, problem: str) -> None:
        item.attempts += 1
        item.problem = problem
        item.next_at_s = time.monotonic() + self._scale * wait_s(item.attempts, self._draw)
        with self._lock:
            self._failed += 1
            self._problem = f"{problem} (attempt {item.attempts})"
        if self._clock() - item.queued_at_s > GIVE_UP_S:
            self._close(item, GIVEN_UP, f"given up after {item.attempts} attempts: {problem}")

    def _close(self, item: Pending, state: str, text: str) -> None:
        with self._lock:
            self._pending.pop(item.document_id, None)
            if state == DELIVERED:
                self._delivered += 1
                self._problem = ""
            else:
                self._given_up += 1
            self._unstored.append(
                AlertRecord(
                    at_s=max(self._clock(), item.queued_at_s + 1e-6),
                    alert_id=item.document_id,
                    rule=DELIVERY,
                    subject=item.group,
                    state=state,
                    severity="info",
                    text=text,
                    details={"receiver": item.receiver, "group": item.group},
                )
            )
            rows = list(self._unstored)
        try:
            self._store().append_alerts(rows)
        except StoreError as error:
            # Told, and not noted: after a restart now it would be told again. Tried again with the next one.
            with self._lock:
                self._problem = str(error)
            return
        with self._lock:
            del self._unstored[: len(rows)]

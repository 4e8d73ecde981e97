"""Alerts end to end over real HTTP and a real store: nothing lost, nothing told twice but for cause, no flapping."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.alerts import AlertCenter
from collectors.alerts_outbox import DELIVERY, QUEUED
from collectors.settings import Settings
from collectors.store import Store, open_store
from scoring.model import FleetSnapshot, PoolHistory, PoolReading, Role, SourceState
from scoring.snapshot import judge_fleet

START_S = 1_780_000_000.0
USABLE = 100_000.0


class Receiver:
    """A real HTTP server that fails when told to and keeps what it took."""

    def __init__(self, statuses: Callable[[int], int]) -> None:
        self.seen: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = statuses(len(outer.seen))
                outer.seen.append(body)
                outer.headers.append(self.headers.get("Authorization"))
                if status == 0:
                    self.connection.close()
                    return
                if 200 <= status < 300:
                    outer.taken.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Fleet:
    """Stands in for the collector: hand-made pools, the real judge, the real store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.settings, self.store = settings, store
        self.hooks: list[Callable[[FleetSnapshot], None]] = []
        self.now_s = START_S
        self._past: dict[str, list[tuple[float, float]]] = {}
        self.state = SourceState.FRESH

    def on_cycle(self, hook: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        self.hooks.append(hook)
        return lambda: self.hooks.remove(hook)

    def histories(self) -> list[PoolHistory]:
        found = []
        for name, rows in self._past.items():
            at_s = np.array([row[0] for row in rows])
            used = np.array([row[1] for row in rows])
            last = PoolReading(
                worker_id=name,
                role=Role.UNIFIED,
                engine="vllm",
                received_at_s=float(at_s[-1]),
                usable_tokens=USABLE,
                used_tokens=float(used[-1]),
                running_count=4.0,
                waiting_count=0.0,
            )
            columns = {"usable_tokens": np.full(len(at_s), USABLE), "used_tokens": used}
            found.append(PoolHistory(last=last, at_s=at_s, columns=columns, poll_state=self.state))
        return found

    def cycle(self, seconds: float = 1.0, **used_ratio: float) -> None:
        """Let time pass and each named pool hold so much."""
        self.now_s += seconds
        for name, ratio in used_ratio.items():
            self._past.setdefault(name, []).append((self.now_s, ratio * USABLE))
        fleet = judge_fleet(self.histories(), self.now_s)
        for hook in tuple(self.hooks):
            hook(fleet)


RULE = {"name": "full", "figure": "committed_ratio", "above": 0.9, "clear_value": 0.8, "for_s": 2.0, "clear_s": 3.0}


def _settings(url: str | None, rules: Sequence[dict[str, Any]] = (RULE,), **more: Any) -> Settings:
    return Settings.model_validate({"alerts": {"webhook_url": url, "rules": list(rules), **more}})


def _center(fleet: Fleet, **more: Any) -> AlertCenter:
    return AlertCenter(fleet, clock=lambda: fleet.now_s, first_wait_s=0.02, **more).start()


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return an open store."""
    with open_store(tmp_path / "alerts.duckdb") as opened:
        yield opened


@pytest.fixture
def receiver() -> Iterator[Callable[[Callable[[int], int]], Receiver]]:
    """Return a maker of receivers, closed at the end."""
    made: list[Receiver] = []

    def make(statuses: Callable[[int], int]) -> Receiver:
        made.append(Receiver(statuses))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _states(documents: Sequence[dict[str, Any]], pool: str) -> list[str]:
    rows = [row for document in documents for row in document["alerts"] if row["pool"] == pool]
    return [row["state"] for row in rows]


@pytest.mark.parametrize("failure", [500, 0])
def test_a_webhook_that_fails_half_the_time_hears_everything_in_order(
    store: Store, receiver: Callable[..., Receiver], failure: int
) -> None:
    """Every change is taken exactly once per id and in order, whether each other attempt is refused or cut off."""
    hook = receiver(lambda number: failure if number % 2 == 0 else 200)
    fleet = Fleet(store, _settings(hook.url, public_url="https://kv.example/dash"))
    center = _center(fleet)
    for round_ in range(3):
        for _ in range(5):
            fleet.cycle(a=0.95, b=0.95 if round_ == 1 else 0.1)
        for _ in range(6):
            fleet.cycle(a=0.2, b=0.2)
    assert _until(lambda: center.deliveries().pending_count == 0)
    stats = center.deliveries()
    center.stop()
    assert _states(hook.taken, "a/0") == ["firing", "resolved"] * 3
    assert _states(hook.taken, "b/0") == ["firing", "resolved"]
    assert len({document["id"] for document in hook.taken}) == len(hook.taken) == stats.delivered_count == 8
    assert stats.failed_count >= 8
    first = hook.taken[0]["alerts"][0]
    assert first["began_at"] < first["fired_at"]
    assert first["link"] == f"https://kv.example/dash/saturation?at={START_S + 1:.3f}&pool=a%2F0"


def test_nothing_is_lost_over_a_restart(store: Store, receiver: Callable[..., Receiver]) -> None:
    """What no receiver took before a stop is taken after the next start, under the same id, and its end as well."""
    hook = receiver(lambda number: 200)
    dead = receiver(lambda number: 503)
    fleet = Fleet(store, _settings(dead.url))
    center = _center(fleet)
    for _ in range(4):
        fleet.cycle(a=0.95)
    assert _until(lambda: len(dead.seen) >= 1)
    center.stop()
    queued = [row for row in store.newest_alerts(0, START_S + 1e6) if row.rule == DELIVERY and row.state == QUEUED]
    assert len(queued) == 1

    again = Fleet(store, _settings(hook.url))
    again.now_s = fleet.now_s
    center = _center(again)
    assert _until(lambda: len(hook.taken) == 1)
    assert hook.taken[0]["id"] == queued[0].alert_id == dead.seen[0]["id"]
    standing = center.standing()
    assert [each.alert.pool for each in standing] == ["a/0"]
    assert standing[0].alert.began_at_s == pytest.approx(START_S + 1)
    for _ in range(5):
        again.cycle(a=0.1)
    assert _until(lambda: len(hook.taken) == 2)
    center.stop()
    assert _states(hook.taken, "a/0") == ["firing", "resolved"]
    assert hook.taken[1]["alerts"][0]["id"] == hook.taken[0]["alerts"][0]["id"]


def test_a_figure_on_the_edge_does_not_flap(store: Store, receiver: Callable[..., Receiver]) -> None:
    """A figure that crosses the limit every other second for minutes is one alert at most, and one end."""
    hook = receiver(lambda number: 200)
    fleet = Fleet(store, _settings(hook.url))
    center = _center(fleet)
    for number in range(120):
        fleet.cycle(a=0.95 if number % 2 else 0.85)
    assert center.standing() == []  # It never held for two seconds.
    for _ in range(4):
        fleet.cycle(a=0.95)
    for number in range(120):
        fleet.cycle(a=0.95 if number % 3 else 0.78)  # Never clear for three seconds.
    assert len(center.standing()) == 1
    for _ in range(6):
        fleet.cycle(a=0.5)
    assert _until(lambda: len(hook.taken) == 2)
    center.stop()
    assert _states(hook.taken, "a/0") == ["firing", "resolved"]


def test_silence_keeps_quiet_and_its_end_tells(store: Store, receiver: Callable[..., Receiver]) -> None:
    """A silenced alert is known and not told; when the silence ends it is; silences outlive a restart."""
    hook = receiver(lambda number: 200)
    fleet = Fleet(store, _settings(hook.url))
    center = _center(fleet)
    made = center.silence(rule="full", pool="a/*", seconds=60.0, by="operator", comment="known")
    for _ in range(5):
        fleet.cycle(a=0.95, b=0.95)
    assert _until(lambda: len(hook.taken) == 1)
    assert {each.alert.pool: each.silence is not None for each in center.standing()} == {"a/0": True, "b/0": False}
    center.stop()

    center = _center(fleet)
    assert [each.silence_id for each in center.silences()] == [made.silence_id]
    center.end_silence(made.silence_id)
    fleet.cycle(a=0.95, b=0.95)
    assert _until(lambda: len(hook.taken) == 2)
    for _ in range(5):
        fleet.cycle(a=0.1, b=0.1)
    assert _until(lambda: center.deliveries().pending_count == 0 and len(hook.taken) >= 4)
    center.stop()
    assert _states(hook.taken, "a/0") == ["firing", "resolved"]
    assert _states(hook.taken, "b/0") == ["firing", "resolved"]
    with pytest.raises(ValueError, match="30 days"):
        center.silence(seconds=math.inf)


def test_missing_data_neither_fires_nor_ends_an_alert(store: Store, receiver: Callable[..., Receiver]) -> None:
    """While a pool cannot be seen its alert goes on, no other begins but `cannot see`, and nothing is told as over."""
    hook = receiver(lambda number: 200)
    blind = {"name": "blind", "figure": "cannot_see", "above": 1.0, "for_s": 5.0, "clear_s": 1.0}
    fleet = Fleet(store, _settings(hook.url, (RULE, blind)))
    center = _center(fleet)
    for _ in range(5):
        fleet.cycle(a=0.95)
    fleet.state = SourceState.DOWN
    for _ in range(40):
        fleet.cycle()
    rules = sorted(each.alert.rule for each in center.standing())
    assert rules == ["blind", "full"]
    assert _until(lambda: center.deliveries().pending_count == 0)
    center.stop()
    assert _states(hook.taken, "a/0") == ["firing", "firing"]


def test_groups_are_told_together(store: Store, receiver: Callable[..., Receiver]) -> None:
    """Pools that fire in the same cycle under one group are one document; each alert is in it once."""
    hook = receiver(lambda number: 200)
    fleet = Fleet(store, _settings(hook.url, ({**RULE, "group_by": "rule"},)))
    center = _center(fleet)
    for _ in range(5):
        fleet.cycle(a=0.95, b=0.96, c=0.2)
    assert _until(lambda: len(hook.taken) == 1)
    center.stop()
    assert sorted(row["pool"] for row in hook.taken[0]["alerts"]) == ["a/0", "b/0"]
    assert hook.taken[0]["group"] == "full"


def test_secrets_stay_out_of_the_store(
    store: Store, receiver: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is sent as a bearer token; neither it nor the receiver's address is stored."""
    monkeypatch.setenv("HOOK_TOKEN", "s3cr3t-token")
    hook = receiver(lambda number: 500 if number == 0 else 204)
    fleet = Fleet(store, _settings(hook.url, webhook_token_env="HOOK_TOKEN"))
    center = _center(fleet)
    for _ in range(4):
        fleet.cycle(a=0.95)
    assert _until(lambda: len(hook.taken) == 1)
    center.stop()
    assert hook.headers == ["Bearer s3cr3t-token"] * 2
    stored = repr(store.alerts(0, START_S + 1e9)) + repr(store.events(0, START_S + 1e9))
    assert "s3cr3t" not in stored
    assert hook.url not in stored


def test_wrong_rules_are_told_and_the_default_ones_watch(store: Store) -> None:
    """A fleet with a broken rule is watched all the same, and every problem is named."""
    fleet = Fleet(store, _settings(None, ({"name": "x", "figure": "nonsense"}, {"name": "y", "figure": "alarm"})))
    center = _center(fleet)
    center.stop()
    assert any("nonsense" in problem for problem in center.problems)
    assert any("rule y: needs exactly one" in problem for problem in center.problems)
    assert [rule.name for rule in center.rules] == ["saturation-alarm", "retraction", "danger-triple", "cannot-see"]

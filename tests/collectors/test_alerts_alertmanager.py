"""Alerts in a real Debian Alertmanager: it fires, it is known by its labels, it ends, and a down one hears later."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from collectors.alerts_delivery import ALERTMANAGER, HttpReceiver, alertmanager_alerts
from collectors.alerts_outbox import Outbox
from collectors.store import open_store
from scoring.alert_rules import Alert
from scoring.model import Severity

BINARY = Path("/usr/bin/prometheus-alertmanager")
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="no prometheus-alertmanager (Debian package) installed")

CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Manager:
    """A real Alertmanager on a free loopback port, started when told."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "am.yml").write_text(CONFIG)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                str(BINARY),
                f"--config.file={self._folder / 'am.yml'}",
                f"--storage.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert _until(self._is_ready, 20.0)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False, timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are active now."""
        found = httpx.get(f"{self.url}/api/v2/alerts", trust_env=False, timeout=5.0)
        found.raise_for_status()
        return list(found.json())

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """Return an Alertmanager that is not running yet."""
    made = Manager(tmp_path)
    yield made
    made.stop()


def _alert(now_s: float, **changes: Any) -> Alert:
    values: dict[str, Any] = {
        "alert_id": f"full|decode-1/0|{now_s - 30:.3f}",
        "rule": "full",
        "pool": "decode-1/0",
        "worker": "decode-1",
        "role": "decode",
        "severity": Severity.ERROR,
        "figure": "committed_ratio",
        "limit": 0.9,
        "value": 0.97,
        "began_at_s": now_s - 30.0,
        "fired_at_s": now_s - 28.0,
        "text": "committed_ratio is 0.97 (limit 0.9)",
    }
    return Alert(**{**values, **changes})


def test_an_alert_lives_and_ends_in_a_real_alertmanager(manager: Manager) -> None:
    """It is active under its labels, hearing it again makes no second one, and its end takes it away."""
    manager.start()
    receiver = HttpReceiver(ALERTMANAGER, f"{manager.url}/api/v2/alerts")
    now_s = time.time()
    alert = _alert(now_s)
    receiver.send(alertmanager_alerts([alert], now_s, "https://kv.example"))
    receiver.send(alertmanager_alerts([_alert(now_s, value=0.99)], now_s, "https://kv.example"))
    assert _until(lambda: len(manager.alerts()) == 1)
    (seen,) = manager.alerts()
    assert seen["labels"]["alertname"] == "full"
    assert seen["labels"]["pool"] == "decode-1/0"
    assert seen["status"]["state"] == "active"
    assert datetime.fromisoformat(seen["startsAt"]).timestamp() == pytest.approx(now_s - 30.0, abs=0.01)
    assert seen["generatorURL"].startswith("https://kv.example/saturation?at=")
    receiver.send(alertmanager_alerts([_alert(now_s, resolved_at_s=time.time() - 0.1)], time.time(), None))
    assert _until(lambda: manager.alerts() == [])
    receiver.close()


def test_an_alertmanager_that_is_down_hears_it_when_it_is_back(manager: Manager, tmp_path: Path) -> None:
    """Retries go on until it listens; then the alert is there, and the store says that it was delivered."""
    now_s = time.time()
    with open_store(tmp_path / "outbox.duckdb") as store:
        receiver = HttpReceiver(ALERTMANAGER, f"{manager.url}/api/v2/alerts")
        outbox = Outbox(lambda: store, [receiver], first_wait_s=0.05)
        outbox.start()
        body = alertmanager_alerts([_alert(now_s)], now_s, None)
        rows = outbox.records({"delivery:1": (ALERTMANAGER, "full|decode-1", body)}, now_s)
        store.append_alerts(rows)
        outbox.take(rows)
        assert _until(lambda: outbox.stats().failed_count >= 2)
        manager.start()
        assert _until(lambda: outbox.stats().delivered_count == 1, 20.0)
        assert [each["labels"]["pool"] for each in manager.alerts()] == ["decode-1/0"]
        assert _until(lambda: store.newest_alerts(now_s - 1, now_s + 3600)[0].state == "delivered")
        outbox.stop()

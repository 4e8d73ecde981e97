"""
How an alert is told: the documents of the receivers and one attempt to hand one over.

A webhook takes one JSON document a group; an Alertmanager takes its own v2 API. Both may see a document twice (a
receiver that took it and failed to say so gets it again), so a webhook's document carries an id that stays the same,
and an Alertmanager knows an alert by its labels.

Read next: `alerts_outbox` (nothing is lost), `alerts` (who is told what).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import httpx

from collectors.errors import DeliveryError
from collectors.settings import read_secret
from collectors.settings.model import AlertSettings
from collectors.store import AlertRecord
from scoring.alert_rules import Alert
from scoring.model import Severity

WEBHOOK: Final = "webhook"
ALERTMANAGER: Final = "alertmanager"
DOCUMENT_VERSION: Final = 1
TIMEOUT_S: Final = 10.0
"""Chosen: what a receiver that will answer at all needs; the next attempt waits anyway."""
RESEND_S: Final = 60.0
"""An Alertmanager forgets an alert that is not sent again; Prometheus repeats once a minute too."""
HOLD_S: Final = 300.0
"""How long an Alertmanager may keep an alert firing without hearing of it (its own default)."""


def link_to(alert: Alert, public_url: str | None) -> str:
    """Return the address of the Saturation page at the instant the alert began, relative without a public URL."""
    query = urlencode({"at": f"{alert.began_at_s:.3f}", "pool": alert.pool})
    return f"{(public_url or '').rstrip('/')}/saturation?{query}"


def as_row(alert: Alert, public_url: str | None) -> dict[str, Any]:
    """Return an alert as JSON-able words and numbers: what is stored, shown and sent."""
    return {
        "id": alert.alert_id,
        "rule": alert.rule,
        "state": alert.state,
        "severity": alert.severity.value,
        "pool": alert.pool,
        "worker": alert.worker,
        "role": alert.role,
        "figure": alert.figure,
        "value": alert.value,
        "limit": alert.limit,
        "began_at": _instant(alert.began_at_s),
        "fired_at": _instant(alert.fired_at_s),
        "resolved_at": None if alert.resolved_at_s is None else _instant(alert.resolved_at_s),
        "text": alert.text,
        "link": link_to(alert, public_url),
    }


def webhook_document(group: str, alerts: Sequence[Alert], document_id: str, public_url: str | None) -> dict[str, Any]:
    """Return the document of one group: firing while any of its alerts is."""
    return {
        "version": DOCUMENT_VERSION,
        "id": document_id,
        "group": group,
        "state": "firing" if any(alert.resolved_at_s is None for alert in alerts) else "resolved",
        "alerts": [as_row(alert, public_url) for alert in alerts],
    }


def alertmanager_alerts(alerts: Sequence[Alert], at_s: float, public_url: str | None) -> list[dict[str, Any]]:
    """
    Return alerts as `POST /api/v2/alerts` takes them; their labels never change while they live.

    A firing one ends by itself when nothing is heard of it for HOLD_S, a resolved one ended when it resolved.
    """
    rows = []
    for alert in alerts:
        ends_at_s = alert.resolved_at_s if alert.resolved_at_s is not None else at_s + HOLD_S
        row: dict[str, Any] = {
            "labels": {
                "alertname": alert.rule,
                "pool": alert.pool,
                "worker": alert.worker,
                "role": alert.role,
                "severity": alert.severity.value,
                "source": "kvscope",
            },
            "annotations": {
                "summary": f"{alert.rule} on {alert.pool}: {alert.text}",
                "began_at": _instant(alert.began_at_s),
                "link": link_to(alert, public_url),
            },
            "startsAt": _instant(alert.began_at_s),
            "endsAt": _instant(max(ends_at_s, alert.began_at_s)),
        }
        if public_url:
            row["generatorURL"] = link_to(alert, public_url)
        rows.append(row)
    return rows


def _instant(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def alert_of(row: AlertRecord) -> Alert:
    """Return a stored alert."""
    details = row.details
    return Alert(
        alert_id=row.alert_id,
        rule=row.rule,
        pool=row.subject,
        worker=str(details.get("worker", "")),
        role=str(details.get("role", "")),
        severity=Severity(row.severity),
        figure=str(details.get("figure", "")),
        limit=float(details.get("limit", 0.0)),
        value=float(details.get("value", 0.0)),
        began_at_s=float(details.get("began_at_s", row.at_s)),
        fired_at_s=float(details.get("fired_at_s", row.at_s)),
        resolved_at_s=details.get("resolved_at_s"),
        text=row.text,
    )


class Receiver(Protocol):
    """Who is told."""

    @property
    def name(self) -> str:
        """Stable word, as stored."""
        ...

    def send(self, body: Any) -> None:
        """Hand one document over; DeliveryError, without addresses or secrets in its text, when it was not taken."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class HttpReceiver:
    """
    A receiver behind an address.

    Args:
        name: WEBHOOK or ALERTMANAGER.
        url: Where to post. Never stored or logged: such addresses are often secrets.
        token_env: Environment variable with a bearer token, read at each attempt.
    """

    def __init__(self, name: str, url: str, token_env: str | None = None) -> None:
        self._name = name
        self._url = url
        self._token_env = token_env
        self._client = httpx.Client(trust_env=False, timeout=TIMEOUT_S, follow_redirects=False)

    @property
    def name(self) -> str:
        """Return its stable word."""
        return self._name

    def send(self, body: Any) -> None:
        """Post one document as JSON; only an answer of 2xx counts as taken."""
        token = read_secret(self._token_env)
        headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # The answer's body is of no interest and may be endless: only its head is read.
            with self._client.stream("POST", self._url, json=body, headers=headers) as response:
                status = response.status_code
        except httpx.HTTPError as error:
            raise DeliveryError(f"{self._name}: {type(error).__name__}") from None
        except (ValueError, UnicodeError, httpx.InvalidURL) as error:
            raise DeliveryError(f"{self._name}: its address or token cannot be used ({type(error).__name__})") from None
        if not 200 <= status < 300:
            raise DeliveryError(f"{self._name}: answered {status}")

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def receivers_of(settings: AlertSettings) -> tuple[Receiver, ...]:
    """Return the receivers the fleet file names."""
    found: list[Receiver] = []
    if settings.webhook_url is not None:
        found.append(HttpReceiver(WEBHOOK, str(settings.webhook_url), settings.webhook_token_env))
    if settings.alertmanager_url is not None:
        found.append(HttpReceiver(ALERTMANAGER, f"{str(settings.alertmanager_url).rstrip('/')}/api/v2/alerts"))
    return tuple(found)

"""
What later features keep beside the samples: events, alerts, profiles, replay runs. Small rows, whole JSON objects.

JSON is strict both ways: NaN and infinity are refused at the door, unknown is null.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collectors.errors import StoreError
from collectors.store.arrays import insert, json_text, texts, times
from collectors.store.batch import AlertRecord, Event, ProfileRecord, RunRecord
from collectors.store.connection import Database
from collectors.store.times import US_PER_S, to_s, to_us


class Records:
    """Events, alerts, profiles and runs; mixed into `Store`."""

    _database: Database

    def append_events(self, events: Sequence[Event]) -> None:
        """Store `events`; ValueError when one's details are no strict JSON."""
        if not events:
            return
        columns = {
            "ts": times([event.at_s for event in events]),
            "kind": texts([event.kind for event in events]),
            "subject": texts([event.subject for event in events]),
            "text": texts([event.text for event in events]),
            "details": texts([json_text(event.details, f"event {event.kind}") for event in events]),
        }
        with self._database.writing("storing events") as cursor:
            insert(cursor, "events", columns)

    def append_alerts(self, alerts: Sequence[AlertRecord]) -> None:
        """Store changes of alerts; ValueError when one's details are no strict JSON."""
        if not alerts:
            return
        columns = {
            "ts": times([alert.at_s for alert in alerts]),
            "alert_id": texts([alert.alert_id for alert in alerts]),
            "rule": texts([alert.rule for alert in alerts]),
            "subject": texts([alert.subject for alert in alerts]),
            "state": texts([alert.state for alert in alerts]),
            "severity": texts([alert.severity for alert in alerts]),
            "text": texts([alert.text for alert in alerts]),
            "details": texts([json_text(alert.details, f"alert {alert.alert_id}") for alert in alerts]),
        }
        with self._database.writing("storing alerts") as cursor:
            insert(cursor, "alerts", columns)

    def add_profile(self, name: str, profile: Mapping[str, Any], created_at_s: float) -> int:
        """Store the next version of profile `name` and return its number, 1 for the first."""
        text = json_text(profile, f"profile {name}")
        with self._database.writing("storing a profile") as cursor:
            version = cursor.execute(
                "select coalesce(max(version), 0) + 1 from profiles where name = ?", [name]
            ).fetchall()[0][0]
            cursor.execute(
                "insert into profiles values (?, ?, make_timestamp(?), null, ?)",
                [name, version, to_us(created_at_s), text],
            ).fetchall()
        return int(version)

    def apply_profile(self, name: str, version: int, applied_at_s: float) -> None:
        """Note that this version is in use from now on (going back to an old one is the same act)."""
        with self._database.writing("applying a profile") as cursor:
            changed = cursor.execute(
                "update profiles set applied_at = make_timestamp(?) where name = ? and version = ?",
                [to_us(applied_at_s), name, version],
            ).fetchall()[0][0]
            if not changed:
                raise StoreError(f"store: there is no version {version} of profile {name}")

    def add_run(self, run: RunRecord) -> None:
        """Keep a replay run; StoreError when its name is taken."""
        text = json_text(run.summary, f"run {run.name}")
        with self._database.writing("keeping a run") as cursor:
            if cursor.execute("select count(*) from runs where name = ?", [run.name]).fetchall() != [(0,)]:
                raise StoreError(f"store: a run named {run.name} is kept already; delete it or choose another name")
            cursor.execute(
                "insert into runs values (?, make_timestamp(?), ?, ?)",
                [run.name, to_us(run.created_at_s), text, run.parquet_path],
            ).fetchall()

    def delete_run(self, name: str) -> bool:
        """Forget a kept run (its Parquet file is the caller's); say whether there was one."""
        with self._database.writing("deleting a run") as cursor:
            return bool(cursor.execute("delete from runs where name = ?", [name]).fetchall()[0][0])

    def events(
        self,
        start_s: float,
        end_s: float,
        kinds: Iterable[str] | None = None,
        subject: str | None = None,
        limit: int = 1000,
    ) -> list[Event]:
        """Return events in [start_s, end_s), newest first, at most `limit`; of some kinds, about one subject."""
        with self._database.reading("reading events") as cursor:
            rows = cursor.execute(
                "select epoch_us(ts), kind, subject, text, details from events "
                "where ts >= make_timestamp(?) and ts < make_timestamp(?) "
                "and coalesce(list_contains(?::varchar[], kind), true) and coalesce(subject = ?, true) "
                "order by ts desc limit ?",
                [to_us(start_s), to_us(end_s), None if kinds is None else list(kinds), subject, limit],
            ).fetchall()
        return [
            Event(at_s=row[0] / US_PER_S, kind=row[1], subject=row[2], text=row[3], details=json.loads(row[4]))
            for row in rows
        ]

    def alerts(self, start_s: float, end_s: float, limit: int = 1000) -> list[AlertRecord]:
        """Return changes of alerts in [start_s, end_s), newest first, at most `limit`."""
        return self._alerts("", [to_us(start_s), to_us(end_s), limit])

    def newest_alerts(self, start_s: float, end_s: float, limit: int = 1000) -> list[AlertRecord]:
        """Return for each alert that changed in [start_s, end_s) its newest row, newest first, at most `limit`."""
        last = "qualify row_number() over (partition by alert_id order by ts desc, rowid desc) = 1 "
        return self._alerts(last, [to_us(start_s), to_us(end_s), limit])

    def _alerts(self, qualify: str, parameters: list[int]) -> list[AlertRecord]:
        with self._database.reading("reading alerts") as cursor:
            rows = cursor.execute(
                "select epoch_us(ts), alert_id, rule, subject, state, severity, text, details "  # noqa: S608
                "from alerts where ts >= make_timestamp(?) and ts < make_timestamp(?) "
                f"{qualify}order by ts desc, rowid desc limit ?",
                parameters,
            ).fetchall()
        return [
            AlertRecord(
                at_s=row[0] / US_PER_S,
                alert_id=row[1],
                rule=row[2],
                subject=row[3],
                state=row[4],
                severity=row[5],
                text=row[6],
                details=json.loads(row[7]),
            )
            for row in rows
        ]

    def profiles(self, name: str | None = None) -> list[ProfileRecord]:
        """Return kept profiles by name and version, ascending; of one name only if given."""
        with self._database.reading("reading profiles") as cursor:
            rows = cursor.execute(
                "select name, version, created_at, applied_at, profile from profiles "
                "where coalesce(name = ?, true) order by name, version",
                [name],
            ).fetchall()
        return [
            ProfileRecord(
                name=row[0],
                version=row[1],
                created_at_s=to_s(row[2]) or 0.0,
                applied_at_s=to_s(row[3]),
                profile=json.loads(row[4]),
            )
            for row in rows
        ]

    def runs(self) -> list[RunRecord]:
        """Return kept replay runs, newest first."""
        with self._database.reading("reading runs") as cursor:
            rows = cursor.execute(
                "select name, created_at, summary, parquet_path from runs order by created_at desc, name"
            ).fetchall()
        return [
            RunRecord(name=row[0], created_at_s=to_s(row[1]) or 0.0, summary=json.loads(row[2]), parquet_path=row[3])
            for row in rows
        ]

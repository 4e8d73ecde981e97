"""An export is the rows of its time range, typed, whole or not at all; wrong words are answered with right ones."""

import csv
import io
import json
import math
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qsl, urlsplit

import duckdb
import pytest

import cli
from collectors.errors import StoreError
from collectors.store import EXPORT_TABLES, CycleBatch, ExportRequest, Store, open_store, parse_export_query
from collectors.store.export import parse_instant
from scoring.model import PoolReading, signal_names

T0_S = 1_790_000_000.0


@pytest.fixture
def store() -> Store:
    """Return a store with 20 cycles of two pools."""
    with open_store(":memory:") as store:
        for k in range(20):
            store.append_cycle(
                CycleBatch(
                    cycle_at_s=T0_S + k,
                    duration_s=0.1,
                    readings=[
                        PoolReading(
                            worker_id=f"w'{i}",
                            received_at_s=T0_S + k,
                            engine="x",
                            used_tokens=float(k) if i else None,
                            ttft_buckets=((0.5, 1.0), (math.inf, float(k))),
                            anomalies=("kv_bytes",),
                        )
                        for i in range(2)
                    ],
                )
            )
        yield store


def test_parquet_keeps_types_and_says_what_columns_mean(store: Store, tmp_path: Path) -> None:
    """Every signal is a DOUBLE with NULL for unknown; times lie in the range, its end not included."""
    path = tmp_path / "o'ut.parquet"
    assert store.export_file(ExportRequest(start_s=T0_S + 5, end_s=T0_S + 10), path) == 10
    with duckdb.connect() as connection:
        rows = connection.execute(
            "select epoch_us(min(ts)), epoch_us(max(ts)), count(*), count(used_tokens), sum(used_tokens) "
            "from read_parquet(?)",
            [str(path)],
        ).fetchall()
        types = dict(
            connection.execute(
                "select column_name, column_type from (describe select * from read_parquet(?))", [str(path)]
            ).fetchall()
        )
        notes = dict(connection.execute("select key, value from parquet_kv_metadata(?)", [str(path)]).fetchall())
    assert rows == [((T0_S + 5) * 1e6, (T0_S + 9) * 1e6, 10, 5, 35.0)]
    assert {types[name] for name in signal_names()} == {"DOUBLE"}
    assert set(json.loads(notes[b"kvscope_signals"])) == set(signal_names())
    assert [file.name for file in tmp_path.iterdir()] == ["o'ut.parquet"], "no draft is left behind"


def test_csv_times_are_iso_in_utc(store: Store) -> None:
    """CSV has the same rows, unknown as an empty cell and times that say their zone."""
    text = store.export_bytes(ExportRequest(start_s=T0_S, end_s=T0_S + 2, format="csv")).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4
    assert rows[0]["ts"] == "2026-09-21T14:13:20.000000Z"
    assert [row["used_tokens"] for row in rows] == ["", "0.0", "", "1.0"]
    assert rows[0]["worker_id"] == "w'0"


@pytest.mark.parametrize("table", EXPORT_TABLES)
@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_every_table_exports_even_empty(store: Store, table: str, format_: str) -> None:
    """An empty stretch is a file with columns and no rows, for every table and format."""
    request = ExportRequest(start_s=0.0, end_s=1.0, table=table, format=format_)
    body = store.export_bytes(request)
    if format_ == "csv":
        assert len(body.decode().splitlines()) == 1
    else:
        assert body[:4] == body[-4:] == b"PAR1"
    assert request.file_name == f"kvscope_{table}_19700101T000000Z.{format_}"


def test_an_export_that_fails_leaves_what_was_there(store: Store, tmp_path: Path) -> None:
    """No folder, or a folder in the file's place: one sentence, and nothing half written."""
    request = ExportRequest(start_s=T0_S, end_s=T0_S + 1)
    with pytest.raises(StoreError, match="there is no folder"):
        store.export_file(request, tmp_path / "none" / "out.parquet")
    with pytest.raises(StoreError, match="is a folder"):
        store.export_file(request, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_words_for_times() -> None:
    """Ages, ISO with and without a zone, epoch seconds and now all name instants; anything else says what may be."""
    now_s = T0_S
    for text, at_s in (
        ("now", T0_S),
        ("15min", T0_S - 900),
        ("-1.5h", T0_S - 5400),
        ("2d", T0_S - 172800),
        ("2026-09-21T14:13:20Z", T0_S),
        ("2026-09-21 14:13:20", T0_S),
        ("2026-09-21T16:13:20+02:00", T0_S),
        ("1790000000.5", T0_S + 0.5),
    ):
        assert parse_instant(text, now_s) == at_s, text
    for text in ("yesterday", "", "nan", "inf", "1e300", "2026-13-01", "5 parsecs", "99999999h"):
        with pytest.raises(ValueError, match="write 2026"):
            parse_instant(text, now_s)


def test_words_for_requests() -> None:
    """Defaults are the last hour of readings; a wrong word is named with the right ones."""
    assert parse_export_query({}, T0_S) == ExportRequest(start_s=T0_S - 3600, end_s=T0_S)
    for query, words in (
        ({"table": "profiles"}, "table: there is no 'profiles'; choose one of readings"),
        ({"format": "xlsx"}, "format: there is no 'xlsx'"),
        ({"from": "now", "to": "1h"}, "is not after"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_export_query(query, T0_S)


class Owner(BaseHTTPRequestHandler):
    """A running KVScope's export route, reduced to what the command asks of it."""

    store: Store
    token: str | None = None

    def do_GET(self) -> None:
        """Answer /api/export."""
        url = urlsplit(self.path)
        if self.headers.get("authorization") != f"Bearer {self.token}":
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b"needs a token")
            return
        body = self.store.export_bytes(parse_export_query(dict(parse_qsl(url.query)), T0_S))
        self.send_response(200 if url.path == "/api/export" else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


def test_the_command_fetches_from_a_running_server(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--server` writes the file the owner would; a refusal ends non-zero with what the server said and no file."""
    handler = type("Handler", (Owner,), {"store": store, "token": "s3cret"})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    out = tmp_path / "out.csv"
    argv = ["export", "--server", f"http://127.0.0.1:{server.server_port}", "--from", str(T0_S), "--to"]
    argv += [str(T0_S + 3), "--format", "csv", "--out", str(out)]
    try:
        monkeypatch.delenv("KVSCOPE_TOKEN", raising=False)
        assert cli.main(argv) == 1
        said = capsys.readouterr()
        assert "answered 401: needs a token" in said.err
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setenv("KVSCOPE_TOKEN", "s3cret")
        assert cli.main(argv) == 0
        assert "s3cret" not in "".join(capsys.readouterr())
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
    assert out.read_bytes() == store.export_bytes(ExportRequest(start_s=T0_S, end_s=T0_S + 3, format="csv"))
    assert cli.main(argv) == 2
    assert "is KVScope serving there?" in capsys.readouterr().err


def test_the_command_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong times end with 3, a missing store with 1, an empty stretch with 0 and a hint; never a traceback."""
    path = tmp_path / "kv.duckdb"
    out = ["--out", str(tmp_path / "out.parquet")]
    assert cli.main(["export", "--store", str(path), "--from", "soon", *out]) == 3
    assert "write 2026" in capsys.readouterr().err
    assert cli.main(["export", "--store", str(path), *out]) == 1
    assert "there is no file" in capsys.readouterr().err
    open_store(path).close()
    assert cli.main(["export", "--store", str(path), *out]) == 0
    assert "no rows in that time; the store is empty" in capsys.readouterr().err

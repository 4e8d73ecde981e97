"""The routes beside the pages: strict answers, a token over http and websocket, headers on everything."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from collectors.runtime import Runtime
from collectors.settings import parse_settings
from pages import _context as context
from pages import _routes, _running
from pages.figures.live import ASSET_PATH
from scoring.snapshot import fleet_from_json

TOKEN = "correct horse"


async def _echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("open")
    await socket.close()


class Site:
    """Our routes and middleware behind a real server on a free port."""

    def __init__(self, token: str | None) -> None:
        routes = [*_routes.routes(), WebSocketRoute("/_stcore/stream", _echo)]
        app = Starlette(routes=routes, middleware=_routes.middleware(lambda: token))
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="websockets-sansio")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        end = time.monotonic() + 10
        while not self.server.started:
            assert time.monotonic() < end
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.socket_url = f"ws://127.0.0.1:{port}/_stcore/stream"
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)

    def close(self) -> None:
        """Stop and join."""
        self.http.close()
        self.server.should_exit = True
        self.thread.join(timeout=10)


@pytest.fixture(scope="module")
def sites() -> Iterator[Callable[[str | None], Site]]:
    """Return the maker of a site, one a token for the whole module."""
    made: dict[str | None, Site] = {}

    def site(token: str | None = None) -> Site:
        if token not in made:
            made[token] = Site(token)
        return made[token]

    yield site
    for one in made.values():
        one.close()


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Return a started collector of no workers with a real store."""
    settings = parse_settings(f'[store]\npath = "{tmp_path / "s.duckdb"}"\n', folder=tmp_path, name="fleet.toml")
    running = Runtime(settings).start()
    yield running
    running.stop()


def test_without_a_collector_routes_answer_with_a_reason(sites, watch) -> None:
    """503 with a sentence, never a traceback; health says that the server lives."""
    watch(None)
    client = sites().http
    assert client.get("/api/health").json() == {"status": "ok", "is_collecting": False}
    for path in ("/api/snapshot", "/api/export"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert "not running" in answer.json()["error"]
    assert "kvscope_up 0.0" in client.get("/metrics").text


def test_snapshot_is_strict_json_that_loads_again(sites, watch, fleet_of_demo) -> None:
    """The body is JSON without NaN and gives the same pools back."""
    watch(fleet_of_demo)
    answer = sites().http.get("/api/snapshot")
    assert answer.headers["content-type"] == "application/json"

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(answer.text, parse_constant=refuse)
    again = fleet_from_json(answer.text)
    assert [pool.pool_id for pool in again.pools] == [pool.pool_id for pool in fleet_of_demo.pools]


@pytest.mark.parametrize("query", ["at=yesterday", "at=%00", "at=nan", "at=inf", "at=1e99", "at=-1"])
def test_a_bad_instant_is_refused_with_what_to_write(sites, watch, fleet_of_demo, query) -> None:
    """400 and the way to write it."""
    watch(fleet_of_demo)
    answer = sites().http.get(f"/api/snapshot?{query}")
    assert answer.status_code == 400
    assert "2026-11-30" in answer.json()["error"]


def test_export_gives_a_file_and_refuses_nonsense(sites, idle) -> None:
    """Parquet by default; a bad table, format or range is 400 with what may be written."""
    client = sites().http
    answer = client.get("/api/export")
    assert answer.status_code == 200
    assert answer.content[:4] == b"PAR1"
    assert "attachment" in answer.headers["content-disposition"]
    for query in ("format=xls", "table=secrets", "from=now&to=1h", "from=never"):
        answer = client.get(f"/api/export?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["error"]


@pytest.mark.parametrize("path", ["/api/", "/api/snapshots", "/api/export/x"])
def test_an_address_that_is_none_is_said_in_json(sites, watch, path) -> None:
    """Whoever calls by program never gets a page."""
    watch(None)
    answer = sites(None).http.get(path)
    assert answer.status_code == 404
    assert "/api/snapshot" in answer.json()["error"]


def test_our_metrics_parse_and_count(sites, idle) -> None:
    """The exposition is valid for Prometheus's own parser, and no name is given twice."""
    text = sites().http.get("/metrics").text
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))
    assert {"kvscope_up", "kvscope_cycles", "kvscope_sources", "kvscope_store_ok"} <= set(names)


def test_metrics_leave_out_what_is_unknown(sites, watch, make_pool) -> None:
    """A pool whose committed is unknown has no sample; none is 0 for unknown."""
    from scoring.model import FleetSnapshot

    item = make_pool(usable=None, used=None, arrived=None, prefix=None)
    watch(FleetSnapshot(at_s=item.at_s, pools=(item,)))
    text = sites().http.get("/metrics").text
    assert "kvscope_pool_committed_ratio{" not in text
    assert 'kvscope_pools{role="decode",state="fresh"} 1.0' in text


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer wrong",
        "Bearer",
        "Basic !!!",
        "Basic " + base64.b64encode(b"user:wrong").decode(),
        "Basic " + base64.b64encode(b"no colon").decode(),
        f"Token {TOKEN}",
        "Bearer \xe9",
    ],
)
def test_without_the_token_nothing_is_shown(sites, watch, fleet_of_demo, authorization) -> None:
    """401 over http and a refusal over websocket for every shape of a wrong credential; health stays open."""
    watch(fleet_of_demo)
    client = sites(TOKEN).http
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    for path in ("/api/snapshot", "/metrics", "/api/export", f"/{ASSET_PATH}"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
    if authorization is None or authorization.isascii():
        shown = {} if authorization is None else {"authorization": authorization}
        with pytest.raises(InvalidStatus, match="403"), connect(sites(TOKEN).socket_url, additional_headers=shown):
            pass
    assert client.get("/api/health").status_code == 200


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", "Basic " + base64.b64encode(f"anyone:{TOKEN}".encode()).decode()]
)
def test_with_the_token_everything_is_shown(sites, watch, fleet_of_demo, authorization) -> None:
    """Programs send Bearer, browsers Basic; both open http and websocket."""
    watch(fleet_of_demo)
    client = sites(TOKEN).http
    headers = {"authorization": authorization}
    assert client.get("/api/snapshot", headers=headers).status_code == 200
    with connect(sites(TOKEN).socket_url, additional_headers=headers) as socket:
        assert socket.recv(timeout=5) == "open"


def test_every_answer_carries_the_security_headers(sites, watch) -> None:
    """Refusals too; nothing may be fetched from elsewhere."""
    watch(None)
    for client, status in ((sites().http, 200), (sites(TOKEN).http, 401)):
        answer = client.get("/metrics")
        assert answer.status_code == status
        for name, value in _routes.SECURITY_HEADERS:
            assert answer.headers[name.decode()] == value.decode()
    policy = dict(_routes.SECURITY_HEADERS)[b"content-security-policy"].decode()
    assert "http:" not in policy
    assert "https:" not in policy


def test_plotly_is_served_from_the_installed_package_and_kept(sites, watch) -> None:
    """The library comes from here, with its version in the path so that it can be cached for good."""
    answer = sites().http.get(f"/{ASSET_PATH}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    assert len(answer.content) > 1_000_000


def test_a_fleet_file_with_problems_starts_the_server_and_is_remembered(tmp_path, monkeypatch) -> None:
    """The server comes up, nothing collects, and the pages get every problem; then it can be stopped."""
    path = tmp_path / "fleet.toml"
    path.write_text('[poll]\ninterval_s = -1\n\n[[workers]]\nurl = "not a url"\n')
    monkeypatch.setenv("KVSCOPE_FLEET", str(path))
    began = time.monotonic()
    _running.start()
    try:
        (error,) = context._failure
        assert len(error.problems) >= 2
        assert _running.viewer_token() is None
    finally:
        _running.stop()
        context.set_failure(None)
    assert time.monotonic() - began < 10

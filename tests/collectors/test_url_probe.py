"""The guarded address test: off by default, nothing outside the list is reached, the checked address is used."""

import json
import socket
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from collectors.settings import parse_settings
from collectors.url_probe import (
    PinnedTransport,
    ProbeBusyError,
    ProbeRefusedError,
    UrlProbe,
    allowed_address,
    fleet_toml,
)

PAYLOADS = Path(__file__).resolve().parents[1] / "payloads" / "sglang" / "0.5.23-real"
LOOPBACK = '["127.0.0.0/8"]'


def _settings(tmp_path: Path, networks: str = LOOPBACK, *, is_on: bool = True):
    text = f"[server]\nis_url_test_on = {str(is_on).lower()}\nurl_test_networks = {networks}\n"
    return parse_settings(text, folder=tmp_path, name="fleet.toml")


@pytest.fixture
def serve():
    """Return the starter of a server: path -> (status, headers, body); requests are noted as (path, Host)."""
    servers = []

    def start(routes):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers["Host"], self.headers.get("Authorization")))
                status, headers, body = routes.get(self.path, (404, {}, b"{}"))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server.server_address[1], asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _worker_routes() -> dict:
    kind = {"Content-Type": "application/json"}
    return {
        "/v1/loads": (200, kind, (PAYLOADS / "load_v1_loads.json").read_bytes()),
        "/model_info": (200, kind, (PAYLOADS / "load_model_info.json").read_bytes()),
        "/metrics": (200, {"Content-Type": "text/plain"}, (PAYLOADS / "load_metrics.prom").read_bytes()),
    }


def test_it_is_off_unless_the_operator_turns_it_on(tmp_path, serve) -> None:
    """With the default settings nothing is asked, whatever the address."""
    port, asked = serve(_worker_routes())
    with pytest.raises(ProbeRefusedError, match="is off"):
        UrlProbe().ask(f"http://127.0.0.1:{port}", parse_settings("", folder=tmp_path, name="fleet.toml"))
    with pytest.raises(ProbeRefusedError, match="is off"):
        UrlProbe().ask(f"http://127.0.0.1:{port}", _settings(tmp_path, is_on=False))
    assert not asked


def test_a_worker_is_understood_and_its_file_loads(tmp_path, serve) -> None:
    """A real SGLang answer: engine, role, pools; the file to copy is a fleet file; no token is ever sent."""
    port, asked = serve(_worker_routes())
    report = UrlProbe().ask(f"127.0.0.1:{port}/", _settings(tmp_path))
    assert report.is_understood
    assert (report.engine, report.pool_count) == ("sglang", 1)
    assert report.usable_tokens
    assert {auth for _, _, auth in asked} == {None}
    settings = parse_settings(fleet_toml(report), folder=tmp_path, name="fleet.toml")
    assert settings.workers[0].url == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://169.254.169.254/latest", ["169.254.169.254"]),
        ("http://inside.example", ["10.0.0.5"]),
        ("http://both.example", ["192.0.2.10", "10.0.0.5"]),
        ("http://[::1]:8080", ["::1"]),
        ("http://[::ffff:10.0.0.5]", ["::ffff:10.0.0.5"]),
        ("http://zero.example", ["0.0.0.0"]),
        ("http://2130706433", ["127.0.0.1"]),
        ("http://nobody.example", []),
        ("http://user:secret@192.0.2.10", ["192.0.2.10"]),
        ("http://192.0.2.10@10.0.0.5", ["10.0.0.5"]),
        ("file:///etc/passwd", ["192.0.2.10"]),
        ("gopher://192.0.2.10", ["192.0.2.10"]),
        ("http://192.0.2.10:99999", ["192.0.2.10"]),
        ("http://" + "a" * 400, ["192.0.2.10"]),
        ("", ["192.0.2.10"]),
    ],
)
def test_what_is_not_wholly_inside_the_list_is_refused(url, found) -> None:
    """Every address a name resolves to must be allowed; odd spellings and other schemes are refused; none is echoed."""
    with pytest.raises(ProbeRefusedError) as refused:
        allowed_address(url, ["192.0.2.0/24"], lambda host, port: found)
    assert "10.0.0.5" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_ipv4_address_written_as_ipv6_counts_as_the_ipv4_one() -> None:
    """A mapped address inside the list is allowed as what it is."""
    base, address = allowed_address("http://x.example:1", ["192.0.2.0/24"], lambda host, port: ["::ffff:192.0.2.7"])
    assert (base, address) == ("http://x.example:1", "192.0.2.7")


def test_the_connection_goes_to_the_address_that_was_checked(tmp_path, serve) -> None:
    """A name that resolves elsewhere by then does not matter: it is looked up once, and Host stays the name."""
    port, asked = serve(_worker_routes())
    lookups = []

    def lookup(host: str, _port: int) -> list[str]:
        lookups.append(host)
        return ["127.0.0.1"]

    # The name does not exist for the system's resolver, so only the pinned address can have been used.
    report = UrlProbe(lookup=lookup).ask(f"http://worker.invalid:{port}", _settings(tmp_path))
    assert report.is_understood
    assert lookups == ["worker.invalid"]
    assert {host for _, host, _ in asked} == {f"worker.invalid:{port}"}


def test_redirects_are_not_followed(tmp_path, serve) -> None:
    """A worker that points elsewhere is a failure of kind redirect; the other place is never asked."""
    other, elsewhere = serve(_worker_routes())
    port, asked = serve({"/v1/loads": (302, {"Location": f"http://127.0.0.1:{other}/v1/loads"}, b"")})
    report = UrlProbe().ask(f"http://127.0.0.1:{port}", _settings(tmp_path))
    assert not report.is_understood
    assert asked
    assert not elsewhere


def test_nothing_of_an_answer_is_shown(tmp_path, serve) -> None:
    """A page of secrets that is no engine's answer leaves only the kind of failure behind."""
    body = json.dumps({"password": "hunter2"}).encode()
    port, _ = serve(
        {path: (200, {"Content-Type": "application/json"}, body) for path in ("/v1/loads", "/metrics", "/")}
    )
    report = UrlProbe().ask(f"http://127.0.0.1:{port}", _settings(tmp_path))
    assert not report.is_understood
    assert "hunter2" not in repr(report)
    assert "password" not in repr(report)


def test_nobody_there_is_a_kind_of_failure(tmp_path) -> None:
    """A port that nobody listens on is told as such."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    report = UrlProbe().ask(f"http://127.0.0.1:{port}", _settings(tmp_path))
    assert report.reason == "connect-refused"


def test_one_test_at_a_time_with_a_pause_between(tmp_path, serve) -> None:
    """A second test right after the first is told to wait; after the pause it is carried out."""
    port, _ = serve(_worker_routes())
    now = [100.0]
    probe = UrlProbe(steady=lambda: now[0])
    settings = _settings(tmp_path)
    assert probe.ask(f"http://127.0.0.1:{port}", settings).is_understood
    with pytest.raises(ProbeBusyError):
        probe.ask(f"http://127.0.0.1:{port}", settings)
    now[0] += 2.0
    assert probe.ask(f"http://127.0.0.1:{port}", settings).is_understood


async def _ask_other_host() -> None:
    transport = PinnedTransport("a.example", "192.0.2.1", httpx.MockTransport(lambda request: httpx.Response(200)))
    async with httpx.AsyncClient(transport=transport) as client:
        await client.get("http://b.example/")


def test_a_pinned_way_leads_to_one_host_only() -> None:
    """A request for another host than the one that was checked is refused before anything is sent."""
    import asyncio

    with pytest.raises(httpx.UnsupportedProtocol):
        asyncio.run(_ask_other_host())


def test_a_router_becomes_a_list_of_workers() -> None:
    """For a router the file reads its workers from it."""
    from collectors.url_probe import ProbeReport

    report = ProbeReport(url="http://r:1", is_understood=True, engine="router", router_worker_count=3)
    assert tomllib.loads(fleet_toml(report)) == {"discovery": {"sglang_router": ["http://r:1"]}}

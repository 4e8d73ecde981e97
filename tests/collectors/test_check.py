"""`kvscope check` over real HTTP and on saved answers: the object it prints, its findings, its exit status."""

import gzip
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import cli
from commands.check import as_json, as_text, check_files

ROOT = Path(__file__).resolve().parent.parent.parent
PAYLOADS = ROOT / "tests" / "payloads"
WORDS = (
    *("usable", "active", "in_flight", "prefix", "fragmentation", "free", "unattributed", "available"),
    *("reserved", "committed", "queued", "offloaded"),
)


@pytest.fixture
def serve():
    """Return the starter of a server: path -> (status, type, body), a callable for a body that changes, or headers."""
    servers = []

    def start(routes, token=None):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                status, kind, body, *more = routes.get(self.path, (404, "application/json", b'{"detail":"Not Found"}'))
                if token and self.headers.get("Authorization") != f"Bearer {token}":
                    status, kind, body, more = 401, "application/json", b'{"error":"Unauthorized"}', []
                body = body() if callable(body) else body
                self.send_response(status)
                self.send_header("Content-Type", kind)
                for name, value in more[0].items() if more else ():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def body(name):
    """A recorded SGLang body."""
    return (PAYLOADS / "sglang" / name).read_bytes()


def loads(shift_s=0.0, **changed):
    """A recorded decode answer moved to now."""
    payload = json.loads(body("0.5.23/loads_decode.json"))
    payload["loads"][0].update(timestamp=time.time() - shift_s, **changed)
    payload["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return json.dumps(payload).encode()


def run(capsys, *argv):
    """Exit status, object printed with --json."""
    status = cli.main(["check", *argv, "--json"])
    return status, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_worker_is_understood(serve, capsys):
    """Status 0, and every word of the vocabulary as value and provenance, unknown exactly when nothing is known."""
    url = serve(
        {
            "/v1/loads": (200, "application/json", loads),
            "/metrics": (200, "text/plain", body("0.5.23-real-2p2d/metrics_32002.prom")),
            "/model_info": (200, "application/json", body("0.5.23-real/load_model_info.json")),
        }
    )
    status, said = run(capsys, url)
    assert status == 0
    assert (said["engine"], said["version"], said["state"]) == ("sglang", "0.5.23", "fresh")
    (pool,) = said["pools"]
    assert (pool["dp_rank"], pool["role"]) == (0, "decode")
    for word in (*(f"{w}_tokens" for w in WORDS), "running_count", "waiting_count", "step_time_s", "reported_age_s"):
        figure = pool[word]
        assert set(figure) >= {"value", "provenance"}
        nothing = all(figure.get(key) is None for key in ("value", "low", "high"))
        assert (figure["provenance"] == "unknown") == nothing, word
    assert pool["usable_tokens"] == {"value": 524288, "provenance": "measured", "reason": "reported by the engine"}
    assert pool["reported_age_s"]["value"] < 5
    assert any("/v1/loads 200" in line for line in said["asked"])


def test_asking_for_seconds_gives_rates(serve, capsys):
    """Two answers a second apart give flows from their counters; one answer gives none."""
    begun = time.time()

    def growing():
        seconds = time.time() - begun
        return loads(
            num_used_tokens=400000 + int(1000 * seconds),
            total_prefill_uncached_tokens=int(5000 * seconds) + 1,
            total_prefill_busy_us=int(5e5 * seconds),
        )

    url = serve({"/v1/loads": (200, "application/json", growing)})
    _, once = run(capsys, url)
    assert once["pools"][0]["net_tokens_per_s"]["provenance"] == "unknown"
    status, twice = run(capsys, url, "--seconds", "1.2")
    assert status == 0
    assert twice["pools"][0]["net_tokens_per_s"]["value"] == pytest.approx(1000, rel=0.2)
    assert twice["pools"][0]["prefill_duty_ratio"]["value"] == pytest.approx(0.5, rel=0.2)


def test_a_token_is_sent_and_never_shown(serve, capsys, monkeypatch):
    """With the token understood, without it unauthorised (1), with an unset variable wrong use (3); never printed."""
    url = serve({"/v1/loads": (200, "application/json", loads)}, token="s3cret-token")
    monkeypatch.setenv("KVSCOPE_TEST_TOKEN", "s3cret-token")
    status, said = run(capsys, url, "--token-env", "KVSCOPE_TEST_TOKEN")
    assert (status, "s3cret" in json.dumps(said)) == (0, False)
    status, said = run(capsys, url)
    assert (status, said["state"]) == (1, "unauthorised")
    assert cli.main(["check", url, "--token-env", "KVSCOPE_TEST_UNSET"]) == 3


@pytest.mark.parametrize(
    ("routes", "state"),
    [
        ({"/v1/loads": (200, "text/html", b"<html><h1>Welcome</h1></html>")}, "not_understood"),
        (
            {"/v1/loads": (500, "text/plain", b"Internal Server Error"), "/metrics": (500, "text/plain", b"x")},
            "not_understood",
        ),
        ({"/v1/loads": (302, "text/plain", b"", {"Location": "http://127.0.0.1:1/elsewhere"})}, "not_understood"),
        ({"/v1/loads": (200, "application/json", b"[" * 100_000)}, "not_understood"),
        ({"/v1/loads": (200, "application/json", b"x" * (17 * 1024 * 1024))}, "not_understood"),
        (
            {"/v1/loads": (200, "application/json", gzip.compress(b"0" * 60_000_000), {"Content-Encoding": "gzip"})},
            "not_understood",
        ),
        ({}, "not_understood"),
    ],
    ids=["html", "errors", "redirect", "deep", "huge", "bomb", "nothing-there"],
)
def test_reached_but_not_understood_is_1(serve, capsys, routes, state):
    """Somebody answers, not in any engine's way: status 1, a state, and a finding that says what came."""
    status, said = run(capsys, serve(routes))
    assert (status, said["state"], said["pools"]) == (1, state, [])
    assert said["findings"]
    assert all(finding["code"] and finding["text"] for finding in said["findings"])


def test_nobody_there_is_2(capsys):
    """A refused connection and a name that does not exist: status 2, down."""
    for url in ("http://127.0.0.1:9", "http://no-such-host.invalid:30000"):
        status, said = run(capsys, url, "--timeout-s", "3")
        assert (status, said["state"]) == (2, "down")


def test_a_worker_that_never_answers_ends_in_time(capsys):
    """A server that takes the connection and stays silent: status 2 within the time given."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        status, said = run(capsys, f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout-s", "0.5")
        assert time.monotonic() - began < 5
    assert (status, said["findings"][0]["code"]) == (2, "timeout")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["ftp://host"],
        ["http://"],
        ["--file", "/no/such/file.json"],
        ["http://127.0.0.1:9", "--file", "x.json"],
        ["http://127.0.0.1:9", "--timeout-s", "0"],
        ["http://127.0.0.1:9", "--seconds", "-1"],
        ["http://127.0.0.1:9", "--timeout-s", "soon"],
    ],
)
def test_wrong_use_is_3(capsys, argv):
    """What cannot be carried out is said on the error stream, with status 3 and nothing on the output."""
    try:
        status = cli.main(["check", *argv])
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    assert status == 3
    assert said.err
    assert said.out == ""


def test_saved_answers_read_like_live_ones(capsys, tmp_path):
    """The same body by file and over HTTP gives the same figures; several files are one worker's answers."""
    saved = tmp_path / "saved.json"
    saved.write_bytes(body("0.5.23/loads_decode.json"))
    status, said = run(capsys, "--file", str(saved))
    assert status == 0
    assert said["pools"][0]["in_flight_tokens"]["low"] == 69701
    status, both = run(
        capsys,
        "--file",
        str(PAYLOADS / "sglang/0.5.23-real/load_v1_loads.json"),
        "--file",
        str(PAYLOADS / "sglang/0.5.23-real/load_metrics.prom"),
    )
    assert status == 0
    assert both["pools"][0]["prefix_tokens"]["value"] is not None
    odd = tmp_path / "odd.json"
    odd.write_bytes(b'{"hello": "world"}')
    status, said = run(capsys, "--file", str(odd))
    assert (status, said["state"]) == (1, "not_understood")


OTHERS = sorted(
    path
    for folder in ("vllm", "dynamo", "router", "smg", "trtllm")
    for path in (PAYLOADS / folder).glob("[0-9]*/*")
    if path.suffix in (".txt", ".json", ".prom")
)


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
def test_every_engine_s_answers_are_understood(path):
    """Check works for every dialect: recorded bodies of the other engines end in figures, counts or a named outcome."""
    checked = check_files([path])
    said = as_json(checked)
    json.dumps(said, allow_nan=False)
    assert checked.exit_status in (0, 1)
    if checked.exit_status == 0:
        assert said["engine"]
        assert not said["engine"].startswith("sglang-")
        assert said["pools"] or said["router_workers"] or said["findings"]
    else:
        assert said["findings"]
    assert as_text(checked)


def test_the_text_says_what_matters_first(serve, capsys):
    """State and engine first, errors before notes, each figure with its provenance, no control character."""
    url = serve({"/v1/loads": (200, "application/json", lambda: loads(num_used_tokens=-5, num_total_tokens=-5))})
    assert cli.main(["check", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "fresh, sglang 0.5.23" in lines[0]
    assert any("negative-usage" in line and "-5" in line for line in lines)
    assert any(line.split()[:2] == ["usable_tokens", "524,288"] and "measured" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_it_runs_as_a_command():
    """From a shell: the object on the output, nothing on the error stream, the status as promised."""
    path = PAYLOADS / "sglang" / "0.5.23" / "loads_dp4.json"
    done = subprocess.run(
        [sys.executable, "cli.py", "check", "--file", str(path), "--json"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(json.loads(done.stdout)["pools"]) == 4

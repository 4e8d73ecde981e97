"""What `kvscope check` says of whole kinds of trouble: spoilt answers, pasted addresses, what holds requests back."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import cli
from commands.check import as_json, check_files

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"
GOOD = (PAYLOADS / "sglang" / "cases" / "P18" / "a.2.json").read_bytes()
Route = tuple[int, bytes, dict[str, str]]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Route]], str]]:
    """Return the starter of a server whose every answer is `answer(path)`."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[str], Route]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body, headers = answer(self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
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


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict]:
    """Return the exit status and the object printed."""
    status = cli.main(["check", *argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("pasted", ["", "/", "/v1/loads", "/metrics", "/v1/loads/", "/get_load", "/v1/loads?x=1#top"])
def test_a_pasted_path_of_a_question_is_taken_for_the_base(serve, capsys, pasted: str) -> None:
    """Whatever path of the worker's own was pasted behind host and port, the worker is the same."""
    base = serve(lambda path: (200, GOOD, {}) if path == "/v1/loads" else (404, b"", {}))
    status, said = run(capsys, base + pasted)
    assert (status, said["engine"], said["source"]) == (0, "sglang", base)


@pytest.mark.parametrize("pasted", ["/engine-7", "/engine-7/", "/engine-7/v1/loads", "/engine-7/metrics"])
def test_a_base_path_stays(serve, capsys, pasted: str) -> None:
    """Behind a proxy that gives each worker a path, the path is part of the address."""
    base = serve(lambda path: (200, GOOD, {}) if path == "/engine-7/v1/loads" else (404, b"", {}))
    status, said = run(capsys, base + pasted)
    assert (status, said["source"]) == (0, base + "/engine-7")


@pytest.mark.parametrize("argv", ["http://exa mple:1", "http://127.0.0.1:0", "http://127.0.0.1:70000", "http://[::1"])
def test_an_address_that_cannot_be_one_is_wrong_use(capsys, argv: str) -> None:
    """Blanks, port 0, ports beyond the range, half an IPv6 address: status 3, not `down`."""
    assert cli.main(["check", argv]) == 3
    assert capsys.readouterr().err


SPOILT = {
    "too-large": (200, gzip.compress(b"0" * 40_000_000), {"Content-Encoding": "gzip"}),
    "bad-encoding": (200, b"not gzip", {"Content-Encoding": "gzip"}),
    "cut-off": (200, b"[1,", {"Content-Length": "500"}),
}


@pytest.mark.parametrize("code", sorted(SPOILT))
def test_answers_that_cannot_be_taken_are_named_not_called_missing(serve, capsys, code: str) -> None:
    """A worker whose every answer is spoilt the same way is told by that way, never `nothing was answered`."""
    status, said = run(capsys, serve(lambda _: SPOILT[code]))
    assert status == (2 if code == "cut-off" else 1)
    assert [finding["code"] for finding in said["findings"]] == [code]
    assert "/v1/loads" in said["detail"]


@pytest.mark.parametrize("broken", ["/metrics", "/v1/loads"])
def test_a_broken_path_of_a_living_worker_is_not_down(serve, capsys, broken: str) -> None:
    """500 where the figures should be, 404 elsewhere: not understood, with the path, and said to be alive."""
    status, said = run(capsys, serve(lambda path: (500 if path == broken else 404, b"", {})))
    assert (status, said["state"], said["findings"][0]["code"]) == (1, "not_understood", "http-status")
    assert f"{broken} broken, the worker is alive" in said["detail"]


def vllm_text(ranks: list[tuple[int, int, float]]) -> bytes:
    """Return a vLLM exposition of (running, waiting, usage) a rank, 16,000 blocks of 16 tokens each."""
    lines = []
    for engine, (running, waiting, usage) in enumerate(ranks):
        label = f'engine="{engine}",model_name="m"'
        lines += [
            f"vllm:num_requests_running{{{label}}} {running}",
            f"vllm:num_requests_waiting{{{label}}} {waiting}",
            f"vllm:kv_cache_usage_perc{{{label}}} {usage}",
            f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="16000",block_size="16"}} 1.0',
        ]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize(
    ("ranks", "codes"),
    [
        # P01's shape with other numbers and ranks in another order: full ranks and ranks at the cap on one endpoint.
        ([(24, 0, 0.5), (24, 9, 0.6), (11, 70, 0.99), (9, 0, 0.2)], [["slots-bind"], ["slots-bind"], ["kv-binds"], []]),
        # Nobody waits: a count that two ranks share is no cap.
        ([(24, 0, 0.5), (24, 0, 0.6)], [[], []]),
        # One rank alone shows no cap, and two requests each are chance.
        ([(24, 9, 0.5), (23, 0, 0.6)], [[], []]),
        ([(2, 9, 0.5), (2, 0, 0.6)], [[], []]),
        ([(40, 3, 1.0)], [["kv-binds"]]),
    ],
)
def test_full_kv_and_full_slots_are_two_diagnoses(tmp_path, ranks, codes) -> None:
    """What waits for KV and what waits for a slot is told apart rank by rank, also where the cap is not exported."""
    path = tmp_path / "metrics.prom"
    path.write_bytes(vllm_text(ranks))
    found = as_json(check_files([path]))["findings"]
    for rank, expected in enumerate(codes):
        mine = [
            each["code"] for each in found if each["dp_rank"] == rank and each["code"] in ("kv-binds", "slots-bind")
        ]
        assert mine == expected, rank


def test_p01_tells_three_full_ranks_from_three_at_the_cap() -> None:
    """The field case: engines 0, 1, 2 wait for KV, 3, 4, 6 stand at 64 running; 5 and 7 are neither."""
    found = as_json(check_files([PAYLOADS / "vllm" / "cases" / "P01" / "metrics.1.prom"]))["findings"]
    by_code = {code: [each["dp_rank"] for each in found if each["code"] == code] for code in ("kv-binds", "slots-bind")}
    assert by_code == {"kv-binds": [0, 1, 2], "slots-bind": [3, 4, 6]}


def test_requests_that_wait_need_something() -> None:
    """24 waiting and a total equal to the used tokens contradict each other: the need is unknown, never measured 0."""
    (pool,) = as_json(check_files([PAYLOADS / "sglang" / "cases" / "P18" / "a.2.json"]))["pools"]
    assert pool["waiting_count"]["value"] == 24
    assert (pool["queued_tokens"]["value"], pool["queued_tokens"]["provenance"]) == (None, "unknown")


@pytest.mark.parametrize(
    "body",
    [
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        b'{"status":"error","errorType":"bad_data","error":"no"}',
    ],
)
def test_a_prometheus_server_is_told_from_a_stranger(serve, capsys, body: bytes) -> None:
    """A server that answers instant queries is no worker: not understood, with the section it belongs in."""
    status, said = run(capsys, serve(lambda path: (200, body, {}) if "/api/v1/query" in path else (404, b"", {})))
    assert status == 1
    assert [found["code"] for found in said["findings"]] == ["engine-unknown", "prometheus-server"]
    status, said = run(capsys, serve(lambda _: (404, b"", {})))
    assert [found["code"] for found in said["findings"]] == ["engine-unknown"]

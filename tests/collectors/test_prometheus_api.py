"""A real Prometheus and a real VictoriaMetrics as sources: both must give a worker's own figures."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.engines import identify
from collectors.engines.contract import Answer
from collectors.exposition import scan
from collectors.prometheus_api import PrometheusError, PrometheusSource

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"
VLLM_EIGHT = (PAYLOADS / "vllm/cases/P01/metrics.1.prom").read_bytes()
VLLM_REAL = (PAYLOADS / "vllm/0.32.0/metrics.txt").read_bytes()
DYNAMO = (PAYLOADS / "dynamo/1.6.1/decode_worker_metrics_underload.txt").read_bytes()
SGLANG = b"""# TYPE sglang:token_usage gauge
sglang:token_usage{dp_rank="0",engine_type="unified",model_name="syn/m"} 0.43
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="syn/m"} 17.0
sglang:num_queue_reqs{dp_rank="0",engine_type="unified",model_name="syn/m"} 2.0
sglang:max_total_num_tokens{dp_rank="0",engine_type="unified",model_name="syn/m"} 262144.0
sglang:kv_used_tokens{dp_rank="0",engine_type="unified",model_name="syn/m"} 112722.0
sglang:kv_evictable_tokens{dp_rank="0",engine_type="unified",model_name="syn/m"} 64000.0
sglang:kv_available_tokens{dp_rank="0",engine_type="unified",model_name="syn/m"} 85422.0
sglang:cache_hit_rate{dp_rank="0",engine_type="unified",model_name="syn/m"} NaN
"""
BODIES = {"vllm-eight": VLLM_EIGHT, "vllm-real": VLLM_REAL, "dynamo": DYNAMO, "sglang": SGLANG}
WAIT_S = 20.0


def free_port():
    """Return a port nobody listens on at this moment."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def direct(body):
    """Return the pools that a worker's own body gives."""
    answers = {"/metrics": Answer(status=200, content_type="text/plain", body=body, received_at_s=0.0)}
    return identify(answers).understand(answers).pools


def bare(pool):
    """Return a pool without what only the way here adds: names, times, notes."""
    return replace(pool, worker_id="", received_at_s=0.0, reported_at_s=None, findings=())


@contextmanager
def serving(bodies):
    """Serve each body on a port of its own; yield name -> host:port."""
    started, stop, ports = threading.Event(), threading.Event(), {}

    async def main():
        runners = []
        for name, body in bodies.items():

            async def answer(request, body=body):
                return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

            app = web.Application()
            app.router.add_get("/metrics", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            ports[name] = f"127.0.0.1:{runner.addresses[0][1]}"
            runners.append(runner)
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        for runner in runners:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(WAIT_S)
    try:
        yield ports
    finally:
        stop.set()
        thread.join(WAIT_S)


@contextmanager
def running(command, url, tmp_path):
    """Run a server until the block ends; its output lands in a file that a failure shows."""
    log = (tmp_path / "server.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
            try:
                if httpx.get(url, timeout=1.0).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.05)
        else:
            pytest.fail((tmp_path / "server.log").read_text()[-2000:])
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        log.close()


def is_same(left, right):
    """Say whether two pools agree; VictoriaMetrics keeps about 12 digits of a float."""
    for field in fields(left):
        ours, theirs = getattr(bare(left), field.name), getattr(bare(right), field.name)
        if isinstance(ours, float) and isinstance(theirs, float):
            if ours != pytest.approx(theirs, rel=1e-9):
                return False
        elif field.name.endswith("_buckets") and ours is not None and theirs is not None:
            if [pair for row in ours for pair in row] != pytest.approx([pair for row in theirs for pair in row]):
                return False
        elif ours != theirs:
            return False
    return True


def fetch(source, at_s=None):
    """Return one round of the source."""

    async def main():
        async with httpx.AsyncClient() as client:
            return await source.fetch_all(client, time.time() if at_s is None else at_s)

    return asyncio.run(main())


def until(source, count, down=0, wait_s=WAIT_S):
    """Ask until `count` workers are read and `down` are called down, since a scraper needs its first round."""
    deadline = time.monotonic() + wait_s
    while True:
        result = fetch(source)
        if (len(result.readings) >= count and len(result.down) == down) or time.monotonic() > deadline:
            return result
        time.sleep(0.1)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Yield the address of a real Prometheus that scrapes four workers and one dead port, and the workers' ports."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no `prometheus` on this machine (Debian package prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    with serving(BODIES) as ports:
        dead = f"127.0.0.1:{free_port()}"
        targets = [*ports.values(), dead]
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
            "scrape_configs": [{"job_name": "engines", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML.
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with running(command, f"{url}/-/ready", folder):
            yield url, ports, dead


def test_a_real_prometheus_gives_every_workers_own_figures(prometheus):
    """Pools read through PromQL equal those of the workers' own bodies: every engine, every rank, every field."""
    url, ports, dead = prometheus
    result = until(PrometheusSource(url, matchers=('job="engines"',)), len(BODIES), down=1)
    readings = dict(result.readings)
    assert sorted(readings) == sorted(ports.values())
    for name, address in ports.items():
        expected = direct(BODIES[name])
        assert [bare(pool) for pool in readings[address].pools] == [bare(pool) for pool in expected], name
        assert {pool.worker_id for pool in readings[address].pools} == {address}
    assert len(readings[ports["vllm-eight"]].pools) == 8
    assert result.down == (dead,)
    assert result.not_understood == ()
    assert result.rejected_count == 0


def test_figures_carry_the_time_they_were_scraped_at(prometheus):
    """reported_at_s is the scrape's time, within seconds of now and never the time of the query."""
    url, ports, _ = prometheus
    source = PrometheusSource(url)
    until(source, len(BODIES))
    asked_at_s = time.time()
    for _worker, reading in fetch(source, asked_at_s).readings:
        for pool in reading.pools:
            assert pool.received_at_s == asked_at_s
            # A scrape may fall between our clock and the query's answer.
            assert asked_at_s - 15.0 < pool.reported_at_s <= time.time()
    assert ports


def test_matchers_choose_the_workers(prometheus):
    """A matcher that fits one target gives that one; one that fits none gives nothing, which is no error."""
    url, ports, _ = prometheus
    until(PrometheusSource(url), len(BODIES))
    one = fetch(PrometheusSource(url, matchers=(f'instance="{ports["sglang"]}"',)))
    assert [worker for worker, _ in one.readings] == [ports["sglang"]]
    assert fetch(PrometheusSource(url, matchers=('job="nobody"',))).readings == ()


def test_a_wrong_matcher_is_the_servers_own_complaint(prometheus):
    """A matcher that is no PromQL raises PrometheusError with what the server said."""
    with pytest.raises(PrometheusError, match="parse error"):
        fetch(PrometheusSource(prometheus[0], matchers=("job=",)))


def test_a_figure_over_an_idle_window_is_unknown_not_zero(prometheus):
    """0/0 and a series that does not exist have no value and a reason; a plain expression has its value."""
    source = PrometheusSource(prometheus[0])

    async def main():
        async with httpx.AsyncClient() as client:
            return [
                await source.query_value(client, expression, time.time())
                for expression in ("vector(0)/vector(0)", "no_such_series", "vector(42)", "scalar(vector(7))")
            ]

    idle, absent, value, scalar = asyncio.run(main())
    assert (idle.value, absent.value, value.value, scalar.value) == (None, None, 42.0, 7.0)
    assert "no traffic" in idle.reason
    assert "no traffic" in absent.reason


@pytest.fixture(scope="module")
def victoria_metrics(tmp_path_factory):
    """Yield the address of a real VictoriaMetrics into which three workers' bodies were imported."""
    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("no `victoria-metrics` on this machine (Debian package victoria-metrics)")
    folder = tmp_path_factory.mktemp("victoria")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        program,
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder / 'data'}",
        "-search.latencyOffset=0",  # The newest 30 s are hidden otherwise.
        "-loggerLevel=ERROR",
        "-memory.allowedBytes=64MB",
        "-retentionPeriod=1d",
        "-maxLabelsPerTimeseries=60",  # 30 by default, and cache_config_info of vLLM 0.32 has 33.
    ]
    with running(command, f"{url}/health", folder):
        for name, body in BODIES.items():
            labels = [("extra_label", "job=engines"), ("extra_label", f"instance={name}:8000")]
            answer = httpx.post(f"{url}/api/v1/import/prometheus", params=labels, content=body)
            assert answer.status_code == 204, answer.text
        httpx.get(f"{url}/internal/force_flush")  # Imported samples show at once, not seconds later.
        yield url


def test_a_real_victoria_metrics_gives_every_workers_own_figures(victoria_metrics):
    """The same pools come out of VictoriaMetrics, with the time of the import as the figures' own."""
    result = until(PrometheusSource(victoria_metrics), len(BODIES), wait_s=10.0)
    readings = dict(result.readings)
    assert sorted(readings) == sorted(f"{name}:8000" for name in BODIES)
    for name, body in BODIES.items():
        pools = readings[f"{name}:8000"].pools
        expected = direct(body)
        assert len(pools) == len(expected)
        assert all(is_same(mine, own) for mine, own in zip(pools, expected, strict=True)), name
        assert all(abs(time.time() - pool.reported_at_s) < 60.0 for pool in pools)


def replayed(answers, **kwargs):
    """Return a round against canned answers: query text -> JSON text and status."""

    def handler(request):
        query = dict(httpx.QueryParams(request.content.decode()))["query"]
        status, text = answers(query)
        return httpx.Response(status, text=text, headers={"content-type": "application/json"})

    async def main():
        source = PrometheusSource("http://prometheus.example:9090", **kwargs)
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            return await source.fetch_all(client, 1000.0)

    return asyncio.run(main())


def vector(*rows):
    """Return an instant vector's text of (labels, value)."""
    result = [{"metric": labels, "value": [1000, value]} for labels, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def recorded():
    """Return the recorded texts of every engine."""
    places = [
        *(PAYLOADS / "vllm").rglob("*.prom"),
        *(PAYLOADS / "vllm").rglob("metrics.txt"),
        *(PAYLOADS / "dynamo").rglob("decode*.txt"),
        *(PAYLOADS / "sglang").rglob("*metrics*.prom"),
        *(PAYLOADS / "sglang").rglob("*metrics*.txt"),
    ]
    return {str(path.relative_to(PAYLOADS)): path.read_bytes() for path in sorted(places)}


def as_server(body):
    """Answer queries as a server would that scraped `body`: by the names that the query's own patterns take."""
    samples = scan(body).samples

    def answer(query):
        if not query.startswith("{"):
            return 200, vector()
        wanted = re.search(r'__name__=~"([^"]+)"', query)[1]
        unwanted = re.search(r'__name__!~"([^"]+)"', query)
        rows = [
            ({**sample.labels, "__name__": sample.name, "job": "j", "instance": "host:1"}, _written(sample.value))
            for sample in samples
            if re.fullmatch(wanted, sample.name) and not (unwanted and re.fullmatch(unwanted[1], sample.name))
        ]
        return 200, vector(*rows)

    return answer


def _written(value):
    return "NaN" if value is None else repr(value)


@pytest.mark.parametrize("name", recorded())
def test_the_queries_bring_everything_the_dialects_read(name):
    """Every recorded text gives the same pools through the API's selectors and JSON as it gives directly."""
    body = recorded()[name]
    ((_, reading),) = replayed(as_server(body)).readings
    expected = direct(body)
    assert len(reading.pools) == len(expected)
    assert [bare(pool) for pool in reading.pools] == [bare(pool) for pool in expected]


@pytest.mark.parametrize(("name", "reason"), [("nan", "0/0"), ("empty", "no series")])
def test_an_idle_window_in_the_field_is_no_traffic(name, reason):
    """P05: the API answers the text "NaN" or an empty vector: unknown with "no traffic", never 0 ms."""
    text = (PAYLOADS / "prometheus" / "P05" / f"promapi_{name}.json").read_text()

    async def main():
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
        async with httpx.AsyncClient(transport=transport) as client:
            return await PrometheusSource("http://p:9090").query_value(client, "ttft_p99", 1000.0)

    found = asyncio.run(main())
    assert found.value is None
    assert "no traffic" in found.reason
    assert reason in found.reason


def usage_of(job, instance, value, **labels):
    return {"__name__": "vllm:kv_cache_usage_perc", "job": job, "instance": instance, "engine": "0", **labels}, value


def only_samples(*rows):
    return lambda query: (200, vector(*rows) if "_(bucket|created)" in query else vector())


def test_one_address_in_two_jobs_is_two_workers():
    """Two jobs that scrape the same address are told apart by the job's name before it; each keeps its figure."""
    result = replayed(only_samples(usage_of("a", "host:1", "0.25"), usage_of("b", "host:1", "0.75")))
    usage = {worker: reading.pools[0].reported_usage_ratio for worker, reading in result.readings}
    assert usage == {"a/host:1": 0.25, "b/host:1": 0.75}


def test_labels_that_the_scraper_moved_away_come_back():
    """`exported_engine` is the engine's own label where the target has one called engine, too."""
    result = replayed(only_samples(usage_of("a", "host:1", "0.5", engine="vllm", exported_engine="3")))
    assert [pool.dp_rank for pool in result.readings[0][1].pools] == [3]


def test_without_a_scrape_time_the_reader_is_told():
    """A server that cannot say when it scraped leaves reported_at_s unknown and a finding."""
    result = replayed(only_samples(usage_of("a", "host:1", "0.5")))
    ((_, reading),) = result.readings
    assert reading.pools[0].reported_at_s is None
    assert "scrape-time-unknown" in {finding.code for finding in reading.findings}


def test_not_a_number_stays_unknown_and_malformed_rows_are_counted():
    """NaN is unknown, not 0; rows without a pair, a name or an instance are counted, the good one is kept."""
    good = usage_of("a", "host:1", "NaN")
    running_row = ({**good[0], "__name__": "vllm:num_requests_running"}, "4")
    nameless = ({"job": "a", "instance": "host:1"}, "1")
    homeless = ({"__name__": "vllm:num_requests_running", "job": "a"}, "1")
    text = json.loads(vector(good, running_row, nameless, homeless))
    text["data"]["result"] += [{"metric": {}, "value": 3}, 7, {"metric": {"a": 1}, "value": [1, "2"]}]
    result = replayed(lambda query: (200, json.dumps(text) if "_(bucket|created)" in query else vector()))
    ((worker, reading),) = result.readings
    assert worker == "host:1"
    assert reading.pools[0].reported_usage_ratio is None
    assert reading.pools[0].running_count == 4.0
    assert result.rejected_count == 5


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (200, "<html>login</html>", "is this a PromQL server"),
        (200, "[]", "is this a PromQL server"),
        (200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}), "matrix"),
        (200, json.dumps({"status": "success", "data": None}), "instant vector"),
        (400, json.dumps({"status": "error", "error": "bad <b>query</b>"}), "bad <b>query"),
        (401, "", "token_env"),
        (503, "", "503"),
    ],
)
def test_a_server_that_fails_is_one_clear_error(status, text, words):
    """Whatever a server answers instead of a vector is a PrometheusError that says what and where."""
    with pytest.raises(PrometheusError) as caught:
        replayed(lambda query: (status, text))
    assert words in str(caught.value)
    assert "prometheus.example" in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
ROW = st.fixed_dictionaries(
    {"metric": st.dictionaries(st.sampled_from(["__name__", "instance", "job", "engine", "a b"]), JSON), "value": JSON}
)


@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(ROW | JSON, max_size=6), st.sampled_from(["vector", "scalar", "matrix"]))
def test_no_answer_breaks_the_source(rows, kind):
    """Any JSON in the API's frame gives readings with finite figures, or one PrometheusError."""
    text = json.dumps({"status": "success", "data": {"resultType": kind, "result": rows}})
    try:
        result = replayed(lambda query: (200, text))
    except PrometheusError:
        return
    assert result.rejected_count >= 0
    for _worker, reading in result.readings:
        for pool in reading.pools:
            assert pool.reported_usage_ratio is None or 0 <= pool.reported_usage_ratio <= 1


def test_a_server_that_cannot_be_reached_is_one_clear_error():
    """A refused connection is a PrometheusError, not a crash."""
    with pytest.raises(PrometheusError, match="not reachable"):
        fetch(PrometheusSource(f"http://127.0.0.1:{free_port()}"))

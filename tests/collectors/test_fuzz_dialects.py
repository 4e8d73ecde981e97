"""
Bad input, for every dialect in ENGINES: whatever comes, the result is a named state with nothing wrong in it.

A new dialect is fuzzed by being registered; a recorded body under tests/payloads makes its fuzzing deeper.
"""

import gzip
import itertools
import json
import math
import random
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from scoring.model import PoolReading, WorkerReading, signal_names

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"
SOURCES = {
    "vllm": {"/metrics": ["vllm/cases/P01/metrics.1.prom", "vllm/0.32.0/metrics.txt", "vllm/cases/P03/metrics.b.prom"]},
    "dynamo": {"/metrics": ["dynamo/1.6.1/decode_worker_metrics_underload.txt", "dynamo/cases/P13/dynamo_worker.prom"]},
    "dynamo-frontend": {"/metrics": ["dynamo/1.6.1/frontend_metrics_underload.txt.gz"]},
    "trtllm": {"/metrics": ["trtllm/P13/trtllm_stats.json", "trtllm/P09/trtllm_all_ranks.json"]},
    "router": {
        "/workers": ["router/cases/P08/router_workers.json", "smg/1.13.0/router_workers.json"],
        "/get_loads": ["smg/1.13.0/router_get_loads.json"],
        "/metrics": ["router/0.3.2/sglang_router_metrics.txt"],
    },
    "router-loads": {"/get_loads": ["router/0.3.2/router_get_loads.json", "smg/1.13.0/router_get_loads.json"]},
    "router-metrics": {"/metrics": ["router/0.3.2/sglang_router_metrics.txt"]},
    "sglang": {"/v1/loads": ["router/cases/P07/d0.json", "router/cases/P18/a.2.json"]},
    "sglang-metrics": {"/metrics": []},
    "sglang-get-load": {"/get_load": []},
}
"""Dialect -> path -> recorded bodies, the first of each used together."""

SGLANG_TEXT = b"".join(
    b'sglang:%s{dp_rank="%d",engine_type="unified",model_name="m",tp_rank="0"} %s\n' % (name, rank, value)
    for rank in (0, 1)
    for name, value in (
        (b"token_usage", b"0.43"),
        (b"max_total_num_tokens", b"262144"),
        (b"kv_used_tokens", b"112722"),
        (b"kv_evictable_tokens", b"64000"),
        (b"kv_available_tokens", b"85422"),
        (b"num_running_reqs", b"17"),
        (b"num_queue_reqs", b"3"),
    )
)
MADE = {
    "sglang-metrics": {"/metrics": [SGLANG_TEXT]},
    "sglang-get-load": {
        "/get_load": [b'[{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":1,"num_tokens":512,"ts_tic":1.0}]']
    },
}
WEIRD_TEXT = [
    "NaN",
    "nan",
    "-nan",
    "+Inf",
    "-Inf",
    "-1",
    "-0.0",
    "1e308",
    "1e999",
    "0x10",
    "1_000",
    "٣",
    "",
    "N/A",
    "<b>1</b>",
]
WEIRD_JSON = [
    None,
    True,
    -1,
    -0.5,
    1e308,
    10**400,
    "12",
    "",
    [],
    {},
    [[]],
    "<script>alert(1)</script>",
    {"a": {"b": 1}},
]
HTML = "<img src=x onerror=alert(1)>"


def load(name):
    """Return a recorded body."""
    body = (PAYLOADS / name).read_bytes()
    return gzip.decompress(body) if name.endswith(".gz") else body


def bases(name):
    """Return the answers that a dialect's worker gives, one mapping a recording."""
    paths = {path: [load(file) for file in files] for path, files in SOURCES.get(name, {}).items()}
    for path, bodies in MADE.get(name, {}).items():
        paths.setdefault(path, []).extend(bodies)
    paths = {path: bodies for path, bodies in paths.items() if bodies}
    count = max((len(bodies) for bodies in paths.values()), default=0)
    return [{path: bodies[min(i, len(bodies) - 1)] for path, bodies in paths.items()} for i in range(count)]


def answer(body, status=200, content_type="text/plain"):
    return Answer(status=status, content_type=content_type, body=body, received_at_s=1000.0)


def told(bodies, **more):
    return {path: answer(body, **more) for path, body in bodies.items()}


NAME_OF_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


def check(dialect, answers):
    """Assert everything a result may never be; return it."""
    dialect.recognises(answers)
    result = dialect.understand(answers)
    if isinstance(result, NotUnderstood):
        assert NAME_OF_CODE.match(result.code)
        assert result.text
        assert len(result.text) < 1000
        return result
    assert isinstance(result, WorkerReading)
    ranks = [pool.dp_rank for pool in result.pools]
    assert ranks == sorted(set(ranks))
    assert min(ranks, default=0) >= 0
    assert len(ranks) <= 4096
    assert result.rejected_count >= 0
    assert result.ignored_count >= 0
    for finding in (*result.findings, *(f for pool in result.pools for f in pool.findings)):
        assert NAME_OF_CODE.match(finding.code)
        assert finding.text.isprintable()
        assert len(finding.text) < 1000
    for pool in result.pools:
        check_pool(pool)
    for worker in result.router_workers:
        assert worker.url.isprintable()
        assert "secret" not in worker.url
        for value in (worker.load_count, worker.load_tokens):
            assert value is None or (math.isfinite(value) and value >= 0)
    for name, text in result.facts.items():
        assert name.isprintable()
        assert text.isprintable()
        assert len(text) <= 4096
    return result


def check_pool(pool):
    """Assert that no raw number passed that is negative, not finite or absurd."""
    for name in signal_names():
        value = getattr(pool, name)
        if value is None:
            continue
        assert isinstance(value, float | int), name
        assert not isinstance(value, bool), name
        assert math.isfinite(value), name
        assert 0 <= value <= 1e20, name
    assert set(pool.anomalies) <= {field.name for field in fields(PoolReading)}
    if pool.usable_tokens is not None and pool.engine in ("vllm", "trtllm"):
        held = (pool.used_tokens or 0.0) + (pool.free_or_prefix_tokens or 0.0)
        assert held <= pool.usable_tokens * 1.0000001 or any("add-up" in f.code for f in pool.findings)
        assert (pool.used_tokens or 0.0) <= pool.usable_tokens * 1.0000001
    for buckets in (pool.ttft_buckets, pool.itl_buckets):
        if buckets is not None:
            assert buckets[-1][0] == math.inf
            assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(buckets))
    for text in (pool.model, pool.version):
        assert text is None or (text.isprintable() and len(text) <= 200)
    json.dumps({name: getattr(pool, name) for name in signal_names()}, allow_nan=False)


def leaves(value, path=()):
    """Yield the path of every leaf of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def with_leaf(value, path, new):
    """Return a copy of a JSON value with one place replaced."""
    made = json.loads(json.dumps(value))
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return made


def json_bytes(value):
    """Return JSON text, with integers beyond any double written out."""
    return json.dumps(value).encode()


def text_variants(body, chance):
    """Yield malformed variants of an exposition."""
    lines = body.split(b"\n")
    samples = [i for i, line in enumerate(lines) if line and not line.startswith(b"#")]
    for weird in WEIRD_TEXT:
        for i in chance.sample(samples, min(3, len(samples))):
            name = lines[i].rpartition(b" ")[0]
            yield b"\n".join([*lines[:i], name + b" " + weird.encode(), *lines[i + 1 :]])
    for label in (b"engine", b"dp_rank", b"le", b"pid", b"worker", b"worker_id", b"model_name"):
        for weird in (b"-1", b"99999999999", HTML.encode(), b"\\n\\n", b"\xff\xfe", b"None", b"1" * 5000):
            yield re.sub(label + rb'="[^"]*"', label + b'="' + weird.replace(b"\\", b"\\\\") + b'"', body)
    for _ in range(10):
        yield body[: chance.randrange(len(body))]
        i = chance.choice(samples)
        yield b"\n".join([*lines[:i], lines[i] + b"7", *lines[i:]])  # A repeated series that contradicts itself.
        yield b"\n".join([*lines, lines[i], lines[i]])
    yield body.replace(b"{", b"{{")
    yield body.replace(b'"', b"")
    yield body.replace(b" ", b"\t\t")
    yield body.replace(b"\n", b"\r\n")
    yield body.replace(b"\n", b"")
    yield body.upper()
    yield b"\x00" * 100 + body
    yield b"\xef\xbb\xbf" + body
    yield body * 3


def json_variants(body, chance):
    """Yield malformed variants of a JSON answer."""
    value = json.loads(body)
    places = list(leaves(value))
    for weird in WEIRD_JSON:
        for path in chance.sample(places, min(6, len(places))):
            yield json_bytes(with_leaf(value, path, weird))
    for path in chance.sample(places, min(10, len(places))):
        yield re.sub(rb'"PLACE"', b"NaN", json_bytes(with_leaf(value, path, "PLACE")))
        yield re.sub(rb'"PLACE"', b"[" * 5000 + b"]" * 5000, json_bytes(with_leaf(value, path, "PLACE")))
    for _ in range(10):
        yield body[: chance.randrange(len(body))]
    for wrap in (b"[%s]", b'{"loads":%s}', b'{"workers":%s}', b"%s%s", b"/* */%s", b"\xef\xbb\xbf%s"):
        yield wrap.replace(b"%s", body)
    yield body.replace(b":", b"=")
    yield body.decode().encode("utf-16")


def anything():
    """Yield bodies that are nobody's."""
    yield b""
    yield b" \n\t "
    yield b"null"
    yield b"true"
    yield b"0"
    yield b'"text"'
    yield b"[]"
    yield b"{}"
    yield b"[" * 100_000
    yield b'{"a":' * 50_000
    yield b"<!DOCTYPE html><html><title>502 Bad Gateway</title></html>"
    yield b"\x1f\x8b\x08\x00" + b"\x00" * 100
    yield bytes(range(256)) * 20
    yield b"a" * 1_000_000
    yield b"# TYPE x gauge\n" * 10_000
    yield b'{"loads": [{}]}'
    yield b'{"loads": {"0": {}}}'
    yield b'{"workers": [[]]}'


def variants(name):
    """Return malformed answers of a dialect: at least a hundred."""
    chance = random.Random(name)
    made = []
    for base in bases(name):
        for path, body in base.items():
            is_json = body.lstrip()[:1] in (b"{", b"[")
            for bad in (json_variants if is_json else text_variants)(body, chance):
                made.append(told({**base, path: bad}))
        for status in (204, 301, 401, 403, 404, 429, 500, 503):
            made.append(told(base, status=status))
        for kind in ("text/html", "application/octet-stream", "", "image/png", "application/json"):
            made.append(told(base, content_type=kind))
    for body in anything():
        made.extend(told({question.path: body}) for question in ENGINES[name].questions)
    made.append({})
    return made


@pytest.mark.parametrize("name", ENGINES)
def test_a_hundred_malformed_answers_each_end_in_a_named_state(name):
    """Each of at least a hundred variants gives NotUnderstood or a reading without a wrong number; none raises."""
    answers = variants(name)
    assert len(answers) >= 100
    results = [check(ENGINES[name], each) for each in answers]
    for some in answers[:: max(1, len(answers) // 20)]:
        identify(some)
    assert any(isinstance(result, NotUnderstood) for result in results)
    assert any(isinstance(result, WorkerReading) for result in results)


@pytest.mark.parametrize("name", [name for name in ENGINES if name in SOURCES])
def test_recordings_themselves_pass_the_check(name):
    """What is recorded from real engines is understood, so the checks above bite on something."""
    for base in bases(name):
        result = check(ENGINES[name], told(base))
        assert isinstance(result, WorkerReading)
        assert result.pools or result.router_workers


BYTES = st.binary(max_size=300) | st.sampled_from(list(anything()))


@st.composite
def mutated(draw):
    """Return a dialect and answers cut, spliced and overwritten at random places."""
    name = draw(st.sampled_from(sorted(ENGINES)))
    options = bases(name)
    base = dict(draw(st.sampled_from(options))) if options else {}
    paths = [question.path for question in ENGINES[name].questions]
    for path in draw(st.lists(st.sampled_from(paths), max_size=3)):
        body = base.get(path, b"")[:20_000]
        at, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
        base[path] = body[:at] + draw(BYTES) + body[end:]
    status = draw(st.sampled_from([200, 200, 200, 200, 401, 404, 500]))
    return name, told(base, status=status)


@settings(deadline=None, derandomize=True, max_examples=300, suppress_health_check=list(HealthCheck))
@given(mutated())
def test_no_bytes_break_a_dialect(case):
    """Random cuts, splices and bytes end in a named state, too, and recognition never raises."""
    name, answers = case
    check(ENGINES[name], answers)
    identify(answers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
JSON_NAMES = [
    name for name in sorted(ENGINES) if name in ("sglang", "sglang-get-load", "trtllm", "router", "router-loads")
]


@settings(deadline=None, derandomize=True, max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(JSON_NAMES), st.data())
def test_no_json_breaks_a_dialect(name, data):
    """Any JSON value at any place of a recorded answer ends in a named state."""
    base = dict(data.draw(st.sampled_from(bases(name))))
    path = next(path for path, body in base.items() if body.lstrip()[:1] in (b"{", b"["))
    value = json.loads(base[path])
    place = data.draw(st.sampled_from(list(leaves(value))))
    base[path] = json_bytes(with_leaf(value, place, data.draw(JSON)))
    check(ENGINES[name], told(base))


LABEL_TEXT = st.text(max_size=30)


@settings(deadline=None, derandomize=True, max_examples=200, suppress_health_check=list(HealthCheck))
@given(LABEL_TEXT, st.sampled_from(["engine", "model_name", "le", "pid", "num_gpu_blocks", "block_size"]), st.floats())
def test_no_label_or_number_breaks_vllm(text, label, number):
    """Any text in a label and any float as a value end in a named state."""
    shown = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    body = "".join(
        f'vllm:{name}{{engine="0",{label}="{shown}"}} {number!r}\n'
        if label != "engine"
        else f'vllm:{name}{{engine="{shown}"}} {number!r}\n'
        for name in (
            "kv_cache_usage_perc",
            "num_requests_running",
            "cache_config_info",
            "time_to_first_token_seconds_bucket",
        )
    )
    check(ENGINES["vllm"], told({"/metrics": body.encode("utf-8", "replace")}))


def test_one_unknown_figure_costs_no_other_one():
    """NaN in any one line of a real vLLM body leaves every other field unknown or as it was, never different."""
    body = load("vllm/0.32.0/metrics.txt")
    (whole,) = ENGINES["vllm"].understand(told({"/metrics": body})).pools
    lines = body.split(b"\n")
    for i, line in enumerate(lines):
        if not line.startswith(b"vllm:") or b"_created" in line:
            continue
        bad = b"\n".join([*lines[:i], line.rpartition(b" ")[0] + b" NaN", *lines[i + 1 :]])
        (pool,) = ENGINES["vllm"].understand(told({"/metrics": bad})).pools
        for name in signal_names():
            assert getattr(pool, name) in (None, getattr(whole, name)), (line, name)

"""
Bad input to the SGLang dialects: every variant ends in a named outcome, no variant raises, nothing wrong comes through.

A wrong figure is one that the payload does not state: negative, not finite, absurd, another field's, a boolean's.
"""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from collectors.engines.numbers import LARGEST, Numbers, as_number, as_text, decode_json
from scoring.capacity import compose
from scoring.model import signal_names

GOOD = {
    "timestamp": "2026-10-31T00:00:00.1+00:00",
    "version": "0.5.23",
    "num_accelerators": 1,
    "loads": [
        {
            "timestamp": 1793404800.0, "dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 2,
            "num_waiting_uncached_tokens": 10, "num_used_tokens": 4000, "num_total_tokens": 4100,
            "num_active_tokens": 4100, "num_prealloc_ready_tokens": 0, "max_total_num_tokens": 100000,
            "max_running_requests": 64, "token_usage": 0.04, "gen_throughput": 100.0, "cache_hit_rate": 0.5,
            "utilization": 0.0, "total_prefill_uncached_tokens": 99, "total_prefill_busy_us": 99,
            "decode_moments": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "memory": {"weight_gb": 1.0, "kv_cache_gb": 1.0, "graph_gb": 0.0, "token_capacity": 100000},
            "disaggregation": {
                "mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
            },
            "queues": {"waiting": 2, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
        }
    ],
}  # fmt: skip
ODD = [
    None,
    True,
    False,
    -1,
    -0.5,
    2**80,
    10**400,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "12",
    "<b>5</b>",
    [],
    [1],
    {},
    {"a": 1},
]
FIELDS = list(GOOD["loads"][0])


def ask(body, path="/v1/loads", status=200, content_type="application/json"):
    """What the dialects make of one body: the outcome, by the contract."""
    raw = body if isinstance(body, bytes) else body.encode()
    answers = {path: Answer(status=status, content_type=content_type, body=raw, received_at_s=1.0)}
    identify(answers)
    outcomes = [ENGINES[name].understand(answers) for name in ("sglang", "sglang-metrics", "sglang-get-load")]
    for outcome in outcomes:
        if isinstance(outcome, NotUnderstood):
            assert outcome.code
            assert outcome.text
        else:
            credible(outcome)
    return outcomes[0]


def credible(reading):
    """Every figure is finite, not negative and not absurd; ranks are unique and ascend; texts are bounded."""
    ranks = [pool.dp_rank for pool in reading.pools]
    assert ranks == sorted(set(ranks))
    for pool in reading.pools[:64]:
        for name in signal_names():
            value = getattr(pool, name)
            assert value is None or (type(value) is float and math.isfinite(value) and 0 <= value <= 1e18), (
                name,
                value,
            )
        for text in (pool.version, pool.model):
            assert text is None or (len(text) <= 200 and text.isprintable())
    for pool in reading.pools[:8]:  # Thousands of ranks differ in nothing but their number.
        compose(pool)
    for finding in reading.findings:
        assert len(finding.text) < 1000
        assert finding.text.isprintable()


def changed(**row):
    """GOOD with fields of its row replaced."""
    return {**GOOD, "loads": [{**GOOD["loads"][0], **row}]}


@pytest.mark.parametrize("key", FIELDS)
def test_one_odd_field_costs_one_field(key):
    """Whatever stands in one field, the row's other figures come through as they are."""
    whole = ask(json.dumps(GOOD)).pools[0]
    for value in ODD:
        reading = ask(json.dumps(changed(**{key: value})))
        if isinstance(reading, NotUnderstood) or not reading.pools:
            assert key == "dp_rank"
            continue
        pool = reading.pools[0]
        linked = {
            "num_used_tokens": {"used_tokens", "pending_total_tokens", "arrived_tokens", "reported_usage_ratio"},
            "num_total_tokens": {"pending_total_tokens", "arrived_tokens"},
            "max_total_num_tokens": {"usable_tokens", "used_tokens", "kv_bytes", "bytes_per_token"},
        }
        differs = {name for name in signal_names() if getattr(pool, name) != getattr(whole, name)}
        if key in linked:
            assert differs <= linked[key], (value, differs)
        elif key in ("memory", "disaggregation", "queues", "decode_moments"):
            assert not differs & {"used_tokens", "usable_tokens", "running_count", "waiting_count"}, (value, differs)
        else:
            assert len(differs) <= 1 or key in ("num_running_reqs",), (value, differs)


TTFT = b'sglang:num_used_tokens 1\nsglang:time_to_first_token_seconds_bucket{le="%s"} %d\n'
HUNDRED = {
    "empty": b"",
    "white": b"   \n\n",
    "null": b"null",
    "number": b"5",
    "string": b'"loads"',
    "array": b"[]",
    "object": b"{}",
    "loads-null": b'{"loads": null}',
    "loads-object": b'{"loads": {"0": {}}}',
    "loads-number": b'{"loads": 3}',
    "rows-null": b'{"loads": [null, null]}',
    "rows-lists": b'{"loads": [[], [1]]}',
    "rows-empty": b'{"loads": [{}]}',
    "rows-texts": b'{"loads": ["a", "b"]}',
    "utf-8-broken": b'{"loads": [{"num_used_tokens": 5, "version": "\xff\xfe"}]}',
    "utf-16": json.dumps(GOOD).encode("utf-16"),
    "bom": b"\xef\xbb\xbf" + json.dumps(GOOD).encode(),
    "two-objects": json.dumps(GOOD).encode() * 2,
    "trailing-text": json.dumps(GOOD).encode() + b"</html>",
    "deep-lists": b"[" * 100_000,
    "deep-objects": b'{"loads":' * 50_000,
    "deep-closed": b"[" * 5000 + b"]" * 5000,
    "html": b"<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>",
    "html-with-names": b"<p>sglang:token_usage 0.5</p>\n<p>sglang:num_used_tokens 5</p>\n",
    "xml": b'<?xml version="1.0"?><loads/>',
    "yaml": b"loads:\n  - num_used_tokens: 5\n",
    "binary": bytes(range(256)) * 20,
    "zeros": b"\x00" * 5000,
    "gzip-magic": b"\x1f\x8b\x08\x00" + b"\x00" * 100,
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
    "nan-token": b'{"loads": [{"num_used_tokens": NaN, "max_total_num_tokens": 100}]}',
    "infinity-token": b'{"loads": [{"num_used_tokens": Infinity, "max_total_num_tokens": 100}]}',
    "huge-exponent": b'{"loads": [{"num_used_tokens": 1e999, "max_total_num_tokens": 100}]}',
    "huge-digits": b'{"loads": [{"num_used_tokens": ' + b"9" * 5000 + b', "max_total_num_tokens": 100}]}',
    "minus-zero": b'{"loads": [{"num_used_tokens": -0.0, "max_total_num_tokens": 100}]}',
    "same-key-twice": b'{"loads": [{"num_used_tokens": 5, "num_used_tokens": 7, "max_total_num_tokens": 100}]}',
    "many-ranks": json.dumps({"loads": [{"dp_rank": i, "max_total_num_tokens": 10} for i in range(9000)]}).encode(),
    "rank-negative": json.dumps(changed(dp_rank=-1)).encode(),
    "rank-half": json.dumps(changed(dp_rank=0.5)).encode(),
    "rank-text": json.dumps(changed(dp_rank="0")).encode(),
    "rank-huge": json.dumps(changed(dp_rank=2**60)).encode(),
    "version-html": json.dumps({**GOOD, "version": "<script>alert(1)</script>" * 50}).encode(),
    "version-control": json.dumps({**GOOD, "version": "0.5\u001b[31m.23\n\r\u0000\u202e"}).encode(),
    "version-number": json.dumps({**GOOD, "version": 5}).encode(),
    "timestamp-far": json.dumps(changed(timestamp=1e300)).encode(),
    "timestamp-text": json.dumps({**GOOD, "timestamp": "yesterday" * 100}).encode(),
    "moments-short": json.dumps(changed(decode_moments=[1.0, 2.0])).encode(),
    "moments-odd": json.dumps(changed(decode_moments=[1.0, None, "x", -4, {}, []])).encode(),
    "mode-number": json.dumps(changed(disaggregation={"mode": 5})).encode(),
    "mode-new": json.dumps(changed(disaggregation={"mode": "encode"})).encode(),
    "sections-lists": json.dumps(changed(disaggregation=[1], queues=[2], memory=[3])).encode(),
    "text-cut": b"sglang:num_used_tokens 5\nsglang:token_us",
    "text-no-newline": b"sglang:num_used_tokens 5",
    "text-bad-labels": b'sglang:num_used_tokens{dp_rank="0 5\nsglang:token_usage{} 0.5\n',
    "text-rank-odd": b'sglang:num_used_tokens{dp_rank="-1"} 5\nsglang:num_used_tokens{dp_rank="99999999999"} 5\n',
    "text-html-label": b'sglang:num_used_tokens{model_name="<img src=x onerror=alert(1)>"} 5\n',
    "text-negative": b"sglang:num_used_tokens -5\nsglang:kv_evictable_tokens -1\n",
    "text-huge": b"sglang:num_used_tokens 1e300\nsglang:max_total_num_tokens 9e18\n",
    "text-twice": b"sglang:num_used_tokens 5\nsglang:num_used_tokens 6\n",
    "text-prose": b"The sglang:num_used_tokens metric is high today\n",
    "text-buckets-odd": TTFT % (b"x", 1) + TTFT % (b"+Inf", -1),
    "text-buckets-falling": TTFT % (b"1", 9) + TTFT % (b"+Inf", 3),
    "text-loads": b"sglang_num_waiting_reqs NaN\nsglang_max_total_num_tokens{dp_rank=\"x\"} 5\n",
    "get-load-odd": b'[{"num_reqs": -1, "num_waiting_reqs": true, "num_tokens": "5"}]',
    "get-load-mixed": b'[{"num_reqs": 1, "num_tokens": 5}, 7]',
    "get-load-more-waiting": b'[{"num_reqs": 1, "num_waiting_reqs": 9, "num_tokens": 5}]',
    "info-odd": b'{"model_path": 5, "tp_size": -1, "dp_size": true, "internal_states": "x"}',
}  # fmt: skip
whole = json.dumps(GOOD).encode()
for cut in range(0, len(whole), 23):
    HUNDRED[f"cut-at-{cut}"] = whole[:cut]


@pytest.mark.parametrize("path", ["/v1/loads", "/metrics", "/get_load", "/server_info"])
def test_a_hundred_malformed_answers_end_in_a_named_outcome(path):
    """More than a hundred bad bodies under each path: understood in part or not understood, never an exception."""
    assert len(HUNDRED) > 100
    for name, body in HUNDRED.items():
        outcome = ask(body, path=path, content_type="text/html" if name.startswith("html") else "application/json")
        if path == "/v1/loads" and (name.startswith("cut-at") or name in ("html", "empty", "binary", "deep-lists")):
            assert isinstance(outcome, NotUnderstood), name


@pytest.mark.parametrize("status", [204, 301, 400, 404, 422, 429, 500, 502, 503])
def test_an_error_status_is_never_read_as_figures(status):
    """A perfect body under another status than 200 is not understood."""
    assert isinstance(ask(json.dumps(GOOD), status=status), NotUnderstood)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*FIELDS, "loads", "mode", "waiting"]), inner, max_size=6)
    ),
    max_leaves=25,
)


@given(JSON)
@settings(max_examples=120, deadline=None)
def test_any_json_ends_in_a_named_outcome(value):
    """Any JSON value, also one that uses the engine's own names, gives credible figures or a reason."""
    ask(json.dumps({"loads": [value], "timestamp": value}))
    ask(json.dumps(value))


@given(st.randoms(use_true_random=False), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_any_damage_to_a_real_metrics_body_ends_in_a_named_outcome(rng: random.Random, hits):
    """Bytes changed, doubled or lost anywhere in real text: credible figures or a reason."""
    body = bytearray(DAMAGED[rng.randrange(len(DAMAGED))])
    for _ in range(hits):
        at = rng.randrange(len(body))
        action = rng.randrange(3)
        if action == 0:
            body[at] = rng.randrange(256)
        elif action == 1:
            del body[at : at + rng.randrange(1, 40)]
        else:
            body[at:at] = body[at : at + rng.randrange(1, 40)]
    ask(bytes(body), path="/metrics", content_type="text/plain")


DAMAGED = [
    b"".join(
        f'sglang:{name}{{dp_rank="{rank}",engine_type="decode",model_name="m",tp_rank="0"}} {value}\n'.encode()
        for rank in (0, 1)
        for name, value in (
            ("num_used_tokens", 5),
            ("max_total_num_tokens", 10),
            ("num_running_reqs", 2),
            ("token_usage", 0.5),
        )
    ),
    b"".join(
        f'sglang_{name}{{dp_rank="0"}} {value}\n'.encode()
        for name, value in (
            ("num_used_tokens", 5),
            ("num_waiting_reqs", 1),
            ("max_total_num_tokens", 10),
            ("disagg_decode_prealloc_queue_reqs", 1),
        )
    ),
]


@given(st.integers() | st.floats() | st.booleans() | st.text() | st.none())
def test_a_number_is_credible_or_refused(raw):
    """What passes is a float from 0 to the largest; what does not pass is remembered with its raw value."""
    value = as_number(raw)
    assert value is None or (type(value) is float and 0 <= value <= LARGEST and not isinstance(raw, (bool, str)))
    numbers = Numbers()
    taken = numbers.take(raw, "used_tokens")
    assert (taken is None) == (value is None)
    assert (numbers.anomalies == ["used_tokens"]) == (value is None and raw is not None)


@given(st.text(max_size=600))
def test_a_text_stays_a_bounded_line(raw):
    """Texts keep no control character and no more than their bound; HTML stays what it is, a text."""
    kept = as_text(raw)
    assert kept is None or (0 < len(kept) <= 200 and kept.isprintable())
    assert as_text("<b>x</b>") == "<b>x</b>"


def test_a_number_beyond_json_costs_only_its_field():
    """NaN and overlong numbers are no JSON; the other fields are still read."""
    assert decode_json(b'{"a": NaN, "b": 1}')["b"] == 1
    assert as_number(decode_json(b'{"a": 1e999}')["a"]) is None
    assert decode_json(b"[" * 200_000) is None


def test_a_row_said_twice_with_different_figures_is_nobody_s():
    """Equal repetitions are one row; contradicting ones are none, with an error that names the rank."""
    row = GOOD["loads"][0]
    same = ask(json.dumps({**GOOD, "loads": [row, row]}))
    assert [pool.dp_rank for pool in same.pools] == [0]
    other = ask(json.dumps({**GOOD, "loads": [row, {**row, "num_used_tokens": 1}, {**row, "dp_rank": 1}]}))
    assert [pool.dp_rank for pool in other.pools] == [1]
    assert "duplicate-rank" in {finding.code for finding in other.findings}


def test_an_engine_that_has_published_nothing_is_not_an_empty_pool():
    """Zero-filled slots: no usable, no used, and `nothing yet`; one published rank beside it is read."""
    empty = {"dp_rank": 1, "timestamp": 0.0, "max_total_num_tokens": 0, "num_used_tokens": 0, "num_running_reqs": 0}
    alone = ask(json.dumps({**GOOD, "loads": [empty]}))
    assert alone.is_nothing_yet
    assert (alone.pools[0].usable_tokens, alone.pools[0].used_tokens) == (None, None)
    both = ask(json.dumps({**GOOD, "loads": [GOOD["loads"][0], empty]}))
    assert not both.is_nothing_yet
    assert [pool.used_tokens for pool in both.pools] == [4000, None]
    assert ask(json.dumps({**GOOD, "loads": []})).is_nothing_yet

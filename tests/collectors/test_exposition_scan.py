"""The line scan of Prometheus text: agrees with the strict parser where that one can read, and survives the rest."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from collectors.exposition import bare_name, is_exposition, scan, spellings

REAL = [
    "0.5.23-real/idle_metrics.prom",
    "0.5.23-real/dp2_load_metrics.prom",
    "0.5.23-real-2p2d/metrics_32002.prom",
    "0.5.12/loads_prefill.prom",
    "0.5.23/loads_decode.prom",
]


def as_set(samples):
    """Samples without order, NaN-safe."""
    return {(s.name, tuple(sorted(s.labels.items())), s.value) for s in samples}


def oracle(text, parse=text_string_to_metric_families):
    """What the strict parser reads, with our rule that a value is finite or unknown and `_created` is left out."""
    return {
        (s.name, tuple(sorted(s.labels.items())), s.value if math.isfinite(s.value) else None)
        for family in parse(text)
        for s in family.samples
        if not s.name.endswith("_created")
    }


@pytest.mark.parametrize("name", REAL)
def test_a_valid_body_reads_as_the_strict_parser_reads_it(payload, name):
    """On real bodies the scan and prometheus_client agree sample by sample, and nothing is rejected."""
    body = payload(name)
    got = scan(body)
    assert as_set(got.samples) == oracle(body.decode())
    assert got.rejected_count == 0
    assert len(got.samples) > 20


def test_openmetrics_is_read_with_exemplars_timestamps_and_eof():
    """An OpenMetrics body (counters, exemplars, timestamps, EOF) gives what its strict parser gives."""
    text = (
        '# TYPE a counter\na_total{x="1"} 17.0 1520879607.789 # {trace_id="KOO5S4vxi0o"} 0.67\n'
        'a_created{x="1"} 1520430000.0 1520879607.789\n# TYPE b gauge\nb 2.5e3 1.5\n# EOF\n'
    )
    got = scan(text.encode())
    assert as_set(got.samples) == oracle(text, openmetrics.text_string_to_metric_families)
    assert (got.ignored_count, got.rejected_count) == (1, 0)


LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
NAME = st.from_regex(r"[a-z_:][a-z0-9_:]{0,8}", fullmatch=True)
KEY = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda key: not key.startswith("__"))
VALUE = st.floats(allow_nan=True, allow_infinity=True)


def escaped(text):
    """Escape a label value as an exposition does."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@given(st.lists(st.tuples(NAME, st.dictionaries(KEY, LABEL, max_size=3), VALUE), max_size=8))
@settings(max_examples=150, deadline=None)
def test_what_is_written_by_the_rules_is_read_back(series):
    """Any names, labels (escapes, other scripts, braces in quotes) and values written by the format come back."""
    wanted = {}
    lines = []
    for name, labels, value in series:
        key = (name, tuple(sorted(labels.items())))
        if key in wanted or name.endswith("_created"):
            continue
        wanted[key] = value if math.isfinite(value) else None
        inside = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}\n")
    got = scan("".join(lines).encode())
    assert {(s.name, tuple(sorted(s.labels.items()))): s.value for s in got.samples} == wanted
    assert (got.rejected_count, got.duplicate_count) == (0, 0)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_bytes_raise_and_every_value_is_finite(body):
    """Whatever comes, the scan ends without an exception and lets no NaN or infinity through."""
    got = scan(body)
    assert all(s.value is None or math.isfinite(s.value) for s in got.samples)
    is_exposition(body)


@given(st.lists(st.sampled_from([b'a{x="1"} 1', b"b 2", b"c NaN", b"bad line here", b"# c", b"", b"d{", b"e 1_0"])))
@settings(max_examples=60, deadline=None)
def test_every_line_is_counted_once(lines):
    """Samples + ignored + rejected + duplicates = lines that are neither empty nor comments."""
    got = scan(b"".join(line + b"\n" for line in lines), frozenset({"a", "c"}))
    assert got.line_count == sum(bool(line) and not line.startswith(b"#") for line in lines)


def test_wanted_names_are_a_filter_and_nothing_else(payload):
    """Reading with a filter gives exactly the samples of those names that reading without one gives."""
    body = payload("0.5.23-real/dp2_load_metrics.prom")
    names = spellings("sglang", ["token_usage", "kv_used_tokens"])
    everything, some = scan(body), scan(body, names)
    assert some.samples == tuple(s for s in everything.samples if s.name in names)
    assert some.line_count == everything.line_count


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "+Inf", "-Inf", "inf", "Infinity"])
def test_not_a_finite_number_is_unknown_not_zero(text):
    """NaN in any spelling and infinities keep the series and lose the value."""
    got = scan(f"a 1\nb {text}\n".encode())
    assert [(s.name, s.value) for s in got.samples] == [("a", 1.0), ("b", None)]
    assert got.unknown_count == 1


@pytest.mark.parametrize(
    "line",
    [
        "a N/A",
        "a 1_000",
        "a \u0661\u0662",
        "a",
        "a{x=1} 1",
        'a{x="1" 1',
        'a{x="1",x="2"} 1',
        "1a 1",
        "a 0x1F",
        "a 1 yesterday",
        "<html>",
        "a{" + 'x="' + "y" * 5000 + '"} 1',
    ],
)
def test_a_line_that_is_no_sample_is_rejected_alone(line):
    """A malformed line is counted and costs no other line."""
    got = scan(f"before 1\n{line}\nafter 2\n".encode())
    assert [s.name for s in got.samples] == ["before", "after"]
    assert got.rejected_count == 1


def test_a_last_line_without_its_end_is_not_trusted():
    """A body cut inside a number reads as another number: the line without a line feed is rejected."""
    assert [s.value for s in scan(b"a 5\nb 17").samples] == [5.0]
    assert scan(b"a 5\nb 17").rejected_count == 1
    assert scan(b"a 5\n# EOF").rejected_count == 0


def test_a_series_that_contradicts_itself_is_unknown():
    """Repeated with the same value: once. Repeated with another: nobody can say, so unknown. Both are counted."""
    got = scan(b'a{x="1",y="2"} 1\na{y="2",x="1"} 1\nb 1\nb 2\n')
    assert [(s.name, s.value) for s in got.samples] == [("a", 1.0), ("b", None)]
    assert got.duplicate_count == 2


def test_prefixes_are_one_metric():
    """Colon and underscore after the prefix are content negotiation: both are wanted and both lead to one name."""
    got = scan(
        b"sglang:token_usage 0.5\nsglang_num_used_tokens 7\n", spellings("sglang", ["token_usage", "num_used_tokens"])
    )
    assert [bare_name(s.name, "sglang") for s in got.samples] == ["token_usage", "num_used_tokens"]
    assert bare_name("sglangx_token", "sglang") == "sglangx_token"


def test_names_in_quotes_are_read():
    """The newer form with the name inside the braces is the same sample."""
    got = scan(b'{"a.b", x="1"} 4\n{"c"} 5\n')
    assert [(s.name, dict(s.labels), s.value) for s in got.samples] == [("a_b", {"x": "1"}, 4.0), ("c", {}, 5.0)]


@pytest.mark.parametrize(
    "body", [b"<!DOCTYPE html><p>a 1\n", b'{"loads": []}', b"[1]", b"", b"just some words\nand more of them\n"]
)
def test_other_things_are_no_exposition(body):
    """HTML, JSON, nothing and prose are told apart from an exposition."""
    assert not is_exposition(body)


@pytest.mark.parametrize(
    "body",
    [
        b"a{" + b'"' * 400_000,
        b"a{" + b"x" * 400_000 + b"\n",
        b'a{x="' + b"\\" * 400_001 + b"\n",
        b"{" * 400_000 + b"\n",
    ],
)
def test_a_hostile_line_costs_linear_time(body):
    """Patterns never backtrack: 400 kB of the worst characters are read in well under the time of a poll."""
    started = time.perf_counter()
    scan(body)
    assert time.perf_counter() - started < 2.0

"""Recorded traffic: every oddity of the published files has its stated treatment, and no row is lost silently."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.trace import Trace, TraceError, TraceOptions, read_trace
from simulation.trace_formats import FORMATS
from simulation.trace_json import write_own
from simulation.workload import spread_ticks

HERE = Path(__file__).resolve().parent.parent / "payloads" / "traces"


def read(name: str, **options: object) -> Trace:
    """Read a small file with its line ends as they are."""
    with (HERE / name).open(newline="") as file:
        return read_trace(file, FORMATS, options=TraceOptions(**options))


def is_whole(trace: Trace) -> bool:
    """Say whether every row met is either a request or counted as skipped."""
    report = trace.report
    return report.row_count == report.read_count + sum(skip.count for skip in report.skips)


def test_quantised_arrivals_are_told_and_left_as_they_are() -> None:
    """Ticks of 3 s are a note with their width; the span is 9.001 s, not 9001."""
    trace = read("ticks_ms.jsonl")
    assert (len(trace), trace.report.distinct_time_count) == (30, 4)
    assert trace.report.span_s == 9.001
    assert trace.report.tick_s == pytest.approx(3.0, abs=0.01)
    assert np.count_nonzero(trace.traffic.arrival_s == 0.0) == 12
    assert any("quantised to about 3 s" in note for note in trace.report.notes)


def test_fractional_times_are_seconds_and_a_prompt_never_hits_more_than_it_has() -> None:
    """Times 0.0 to 0.4 are taken as seconds with a note; a row with more ids than blocks is refused with its number."""
    trace = read("seconds_malformed.jsonl")
    assert trace.report.span_s == pytest.approx(0.4)
    assert any("taken as seconds" in note for note in trace.report.notes)
    assert any("--block-size 16" in note for note in trace.report.notes)
    assert [(skip.count, skip.first_rows) for skip in trace.report.skips] == [(1, (2,))]
    assert read("seconds_malformed.jsonl", time_unit="ms").report.span_s == pytest.approx(0.0004)
    assert len(read("seconds_malformed.jsonl", hash_block_tokens=16)) == 3


def test_rows_of_text_or_without_time_are_skipped_with_their_reason() -> None:
    """Text needs a tokenizer, a row without time has no place; a row without ids has unknown reuse."""
    trace = read("text_rows.jsonl")
    assert len(trace) == 1
    assert {skip.first_rows for skip in trace.report.skips} == {(1,), (2,)}
    assert not trace.report.has_reuse
    assert is_whole(trace)


def test_byte_order_mark_and_dos_line_ends_do_not_matter() -> None:
    """A byte-order mark breaks no first row, a blank last line is no row."""
    trace = read("bom_crlf.jsonl")
    assert (len(trace), trace.report.row_count) == (3, 3)


def test_azure_keeps_all_seven_digits_and_the_last_row() -> None:
    """Offsets are exact to 100 ns, rows are sorted, a prompt of 0 is skipped, the file may end without a newline."""
    trace = read("azure_like.csv")
    assert trace.traffic.arrival_s.tolist() == pytest.approx([0.0, 0.4799600, 0.5319600, 0.5319601], abs=1e-12)
    assert len(np.unique(trace.traffic.arrival_s)) == 4
    assert trace.report.row_count == 5
    assert [(skip.reason, skip.first_rows) for skip in trace.report.skips] == [("ContextTokens is below 1", (6,))]
    assert any("sorted by time" in note for note in trace.report.notes)
    assert any("UTC" in note for note in trace.report.notes)


def test_azure_2024_takes_zones_and_whole_seconds() -> None:
    """A zone suffix and a value without fraction are read; no zone note is made."""
    trace = read("azure2024_like.csv")
    assert trace.traffic.arrival_s.tolist() == pytest.approx([0.0, 0.007405, 0.990070], abs=1e-9)
    assert not any("UTC" in note for note in trace.report.notes)


def test_burstgpt_failures_are_counted_and_left_out() -> None:
    """Response tokens 0 is a failure: left out, told as 2 of 6; a wrong total column is noted and not used."""
    trace = read("burstgpt_like.csv")
    assert (len(trace), trace.report.row_count, trace.report.span_s) == (4, 6, 114.0)
    assert (trace.traffic.output_tokens > 0).all()
    assert any("2 of 6 failed" in note for note in trace.report.notes)
    assert any("Total tokens" in note for note in trace.report.notes)
    assert set(trace.categories["model"].names) >= {"ChatGPT", "GPT-4"}
    kept = read("burstgpt_like.csv", keep_failures=True)
    assert len(kept) == 6


def test_burstgpt_columns_are_found_by_name() -> None:
    """Columns in the middle shift nothing; session reuse is off unless asked, then bounded by the turn before."""
    trace = read("burstgpt_v2_like.csv")
    assert trace.traffic.prompt_tokens.tolist() == [200, 450, 90]
    assert trace.report.reuse_known_count == 0
    reused = read("burstgpt_v2_like.csv", are_turns_reused=True, hash_block_tokens=1)
    traffic = reused.traffic
    rows = [set(traffic.hash_ids[traffic.offsets[i] : traffic.offsets[i + 1]].tolist()) for i in range(3)]
    assert len(rows[0] & rows[1]) <= 250
    assert rows[0] <= rows[1]


def test_ticks_are_spread_only_inside_their_tick_and_by_seed() -> None:
    """Spreading moves no request out of its 3-s tick, keeps all, and repeats with its seed."""
    trace = read("ticks_ms.jsonl")
    moved, again = (spread_ticks(trace, seed=4) for _ in range(2))
    assert moved.traffic.arrival_s.tobytes() == again.traffic.arrival_s.tobytes()
    assert len(np.unique(moved.traffic.arrival_s)) == len(trace)
    before = dict(zip(trace.row_numbers.tolist(), trace.traffic.arrival_s.tolist(), strict=True))
    shift = min(now - before[row] for row, now in zip(moved.row_numbers.tolist(), moved.traffic.arrival_s, strict=True))
    for row, now in zip(moved.row_numbers.tolist(), moved.traffic.arrival_s.tolist(), strict=True):
        assert 0 <= now - before[row] - shift <= trace.report.tick_s


def test_a_request_told_twice_is_one_request_and_a_block_twice_is_refused() -> None:
    """Both ends of a pair log one id: taken once, counted, both rows named; a repeated hash id is no prefix."""
    row = {"id": "a", "prompt_tokens": 10, "completion_tokens": 2, "request_received_ts": 100.0}
    trace = read_trace([json.dumps(row), json.dumps({**row, "id": "b"}), json.dumps(row)], FORMATS)
    assert len(trace) == 2
    assert [(skip.reason, skip.first_rows) for skip in trace.report.skips] == [("a request id met before", (3,))]
    assert any("rows 1 and 3" in note for note in trace.report.notes)
    twice = {"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": [4, 4]}
    with pytest.raises(TraceError, match="twice in one prompt"):
        read_trace([json.dumps(twice)], FORMATS)


def test_columns_nobody_knows_are_named_and_do_no_harm() -> None:
    """A column or field that is not read is a note with its name; the rows are read all the same."""
    lines = ["TIMESTAMP,colour,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,red,5,6"]
    trace = read_trace(lines, FORMATS)
    assert (len(trace), trace.traffic.prompt_tokens[0]) == (1, 5)
    assert "columns not used: colour" in trace.report.notes
    row = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1], "colour": "red"}
    assert "fields not used: colour" in read_trace([json.dumps(row)], FORMATS).report.notes


def test_blocks_of_two_sizes_in_one_file_are_refused_by_row() -> None:
    """Our own format: a row of another hash block size is skipped with its number; ids of two sizes never mix."""
    row = {"arrival_s": 0, "prompt_tokens": 200, "output_tokens": 1, "hash_block_tokens": 64, "hash_ids": [1, 2]}
    trace = read_trace([json.dumps(row), json.dumps({**row, "hash_block_tokens": 16})], FORMATS)
    assert (len(trace), trace.traffic.hash_block_tokens) == (1, 64)
    assert trace.report.skips[0].first_rows == (2,)


def test_memory_grows_with_the_rows_by_a_few_dozen_bytes_each() -> None:
    """A stream (made as it is read) costs under 200 bytes a row at its peak: ten million fit in 2 GB."""
    count = 20_000

    def lines():
        yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        for i in range(count):
            yield f"{i // 7},ChatGPT,{100 + i % 900},{1 + i % 300},{101 + i % 900 + i % 300},API log\n"

    tracemalloc.start()
    try:
        trace = read_trace(lines(), FORMATS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace) == count
    assert peak / count < 200


def test_missing_columns_are_named_at_once() -> None:
    """A file without a needed column fails naming it, instead of loading no rows."""
    with pytest.raises(TraceError, match="Response tokens") as error:
        read("empty_columns.csv")
    assert "Log Type" in str(error.value)


def test_session_documents_keep_ids_apart_and_nested_agents_in_their_own_time() -> None:
    """Sub-agent times count from their group's start, at any depth; the same local id in two sessions is two blocks."""
    inner = {"t": 5.0, "type": "n", "in": 130, "out": 1, "hash_ids": [1, 2]}
    nested = {"type": "subagent", "t": 10.0, "requests": [inner, {"type": "subagent", "t": 1.0, "requests": [inner]}]}
    first = {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [{**inner, "t": 0.0}, nested]}
    second = {"id": "b", "block_size": 64, "hash_id_scope": "local", "requests": [{**inner, "t": 2.0}]}
    trace = read_trace([json.dumps(first), json.dumps(second)], FORMATS)
    assert trace.traffic.arrival_s.tolist() == [0.0, 2.0, 15.0, 16.0]
    assert len(np.unique(trace.traffic.hash_ids)) == 4
    groups = trace.categories["group"]
    assert [groups.names[code] for code in groups.codes] == ["main", "main", "main:sub1", "main:sub1:sub1"]


def test_a_real_session_document_reads_whole() -> None:
    """The recorded session gives every request, floor-many ids each."""
    trace = read("session_0032.json")
    lengths = np.diff(trace.traffic.offsets)
    assert len(trace) == 3
    assert (lengths == trace.traffic.prompt_tokens // 64).all()


def test_sglang_exports_take_arrival_from_what_there_is() -> None:
    """request_received_ts first, else finish less latency, else the row is skipped; nothing is guessed."""
    rows = [
        {"id": "a", "prompt_tokens": 10, "completion_tokens": 2, "request_received_ts": 100.0, "e2e_latency": 1.0},
        {"id": "b", "prompt_tokens": 11, "completion_tokens": 3, "request_finished_ts": 103.0, "e2e_latency": 2.5},
        {"id": "c", "prompt_tokens": 12, "completion_tokens": 3, "e2e_latency": 2.5},
    ]
    trace = read_trace([json.dumps(row) for row in rows], FORMATS)
    assert trace.report.format == "sglang-metrics"
    assert trace.traffic.arrival_s.tolist() == [0.0, 0.5]
    assert trace.report.skips[0].first_rows == (3,)
    assert trace.observed["e2e_s"].tolist() == [1.0, 2.5]


def test_sglang_log_takes_the_json_behind_its_bracket() -> None:
    """Only finished requests are taken; the prefix before the brace is not JSON and does not matter."""
    meta = {"prompt_tokens": 10, "completion_tokens": 2, "request_received_ts": 5.0}
    received = {"event": "request.received", "rid": "x", "obj": {}}
    finished = {"event": "request.finished", "rid": "x", "obj": {}, "out": {"meta_info": meta}}
    lines = [f"[2026-10-31 00:00:08] {json.dumps(row)}" for row in (received, finished)]
    trace = read_trace(lines, FORMATS)
    assert (trace.report.format, len(trace), trace.report.row_count) == ("sglang-log", 1, 2)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "empty"),
        (["\n", "\n"], "empty"),
        (["hello world"], "no trace format fits row 1"),
        (["\x93NUMPY\x01\0v\0"], "this is no text"),
        (['{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}'], "below 1"),
        (['{"timestamp": 0, "input_length": 1e300, "output_length": 1}'], "above"),
        (['{"timestamp": 0, "input_length": true, "output_length": 1}'], "no number"),
        (['{"timestamp": "x", "input_length": 5, "output_length": 1}'], "timestamp is no number"),
        (['{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [-3]}'], "negative"),
        (['{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [99999999999999999999]}'], "64 bits"),
    ],
)
def test_unusable_files_say_which_row_and_why(lines: list[str], words: str) -> None:
    """A file with no usable row is an error that names the reason and the first row, never an empty result."""
    with pytest.raises(TraceError, match=words):
        read_trace(lines, FORMATS)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.text(max_size=80), max_size=12), st.sampled_from(sorted(FORMATS)))
def test_no_text_raises_anything_but_a_trace_error(lines: list[str], name: str) -> None:
    """Whatever the lines, reading ends in a trace whose rows are all accounted for, or in a TraceError."""
    try:
        trace = read_trace(lines, FORMATS, format_name=name)
    except TraceError:
        return
    assert is_whole(trace)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.permutations(range(8)), st.integers(0, 2**32))
def test_row_order_does_not_matter_to_the_traffic(order: list[int], seed: int) -> None:
    """Distinct arrivals in any order give the same traffic, and our own format carries it through unchanged."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "timestamp": int(1000 * i),
            "input_length": int(rng.integers(1, 2000)),
            "output_length": int(rng.integers(0, 9)),
        }
        for i in range(8)
    ]
    for row in rows:
        row["hash_ids"] = list(range(-(-row["input_length"] // 512)))
    straight = read_trace([json.dumps(row) for row in rows], FORMATS)
    shuffled = read_trace([json.dumps(rows[i]) for i in order], FORMATS)
    again = read_trace(write_own(shuffled), FORMATS)
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "offsets", "hash_ids"):
        expected = getattr(straight.traffic, name).tolist()
        assert getattr(shuffled.traffic, name).tolist() == expected
        assert getattr(again.traffic, name).tolist() == expected


def test_published_files_read_whole(shared: Path) -> None:
    """Row counts, spans and totals of the published files as their owners state them."""
    traces = shared / "data" / "traces"
    with (traces / "mooncake_conversation.jsonl").open() as file:
        mooncake = read_trace(file, FORMATS)
    assert (len(mooncake), mooncake.report.distinct_time_count) == (12031, 1180)
    assert int(mooncake.traffic.prompt_tokens.sum()) == 144_793_823
    assert len(mooncake.traffic.hash_ids) == 288_500
    assert len(np.unique(mooncake.traffic.hash_ids)) == 182_790
    for name, count in (("code", 8819), ("conv", 19366)):
        with (traces / f"AzureLLMInferenceTrace_{name}.csv").open(newline="") as file:
            assert len(read_trace(file, FORMATS)) == count
    with (traces / "ragpulse_0_trace.jsonl").open() as file:
        ragpulse = read_trace(file, FORMATS)
    assert len(ragpulse) == 7106
    assert ragpulse.report.reuse_known_count == 0
    with gzip.open(traces / "kct_sample40_block64.jsonl.gz", "rt") as file:
        agents = read_trace(file, FORMATS)
    assert len(agents) == 1117
    assert len(np.unique(agents.traffic.hash_ids)) >= 82_155

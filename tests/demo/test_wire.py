"""The `/v1/loads` wire: byte for byte what a real SGLang 0.5.23 server answered."""

import json
from pathlib import Path

import msgspec
import pytest

from demo import wire

CAPTURES = ("idle", "load", "dp2_load")


def _capture(shared: Path, name: str) -> bytes:
    # The captures end with a line feed that the capturing shell added.
    return (shared / "fixtures" / "sglang_real" / name).read_bytes().removesuffix(b"\n")


@pytest.mark.parametrize("name", CAPTURES)
def test_json_is_the_real_servers_bytes(shared: Path, name: str) -> None:
    """Reading a captured body and writing it again changes no byte: same order, same separators, same floats."""
    raw = _capture(shared, f"{name}_v1_loads.txt")
    head = msgspec.json.decode(raw)
    rows = head.pop("loads")
    assert wire.to_json(head, wire.select(rows, None, None)) == raw


@pytest.mark.parametrize("name", CAPTURES)
def test_core_has_the_real_servers_keys(shared: Path, name: str) -> None:
    """`include=core` leaves the keys, in the order, that the real server leaves."""
    whole = json.loads(_capture(shared, f"{name}_v1_loads.txt"))["loads"]
    core = json.loads(_capture(shared, f"{name}_v1_loads_include_core.txt"))["loads"]
    assert [list(row) for row in wire.select(whole, None, " core ")] == [list(row) for row in core]


@pytest.mark.parametrize("name", CAPTURES)
def test_text_has_the_real_servers_series(shared: Path, name: str) -> None:
    """The text form names the same series with the same labels in the same order, types before samples."""
    rows = json.loads(_capture(shared, f"{name}_v1_loads.txt"))["loads"]

    def shape(text: bytes) -> list[str]:
        return [line if line.startswith("#") else line.split(" ")[0] for line in text.decode().splitlines()]

    assert shape(wire.to_text(rows)) == shape(_capture(shared, f"{name}_v1_loads_format_prometheus.txt"))


ROWS = [
    {"timestamp": 1.5, "dp_rank": rank, "num_used_tokens": rank, "memory": {"weight_gb": 1.0}, "queues": {"waiting": 2}}
    for rank in (0, 1)
]


def test_queries_select_and_refuse_like_the_real_server() -> None:
    """
    Out of range is an empty list, no number is 422, an unknown section is 500 once there is a row to write.

    Empty `include` means all, white space around words is nothing, sections add to core.
    """
    assert wire.select(ROWS, "1", None) == [ROWS[1]]
    assert wire.select(ROWS, "7", "bogus") == []
    assert wire.select(ROWS, None, "") == ROWS
    assert [set(row) for row in wire.select(ROWS, None, "queues , core")] == [
        {"timestamp", "dp_rank", "num_used_tokens", "queues"}
    ] * 2
    with pytest.raises(wire.BadQueryError) as refused:
        wire.select(ROWS, "abc", None)
    assert refused.value.status == 422
    assert json.loads(refused.value.body)["detail"][0]["input"] == "abc"
    with pytest.raises(wire.BadQueryError) as refused:
        wire.select(ROWS, None, "bogus")
    assert (refused.value.status, refused.value.body) == (500, b"Internal Server Error")


def test_text_of_no_rows_is_one_line_feed() -> None:
    """A server with nothing to say sends an empty line, not an empty body."""
    assert wire.to_text([]) == b"\n"


def test_text_leaves_out_what_is_no_number() -> None:
    """Lists, words, null and flags are no samples: writing them would break every reader of the format."""
    row = {
        "dp_rank": 0,
        "decode_moments": [1.0],
        "accelerator": None,
        "x": True,
        "disaggregation": {"mode": "null", "n": 3},
    }
    assert wire.to_text([row]) == b'# TYPE sglang_disagg_n gauge\nsglang_disagg_n{dp_rank="0"} 3\n'

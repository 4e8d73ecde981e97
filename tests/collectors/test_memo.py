"""Remembered parsing: the same body object is parsed once, an equal one anew, and memory is bounded."""

from collectors.engines.memo import Remembered


def test_the_same_object_is_parsed_once_and_an_equal_one_again() -> None:
    """Identity decides: a new answer is always parsed, whatever it says, and the results are those of the parser."""
    calls: list[bytes] = []
    remembered = Remembered(lambda body: calls.append(body) or len(body), entries_max=2)
    first, twin = bytes(bytearray(b"abc")), bytes(bytearray(b"abc"))
    assert [remembered(first), remembered(first), remembered(twin)] == [3, 3, 3]
    assert len(calls) == 2
    for _ in range(50):
        assert remembered(bytes(bytearray(b"other"))) == 5
    assert remembered(first) == 3
    assert len(calls) == 53, "the first was pushed out and parsed again"
    assert len(remembered._entries) <= 2

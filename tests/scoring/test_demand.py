"""
Laws of demand and of the output distribution: rounding never promises room that is not there, quantiles never fall,
a cap caps, segments add up, and a policy's view has no true output.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.demand import (
    OutputQuantiles,
    OutputTable,
    RequestView,
    demand_tokens,
    known_output,
    segments,
)


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.sampled_from([1, 16, 64, 256]), st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_demand_is_whole_blocks_and_never_less_than_asked(prompt: int, output: int, page: int, share: float) -> None:
    """Whole blocks, at least the tokens not shared, at most one block more a part; shared blocks only ever save."""
    shared = int(share * prompt)
    demand = demand_tokens(float(prompt), float(shared), float(output), float(page))
    assert demand % page == 0
    assert demand >= prompt - shared + output
    assert demand < prompt - shared + output + 3 * page
    assert demand <= demand_tokens(float(prompt), 0.0, float(output), float(page))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**6)), min_size=1, max_size=6, unique_by=lambda x: x[0]),
    st.floats(0, 1),
    st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_quantiles_never_fall(points: list[tuple[float, int]], first: float, second: float) -> None:
    """A higher quantile never plans for less output, and stays within the points given."""
    quantiles, tokens = sorted(q for q, _ in points), sorted(t for _, t in points)
    output = OutputQuantiles(tuple(zip(quantiles, map(float, tokens), strict=True)))
    low, high = sorted((first, second))
    assert tokens[0] <= output.at(low) <= output.at(high) <= tokens[-1]


def test_caps_and_segments_bound_what_is_promised() -> None:
    """The tenant's cap bounds the plan, a segment bounds the promise, and neither raises them."""
    output = OutputQuantiles(((0.5, 400.0), (0.9, 2_000.0)))
    plain = RequestView(prompt_tokens=10, output=output)
    assert plain.output_tokens(0.5) == plain.reserved_output_tokens(0.5) == 400.0
    capped = RequestView(prompt_tokens=10, output=output, output_cap_tokens=1_000, segment_tokens=512)
    assert capped.output_tokens(0.9) == 1_000.0
    assert capped.reserved_output_tokens(0.9) == 512.0
    assert capped.reserved_output_tokens(0.5) == 400.0


@given(st.integers(0, 10**5), st.integers(1, 10**4))
@settings(max_examples=40, deadline=None)
def test_segments_add_up(output: int, size: int) -> None:
    """Re-admitting segment by segment asks for exactly the output, no segment larger than the first."""
    parts = segments(float(output), float(size))
    assert sum(parts) == output
    assert all(0 < part <= size for part in parts)
    assert len(parts) == math.ceil(output / size)


def test_output_table_takes_the_prompts_bucket() -> None:
    """A prompt below a bound is in its bucket, on it in the next; beyond the last the last bucket takes it."""
    table = OutputTable((1_000.0, 8_000.0), (known_output(100), known_output(700)))
    assert table.of(999).at(0.5) == 100
    assert table.of(1_000).at(0.5) == 700
    assert table.of(10**6).at(0.5) == 700
    with pytest.raises(ValueError, match="bounds must ascend"):
        OutputTable((8_000.0, 1_000.0), (known_output(1), known_output(2)))
    with pytest.raises(ValueError, match="need one each"):
        OutputTable((8_000.0,), ())


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((), "are empty"),
        (((1.5, 10.0),), "output quantile is 1.5; allowed is 0.0 to 1.0"),
        (((0.5, -1.0),), "output tokens is -1.0; allowed is 0 to"),
        (((0.5, math.nan),), "output tokens is nan"),
        (((0.9, 10.0), (0.5, 20.0)), "must ascend"),
        (((0.5, 20.0), (0.9, 10.0)), "must ascend"),
    ],
)
def test_absurd_distributions_are_refused(points: tuple[tuple[float, float], ...], message: str) -> None:
    """An empty, unordered or out-of-range distribution is refused with what is wrong."""
    with pytest.raises(ValueError, match=message):
        OutputQuantiles(points)

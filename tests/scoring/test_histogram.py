"""Laws of quantiles from buckets: within their bucket, monotone in the ratio, merged by bound, exact over a restart."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.histogram import difference, is_histogram, merge, quantile, quantiles
from scoring.model import Provenance

BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


def histogram(values, bounds=BOUNDS):
    """The cumulative histogram of observations."""
    return tuple((bound, float(sum(v <= bound for v in values))) for bound in (*bounds, math.inf))


VALUES = st.lists(st.floats(0.001, 20.0), min_size=1, max_size=60)


@given(VALUES, st.floats(0.01, 1.0))
def test_the_true_quantile_lies_in_the_bucket_given(values, ratio):
    """The quantile of the observations is within the bounds, and the point too."""
    figure = quantile(histogram(values), ratio)
    true = sorted(values)[max(0, math.ceil(ratio * len(values)) - 1)]
    assert figure.low <= true
    assert figure.high is None or true <= figure.high
    if figure.value is None:
        assert true > BOUNDS[-1]
    else:
        assert figure.low <= figure.value <= figure.high
        assert figure.provenance is Provenance.ESTIMATED


@given(VALUES)
def test_quantiles_rise_with_their_ratio(values):
    """A higher quantile is never smaller."""
    points = [
        figure.value if figure.value is not None else math.inf
        for figure in quantiles(histogram(values), (0.1, 0.5, 0.9, 0.99)).values()
    ]
    assert points == sorted(points)


@given(VALUES, VALUES)
def test_merging_is_as_observing_together(left, right):
    """Counts of equal bounds add up, in any order."""
    merged = merge([histogram(left), histogram(right)])
    assert merged == histogram(left + right) == merge([histogram(right), histogram(left)])


def test_merging_keeps_only_bounds_that_all_have():
    """A bound that one histogram lacks has no count for it there: it is dropped, not guessed."""
    merged = merge([histogram([0.3, 3.0]), histogram([0.3], bounds=(0.5, 5.0))])
    assert [bound for bound, _ in merged] == [0.5, 5.0, math.inf]
    assert merged[-1][1] == 3
    assert merge([]) is None


def test_a_merged_quantile_is_not_the_mean_of_quantiles():
    """Nine fast and one slow pod: the p95 of all is not the mean of their p95s."""
    fast, slow = histogram([0.2] * 90), histogram([8.0] * 10)
    assert quantile(merge([fast, slow]), 0.95).value > 5.0
    assert (quantile(fast, 0.95).value + quantile(slow, 0.95).value) / 2 < 5.6


@given(VALUES, VALUES)
def test_a_difference_is_what_was_observed_in_between(before, between):
    """after - before = what came in between; and a restart leaves what came since."""
    assert difference(histogram(before), histogram(before + between)) == histogram(between)
    assert difference(histogram(before + between), histogram([0.3])) == histogram([0.3])
    assert difference(None, histogram(before)) == histogram(before)


def test_interpolation_is_prometheus_s():
    """10 of 100 in (0.5, 1]: the 0.95 quantile with 90 below lies half way in; in the first bucket from 0."""
    table = ((0.5, 90.0), (1.0, 100.0), (math.inf, 100.0))
    assert quantile(table, 0.95).value == pytest.approx(0.75)
    assert quantile(table, 0.45).value == pytest.approx(0.25)


@pytest.mark.parametrize(
    "broken",
    [
        (),
        ((1.0, 5.0),),
        ((1.0, 5.0), (math.inf, 3.0)),
        ((2.0, 1.0), (1.0, 2.0), (math.inf, 3.0)),
        ((1.0, -1.0), (math.inf, 3.0)),
    ],
)
def test_what_is_no_histogram_has_no_quantile(broken):
    """Without an end at infinity, falling or negative: unknown, never a number."""
    assert not is_histogram(broken)
    assert quantile(broken, 0.5).provenance is Provenance.UNKNOWN
    assert difference(None, broken) is None


def test_no_observation_is_no_zero():
    """An empty window has no quantile."""
    empty = histogram([])
    assert quantile(empty, 0.5).value is None
    assert quantile(empty, 0.5).provenance is Provenance.UNKNOWN


def test_a_ratio_outside_0_to_1_is_a_broken_contract():
    """The caller is told with the value."""
    with pytest.raises(ValueError, match=r"1\.5"):
        quantile(histogram([1.0]), 1.5)

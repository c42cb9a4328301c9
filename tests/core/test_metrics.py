"""Percentiles and histograms: one definition, exact over a list, close over a histogram."""

from __future__ import annotations

import random
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.messages import ErrorKind, ImageBlock, TextBlock, ToolResult
from evoclaw.core.metrics import (
    CallCounters,
    Histogram,
    distribution,
    nearest_rank,
    percentile,
    result_bytes,
)


def histogram_of(times_ms: list[float]) -> Histogram:
    histogram = Histogram()
    for ms in times_ms:
        histogram.add(ms)
    return histogram


def test_percentiles_of_a_list_are_elements_of_the_list() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, share) for share in (0.5, 0.95, 1.0)] == [50, 95, 100]
    assert percentile([7.0], 0.95) == 7 and percentile([], 0.5) is None
    assert distribution([]).avg is None


@given(st.lists(st.floats(1e-3, 1e8), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_percentile_of_a_histogram_is_within_five_percent_of_the_exact_one(
    times_ms: list[float], share: float
) -> None:
    exact = percentile(sorted(times_ms), share)
    assert histogram_of(times_ms).percentile_ms(share) == pytest.approx(exact, rel=0.05)


def test_a_histogram_needs_few_buckets_for_many_values() -> None:
    chance = random.Random(7)
    times = [chance.lognormvariate(3, 1.5) for _ in range(20_000)]
    histogram = histogram_of(times)
    exact = quantiles(times, n=100)
    assert histogram.percentile_ms(0.5) == pytest.approx(exact[49], rel=0.05)
    assert histogram.percentile_ms(0.95) == pytest.approx(exact[94], rel=0.05)
    assert histogram.mean_ms == pytest.approx(fmean(times), rel=0.001)
    assert len(histogram.buckets) < 200


@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_a_histogram_accepts_any_number(times: list[float]) -> None:
    histogram = histogram_of(times)
    low, middle, high = (histogram.percentile_ms(share) for share in (0.0, 0.5, 1.0))
    assert 0 <= low <= middle <= high <= 1e12
    assert 0 <= histogram.mean_ms <= 1e12


def test_a_single_value_is_its_own_percentile() -> None:
    histogram = histogram_of([12.345])
    assert (histogram.percentile_ms(0.5), histogram.percentile_ms(0.95)) == (12.345, 12.345)
    assert Histogram().percentile_ms(0.5) == Histogram().mean_ms == 0


TIMES = st.lists(st.integers(0, 10_000).map(float), max_size=30)


@given(TIMES, TIMES)
def test_histograms_add_up_to_the_histogram_of_all_values(
    some: list[float], others: list[float]
) -> None:
    both = histogram_of(some)
    both.include(histogram_of(others))
    assert both == histogram_of(some + others)


@given(st.floats(0, 1), st.integers(1, 1000))
def test_the_nearest_rank_is_between_one_and_the_count(share: float, count: int) -> None:
    assert 1 <= nearest_rank(share, count) <= count


def test_counters_add_up_and_keep_the_last_error_of_both() -> None:
    first, second = CallCounters(), CallCounters()
    first.add(None, at=1, elapsed_ms=10)
    first.add(ErrorKind.TIMEOUT, at=9, elapsed_ms=30)
    second.add(ErrorKind.NOT_FOUND, at=5, message="no such file")
    second.include(first)
    assert (second.calls, second.succeeded, second.failed, second.timeouts) == (3, 1, 2, 1)
    assert second.errors == {"not_found": 1, "timeout": 1}
    assert (second.last_error, second.last_error_time) == ("timeout", 9)
    assert second.latencies.count == 2


def test_the_size_of_a_result_is_its_utf_8_length() -> None:
    blocks = (TextBlock("é12"), TextBlock("\ud800"), ImageBlock("image/png", "QUJD"))
    assert result_bytes(ToolResult("c1", "read", blocks)) == 4 + 3 + 4

"""Growth curves: the fitted exponent, and the limits."""

from __future__ import annotations

import math

import pytest
from bench.growth.curves import FLAT, LINEAR, curve, fit
from bench.growth.measure import Points, count_calls
from bench.growth.run import format_curve

SIZES = (10, 100, 1_000, 10_000)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_fit_finds_the_exponent_of_a_power_law(power: float) -> None:
    exponent, residual = fit(SIZES, [7.0 * size**power for size in SIZES])
    assert exponent == pytest.approx(power)
    assert residual == pytest.approx(1.0)


def test_scattered_samples_have_a_residual() -> None:
    exponent, residual = fit(SIZES, [10.0, 20.0, 20.0, 10.0])
    assert exponent == pytest.approx(0.0)
    assert residual == pytest.approx(math.sqrt(2.0))


def test_a_constant_cost_does_not_hide_growth_at_large_sizes() -> None:
    found = curve("scan", "µs", {size: 500.0 + size for size in SIZES}, FLAT)
    assert found.exponent > FLAT
    assert not found.ok


def test_a_logarithm_counts_as_flat_and_a_square_root_does_not() -> None:
    logarithm = {size: 100.0 + 10.0 * math.log2(size) for size in SIZES}
    assert curve("tree", "µs", logarithm, FLAT).ok
    assert not curve("root", "µs", {size: math.sqrt(size) for size in SIZES}, FLAT).ok


def test_quadratic_growth_exceeds_the_linear_limit() -> None:
    assert curve("all", "µs", {size: 3.0 * size for size in SIZES}, LINEAR).ok
    assert not curve("pairs", "µs", {size: float(size * size) for size in SIZES}, LINEAR).ok


def test_the_lowest_sample_counts_and_a_curve_needs_two_sizes() -> None:
    points = Points()
    for size, value in ((10, 3.0), (10, 2.0), (10, 5.0), (100, 2.0)):
        points.add("one", "µs", FLAT, size, value)
    points.add("another", "µs", FLAT, 10, 1.0)
    (found,) = points.curves()
    assert (found.name, found.sizes, found.values, found.ok) == ("one", (10, 100), (2.0, 2.0), True)
    assert "ok" in format_curve(found) and "one" in format_curve(found)
    with pytest.raises(ValueError, match="two sizes"):
        fit([10], [1.0])


async def test_function_calls_are_counted() -> None:
    def nothing() -> None:
        pass

    async def op(times: int) -> None:
        for _ in range(times):
            nothing()

    few = await count_calls(lambda: op(10), code=__file__)
    many = await count_calls(lambda: op(110), code=__file__)
    assert many - few == 100
    assert await count_calls(lambda: op(110)) == 1, "of EvoClaw's code there was none"

"""How a cost grows with a size: the exponent of the best-fitting power law, and its limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

FLAT = 0.15
"""The largest exponent for operations that are repeated while the history grows: a logarithm
passes, a square root does not."""
LINEAR = 1.1
"""The largest exponent for operations that read their whole input."""
FITTED_SIZES = 3
"""How many of the largest sizes are fitted: at small sizes the fixed cost hides the growth."""


class Curve(Struct, frozen=True, kw_only=True):
    """The cost of an operation at several sizes."""

    name: str
    unit: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    exponent: float
    """The fitted exponent of the size, over the largest sizes."""
    residual: float
    """The typical factor between fitted and measured values (RMS); 1 is a perfect fit."""
    allowed: float
    ok: bool


def fit(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """The exponent and the residual of a power law, by least squares over the logarithms.

    A cost of zero counts as one, because zero has no logarithm.
    """
    if len(sizes) < 2:
        raise ValueError("a curve needs two sizes")
    xs = [math.log(size) for size in sizes]
    ys = [math.log(value or 1.0) for value in values]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread
    off = [y - middle_y - slope * (x - middle_x) for x, y in zip(xs, ys, strict=True)]
    return slope, math.exp(math.sqrt(sum(error * error for error in off) / len(off)))


def curve(name: str, unit: str, points: Mapping[int, float], allowed: float) -> Curve:
    """A curve through measured points."""
    sizes = tuple(sorted(points))
    values = tuple(points[size] for size in sizes)
    exponent, residual = fit(sizes[-FITTED_SIZES:], values[-FITTED_SIZES:])
    return Curve(
        name=name,
        unit=unit,
        sizes=sizes,
        values=tuple(float(f"{value:.4g}") for value in values),
        exponent=round(exponent, 3),
        residual=round(residual, 3),
        allowed=allowed,
        ok=exponent <= allowed,
    )

"""How a cost grows with a size: the exponent of the power that fits it best, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

FLAT = 0.15
"""The exponent that an operation may have which is done again and again beside a growing history:
a logarithm passes, a root does not."""
LINEAR = 1.1
"""The one that an operation may have on its own input."""
FITTED = 3
"""How many sizes are fitted, the largest: at small ones what is always paid hides the rest."""


class Curve(Struct, frozen=True, kw_only=True):
    """What something costs at several sizes."""

    name: str
    unit: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]
    exponent: float
    """Of the size, over the largest ones."""
    residual: float
    """By which factor the fitted values are off, in the middle; 1 is a perfect fit."""
    allowed: float
    ok: bool


def fit(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """The exponent and the residual of a power, by least squares over the logarithms.

    What costs nothing at all counts as one: it has no logarithm.
    """
    if len(sizes) < 2:
        raise ValueError("a curve needs two sizes")
    xs = [math.log(size) for size in sizes]
    ys = [math.log(value or 1.0) for value in values]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread
    off = [y - middle_y - slope * (x - middle_x) for x, y in zip(xs, ys, strict=True)]
    return slope, math.exp(math.sqrt(sum(one * one for one in off) / len(off)))


def curve(name: str, unit: str, points: Mapping[int, float], allowed: float) -> Curve:
    """A curve through measured points."""
    sizes = tuple(sorted(points))
    values = tuple(points[size] for size in sizes)
    exponent, residual = fit(sizes[-FITTED:], values[-FITTED:])
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

"""What the model of an edge used to answer a query, as the edge reports it with the result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from evoclaw.core.messages import JSON, Usage, is_array, is_object

MODEL_USAGE_KEY = "model_usage"
"""In the details of a result."""
MAX_REPORTED_TOKENS = 1_000_000_000
MAX_REPORTED_DOLLARS = 1_000_000.0
MAX_REPORT_DEPTH = 16
"""Edges that asked each other, one for another."""


def report_usage(usage: Usage, cost: float | None) -> dict[str, JSON]:
    """The details that report a usage; the cost is None if it is unknown."""
    report: dict[str, JSON] = {"input": usage.input, "output": usage.output, "cost": cost}
    return {MODEL_USAGE_KEY: report}


def reported_usage(details: Mapping[str, JSON]) -> tuple[Usage, float | None] | None:
    """The reported tokens and dollars; None if there are none. An edge may report anything."""
    report = details.get(MODEL_USAGE_KEY)
    if not is_object(report):
        return None
    cost: JSON = report.get("cost")
    is_price = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost)
    return (
        Usage(_tokens(report.get("input")), _tokens(report.get("output"))),
        min(MAX_REPORTED_DOLLARS, max(0.0, float(cost))) if is_price else None,
    )


def with_nested_usage(
    details: Mapping[str, JSON], depth: int = MAX_REPORT_DEPTH
) -> tuple[Usage, float | None] | None:
    """The reported usage, with that of the edges which the edge asked in turn."""
    calls: JSON = details.get("calls")
    found = [reported_usage(details)]
    if is_array(calls) and depth:
        found += [with_nested_usage(call, depth - 1) for call in calls if is_object(call)]
    return sum_usage(found)


def sum_usage(
    reports: Iterable[tuple[Usage, float | None] | None],
) -> tuple[Usage, float | None] | None:
    """The sum of reported usages; its cost is unknown if one of them is."""
    total, cost, found = Usage(), 0.0, False
    known = True
    for report in reports:
        if report is not None:
            found, total = True, total + report[0]
            known = known and report[1] is not None
            cost += report[1] or 0.0
    return (total, cost if known else None) if found else None


def _tokens(value: JSON) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(MAX_REPORTED_TOKENS, max(0, value))

"""Parses the Prometheus metrics of the service."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class MetricSample(Struct, frozen=True):
    """One sample of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


class ToolMetricRow(Struct, frozen=True):
    """The metrics of one tool."""

    tool: str
    calls: int
    failed: int
    """Calls with any outcome but success."""
    errors: dict[str, int]
    """Failed calls by error kind."""
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    bytes: int


def parse_metrics(text: str) -> Iterator[MetricSample]:
    """Every sample; skips comments and lines that cannot be parsed."""
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        labels = {name: _plain(value) for name, value in _LABEL.findall(found[2] or "")}
        try:
            yield MetricSample(found[1], labels, float(found[3]))
        except ValueError:
            continue


def sum_of(samples: Iterable[MetricSample], name: str) -> float | None:
    """The sum of all samples of a metric; None if there is none."""
    values = [sample.value for sample in samples if sample.name == name]
    return sum(values) if values else None


def sum_by_label(samples: Iterable[MetricSample], name: str, label: str) -> dict[str, float]:
    """The sum of the samples of a metric, for each value of a label."""
    sums: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.name == name:
            sums[sample.labels.get(label, "")] += sample.value
    return dict(sums)


def tool_metrics(samples: Sequence[MetricSample]) -> list[ToolMetricRow]:
    """The metrics of each tool, the most called tool first."""
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    buckets: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for sample in samples:
        tool = sample.labels.get("tool", "")
        if sample.name == "evoclaw_tool_calls_total":
            outcomes[tool][sample.labels.get("outcome", "")] += int(sample.value)
        elif sample.name == "evoclaw_tool_call_seconds_bucket":
            buckets[tool][float(sample.labels.get("le", "inf"))] += int(sample.value)
    seconds = sum_by_label(samples, "evoclaw_tool_call_seconds_sum", "tool")
    size = sum_by_label(samples, "evoclaw_tool_result_bytes_total", "tool")
    rows = [
        _tool_metric_row(
            tool, counted, buckets[tool], seconds.get(tool, 0.0), int(size.get(tool, 0))
        )
        for tool, counted in outcomes.items()
    ]
    return sorted(rows, key=lambda row: (-row.calls, row.tool))


def _tool_metric_row(
    tool: str, outcomes: Counter[str], buckets: Counter[float], seconds: float, size: int
) -> ToolMetricRow:
    calls, ran = outcomes.total(), buckets.get(math.inf, 0)
    errors = {kind: count for kind, count in outcomes.items() if kind != "success"}
    return ToolMetricRow(
        tool,
        calls,
        calls - outcomes["success"],
        errors,
        seconds / ran if ran else None,
        quantile(buckets, 0.5),
        quantile(buckets, 0.95),
        size,
    )


def quantile(buckets: Mapping[float, int], share: float) -> float | None:
    """Estimate a quantile of a histogram, whose buckets count all values up to their bound."""
    total_count = buckets.get(math.inf, 0)
    if not total_count:
        return None
    wanted, low, before = share * total_count, 0.0, 0
    for bound in sorted(buckets):
        count = buckets[bound]
        if count >= wanted and count > before:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - before) / (count - before)
        low, before = bound, count
    return low


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)

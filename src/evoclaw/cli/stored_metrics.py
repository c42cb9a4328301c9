"""Metrics of stored records: read from the service, or from the store if it is not running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import msgspec

from evoclaw.cli import service_api
from evoclaw.cli.client import ServiceNotRunning, open_client
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import print_table
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.metrics import Distribution
from evoclaw.governance.budget.settings import parse_duration
from evoclaw.orchestrator.overview.aggregation import RequestSummary, ToolSummary
from evoclaw.orchestrator.overview.metrics import MetricsView

MAX_TOOL_NAME_CHARS = 30
"""Characters of a tool name in the table."""


async def read_metrics(period: str, agent: str) -> MetricsView:
    """The metrics of a period such as `24h`, of one agent or of all."""
    from evoclaw.wiring.store import open_metrics

    since = time.time() - parse_duration(period, "--since")
    try:
        async with open_client(os.environ) as client:
            response = await client.get(service_api.api_path("figures"), since=since, agent=agent)
    except ServiceNotRunning:
        if os.environ.get("EVOCLAW_URL"):
            raise  # the local store is not the one that the user asked about
        async with open_metrics(os.environ) as reader:
            return await reader.read(LOCAL_PRINCIPAL.tenant, agent=agent, since=since)
    try:
        return msgspec.convert(response, MetricsView)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"the service sent metrics that cannot be read: {problem}") from None


def print_metrics(found: MetricsView, period: str, *, as_json: bool) -> None:
    """Print the metrics as tables, or as JSON."""
    if as_json:
        print_out(msgspec.to_builtins(found))
        return
    rows = [_row(tool) for tool in found.tools]
    print_table([_HEAD, *rows] if rows else [], f"no tool was called in the last {period}")
    print_out("")
    print_table(_lines(found.requests), "")


_HEAD = ("tool", "calls", "ok", "failed", "denied", "avg", "p50", "p95", "max", "errors")


def _row(tool: ToolSummary) -> tuple[str, ...]:
    return (
        tool.tool
        if len(tool.tool) <= MAX_TOOL_NAME_CHARS
        else tool.tool[: MAX_TOOL_NAME_CHARS - 1] + "…",
        str(tool.calls),
        _share(tool.success_rate),
        str(tool.failed),
        str(tool.denied),
        *(_milliseconds(value) for value in (tool.avg_ms, tool.p50_ms, tool.p95_ms, tool.max_ms)),
        _counts(tool.errors),
    )


def _lines(requests: RequestSummary) -> list[tuple[str, str]]:
    cost = f"${requests.cost:.4f}"
    if requests.unpriced:
        cost += f", and {requests.unpriced} replies without a known price"
    recovered = "nothing failed"
    if requests.recovery_rate is not None:
        recovered = (
            f"{requests.recovered_calls} of {requests.failed_calls} failed calls"
            f" ({_share(requests.recovery_rate)})"
        )
    return [
        ("requests", f"{requests.count}{': ' if requests.stops else ''}{_counts(requests.stops)}"),
        (
            "iterations per request",
            _distribution(requests.iterations, lambda value: f"{value:.3g}"),
        ),
        (
            "time to final response",
            _distribution(requests.seconds, lambda value: _milliseconds(value * 1000)),
        ),
        ("error types", _counts(requests.error_types) or "none"),
        ("recovered", recovered),
        ("saved by parallel calls", _milliseconds(requests.saved_seconds * 1000)),
        ("tokens", f"{requests.tokens_in} in, {requests.tokens_out} out"),
        ("cost", cost),
    ]


def _distribution(distribution: Distribution, format_value: Callable[[float], str]) -> str:
    named = (
        ("average", distribution.avg),
        ("p50", distribution.p50),
        ("p95", distribution.p95),
        ("max", distribution.max),
    )
    parts = [f"{name} {format_value(value)}" for name, value in named if value is not None]
    return ", ".join(parts) or "no run has ended"


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {kind}" for kind, count in ordered)


def _share(value: float) -> str:
    # Round down: 99.96 % must not be shown as 100 %.
    return f"{int(value * 1000) / 10:g} %"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1_000:
        return f"{value:.3g} ms"
    return f"{value / 1_000:.3g} s" if value < 100_000 else f"{value / 1_000:.0f} s"

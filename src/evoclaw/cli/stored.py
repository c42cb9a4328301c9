"""Metrics of stored records: read from the service, or from the store if it is not running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import msgspec

from evoclaw.cli import routes
from evoclaw.cli.client import NotUp, open_client
from evoclaw.cli.output import print_out
from evoclaw.cli.tables import show_rows
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import LOCAL
from evoclaw.core.metrics import Distribution
from evoclaw.governance.budget.settings import seconds_of
from evoclaw.orchestrator.overview.aggregation import RequestSummary, ToolSummary
from evoclaw.orchestrator.overview.metrics import MetricsView

LONGEST_NAME = 30
"""Characters of a tool name in the table."""


async def look(period: str, agent: str) -> MetricsView:
    """The metrics of a period such as `24h`, of one agent or of all."""
    from evoclaw.wiring.store import open_figures

    since = time.time() - seconds_of(period, "--since")
    try:
        async with open_client(os.environ) as client:
            response = await client.get(routes.path("figures"), since=since, agent=agent)
    except NotUp:
        if os.environ.get("EVOCLAW_URL"):
            raise  # the local store is not the one that the user asked about
        async with open_figures(os.environ) as reader:
            return await reader.read(LOCAL.tenant, agent=agent, since=since)
    try:
        return msgspec.convert(response, MetricsView)
    except msgspec.ValidationError as problem:
        raise EvoClawError(f"the service sent metrics that cannot be read: {problem}") from None


def show_figures(found: MetricsView, period: str, *, as_json: bool) -> None:
    """Print the metrics as tables, or as JSON."""
    if as_json:
        print_out(msgspec.to_builtins(found))
        return
    rows = [_row(tool) for tool in found.tools]
    show_rows([_HEAD, *rows] if rows else [], f"no tool was called in the last {period}")
    print_out("")
    show_rows(_lines(found.requests), "")


_HEAD = ("tool", "calls", "ok", "failed", "denied", "avg", "p50", "p95", "max", "errors")


def _row(one: ToolSummary) -> tuple[str, ...]:
    return (
        one.tool if len(one.tool) <= LONGEST_NAME else one.tool[: LONGEST_NAME - 1] + "…",
        str(one.calls),
        _share(one.success_rate),
        str(one.failed),
        str(one.denied),
        *(_millis(value) for value in (one.avg_ms, one.p50_ms, one.p95_ms, one.max_ms)),
        _counts(one.errors),
    )


def _lines(all_: RequestSummary) -> list[tuple[str, str]]:
    cost = f"${all_.cost:.4f}"
    if all_.unpriced:
        cost += f", and {all_.unpriced} replies without a known price"
    recovered = "nothing failed"
    if all_.recovery_rate is not None:
        recovered = (
            f"{all_.recovered_calls} of {all_.failed_calls} failed calls"
            f" ({_share(all_.recovery_rate)})"
        )
    return [
        ("requests", f"{all_.count}{': ' if all_.stops else ''}{_counts(all_.stops)}"),
        ("iterations per request", _spread(all_.iterations, lambda value: f"{value:.3g}")),
        ("time to final response", _spread(all_.seconds, lambda value: _millis(value * 1000))),
        ("error types", _counts(all_.error_types) or "none"),
        ("recovered", recovered),
        ("saved by parallel calls", _millis(all_.saved_seconds * 1000)),
        ("tokens", f"{all_.tokens_in} in, {all_.tokens_out} out"),
        ("cost", cost),
    ]


def _spread(one: Distribution, word: Callable[[float], str]) -> str:
    named = (("average", one.avg), ("p50", one.p50), ("p95", one.p95), ("max", one.max))
    parts = [f"{name} {word(value)}" for name, value in named if value is not None]
    return ", ".join(parts) or "no run has ended"


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {kind}" for kind, count in ordered)


def _share(value: float) -> str:
    # Round down: 99.96 % must not be shown as 100 %.
    return f"{int(value * 1000) / 10:g} %"


def _millis(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1_000:
        return f"{value:.3g} ms"
    return f"{value / 1_000:.3g} s" if value < 100_000 else f"{value / 1_000:.0f} s"

"""`evoclaw metrics`: metrics of stored records and of the service; `--tools` of each tool."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.client import ServiceRefused, open_client
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.prometheus import MetricSample, ToolMetricRow, parse_metrics, sum_by_label, sum_of
from evoclaw.cli.stored_metrics import print_metrics, read_metrics
from evoclaw.cli.terminal_text import print_table
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object

PATH = "/metrics"
_SUMMED_METRICS = {
    "turns": "evoclaw_turns_total",
    "cost_dollars": "evoclaw_cost_dollars_total",
    "unpriced_replies": "evoclaw_unpriced_replies_total",
    "retried_replies": "evoclaw_retried_replies_total",
    "failed_replies": "evoclaw_failed_replies_total",
    "runs_live": "evoclaw_runs_live",
    "runs_queued": "evoclaw_runs_queued",
    "edges_online": "evoclaw_edges_online",
    "approvals_waiting": "evoclaw_approvals_waiting",
    "watchers": "evoclaw_http_watchers",
}


@click.command(cls=CliCommand)
@click.option("--tools", "by_tool", is_flag=True, help="Show the metrics of each tool")
@json_option()
@click.option("--raw", is_flag=True, help="Print the Prometheus text format")
@click.option("--since", default="24h", metavar="TIME", help="Count stored records of this time")
@click.option("--agent", metavar="NAME", help="Count only runs of this agent, with --tools")
def metrics(*, by_tool: bool, as_json: bool, raw: bool, since: str, agent: str | None) -> int:
    """Show the metrics."""
    if by_tool and not raw:
        print_metrics(asyncio.run(read_metrics(since, agent or "")), since, as_json=as_json)
        return exits.OK
    if agent:
        raise ConfigError("--agent needs --tools: metrics of one agent come from stored records")
    if raw:
        sys.stdout.write(asyncio.run(_read()))
        return exits.OK
    stored = asyncio.run(_stored(since))
    if not as_json and stored is not None:
        print_out(f"stored, of the last {since} (--tools shows each tool):")
        print_table(_rows(stored), "")
        print_out("of the service since it started:")
    found = summary(list(parse_metrics(asyncio.run(_read()))))
    if as_json:
        print_out(found if stored is None else found | {"stored": {"since": since, **stored}})
        return exits.OK
    print_table(_rows(found), "no metrics yet")
    return exits.OK


async def _stored(since: str) -> dict[str, JSON] | None:
    """The same counts from stored records, which outlive the service; None if not permitted."""
    try:
        found = await read_metrics(since, "")
    except ServiceRefused:
        return None
    requests, calls = found.requests, Counter[str]()
    for tool in found.tools:
        calls["ok"] += tool.succeeded
        calls["failed"] += tool.failed
    return {
        "runs": requests.stops,
        "calls": {outcome: count for outcome, count in calls.items() if count},
        "tokens": {"in": requests.tokens_in, "out": requests.tokens_out},
        "cost_dollars": requests.cost,
    }


async def _read() -> str:
    async with open_client(os.environ) as client:
        return (await client.request_bytes("GET", PATH)).decode(errors="replace")


def summary(samples: Sequence[MetricSample]) -> dict[str, JSON]:
    """The metrics of the whole process."""
    found: dict[str, JSON] = {
        "runs": sum_by_label(samples, "evoclaw_runs_total", "stop"),
        "calls": sum_by_label(samples, "evoclaw_tool_calls_total", "outcome"),
        "tokens": sum_by_label(samples, "evoclaw_tokens_total", "way"),
    }
    sums = {name: sum_of(samples, sample) for name, sample in _SUMMED_METRICS.items()}
    return found | {name: value for name, value in sums.items() if value is not None}


def show_tools(found: Sequence[ToolMetricRow], *, json: bool) -> None:
    """Print the metrics of each tool."""
    if json:
        print_out(msgspec.to_builtins(found))
        return
    head = ("tool", "calls", "failed", "p50", "p95", "bytes", "errors")
    rows = [
        (
            tool.tool,
            str(tool.calls),
            str(tool.failed),
            _seconds(tool.p50_s),
            _seconds(tool.p95_s),
            str(tool.bytes),
            ", ".join(f"{count}× {kind}" for kind, count in sorted(tool.errors.items())),
        )
        for tool in found
    ]
    print_table([head, *rows] if rows else [], "no tool has been called yet")


def _rows(found: dict[str, JSON]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if is_object(value):
            text = ", ".join(f"{number:g} {key}" for key, number in sorted(value.items()))
            rows.append((name, text or "none"))
        else:
            rows.append((name.replace("_", " "), f"{value:g}"))
    return rows


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"

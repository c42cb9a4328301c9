"""`evoclaw logs`: the records of a run, or the audit log of the service."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import aclosing

import click
import msgspec
from msgspec import Struct

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceClient, open_client
from evoclaw.cli.options import POSITIVE, CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.service_api import get_records, watch_records
from evoclaw.cli.terminal_text import audit_line, machine_of, on_machine, one_line
from evoclaw.core.events import (
    ApprovalAnswered,
    CallDelayed,
    CallFinished,
    CallJudged,
    CallOutput,
    CallStarted,
    ContextTrimmed,
    Event,
    Prompted,
    ReasoningDelta,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    TextDelta,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Delay
from evoclaw.store.sessions.recordings import encode_record

AUDIT_POLL_INTERVAL_S = 1.0
"""Seconds between two requests for new audit records, which have no stream."""
MAX_AUDIT_ROWS = 1_000
"""Audit records of one request while following."""
_DELTAS = (TextDelta, ReasoningDelta)
"""Chunks of text that a later record contains in full."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "tool": (CallJudged, ApprovalAnswered, CallStarted, CallOutput, CallDelayed, CallFinished),
    "model": (RunStarted, RunResumed, TurnStarted, Replied, ReplyRetried, ReplyFailed),
    "verdict": (CallJudged, ApprovalAnswered),
}
"""The events that each filter shows; of the audit, the records with a field of that name."""


class LogOptions(Struct, frozen=True):
    """Which lines to print, and how."""

    only: str | None
    follow: bool
    limit: int
    as_json: bool


@click.command(cls=CliCommand)
@click.option(
    "--run",
    "run_id",
    metavar="ID",
    show_default="the audit log",
    help="Show the records of this run",
)
@click.option(
    "--filter", "only", type=click.Choice(["tool", "model", "verdict"]), help="Show only such lines"
)
@click.option("--follow", is_flag=True, help="Keep printing new lines until Ctrl-C")
@click.option(
    "-n",
    "limit",
    type=POSITIVE,
    default=50,
    metavar="N",
    help="Show the last N lines of the audit log that --filter lets through",
)
@json_option()
def logs(run_id: str | None, only: str | None, *, follow: bool, limit: int, as_json: bool) -> int:
    """Show the records; with `--follow` also new ones."""
    return asyncio.run(_logs(run_id, LogOptions(only, follow, limit, as_json)))


async def _logs(run_id: str | None, options: LogOptions) -> int:
    async with open_client(os.environ) as client:
        if not run_id:
            await _audit(client, options)
        elif options.follow:
            async with aclosing(watch_records(client, run_id)) as records:
                async for record in records:
                    _show(record, options)
                    sys.stdout.flush()
        else:
            for record in await get_records(client, run_id):
                _show(record, options)
    return exits.OK


async def _audit(client: ServiceClient, options: LogOptions) -> None:
    requested_at, last = time.time(), 0
    rows = await _last_rows(client, options)
    while True:
        for row in rows:
            if (seq := int(row.get("seq", 0))) > last:
                last = seq
                print_out(row if options.as_json else audit_line(row))
        if not options.follow:
            if not last:
                print_err(
                    f"the audit log has no line with a {options.only}"
                    if options.only
                    else "the audit log is empty"
                )
            return
        sys.stdout.flush()
        await asyncio.sleep(AUDIT_POLL_INTERVAL_S)
        # Look back a little for records that are written late; `seq` prevents duplicates.
        since, requested_at = requested_at - 10 * AUDIT_POLL_INTERVAL_S, time.time()
        rows = await _matching_rows(client, options, since=since)


async def _last_rows(client: ServiceClient, options: LogOptions) -> list[dict[str, JSON]]:
    """The last lines that the filter lets through: older pages follow until there are enough."""
    found: dict[int, dict[str, JSON]] = {}
    size = MAX_AUDIT_ROWS if options.only else min(options.limit, MAX_AUDIT_ROWS)
    until = 0.0
    while True:
        page = await _audit_page(client, until=until, limit=size)
        matching = {int(row.get("seq", 0)): row for row in page if _matches(row, options)}
        found = matching | found
        # Records of the same moment may be on both pages; `seq` prevents duplicates.
        before, until = until, min((float(row.get("at", 0)) for row in page), default=0) + 0.001
        if len(found) >= options.limit or len(page) < size or until == before:
            return [found[seq] for seq in sorted(found)][-options.limit :]


async def _matching_rows(
    client: ServiceClient, options: LogOptions, *, since: float
) -> list[dict[str, JSON]]:
    return [row for row in await _audit_page(client, since=since) if _matches(row, options)]


async def _audit_page(
    client: ServiceClient,
    *,
    since: float = 0.0,
    until: float = 0.0,
    limit: int = MAX_AUDIT_ROWS,
) -> list[dict[str, JSON]]:
    path = service_api.api_path("audit")
    return service_api.as_items(await client.get(path, since=since, until=until, limit=limit))


def _matches(row: dict[str, JSON], options: LogOptions) -> bool:
    return options.only is None or bool(row.get(options.only))


def _show(record: Record, options: LogOptions) -> None:
    event = record.event
    if options.only is not None and not isinstance(event, _KINDS[options.only]):
        return
    if options.as_json:
        print_out(encode_record(record).decode().rstrip("\n"))
    elif not isinstance(event, _DELTAS):
        print_out(line_of(record))


def line_of(record: Record) -> str:
    """A record on one line: time, number, event and a summary."""
    at = time.strftime("%H:%M:%S", time.localtime(record.at))
    tag = str(type(record.event).__struct_config__.tag)
    return f"{at} {record.seq:5} {tag:18} {one_line(_summary(record.event), 160)}".rstrip()


def _summary(event: Event) -> str:
    match event:
        case CallStarted(_, name, arguments, machine=machine):
            return f"{name}{on_machine(machine)} {msgspec.json.encode(arguments).decode()}"
        case CallFinished(result):
            machine = on_machine(machine_of(result))
            return f"{result.name}{machine} {result.error or 'ok'}: {result.text}"
        case CallOutput(_, text):
            return text
        case CallDelayed(_, machine, seconds):
            return str(Delay(machine, seconds))
        case CallJudged(_, verdict, code, reason, machine):
            return f"{verdict}{on_machine(machine)} {code} {reason}"
        case ApprovalAnswered(_, decision, reason):
            return f"{decision} {reason}"
        case _:
            return _run_summary(event)


def _run_summary(event: Event) -> str:
    match event:
        case RunStarted(model) | RunResumed(model):
            return model
        case TurnStarted(turn):
            return str(turn)
        case Replied(reply):
            calls = ", ".join(call.name for call in reply.calls)
            return f"{reply.text} {f'[calls {calls}]' if calls else ''}"
        case RunFinished(stop, text, reason=reason):
            return f"{stop} {reason} {text}"
        case Prompted(message, why):
            return f"{why}: {message.text}"
        case ReplyFailed(kind, reason) | ReplyRetried(kind, reason):
            return f"{kind}: {reason}"
        case ToolsChanged(tools):
            return ", ".join(tool.name for tool in tools)
        case ContextTrimmed(summary=summary):
            return summary
        case _:
            return ""

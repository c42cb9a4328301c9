"""`evoclaw logs`: what happens in the service, line by line."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from evoclaw.cli import exits, routes
from evoclaw.cli.audit_lines import audit_line
from evoclaw.cli.clean import one_line
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.render import tell
from evoclaw.cli.watching import records_of, watch
from evoclaw.core.events import (
    ApprovalAnswered,
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
from evoclaw.store.sessions.recordings import encode_record

PAUSE = 1.0
"""Seconds between two looks at the audit, which has no stream."""
LIMIT = 1_000
"""Records of the audit that are asked for at once."""
_DELTAS = (TextDelta, ReasoningDelta)
"""Pieces of what a later record says whole."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "tool": (CallJudged, ApprovalAnswered, CallStarted, CallOutput, CallFinished),
    "model": (RunStarted, RunResumed, TurnStarted, Replied, ReplyRetried, ReplyFailed),
    "verdict": (CallJudged, ApprovalAnswered),
}
"""What of a run's records each filter lets through; of the audit, what has a field of that name."""


def logs(options: Namespace, _wiring: object = None) -> int:
    """Show what happened, and with `--follow` what happens."""
    return asyncio.run(_logs(options))


async def _logs(options: Namespace) -> int:
    async with open_client(os.environ) as client:
        if not options.run:
            await _audit(client, options)
        elif options.follow:
            async with aclosing(watch(client, options.run)) as records:
                async for record in records:
                    _show(record, options)
                    sys.stdout.flush()
        else:
            for record in await records_of(client, options.run):
                _show(record, options)
    return exits.OK


async def _audit(client: Client, options: Namespace) -> None:
    last, since = 0, 0.0
    limit = options.n
    while True:
        looked = time.time()
        rows = routes.many(await client.get(routes.path("audit"), since=since, limit=limit))
        for row in rows:
            if (seq := int(row.get("seq", 0))) > last:
                last = seq
                if options.filter is None or row.get(options.filter):
                    show(row if options.json else audit_line(row))
        if not options.follow:
            if not last:
                tell("nothing is in the audit yet")
            return
        sys.stdout.flush()
        await asyncio.sleep(PAUSE)
        # What is written down late is still found: each is shown once, by its number.
        since, limit = looked - 10 * PAUSE, LIMIT


def _show(record: Record, options: Namespace) -> None:
    event = record.event
    if options.filter is not None and not isinstance(event, _KINDS[options.filter]):
        return
    if options.json:
        show(encode_record(record).decode().rstrip("\n"))
    elif not isinstance(event, _DELTAS):
        show(line_of(record))


def line_of(record: Record) -> str:
    """A record on one line: when, what, and the gist of it."""
    at = time.strftime("%H:%M:%S", time.localtime(record.at))
    tag = str(type(record.event).__struct_config__.tag)
    return f"{at} {record.seq:5} {tag:18} {one_line(_gist(record.event), 160)}".rstrip()


def _gist(event: Event) -> str:
    match event:
        case CallStarted(_, name, arguments):
            return f"{name} {msgspec.json.encode(arguments).decode()}"
        case CallFinished(result):
            return f"{result.name} {result.error or 'ok'}: {result.text}"
        case CallOutput(_, text):
            return text
        case CallJudged(_, verdict, code, reason):
            return f"{verdict} {code} {reason}"
        case ApprovalAnswered(_, decision, reason):
            return f"{decision} {reason}"
        case _:
            return _gist_of_run(event)


def _gist_of_run(event: Event) -> str:
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

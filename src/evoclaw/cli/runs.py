"""`evoclaw runs`: what the service does and did, seen, followed, steered, ended."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

from evoclaw.cli import exits, routes
from evoclaw.cli.clean import clean
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.render import face, tell
from evoclaw.cli.tables import said, show_rows, when
from evoclaw.cli.watching import look, watch
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import RunFinished, StopReason
from evoclaw.core.messages import JSON


def runs(options: Namespace, _wiring: object = None) -> int:
    """Do one of the actions."""
    return asyncio.run(_runs(options))


async def _runs(options: Namespace) -> int:
    async with open_client(os.environ) as client:
        match options.action:
            case "show":
                _show(await look(client, options.id), options)
            case "watch":
                return await _watch(client, options)
            case "cancel":
                return await _cancel(client, options)
            case "steer":
                await routes.steer(client, options.id, options.message)
                show(f"{options.id}: said")
            case "records":
                await _records(client, options)
            case _:
                await _list(client, options)
    return exits.OK


async def _list(client: Client, options: Namespace) -> None:
    found = await routes.pages(
        client,
        routes.path("runs"),
        options.limit,
        session_id=options.session or "",
        state=options.state or "",
    )
    if options.json:
        show(found)
        return
    rows = (
        (
            said(run, "run_id"),
            said(run, "stop") or said(run, "state"),
            said(run, "agent"),
            when(run.get("began_at")),
            said(run, "asked"),
        )
        for run in found
    )
    show_rows(rows, "no runs yet; begin one with `evoclaw chat`")


def _show(run: dict[str, JSON], options: Namespace) -> None:
    if options.json:
        show(run)
        return
    stop, reason = said(run, "stop"), said(run, "reason")
    show(
        f"{said(run, 'run_id')}: {stop or said(run, 'state')}{f' ({clean(reason)})' * bool(reason)}"
    )
    show(f"session {clean(said(run, 'session_id'))}, agent {clean(said(run, 'agent'))}")
    show(f"began {when(run.get('began_at'))}, ended {when(run.get('ended_at')) or '—'}")
    show(f"{figures(run)}")
    show(f"asked: {clean(said(run, 'asked'))}")
    if text := said(run, "text"):
        show(f"answer: {clean(text)}")


def figures(run: Mapping[str, JSON]) -> str:
    """What a run used."""
    cost = run.get("cost", 0.0)
    price = "price unknown" if cost is None else f"${cost:.4f}"
    tokens = run.get("tokens_in", 0) + run.get("tokens_out", 0)
    return f"{run.get('turns', 0)} turns, {run.get('calls', 0)} calls, {tokens} tokens, {price}"


async def _watch(client: Client, options: Namespace) -> int:
    shown, end = face(json=options.json), None
    async with aclosing(watch(client, options.id, options.after)) as records:
        async for record in records:
            shown.receive(record)
            end = record.event if isinstance(record.event, RunFinished) else end
    if end is None:
        stop = (await look(client, options.id)).get("stop")
        return exits.BY_STOP[StopReason(stop)] if stop in set(StopReason) else exits.FAILED
    if end.stop is StopReason.WAITING:
        tell("it waits for a person: see `evoclaw approvals`")
    return exits.BY_STOP[end.stop]


async def _cancel(client: Client, options: Namespace) -> int:
    if await routes.cancel(client, options.id):
        show(f"{options.id}: cancelled")
        return exits.OK
    tell(f"{options.id}: it had ended already")
    return exits.FAILED


async def _records(client: Client, options: Namespace) -> None:
    data = await client.raw("GET", routes.path("runs", options.id, "records"))
    if options.output is None:
        sys.stdout.buffer.write(data)
        return
    path = Path(options.output)
    try:
        # What tools saw is in it: for the owner's eyes, and never over another file.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}") from None
    count = data.count(b"\n")
    tell(f"{count} records in {path}; see them with `evoclaw replay {path}`")

"""`evoclaw workflows`: begun, seen, answered and ended at the running service."""

from __future__ import annotations

import asyncio
import os
import secrets
from argparse import Namespace
from collections.abc import Sequence

import msgspec

from evoclaw.cli import exits, routes
from evoclaw.cli.approvals import person_here
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.render import tell
from evoclaw.cli.tables import lay_out, said, show_rows, when
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object

MOST = 50
"""Workflows that were started, of which the newest are listed."""
_FAILED = ("failed", "cancelled")


def workflows(options: Namespace, _wiring: object = None) -> int:
    """Do one of the actions."""
    return asyncio.run(_workflows(options))


async def _workflows(options: Namespace) -> int:
    async with open_client(os.environ) as client:
        match options.action:
            case "start":
                where = routes.path("workflows", options.name, "runs")
                key = options.key or secrets.token_hex(16)
                body = {"inputs": inputs_of(options.input)}
                _show(routes.one(await client.post(where, body, key=key)), options)
            case "show":
                found = routes.one(await client.get(routes.path("workflow-runs", options.id)))
                _show(found, options)
                return exits.FAILED if found.get("state") in _FAILED else exits.OK
            case "answer":
                await _answer(client, options)
            case "cancel":
                return await _cancel(client, options)
            case _:
                await _list(client, options)
    return exits.OK


def inputs_of(given: Sequence[str]) -> dict[str, JSON]:
    """What was typed as `NAME=VALUE`: JSON, or else a text."""
    found: dict[str, JSON] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not name or not equals:
            raise ConfigError(f"{one!r}: say NAME=VALUE")
        try:
            found[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name] = text
    return found


async def _list(client: Client, options: Namespace) -> None:
    defined = routes.many(await client.get(routes.path("workflows")))
    started = await routes.pages(client, routes.path("workflow-runs"), MOST)
    if options.json:
        show({"defined": defined, "started": started})
        return
    rows = (
        (said(one, "name"), said(one, "problem") or said(one, "description")) for one in defined
    )
    show_rows(rows, "no workflow is defined; put one into the folder `workflows`")
    for line in lay_out(
        (said(one, "id"), said(one, "state"), when(one.get("started_at")), said(one, "name"))
        for one in started
    ):
        show(line)


def _show(found: dict[str, JSON], options: Namespace) -> None:
    if options.json:
        show(found)
        return
    error = said(found, "error")
    show(f"{clean(said(found, 'id'))}: {said(found, 'state')}{f' ({clean(error)})' * bool(error)}")
    show(f"{clean(said(found, 'name'))}, begun {when(found.get('started_at'))}")
    steps = found.get("steps")
    listed = [step for step in steps if is_object(step)] if is_array(steps) else []
    for line in lay_out(
        (said(step, "name"), said(step, "state"), said(step, "asked") or said(step, "error"))
        for step in listed
    ):
        show(f"  {line}")
    if (output := found.get("output")) is not None:
        show(f"output: {one_line(msgspec.json.encode(output).decode(), 2_000)}")


async def _answer(client: Client, options: Namespace) -> None:
    if why := person_here().why_not("local"):
        raise ConfigError(why)
    body = {"step": options.step, "decision": options.decision, "reason": options.reason}
    await client.post(routes.path("workflow-runs", options.id, "answer"), body)
    show(f"{options.id}: {options.step}: {options.decision}")


async def _cancel(client: Client, options: Namespace) -> int:
    done = routes.one(await client.post(routes.path("workflow-runs", options.id, "cancel")))
    if done.get("cancelled"):
        show(f"{options.id}: cancelled")
        return exits.OK
    tell(f"{options.id}: it had ended already")
    return exits.FAILED

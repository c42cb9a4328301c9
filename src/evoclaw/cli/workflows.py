"""`evoclaw workflows`: list, start, answer and cancel workflows of the running service."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence

import click
import msgspec

from evoclaw.cli import exits, routes
from evoclaw.cli.approvals import person_here
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.client import Client, open_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.tables import lay_out, said, show_rows, when
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object

MOST = 50
"""The newest workflow runs that are listed."""
_FAILED = ("failed", "cancelled")


@click.group(cls=CommandGroup, default="list")
def workflows() -> None:
    """List, start, answer and cancel workflows."""


_ID = click.argument("id_", metavar="ID", help="Id of the run, as `evoclaw workflows` lists it")


@workflows.command("list", help="List workflows and their runs (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    return _with_client(lambda client: _print_all(client, as_json=as_json))


@workflows.command("start", help="Start a workflow")
@click.argument("name", help="Name, as `evoclaw workflows` lists it")
@click.argument("inputs", nargs=-1, metavar="NAME=VALUE", help="Inputs: JSON, or else text")
@click.option(
    "--key", default="", metavar="KEY", show_default=False, help="Start it once for this key"
)
@json_option()
def _start(name: str, inputs: tuple[str, ...], key: str, *, as_json: bool) -> int:
    async def start(client: Client) -> int:
        where = routes.path("workflows", name, "runs")
        body = {"inputs": inputs_of(inputs)}
        found = await client.post(where, body, key=key or secrets.token_hex(16))
        _print_one(routes.one(found), as_json=as_json)
        return exits.OK

    return _with_client(start)


@workflows.command("show", help="Show a run of a workflow and its steps")
@_ID
@json_option()
def _show(id_: str, *, as_json: bool) -> int:
    async def show(client: Client) -> int:
        found = routes.one(await client.get(routes.path("workflow-runs", id_)))
        _print_one(found, as_json=as_json)
        return exits.FAILED if found.get("state") in _FAILED else exits.OK

    return _with_client(show)


@workflows.command("cancel", help="Cancel a run of a workflow")
@_ID
def _cancel(id_: str) -> int:
    async def cancel(client: Client) -> int:
        done = routes.one(await client.post(routes.path("workflow-runs", id_, "cancel")))
        if done.get("cancelled"):
            print_out(f"{id_}: cancelled")
            return exits.OK
        print_err(f"{id_}: already ended")
        return exits.FAILED

    return _with_client(cancel)


@workflows.command("answer", help="Answer a step that waits for a person")
@_ID
@click.argument("step", help="Name of the step, as `show` prints it")
@click.argument(
    "decision",
    type=click.Choice(["approve", "deny", "retry", "skip", "fail"]),
    help="The decision",
)
@click.option(
    "--reason", default="", metavar="TEXT", show_default=False, help="Store this with the answer"
)
def _answer(id_: str, step: str, decision: str, reason: str) -> int:
    async def answer(client: Client) -> int:
        if why := person_here().why_not("local"):
            raise ConfigError(why)
        body = {"step": step, "decision": decision, "reason": reason}
        await client.post(routes.path("workflow-runs", id_, "answer"), body)
        print_out(f"{id_}: {step}: {decision}")
        return exits.OK

    return _with_client(answer)


def _with_client(work: Callable[[Client], Awaitable[int]]) -> int:
    async def run() -> int:
        async with open_client(os.environ) as client:
            return await work(client)

    return asyncio.run(run())


def inputs_of(given: Sequence[str]) -> dict[str, JSON]:
    """The inputs typed as `NAME=VALUE`: each value as JSON, or else as text."""
    inputs: dict[str, JSON] = {}
    for argument in given:
        name, equals, text = argument.partition("=")
        if not name or not equals:
            raise ConfigError(f"{argument!r} is not an input; write NAME=VALUE")
        try:
            inputs[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            inputs[name] = text
    return inputs


async def _print_all(client: Client, *, as_json: bool) -> int:
    defined = routes.many(await client.get(routes.path("workflows")))
    started = await routes.pages(client, routes.path("workflow-runs"), MOST)
    if as_json:
        print_out({"defined": defined, "started": started})
        return exits.OK
    rows = (
        (said(workflow, "name"), said(workflow, "problem") or said(workflow, "description"))
        for workflow in defined
    )
    show_rows(
        rows, "no workflows are defined; add a file to the folder `workflows` in the data folder"
    )
    for line in lay_out(
        (said(run, "id"), said(run, "state"), when(run.get("started_at")), said(run, "name"))
        for run in started
    ):
        print_out(line)
    return exits.OK


def _print_one(found: dict[str, JSON], *, as_json: bool) -> None:
    if as_json:
        print_out(found)
        return
    error = said(found, "error")
    print_out(
        f"{clean(said(found, 'id'))}: {said(found, 'state')}{f' ({clean(error)})' * bool(error)}"
    )
    print_out(f"{clean(said(found, 'name'))}, started {when(found.get('started_at'))}")
    steps = found.get("steps")
    listed = [step for step in steps if is_object(step)] if is_array(steps) else []
    for line in lay_out(
        (said(step, "name"), said(step, "state"), said(step, "asked") or said(step, "error"))
        for step in listed
    ):
        print_out(f"  {line}")
    if (output := found.get("output")) is not None:
        print_out(f"output: {one_line(msgspec.json.encode(output).decode(), 2_000)}")

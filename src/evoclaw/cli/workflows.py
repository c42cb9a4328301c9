"""`evoclaw workflows`: list, start, answer and cancel workflows of the running service."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, open_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import (
    clean,
    format_table,
    format_time,
    one_line,
    print_table,
    text_of,
)
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object

MAX_LISTED_RUNS = 50
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
    async def start(client: ServiceClient) -> int:
        where = service_api.api_path("workflows", name, "runs")
        body = {"inputs": inputs_of(inputs)}
        found = await client.post(where, body, key=key or secrets.token_hex(16))
        _print_one(service_api.as_object(found), as_json=as_json)
        return exits.OK

    return _with_client(start)


@workflows.command("show", help="Show a run of a workflow and its steps")
@_ID
@json_option()
def _show(id_: str, *, as_json: bool) -> int:
    async def show(client: ServiceClient) -> int:
        found = service_api.as_object(await client.get(service_api.api_path("workflow-runs", id_)))
        _print_one(found, as_json=as_json)
        return exits.FAILED if found.get("state") in _FAILED else exits.OK

    return _with_client(show)


@workflows.command("cancel", help="Cancel a run of a workflow")
@_ID
def _cancel(id_: str) -> int:
    async def cancel(client: ServiceClient) -> int:
        done = service_api.as_object(
            await client.post(service_api.api_path("workflow-runs", id_, "cancel"))
        )
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
    async def answer(client: ServiceClient) -> int:
        if why := identify_answerer().refusal_reason("local"):
            raise ConfigError(why)
        body = {"step": step, "decision": decision, "reason": reason}
        await client.post(service_api.api_path("workflow-runs", id_, "answer"), body)
        print_out(f"{id_}: {step}: {decision}")
        return exits.OK

    return _with_client(answer)


def _with_client(work: Callable[[ServiceClient], Awaitable[int]]) -> int:
    async def run() -> int:
        async with open_client(os.environ) as client:
            return await work(client)

    return asyncio.run(run())


def inputs_of(arguments: Sequence[str]) -> dict[str, JSON]:
    """The inputs typed as `NAME=VALUE`: each value as JSON, or else as text."""
    inputs: dict[str, JSON] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not name or not equals:
            raise ConfigError(f"{argument!r} is not an input; write NAME=VALUE")
        try:
            inputs[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            inputs[name] = text
    return inputs


async def _print_all(client: ServiceClient, *, as_json: bool) -> int:
    defined = service_api.as_items(await client.get(service_api.api_path("workflows")))
    started = await service_api.fetch_pages(
        client, service_api.api_path("workflow-runs"), MAX_LISTED_RUNS
    )
    if as_json:
        print_out({"defined": defined, "started": started})
        return exits.OK
    rows = (
        (
            text_of(workflow, "name"),
            text_of(workflow, "problem") or text_of(workflow, "description"),
        )
        for workflow in defined
    )
    print_table(
        rows, "no workflows are defined; add a file to the folder `workflows` in the data folder"
    )
    for line in format_table(
        (
            text_of(run, "id"),
            text_of(run, "state"),
            format_time(run.get("started_at")),
            text_of(run, "name"),
        )
        for run in started
    ):
        print_out(line)
    return exits.OK


def _print_one(found: dict[str, JSON], *, as_json: bool) -> None:
    if as_json:
        print_out(found)
        return
    error = text_of(found, "error")
    print_out(
        f"{clean(text_of(found, 'id'))}: {text_of(found, 'state')}"
        f"{f' ({clean(error)})' * bool(error)}"
    )
    print_out(f"{clean(text_of(found, 'name'))}, started {format_time(found.get('started_at'))}")
    steps = found.get("steps")
    listed = [step for step in steps if is_object(step)] if is_array(steps) else []
    for line in format_table(
        (
            text_of(step, "name"),
            text_of(step, "state"),
            text_of(step, "asked") or text_of(step, "error"),
        )
        for step in listed
    ):
        print_out(f"  {line}")
    if (output := found.get("output")) is not None:
        print_out(f"output: {one_line(msgspec.json.encode(output).decode(), 2_000)}")

"""`evoclaw workflows`: list, start, answer and cancel workflows of the running service."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out, report_cancelled
from evoclaw.cli.terminal import format_arguments
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
    return with_client(lambda client: _print_all(client, as_json=as_json))


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

    return with_client(start)


@workflows.command("show", help="Show a run of a workflow and its steps")
@_ID
@json_option()
def _show(id_: str, *, as_json: bool) -> int:
    async def show(client: ServiceClient) -> int:
        found = service_api.as_object(await client.get(service_api.api_path("workflow-runs", id_)))
        _print_one(found, as_json=as_json)
        return exits.FAILED if found.get("state") in _FAILED else exits.OK

    return with_client(show)


@workflows.command("cancel", help="Cancel a run of a workflow")
@_ID
def _cancel(id_: str) -> int:
    async def cancel(client: ServiceClient) -> int:
        done = service_api.as_object(
            await client.post(service_api.api_path("workflow-runs", id_, "cancel"))
        )
        return report_cancelled(id_, done=done.get("cancelled") is True)

    return with_client(cancel)


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

    return with_client(answer)


@workflows.command("approve", help="Approve a step from now on, until its definition changes")
@click.argument("name", help="Name of the workflow, as `evoclaw workflows` lists it")
@click.argument("step", required=False, default="", help="Name of the step [list them]")
@click.option("--yes", is_flag=True, help="Approve it; without this, only show what it covers")
@click.option(
    "--reason", default="", metavar="TEXT", show_default=False, help="Store this with the approval"
)
@json_option()
def _approve(name: str, step: str, *, yes: bool, reason: str, as_json: bool) -> int:
    async def approve(client: ServiceClient) -> int:
        if why := identify_answerer().refusal_reason("local"):
            raise ConfigError(why)
        workflow, steps = await _approvable_steps(client, name)
        chosen = [found for found in steps if step in ("", text_of(found, "name"))]
        if step and not chosen:
            able = ", ".join(text_of(found, "name") for found in steps) or "none"
            raise ConfigError(
                f"step {step!r} cannot be approved beforehand; steps of {name!r} that can: {able}. "
                "The calls of an agent step can be approved when they wait: "
                "`evoclaw approvals approve ID --step`"
            )
        if step and yes:
            where = service_api.api_path("workflows", name, "steps", step, "approve")
            body = {"sha256": text_of(workflow, "sha256"), "reason": reason}
            chosen = [service_api.as_object(await client.post(where, body))]
        if as_json:
            print_out(chosen[0] if step else chosen)
            return exits.OK
        for found in chosen:
            _print_approvable(found)
        if step and not text_of(chosen[0], "approval_id"):
            print_err("This approves the step without asking again. Repeat with --yes to confirm.")
            return exits.FAILED
        return exits.OK

    return with_client(approve)


async def _approvable_steps(
    client: ServiceClient, name: str
) -> tuple[dict[str, JSON], list[dict[str, JSON]]]:
    """A definition, and its steps that can be approved beforehand."""
    defined = service_api.as_items(await client.get(service_api.api_path("workflows")))
    found = [workflow for workflow in defined if workflow.get("name") == name]
    if not found:
        raise ConfigError(f"there is no workflow {name!r}; see `evoclaw workflows`")
    steps = found[0].get("approvable")
    return found[0], [step for step in steps if is_object(step)] if is_array(steps) else []


def _print_approvable(step: dict[str, JSON]) -> None:
    id_, by = text_of(step, "approval_id"), text_of(step, "approved_by")
    state = f"approved by {clean(by)}; withdraw: evoclaw approvals deny {id_}" if id_ else "asks"
    print_out(f"{clean(text_of(step, 'name'))}: {state}")
    arguments = step.get("arguments")
    if tool := text_of(step, "tool"):
        print_out(f"  {clean(tool)} with:")
        if is_object(arguments) and arguments:
            print_out(format_arguments(arguments))
    if message := text_of(step, "message"):
        print_out(f"  asks: {clean(message)}")
    print_out(f"  an approval covers {clean(text_of(step, 'covers'))}")


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

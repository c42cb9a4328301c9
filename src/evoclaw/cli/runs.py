"""`evoclaw runs`: list, show, watch, steer and cancel runs of the service."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.options import FILE, CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out, report_cancelled
from evoclaw.cli.render import answer_hint, renderer
from evoclaw.cli.service_api import get_run, watch_records
from evoclaw.cli.terminal_text import (
    clean,
    format_time,
    machine_of,
    on_machine,
    one_line,
    print_table,
    text_of,
)
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import CallFinished, CallJudged, Record, RunFinished, StopReason
from evoclaw.core.messages import JSON


@click.group(cls=CommandGroup, default="list")
def runs() -> None:
    """List, show, watch, steer and cancel runs of the service."""


_ID = click.argument("run_id", metavar="ID", help="Id, as `evoclaw runs` lists it")


@runs.command("list", help="List the newest runs (the default)")
@click.option("--session", metavar="ID", help="List only runs of this session")
@click.option(
    "--state",
    type=click.Choice(["queued", "running", "waiting", "ended"]),
    help="List only runs in this state",
)
@click.option("--limit", type=int, default=20, metavar="N", help="List at most N runs")
@json_option()
def _list(session: str | None, state: str | None, limit: int, *, as_json: bool) -> int:
    query = {"session_id": session or "", "state": state or ""}
    return with_client(lambda client: _print_all(client, limit, query, as_json=as_json))


@runs.command("show", help="Show the status and the answer of a run")
@_ID
@json_option()
def _show(run_id: str, *, as_json: bool) -> int:
    async def show(client: ServiceClient) -> int:
        run = await get_run(client, run_id)
        if as_json:
            print_out(run)
            return exits.OK
        _print_one(run, _call_lines(await service_api.get_records(client, run_id)))
        return exits.OK

    return with_client(show)


@runs.command("watch", help="Print a run as it happens; exit with the code of its end")
@click.option("--after", type=int, default=0, metavar="N", help="Start after record N")
@_ID
@json_option("Print every record as a line of JSON")
def _watch(run_id: str, after: int, *, as_json: bool) -> int:
    return with_client(lambda client: _follow(client, run_id, after, as_json=as_json))


@runs.command("cancel", help="Cancel a run and everything it started")
@_ID
def _cancel(run_id: str) -> int:
    async def cancel(client: ServiceClient) -> int:
        return report_cancelled(run_id, done=await service_api.cancel_run(client, run_id))

    return with_client(cancel)


@runs.command("steer", help="Send a message to a run while it is running")
@_ID
@click.argument("message", help="The message")
def _steer(run_id: str, message: str) -> int:
    async def steer(client: ServiceClient) -> int:
        await service_api.steer_run(client, run_id, message)
        print_out(f"{run_id}: message sent")
        return exits.OK

    return with_client(steer)


@runs.command("rate", help="Say whether a run was good or bad, and why")
@_ID
@click.argument("verdict", type=click.Choice(["good", "bad"]), help="Your verdict")
@click.argument("reason", nargs=-1, metavar="[WHY]", help="The reason, in your words")
@json_option()
def _rate(run_id: str, verdict: str, reason: tuple[str, ...], *, as_json: bool) -> int:
    async def rate(client: ServiceClient) -> int:
        if why := identify_answerer().refusal_reason("local"):
            raise ConfigError(why)
        rating = await service_api.rate_run(client, run_id, verdict, " ".join(reason))
        print_out(rating if as_json else f"{run_id}: rated {verdict}")
        return exits.OK

    return with_client(rate)


@runs.command("undo", help="Undo the file changes of a run; what its commands did stays")
@_ID
@json_option()
def _undo(run_id: str, *, as_json: bool) -> int:
    async def undo(client: ServiceClient) -> int:
        found = await service_api.undo_run(client, run_id)
        if as_json:
            print_out(msgspec.to_builtins(found))
        for line in [] if as_json else found.lines():
            print_out(line)
        return found.exit_code

    return with_client(undo)


@runs.command("records", help="Save the recording of a run, for `evoclaw replay`")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", show_default="stdout", help="Write this new file"
)
@_ID
def _records(run_id: str, output: Path | None) -> int:
    return with_client(lambda client: _save(client, run_id, output))


async def _print_all(
    client: ServiceClient, limit: int, query: Mapping[str, str], *, as_json: bool
) -> int:
    found = await service_api.fetch_pages(client, service_api.api_path("runs"), limit, **query)
    if as_json:
        print_out(found)
        return exits.OK
    rows = (
        (
            text_of(run, "run_id"),
            text_of(run, "stop") or text_of(run, "state"),
            text_of(run, "agent"),
            format_time(run.get("began_at")),
            text_of(run, "asked"),
        )
        for run in found
    )
    none = "no run matches" if any(query.values()) else "no runs yet; start one with `evoclaw chat`"
    print_table(rows, none)
    return exits.OK


def _call_lines(records: Sequence[Record]) -> list[str]:
    """One line for each call of a run that has a result: the tool, the machine, the outcome."""
    machines: dict[str, str] = {}
    lines: list[str] = []
    for record in records:
        match record.event:
            case CallJudged(call_id, machine=machine):
                machines[call_id] = machine
            case CallFinished(result):
                where = machine_of(result) or machines.get(result.call_id, "")
                lines.append(f"{one_line(result.name)}{on_machine(where)}: {result.error or 'ok'}")
            case _:
                pass
    return lines


def _print_one(run: dict[str, JSON], calls: Sequence[str]) -> None:
    stop, reason = text_of(run, "stop"), text_of(run, "reason")
    print_out(
        f"{text_of(run, 'run_id')}: {stop or text_of(run, 'state')}"
        f"{f' ({clean(reason)})' * bool(reason)}"
    )
    print_out(f"session {clean(text_of(run, 'session_id'))}, agent {clean(text_of(run, 'agent'))}")
    print_out(
        f"started {format_time(run.get('began_at'))}, "
        f"ended {format_time(run.get('ended_at')) or '—'}"
    )
    print_out(f"{usage_lines(run)}")
    for call in calls:
        print_out(f"  {call}")
    print_out(f"asked: {clean(text_of(run, 'asked'))}")
    if text := text_of(run, "text"):
        print_out(f"answer: {clean(text)}")


def usage_lines(run: Mapping[str, JSON]) -> str:
    """What a run used, on one line."""
    cost = run.get("cost", 0.0)
    price = "price unknown" if cost is None else f"${cost:.4f}"
    tokens = run.get("tokens_in", 0) + run.get("tokens_out", 0)
    return f"{run.get('turns', 0)} turns, {run.get('calls', 0)} calls, {tokens} tokens, {price}"


async def _follow(client: ServiceClient, run_id: str, after: int, *, as_json: bool) -> int:
    give_up = f"`evoclaw runs cancel {run_id}` to give up"
    shown, end = renderer(json=as_json, give_up=give_up), None
    async with aclosing(watch_records(client, run_id, after)) as records:
        async for record in records:
            shown.receive(record)
            end = record.event if isinstance(record.event, RunFinished) else end
    if end is None:
        stop = (await get_run(client, run_id)).get("stop")
        return exits.BY_STOP[StopReason(stop)] if stop in set(StopReason) else exits.FAILED
    if end.stop is StopReason.WAITING:
        session_id = str((await get_run(client, run_id)).get("session_id", ""))
        if hint := answer_hint(end, session_id):
            print_err(hint)
    return exits.BY_STOP[end.stop]


async def _save(client: ServiceClient, run_id: str, path: Path | None) -> int:
    data = await client.request_bytes("GET", service_api.api_path("runs", run_id, "records"))
    if path is None:
        sys.stdout.buffer.write(data)
        return exits.OK
    try:
        # The records contain results of tools: only the owner may read them; never overwrite.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}") from None
    count = data.count(b"\n")
    print_err(f"{count} records in {path}; see them with `evoclaw replay {path}`")
    return exits.OK

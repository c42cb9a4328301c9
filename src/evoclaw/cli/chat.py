"""`evoclaw chat`: a conversation with an agent of the running service."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from evoclaw.cli import exits, service_api
from evoclaw.cli.chat_commands import ChatPosition, run_request
from evoclaw.cli.client import ServiceNotRunning, ServiceRefused, open_client
from evoclaw.cli.interactive_run import InteractiveRun
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_err
from evoclaw.cli.render import answer_hint, renderer
from evoclaw.cli.stop_notice import convert_stops, stop_lines
from evoclaw.cli.terminal import is_interactive
from evoclaw.cli.terminal_text import decode_input, one_line
from evoclaw.core.events import RunFinished


@click.command(cls=CliCommand)
@click.option(
    "--session",
    default="",
    metavar="NAME",
    show_default=False,
    help="Continue this session, or start it",
)
@click.option(
    "--agent",
    default="",
    metavar="NAME",
    show_default=False,
    help="Start a new session with this agent",
)
@click.option(
    "--model",
    default="",
    metavar="PROVIDER/MODEL",
    show_default="the agent's",
    help="Use this model",
)
@click.option(
    "--on",
    default="",
    metavar="EDGE",
    show_default="the edge of `evoclaw up`",
    help="Run calls on this edge, or on `any` that has the tool; `*` lets the model choose",
)
@json_option("Print every record as a line of JSON")
def chat(session: str, agent: str, model: str, on: str, *, as_json: bool) -> int:
    """Chat until the user leaves, or standard input ends."""
    position = ChatPosition(session=session, agent=agent, on=on, model=model)
    if is_interactive() and not as_json:
        from evoclaw.cli.chat_terminal import TerminalChat

        return asyncio.run(TerminalChat(position).run())
    return PipedChat(position, as_json=as_json).run()


class PipedChat:
    """Runs each line of standard input as a message, until a run waits for a person."""

    def __init__(self, position: ChatPosition, *, as_json: bool) -> None:
        self._position = position
        self._code = exits.OK
        self._renderer = renderer(json=as_json, attended=False)
        """One for all runs: it prints the model and the tools again only if they change."""

    def run(self) -> int:
        """Chat until standard input ends; returns the exit code."""
        with asyncio.Runner() as runner:
            runner.run(self._enter())
            for number, data in enumerate(sys.stdin.buffer, 1):
                line = decode_input(data, f"line {number} of standard input").strip()
                if line and not runner.run(self._send(line)):
                    break
        return self._code

    async def _enter(self) -> None:
        """Open the named session, if any, and resume its unfinished run."""
        async with open_client(os.environ) as client:
            for line in stop_lines(convert_stops(await service_api.list_stops(client))):
                print_err(line)
            self._position, unfinished = await self._position.enter(client)
            if unfinished is not None:
                asked = one_line(str(unfinished.get("asked", "")))
                print_err(f"resuming the unfinished run of this session: {asked}")
                run = InteractiveRun(client, self._renderer)
                self._update(run, await run.resume(unfinished))

    async def _send(self, text: str) -> bool:
        """Send a message; returns whether to continue."""
        try:
            async with open_client(os.environ) as client:
                run = InteractiveRun(client, self._renderer)
                self._update(run, await run.start(run_request(self._position, text)))
        except (ServiceRefused, ServiceNotRunning) as problem:
            print_err(f"evoclaw: {problem}")
            self._code = exits.FAILED
            return False
        return not run.has_left and self._code != exits.WAITING

    def _update(self, run: InteractiveRun, end: RunFinished | None) -> None:
        self._position = self._position.after(run.run)
        self._code = exits.CANCELLED if end is None else exits.BY_STOP[end.stop]
        if end and (hint := answer_hint(end, str(run.run.get("session_id", "")))):
            print_err(hint)

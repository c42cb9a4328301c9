"""`evoclaw chat`: a conversation with an agent of the running service."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

import click
from msgspec import Struct

from evoclaw.cli import exits, service_api
from evoclaw.cli.chat_commands import (
    COMMANDS,
    HELP_HINT,
    ChatPosition,
    run_command,
    working_edge,
)
from evoclaw.cli.client import ServiceClient, ServiceNotRunning, ServiceRefused, open_client
from evoclaw.cli.data_folder import data_folder
from evoclaw.cli.interactive_run import InteractiveRun
from evoclaw.cli.line_reader import LineReader
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_err
from evoclaw.cli.render import answer_hint, renderer
from evoclaw.cli.stop_notice import convert_stops, stop_lines
from evoclaw.cli.terminal import is_interactive
from evoclaw.cli.terminal_text import clean, decode_input, one_line
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import RunFinished
from evoclaw.core.messages import JSON

T = TypeVar("T")
HISTORY_FILE = "chat_history"
"""The file of typed messages, in the data folder."""


class ChatOptions(Struct, frozen=True):
    """The options of `evoclaw chat`."""

    session: str
    agent: str
    model: str
    on: str
    as_json: bool


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
    with asyncio.Runner() as runner:
        conversation = _Chat(ChatOptions(session, agent, model, on, as_json), runner)
        conversation.enter_session()
        if conversation.attended:
            return conversation.at_terminal()
        return conversation.from_pipe()


class _Chat:
    """Reads a message, runs it and shows the run, until the user leaves."""

    def __init__(self, options: ChatOptions, runner: asyncio.Runner) -> None:
        self._options, self._runner = options, runner
        self.attended = is_interactive() and not options.as_json
        self._position = ChatPosition(session=options.session, agent=options.agent, on=options.on)
        self._code = exits.OK
        self._renderer = renderer(json=options.as_json, attended=self.attended)
        """One for all runs: it prints the model and the tools again only if they change."""

    def enter_session(self) -> None:
        """Open the named session, if any, and resume its unfinished run."""
        self._await(self._enter())

    def at_terminal(self) -> int:
        """Read messages from a user at a terminal; returns the exit code."""
        reader = LineReader(data_folder(os.environ) / HISTORY_FILE)
        signal.signal(signal.SIGTERM, _exit_on_signal)  # restores the terminal settings
        if edge := self._await(working_edge(self._position)):
            print_err(f"working on {clean(edge)}; /on NAME works on another edge")
        print_err("type a message, or /help for the commands")
        for text in _messages(reader):
            reader.add_history(text)
            if not self._handle_input(text):
                break
        if self._position.session:
            print_err(f"to continue: evoclaw chat --session {self._position.session}")
        return self._code

    def from_pipe(self) -> int:
        """Read one message per line from a pipe; stops at a run that waits for a person."""
        for number, data in enumerate(sys.stdin.buffer, 1):
            line = decode_input(data, f"line {number} of standard input").strip()
            if line and not self._send_message(line):
                break
        return self._code

    def _handle_input(self, text: str) -> bool:
        """Run a command or send a message; returns whether to continue."""
        self._code = exits.OK
        if not text.startswith("/") or text.startswith("//"):
            return self._send_message(text.removeprefix("/") if text.startswith("//") else text)
        name, _, rest = text.strip().partition(" ")
        if name == "/quit":
            return False
        if name not in COMMANDS:
            print_err(f"no such command: {name}; {HELP_HINT}")
            return True
        try:
            self._position = self._await(run_command(name, rest.strip(), self._position))
        except EvoClawError as problem:
            print_err(str(problem))
        return True

    def _send_message(self, text: str) -> bool:
        """Send a message, then those typed after its run ended; returns whether to continue."""
        unsent = [text]
        while unsent:
            try:
                left, unsent = self._await(self._run("\n".join(unsent)))
            except (ServiceRefused, ServiceNotRunning) as problem:
                print_err(f"evoclaw: {problem}")
                self._code = exits.FAILED
                return self.attended
            if left or (self._code == exits.WAITING and not self.attended):
                return False
        return True

    async def _run(self, text: str) -> tuple[bool, list[str]]:
        where = self._position
        request: dict[str, JSON] = {
            "message": text,
            "session_id": where.session,
            "agent": "" if where.session else where.agent,
            "title": "" if where.session else where.title,
            "model": self._options.model,
            "on": "" if where.session else where.on,
        }
        if where.attached:
            request["images"] = [
                {"media_type": image.media_type, "data": image.data} for image in where.attached
            ]
        async with open_client(os.environ) as client:
            run = self._interactive_run(client)
            end = await run.start(request)
            self._update(run, end)
            return run.has_left, run.unsent

    async def _enter(self) -> None:
        async with open_client(os.environ) as client:
            for line in stop_lines(convert_stops(await service_api.list_stops(client))):
                print_err(line)
            self._position, run = await self._position.enter(client)
            if run is None:
                return
            print_err(f"resuming the run of this session: {one_line(str(run.get('asked', '')))}")
            talk = self._interactive_run(client)
            self._update(talk, await talk.resume(run))

    def _interactive_run(self, client: ServiceClient) -> InteractiveRun:
        keyboard = sys.stdin.fileno() if self.attended else None
        return InteractiveRun(client, self._renderer, sys.stderr, keyboard)

    def _update(self, talk: InteractiveRun, end: RunFinished | None) -> None:
        self._position = self._position.after(talk.run)
        self._code = exits.CANCELLED if end is None else exits.BY_STOP[end.stop]
        session_id = str(talk.run.get("session_id", ""))
        if end and not self.attended and (hint := answer_hint(end, session_id)):
            print_err(hint)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


def _messages(reader: LineReader) -> Iterator[str]:
    """The typed messages, until Ctrl-D or two Ctrl-C in a row."""
    interrupted = False
    while True:
        try:
            text = reader.read("> ")
        except KeyboardInterrupt:
            if interrupted:
                return
            interrupted = True
            print_err("\n(Ctrl-C again, Ctrl-D or /quit to leave)")
            continue
        if text is None:
            return
        interrupted = False
        if text.strip():
            yield text


def _exit_on_signal(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)

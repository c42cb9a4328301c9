"""A chat at a terminal: reads messages, runs them, and shows the runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress

from msgspec.structs import replace

from evoclaw.cli import exits, service_api
from evoclaw.cli.chat_commands import (
    COMMANDS,
    HELP_HINT,
    ChatPosition,
    run_command,
    run_request,
)
from evoclaw.cli.chat_names import ChatNames
from evoclaw.cli.chat_screen import PROMPT, ChatScreen
from evoclaw.cli.chat_user import ChatUser
from evoclaw.cli.chat_view import ChatView, uses_colour
from evoclaw.cli.client import ServiceClient, ServiceNotRunning, ServiceRefused, open_client
from evoclaw.cli.data_folder import data_folder
from evoclaw.cli.interactive_run import InteractiveRun
from evoclaw.cli.output import print_err
from evoclaw.cli.stop_notice import convert_stops, stop_lines
from evoclaw.cli.terminal_text import clean, one_line, text_of
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.events import CallFinished
from evoclaw.core.messages import JSON
from evoclaw.core.suggestions import did_you_mean

HISTORY_FILE = "chat_history"
"""The file of typed messages, in the data folder."""
REFRESH_INTERVAL_S = 0.1
"""Seconds between two drawings of what runs now."""
MAX_SHOWN_QUESTION_CHARS = 2_000
UNDO_NOTE = "[The user has undone the file changes of your last answer.]"
"""Sent with the next message."""
COMMANDS_DURING_RUN = frozenset({"/cost", "/help", "/history", "/output", "/sessions", "/tools"})
"""Commands that change nothing; others have to wait for the end of the run."""


class TerminalChat:
    """Reads a message, runs it and shows the run, until the user leaves."""

    def __init__(self, position: ChatPosition) -> None:
        self._position = position
        self._code = exits.OK
        self._names = ChatNames()
        self._left = ""
        """What is left of the budget, in words."""
        colour = uses_colour()
        self._screen = ChatScreen(
            history=data_folder(os.environ) / HISTORY_FILE,
            suggest=self._names.suggest,
            live=self._live,
            status=self._status,
            colour=colour,
        )
        self._view = ChatView(self._screen.print, lambda: self._screen.columns, colour=colour)
        self._user = ChatUser(self._screen, self._view)
        self._screen.on_message = self._receive
        self._screen.on_interrupt = self._interrupt
        self._screen.on_end = self._leave
        self._typed: deque[str] = deque()
        self._has_input = asyncio.Event()
        self._is_ready = False
        """Whether the next text is a message of its own."""
        self._run: InteractiveRun | None = None
        self._interrupts = 0
        self._background: set[asyncio.Task[None]] = set()
        self._conversation: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Chat until the user leaves; returns the exit code."""
        unfinished = await self._enter()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._leave, 128 + signal.SIGTERM)
        conversation = self._conversation = asyncio.create_task(self._converse(unfinished))
        conversation.add_done_callback(lambda _: self._screen.close())
        self._start(self._keep_drawing())
        self._start(self._fetch())
        try:
            await self._screen.run()
        finally:
            tasks = [conversation, *self._background]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            loop.remove_signal_handler(signal.SIGTERM)
        if not conversation.cancelled():
            conversation.result()
        if self._position.session:
            print_err(f"to continue: evoclaw chat --session {self._position.session}")
        return self._code

    async def _enter(self) -> dict[str, JSON] | None:
        """Open the named session and show its last exchange; returns its unfinished run."""
        async with open_client(os.environ) as client:
            for line in stop_lines(convert_stops(await service_api.list_stops(client))):
                print_err(line)
            self._position, run = await self._position.enter(client)
            if run is None and self._position.session:
                await self._show_last_exchange(client)
            if not self._position.on:
                await self._names.fetch_edges(client)
        if edge := self._position.on or self._names.default_edge:
            print_err(f"tools run on {clean(edge)}; switch with /on NAME")
        print_err("type a message, or /help for the list of commands")
        return run

    async def _converse(self, unfinished: dict[str, JSON] | None) -> None:
        if unfinished is not None:
            asked = one_line(str(unfinished.get("asked", "")))
            print_err(f"resuming the unfinished run of this session: {asked}")
            has_left, unsent = await self._watch(unfinished, None)
            self._typed.extendleft(reversed(unsent))
            if has_left:
                return
        while await self._handle(await self._next_message()):
            pass

    async def _next_message(self) -> str:
        while not self._typed:
            self._has_input.clear()
            self._is_ready = True
            self._screen.refresh()
            await self._has_input.wait()
        return self._typed.popleft()

    async def _handle(self, text: str) -> bool:
        """Run a command or send a message; returns whether to continue."""
        self._code = exits.OK
        if not text.startswith("/") or text.startswith("//"):
            return await self._send(text.removeprefix("/") if text.startswith("//") else text)
        name, _, rest = text.strip().partition(" ")
        if name == "/quit":
            return False
        await self._run_command(name, rest.strip())
        return True

    async def _run_command(self, name: str, rest: str) -> None:
        if name == "/output":
            self._show_output(rest)
            return
        if name not in COMMANDS:
            similar = did_you_mean(name, COMMANDS) or ";"
            print_err(f"no such command: {name}{similar} {HELP_HINT}")
            return
        before = self._position
        try:
            if name == "/undo":
                await self._undo()
                return
            self._position = await run_command(name, rest, before)
            if self._position.session != before.session:
                await self._changed_session()
        except EvoClawError as problem:
            print_err(str(problem))

    async def _show(self, name: str, rest: str) -> None:
        """Run a command that changes nothing, beside a run that changes the position at its end."""
        if name == "/output":
            self._show_output(rest)
            return
        try:
            await run_command(name, rest, self._position)
        except EvoClawError as problem:
            print_err(str(problem))

    async def _undo(self) -> None:
        """Undo the last run; asks for the approval that its agent needs for a write."""
        if not self._position.run:
            raise ConfigError("nothing to undo yet: send a message first")
        async with open_client(os.environ) as client:
            found = await service_api.undo_run(client, self._position.run)
            for line in found.lines():
                print_err(line)
            is_undone = False
            for machine in found.machines:
                if machine.state == "waiting":
                    is_undone |= await self._watch_undo(client, machine.run_id)
                is_undone |= machine.state == "undone"
        if is_undone:
            # The conversation continues: the model must not rely on what it wrote.
            self._position = replace(self._position, note=UNDO_NOTE)

    async def _watch_undo(self, client: ServiceClient, run_id: str) -> bool:
        """Show the run that undoes another one to its end; returns whether it did."""
        run = self._run = InteractiveRun(client, self._view, self._user)
        try:
            await run.resume(await service_api.get_run(client, run_id))
        finally:
            self._run = None
            self._view.stop()
        records = await service_api.get_records(client, run_id)
        ends = [record.event for record in records if isinstance(record.event, CallFinished)]
        return any(end.result.error is None for end in ends)

    async def _changed_session(self) -> None:
        self._view.figures.clear()
        if self._position.session:
            async with open_client(os.environ) as client:
                await self._show_last_exchange(client)

    async def _send(self, text: str) -> bool:
        """Send a message, then those typed after its run ended; returns whether to continue."""
        unsent = [text]
        while unsent:
            try:
                has_left, unsent = await self._watch(None, "\n".join(unsent))
            except (ServiceRefused, ServiceNotRunning) as problem:
                print_err(f"evoclaw: {problem}")
                self._code = exits.FAILED
                return True
            if has_left:
                return False
        return True

    async def _watch(
        self, unfinished: dict[str, JSON] | None, message: str | None
    ) -> tuple[bool, list[str]]:
        """Show a run to its end: a new one, or one that was started before."""
        async with open_client(os.environ) as client:
            run = self._run = InteractiveRun(client, self._view, self._user)
            while self._typed:
                run.handle_input(self._typed.popleft())
            try:
                if message is not None:
                    end = await run.start(run_request(self._position, message))
                else:
                    end = await run.resume(unfinished or {})
            finally:
                self._run = None
                self._view.stop()
        self._position = self._position.after(run.run)
        self._code = exits.CANCELLED if end is None else exits.BY_STOP[end.stop]
        self._start(self._fetch())
        return run.has_left, run.unsent

    def _receive(self, text: str) -> None:
        """Handle what the user sent: a message, a command, or a steering message."""
        self._interrupts = 0
        self._screen.print(self._screen.wrapped(_quoted(text)))
        name, _, rest = text.strip().partition(" ")
        if self._run is None:
            self._is_ready = False
            self._typed.append(text)
            self._has_input.set()
        elif name in COMMANDS_DURING_RUN:
            self._start(self._show(name, rest.strip()))
        else:
            self._run.handle_input(text)

    def _interrupt(self, has_discarded: bool) -> None:
        if self._run is not None:
            self._run.interrupt()
            return
        self._interrupts = 0 if has_discarded else self._interrupts + 1
        if self._interrupts > 1:
            self._leave()
        elif self._interrupts:
            print_err("(to leave, press Ctrl-C again or Ctrl-D, or type /quit)")

    def _leave(self, code: int | None = None) -> None:
        if self._conversation is not None:
            self._conversation.cancel()
        if code is not None:
            self._code = code

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _keep_drawing(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            if self._run is not None:
                self._screen.refresh()

    async def _fetch(self) -> None:
        """Fetch what the status line and the Tab key show; without them the chat works too."""
        with suppress(EvoClawError):
            async with open_client(os.environ) as client:
                await self._names.fetch(client)
                self._left = await service_api.budget_left(client)
                if session := self._position.session:
                    for run in await service_api.list_session_runs(client, session):
                        tokens, cost = service_api.run_figures(run)
                        if run.get("state") == "ended" and tokens:
                            self._view.figures.set(text_of(run, "run_id"), tokens, cost)
        self._screen.refresh()

    async def _show_last_exchange(self, client: ServiceClient) -> None:
        asked, answer = await service_api.last_exchange(client, self._position.session)
        if asked:
            self._screen.print(self._screen.wrapped(_quoted(asked[:MAX_SHOWN_QUESTION_CHARS])))
        if answer:
            self._view.print_markdown(answer)

    def _show_output(self, rest: str) -> None:
        number = int(rest) if rest.isdecimal() and rest != "0" else 1
        kept = self._view.outputs
        if number > len(kept):
            print_err("no such result: /output shows the last one, /output 2 the one before it")
            return
        found = kept[-number]
        self._screen.print(f"{found.title}:\n{found.text.rstrip()}\n")

    def _live(self, columns: int, rows: int) -> str:
        return self._view.live(columns, rows) if self._run is not None else ""

    def _status(self) -> str:
        """The state, and what the next message works with."""
        where, figures = self._position, self._view.figures
        machine = where.on or self._names.default_edge
        parts = [
            self._state(),
            clean(where.agent or self._names.default_agent),
            clean(where.model or self._view.model),
            f"on {clean(machine)}" if machine else "",
            f"{_short_number(figures.tokens)} tokens" if figures.tokens else "",
            f"${figures.cost:.4f}" if figures.cost else "",
            self._left,
            f"{len(where.attached)} attached" if where.attached else "",
        ]
        return " · ".join(part for part in parts if part)

    def _state(self) -> str:
        if self._screen.is_asking:
            return "waiting for you"
        return "ready" if self._is_ready else "running"


def _quoted(text: str) -> str:
    """A message of the user, as it stays on the screen."""
    first, *more = clean(text).rstrip().splitlines() or [""]
    return "".join(f"{line}\n" for line in (PROMPT + first, *(f"  {line}" for line in more)))


def _short_number(number: int) -> str:
    if number < 10_000:
        return str(number)
    return f"{number / 1000:.0f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"

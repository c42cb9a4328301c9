"""The user at the terminal: answers approvals and questions, and cancels with Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from evoclaw.cli import exits
from evoclaw.cli.terminal_text import clean, on_machine
from evoclaw.core.deadline import Deadline
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Ask, Decision
from evoclaw.core.tools import Call
from evoclaw.governance.approvals import scope_of
from evoclaw.tools.question import Question, UserAnswer, parse_answer

_MAX_SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class TerminalApprover:
    """The approver that asks the user at the terminal."""

    keyboard: int
    """The descriptor of the terminal to read from."""
    screen: TextIO

    async def approve(self, call: Call, ask: Ask) -> Approval:
        """Show the whole call and read one line."""
        covers, reason = scope_of(call, ask).description, ask.for_people or ask.reason
        return await self.ask(call.name, call.arguments, reason, covers, call.machine)

    async def ask(
        self, tool: str, arguments: dict[str, JSON], reason: str, covers: str, machine: str = ""
    ) -> Approval:
        """Show the call and its machine, why it needs approval, what `always` covers; read a line.

        Args:
            tool: The name of the tool.
            arguments: Of the call.
            reason: Why it needs an approval.
            covers: The calls that `always` would approve.
            machine: Where the call would run; empty for this machine.
        """
        shown = format_arguments(arguments)
        self.screen.write(f"\n{clean(tool)}{on_machine(machine)} wants to run:\n{shown}\n")
        self.screen.write(f"  ({clean(reason)})\n")
        self.screen.write(f"always: {clean(covers)}\n")
        match (answer := await self._read_answer()).lower():
            case "y" | "yes":
                return Approval(Decision.ONCE)
            case "a" | "always":
                return Approval(Decision.SESSION)
            case "" | "n" | "no":
                return Approval(Decision.DENY, "the user said no")
            case _:
                return Approval(Decision.DENY, f"the user said: {answer}")

    async def _read_answer(self) -> str:
        self.screen.write("Allow? [y]es, [a]lways, [n]o, or say why not: ")
        self.screen.flush()
        return (await read_line(self.keyboard)).strip()


@dataclass(frozen=True, slots=True)
class TerminalPerson:
    """The user at the terminal, who answers questions of a run."""

    keyboard: int
    screen: TextIO

    async def ask(self, question: Question) -> UserAnswer | None:
        """Show the question and its options; read one line."""
        self.screen.write(f"\n{clean(question.text)}\n")
        for number, option in enumerate(question.options, 1):
            self.screen.write(f"  {number}. {clean(option)}\n")
        several = ", several with commas" if question.multiple else ""
        hint = f"A number{several}, or free text" if question.options else "Your answer"
        self.screen.write(f"{hint}: ")
        self.screen.flush()
        return parse_answer(question, await read_line(self.keyboard))


def format_arguments(arguments: dict[str, JSON]) -> str:
    """Every argument, cleaned; long ones are cut in the middle, with the number of lines."""
    shown: list[str] = []
    for name, value in arguments.items():
        text = clean(value) if isinstance(value, str) else clean(repr(value))
        lines = text.splitlines() or [""]
        cut = len(lines) - 2 * _MAX_SHOWN_LINES
        if cut > 0:  # the end can matter as much as the beginning
            cut_out = f"[… {cut} lines not shown …]"
            lines = [*lines[:_MAX_SHOWN_LINES], cut_out, *lines[-_MAX_SHOWN_LINES:]]
        shown.append(f"  {clean(name)}: {lines[0]}")
        shown += [f"      {line}" for line in lines[1:]]
    return "\n".join(shown)


async def read_line(descriptor: int) -> str:
    """Read a line without a thread, so that a cancelled run does not hang on the keyboard."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def readable() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, 4_096).decode(errors="replace"))

    loop.add_reader(descriptor, readable)
    try:
        return await line
    finally:
        loop.remove_reader(descriptor)


@contextmanager
def cancel_on_interrupt(deadline: Deadline, screen: TextIO) -> Generator[None]:
    """Cancel the run on Ctrl-C; a second Ctrl-C kills the process."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if deadline.cancelled:
            os._exit(exits.CANCELLED)
        screen.write("\ncancelling … (Ctrl-C again to kill)\n")
        screen.flush()
        deadline.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def is_interactive() -> bool:
    """Whether a user is at a terminal and can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()

"""One run of the service at a terminal: watch it, steer it, cancel it, answer its questions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager
from typing import TextIO

from evoclaw.cli import service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.chat_commands import COMMANDS
from evoclaw.cli.client import ServiceClient, ServiceRefused
from evoclaw.cli.service_api import get_run, watch_records
from evoclaw.cli.terminal import TerminalApprover, TerminalPerson, read_line
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import CallJudged, Record, RunFinished, StopReason
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Sink
from evoclaw.tools.question import Question, answer_problem

APPROVAL_PROMPT_DELAY_S = 0.5
"""Seconds without a record after a verdict `ask`; then the run waits for its user."""
LAST_INPUT_TIMEOUT_S = 5.0
"""Seconds for the last messages to reach the service when the run has ended."""


class InteractiveRun:
    """A run that is shown to its user, who can steer it and answer it."""

    def __init__(
        self, client: ServiceClient, renderer: Sink, screen: TextIO, keyboard: int | None
    ) -> None:
        """Create it; no run is started yet.

        Args:
            client: The service of the run.
            renderer: Shows its records.
            screen: Where prompts and notes are written.
            keyboard: The file descriptor to read from; None without a user.
        """
        self._client, self._renderer = client, renderer
        client.on_lost = self._print
        self._screen, self._keyboard = screen, keyboard
        self.run: dict[str, JSON] = {}
        """The run as it was when it was started or resumed."""
        self.has_left = False
        """Whether the user wants to leave the chat."""
        self.unsent: list[str] = []
        """Messages that were typed after the run ended: they start the next one."""
        self._seq = 0
        self._interrupts = 0
        self._watching: asyncio.Task[RunFinished | None] | None = None
        self._typing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()

    async def start(self, request: dict[str, JSON]) -> RunFinished | None:
        """Start a run and show it until it ends; None if the user left before."""
        return await self._until_left(self._start(request))

    async def resume(self, run: dict[str, JSON]) -> RunFinished | None:
        """Show a run that was started before, from now on."""
        self.run = run
        return await self._until_left(self._follow())

    async def _start(self, request: dict[str, JSON]) -> RunFinished | None:
        self.run = await service_api.start_run(self._client, request)
        return await self._follow()

    async def _until_left(
        self, work: Coroutine[None, None, RunFinished | None]
    ) -> RunFinished | None:
        watching = self._watching = asyncio.create_task(work)
        with _on_interrupt(self._interrupted):
            try:
                await asyncio.wait([watching])
                if self._background:
                    await asyncio.wait(self._background, timeout=LAST_INPUT_TIMEOUT_S)
            finally:
                for task in (watching, *self._background):
                    task.cancel()
                await asyncio.wait([watching, *self._background])
        return None if watching.cancelled() else watching.result()

    @property
    def _run_id(self) -> str:
        return str(self.run.get("run_id", ""))

    async def _follow(self) -> RunFinished | None:
        while True:
            self._start_reading()
            try:
                end = await self._show_until_pause()
            finally:
                await self._stop_reading()
            if end is None or end.stop is not StopReason.WAITING or not await self._ask():
                return end

    async def _show_until_pause(self) -> RunFinished | None:
        """Show records until the run ends or waits."""
        upcoming: asyncio.Task[Record | None] | None = None
        asked = False
        async with aclosing(watch_records(self._client, self._run_id, self._seq)) as records:
            try:
                while True:
                    upcoming = upcoming or asyncio.create_task(_next(records))
                    await asyncio.wait(
                        [upcoming], timeout=APPROVAL_PROMPT_DELAY_S if asked else None
                    )
                    if not upcoming.done():
                        asked = False
                        await self._ask()
                        continue
                    record, upcoming = upcoming.result(), None
                    if record is None:
                        return None
                    asked = self._show_record(record)
                    if isinstance(record.event, RunFinished):
                        return record.event
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.wait([upcoming])

    def _show_record(self, record: Record) -> bool:
        """Show one record; returns whether it needs an approval."""
        self._seq = record.seq
        self._renderer.receive(record)
        return isinstance(record.event, CallJudged) and record.event.verdict == "ask"

    async def _ask(self) -> bool:
        """Ask the user what the run waits for; returns whether the run can continue."""
        if self._keyboard is None:
            return False
        listened = self._typing is not None
        await self._stop_reading()
        asking = self._asking = asyncio.create_task(self._ask_all(self._keyboard))
        try:
            await asyncio.wait([asking])
            return True if asking.cancelled() else asking.result()
        finally:
            self._asking = None
            asking.cancel()
            await asyncio.wait([asking])
            if listened:
                self._start_reading()

    async def _ask_all(self, keyboard: int) -> bool:
        if why := identify_answerer().refusal_reason("local"):
            self._print(why)
            return False
        done, approver = 0, TerminalApprover(keyboard, self._screen, COMMANDS)
        for call in await service_api.list_pending_approvals(self._client, self._run_id):
            approval = await approver.ask(
                call.tool, call.arguments, call.reason, call.covers, call.machine
            )
            done += await self._accepted(
                service_api.answer_approval(self._client, call.id, approval)
            )
        for question in await service_api.list_questions(self._client, self.run):
            done += await self._answer(question, TerminalPerson(keyboard, self._screen))
        if done or (await get_run(self._client, self._run_id)).get("state") != "waiting":
            return True
        self._print("the run waits for an answer from elsewhere; see `evoclaw approvals`")
        return False

    async def _answer(self, question: Question, person: TerminalPerson) -> bool:
        while (answer := await person.ask(question)) is not None:
            if not (problem := answer_problem(question, answer)):
                return await self._accepted(
                    service_api.answer_question(self._client, self.run, question, answer)
                )
            self._print(problem)
        return False

    async def _accepted(self, request: Coroutine[None, None, object]) -> bool:
        """Whether the service accepted an answer; prints why not, e.g. another user was first."""
        try:
            await request
        except ServiceRefused as problem:
            self._print(str(problem))
            return False
        return True

    def _start_reading(self) -> None:
        """Send what the user types to the run, from now on."""
        if self._keyboard is not None:
            self._typing = asyncio.create_task(self._read_input(self._keyboard))

    async def _stop_reading(self) -> None:
        typing, self._typing = self._typing, None
        if typing is not None:
            typing.cancel()
            await asyncio.wait([typing])

    async def _read_input(self, keyboard: int) -> None:
        while line := await read_line(keyboard):
            match line.strip():
                case "":
                    pass
                case "/cancel":
                    self._run_in_background(self._cancel())
                case "/quit":
                    self._leave()
                case text if text.startswith("/") and not text.startswith("//"):
                    self._print("during a run: type a message to steer it, /cancel, or /quit")
                case text:
                    self._run_in_background(
                        self._steer(text.removeprefix("/") if text[:2] == "//" else text)
                    )

    async def _steer(self, text: str) -> None:
        async with self._in_order:
            try:
                await service_api.steer_run(self._client, self._run_id, text)
            except EvoClawError as problem:
                if not isinstance(problem, ServiceRefused) or problem.status not in (404, 409):
                    self._print(f"message not sent: {problem}")
                else:
                    self.unsent.append(text)  # the run had just ended

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or not self.run:
            self._leave()
            return
        self._print("\ncancelling … (Ctrl-C again to leave)")
        self._run_in_background(self._cancel())

    async def _cancel(self) -> None:
        await self._accepted(service_api.cancel_run(self._client, self._run_id))
        if self._asking is not None:
            self._asking.cancel()

    def _leave(self) -> None:
        self.has_left = True
        if self._watching is not None:
            self._watching.cancel()

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _print(self, text: str) -> None:
        self._screen.write(f"{text}\n")
        self._screen.flush()


async def _next(records: AsyncGenerator[Record]) -> Record | None:
    return await anext(records, None)


@contextmanager
def _on_interrupt(then: Callable[[], None]) -> Generator[None]:
    """Call `then` on Ctrl-C while the block runs."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, then)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)

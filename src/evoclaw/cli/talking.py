"""One run of the service at a terminal: watch it, steer it, cancel it, answer its questions."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager
from typing import TextIO

from evoclaw.cli import routes
from evoclaw.cli.approvals import person_here
from evoclaw.cli.client import Client, Refused
from evoclaw.cli.render import Face
from evoclaw.cli.terminal import AtTerminal, PersonAtTerminal, read_line
from evoclaw.cli.watching import look, watch
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import CallJudged, Record, RunFinished, StopReason
from evoclaw.core.messages import JSON
from evoclaw.tools.question import Question, problem_of

LOOK = 0.5
"""Seconds without a record after a verdict `ask`; then the run waits for its user."""
LAST = 5.0
"""Seconds for the last messages to reach the service when the run has ended."""


class Talk:
    """A run that is shown to its user, who can steer it and answer it."""

    def __init__(self, client: Client, face: Face, screen: TextIO, keyboard: int | None) -> None:
        """Create it; no run is started yet.

        Args:
            client: The service of the run.
            face: Shows its records.
            screen: Where prompts and notes are written.
            keyboard: The file descriptor to read from; None without a user.
        """
        self._client, self._face = client, face
        self._screen, self._keyboard = screen, keyboard
        self.run: dict[str, JSON] = {}
        """The run as it was when it was started or resumed."""
        self.left = False
        """Whether the user wants to leave the chat."""
        self.unsent: list[str] = []
        """Messages that were typed after the run ended: they start the next one."""
        self._seq = 0
        self._interrupts = 0
        self._watching: asyncio.Task[RunFinished | None] | None = None
        self._typing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()

    async def say(self, errand: dict[str, JSON]) -> RunFinished | None:
        """Start a run and show it until it ends; None if the user left before."""
        return await self._until_left(self._begin(errand))

    async def take_up(self, run: dict[str, JSON]) -> RunFinished | None:
        """Show a run that was started before, from now on."""
        self.run = run
        return await self._until_left(self._follow())

    async def _begin(self, errand: dict[str, JSON]) -> RunFinished | None:
        self.run = await routes.begin(self._client, errand)
        return await self._follow()

    async def _until_left(
        self, work: Coroutine[None, None, RunFinished | None]
    ) -> RunFinished | None:
        watching = self._watching = asyncio.create_task(work)
        with _on_interrupt(self._interrupted):
            try:
                await asyncio.wait([watching])
                if self._beside:
                    await asyncio.wait(self._beside, timeout=LAST)
            finally:
                for task in (watching, *self._beside):
                    task.cancel()
                await asyncio.wait([watching, *self._beside])
        return None if watching.cancelled() else watching.result()

    @property
    def _run_id(self) -> str:
        return str(self.run.get("run_id", ""))

    async def _follow(self) -> RunFinished | None:
        while True:
            self._listen()
            try:
                end = await self._show()
            finally:
                await self._hush()
            if end is None or end.stop is not StopReason.WAITING or not await self._ask():
                return end

    async def _show(self) -> RunFinished | None:
        """Show records until the run ends or waits."""
        upcoming: asyncio.Task[Record | None] | None = None
        asked = False
        async with aclosing(watch(self._client, self._run_id, self._seq)) as records:
            try:
                while True:
                    upcoming = upcoming or asyncio.create_task(_next(records))
                    await asyncio.wait([upcoming], timeout=LOOK if asked else None)
                    if not upcoming.done():
                        asked = False
                        await self._ask()
                        continue
                    record, upcoming = upcoming.result(), None
                    if record is None:
                        return None
                    asked = self._shown(record)
                    if isinstance(record.event, RunFinished):
                        return record.event
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.wait([upcoming])

    def _shown(self, record: Record) -> bool:
        """Show one record; returns whether it needs an approval."""
        self._seq = record.seq
        self._face.receive(record)
        return isinstance(record.event, CallJudged) and record.event.verdict == "ask"

    async def _ask(self) -> bool:
        """Ask the user what the run waits for; returns whether the run can continue."""
        if self._keyboard is None:
            return False
        listened = self._typing is not None
        await self._hush()
        asking = self._asking = asyncio.create_task(self._ask_all(self._keyboard))
        try:
            await asyncio.wait([asking])
            return True if asking.cancelled() else asking.result()
        finally:
            self._asking = None
            asking.cancel()
            await asyncio.wait([asking])
            if listened:
                self._listen()

    async def _ask_all(self, keyboard: int) -> bool:
        if why := person_here().why_not("local"):
            self._tell(why)
            return False
        done, approver = 0, AtTerminal(keyboard, self._screen)
        for call in await routes.waiting(self._client, self._run_id):
            approval = await approver.allow(call.tool, call.arguments, call.reason, call.covers)
            done += await self._took(routes.answer(self._client, call.id, approval))
        for question in await routes.questions(self._client, self.run):
            done += await self._answer(question, PersonAtTerminal(keyboard, self._screen))
        if done or (await look(self._client, self._run_id)).get("state") != "waiting":
            return True
        self._tell("the run waits for an answer from elsewhere; see `evoclaw approvals`")
        return False

    async def _answer(self, question: Question, person: PersonAtTerminal) -> bool:
        while (answer := await person.ask(question)) is not None:
            if not (problem := problem_of(question, answer)):
                return await self._took(routes.reply(self._client, self.run, question, answer))
            self._tell(problem)
        return False

    async def _took(self, asking: Coroutine[None, None, object]) -> bool:
        """Whether the service accepted an answer; prints why not, e.g. another user was first."""
        try:
            await asking
        except Refused as problem:
            self._tell(str(problem))
            return False
        return True

    def _listen(self) -> None:
        """Send what the user types to the run, from now on."""
        if self._keyboard is not None:
            self._typing = asyncio.create_task(self._read(self._keyboard))

    async def _hush(self) -> None:
        typing, self._typing = self._typing, None
        if typing is not None:
            typing.cancel()
            await asyncio.wait([typing])

    async def _read(self, keyboard: int) -> None:
        while line := await read_line(keyboard):
            match line.strip():
                case "":
                    pass
                case "/cancel":
                    self._do(self._cancel())
                case "/quit":
                    self._leave()
                case text if text.startswith("/") and not text.startswith("//"):
                    self._tell("during a run: type a message to steer it, /cancel, or /quit")
                case text:
                    self._do(self._say(text.removeprefix("/") if text[:2] == "//" else text))

    async def _say(self, text: str) -> None:
        async with self._in_order:
            try:
                await routes.steer(self._client, self._run_id, text)
            except EvoClawError as problem:
                if not isinstance(problem, Refused) or problem.status not in (404, 409):
                    self._tell(f"message not sent: {problem}")
                else:
                    self.unsent.append(text)  # the run had just ended

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or not self.run:
            self._leave()
            return
        self._tell("\ncancelling … (Ctrl-C again to leave)")
        self._do(self._cancel())

    async def _cancel(self) -> None:
        await self._took(routes.cancel(self._client, self._run_id))
        if self._asking is not None:
            self._asking.cancel()

    def _leave(self) -> None:
        self.left = True
        if self._watching is not None:
            self._watching.cancel()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _tell(self, text: str) -> None:
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

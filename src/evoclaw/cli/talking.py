"""One run of the service at a terminal: watched, steered, cancelled; its questions answered."""

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
"""Seconds of silence after a call had to be asked about: then somebody is waited for."""
LAST = 5.0
"""Seconds that what was typed last has to reach the service."""


class Talk:
    """A run on the screen, and the person in front of it."""

    def __init__(self, client: Client, face: Face, screen: TextIO, keyboard: int | None) -> None:
        """Choose what is shown where.

        Args:
            client: Whose run it is.
            face: How its records are shown.
            screen: Where the person is spoken to.
            keyboard: The descriptor that the person types at; None if nobody is there.
        """
        self._client, self._face = client, face
        self._screen, self._keyboard = screen, keyboard
        self.run: dict[str, JSON] = {}
        """The run as it was when it began, or was taken up."""
        self.left = False
        """Whether the person wants to leave."""
        self.unsent: list[str] = []
        """What was typed too late for the run: it is for the next one."""
        self._seq = 0
        self._interrupts = 0
        self._watching: asyncio.Task[RunFinished | None] | None = None
        self._typing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[bool] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()

    async def say(self, errand: dict[str, JSON]) -> RunFinished | None:
        """Begin a run and show it until it ends; None if it was left before, or never began."""
        return await self._until_left(self._begin(errand))

    async def take_up(self, run: dict[str, JSON]) -> RunFinished | None:
        """Show a run that was begun before, from now on."""
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
        """Show records until one says that the run ended or waits."""
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
        """Show one record; whether a person is to be asked after it."""
        self._seq = record.seq
        self._face.receive(record)
        return isinstance(record.event, CallJudged) and record.event.verdict == "ask"

    async def _ask(self) -> bool:
        """Ask the person what the run waits for; whether there is anything to go on with."""
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
        for one in await routes.waiting(self._client, self._run_id):
            said = await approver.allow(one.tool, one.arguments, one.reason, one.covers)
            done += await self._took(routes.answer(self._client, one.id, said))
        for question in await routes.questions(self._client, self.run):
            done += await self._answer(question, PersonAtTerminal(keyboard, self._screen))
        if done or (await look(self._client, self._run_id)).get("state") != "waiting":
            return True
        self._tell("it waits for something that cannot be answered here; see `evoclaw approvals`")
        return False

    async def _answer(self, question: Question, person: PersonAtTerminal) -> bool:
        while (answer := await person.ask(question)) is not None:
            if not (problem := problem_of(question, answer)):
                return await self._took(routes.reply(self._client, self.run, question, answer))
            self._tell(problem)
        return False

    async def _took(self, asking: Coroutine[None, None, object]) -> bool:
        """Whether the service took it; why not is shown, as somebody else may have been first."""
        try:
            await asking
        except Refused as problem:
            self._tell(str(problem))
            return False
        return True

    def _listen(self) -> None:
        """What is typed is said to the run, from now on."""
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
                    self._tell("while a run goes on: say something to it, /cancel, or /quit")
                case text:
                    self._do(self._say(text.removeprefix("/") if text[:2] == "//" else text))

    async def _say(self, text: str) -> None:
        async with self._in_order:
            try:
                await routes.steer(self._client, self._run_id, text)
            except EvoClawError as problem:
                if not isinstance(problem, Refused) or problem.status not in (404, 409):
                    self._tell(f"not said: {problem}")
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
    """Have Ctrl-C do something else while the block runs."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, then)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)

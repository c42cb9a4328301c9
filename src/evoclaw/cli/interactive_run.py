"""One run of the service that is shown to its user, who can steer it, cancel it and answer it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager, nullcontext
from typing import TYPE_CHECKING

from evoclaw.cli import service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, ServiceRefused
from evoclaw.cli.output import print_err
from evoclaw.cli.service_api import get_run, watch_records
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import CallJudged, Record, RunFinished, StopReason
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Sink
from evoclaw.tools.question import Question, answer_problem

if TYPE_CHECKING:
    from evoclaw.cli.chat_user import ChatUser

APPROVAL_PROMPT_DELAY_S = 0.5
"""Seconds without a record after a verdict `ask`; then the run waits for its user."""
LAST_INPUT_TIMEOUT_S = 5.0
"""Seconds for the last messages to reach the service when the run has ended."""


class InteractiveRun:
    """A run that is shown to its user, who can steer it and answer it."""

    def __init__(self, client: ServiceClient, renderer: Sink, user: ChatUser | None = None) -> None:
        """Create it; no run is started yet.

        Args:
            client: The service of the run.
            renderer: Shows its records.
            user: Answers its questions; None without a user.
        """
        self._client, self._renderer, self._user = client, renderer, user
        client.on_lost = print_err
        self.run: dict[str, JSON] = {}
        """The run as it was when it was started or resumed."""
        self.has_left = False
        """Whether the user wants to leave the chat."""
        self.unsent: list[str] = []
        """Messages that were typed after the run ended: they start the next one."""
        self._early: list[str] = []
        """What was typed before the service had started the run."""
        self._seq = 0
        self._interrupts = 0
        self._watching: asyncio.Task[RunFinished | None] | None = None
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
        early, self._early = self._early, []
        for typed in early:
            self.handle_input(typed)
        return await self._follow()

    async def _until_left(
        self, work: Coroutine[None, None, RunFinished | None]
    ) -> RunFinished | None:
        watching = self._watching = asyncio.create_task(work)
        with _on_interrupt(self.interrupt) if self._user is None else nullcontext():
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
            end = await self._show_until_pause()
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
        if self._user is None:
            return False
        asking = self._asking = asyncio.create_task(self._ask_all(self._user))
        try:
            await asyncio.wait([asking])
            return True if asking.cancelled() else asking.result()
        finally:
            self._asking = None
            asking.cancel()
            await asyncio.wait([asking])

    async def _ask_all(self, user: ChatUser) -> bool:
        if why := identify_answerer().refusal_reason("local"):
            print_err(why)
            return False
        done = 0
        for call in await service_api.list_pending_approvals(self._client, self._run_id):
            approval = await user.approve(call)
            done += await self._accepted(
                service_api.answer_approval(self._client, call.id, approval)
            )
        for question in await service_api.list_questions(self._client, self.run):
            done += await self._answer(question, user)
        if done or (await get_run(self._client, self._run_id)).get("state") != "waiting":
            return True
        print_err("someone else has to answer this run; see `evoclaw approvals`")
        return False

    async def _answer(self, question: Question, user: ChatUser) -> bool:
        while (answer := await user.answer(question)) is not None:
            if not (problem := answer_problem(question, answer)):
                return await self._accepted(
                    service_api.answer_question(self._client, self.run, question, answer)
                )
            print_err(problem)
        return False

    async def _accepted(self, request: Coroutine[None, None, object]) -> bool:
        """Whether the service accepted an answer; prints why not, e.g. another user was first."""
        try:
            await request
        except ServiceRefused as problem:
            print_err(str(problem))
            return False
        return True

    def handle_input(self, typed: str) -> None:
        """Send what the user typed during the run to it, or cancel or leave it."""
        if not self.run and typed.strip() != "/quit":
            self._early.append(typed)
            return
        match typed.strip():
            case "":
                pass
            case "/cancel":
                self._run_in_background(self._cancel())
            case "/quit":
                self.leave()
            case text if text.startswith("/") and not text.startswith("//"):
                print_err("during a run, you can type a message to steer it, /cancel or /quit")
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
                    print_err(f"message not sent: {problem}")
                else:
                    self.unsent.append(text)  # the run had just ended

    def interrupt(self) -> None:
        """Cancel the run; the second time, leave it as it is."""
        self._interrupts += 1
        if self._interrupts > 1 or not self.run:
            self.leave()
            return
        print_err("\n" * (self._user is None) + "cancelling … (Ctrl-C again to leave)")
        self._run_in_background(self._cancel())

    async def _cancel(self) -> None:
        await self._accepted(service_api.cancel_run(self._client, self._run_id))
        if self._asking is not None:
            self._asking.cancel()

    def leave(self) -> None:
        """Stop watching; the run continues at the service."""
        self.has_left = True
        if self._watching is not None:
            self._watching.cancel()

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


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

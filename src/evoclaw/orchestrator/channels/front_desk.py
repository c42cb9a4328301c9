"""The channel dispatcher: takes messages from all channels, starts runs, delivers the answers.

It survives a crash: a message is stored before it is answered, its run starts exactly once, and
the sender is told when the run waits for a person and when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import CLEAN, Label
from evoclaw.orchestrator.channels import answers
from evoclaw.orchestrator.channels.deliveries import Deliveries
from evoclaw.orchestrator.channels.following import AGAIN, Following
from evoclaw.orchestrator.channels.letters import Answer, Channel, Letter, Refused, State, Taken
from evoclaw.orchestrator.errands import Errand
from evoclaw.orchestrator.errands import State as RunState
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.store.channels import (
    DEAD,
    FAILED,
    STARTED,
    TAKEN,
    ChannelStore,
    NewLetter,
    StoredLetter,
)
from evoclaw.tools.question import Question, to_answer

logger = logging.getLogger(__name__)
MOST_OPEN = 10_000
"""Messages whose answers are pending; further messages are refused."""
KEPT = 30 * 86_400.0
"""Of messages and answers that are finished."""
LOOK = 60.0
"""Between two searches for orphaned messages and for old ones."""
PATIENCE = 86_400.0
"""After which an answer becomes a dead letter, unless the channel configures another time."""


class GivenUp(msgspec.Struct, frozen=True):
    """An answer that could not be delivered, as the operator sees it."""

    id: str
    channel: str
    sender: str
    answer: Answer
    attempts: int
    problem: str
    """Why the last attempt failed."""
    made_at: float


class FrontDesk:
    """Dispatches the messages of all channels in a process; channels use its `MessageHandler`."""

    def __init__(
        self,
        store: ChannelStore,
        runs: Runs,
        talks: Conversations,
        channels: Sequence[Channel],
        *,
        agent: str = "",
        patience: Mapping[str, float] | None = None,
    ) -> None:
        """Prepare to serve channels.

        Args:
            store: Where messages and answers are stored.
            runs: Starts the runs that answer.
            conversations: Opens sessions, of any tenant.
            channels: The channels to serve.
            agent: The agent that answers if the channel names none.
            delivery_timeouts_s: By channel, after which an answer that cannot be delivered
                becomes a dead letter; a day by default.
        """
        self._store, self._runs, self._talks, self._agent = store, runs, talks, agent
        self._channels = {channel.name: channel for channel in channels}
        self.counts: Counter[str] = Counter()
        """Messages accepted and refused, answers delivered and given up."""
        timeouts = patience or {}
        self._deliveries = {
            name: Deliveries(store, channel, timeouts.get(name, PATIENCE), self.counts)
            for name, channel in self._channels.items()
        }
        self._serves = False
        self._taking: set[asyncio.Task[Taken]] = set()
        self._open: dict[int, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve all channels until the block ends; then all tasks have ended."""
        tasks = [self._begun("channel maintenance", self._tidy())]
        try:
            self._serves = True
            await self._take_up(0.0)
            for name, channel in self._channels.items():
                tasks.append(self._begun(f"deliveries of {name}", self._deliveries[name].run()))
                tasks.append(self._begun(f"channel {name}", channel.serve(self)))
            yield
        finally:
            self._serves = False
            running = [*tasks, *self._open.values(), *self._taking]
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _begun(self, what: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        def on_done(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                # The other channels continue; the operator must know that this one stopped.
                logger.error("%s ended unexpectedly", what, exc_info=task.exception())

        task = asyncio.create_task(work, name=what)
        task.add_done_callback(on_done)
        return task

    @property
    def unanswered(self) -> int:
        """How many messages this process is answering, including those that wait for a person."""
        return len(self._open)

    async def take(self, letter: Letter) -> Taken:
        """Store a message and start answering it; see `MessageHandler.accept`."""
        if not self._serves:
            raise Refused(
                "not_serving", "this process does not accept messages now; try again later"
            )
        if len(self._open) >= MOST_OPEN:
            self.counts["refused: too_many"] += 1
            raise Refused("too_many", "too many messages are being answered; send it again later")
        # If the caller is cancelled, the message is still answered, or it was not stored.
        task = asyncio.create_task(self._take(letter))
        self._taking.add(task)
        task.add_done_callback(self._taken)
        return await asyncio.shield(task)

    def _taken(self, task: asyncio.Task[Taken]) -> None:
        self._taking.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: the channel that awaits it may have been cancelled

    async def _take(self, letter: Letter) -> Taken:
        new = _new(letter)
        stored, fresh = await self._store.keep(new)
        if stored.sha256 != new.sha256:
            self.counts["refused: conflict"] += 1
            raise Refused(
                "conflict", "this message id was used for another message; send it with a new id"
            )
        if not fresh:
            self.counts["came again"] += 1
            return Taken(State.ACCEPTED, stored.run_id, fresh=False)
        self.counts["taken"] += 1
        try:
            result = await self._begin(stored, letter)
        except EvoClawError:
            # The message is stored; the run is started later.
            result = Taken(State.ACCEPTED)
            self._answer(stored)
        if result.run_id:
            self._answer(replace(stored, state=STARTED, run_id=result.run_id))
        return result

    async def say_again(self, letter: Letter) -> bool:
        """Send the last answer to a message once more; False if there is no answer yet."""
        stored = await self._store.find(letter.tenant, letter.channel, letter.sender, letter.id)
        resent = stored is not None and await self._store.say_again(stored)
        self._deliveries[letter.channel].wake()
        return resent

    async def hurry(self, channel: str) -> None:
        """Deliver the pending answers of a channel now: it is connected again."""
        await self._store.hurry(channel)
        self._deliveries[channel].wake()

    async def given_up(self, tenant: str) -> Sequence[GivenUp]:
        """A tenant's answers that could not be delivered, the newest first."""
        found: list[GivenUp] = []
        for delivery in await self._store.deliveries(tenant, DEAD):
            message = msgspec.json.decode(delivery.letter, type=Letter)
            found.append(
                GivenUp(
                    delivery.id,
                    delivery.channel,
                    message.sender,
                    msgspec.json.decode(delivery.answer, type=Answer),
                    delivery.attempts,
                    delivery.problem,
                    delivery.made_at,
                )
            )
        return found

    async def revive(self, tenant: str, id_: str) -> bool:
        """Deliver a dead letter again; False if there is none with this id."""
        revived = await self._store.revive(tenant, id_)
        for deliveries in self._deliveries.values():
            deliveries.wake()
        return revived

    def _answer(self, kept: StoredLetter) -> None:
        """Start the task that answers a message; it is open until then."""
        if not self._serves:
            return  # the next process answers it
        task = asyncio.create_task(self._see_to(kept))
        self._open[kept.seq] = task
        task.add_done_callback(lambda _: self._open.pop(kept.seq, None))

    async def _see_to(self, kept: StoredLetter) -> None:
        message = msgspec.json.decode(kept.letter, type=Letter)
        while kept.state == TAKEN:
            try:
                # A crash came before the run's id was stored; if the run started, this returns it.
                result = await self._begin(kept, message)
            except EvoClawError:
                self.counts["the store failed"] += 1
                await asyncio.sleep(AGAIN)
                continue
            if not result.run_id:
                return
            kept = replace(kept, state=STARTED, run_id=result.run_id)
        questions = self._talks.of(kept.tenant).questions

        async def pending() -> Sequence[Question]:
            return [question for _, question in await questions.waiting(kept.session_id)]

        follower = Following(self._store, self._runs, kept, message, pending, self.counts)
        async for _ in follower.told():
            self._deliveries[kept.channel].wake()

    async def _begin(self, kept: StoredLetter, letter: Letter) -> Taken:
        """Start a run; if that fails, store the failure as the answer."""
        try:
            if answered := await self._answered(kept, letter):
                return answered
            label = Label(untrusted=True, sources=(kept.channel,)) if letter.untrusted else CLEAN
            request = Errand(letter.text, kept.session_id, label=label)
            await self._talks.of(letter.tenant).open(
                letter.agent or self._agent or self._runs.default,
                session_id=kept.session_id,
                owner=letter.user,
                title=request.heading,
            )
            view, _ = await self._runs.start(letter.principal, request, key=_key(kept))
            await self._store.started(kept.seq, view.run_id)
        except EvoClawError as problem:
            return await self._failed(kept, letter, problem)
        return Taken(State.ACCEPTED, view.run_id)

    async def _answered(self, kept: StoredLetter, letter: Letter) -> Taken | None:
        """Use a message as the answer to the pending question of its session, if there is one."""
        questions = self._talks.of(letter.tenant).questions
        pending = await questions.waiting(kept.session_id)
        if not pending:
            return None
        waiting = await self._runs.list(
            letter.tenant, session_id=kept.session_id, state=RunState.WAITING, limit=1
        )
        if not waiting:
            return None
        (_, question), run_id = pending[0], waiting[0].run_id
        if problem := await questions.answer(question.id, to_answer(question, letter.text)):
            raise EvoClawError(f"{problem}. You were asked: {question.text}")
        await self._store.closed(kept.seq, run_id)
        await self._runs.wake(letter.tenant, run_id)
        return Taken(State.ACCEPTED)

    async def _failed(self, kept: StoredLetter, letter: Letter, problem: EvoClawError) -> Taken:
        code = answers.word_for(problem)
        self.counts[f"failed: {code}"] += 1
        # A new id each time: a message may be sent again, and fail again.
        id_ = f"letter-{kept.seq}.{secrets.token_hex(4)}"
        answer = answers.failed(letter, id_, problem, self._store.clock())
        await self._store.owe(kept, id_, msgspec.json.encode(answer), closes=FAILED)
        self._deliveries[kept.channel].wake()
        return Taken(State.FAILED, reason=code, text=answer.text)

    async def _take_up(self, age: float) -> None:
        """Answer stored messages that no process answers: the one that had them may be dead."""
        before = self._store.clock() - age
        for stored in await self._store.open_letters(tuple(self._channels)):
            recent = stored.seq in self._open or stored.taken_at > before
            if not recent and len(self._open) < MOST_OPEN:
                self._answer(stored)

    async def _tidy(self) -> None:
        prunable = tuple(name for name, channel in self._channels.items() if not channel.repeats)
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._take_up(LOOK)
                await self._store.forget(self._store.clock() - KEPT, prunable)
            except EvoClawError:
                self.counts["the store failed"] += 1


def _new(letter: Letter) -> NewLetter:
    content = msgspec.json.encode([letter.agent, letter.conversation, letter.text])
    return NewLetter(
        letter.tenant,
        letter.channel,
        letter.sender,
        letter.id,
        f"{letter.agent}/{letter.conversation}",  # a session belongs to one agent
        sha256(content).hexdigest(),
        msgspec.json.encode(letter),
        secrets.token_hex(8),
    )


def _key(kept: StoredLetter) -> str:
    """The idempotency key of a message: it starts one run."""
    source = msgspec.json.encode([kept.channel, kept.sender, kept.id])
    return f"channel-{sha256(source).hexdigest()}"

"""Where letters of all channels arrive, are answered by runs, and the answers are sent from.

What is promised outlives the process: a letter is kept before it is answered, its run begins once
whatever happens, and whoever waits for a person is told so, and told the end when there is one.
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
"""Letters that may be under way; one beyond that is refused with a reason."""
KEPT = 30 * 86_400.0
"""Seconds that letters and answers are kept after they were dealt with."""
LOOK = 60.0
"""Seconds between two looks for what nobody sees to, and for what is old."""
PATIENCE = 86_400.0
"""Seconds after which an answer is given up, if a channel says nothing else."""


class GivenUp(msgspec.Struct, frozen=True):
    """An answer that was given up: for whoever looks after the channels."""

    id: str
    channel: str
    sender: str
    answer: Answer
    attempts: int
    problem: str
    """Why it did not arrive the last time."""
    made_at: float


class FrontDesk:
    """One for the process; `Front` is what channels see of it."""

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
        """Choose the parts.

        Args:
            store: Where letters and answers are kept.
            runs: What answers.
            talks: Where sessions are opened, of any tenant.
            channels: The ways that people have.
            agent: Who answers where a channel does not say.
            patience: By channel, seconds after which an answer that cannot be delivered is given
                up; a day if not given.
        """
        self._store, self._runs, self._talks, self._agent = store, runs, talks, agent
        self._channels = {channel.name: channel for channel in channels}
        self.counts: Counter[str] = Counter()
        """What was taken, refused, delivered, given up."""
        said = patience or {}
        self._deliveries = {
            name: Deliveries(store, channel, said.get(name, PATIENCE), self.counts)
            for name, channel in self._channels.items()
        }
        self._serves = False
        self._taking: set[asyncio.Task[Taken]] = set()
        self._open: dict[int, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve all channels until the block ends; leaves nothing running."""
        tasks = [self._begun("tidying", self._tidy())]
        try:
            self._serves = True
            await self._take_up(0.0)
            for name, channel in self._channels.items():
                tasks.append(self._begun(f"deliveries of {name}", self._deliveries[name].run()))
                tasks.append(self._begun(f"channel {name}", channel.serve(self)))
            yield
        finally:
            self._serves = False
            every = [*tasks, *self._open.values(), *self._taking]
            for task in every:
                task.cancel()
            await asyncio.wait(every)

    def _begun(self, what: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        def over(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                # The other channels go on; this one is gone, and somebody must know.
                logger.error("%s ended", what, exc_info=task.exception())

        task = asyncio.create_task(work, name=what)
        task.add_done_callback(over)
        return task

    @property
    def unanswered(self) -> int:
        """How many letters are being answered here, or wait for a person."""
        return len(self._open)

    async def take(self, letter: Letter) -> Taken:
        """Keep a letter and have it answered; see `Front.take`."""
        if not self._serves:
            raise Refused("not_serving", "this process is not taking letters now; try again later")
        if len(self._open) >= MOST_OPEN:
            self.counts["refused: too_many"] += 1
            raise Refused("too_many", "too much is being answered already; say it again later")
        # Whoever brings it may go away: then it is answered all the same, or was not kept.
        task = asyncio.create_task(self._take(letter))
        self._taking.add(task)
        task.add_done_callback(self._taken)
        return await asyncio.shield(task)

    def _taken(self, task: asyncio.Task[Taken]) -> None:
        self._taking.discard(task)
        if not task.cancelled():
            task.exception()  # for whoever brought the letter; they may have gone

    async def _take(self, letter: Letter) -> Taken:
        new = _new(letter)
        kept, fresh = await self._store.keep(new)
        if kept.sha256 != new.sha256:
            self.counts["refused: conflict"] += 1
            raise Refused("conflict", "its id was used before, for something else; give it another")
        if not fresh:
            self.counts["came again"] += 1
            return Taken(State.ACCEPTED, kept.run_id, fresh=False)
        self.counts["taken"] += 1
        try:
            taken = await self._begin(kept, letter)
        except EvoClawError:
            # It is kept, and that is all that can be said about it now.
            taken = Taken(State.ACCEPTED)
            self._answer(kept)
        if taken.run_id:
            self._answer(replace(kept, state=STARTED, run_id=taken.run_id))
        return taken

    async def say_again(self, letter: Letter) -> bool:
        """Send what was said last about a letter once more; False if nothing was said yet."""
        kept = await self._store.find(letter.tenant, letter.channel, letter.sender, letter.id)
        said = kept is not None and await self._store.say_again(kept)
        self._deliveries[letter.channel].wake()
        return said

    async def hurry(self, channel: str) -> None:
        """Send what is owed on a channel now: its way is free again."""
        await self._store.hurry(channel)
        self._deliveries[channel].wake()

    async def given_up(self, tenant: str) -> Sequence[GivenUp]:
        """Answers to a tenant's people that could not be delivered, the newest first."""
        found: list[GivenUp] = []
        for one in await self._store.deliveries(tenant, DEAD):
            letter = msgspec.json.decode(one.letter, type=Letter)
            answer = msgspec.json.decode(one.answer, type=Answer)
            found.append(
                GivenUp(
                    one.id, one.channel, letter.sender, answer, one.attempts, one.problem,
                    one.made_at,
                )
            )  # fmt: skip
        return found

    async def revive(self, tenant: str, id_: str) -> bool:
        """Try again to deliver what was given up; False if there is no such answer."""
        revived = await self._store.revive(tenant, id_)
        for deliveries in self._deliveries.values():
            deliveries.wake()
        return revived

    def _answer(self, kept: StoredLetter) -> None:
        """See to it that a letter is answered; known as open while it is not."""
        if not self._serves:
            return  # the next process sees to it
        task = asyncio.create_task(self._see_to(kept))
        self._open[kept.seq] = task
        task.add_done_callback(lambda _: self._open.pop(kept.seq, None))

    async def _see_to(self, kept: StoredLetter) -> None:
        letter = msgspec.json.decode(kept.letter, type=Letter)
        while kept.state == TAKEN:
            try:
                # We were cut off before its run was known; if it began, this gives that one.
                taken = await self._begin(kept, letter)
            except EvoClawError:
                self.counts["the store failed"] += 1
                await asyncio.sleep(AGAIN)
                continue
            if not taken.run_id:
                return
            kept = replace(kept, state=STARTED, run_id=taken.run_id)
        questions = self._talks.of(kept.tenant).questions

        async def asked() -> Sequence[Question]:
            return [question for _, question in await questions.waiting(kept.session_id)]

        following = Following(self._store, self._runs, kept, letter, asked, self.counts)
        async for _ in following.told():
            self._deliveries[kept.channel].wake()

    async def _begin(self, kept: StoredLetter, letter: Letter) -> Taken:
        """Have a run begin; why there is none is kept, to be told."""
        try:
            if answered := await self._answered(kept, letter):
                return answered
            label = Label(untrusted=True, sources=(kept.channel,)) if letter.untrusted else CLEAN
            errand = Errand(letter.text, kept.session_id, label=label)
            await self._talks.of(letter.tenant).open(
                letter.agent or self._agent or self._runs.default,
                session_id=kept.session_id,
                owner=letter.user,
                title=errand.heading,
            )
            view, _ = await self._runs.start(letter.principal, errand, key=_key(kept))
            await self._store.started(kept.seq, view.run_id)
        except EvoClawError as problem:
            return await self._failed(kept, letter, problem)
        return Taken(State.ACCEPTED, view.run_id)

    async def _answered(self, kept: StoredLetter, letter: Letter) -> Taken | None:
        """Take a letter for the answer to what its sender was asked, if they were."""
        questions = self._talks.of(letter.tenant).questions
        asked = await questions.waiting(kept.session_id)
        if not asked:
            return None
        waiting = await self._runs.list(
            letter.tenant, session_id=kept.session_id, state=RunState.WAITING, limit=1
        )
        if not waiting:
            return None
        (_, question), run_id = asked[0], waiting[0].run_id
        if problem := await questions.answer(question.id, to_answer(question, letter.text)):
            raise EvoClawError(f"{problem}. You were asked: {question.text}")
        await self._store.closed(kept.seq, run_id)
        await self._runs.wake(letter.tenant, run_id)
        return Taken(State.ACCEPTED)

    async def _failed(self, kept: StoredLetter, letter: Letter, problem: EvoClawError) -> Taken:
        word = answers.word_for(problem)
        self.counts[f"failed: {word}"] += 1
        # Another one each time: a letter may come again, and fail again.
        id_ = f"letter-{kept.seq}.{secrets.token_hex(4)}"
        answer = answers.failed(letter, id_, problem, self._store.clock())
        await self._store.owe(kept, id_, msgspec.json.encode(answer), closes=FAILED)
        self._deliveries[kept.channel].wake()
        return Taken(State.FAILED, reason=word, text=answer.text)

    async def _take_up(self, age: float) -> None:
        """See to letters that nobody sees to: a process that had them may be gone."""
        before = self._store.clock() - age
        for kept in await self._store.open_letters(tuple(self._channels)):
            known = kept.seq in self._open or kept.taken_at > before
            if not known and len(self._open) < MOST_OPEN:
                self._answer(kept)

    async def _tidy(self) -> None:
        forgetful = tuple(name for name, one in self._channels.items() if not one.repeats)
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._take_up(LOOK)
                await self._store.forget(self._store.clock() - KEPT, forgetful)
            except EvoClawError:
                self.counts["the store failed"] += 1


def _new(letter: Letter) -> NewLetter:
    says = msgspec.json.encode([letter.agent, letter.conversation, letter.text])
    return NewLetter(
        letter.tenant,
        letter.channel,
        letter.sender,
        letter.id,
        f"{letter.agent}/{letter.conversation}",  # a session is one agent's
        sha256(says).hexdigest(),
        msgspec.json.encode(letter),
        secrets.token_hex(8),
    )


def _key(kept: StoredLetter) -> str:
    """What makes sure that one letter begins one run."""
    whose = msgspec.json.encode([kept.channel, kept.sender, kept.id])
    return f"channel-{sha256(whose).hexdigest()}"

"""The channel dispatcher: takes messages from all channels, starts runs, delivers the answers.

It survives a crash: a message is stored before it is answered, its run starts exactly once, and
the sender is notified when the run waits for a person and when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Protocol

import msgspec
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.labels import CLEAN, Label
from evoclaw.orchestrator.channels import answers
from evoclaw.orchestrator.channels.chat.commands import ConversationCommands
from evoclaw.orchestrator.channels.deliveries import DeliveryWorker
from evoclaw.orchestrator.channels.inbound import (
    AcceptResult,
    ChannelAnswer,
    InboundMessage,
    MessageRefused,
    MessageState,
)
from evoclaw.orchestrator.channels.run_follower import FIRST_RETRY_DELAY_S, RunFollower
from evoclaw.orchestrator.channels.status import ChannelView, ObservedChannel, channel_view
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.orchestrator.runs.requests import RunStatus as RunState
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.store.channels import (
    DEAD,
    DONE,
    FAILED,
    STARTED,
    TAKEN,
    ChannelStore,
    NewInboundMessage,
    StoredDelivery,
    StoredInboundMessage,
)
from evoclaw.tools.question import Question, parse_answer

logger = logging.getLogger(__name__)
MAX_OPEN_MESSAGES = 10_000
"""Messages whose answers are pending; further messages are refused."""
MESSAGE_RETENTION_S = 30 * 86_400.0
"""Of messages and answers that are finished."""
MAINTENANCE_INTERVAL_S = 60.0
"""Between two searches for orphaned messages and for old ones."""
DEFAULT_DELIVERY_TIMEOUT_S = 86_400.0
"""After which an answer becomes a dead letter, unless the channel configures another time."""


class DeadLetter(msgspec.Struct, frozen=True):
    """An answer that could not be delivered, as the operator sees it."""

    id: str
    """The id of the delivery, to retry it."""
    channel: str
    """The name of the channel."""
    sender: str
    """The sender of the message that it answers."""
    answer: ChannelAnswer
    """The answer itself."""
    attempts: int
    """How often it was tried."""
    problem: str
    """Why the last attempt failed."""
    made_at: float
    """When it was created, in Unix seconds."""


class Channel(Protocol):
    """A way for people to send messages to agents."""

    @property
    def name(self) -> str:
        """Its configured name."""
        ...

    @property
    def replayable(self) -> bool:
        """Whether an old message can be replayed; then message ids are stored forever."""
        ...

    async def serve(self, handler: ChannelDispatcher) -> None:
        """Receive messages until cancelled."""
        ...

    async def send(self, message: InboundMessage, answer: ChannelAnswer) -> None:
        """Deliver an answer to the sender of a message; it may have been delivered before.

        Raises `Undelivered` if it could not be delivered.
        """
        ...


class ChannelDispatcher:
    """Dispatches the messages of all channels in a process.

    Channels use `accept`, `resend_answer` and `deliver_now`.
    """

    def __init__(
        self,
        store: ChannelStore,
        runs: Runs,
        conversations: Conversations,
        channels: Sequence[Channel],
        *,
        agent: str = "",
        delivery_timeouts_s: Mapping[str, float] | None = None,
        commands: ConversationCommands | None = None,
        image_problem: Callable[[str], str] = lambda _: "",
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
            commands: Runs the commands of conversations.
            image_problem: Says why the model of an agent cannot read images; empty if it can.
        """
        self._store, self._runs, self._conversations, self._agent = (
            store,
            runs,
            conversations,
            agent,
        )
        self._commands, self._image_problem = commands, image_problem
        self._channels = {channel.name: channel for channel in channels}
        self.counts: Counter[str] = Counter()
        """Messages accepted and refused, answers delivered and given up."""
        timeouts = delivery_timeouts_s or {}
        self._deliveries = {
            name: DeliveryWorker(
                store,
                name,
                _sender(channel),
                timeouts.get(name, DEFAULT_DELIVERY_TIMEOUT_S),
                self.counts,
            )
            for name, channel in self._channels.items()
        }
        self._is_serving = False
        self._accepting: set[asyncio.Task[AcceptResult]] = set()
        self._open: dict[int, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve all channels until the block ends; then all tasks have ended."""
        tasks = [self._start_task("channel maintenance", self._maintain())]
        try:
            self._is_serving = True
            await self._resume_open(0.0)
            for name, channel in self._channels.items():
                tasks.append(
                    self._start_task(f"deliveries of {name}", self._deliveries[name].run())
                )
                tasks.append(self._start_task(f"channel {name}", channel.serve(self)))
            yield
        finally:
            self._is_serving = False
            running = [*tasks, *self._open.values(), *self._accepting]
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _start_task(self, what: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
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

    async def accept(self, message: InboundMessage) -> AcceptResult:
        """Store a message and start answering it; answers are sent with `Channel.send`.

        Returns once the message is stored, not once it is answered. Raises `MessageRefused` for a
        message that is not accepted, and another `EvoClawError` if it could not be stored: then it
        may be sent again.
        """
        if not self._is_serving:
            raise MessageRefused(
                "not_serving", "this process does not accept messages now; try again later"
            )
        if len(self._open) >= MAX_OPEN_MESSAGES:
            self.counts["refused: too_many"] += 1
            raise MessageRefused(
                "too_many", "too many messages are being answered; send it again later"
            )
        # If the caller is cancelled, the message is still answered, or it was not stored.
        task = asyncio.create_task(self._accept(message))
        self._accepting.add(task)
        task.add_done_callback(self._on_accepted)
        return await asyncio.shield(task)

    def _on_accepted(self, task: asyncio.Task[AcceptResult]) -> None:
        self._accepting.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: the channel that awaits it may have been cancelled

    async def _accept(self, message: InboundMessage) -> AcceptResult:
        new = _new_message(message)
        stored, is_new = await self._store.add_message(new)
        if stored.sha256 != new.sha256:
            self.counts["refused: conflict"] += 1
            raise MessageRefused(
                "conflict", "this message id was used for another message; send it with a new id"
            )
        if not is_new:
            self.counts["came again"] += 1
            return AcceptResult(MessageState.ACCEPTED, stored.run_id, fresh=False)
        self.counts["taken"] += 1
        try:
            result = await self._start_run(stored, message)
        except EvoClawError:
            # The message is stored; the run is started later.
            result = AcceptResult(MessageState.ACCEPTED)
            self._start_answering(stored)
        if result.run_id:
            self._start_answering(replace(stored, state=STARTED, run_id=result.run_id))
        return result

    async def resend_answer(self, message: InboundMessage) -> bool:
        """Send the last answer to a message once more; False if there is no answer yet."""
        stored = await self._store.find_message(
            message.tenant, message.channel, message.sender, message.id
        )
        resent = stored is not None and await self._store.redeliver_last(stored)
        self._deliveries[message.channel].wake()
        return resent

    async def deliver_now(self, channel: str) -> None:
        """Deliver the pending answers of a channel now: it is connected again."""
        await self._store.retry_now(channel)
        self._deliveries[channel].wake()

    async def views(self, tenant: str) -> Sequence[ChannelView]:
        """The channels of a tenant that report their state."""
        return [
            await channel_view(channel, self._store)
            for channel in self._channels.values()
            if isinstance(channel, ObservedChannel) and channel.settings.tenant == tenant
        ]

    async def dead_letters(self, tenant: str) -> Sequence[DeadLetter]:
        """A tenant's answers that could not be delivered, the newest first."""
        found: list[DeadLetter] = []
        for delivery in await self._store.deliveries(tenant, DEAD):
            message = msgspec.json.decode(delivery.message, type=InboundMessage)
            found.append(
                DeadLetter(
                    delivery.id,
                    delivery.channel,
                    message.sender,
                    msgspec.json.decode(delivery.answer, type=ChannelAnswer),
                    delivery.attempts,
                    delivery.problem,
                    delivery.made_at,
                )
            )
        return found

    async def redeliver(self, tenant: str, id_: str) -> bool:
        """Deliver a dead letter again; False if there is none with this id."""
        revived = await self._store.retry_dead(tenant, id_)
        for deliveries in self._deliveries.values():
            deliveries.wake()
        return revived

    def _start_answering(self, stored: StoredInboundMessage) -> None:
        """Start the task that answers a message; it is open until then."""
        if not self._is_serving:
            return  # the next process answers it
        task = asyncio.create_task(self._answer_message(stored))
        self._open[stored.seq] = task
        task.add_done_callback(lambda _: self._open.pop(stored.seq, None))

    async def _answer_message(self, stored: StoredInboundMessage) -> None:
        message = msgspec.json.decode(stored.message, type=InboundMessage)
        while stored.state == TAKEN:
            try:
                # A crash came before the run's id was stored; if the run started, this returns it.
                result = await self._start_run(stored, message)
            except EvoClawError:
                self.counts["the store failed"] += 1
                await asyncio.sleep(FIRST_RETRY_DELAY_S)
                continue
            if not result.run_id:
                return
            stored = replace(stored, state=STARTED, run_id=result.run_id)
        questions = self._conversations.of(stored.tenant).questions

        async def pending() -> Sequence[Question]:
            return [question for _, question in await questions.waiting(stored.session_id)]

        follower = RunFollower(self._store, self._runs, stored, message, pending, self.counts)
        async for _ in follower.follow():
            self._deliveries[stored.channel].wake()

    async def _start_run(
        self, stored: StoredInboundMessage, message: InboundMessage
    ) -> AcceptResult:
        """Start a run; if that fails, store the failure as the answer."""
        try:
            if message.command:
                return await self._run_command(stored, message)
            if answered := await self._answer_question(stored, message):
                return answered
            agent = message.agent or self._agent or self._runs.default_agent
            if message.images and (why := self._image_problem(agent)):
                raise ConfigError(f"the images cannot be read: {why}")
            label = Label(untrusted=True, sources=(stored.channel,)) if message.untrusted else CLEAN
            request = RunRequest(
                message.text, stored.session_id, label=label, images=message.images
            )
            await self._conversations.of(message.tenant).open(
                agent,
                session_id=stored.session_id,
                owner=message.user,
                title=request.session_title,
            )
            view, _ = await self._runs.start(
                message.principal, request, key=_idempotency_key(stored)
            )
            await self._store.mark_started(stored.seq, view.run_id)
        except EvoClawError as problem:
            return await self._report_failure(stored, message, problem)
        return AcceptResult(MessageState.ACCEPTED, view.run_id)

    async def _run_command(
        self, stored: StoredInboundMessage, message: InboundMessage
    ) -> AcceptResult:
        """Run the command that a message is; its result is the answer."""
        assert self._commands is not None  # the channels that have commands need it
        result = await self._commands.run(stored, message)
        answer = ChannelAnswer(
            f"command-{stored.seq}",
            message.agent,
            message.id,
            result.state,
            result.text,
            session=message.conversation,
            run_id=result.run_id,
            timestamp=self._store.clock(),
        )
        await self._store.add_delivery(
            stored, answer.id, msgspec.json.encode(answer), message_state=DONE
        )
        self._deliveries[stored.channel].wake()
        return AcceptResult(MessageState.ACCEPTED)

    async def _answer_question(
        self, stored: StoredInboundMessage, message: InboundMessage
    ) -> AcceptResult | None:
        """Use a message as the answer to the pending question of its session, if there is one."""
        questions = self._conversations.of(message.tenant).questions
        pending = await questions.waiting(stored.session_id)
        if not pending:
            return None
        waiting = await self._runs.list(
            message.tenant, session_id=stored.session_id, state=RunState.WAITING, limit=1
        )
        if not waiting:
            return None
        (_, question), run_id = pending[0], waiting[0].run_id
        if problem := await questions.answer(question.id, parse_answer(question, message.text)):
            raise EvoClawError(f"{problem}. You were asked: {question.text}")
        await self._store.mark_done(stored.seq, run_id)
        await self._runs.resume(message.tenant, run_id)
        return AcceptResult(MessageState.ACCEPTED)

    async def _report_failure(
        self, stored: StoredInboundMessage, message: InboundMessage, problem: EvoClawError
    ) -> AcceptResult:
        code = answers.error_code(problem)
        self.counts[f"failed: {code}"] += 1
        # A new id each time: a message may be sent again, and fail again.
        id_ = f"letter-{stored.seq}.{secrets.token_hex(4)}"
        answer = answers.for_failure(message, id_, problem, self._store.clock())
        await self._store.add_delivery(
            stored, id_, msgspec.json.encode(answer), message_state=FAILED
        )
        self._deliveries[stored.channel].wake()
        return AcceptResult(MessageState.FAILED, reason=code, text=answer.text)

    async def _resume_open(self, min_age_s: float) -> None:
        """Answer stored messages that no process answers: the one that had them may be dead."""
        before = self._store.clock() - min_age_s
        for stored in await self._store.open_messages(tuple(self._channels)):
            recent = stored.seq in self._open or stored.taken_at > before
            if not recent and len(self._open) < MAX_OPEN_MESSAGES:
                self._start_answering(stored)

    async def _maintain(self) -> None:
        prunable = tuple(name for name, channel in self._channels.items() if not channel.replayable)
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            try:
                await self._resume_open(MAINTENANCE_INTERVAL_S)
                await self._store.prune(self._store.clock() - MESSAGE_RETENTION_S, prunable)
            except EvoClawError:
                self.counts["the store failed"] += 1


def _new_message(message: InboundMessage) -> NewInboundMessage:
    parts = [message.agent, message.conversation, message.text]
    parts += [image.data for image in message.images]
    content = msgspec.json.encode(parts)
    return NewInboundMessage(
        message.tenant,
        message.channel,
        message.sender,
        message.id,
        message.conversation_key,
        sha256(content).hexdigest(),
        msgspec.json.encode(message),
        secrets.token_hex(8),
    )


def _idempotency_key(stored: StoredInboundMessage) -> str:
    """The idempotency key of a message: it starts one run."""
    source = msgspec.json.encode([stored.channel, stored.sender, stored.id])
    return f"channel-{sha256(source).hexdigest()}"


def _sender(channel: Channel) -> Callable[[StoredDelivery], Awaitable[None]]:
    """Sends a stored answer on a channel."""

    async def send(delivery: StoredDelivery) -> None:
        await channel.send(
            msgspec.json.decode(delivery.message, type=InboundMessage),
            msgspec.json.decode(delivery.answer, type=ChannelAnswer),
        )

    return send

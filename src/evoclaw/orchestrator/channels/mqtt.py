"""The MQTT channel: each user has an inbox and an outbox topic for each agent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from secrets import token_hex

from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher
from evoclaw.orchestrator.channels.inbound import (
    ChannelAnswer,
    InboundMessage,
    MessageRefused,
    MessageState,
    Undelivered,
)
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.orchestrator.channels.status import ChannelStatus
from evoclaw.store.channels import GENERATED_ID_PREFIX
from evoclaw.transport.link import Incoming, Link, LinkDown, TooLarge, Will
from evoclaw.transport.mailboxes import InboxMessage, encode_outbox, read_inbox
from evoclaw.transport.topics import Mailbox, box_topic, every_box, read_box_topic
from evoclaw.transport.wire import WireError

RECEIVE_CONCURRENCY = 200
"""Messages in progress; further ones are dropped, and senders repeat what was not accepted."""
DUPLICATE_WINDOW_S, MAX_RECENT_TEXTS = 5.0, 1_000
"""For how long the same text without an id counts as a duplicate, and how many such texts are
remembered."""
TRUNCATION_NOTICE = "\n[Truncated: the answer was too long for the broker.]"


class MqttChannel:
    """The orchestrator's side of all mailboxes, on its own connection to the broker."""

    def __init__(
        self, settings: ChannelSettings, link: Link, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare to serve the mailboxes.

        Args:
            settings: Who may use the channel.
            link: Its own connection to the broker: users cannot delay the messages of edges.
            clock: Unix seconds.
        """
        # An inbox message has no signed time: a broker or a bridge may deliver it again much later.
        self.name, self.replayable = settings.name, True
        self.settings, self._link, self._clock = settings, link, clock
        self.status = ChannelStatus("connecting", changed_at=clock())
        self._client_id = f"orchestrator-inbox-{token_hex(8)}"
        self._handler: ChannelDispatcher | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._recent_texts: dict[str, tuple[float, str]] = {}
        self.counts: Counter[str] = Counter()
        """Messages that were dropped or refused, by reason."""

    async def serve(self, handler: ChannelDispatcher) -> None:
        """Receive messages from the inboxes until cancelled."""
        self._handler = handler
        try:
            await self._link.run(self)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def send(self, message: InboundMessage, answer: ChannelAnswer) -> None:
        """Publish an answer to the sender's outbox; it is delivered once the broker has it."""
        try:
            await self._publish(message.agent, message.sender, answer)
        except LinkDown as problem:
            raise Undelivered(str(problem)) from None

    @property
    def client_id(self) -> str:
        """A new id each time: two orchestrators never disconnect each other."""
        return self._client_id

    @property
    def subscriptions(self) -> Sequence[str]:
        """Every inbox."""
        return (every_box(Mailbox.INBOX),)

    def will(self) -> Will | None:
        """None: senders repeat messages that were not accepted."""
        return None

    async def connected(self) -> None:
        """Deliver pending answers."""
        self.status = self.status.changed("connected", self._clock())
        self._spawn(self._deliver_now())

    async def _deliver_now(self) -> None:
        assert self._handler is not None  # set by `serve`, before any connection
        try:
            await self._handler.deliver_now(self.name)
        except EvoClawError:
            self.counts["the store failed"] += 1  # the answers are delivered at their next retry

    def disconnected(self, reason: str) -> None:
        """Record it; the link reconnects."""
        self.counts["disconnected"] += 1
        self.status = self.status.changed("failed", self._clock(), problem=reason)

    def received(self, message: Incoming) -> None:
        """Read a message from an inbox, and dispatch it."""
        found = read_box_topic(message.topic)
        if found is None or message.retained or not message.payload:
            # A retained message is no message to an agent: it may be old.
            self.counts["no message" if found else "no inbox"] += 1
            return
        agent, _, user = found
        id_ = ""
        try:
            inbox = read_inbox(message.payload)
            id_ = inbox.message_id
            self._spawn(self._dispatch(self._inbound(agent, user, inbox)))
        except WireError as problem:
            why = str(problem)
            self._spawn(self._refuse(agent, user, problem.request_id, str(problem.kind), why))
        except MessageRefused as problem:
            self._spawn(self._refuse(agent, user, id_, problem.reason, str(problem)))

    def _inbound(self, agent: str, user: str, message: InboxMessage) -> InboundMessage:
        known = self.settings.user_of(user)
        if known is None:
            raise MessageRefused(
                "unknown_sender",
                "you may not use this channel; ask the operator to add you to its senders",
            )
        if self.settings.agent not in ("", agent):
            raise MessageRefused(
                "no_agent", f"this channel reaches only the agent {self.settings.agent!r}"
            )
        return InboundMessage(
            self.name,
            message.message_id or self._generated_id(agent, user, message),
            user,
            message.message,
            self.settings.tenant,
            known,
            agent,
            message.session,
            self.settings.is_untrusted(user),
        )

    def _generated_id(self, agent: str, user: str, message: InboxMessage) -> str:
        """An id for a message without one: the broker delivers duplicates within seconds."""
        now = self._clock()
        self._recent_texts = {
            key: seen
            for key, seen in self._recent_texts.items()
            if now - seen[0] < DUPLICATE_WINDOW_S
        }
        key = sha256(f"{agent}/{user}/{message.session}/{message.message}".encode()).hexdigest()
        if key not in self._recent_texts and len(self._recent_texts) < MAX_RECENT_TEXTS:
            self._recent_texts[key] = now, f"{GENERATED_ID_PREFIX}{token_hex(8)}"
        if key in self._recent_texts:
            return self._recent_texts[key][1]
        return f"{GENERATED_ID_PREFIX}{token_hex(8)}"

    async def _dispatch(self, message: InboundMessage) -> None:
        assert self._handler is not None  # set by `serve`, before any message
        agent, user = message.agent, message.sender
        try:
            result = await self._handler.accept(message)
            if not result.fresh:
                # The sender repeats it: the answer, or the notice that it was accepted, was lost.
                await self._handler.resend_answer(message)
        except MessageRefused as problem:
            await self._refuse(agent, user, message.id, problem.reason, str(problem))
        except EvoClawError as problem:
            await self._refuse(agent, user, message.id, "not_kept", str(problem))
        else:
            if result.state is MessageState.ACCEPTED:
                text = "Your message was accepted and will be answered."
                answer = self._status_answer(agent, message.id, MessageState.ACCEPTED, text)
                await self._notify(
                    user, replace(answer, run_id=result.run_id, session=message.conversation)
                )

    async def _refuse(self, agent: str, user: str, id_: str, reason: str, why: str) -> None:
        self.counts[f"refused: {reason}"] += 1
        answer = self._status_answer(
            agent, id_, MessageState.REFUSED, f"Your message was not accepted: {why}."
        )
        await self._notify(user, replace(answer, reason=reason))

    def _status_answer(self, agent: str, id_: str, state: MessageState, text: str) -> ChannelAnswer:
        return ChannelAnswer(token_hex(8), agent, id_, state, text, timestamp=self._clock())

    async def _notify(self, user: str, answer: ChannelAnswer) -> None:
        """Send an answer that is not stored: a sender who misses it repeats the message."""
        try:
            await self._publish(answer.agent_id, user, answer)
        except (LinkDown, Undelivered):
            self.counts[f"unsaid: {answer.state}"] += 1

    async def _publish(self, agent: str, user: str, answer: ChannelAnswer) -> None:
        topic = box_topic(agent, Mailbox.OUTBOX, user)
        text = answer.text
        while True:
            try:
                return await self._link.publish(topic, encode_outbox(answer))
            except TooLarge:
                # The length as JSON depends on the characters in it.
                text = text[: len(text) // 2]
                if not text:
                    raise Undelivered(
                        "the broker accepts no message of this size", final=True
                    ) from None
                answer = replace(answer, text=text + TRUNCATION_NOTICE)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        if len(self._tasks) >= RECEIVE_CONCURRENCY:
            self.counts["too much at once"] += 1
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

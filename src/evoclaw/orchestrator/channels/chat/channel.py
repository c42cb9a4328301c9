"""A channel over a chat service: who may use it, in which session, and how answers are sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import aclosing

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.channels.chat.approvals import ChatApprovals
from evoclaw.orchestrator.channels.chat.commands import ANSWER_COMMAND, command_of
from evoclaw.orchestrator.channels.chat.messages import (
    ButtonPress,
    ChatEvent,
    ChatInvitation,
    ChatService,
    ConversationMessage,
    OutgoingMessage,
    ServiceError,
)
from evoclaw.orchestrator.channels.chat.pairing import ChannelPairing
from evoclaw.orchestrator.channels.chat.receiver_lease import ReceiverLease
from evoclaw.orchestrator.channels.chat.splitting import split_text
from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher
from evoclaw.orchestrator.channels.inbound import (
    ChannelAnswer,
    InboundMessage,
    MessageRefused,
    MessageState,
    Undelivered,
)
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.orchestrator.channels.status import ChannelStatus, ConnectionState
from evoclaw.orchestrator.log_throttle import LogThrottle, repeat_suffix
from evoclaw.store.channels import ChannelStore

logger = logging.getLogger(__name__)
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 300.0
"""After a failure of the connection, at first and at most."""
STABLE_CONNECTION_S = 60.0
"""After which a connection counts as good, and the next failure as the first."""
MAX_TYPING_S = 1_800.0
CURSOR = "cursor"
REFUSAL_TEXT = "Sorry, you may not use this bot. Ask its operator to add you."
MAX_REFUSALS = 1_000
"""Strangers that one process answers and remembers; the others get no answer."""
MAX_TEXT_CHARS = 64 * 1024


class ChatChannel:
    """One bot or mailbox."""

    replayable = False

    def __init__(
        self,
        settings: ChannelSettings,
        service: ChatService,
        store: ChannelStore,
        approvals: ChatApprovals,
        pairing: ChannelPairing,
        lease: ReceiverLease | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            settings: Who may use the channel, and which agent answers.
            service: The client of the service.
            store: Where the position in the stream of messages is stored.
            approvals: Asks for approvals, and takes the answers.
            pairing: Adds senders by a one-time code.
            lease: Needed to receive messages, if several orchestrators share the store.
        """
        self.name, self._settings, self._service = settings.name, settings, service
        self._store, self._approvals, self.pairing = store, approvals, pairing
        self._lease = lease
        self.status = ChannelStatus("connecting", changed_at=store.clock())
        self.counts: Counter[str] = Counter()
        """Messages that were refused, and failures, by reason."""
        self._throttle = LogThrottle()
        self._typing: dict[str, asyncio.Task[None]] = {}
        self._sent_parts: dict[str, set[str]] = {}
        """By answer, the parts that were sent before an attempt failed."""
        self._refusals = 0

    @property
    def settings(self) -> ChannelSettings:
        """The settings of the channel."""
        return self._settings

    async def serve(self, handler: ChannelDispatcher) -> None:
        """Receive messages until cancelled; a connection that fails is opened again."""
        delay_s = FIRST_RETRY_DELAY_S
        try:
            while True:
                started = time.monotonic()
                try:
                    await self._receive_alone(handler)
                    wait_s = 0.0  # the service wants a new connection, or the lease was lost
                except Undelivered as problem:
                    self._failed(problem)
                    wait_s = max(delay_s, min(problem.retry_after or 0.0, MAX_RETRY_DELAY_S))
                except EvoClawError as problem:
                    # Not stored: the service delivers the messages again.
                    self.counts["the store failed"] += 1
                    self._failed(problem)
                    wait_s = delay_s
                if wait_s:
                    await self._release()  # another orchestrator may reach the service
                lasted = time.monotonic() - started > STABLE_CONNECTION_S
                delay_s = FIRST_RETRY_DELAY_S if lasted else min(MAX_RETRY_DELAY_S, 2 * delay_s)
                await asyncio.sleep(wait_s)
        finally:
            for task in self._typing.values():
                task.cancel()
            if self._typing:
                await asyncio.wait(self._typing.values())
            await self._release()
            await self._service.aclose()

    async def send(self, message: InboundMessage, answer: ChannelAnswer) -> None:
        """Send an answer, in parts if it is long; approvals are asked for one by one."""
        self._stop_typing(message.conversation)
        sent = self._sent_parts.pop(answer.id, set[str]())
        try:
            for part in await self._outgoing(message, answer):
                if part.id not in sent:
                    await self._service.post(part)
                    sent.add(part.id)
        except BaseException:
            self._sent_parts[answer.id] = sent
            raise

    async def _outgoing(
        self, message: InboundMessage, answer: ChannelAnswer
    ) -> list[OutgoingMessage]:
        service, cards = self._service, ()
        if answer.state is MessageState.WAITING and answer.run_id:
            cards = await self._approvals.cards(
                message, answer.run_id, has_buttons=service.has_buttons
            )
        texts = [(card.id, card.text, card.buttons) for card in cards] or [("", answer.text, ())]
        found: list[OutgoingMessage] = []
        for id_, text, buttons in texts:
            parts = split_text(text.strip() or "(no text)", service.max_chars)
            found += [
                OutgoingMessage(
                    f"{answer.id}/{id_}/{number}",
                    message.sender,
                    message.conversation,
                    part,
                    message.reply_to,
                    buttons if number == len(parts) - 1 else (),
                )
                for number, part in enumerate(parts)
            ]
        return found

    async def _receive_alone(self, handler: ChannelDispatcher) -> None:
        """Receive messages while no other orchestrator does."""
        if self._lease is None:
            await self._receive(handler)
            return
        if not await self._lease.try_acquire():
            self._changed("standby", account=self.status.account)
            await self._lease.acquire()
        await self._lease.hold(self._receive(handler))

    async def _release(self) -> None:
        if self._lease is not None:
            await self._lease.release()

    async def _receive(self, handler: ChannelDispatcher) -> None:
        if not self.status.account:
            self._changed("connecting", account=await self._service.check())
        cursor = await self._store.read_state(self.name, CURSOR)
        async with aclosing(self._service.receive(cursor)) as batches:
            async for batch in batches:
                if self.status.state != "connected":
                    self._changed("connected")
                    logger.info("channel %s: connected as %s", self.name, self.status.account)
                for event in batch.events:
                    await self._handle(handler, event)
                if batch.cursor and batch.cursor != cursor:
                    cursor = batch.cursor
                    await self._store.write_state(self.name, CURSOR, cursor)

    async def _handle(self, handler: ChannelDispatcher, event: ChatEvent) -> None:
        user, is_named = await self._user_of(event.sender)
        if isinstance(event, ConversationMessage) and await self._paired(event):
            return
        if user is None:
            await self._refuse(event)
        elif isinstance(event, ChatInvitation):
            await self._acknowledge(event)
        else:
            await self._accept(handler, event, user, is_named=is_named)

    async def _user_of(self, sender: str) -> tuple[str | None, bool]:
        """The user of a sender, and whether the settings or a pairing name the sender."""
        settings = self._settings
        if not settings.is_untrusted(sender):
            return settings.user_of(sender), True
        if (paired := await self.pairing.user_of(sender)) is not None:
            return paired, True
        return settings.user_of(sender), False

    async def _accept(
        self,
        handler: ChannelDispatcher,
        event: ConversationMessage | ButtonPress,
        user: str,
        *,
        is_named: bool,
    ) -> None:
        settings = self._settings
        is_press = isinstance(event, ButtonPress)
        text = event.token if is_press else event.text
        is_verified = is_press or event.is_verified
        command = ANSWER_COMMAND if is_press else command_of(text)
        message = InboundMessage(
            self.name,
            event.id,
            event.sender,
            _first_line(text) if command else text[:MAX_TEXT_CHARS],
            settings.tenant,
            user,
            settings.agent,
            event.conversation,
            untrusted=not (is_named and is_verified),
            command=command,
            images=() if is_press else event.images,
            reply_to=event.reply_to,
        )
        try:
            result = await handler.accept(message)
        except MessageRefused as problem:
            if problem.reason in ("not_serving", "too_many"):
                raise  # it is received again
            self.counts[f"refused: {problem.reason}"] += 1
            return
        if is_press:
            await self._acknowledge(event)
        elif result.run_id and result.fresh:
            self._start_typing(event.conversation)

    async def _paired(self, event: ConversationMessage) -> bool:
        """Whether a message was a valid pairing code."""
        user = await self.pairing.redeem(event.sender, event.text)
        if user is None:
            return False
        logger.info("channel %s: paired the sender %s with %s", self.name, event.sender, user)
        await self._tell(event, "Welcome. You may now write to me; /help lists the commands.")
        return True

    async def _refuse(self, event: ChatEvent) -> None:
        """Refuse a sender politely once, and never again."""
        self.counts["refused: unknown_sender"] += 1
        if not (
            isinstance(event, ConversationMessage)
            and event.is_private
            and self._service.answers_strangers
            and self._refusals < MAX_REFUSALS
            and await self._store.add_state(self.name, f"refused/{event.sender}", event.id)
        ):
            return
        self._refusals += 1
        logger.info("channel %s: refused the unknown sender %s", self.name, event.sender)
        await self._tell(event, REFUSAL_TEXT)

    async def _tell(self, event: ConversationMessage, text: str) -> None:
        """Send a text that is not stored."""
        message = OutgoingMessage(
            f"{event.id}/notice", event.sender, event.conversation, text, event.reply_to
        )
        try:
            await self._service.post(message)
        except Undelivered:
            self.counts["not told"] += 1

    async def _acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        try:
            await self._service.acknowledge(event)
        except Undelivered as problem:
            self.counts["not acknowledged"] += 1
            if isinstance(event, ChatInvitation) and not problem.final:
                raise  # the invitation is received again

    def _start_typing(self, conversation: str) -> None:
        if self._service.typing_interval_s and conversation not in self._typing:
            task = asyncio.create_task(self._show_typing(conversation))
            self._typing[conversation] = task
            task.add_done_callback(lambda _: self._typing.pop(conversation, None))

    def _stop_typing(self, conversation: str) -> None:
        if (task := self._typing.pop(conversation, None)) is not None:
            task.cancel()

    async def _show_typing(self, conversation: str) -> None:
        end = time.monotonic() + MAX_TYPING_S
        while time.monotonic() < end:
            try:
                await self._service.show_typing(conversation)
            except Undelivered:
                self.counts["no typing indicator"] += 1
                return
            await asyncio.sleep(self._service.typing_interval_s)

    def _failed(self, problem: EvoClawError) -> None:
        rejected = isinstance(problem, ServiceError) and problem.is_login
        self._changed("failed", problem=str(problem), is_login=rejected)
        if count := self._throttle.count(str(problem)):
            logger.warning("channel %s: %s%s", self.name, problem, repeat_suffix(count))

    def _changed(
        self,
        state: ConnectionState,
        *,
        account: str = "",
        problem: str = "",
        is_login: bool = False,
    ) -> None:
        self.status = self.status.changed(
            state, self._store.clock(), account=account, problem=problem, is_login=is_login
        )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()

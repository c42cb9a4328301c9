"""Inbound messages of channels, and what becomes of them."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import Principal
from evoclaw.core.messages import ImageBlock
from evoclaw.transport.mailboxes import MailboxState, OutboxMessage

ChannelAnswer = OutboxMessage
"""An answer; the same on every channel."""
MessageState = MailboxState


class InboundMessage(Struct, frozen=True, omit_defaults=True):
    """A message from a person, received on a channel."""

    channel: str
    id: str
    """Chosen by the sender; a message that arrives twice is answered once."""
    sender: str
    """The name of the sender on the channel; answers go there."""
    text: str
    tenant: str
    user: str
    """The name of the sender in the orchestrator."""
    agent: str = ""
    """The agent that answers; empty is the default agent."""
    conversation: str = ""
    """The sender's name for one of several conversations."""
    untrusted: bool = False
    """Whether it may come from a sender who is not configured."""
    command: str = ""
    """The command that it is, such as `new`; empty for a message to the agent."""
    images: tuple[ImageBlock, ...] = ()
    """Images that belong to the message."""
    reply_to: str = ""
    """What the channel needs to answer it, in a form of its own."""

    @property
    def conversation_key(self) -> str:
        """What its session is stored under, beside channel and sender."""
        return f"{self.agent}/{self.conversation}"  # a session belongs to one agent

    @property
    def principal(self) -> Principal:
        """On whose behalf the run answers."""
        return Principal(self.tenant, self.user)


class AcceptResult(Struct, frozen=True, omit_defaults=True):
    """What `ChannelDispatcher.accept` did with a message."""

    state: MessageState
    run_id: str = ""
    fresh: bool = True
    """False if it was received before; then nothing new is started."""
    reason: str = ""
    """A code for why it is not answered, for programs; empty if it is answered."""
    text: str = ""
    """The same for people."""


class MessageRefused(EvoClawError):
    """A message was refused: it is not stored, and no answer follows."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Undelivered(EvoClawError):
    """An answer could not be delivered.

    Args:
        problem: Why.
        final: Whether it is not retried.
        retry_after: Seconds after which the receiver wants the next attempt.
        status: The HTTP status of the response, if there was one.
    """

    def __init__(
        self,
        problem: str,
        *,
        final: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.final, self.retry_after, self.status = final, retry_after, status

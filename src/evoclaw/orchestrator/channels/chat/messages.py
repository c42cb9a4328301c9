"""What chat services receive and send, in one form for all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from evoclaw.core.messages import JSON, ImageBlock
from evoclaw.orchestrator.channels.inbound import Undelivered

MAX_IMAGES, MAX_IMAGE_BYTES = 8, 5 * 2**20
"""Of one message; further and larger ones are named to the agent, but not read."""


class ServiceError(Undelivered):
    """A service refused a request, or cannot be reached.

    Args:
        problem: Why, without secrets.
        code: The service's own code of the error.
        is_login: Whether the token or the password is wrong.
        final: Whether the same request would fail again.
        retry_after: Seconds after which the service wants the next request.
        status: The HTTP status of the response, if there was one.
        body: The decoded response.
    """

    def __init__(
        self,
        problem: str,
        *,
        code: str = "",
        is_login: bool = False,
        final: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        body: JSON = None,
    ) -> None:
        super().__init__(problem, final=final, retry_after=retry_after, status=status)
        self.code, self.is_login, self.body = code, is_login, body


class ConversationMessage(Struct, frozen=True):
    """A message that a person wrote."""

    id: str
    """Unique in the service; the same when the service delivers it again."""
    sender: str
    conversation: str
    """Where it was written: a chat, and its thread if there are threads. Answers go there."""
    text: str
    images: tuple[ImageBlock, ...] = ()
    reply_to: str = ""
    """What the service needs to answer it."""
    is_private: bool = True
    """Whether nobody else reads the conversation."""
    is_verified: bool = True
    """Whether the service vouches for the sender."""


class ButtonPress(Struct, frozen=True):
    """A person pressed a button below one of our messages."""

    id: str
    sender: str
    conversation: str
    token: str
    """The value of the button."""
    reply_to: str = ""
    """What the service needs to acknowledge it."""


class ChatInvitation(Struct, frozen=True):
    """A person invited the bot to a conversation."""

    sender: str
    conversation: str


ChatEvent = ConversationMessage | ButtonPress | ChatInvitation


class ChatBatch(Struct, frozen=True):
    """What a service received at once; an empty one says that it is connected."""

    events: tuple[ChatEvent, ...] = ()
    cursor: str = ""
    """Where to continue once these events are stored; empty: as before."""


class Button(Struct, frozen=True):
    """A button below a message."""

    label: str
    token: str
    """At most 64 characters."""


class OutgoingMessage(Struct, frozen=True):
    """A message to send."""

    id: str
    """The same for each attempt, so that services that can recognise a duplicate do."""
    sender: str
    """Whose message it answers."""
    conversation: str
    text: str
    reply_to: str = ""
    buttons: tuple[Button, ...] = ()


class ChatService(Protocol):
    """The client of a chat service or a mailbox."""

    @property
    def max_chars(self) -> int:
        """Of a message, in UTF-16 units."""
        ...

    @property
    def has_buttons(self) -> bool:
        """Whether messages can have buttons."""
        ...

    @property
    def answers_strangers(self) -> bool:
        """Whether it is safe to answer a sender that is not allowed."""
        ...

    @property
    def typing_interval_s(self) -> float:
        """After which a typing indicator disappears; 0 if there is none."""
        ...

    async def check(self) -> str:
        """Log in, and return the name of the account; raise `ServiceError` if that fails."""
        ...

    def receive(self, cursor: str) -> AsyncGenerator[ChatBatch, None]:
        """Yield what arrives; a batch is acknowledged when the next one is asked for.

        Raises `ServiceError` if the connection fails.

        Args:
            cursor: Of the last stored batch; empty at first, then old messages are skipped.
        """
        ...

    async def post(self, message: OutgoingMessage) -> None:
        """Send a message; raise `ServiceError` if it was not accepted."""
        ...

    async def show_typing(self, conversation: str) -> None:
        """Show that an answer is being written."""
        ...

    async def acknowledge(self, event: ButtonPress | ChatInvitation) -> None:
        """Show that a press was received, or accept an invitation."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...

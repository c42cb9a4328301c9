"""The port: a channel brings letters from people, and takes answers back to them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import Principal
from evoclaw.transport.mailboxes import MailboxState, OutboxMessage

Answer = OutboxMessage
"""What goes back: the same on every channel."""
State = MailboxState


class Letter(Struct, frozen=True, omit_defaults=True):
    """What somebody said, on some channel."""

    channel: str
    id: str
    """The sender's own; one that comes twice is answered once."""
    sender: str
    """As the channel knows them: who must be told."""
    text: str
    tenant: str
    user: str
    """As the orchestrator knows them."""
    agent: str = ""
    """Who is to answer; the default agent if empty."""
    conversation: str = ""
    """The sender's own name for one of several conversations."""
    untrusted: bool = False
    """Somebody else than a person we know may have written it."""

    @property
    def principal(self) -> Principal:
        """On whose behalf it is answered."""
        return Principal(self.tenant, self.user)


class Taken(Struct, frozen=True, omit_defaults=True):
    """What became of a letter that was brought."""

    state: State
    run_id: str = ""
    fresh: bool = True
    """False if it came before: nothing new is done about it."""
    reason: str = ""
    """A word for why it is not answered, for programs; empty if it is."""
    text: str = ""
    """The same for people."""


class Refused(EvoClawError):
    """A letter that is not taken: nothing was kept of it, and no answer will come."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Undelivered(EvoClawError):
    """An answer did not reach whom it is for.

    Args:
        problem: Why not.
        final: It never will, so it is not tried again.
        retry_after: Seconds after which the other side wants it to be tried again.
    """

    def __init__(
        self, problem: str, *, final: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(problem)
        self.final, self.retry_after = final, retry_after


class Front(Protocol):
    """Where channels bring letters."""

    async def take(self, letter: Letter) -> Taken:
        """Keep a letter and have it answered; every answer comes by `Channel.send`.

        Returns when it is kept, not when it is answered. Raise `Refused` for one that is not
        taken, and another `EvoClawError` when it could not be kept: then it may come again.
        """
        ...

    async def say_again(self, letter: Letter) -> bool:
        """Send what was said last about a letter once more; False if nothing was said yet."""
        ...

    async def hurry(self, channel: str) -> None:
        """Send what is owed on a channel now: its way is free again."""
        ...


class Channel(Protocol):
    """A way that people have to agents."""

    @property
    def name(self) -> str:
        """As it is configured."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether a letter of long ago may come again, so that its id is kept for ever."""
        ...

    async def serve(self, front: Front) -> None:
        """Bring letters until cancelled."""
        ...

    async def send(self, letter: Letter, answer: Answer) -> None:
        """Deliver an answer to whoever sent the letter; perhaps not for the first time.

        Raise `Undelivered` when it did not arrive.
        """
        ...

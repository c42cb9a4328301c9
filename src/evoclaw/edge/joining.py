"""Joining a fleet: a token that works once is exchanged for a password of one's own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.topics import Kind, topic
from evoclaw.transport.wire import (
    Report,
    ReportType,
    WireError,
    convert,
    encode,
    read_command,
)

PATIENCE = 30.0
"""Seconds for all of it."""
AGAIN = 1.0
"""Seconds before what got no answer is said again."""


class JoinFailed(EvoClawError):
    """The fleet did not let us in; the message says why."""


class Joined(Struct, frozen=True):
    """What a new member is given."""

    nonce: str
    password: str = ""
    orchestrator_key: str = ""
    done: bool = False
    refused: str = ""


class Guest:
    """Who is not a member yet; a link's party."""

    def __init__(self, agent_id: str, token: str, link: Link, *, key: str = "") -> None:
        """`key` is the public key that its receipts will be signed with."""
        self._agent_id, self._token, self._link, self._key = agent_id, token, link, key
        self._nonce = secrets.token_hex(16)
        self._answer: asyncio.Queue[Joined] = asyncio.Queue()
        self._up = asyncio.Event()
        self._reason = ""

    async def join(self, keep: Callable[[Joined], Awaitable[None]]) -> None:
        """Ask for a password, have it kept, and say so; `JoinFailed` if that does not work."""
        running = asyncio.create_task(self._link.run(self))
        try:
            async with asyncio.timeout(PATIENCE):
                await self._up.wait()
                given = await self._ask(kept=False)
                await keep(given)
                await self._ask(kept=True)
        except TimeoutError:
            why = self._reason or "nobody answered; is `evoclaw up` running there?"
            raise JoinFailed(f"could not join: {why}") from None
        finally:
            running.cancel()
            await asyncio.wait([running])

    @property
    def client_id(self) -> str:
        """Another one each time."""
        return f"{self._agent_id}-{self._nonce}"

    @property
    def subscriptions(self) -> Sequence[str]:
        """Our own commands."""
        return (topic(self._agent_id, Kind.COMMANDS),)

    def will(self) -> Will | None:
        """None."""
        return None

    async def connected(self) -> None:
        """The broker took the token."""
        self._up.set()

    def disconnected(self, reason: str) -> None:
        """Remember why, for when it is given up."""
        self._reason = reason

    def received(self, message: Incoming) -> None:
        """Take the answer."""
        try:
            command = read_command(message.payload)
            answer = convert(command.payload, Joined) if command.command == "joined" else None
        except WireError:
            return  # not for us: commands before we are a member
        if answer is not None and answer.nonce == self._nonce:
            self._answer.put_nowait(answer)

    async def _ask(self, *, kept: bool) -> Joined:
        said: dict[str, JSON] = {"token": self._token, "nonce": self._nonce, "kept": kept}
        said |= {"key": self._key} if self._key else {}
        report = encode(Report(self._agent_id, "", ReportType.JOIN, said))
        while True:
            try:
                await self._link.publish(topic(self._agent_id, Kind.REPORTS), report)
            except LinkDown as down:
                self._reason = self._reason or str(down)
            try:
                async with asyncio.timeout(AGAIN):
                    answer = await self._answer.get()
            except TimeoutError:
                continue
            if answer.refused:
                raise JoinFailed(f"could not join: {answer.refused}")
            if answer.done is kept:
                return answer

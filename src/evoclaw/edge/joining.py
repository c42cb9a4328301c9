"""Joining a fleet: a one-time token is exchanged for the device's own password."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.topics import TopicKind, topic
from evoclaw.transport.wire import (
    Report,
    ReportType,
    WireError,
    convert,
    encode,
    read_command,
)

JOIN_TIMEOUT_S = 30.0
"""For the whole exchange."""
JOIN_RETRY_DELAY_S = 1.0
"""How long an unanswered request waits before it is repeated."""


class JoinFailed(EvoClawError):
    """The fleet refused the device; the message says why."""


class JoinReply(Struct, frozen=True):
    """The orchestrator's reply to a join request."""

    nonce: str
    password: str = ""
    orchestrator_key: str = ""
    done: bool = False
    refused: str = ""


class JoiningEdge:
    """A device that is not a member yet; a link's party."""

    def __init__(self, agent_id: str, token: str, link: Link, *, key: str = "") -> None:
        """`key` is the public key that its receipts will be signed with."""
        self._agent_id, self._token, self._link, self._key = agent_id, token, link, key
        self._nonce = secrets.token_hex(16)
        self._answer: asyncio.Queue[JoinReply] = asyncio.Queue()
        self._up = asyncio.Event()
        self._reason = ""

    async def join(self, keep: Callable[[JoinReply], Awaitable[None]]) -> None:
        """Request a password, store it, and confirm it; `JoinFailed` if that does not work."""
        running = asyncio.create_task(self._link.run(self))
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await self._up.wait()
                given = await self._ask(kept=False)
                await keep(given)
                await self._ask(kept=True)
        except TimeoutError:
            why = self._reason or "no orchestrator answered; is `evoclaw up` running there?"
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
        return (topic(self._agent_id, TopicKind.COMMANDS),)

    def will(self) -> Will | None:
        """None."""
        return None

    async def connected(self) -> None:
        """The broker took the token."""
        self._up.set()

    def disconnected(self, reason: str) -> None:
        """Remember the reason, for the error."""
        self._reason = reason

    def received(self, message: Incoming) -> None:
        """Take the answer."""
        try:
            command = read_command(message.payload)
            answer = convert(command.payload, JoinReply) if command.command == "joined" else None
        except WireError:
            return  # not for us: commands before we are a member
        if answer is not None and answer.nonce == self._nonce:
            self._answer.put_nowait(answer)

    async def _ask(self, *, kept: bool) -> JoinReply:
        said: dict[str, JSON] = {"token": self._token, "nonce": self._nonce, "kept": kept}
        said |= {"key": self._key} if self._key else {}
        report = encode(Report(self._agent_id, "", ReportType.JOIN, said))
        while True:
            try:
                await self._link.publish(topic(self._agent_id, TopicKind.REPORTS), report)
            except LinkDown as down:
                self._reason = self._reason or str(down)
            try:
                async with asyncio.timeout(JOIN_RETRY_DELAY_S):
                    answer = await self._answer.get()
            except TimeoutError:
                continue
            if answer.refused:
                raise JoinFailed(f"could not join: {answer.refused}")
            if answer.done is kept:
                return answer

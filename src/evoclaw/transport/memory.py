"""A broker and its links inside one process: for a single machine, and for tests.

It behaves like a real broker: retained messages, wills, `+` and `#`, one connection per client id.
Nothing is delivered inside a publish, so no party is called re-entrantly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from evoclaw.transport.link import (
    MAX_PAYLOAD_BYTES,
    Backoff,
    Incoming,
    LinkDown,
    MessageProperties,
    Party,
    TooLarge,
    Will,
    topic_bytes,
    until_lost,
)

_MIN_RECONNECT_DELAY_S, _MAX_RECONNECT_DELAY_S = 0.01, 0.1


class MemoryBroker:
    """Carries messages between the links of one event loop."""

    def __init__(self, *, max_payload: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_payload = max_payload
        self._retained: dict[str, tuple[bytes, MessageProperties | None]] = {}
        self._sessions: dict[str, _Session] = {}
        self._up = asyncio.Event()
        self._up.set()

    @property
    def is_up(self) -> bool:
        """Whether links can connect."""
        return self._up.is_set()

    def up(self) -> None:
        """Accept links again."""
        self._up.set()

    def down(self, *, forget: bool = False) -> None:
        """End all connections and accept no new ones; a dead broker publishes no wills.

        Args:
            forget: Also lose the retained messages, like a broker without persistence.
        """
        self._up.clear()
        if forget:
            self._retained.clear()
        for session in tuple(self._sessions.values()):
            self.leave(session, "the broker went down")

    async def reachable(self) -> None:
        """Wait until links can connect."""
        await self._up.wait()

    def join(self, session: _Session) -> None:
        """Start a session; an older one of that client id ends."""
        older = self._sessions.get(session.client_id)
        if older is not None:
            self.drop(older, "another client connected with the same name")
        self._sessions[session.client_id] = session
        for topic, (payload, properties) in self._retained.items():
            session.take(Incoming(topic, payload, True, properties))

    def leave(self, session: _Session, reason: str) -> None:
        """End a session, without its will."""
        if not session.lost.done():
            session.lost.set_result(reason)
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    def drop(self, session: _Session, reason: str) -> None:
        """End a session without a DISCONNECT: its will is published."""
        if not session.lost.done():
            self.leave(session, reason)
            if session.will is not None:
                will = session.will
                self.publish(will.topic, will.payload, retain=True, properties=will.properties)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool,
        properties: MessageProperties | None = None,
    ) -> None:
        """Deliver a message to all subscribers, and store it if it is retained."""
        if retain and payload:
            self._retained[topic] = payload, properties
        elif retain:
            self._retained.pop(topic, None)
        message = Incoming(topic, payload, properties=properties)
        for session in self._sessions.values():
            session.take(message)


class MemoryLink:
    """A link to a broker in this process."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._session: _Session | None = None
        self._plugged = asyncio.Event()
        self._plugged.set()

    @property
    def is_up(self) -> bool:
        """Whether the link is connected."""
        return self._session is not None and not self._session.lost.done()

    @property
    def max_payload(self) -> int:
        """The maximum bytes of a message."""
        return self._broker.max_payload

    def drop(self) -> None:
        """Lose the connection: the will is published, and the link reconnects."""
        if self._session is not None:
            self._broker.drop(self._session, "the connection was dropped")

    def unplug(self) -> None:
        """Lose the connection, and do not reconnect."""
        self._plugged.clear()
        self.drop()

    def plug(self) -> None:
        """Come again."""
        self._plugged.set()

    async def run(self, party: Party) -> None:
        """Keep the party connected until cancelled; then leave cleanly, without its will."""
        backoff = Backoff(first=_MIN_RECONNECT_DELAY_S, cap=_MAX_RECONNECT_DELAY_S)
        while True:
            await self._reachable(party)
            session = _Session(party)
            try:
                reason = await until_lost(self._open(session, party), session.lost)
            finally:
                self._session = None
                self._broker.leave(session, "left")
            party.disconnected(reason)
            await asyncio.sleep(backoff.wait(0.0))

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: MessageProperties | None = None,
    ) -> None:
        """Publish a message."""
        topic_bytes(topic)
        if not self.is_up:
            raise LinkDown
        if len(payload) > self.max_payload:
            raise TooLarge(len(payload), self.max_payload)
        self._broker.publish(topic, payload, retain=retain, properties=properties)

    @property
    def _may_connect(self) -> bool:
        return self._plugged.is_set() and self._broker.is_up

    async def _reachable(self, party: Party) -> None:
        if not self._may_connect:
            party.disconnected("the broker is unreachable")
        while not self._may_connect:
            await self._plugged.wait()
            await self._broker.reachable()

    async def _open(self, session: _Session, party: Party) -> None:
        if not self._may_connect:
            return session.lost.set_result("the broker is unreachable")
        self._broker.join(session)
        self._session = session
        return await party.connected()


class _Session:
    """One connection as the broker sees it."""

    def __init__(self, party: Party) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.client_id = party.client_id
        self.will: Will | None = party.will()
        self._party = party
        self._patterns = [pattern.split("/") for pattern in party.subscriptions]

    def take(self, message: Incoming) -> None:
        """Schedule the delivery of a message that the party subscribed to."""
        levels = message.topic.split("/")
        if any(_matches(pattern, levels) for pattern in self._patterns):
            self._loop.call_soon(self._deliver, message)

    def _deliver(self, message: Incoming) -> None:
        if not self.lost.done():
            self._party.received(message)


def _matches(pattern: Sequence[str], levels: Sequence[str]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted == "#":
            return True
        if index == len(levels) or wanted not in ("+", levels[index]):
            return False
    return len(pattern) == len(levels)

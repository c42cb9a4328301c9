"""The port `Link`: carries bytes between an orchestrator and its edges, and may fail at any time.

A link guarantees little: a message that is published while it is up probably arrives, perhaps
twice, perhaps out of order. What must not be lost is stored elsewhere and published again.

Reconnecting, for every link: run until the connection is lost, back off, try again.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from msgspec import Struct

from evoclaw.core.errors import EvoClawError

MAX_PAYLOAD_BYTES = 256 * 1024 - 1024
"""Bytes; packets stay under 256 KB whatever a broker allows."""
MAX_TOPIC_BYTES = 512
"""Bytes; the longest topic in use has about 100."""
MAX_CACHED_TOPICS = 4096
_NOT_IN_TOPICS = re.compile(r"[+#\x00-\x1f\x7f-\x9f]")


class LinkDown(EvoClawError):
    """The link is not connected; publish again after the next connect."""

    def __init__(self) -> None:
        super().__init__("the link to the broker is down")


class TooLarge(EvoClawError):
    """The payload exceeds the link's limit; it was not sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the {limit} that the broker accepts")
        self.size, self.limit = size, limit


class MessageProperties(Struct, frozen=True):
    """The properties of a message that MQTT 5 has; MQTT 3.1.1 carries none of them."""

    response_topic: str = ""
    """Where the reply is expected."""
    correlation: bytes = b""
    """What the reply repeats, so that the sender knows its request."""
    content_type: str = ""
    user: tuple[tuple[str, str], ...] = ()
    """Names and values of the sender's own; a name may be repeated."""

    def user_value(self, name: str) -> str:
        """The first value of a user property; empty if there is none."""
        return next((value for key, value in self.user if key == name), "")


class Incoming(Struct, frozen=True):
    """What arrived."""

    topic: str
    payload: bytes
    retained: bool = False
    """The broker retained it; the time of publication is unknown."""
    properties: MessageProperties | None = None
    """None if it has none, or if the broker only speaks MQTT 3.1.1."""


class Will(Struct, frozen=True):
    """The message that the broker publishes, retained, when this party's connection is lost."""

    topic: str
    payload: bytes
    properties: MessageProperties | None = None


class Party(Protocol):
    """The user of a link: an edge, an orchestrator, or a joining device."""

    @property
    def client_id(self) -> str:
        """Its MQTT client id; a second party with the same id ends the first party's connection."""
        ...

    @property
    def subscriptions(self) -> Sequence[str]:
        """Its subscriptions; they do not overlap."""
        ...

    def will(self) -> Will | None:
        """Its will for the next connection; called before each connect."""
        ...

    async def connected(self) -> None:
        """Called after each connect, when the subscriptions are in place. May publish.

        It starts before the connection's first message is received, and is cancelled when the
        connection is lost meanwhile. It may raise `LinkDown`; any other error ends `Link.run`.
        """
        ...

    def disconnected(self, reason: str) -> None:
        """Called when a connection ended or could not be made; the link keeps retrying."""
        ...

    def received(self, message: Incoming) -> None:
        """Handle a message: fast, in order, without raising.

        An error it still raises goes to the event loop's exception handler; the link continues.
        """
        ...


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def topic_bytes(topic: str) -> bytes:
    """The encoded topic; raise `ValueError` if the broker would close the connection for it."""
    data = topic.encode()
    if not 0 < len(data) <= MAX_TOPIC_BYTES or _NOT_IN_TOPICS.search(topic) is not None:
        raise ValueError(f"no message can be published to the topic {topic[:80]!r}")
    return data


class Link(Protocol):
    """A connection to the broker that reconnects."""

    @property
    def is_up(self) -> bool:
        """Whether the link is connected."""
        ...

    @property
    def max_payload(self) -> int:
        """Maximum bytes of a message: `MAX_PAYLOAD_BYTES`, or the broker's limit if lower."""
        ...

    async def run(self, party: Party) -> None:
        """Keep the party connected until cancelled; then leave cleanly, without its will."""
        ...

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: MessageProperties | None = None,
    ) -> None:
        """Publish a message at least once; wait while too many are in flight.

        Raise `LinkDown` without a connection, `TooLarge` before anything is sent, and
        `ValueError` for an invalid topic.
        """
        ...


STEADY_AFTER_S = 10.0
"""A connection that lasted this long resets the back-off."""


class Backoff:
    """The delay before the next connect: exponential, with full jitter.

    A thousand parties that lost their broker at once must not reconnect at once.
    """

    def __init__(self, *, first: float = 0.25, cap: float = 30.0) -> None:
        self._first, self._cap = first, cap
        self._tries = 0

    def wait(self, lived: float) -> float:
        """Seconds to wait after a connection that lasted this long; 0 if it was never made."""
        if lived >= STEADY_AFTER_S:
            self._tries = 0
        # Bounded: after a week of tries the power would overflow a float.
        longest = min(self._cap, self._first * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return random.uniform(0.0, longest)


async def until_lost(opening: Coroutine[Any, Any, None], lost: asyncio.Future[str]) -> str:
    """Connect, notify the party, wait until the connection is lost, and return the reason.

    The loss also cancels the opening: a party that waits for a reply in `connected` would wait
    forever. Errors of the opening are raised here, except `LinkDown`.
    """
    task = asyncio.create_task(opening)
    try:
        await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled() and task.exception() is None:
            # Not awaited directly: cancelling this task must not cancel it.
            await asyncio.wait((lost,))
    finally:
        task.cancel()
        await asyncio.wait((task,))
    with suppress(LinkDown, asyncio.CancelledError):
        task.result()
    return lost.result() if lost.done() else str(LinkDown())

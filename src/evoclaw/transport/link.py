"""The port `Link`: carries bytes between an orchestrator and its edges, and may fail at any time.

A link promises little: what was published while it is up probably arrives, perhaps twice, perhaps
after something published later. What must not be lost is kept elsewhere and said again.

Reconnecting, for every link: run until the connection is lost, back off, try again.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from evoclaw.core.errors import EvoClawError

MAX_PAYLOAD_BYTES = 256 * 1024 - 1024
"""Bytes; packets stay under 256 KB whatever a broker allows."""
MAX_TOPIC_BYTES = 512
"""Bytes; the longest of ours has about a hundred."""
_NOT_IN_TOPICS = re.compile(r"[+#\x00-\x1f\x7f-\x9f]")


class LinkDown(EvoClawError):
    """There is no connection now; say it again when there is one."""

    def __init__(self) -> None:
        super().__init__("the link to the broker is down")


class TooLarge(EvoClawError):
    """A payload that the link would not carry; it was not sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the {limit} that the broker takes")
        self.size, self.limit = size, limit


class Incoming(Struct, frozen=True):
    """What arrived."""

    topic: str
    payload: bytes
    retained: bool = False
    """The broker kept it; when it was said is not known."""


class Will(Struct, frozen=True):
    """What the broker says, retained, when this party is gone without a word."""

    topic: str
    payload: bytes


class Party(Protocol):
    """Who sits at the end of a link."""

    @property
    def client_id(self) -> str:
        """Its name at the broker; a second party of that name ends the first one's connection."""
        ...

    @property
    def subscriptions(self) -> Sequence[str]:
        """What it listens to; they do not overlap."""
        ...

    def will(self) -> Will | None:
        """Its will for the connection about to be made; asked each time."""
        ...

    async def connected(self) -> None:
        """Told after each connect, when the subscriptions are in place. May publish.

        It begins before the connection's first message is received, and is cancelled when the
        connection is lost meanwhile. `LinkDown` may leave it; anything else ends `Link.run`.
        """
        ...

    def disconnected(self, reason: str) -> None:
        """Told when a connection ended or could not be made; the link goes on trying."""
        ...

    def received(self, message: Incoming) -> None:
        """Take one message; quick, in order, never raising.

        What it raises nonetheless goes to the event loop's exception handler; the link goes on.
        """
        ...


def topic_bytes(topic: str) -> bytes:
    """A topic as it is sent; raise `ValueError` for one that would cost us the connection."""
    data = topic.encode()
    if not 0 < len(data) <= MAX_TOPIC_BYTES or _NOT_IN_TOPICS.search(topic) is not None:
        raise ValueError(f"no message can go to the topic {topic[:80]!r}")
    return data


class Link(Protocol):
    """A way to the broker."""

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now."""
        ...

    @property
    def max_payload(self) -> int:
        """The most bytes one message may have: ours or the broker's limit, the smaller."""
        ...

    async def run(self, party: Party) -> None:
        """Keep the party connected until cancelled; then leave cleanly, without its will."""
        ...

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Hand a message to the connection, at least once; wait while too many are under way.

        Raise `LinkDown` when there is none, `TooLarge` before anything is sent, and `ValueError`
        for a topic that no message can have.
        """
        ...


STEADY_AFTER_S = 10.0
"""A connection that lived this long was a good one: the next wait is short again."""


class Backoff:
    """How long to wait before the next try: exponential, with full jitter.

    A thousand parties that lost their broker at the same moment must not come back at the same.
    """

    def __init__(self, *, first: float = 0.25, cap: float = 30.0) -> None:
        self._first, self._cap = first, cap
        self._tries = 0

    def wait(self, lived: float) -> float:
        """Seconds to wait after a connection that lived this long; 0 if there was none."""
        if lived >= STEADY_AFTER_S:
            self._tries = 0
        # Bounded: two to the power of a week of tries is no float.
        longest = min(self._cap, self._first * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return random.uniform(0.0, longest)


async def until_lost(opening: Coroutine[Any, Any, None], lost: asyncio.Future[str]) -> str:
    """Make a connection and greet the party, wait until it is lost, and return why.

    The loss also ends the opening: a party that waits for an answer while it is greeted would
    wait for ever. What the opening raises is raised here, except that the link is down.
    """
    task = asyncio.create_task(opening)
    try:
        await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not task.cancelled() and task.exception() is None:
            # Not awaited itself: cancelling us must not cancel it.
            await asyncio.wait((lost,))
    finally:
        task.cancel()
        await asyncio.wait((task,))
    with suppress(LinkDown, asyncio.CancelledError):
        task.result()
    return lost.result() if lost.done() else str(LinkDown())

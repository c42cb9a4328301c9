"""Request one reply and retry until it is complete; shared by all HTTP providers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import UNSET, UnsetType

from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried
from evoclaw.core.messages import Reply, Usage
from evoclaw.core.tools import Tool
from evoclaw.providers.errors import AttemptFailed, redact, unreadable_reply
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.prices import Price
from evoclaw.providers.reply_builder import ReplyBuilder
from evoclaw.providers.request_encoding import with_own_tool_names
from evoclaw.providers.sse import PayloadSplitter
from evoclaw.providers.surrogates import SurrogateJoiner


class PayloadParser(Protocol):
    """Parses the payloads of one vendor's API into a `ReplyBuilder`."""

    @property
    def out(self) -> ReplyBuilder:
        """The reply so far."""
        ...

    def feed(self, payload: bytes) -> Sequence[ReplyEvent]:
        """Parse one payload; return the new deltas. Raise `AttemptFailed` if it is an error."""
        ...


@dataclass(frozen=True, slots=True)
class ModelServer:
    """The server of a model: its URL, headers, retry policy and prices."""

    name: str
    model: str
    url: str
    http: Http
    retry: RetryPolicy
    price: Price | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def full_name(self) -> str:
        """The `provider/model` name."""
        return f"{self.name}/{self.model}"

    def without_keys(self, failure: AttemptFailed) -> AttemptFailed:
        """The same failure, without API keys that the server's message repeats."""
        values = (value.removeprefix("Bearer ") for value in self.headers.values())
        message = redact(failure.message, [value for value in values if len(value) > 7])
        return AttemptFailed(failure.kind, message, retry_after=failure.retry_after)

    def cost(self, model: str, usage: Usage) -> float | None:
        """In US dollars; None if the price or the usage is unknown."""
        if self.price is None or usage == Usage():
            return None
        cost = self.price(model, usage)
        return self.price(self.model, usage) if cost is None else cost


def endpoint_url(base_url: str, path: str) -> str:
    """Append a path to a base URL, before its query if it has one."""
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            "the base URL must have the form http://host:port/path or https://host/path"
        )
    parts = urlsplit(base_url)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path))


async def stream_reply(
    server: ModelServer,
    body: bytes,
    new_splitter: Callable[[], PayloadSplitter],
    new_parser: Callable[[], PayloadParser],
    tools: Sequence[Tool] = (),
    max_retries: int | UnsetType = UNSET,
) -> AsyncGenerator[ReplyEvent]:
    """Yield deltas and retries, then exactly one `Replied`, or raise `ProviderError`.

    Args:
        server: The server to ask.
        body: The body of the request.
        new_splitter: Creates the splitter of one attempt.
        new_parser: Creates the parser of one attempt.
        tools: The tools of the request; calls in the reply get their own names back.
        max_retries: How often to retry, at most as often as the server's policy says.
    """
    spent, waited, retry = _FailedAttempts(server), 0.0, server.retry.at_most(max_retries)
    for attempt in count(1):
        splitter, parser, payload = new_splitter(), new_parser(), b""
        out, join_surrogates = parser.out, SurrogateJoiner()
        try:
            answer = await server.http.post(server.url, server.headers, body)
            try:
                while not out.ended:
                    data = await answer.read()
                    for payload in splitter.feed(data) if data else splitter.end():
                        for event in parser.feed(join_surrogates(payload)):
                            yield event
                    if not data:
                        break
                else:
                    await answer.drain()
            finally:
                answer.close()
            failure = out.incomplete_error()
        except AttemptFailed as error:
            failure = server.without_keys(error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            failure = server.without_keys(unreadable_reply(payload))
        if out.is_complete:
            # Even if the connection failed after the last piece: the reply is paid for.
            yield Replied(spent.add_to(with_own_tool_names(out.build(), tools)))
            return
        spent.add(out)
        wait = retry.wait(failure, attempt, waited)
        if wait is None:
            raise failure.to_error(server.full_name, spent.usage)
        yield ReplyRetried(failure.kind, failure.message, attempt, wait)
        await asyncio.sleep(wait)
        waited += wait


class _FailedAttempts:
    """The usage and cost of failed attempts, to be added to the reply."""

    __slots__ = ("_cost", "_server", "usage")

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.usage = Usage()
        self._cost: float | None = 0.0

    def add(self, out: ReplyBuilder) -> None:
        if out.usage != Usage():
            cost = self._server.cost(out.model, out.usage)
            self.usage += out.usage
            self._cost = None if cost is None or self._cost is None else self._cost + cost

    def add_to(self, reply: Reply) -> Reply:
        """The reply with its cost, plus the usage and cost of the failed attempts."""
        cost = self._server.cost(reply.model, reply.usage)
        if cost is not None:
            cost = None if self._cost is None else cost + self._cost
        return msgspec.structs.replace(reply, usage=reply.usage + self.usage, cost=cost)

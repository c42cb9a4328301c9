"""An append-only list of messages; each is encoded once for each provider API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar, cast

from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import (
    Block,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    TextBlock,
    ToolResult,
    UserMessage,
    label_of,
)

IMAGE_CHARS = 4_000
"""The size of an image in characters: about a thousand tokens."""


CALL_OVERHEAD_CHARS = 16
"""The size of a call in characters, in addition to its name and arguments."""


class MessageEncoder(Protocol):
    """Encodes a conversation for a provider's API, message by message."""

    def add(self, message: Message) -> None:
        """Encode one more message after those before it."""
        ...


W = TypeVar("W", bound=MessageEncoder)


class History:
    """The messages of a conversation, in order."""

    __slots__ = ("_messages", "_written", "label", "size")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._written: dict[str, tuple[MessageEncoder, int]] = {}
        self.size = 0
        """In characters; the basis of the token estimate."""
        self.label: Label = CLEAN
        """Where the content came from: the labels of all messages, joined."""
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        """Add one message at the end."""
        self._messages.append(message)
        self.size += size_of(message)
        label = label_of(message)
        if label is not CLEAN:
            self.label = self.label | label

    def encoded(self, dialect: str, new: Callable[[], W]) -> W:
        """The encoder for an API, with every message so far encoded exactly once."""
        encoder, done = self._written.get(dialect) or (new(), 0)
        if done < len(self._messages):
            for message in islice(self._messages, done, None):
                encoder.add(message)
            self._written[dialect] = encoder, len(self._messages)
        return cast("W", encoder)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._messages == other._messages

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({self._messages!r})"

    def to_tuple(self) -> tuple[Message, ...]:
        """The messages as they are now."""
        return tuple(self._messages)


def size_of(message: Message) -> int:
    """The length of a message in characters, as a model would see it."""
    # By exact type, the likely ones first: a failing isinstance() on a Struct is slow.
    size = 0
    if type(message) is ToolResult or type(message) is UserMessage:
        for block in message.blocks:
            size += len(block.text) if isinstance(block, TextBlock) else _size_of_other(block)
    elif isinstance(message, Reply):
        size = len(message.text)
        for call in message.calls:
            size += len(call.name) + len(call.arguments) + CALL_OVERHEAD_CHARS
    elif isinstance(message, SystemMessage):
        size = len(message.text)
    return size


def _size_of_other(block: Block) -> int:
    return IMAGE_CHARS if isinstance(block, ImageBlock) else len(block.text)

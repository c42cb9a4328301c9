"""An append-only list of messages; none is encoded twice for the same wire."""

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

IMAGE_SIZE = 4_000
"""What a picture counts for, in characters: about a thousand tokens."""


CALL_SIZE = 16
"""What a call counts for beside its name and arguments."""


class Writer(Protocol):
    """Puts a conversation into a provider's words, one message after the other."""

    def add(self, message: Message) -> None:
        """Write one more message behind those before it."""
        ...


W = TypeVar("W", bound=Writer)


class History:
    """The messages of a conversation, in order."""

    __slots__ = ("_messages", "_written", "label", "size")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._written: dict[str, tuple[Writer, int]] = {}
        self.size = 0
        """In characters; the base of the token estimate."""
        self.label: Label = CLEAN
        """Where all of it came from."""
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        """Add one message at the end."""
        self._messages.append(message)
        self.size += size_of(message)
        label = label_of(message)
        if label is not CLEAN:
            self.label = self.label | label

    def written(self, dialect: str, new: Callable[[], W]) -> W:
        """The dialect's writer, told of every message so far and of none twice."""
        writer, done = self._written.get(dialect) or (new(), 0)
        if done < len(self._messages):
            for message in islice(self._messages, done, None):
                writer.add(message)
            self._written[dialect] = writer, len(self._messages)
        return cast("W", writer)

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
    """How long a message is, in characters as a model would see them."""
    # By exact type, and the likely ones first: to learn that a struct is no instance is slow.
    size = 0
    if type(message) is ToolResult or type(message) is UserMessage:
        for block in message.blocks:
            size += len(block.text) if isinstance(block, TextBlock) else _size_of_other(block)
    elif isinstance(message, Reply):
        size = len(message.text)
        for call in message.calls:
            size += len(call.name) + len(call.arguments) + CALL_SIZE
    elif isinstance(message, SystemMessage):
        size = len(message.text)
    return size


def _size_of_other(block: Block) -> int:
    return IMAGE_SIZE if isinstance(block, ImageBlock) else len(block.text)

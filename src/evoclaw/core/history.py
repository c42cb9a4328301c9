"""An append-only list of messages; none is encoded twice for the same wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from evoclaw.core.messages import ImageBlock, Message, Reply, SystemMessage

IMAGE_SIZE = 4_000
"""What a picture counts for, in characters: about a thousand tokens."""


CALL_SIZE = 16
"""What a call counts for beside its name and arguments."""


class History:
    """The messages of a conversation, in order."""

    __slots__ = ("_encoded", "_messages", "size")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = []
        self._encoded: dict[str, list[bytes]] = {}
        self.size = 0
        """In characters; the base of the token estimate."""
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        """Add one message at the end."""
        self._messages.append(message)
        self.size += size_of(message)

    def encoded(self, dialect: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        """Each message in a provider's dialect; only those added since the last time are encoded.

        A message that a dialect merges with its neighbour or leaves out may encode to `b""`.
        """
        done = self._encoded.setdefault(dialect, [])
        for message in self._messages[len(done) :]:
            done.append(encode(message))
        return done

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
    if isinstance(message, SystemMessage):
        return len(message.text)
    size = 0
    if isinstance(message, Reply):
        for call in message.calls:
            size += len(call.name) + len(call.arguments) + CALL_SIZE
        return size + len(message.text)
    for block in message.blocks:
        size += IMAGE_SIZE if isinstance(block, ImageBlock) else len(block.text)
    return size

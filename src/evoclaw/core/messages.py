"""The messages of a history: blocks, calls, replies, results. Pure values.

`gc=False` keeps the garbage collector from traversing long histories; it is safe because no value
here can contain itself.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.labels import CLEAN, Label

JSON: TypeAlias = Any
"""A JSON value; the one justified use of `Any`."""


def is_object(value: JSON) -> TypeGuard[dict[str, JSON]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: JSON) -> TypeGuard[list[JSON]]:
    """Whether a JSON value is an array."""
    return isinstance(value, list)


class TextBlock(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    """The text."""
    label: Label = CLEAN
    """Where the text came from."""


class ImageBlock(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="image"):
    """An image, base64-encoded."""

    media_type: str
    """The type of the image, such as `image/png`."""
    data: str
    """The image, base64-encoded."""
    label: Label = CLEAN
    """Where the image came from."""


class ErrorKind(StrEnum):
    """Why a call did not succeed: the values of `error_type` on the wire."""

    TIMEOUT = "timeout"
    """It ran longer than it may; it was ended."""
    NOT_FOUND = "not_found"
    """There is no such tool, command, file or agent."""
    PERMISSION_DENIED = "permission_denied"
    """The policy, the grant, or the operating system does not allow it."""
    INVALID_PARAMS = "invalid_params"
    """The arguments, or the message, cannot be read or do not fit the schema."""
    EXECUTION_FAILED = "execution_failed"
    """The tool ran and failed, such as a program with an exit code other than 0."""
    AGENT_OFFLINE = "agent_offline"
    """The edge is not online; the call was not sent."""
    QUEUE_FULL = "queue_full"
    """Too many calls wait for this edge; try again later."""
    CANCELLED = "cancelled"
    """The caller no longer wants it."""
    EXPIRED = "expired"
    """It did not start before its deadline."""
    UNKNOWN = "unknown"
    """It may have happened or not; look before you repeat it."""
    CONFLICT = "conflict"
    """Another command has the same id, or its arguments were changed."""
    VERSION_MISMATCH = "version_mismatch"
    """The two sides speak different versions of the protocol."""
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """There is no sandbox for a command that needs one."""
    TOO_LARGE = "too_large"
    """The arguments or the result do not fit into a message or a limit."""
    RESOURCE = "resource"
    """A limit on memory, processes or disk was reached."""
    INTERNAL = "internal"
    """A fault of EvoClaw, or an answer that cannot be read."""


class ErrorBlock(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="error"):
    """A failure, worded for the model: what went wrong and what to do next."""

    kind: ErrorKind
    """The kind of the error."""
    text: str
    """What went wrong and what to do next."""
    label: Label = CLEAN
    """Where the text came from."""


Block: TypeAlias = TextBlock | ImageBlock | ErrorBlock


class ToolCall(Struct, frozen=True, gc=False):
    """One call exactly as the model wrote it; nothing has been checked yet."""

    id: str
    """The id that the result refers to."""
    name: str
    """The name of the tool."""
    arguments: str = "{}"
    """JSON text. It may be malformed; the loop then answers with an error."""


class Usage(Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens, with the same meaning for every provider."""

    input: int = 0
    """Every token of the prompt, cached or not."""
    output: int = 0
    """Every token of the reply, reasoning included."""
    cache_read: int = 0
    """The part of `input` that was read from a cache."""
    cache_write: int = 0
    """The part of `input` that was written to a cache."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )


class Finish(StrEnum):
    """Why the model stopped writing."""

    STOP = "stop"
    CALLS = "calls"
    LENGTH = "length"
    """Cut off at the output limit: its calls are never run."""
    FILTERED = "filtered"


class SystemMessage(Struct, frozen=True, gc=False, tag_field="role", tag="system"):
    """The instructions a run starts with."""

    text: str
    """The instructions."""


class UserMessage(Struct, frozen=True, gc=False, tag_field="role", tag="user"):
    """A message of a person, or of the loop on their behalf."""

    blocks: tuple[Block, ...]
    """Its texts and images."""

    @property
    def text(self) -> str:
        """The text of all blocks that have one."""
        return join_text(self.blocks)


class Reply(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="role", tag="assistant"):
    """One reply of the model: text, calls, or both."""

    text: str = ""
    """The text of the reply."""
    calls: tuple[ToolCall, ...] = ()
    """The calls that the model requests."""
    finish: Finish = Finish.STOP
    """Why the model stopped writing."""
    usage: Usage = Usage()
    """The tokens of the reply."""
    model: str = ""
    """The model name in the server's reply, which may be more exact than the requested one."""
    cost: float | None = None
    """In US dollars; null if the model has no known price."""
    reasoning: str = ""
    """The model's reasoning. For people; never sent back."""
    recovered: bool = False
    """Its calls were JSON in its text, although the model could have made native ones."""

    @property
    def has_calls(self) -> bool:
        """Whether the model called tools."""
        return bool(self.calls)


class ToolResult(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="role", tag="tool"):
    """The result of one call."""

    call_id: str
    """The call that it answers."""
    name: str
    """The name of the tool."""
    blocks: tuple[Block, ...]
    """The content for the model."""
    error: ErrorKind | None = None
    """The kind of the error; null: the call succeeded."""
    details: dict[str, JSON] = {}
    """For people and programs; never sent to the model."""

    @property
    def text(self) -> str:
        """The text of all blocks that have one."""
        return join_text(self.blocks)


Message: TypeAlias = SystemMessage | UserMessage | Reply | ToolResult


def label_of(message: Message) -> Label:
    """The label of a message: those of all its blocks, joined."""
    label = CLEAN
    if type(message) is ToolResult or type(message) is UserMessage:
        for block in message.blocks:
            if block.label is not CLEAN:
                label = label | block.label
    return label


def labelled(blocks: tuple[Block, ...], label: Label) -> tuple[Block, ...]:
    """The same blocks with a label added to each."""
    return tuple(replace(block, label=block.label | label) for block in blocks)


def join_text(blocks: tuple[Block, ...]) -> str:
    """The text of all blocks, joined by line ends."""
    return "\n".join(block.text for block in blocks if not isinstance(block, ImageBlock))


def user(text: str) -> UserMessage:
    """A user message of plain text."""
    return UserMessage((TextBlock(text),))

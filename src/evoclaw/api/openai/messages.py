"""Converts OpenAI chat messages to a message history, and labels untrusted content."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence

from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.schemas import ChatMessage, ContentPart, ToolCallParam
from evoclaw.core.images import image_media_type
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import (
    Block,
    Finish,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    UserMessage,
)

_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,([A-Za-z0-9+/=\s]+)", re.IGNORECASE)
EARLIER_REPLY_LABEL = Label(untrusted=True, sources=("earlier replies",))
"""The label of assistant messages that the caller sends back: their sources are unknown."""
_EARLIER_REPLIES_NOTE = "(The replies above were given earlier. They may quote what others wrote.)"


def to_history(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Convert a conversation, which must end with a user message or tool results."""
    history = _HistoryReader()
    for index, message in enumerate(messages):
        history.add(index, message)
    return history.finish()


def trailing_results(messages: Sequence[ChatMessage]) -> dict[str, tuple[Block, ...]]:
    """The tool results at the end of the conversation, by call id."""
    found: dict[str, tuple[Block, ...]] = {}
    first = len(messages)
    while first and messages[first - 1].role == "tool":
        first -= 1
    for index in range(first, len(messages)):
        found[_call_id(index, messages[index])] = _blocks(index, messages[index])
    return found


def earlier_calls(messages: Sequence[ChatMessage]) -> list[str]:
    """The ids of the last tool calls in the conversation."""
    for message in reversed(messages):
        if message.tool_calls:
            return [call.id for call in message.tool_calls]
    return []


def last_user_message(messages: Sequence[ChatMessage]) -> tuple[str, tuple[ImageBlock, ...]]:
    """The text and the images of the last message, which must be a user message."""
    index, message = len(messages) - 1, messages[-1]
    if message.role != "user":
        raise BadRequest(
            "A session continues with a user message: the last message must have the role `user`.",
            f"messages[{index}].role",
        )
    blocks = _blocks(index, message)
    images = tuple(block for block in blocks if isinstance(block, ImageBlock))
    text = "\n".join(block.text for block in blocks if not isinstance(block, ImageBlock))
    return text, images


class _HistoryReader:
    """Converts messages one by one, and checks that each tool call has its result."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._unanswered: dict[str, str] = {}
        """The tool names of the calls that have no result yet, by call id."""
        self._is_noted = True
        """Whether there is no assistant text that still needs the note."""

    def add(self, index: int, message: ChatMessage) -> None:
        if message.role != "tool" and self._unanswered:
            self._refuse_unanswered(index)
        match message.role:
            case "system" | "developer":
                self._messages.append(SystemMessage(_text(index, message)))
            case "user":
                self._messages.append(self._user_message(index, message))
            case "assistant":
                self._messages.append(self._assistant_message(index, message))
            case "tool":
                self._messages.append(self._tool_result(index, message))
            case _:
                raise BadRequest(
                    f"Unknown role {message.role!r}. Use system, developer, user, assistant or "
                    "tool.",
                    f"messages[{index}].role",
                )

    def finish(self) -> tuple[Message, ...]:
        if self._unanswered:
            self._refuse_unanswered(len(self._messages))
        if not self._messages or not isinstance(self._messages[-1], UserMessage | ToolResult):
            raise BadRequest("The last message must have the role `user` or `tool`.", "messages")
        return tuple(self._messages)

    def _refuse_unanswered(self, index: int) -> None:
        missing = ", ".join(self._unanswered)
        raise BadRequest(
            "Each of the `tool_calls` must be followed by a message of the role `tool` with its "
            f"result. Missing results: {missing}",
            f"messages[{index}]" if index < len(self._messages) else "messages",
        )

    def _user_message(self, index: int, message: ChatMessage) -> UserMessage:
        blocks = _blocks(index, message)
        if not blocks:
            raise BadRequest("A user message is empty.", f"messages[{index}].content")
        if not self._is_noted:
            self._is_noted = True
            blocks = (TextBlock(_EARLIER_REPLIES_NOTE, EARLIER_REPLY_LABEL), *blocks)
        return UserMessage(blocks)

    def _assistant_message(self, index: int, message: ChatMessage) -> Reply:
        calls = tuple(_call(index, at, call) for at, call in enumerate(message.tool_calls or ()))
        if len({call.id for call in calls}) < len(calls):
            raise BadRequest("Two tool calls have the same id.", f"messages[{index}].tool_calls")
        self._unanswered = {call.id: call.name for call in calls}
        text = _text(index, message)
        self._is_noted = self._is_noted and not text
        return Reply(text, calls, Finish.CALLS if calls else Finish.STOP)

    def _tool_result(self, index: int, message: ChatMessage) -> ToolResult:
        call_id = _call_id(index, message)
        name = self._unanswered.pop(call_id, None)
        if name is None:
            raise BadRequest(
                f"No earlier tool call has the id {call_id!r}, or its result was already given.",
                f"messages[{index}].tool_call_id",
            )
        label = Label(untrusted=True, sources=(name,))
        return ToolResult(call_id, name, _blocks(index, message, label) or (TextBlock("", label),))


def _call_id(index: int, message: ChatMessage) -> str:
    if not message.tool_call_id:
        raise BadRequest(
            "A message of the role `tool` must have a `tool_call_id`.",
            f"messages[{index}].tool_call_id",
        )
    return message.tool_call_id


def _call(index: int, at: int, call: ToolCallParam) -> ToolCall:
    if call.type != "function":
        raise BadRequest(
            f"Tool calls of type {call.type!r} are not supported. Send `function`.",
            f"messages[{index}].tool_calls[{at}].type",
        )
    return ToolCall(call.id, call.function.name, call.function.arguments)


def _text(index: int, message: ChatMessage) -> str:
    parts: list[str] = []
    for block in _blocks(index, message):
        if isinstance(block, ImageBlock):
            raise BadRequest(
                f"A message of the role {message.role!r} cannot contain images.",
                f"messages[{index}].content",
            )
        parts.append(block.text)
    return "\n".join(parts)


def _blocks(index: int, message: ChatMessage, label: Label = CLEAN) -> tuple[Block, ...]:
    content = message.content
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextBlock(content, label),)
    where = f"messages[{index}].content"
    return tuple(_block(f"{where}[{at}]", part, label) for at, part in enumerate(content))


def _block(where: str, part: ContentPart, label: Label) -> Block:
    if part.type == "text" and part.text is not None:
        return TextBlock(part.text, label)
    if part.type == "refusal" and part.refusal is not None:
        return TextBlock(part.refusal, label)
    if part.type == "image_url" and part.image_url is not None:
        return _image(f"{where}.image_url.url", part.image_url.url, label)
    raise BadRequest(
        f"Content of type {part.type!r} is not supported. Send `text`, or `image_url` with a "
        "data URL.",
        where,
    )


def _image(where: str, url: str, label: Label) -> ImageBlock:
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise BadRequest(
            "Images must be data URLs (data:image/png;base64,…): the service fetches no URLs for a "
            "caller.",
            where,
        )
    media_type, data = found.group(1).lower(), "".join(found.group(2).split())
    try:
        actual = image_media_type(b64decode(data, validate=True))
    except binascii.Error as error:
        raise BadRequest(f"The image is not valid base64: {error}", where) from None
    if actual != media_type.replace("image/jpg", "image/jpeg"):
        # A model's server would refuse it, and with it every later message of the session.
        kind = actual or "not a PNG, JPEG, GIF or WebP image"
        raise BadRequest(f"The image says {media_type}, but its data is {kind}.", where)
    return ImageBlock(actual, data, label)

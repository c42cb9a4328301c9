"""Converts an MCP server's answer to blocks: bounded, and only of kinds that models accept."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec
from mcp import types

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import (
    JSON,
    Block,
    ErrorKind,
    ImageBlock,
    TextBlock,
    ToolResult,
    is_object,
)
from evoclaw.core.tools import Call
from evoclaw.core.truncate import truncate_middle
from evoclaw.executors.mcp.offers import MAX_NOTE_CHARS, one_line

MAX_RESULT_CHARS = 64_000
"""All text of one result."""
MAX_RESULT_BLOCKS = 50
MAX_IMAGE_BYTES = 5 << 20
_BEGINS_JSON = frozenset('{["tfn-0123456789')
IMAGE_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def to_result(call: Call, answer: types.CallToolResult, server: str) -> ToolResult:
    """Convert an answer to a result; raise `ToolFailure` if the server reports an error."""
    blocks = _bounded(_blocks(answer))
    details: dict[str, JSON] = {"mcp_server": server}
    if answer.is_error:
        reason = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        text = f"Error: Tool {call.name!r} failed: {reason or 'the server gave no reason'}"
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, text, **details)
    return ToolResult(call.id, call.name, blocks or (TextBlock("(no output)"),), details=details)


def _blocks(answer: types.CallToolResult) -> list[Block]:
    blocks = [_block(block) for block in answer.content[:MAX_RESULT_BLOCKS]]
    if len(answer.content) > MAX_RESULT_BLOCKS:
        blocks.append(TextBlock(f"[{len(answer.content) - MAX_RESULT_BLOCKS} more parts left out]"))
    if answer.structured_content is not None:
        text = msgspec.json.encode(answer.structured_content).decode()
        # Servers should repeat structured content as text; then the text is enough.
        if not _said_already(answer.structured_content, blocks):
            blocks.append(TextBlock(text))
    return blocks


def _block(content: types.ContentBlock) -> Block:
    match content:
        case types.TextContent():
            return TextBlock(content.text)
        case types.ImageContent():
            return _image(content.mime_type, content.data)
        case types.AudioContent():
            return _binary("audio", content.mime_type, content.data)
        case types.ResourceLink():
            parts = [content.name, f"<{content.uri}>", content.mime_type, content.description]
            description = " ".join(part for part in parts if part)
            return TextBlock(f"[a resource: {one_line(description, MAX_NOTE_CHARS)}]")
        case types.EmbeddedResource():
            return _resource(content.resource)


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> Block:
    kind = resource.mime_type or "unknown type"
    if isinstance(resource, types.BlobResourceContents):
        if kind in IMAGE_MEDIA_TYPES:
            return _image(kind, resource.blob)
        return _binary(f"resource {one_line(resource.uri, MAX_NOTE_CHARS)}", kind, resource.blob)
    return TextBlock(f"[resource {one_line(resource.uri, MAX_NOTE_CHARS)}]\n{resource.text}")


def _image(media_type: str, data: str) -> Block:
    kind = media_type.lower()
    if (
        kind not in IMAGE_MEDIA_TYPES
        or len(data) * 3 // 4 > MAX_IMAGE_BYTES
        or not _is_base64(data)
    ):
        return _binary("image", media_type, data)
    return ImageBlock(kind, data)


def _binary(what: str, media_type: str, data: str) -> TextBlock:
    kind = one_line(media_type, 60)
    return TextBlock(f"[{what}, {kind}, about {len(data) * 3 // 4:,} bytes: left out]")


def _is_base64(data: str) -> bool:
    try:
        return bool(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return False


def _said_already(value: JSON, blocks: Iterable[Block]) -> bool:
    # A plain value is commonly wrapped as `{"result": value}`, and repeated as text unwrapped.
    bare = value["result"] if is_object(value) and value.keys() == {"result"} else value
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    if bare in texts:
        return True
    for text in texts:
        if text[:1] in _BEGINS_JSON:
            try:
                if msgspec.json.decode(text) in (value, bare):
                    return True
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                continue
    return False


def _bounded(blocks: Iterable[Block]) -> tuple[Block, ...]:
    kept: list[Block] = []
    chars, picture_bytes = MAX_RESULT_CHARS, MAX_IMAGE_BYTES
    for block in blocks:
        if isinstance(block, ImageBlock):
            picture_bytes -= len(block.data) * 3 // 4
            fits = picture_bytes >= 0
            kept.append(block if fits else _binary("image", block.media_type, block.data))
        elif chars > 0:
            text = truncate_middle(block.text, chars)
            chars -= len(text)
            kept.append(TextBlock(text))
    return tuple(kept)

"""Converts an MCP server's answer to blocks: bounded, and only of kinds that models accept."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence

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
    is_array,
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
_UNREADABLE = object()
MIN_BASE64_CHARS = 1_000
"""Runs of base64 characters from this length on are data, not text."""
_BASE64 = re.compile(rf"[A-Za-z0-9+/]{{{MIN_BASE64_CHARS},}}={{0,2}}")
_MAGIC = (
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGODlh", "image/gif"),
    ("R0lGODdh", "image/gif"),
    ("UklGR", "image/webp"),
)
"""How the images that models accept begin, in base64."""
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
    value = answer.structured_content
    # Servers should repeat structured content as text; then the text is enough.
    if value is not None and not _repeats(value, answer.content):
        blocks.append(TextBlock(msgspec.json.encode(value).decode()))
    return _without_base64(blocks)


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


def _repeats(value: JSON, content: Sequence[types.ContentBlock]) -> bool:
    """Whether structured content only repeats the other content."""
    texts = [block.text for block in content if isinstance(block, types.TextContent)]
    decoded = [_decoded(text) for text in texts if text[:1] in _BEGINS_JSON]
    sent = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in content]

    def told(part: JSON) -> bool:
        return part in texts or part in decoded or _without_nulls(part) in sent

    # A plain value is commonly wrapped as `{"result": value}`, and repeated unwrapped.
    bare = value["result"] if is_object(value) and value.keys() == {"result"} else value
    parts = bare if is_array(bare) else []
    return told(value) or told(bare) or (bool(parts) and all(map(told, parts)))


def _without_nulls(part: JSON) -> JSON:
    return (
        {key: item for key, item in part.items() if item is not None} if is_object(part) else part
    )


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return _UNREADABLE


def _without_base64(blocks: Iterable[Block]) -> list[Block]:
    """Name long base64 texts by their size instead, and show the images among them once."""
    given = list(blocks)
    shown = {block.data for block in given if isinstance(block, ImageBlock)}
    found: list[Block] = []
    images: list[Block] = []

    def named(match: re.Match[str]) -> str:
        data = match[0]
        kind = next((kind for magic, kind in _MAGIC if data.startswith(magic)), "")
        if not kind and not _looks_like_base64(data):
            return data
        size = f"about {len(data) * 3 // 4:,} bytes"
        if data in shown:
            return f"[{kind or 'image'}, {size}: shown as an image]"
        image = _image(kind, data) if kind else None
        if not isinstance(image, ImageBlock):
            return f"[base64 data, {size}: left out]"
        shown.add(data)
        images.append(image)
        return f"[{kind}, {size}: shown as an image]"

    for block in given:
        if isinstance(block, TextBlock) and len(block.text) >= MIN_BASE64_CHARS:
            block = TextBlock(_BASE64.sub(named, block.text))
        found.append(block)
    return found + images


def _looks_like_base64(data: str) -> bool:
    sample = data[:MIN_BASE64_CHARS]
    return all(any(map(test, sample)) for test in (str.isupper, str.islower, str.isdigit))


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

"""Reads what a client sent: texts, data and files become one message with images."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64

import msgspec
from msgspec import UNSET, Struct

from evoclaw.core.encoding import json_text
from evoclaw.core.images import IMAGE_MEDIA_TYPES, MAX_ATTACHED_IMAGES, image_media_type
from evoclaw.core.messages import JSON, ImageBlock, is_object
from evoclaw.orchestrator.a2a.errors import A2aError, A2aErrorKind, invalid_params
from evoclaw.orchestrator.a2a.schemas import A2aMessage, A2aPart, A2aRole

TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/toml")
"""The types of files that are read as text, beside `text/…`."""
INPUT_MODES = ("text/plain", "application/json", *IMAGE_MEDIA_TYPES)
OUTPUT_MODES = ("text/plain",)
_TO_STANDARD_BASE64 = str.maketrans("-_", "+/")


class A2aContent(Struct, frozen=True):
    """The content of a message."""

    text: str
    images: tuple[ImageBlock, ...] = ()


def read_parts(message: A2aMessage) -> A2aContent:
    """The content of a client's message; `A2aError` for what agents cannot read."""
    if message.role is not A2aRole.USER:
        raise invalid_params("message.role must be ROLE_USER.")
    texts: list[str] = []
    images: list[ImageBlock] = []
    for number, part in enumerate(message.parts):
        found = _read_part(f"message.parts[{number}]", part)
        if isinstance(found, ImageBlock):
            images.append(found)
        elif found:
            texts.append(found)
    if len(images) > MAX_ATTACHED_IMAGES:
        raise invalid_params(f"A message may have {MAX_ATTACHED_IMAGES} images.")
    text = "\n\n".join(texts)
    if "\x00" in text:
        raise invalid_params("The text contains a NUL character. Remove it.")
    if not text.strip():
        raise invalid_params("The message has no text. Add a text part that says what to do.")
    return A2aContent(text, tuple(images))


def first_data(message: A2aMessage) -> dict[str, JSON] | None:
    """The first object among the data parts of a message."""
    for part in message.parts:
        if part.data is not UNSET and is_object(part.data):
            return part.data
    return None


def _read_part(where: str, part: A2aPart) -> str | ImageBlock:
    kinds = [name for name in ("text", "raw", "url", "data") if getattr(part, name) is not UNSET]
    if len(kinds) != 1:
        raise invalid_params(f"{where} needs exactly one of text, raw, url and data.")
    if part.text is not UNSET:
        return part.text
    if part.data is not UNSET:
        return json_text(part.data)
    if part.raw is not UNSET:
        return _read_file(where, part, part.raw)
    raise _unsupported(
        f"{where} is a URL: this service fetches none. Send the content as raw, in base64."
    )


def _read_file(where: str, part: A2aPart, raw: str) -> str | ImageBlock:
    try:
        standard = raw.translate(_TO_STANDARD_BASE64).rstrip("=")
        content = b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (NotBase64, ValueError):
        raise invalid_params(f"{where}.raw is not base64. Encode the bytes of the file.") from None
    kind = part.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    found = image_media_type(content)
    if found and kind in ("", found):
        return ImageBlock(found, b64encode(content).decode())
    if kind.startswith("image/"):
        actual = found or "not a PNG, JPEG, GIF or WebP image"
        raise _unsupported(f"{where} says {kind[:80]}, but its content is {actual}.")
    if not (kind.startswith("text/") or kind in TEXT_TYPES or kind.endswith(("+json", "+xml"))):
        raise _unsupported(
            f"{where}: files of the type {kind[:80] or 'unknown'!r} are not supported. Send text, "
            "or a PNG, JPEG, GIF or WebP image."
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _unsupported(f"{where}: the file is not UTF-8 text.") from None
    name = msgspec.json.encode(part.filename or "file").decode()
    return f"The file {name}:\n{text}"


def _unsupported(message: str) -> A2aError:
    return A2aError(A2aErrorKind.CONTENT_TYPE_NOT_SUPPORTED, message)

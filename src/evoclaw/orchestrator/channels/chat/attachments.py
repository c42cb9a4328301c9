"""Reads the files that a person attached to a message: images, within limits."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from evoclaw.core.images import image_media_type
from evoclaw.core.messages import ImageBlock
from evoclaw.orchestrator.channels.chat.messages import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    ServiceError,
)
from evoclaw.orchestrator.sanitizing import one_line

MAX_NAMED_FILES = 20
"""Files of a message that are named to the agent."""


class AttachedFile(Struct, frozen=True):
    """A file of a message, which may not be downloaded yet."""

    name: str
    media_type: str
    size: int
    """In bytes; 0 if it is not known."""
    read: Callable[[int], Awaitable[bytes]]
    """Reads it, up to a number of bytes; raises `ServiceError` if it cannot."""


async def read_attachments(
    text: str, files: Sequence[AttachedFile]
) -> tuple[str, tuple[ImageBlock, ...]]:
    """The text of a message with a line for each file that is not passed on, and its images."""
    images: list[ImageBlock] = []
    notes: list[str] = []
    for file in files[:MAX_NAMED_FILES]:
        image, problem = await _image(file, len(images))
        if image is None:
            notes.append(f"[Attached file {one_line(file.name) or 'without a name'}: {problem}]")
        else:
            images.append(image)
    if len(files) > MAX_NAMED_FILES:
        notes.append(f"[{len(files) - MAX_NAMED_FILES} more attached files: not read]")
    if images and not text:
        notes.insert(0, f"[{len(images)} attached image{'' if len(images) == 1 else 's'}]")
    return "\n".join(part for part in (text, *notes) if part), tuple(images)


async def _image(file: AttachedFile, count: int) -> tuple[ImageBlock | None, str]:
    if not file.media_type.startswith("image/"):
        return None, "not read; only images are"
    if count >= MAX_IMAGES:
        return None, f"not read; a message has at most {MAX_IMAGES} images"
    if file.size > MAX_IMAGE_BYTES:
        return None, f"not read; larger than {MAX_IMAGE_BYTES >> 20} MiB"
    try:
        data = await file.read(MAX_IMAGE_BYTES)
    except ServiceError as problem:
        if not problem.final:
            raise  # the message is received again
        return None, f"not read; {problem}"
    media_type = image_media_type(data)
    if not media_type:
        return None, "not read; no PNG, JPEG, GIF or WebP image"
    return ImageBlock(media_type, b64encode(data).decode()), ""

"""Images that a user attaches to a message: read from a file and made small enough to send."""

from __future__ import annotations

import asyncio
import stat
from base64 import b64encode
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.images import image_media_type
from evoclaw.tools.image_preparation import (
    DEFAULT_MAX_EDGE_PIXELS,
    MAX_INPUT_BYTES,
    prepare_image,
    why_unavailable,
)

MAX_ATTACHED_BYTES = 350_000
"""Of one image: two fit into a request of the default `[server] max_body_bytes`."""
EDGES_PIXELS = (DEFAULT_MAX_EDGE_PIXELS, 1024, 768, 512)
"""The longer sides that are tried, until the image is small enough."""


class Attachment(Struct, frozen=True):
    """An image, ready to be sent."""

    name: str
    media_type: str
    data: str
    """Base64."""


async def read_attachment(name: str) -> Attachment:
    """Read an image file; `ConfigError` if it cannot be sent."""
    path, data = await asyncio.to_thread(_read, name)
    media_type = image_media_type(data)
    if not media_type:
        raise ConfigError(f"{path} is not a picture that can be sent; use PNG, JPEG, GIF or WebP")
    if not (why := why_unavailable()):
        return await _prepared(path, data)
    if len(data) > MAX_ATTACHED_BYTES:
        raise ConfigError(
            f"{path} has {len(data):,} bytes, more than {MAX_ATTACHED_BYTES:,}; to make it "
            f"smaller automatically: {why}"
        )
    return Attachment(path.name, media_type, b64encode(data).decode())


def _read(name: str) -> tuple[Path, bytes]:
    try:
        path = Path(name).expanduser()
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} is not a regular file; attach a picture file")
        if (size := found.st_size) > MAX_INPUT_BYTES:
            raise ConfigError(
                f"{path} has {size:,} bytes; at most {MAX_INPUT_BYTES:,} can be read: make it "
                "smaller first"
            )
        return path, path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"cannot read {name}: {problem.strerror}") from None
    except (ValueError, RuntimeError) as problem:  # a NUL byte; a user that does not exist
        raise ConfigError(f"cannot read {name!r}: {problem}") from None


async def _prepared(path: Path, data: bytes) -> Attachment:
    """The image without its metadata, as large as a request can hold."""
    try:
        for edge in EDGES_PIXELS:
            image = await prepare_image(
                path.name, data, max_edge=edge, max_png_bytes=MAX_ATTACHED_BYTES
            )
            if len(image.data) <= MAX_ATTACHED_BYTES:
                return Attachment(path.name, image.media_type, b64encode(image.data).decode())
    except ToolFailure as problem:
        raise ConfigError(f"{path} cannot be sent: {problem.message}") from None
    raise ConfigError(f"{path} is too large to send, even scaled down")

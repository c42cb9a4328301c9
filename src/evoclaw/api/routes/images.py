"""Images that a user attaches to a message."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evoclaw.api.errors import ApiError
from evoclaw.core.images import image_media_type
from evoclaw.core.messages import ImageBlock


class AttachedImage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image of a message."""

    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    """The type of the file, such as `image/png`."""
    data: Annotated[str, Meta(min_length=1)]
    """The file, base64-encoded."""


def image_blocks(images: Sequence[AttachedImage]) -> tuple[ImageBlock, ...]:
    """The images as blocks of a message; `ApiError` 400 for one that is not what it says."""
    return tuple(_block(number, image) for number, image in enumerate(images))


def _block(number: int, image: AttachedImage) -> ImageBlock:
    try:
        found = image_media_type(b64decode(image.data, validate=True))
    except (NotBase64, ValueError):
        text = f"images[{number}].data is not base64. Encode the bytes of the image file."
        raise ApiError(400, "invalid_image", text) from None
    if found != image.media_type:
        actual = found or "not a PNG, JPEG, GIF or WebP image"
        text = f"images[{number}] says {image.media_type}, but its data is {actual}."
        raise ApiError(400, "invalid_image", text)
    return ImageBlock(image.media_type, image.data)

"""The kinds of images that models accept, recognised by their first bytes."""

from __future__ import annotations

IMAGE_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that every model which sees images accepts."""
MAX_ATTACHED_IMAGES = 8
"""Of one message of a user; the limits of a request's body bound their size."""


def image_media_type(data: bytes) -> str:
    """The media type of an image by its content; empty if it is none of the known kinds."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return ""

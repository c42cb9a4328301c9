"""Prepares images for a model: rotated upright, scaled down and stripped of metadata."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_INPUT_BYTES = 20 << 20
"""Of an image file that is read."""
MAX_PIXELS = 50_000_000
MAX_OUTPUT_BYTES = 3 << 20
"""Of a prepared image: base64 adds a third, and models accept 5 MB."""
DEFAULT_MAX_EDGE_PIXELS = 1568
"""Of the longer side: models scale down larger images themselves."""
JPEG_QUALITY = 85
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


class PreparedImage(Struct, frozen=True):
    """An image that is ready for a model."""

    data: bytes
    media_type: str
    width: int
    height: int
    original_width: int
    original_height: int


def why_unavailable() -> str:
    """Why images cannot be read here, and what to do about it; empty if they can be read."""
    if importlib.util.find_spec("PIL") is None:
        return "Pillow is not installed: pip install 'evoclaw[images]'"
    return ""


async def prepare_image(
    name: str,
    data: bytes,
    *,
    max_edge: int = DEFAULT_MAX_EDGE_PIXELS,
    max_png_bytes: int = MAX_OUTPUT_BYTES,
) -> PreparedImage:
    """Check an image, rotate it upright, scale it down if needed and drop its metadata.

    Args:
        name: The name of the image in error messages.
        data: A PNG, JPEG, GIF or WebP file; of an animation the first frame is used.
        max_edge: The longest side of the result, in pixels.
        max_png_bytes: A sharp image that is larger as PNG becomes a JPEG.
    """
    if len(data) > MAX_INPUT_BYTES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The picture '{name}' has {len(data):,} bytes, more than {MAX_INPUT_BYTES:,}. Make it "
            "smaller first.",
        )
    return await asyncio.to_thread(_prepare, name, data, max_edge, max_png_bytes)


def _prepare(name: str, data: bytes, max_edge: int, max_png_bytes: int) -> PreparedImage:
    if (claimed := _webp_size(data)) is not None:
        # Pillow allocates the memory of a WebP image before it reports its size.
        _check_size(name, claimed)
    image = _open(name, data)
    _check_size(name, image.size)
    # A JPEG can be decoded at a half, a quarter or an eighth of its size, which is faster.
    original, drawn = image.size, image.format in ("PNG", "GIF")
    image.draft("RGB", (max_edge, max_edge))
    image = _decode(name, lambda: _normalise(image, max_edge))
    if image.width != image.height and (image.width > image.height) != (original[0] > original[1]):
        original = original[1], original[0]
    sharp = drawn or image.mode == "RGBA"
    made, media_type = _encode(image, max_png_bytes if sharp else 0)
    return PreparedImage(made, media_type, *image.size, *original)


def _open(name: str, data: bytes) -> Image:
    if why := why_unavailable():
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, f"{why}. Tell the user.")
    from PIL import Image, UnidentifiedImageError

    try:
        return _decode(name, lambda: Image.open(BytesIO(data), formats=FORMATS))
    except UnidentifiedImageError:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"'{name}' is not a supported picture: use PNG, JPEG, GIF or WebP.",
        ) from None


def _decode(name: str, doing: Callable[[], Image]) -> Image:
    """Call Pillow; its many errors for a damaged file become a `ToolFailure`."""
    import struct

    from PIL import Image, UnidentifiedImageError

    try:
        return doing()
    except UnidentifiedImageError:
        raise
    except (Image.DecompressionBombError, MemoryError):
        raise _too_many_pixels(name) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error) as problem:
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"The picture '{name}' is damaged and cannot be read: {reason}. Get it again.",
        ) from None


def _normalise(image: Image, max_edge: int) -> Image:
    from PIL import Image, ImageOps

    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits per pixel: the upper 8 are used
        image = Image.eval(image.convert("I"), _upper_half).convert("L")
    clear = image.has_transparency_data
    image = image.convert("RGBA" if clear else "RGB")
    image.thumbnail((max_edge, max_edge), Image.Resampling.LANCZOS)
    return image


def _upper_half(value: float) -> float:
    return value * (1 / 256)


def _encode(image: Image, max_png_bytes: int) -> tuple[bytes, str]:
    """Encode the pixels alone: sharp images as PNG if that is small enough, others as JPEG."""
    from PIL import Image

    if max_png_bytes:
        made = _encode_pixels(image, "PNG")
        if len(made) <= max_png_bytes:
            return made, "image/png"
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    return _encode_pixels(image, "JPEG", quality=JPEG_QUALITY), "image/jpeg"


def _encode_pixels(image: Image, format: str, **options: int) -> bytes:
    from PIL import Image

    # A new image: Pillow would write the metadata (locations, times, comments) of the old one.
    bare = Image.new(image.mode, image.size)
    bare.paste(image)
    made = BytesIO()
    bare.save(made, format, **options)
    return made.getvalue()


def _check_size(name: str, size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise _too_many_pixels(name, f" ({size[0]:,} × {size[1]:,})")


def _too_many_pixels(name: str, size: str = "") -> ToolFailure:
    return ToolFailure(
        ErrorKind.TOO_LARGE,
        f"The picture '{name}' has too many pixels{size}: {MAX_PIXELS:,} can be read. Make it "
        "smaller first.",
    )


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """The size in the header of a WebP image; None if it is not WebP or is truncated."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind, body = data[12:16], data[20:30]
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = body[6:8], body[8:10]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None

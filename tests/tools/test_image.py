from __future__ import annotations

import asyncio
import base64
import random
import struct
import zlib
from io import BytesIO

import pytest
from PIL import Image

from evoclaw.core.errors import ProviderError, ProviderErrorKind, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, TextBlock, ToolResult, UserMessage
from evoclaw.executors.local import LocalExecutor
from evoclaw.providers.scripted import Scripted, says
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.image import (
    DESCRIBE_PROMPT,
    UNTRUSTED_NOTICE,
    RunModelVision,
    Vision,
    VisionModel,
    image,
)
from evoclaw.tools.image_preparation import MAX_INPUT_BYTES, MAX_OUTPUT_BYTES
from tests.support.tool_calls import call_of

ORIENTATION = 0x0112
RED, BLUE = (255, 0, 0), (0, 0, 255)


def drawn(
    format: str, size: tuple[int, int] = (40, 20), mode: str = "RGB", **options: object
) -> bytes:
    """Left half red, right half blue."""
    made = Image.new("RGB", size, BLUE)
    made.paste(RED, (0, 0, size[0] // 2, size[1]))
    data = BytesIO()
    made.convert(mode).save(data, format, **options)
    return data.getvalue()


async def use(
    data: bytes, vision: Vision | None = None, *, name: str = "a.png", **arguments: JSON
) -> ToolResult:
    given = {Vision: vision or RunModelVision(model_sees_images=True)}
    executor = LocalExecutor([image], files=FakeOps({name: data}), given=given)
    async with asyncio.timeout(20):
        return await executor.execute(call_of(image, path=name, **arguments), lambda _: None)


def picture(result: ToolResult) -> Image.Image:
    block = result.blocks[-1]
    assert isinstance(block, ImageBlock)
    opened = Image.open(BytesIO(base64.b64decode(block.data)))
    assert opened.get_format_mimetype() == block.media_type
    return opened


def colours(shown: Image.Image) -> list[str]:
    """What is to be seen near the four corners, clockwise."""
    right, low = shown.width - 2, shown.height - 2
    names: list[str] = []
    for place in ((1, 1), (right, 1), (right, low), (1, low)):
        pixel = shown.convert("RGB").getpixel(place)
        assert isinstance(pixel, tuple)
        names.append("red" if pixel[0] > pixel[2] else "blue")
    return names


@pytest.mark.parametrize(
    ("format", "shown_as"),
    [("PNG", "PNG"), ("JPEG", "JPEG"), ("GIF", "PNG"), ("WEBP", "JPEG")],
)
async def test_an_image_of_each_supported_format_is_returned(format: str, shown_as: str) -> None:
    result = await use(drawn(format))
    shown = picture(result)
    assert (shown.format, shown.size) == (shown_as, (40, 20))
    assert colours(shown) == ["red", "blue", "blue", "red"]
    assert UNTRUSTED_NOTICE in result.text


@pytest.mark.parametrize("mode", ["RGBA", "LA", "L", "1", "P", "I;16"])
async def test_every_color_mode_is_supported(mode: str) -> None:
    if mode == "I;16":
        data = BytesIO()
        Image.new("I;16", (8, 8), 40_000).save(data, "PNG")
        shown = picture(await use(data.getvalue()))
        assert shown.getpixel((4, 4)) == (156, 156, 156)
        return
    assert picture(await use(drawn("PNG", mode=mode))).size == (40, 20)


async def test_a_large_image_is_downscaled_with_a_note() -> None:
    result = await use(drawn("JPEG", (3000, 1500)))
    assert picture(result).size == (1568, 784)
    assert "1568 × 784 pixels, made smaller from 3000 × 1500" in result.text
    assert picture(await use(drawn("JPEG", (3000, 1500)), max_edge=100)).size == (100, 50)
    assert picture(await use(drawn("PNG", (4000, 2)), max_edge=100)).size == (100, 1)


async def test_exif_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    result = await use(drawn("JPEG", (3000, 1500), exif=exif))
    shown = picture(result)
    assert shown.size == (784, 1568)
    assert colours(shown) == ["red", "red", "blue", "blue"]
    assert result.details["original_height"] == 3000


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
async def test_image_metadata_is_removed(format: str) -> None:
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    data = drawn(format, exif=exif, icc_profile=b"SecretProfile" * 20, xmp=b"<x>SecretPlace</x>")
    assert b"Secret" in data
    block = (await use(data)).blocks[-1]
    assert isinstance(block, ImageBlock)
    assert b"Secret" not in base64.b64decode(block.data)


async def test_an_image_that_stays_large_is_recompressed_as_jpeg() -> None:
    noise = Image.frombytes("RGBA", (1200, 1200), random.Random(1).randbytes(1200 * 1200 * 4))
    data = BytesIO()
    noise.save(data, "PNG", compress_level=1)
    result = await use(data.getvalue())
    shown = picture(result)
    assert (shown.format, shown.size) == ("JPEG", (1200, 1200))
    block = result.blocks[-1]
    assert isinstance(block, ImageBlock)
    assert len(block.data) * 3 / 4 < MAX_OUTPUT_BYTES


def huge_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be a very large picture."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rest = chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rest


def huge_webp(kind: bytes) -> bytes:
    small = drawn("WEBP", lossless=kind == b"VP8L", exif=b"x" * 8 if kind == b"VP8X" else b"")
    assert small[12:16] == kind
    most = {
        b"VP8 ": (26, struct.pack("<HH", 0x3FFF, 0x3FFF)),
        b"VP8L": (21, struct.pack("<I", 0x0FFFFFFF)),
        b"VP8X": (24, b"\xff\x3f\x00\xff\x3f\x00"),
    }
    at, size = most[kind]
    return small[:at] + size + small[at + len(size) :]


@pytest.mark.parametrize(
    "data",
    [
        huge_png(50_000, 50_000),
        huge_png(2**31 - 1, 2**31 - 1),
        huge_webp(b"VP8 "),
        huge_webp(b"VP8L"),
        huge_webp(b"VP8X"),
        drawn("GIF")[:6] + b"\xff\xff\xff\xff" + drawn("GIF")[10:],
    ],
    ids=["png", "png at most", "webp", "webp lossless", "webp extended", "gif"],
)
async def test_a_decompression_bomb_is_refused_before_decoding(data: bytes) -> None:
    with pytest.raises(ToolFailure, match="too many pixels") as failed:
        await use(data)
    assert failed.value.kind is ErrorKind.TOO_LARGE


async def test_an_oversized_image_file_is_refused() -> None:
    with pytest.raises(ToolFailure, match="Make it smaller") as failed:
        await use(b"\x89PNG\r\n\x1a\n" + bytes(MAX_INPUT_BYTES))
    assert failed.value.kind is ErrorKind.TOO_LARGE


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
async def test_a_truncated_image_is_a_clear_failure(format: str) -> None:
    whole = drawn(format, (300, 200))
    for share in (0.05, 0.2, 0.5, 0.8, 0.95):
        cut = whole[: int(len(whole) * share)]
        with pytest.raises(ToolFailure, match="is damaged|is not a supported picture") as failed:
            await use(cut)
        assert failed.value.kind in (ErrorKind.EXECUTION_FAILED, ErrorKind.INVALID_PARAMS)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
async def test_corrupt_image_bytes_raise_only_tool_failures(format: str) -> None:
    chance = random.Random(7)
    whole = drawn(format, (64, 48))
    for _ in range(150):
        spoilt = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            spoilt[chance.randrange(4, len(spoilt))] = chance.randrange(256)
        try:
            await use(bytes(spoilt))
        except ToolFailure as failure:
            assert failure.kind is not ErrorKind.INTERNAL


@pytest.mark.parametrize(
    "data",
    [b"", b"plain text", b"%PDF-1.7", b"<svg></svg>", b"BM" + bytes(60), b"II*\0" + bytes(60)],
)
async def test_unsupported_image_formats_are_refused(data: bytes) -> None:
    with pytest.raises(ToolFailure, match="use PNG, JPEG, GIF or WebP"):
        await use(data)


def asked_of(provider: Scripted) -> UserMessage:
    (message,) = provider.requests[0].messages
    assert isinstance(message, UserMessage)
    return message


async def test_a_prompt_is_answered_by_the_vision_model() -> None:
    provider = Scripted(says("Two colours."))
    result = await use(
        drawn("PNG"), VisionModel(provider, model_sees_images=True), prompt="What is it?"
    )
    assert result.blocks == (TextBlock(f"{UNTRUSTED_NOTICE}\nTwo colours."),)
    asked = asked_of(provider)
    assert asked.text == "What is it?"
    assert isinstance(asked.blocks[1], ImageBlock)


async def test_a_vision_model_gets_the_image_when_no_other_model_can_be_asked() -> None:
    result = await use(drawn("PNG"), RunModelVision(model_sees_images=True), prompt="What is it?")
    assert picture(result).size == (40, 20)


async def test_a_model_without_vision_gets_a_description() -> None:
    provider = Scripted(says("Two colours."))
    result = await use(drawn("PNG"), VisionModel(provider, model_sees_images=False))
    assert "Two colours." in result.text
    assert asked_of(provider).text == DESCRIBE_PROMPT


async def test_without_any_vision_model_the_image_is_refused() -> None:
    for arguments in ({}, {"prompt": "What is it?"}):
        with pytest.raises(ToolFailure, match="cannot be shown"):
            await use(drawn("PNG"), RunModelVision(model_sees_images=False), **arguments)


async def test_an_empty_vision_model_answer_is_a_failure() -> None:
    with pytest.raises(ToolFailure, match="gave no answer"):
        await use(
            drawn("PNG"), VisionModel(Scripted(says(" ")), model_sees_images=True), prompt="What?"
        )


async def test_an_unreachable_vision_model_is_a_failure() -> None:
    away = Scripted(ProviderError(ProviderErrorKind.TIMEOUT, "no answer"))
    with pytest.raises(ToolFailure, match="gave no answer") as failed:
        await use(drawn("PNG"), VisionModel(away, model_sees_images=True), prompt="What?")
    assert failed.value.kind is ErrorKind.EXECUTION_FAILED


def test_the_image_tool_needs_file_read_for_one_path() -> None:
    made = image.tool
    assert made.permissions == {"file_read"}
    assert (made.timeout, made.max_timeout) == (10, 60)
    assert (made.effect, made.resources) == ("read", ("path",))

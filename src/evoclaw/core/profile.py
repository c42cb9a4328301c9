"""What a model can do, so far as the loop must know it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class CallStyle(StrEnum):
    """How a model asks for tools."""

    NATIVE = "native"
    TEXT = "text"
    """In its text, as Hermes or ReAct models do; parsed only when configured so."""
    NONE = "none"


class Profile(Struct, frozen=True):
    """What a model can do."""

    context_tokens: int = 128_000
    max_output_tokens: int = 4_096
    calls: CallStyle = CallStyle.NATIVE
    images: bool = False

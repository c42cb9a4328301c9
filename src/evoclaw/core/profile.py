"""Model profiles: what the loop must know about a model."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class CallStyle(StrEnum):
    """How a model calls tools."""

    NATIVE = "native"
    """In the reply's own field for calls; JSON in its text that describes a call is one, too."""
    STRICT = "strict"
    """Only in the reply's own field: its text is never a call."""
    TEXT = "text"
    """In its text, as Hermes or ReAct models do; parsed only if configured."""
    JSON = "json"
    """In its text, as JSON in a code block, and its answer too; the request follows each result."""
    NONE = "none"


class Profile(Struct, frozen=True):
    """What a model can do."""

    context_tokens: int = 128_000
    """The size of the context window."""
    max_output_tokens: int = 4_096
    """The limit of one reply."""
    calls: CallStyle = CallStyle.NATIVE
    """How the model writes tool calls."""
    images: bool = False
    """Whether the model reads images."""

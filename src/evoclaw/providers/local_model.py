"""A model file on this machine: what the embedded server needs to know to serve it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class LocalModel(Struct, frozen=True, kw_only=True):
    """A GGUF file that has been verified and can be served."""

    name: str
    """The name that users choose it by, for example `qwen2.5-coder-1.5b`."""
    path: Path
    """The file."""
    context_tokens: int
    """The context that the server is started with."""
    memory_bytes: int
    """The memory that the server needs with this context."""
    max_output_tokens: int = 1024
    """The longest reply."""
    template: str = ""
    """A packaged chat template (a file name) to use; empty: the file's own."""
    temperature: float = 0.0
    """The sampling temperature unless a request sets one."""

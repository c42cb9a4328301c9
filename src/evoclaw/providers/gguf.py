"""The header of a GGUF file: what a model needs to be served, without loading it.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from evoclaw.core.errors import ConfigError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The number types of a value, as `struct` writes them."""
_MAX_FIELDS = 100_000
_KEPT_STRINGS = frozenset({"general.architecture", "general.name"})
_F16_BYTES = 2


class GgufHeader(Struct, frozen=True, kw_only=True):
    """What the header of a model file says."""

    architecture: str
    """The family of the network, such as `qwen2`."""
    name: str = ""
    """The name that its author gave the model."""
    context_tokens: int = 0
    """The context that the model was trained for; 0: the file does not say."""
    has_chat_template: bool = False
    """Whether the file has a template that turns messages into a prompt."""
    cache_bytes_per_token: int = 0
    """The memory for each token of context; 0: the file does not say."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a model file.

    Raises:
        ConfigError: The file cannot be read, or it is no GGUF file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            fields = _GgufFields(data).fields()
    except OSError as error:
        raise ConfigError(f"the model file {path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, RecursionError, struct.error):
        raise ConfigError(
            f"{path} is not a model file in the GGUF format, or it is incomplete; download it again"
        ) from None
    return _header(fields)


def _header(fields: Mapping[str, str | float]) -> GgufHeader:
    architecture = str(fields.get("general.architecture", ""))

    def number(key: str) -> int:
        return int(fields.get(f"{architecture}.{key}", 0))

    heads = number("attention.head_count")
    width = number("embedding_length") // heads if heads else 0
    key = number("attention.key_length") or width
    value = number("attention.value_length") or width
    shared_heads = number("attention.head_count_kv") or heads
    return GgufHeader(
        architecture=architecture,
        name=str(fields.get("general.name", "")),
        context_tokens=number("context_length"),
        has_chat_template="tokenizer.chat_template" in fields,
        cache_bytes_per_token=number("block_count") * shared_heads * (key + value) * _F16_BYTES,
    )


class _GgufFields:
    """Reads the fields of a header; long texts and lists are skipped."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def fields(self) -> dict[str, str | float]:
        if self._data[:4] != _MAGIC:
            raise ValueError("no GGUF file")
        self._at = 4
        version, _, count = self._number("I"), self._number("Q"), self._number("Q")
        if version < 2 or count > _MAX_FIELDS:
            raise ValueError("unknown version")
        found: dict[str, str | float] = {}
        for _ in range(int(count)):
            key = self._string()
            found[key] = self._value(int(self._number("I")), key)
        return found

    def _value(self, kind: int, key: str) -> str | float:
        if kind == _STRING:
            return self._string() if key in _KEPT_STRINGS else self._skip_string()
        if kind == _ARRAY:
            return self._array()
        return self._number(_NUMBERS[kind])

    def _array(self) -> float:
        """Skip a list; of numbers, the largest is returned: heads may differ between layers."""
        kind, count = int(self._number("I")), int(self._number("Q"))
        if kind == _STRING:
            for _ in range(count):
                self._skip_string()
            return 0
        if kind == _ARRAY:
            return max((self._array() for _ in range(count)), default=0)
        return max(self._unpack(f"<{count}{_NUMBERS[kind]}"), default=0)

    def _string(self) -> str:
        start, end = self._span()
        return self._data[start:end].decode()

    def _skip_string(self) -> str:
        self._span()
        return ""

    def _span(self) -> tuple[int, int]:
        start = self._at + 8
        end = start + int.from_bytes(self._data[self._at : start], "little")
        if end > len(self._data):
            raise ValueError("the text is longer than the file")
        self._at = end
        return start, end

    def _number(self, code: str) -> float:
        return self._unpack(f"<{code}")[0]

    def _unpack(self, layout: str) -> tuple[float, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

"""Small GGUF files: whole ones, and such that lie about their lengths."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
FACTS: dict[str, Any] = {
    "general.architecture": "qwen2",
    "general.name": "Tiny of the tests",
    "qwen2.context_length": 32_768,
    "qwen2.block_count": 24,
    "qwen2.embedding_length": 896,
    "qwen2.attention.head_count": 14,
    "qwen2.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c", "d"],
    "tokenizer.ggml.scores": [0.5, 1.5],
    "tokenizer.chat_template": TEMPLATE,
}
U32, F32, STRING, ARRAY = 4, 6, 8, 9
Q4_K, F32_TENSOR = 12, 0


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(given: Any) -> bytes:
    """A type and a value."""
    match given:
        case str():
            return struct.pack("<I", STRING) + text(given)
        case int():
            return struct.pack("<II", U32, given)
        case float():
            return struct.pack("<If", F32, given)
        case _:
            items: Sequence[Any] = given
            if isinstance(items[0], str):
                head = struct.pack("<IIQ", ARRAY, STRING, len(items))
                return head + b"".join(text(item) for item in items)
            kind, form = (U32, "<I") if isinstance(items[0], int) else (F32, "<f")
            head = struct.pack("<IIQ", ARRAY, kind, len(items))
            return head + b"".join(struct.pack(form, item) for item in items)


def gguf(
    facts: Mapping[str, Any] = FACTS, *, version: int = 3, weights: int = 256 * 64, filler: int = 0
) -> bytes:
    """A file with two tensors; `filler` adds bytes at its end, so that it can be of any size."""
    entries = b"".join(text(key) + value(given) for key, given in facts.items())
    blocks = weights // 256
    tensors = text("blk.0.weight") + struct.pack("<IQIQ", 1, weights, Q4_K, 0)
    tensors += text("norm") + struct.pack("<IQIQ", 1, 8, F32_TENSOR, blocks * 144)
    head = b"GGUF" + struct.pack("<IQQ", version, 2, len(facts)) + entries + tensors
    head += b"\0" * (-len(head) % 32)
    return head + b"w" * (blocks * 144) + b"n" * 32 + b"f" * filler

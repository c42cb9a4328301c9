"""A GGUF file with a tiny network of random weights: a real server serves it and talks nonsense.

It has the architecture of Llama, one layer of 32 numbers, and a vocabulary of bytes: 100 kB.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

CONTEXT_TOKENS = 4096
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_WIDTH, _HEADS, _INNER, _ALIGNMENT = 32, 4, 64, 32
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Kinds of tokens."""

Value: TypeAlias = int | float | str | list[str] | list[float] | list[int]


def write_tiny_model(
    path: Path, *, template: str = CHATML, fields: Mapping[str, Value] = MappingProxyType({})
) -> Path:
    """Write the file; without a template, it has none."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    header: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": 1,
        "llama.context_length": CONTEXT_TOKENS,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS // 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **({"tokenizer.chat_template": template} if template else {}),
        **fields,
    }
    path.write_bytes(_file(header, _shapes(len(tokens))))
    return path


def _shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    """The tensors of the network; the first number is that of the columns."""
    shared = _WIDTH // 2
    layer = {
        "attn_norm": (_WIDTH,), "attn_q": (_WIDTH, _WIDTH), "attn_k": (_WIDTH, shared),
        "attn_v": (_WIDTH, shared), "attn_output": (_WIDTH, _WIDTH), "ffn_norm": (_WIDTH,),
        "ffn_gate": (_WIDTH, _INNER), "ffn_up": (_WIDTH, _INNER), "ffn_down": (_INNER, _WIDTH),
    }  # fmt: skip
    return {
        "token_embd.weight": (_WIDTH, tokens),
        "output_norm.weight": (_WIDTH,),
        **{f"blk.0.{name}.weight": shape for name, shape in layer.items()},
    }


def _file(header: Mapping[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    chance, data = random.Random(1), bytearray()
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(header)))
    for key, value in header.items():
        out += _string(key) + _typed(value)
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        out += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", 0, len(data))  # 0: 32-bit floats
        values = [1.0] * count if len(shape) == 1 else [chance.gauss(0, 0.3) for _ in range(count)]
        data += struct.pack(f"<{count}f", *values)
        data += bytes(-len(data) % _ALIGNMENT)
    out += bytes(-len(out) % _ALIGNMENT)
    return bytes(out + data)


def _typed(value: Value) -> bytes:
    if isinstance(value, list):
        return struct.pack("<I", _ARRAY) + _list(value)
    kind, encoded = _single(value)
    return struct.pack("<I", kind) + encoded


def _list(values: Sequence[str | float]) -> bytes:
    encoded = [_single(value) for value in values]
    kind = encoded[0][0]
    # The server reads a list of whole numbers as signed ones.
    kind = _INT32 if kind == _UINT32 else kind
    return struct.pack("<IQ", kind, len(values)) + b"".join(data for _, data in encoded)


def _single(value: str | float) -> tuple[int, bytes]:
    if isinstance(value, str):
        return _STRING, _string(value)
    if isinstance(value, int):
        return _UINT32, struct.pack("<I", value)
    return _FLOAT32, struct.pack("<f", value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data

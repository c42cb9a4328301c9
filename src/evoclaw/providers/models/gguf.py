"""Reads the header of a GGUF file: what the model is, and what it needs.

The file may come from anywhere. Every length is checked against the size of the file and a limit
before anything is read or allocated, and text that is not needed is skipped, not read.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from pathlib import Path
from typing import BinaryIO, cast

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON

MAX_HEADER_BYTES = 128 * 2**20
"""Of all metadata and tensor descriptions; the vocabularies of today take up to 20 MiB."""
MAX_ENTRIES = 4_096
MAX_KEY_BYTES = 65_535
MAX_TEXT_BYTES = 2**20
"""Of a text that is kept, such as the chat template."""
MAX_STRINGS = 4_000_000
"""Of all lists of text together: each takes time, however short it is."""
MAX_KEPT_NUMBERS = 1_024
"""Of a list of numbers that is kept, such as one per layer."""
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 8

_BLOCK_BYTES = 2**18
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_FORMATS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i"},
    **{6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"},
}
"""The `struct` format of each type of number."""
_WANTED = frozenset(
    {
        *("general.architecture", "general.name", "general.alignment", "general.file_type"),
        "tokenizer.chat_template",
    }
)
_WANTED_OF_ARCHITECTURE = frozenset(
    {
        *("context_length", "block_count", "embedding_length", "attention.head_count"),
        *("attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("full_attention_interval", "vocab_size"),
    }
)
_TOKENS = "tokenizer.ggml.tokens"
_TENSOR_TYPES = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 39: ("MXFP4", 32, 17)},
    **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24)},
    **{8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110)},
    **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210)},
    **{20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136)},
}
"""The name of a tensor type, the numbers in one of its blocks, and the bytes of a block."""
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K"},
    **{11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S"},
    **{17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16"},
}
"""The name of a mixture of tensor types."""
_NOT_WEIGHTS = ("F32", "F16", "BF16")


class GgufError(ConfigError):
    """A file that cannot be used as a model; the message says why, and what to do."""


class GgufHeader(Struct, frozen=True, kw_only=True):
    """What the header of a model file says."""

    architecture: str
    """For example `qwen2`."""
    name: str = ""
    """The name that its makers gave it; empty if there is none."""
    parameters: int
    """The number of weights."""
    tensors: int
    quantisation: str
    """How its weights are stored, for example `Q4_K_M`."""
    context_tokens: int
    """The context that it was trained with; 0 if the file does not say."""
    chat_template: str = ""
    """Empty if there is none."""
    cache_bytes_per_token: int
    """The memory that the server needs for each token of the context."""
    vocabulary: int
    """The number of its tokens; 0 if the file does not say."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the file has a template that turns messages into a prompt."""
        return bool(self.chat_template)

    def check_usable(self, path: Path) -> None:
        """Raise `GgufError` unless an agent can use the model."""
        if not self.chat_template:
            raise GgufError(
                f"{path} has no chat template, so it is not a model for conversations; use the "
                "`instruct` or `chat` edition of the model"
            )
        if not self.context_tokens:
            raise GgufError(
                f"{path} does not say how long its context is "
                f"({self.architecture}.context_length); convert the model again with a current "
                "llama.cpp, or use another file"
            )


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a file; the weights are not read.

    Raises:
        GgufError: It is not a GGUF file, is cut short or damaged, or is of an unknown version.
    """
    try:
        with path.open("rb") as file:
            return _HeaderReader(file, path).read_header()
    except FileNotFoundError:
        raise GgufError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise GgufError(f"{path} is a folder; name the .gguf file in it") from None
    except OSError as problem:
        raise GgufError(f"cannot read {path}: {problem.strerror}") from None


class _HeaderReader:
    """Reads one header, from front to back."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._size = file.seek(0, 2)
        file.seek(0)
        self._at = 0
        self._strings = 0

    def read_header(self) -> GgufHeader:
        if self._size < len(_MAGIC) or self._take(len(_MAGIC)) != _MAGIC:
            raise GgufError(
                f"{self._path} is not a GGUF file; llama.cpp models end with .gguf, and files of "
                "other formats must be converted"
            )
        version = self._number("<I")
        if version not in _VERSIONS:
            order = " (of another byte order)" if version >> 24 in _VERSIONS else ""
            raise GgufError(
                f"{self._path} is GGUF version {version}{order}, and only versions 2 and 3 are "
                "known; download a current file of the model"
            )
        tensors = self._count(MAX_TENSORS, "tensors")
        facts = self._metadata(self._count(MAX_ENTRIES, "entries"))
        return self._header(facts, tensors)

    def _metadata(self, entries: int) -> dict[str, JSON]:
        facts: dict[str, JSON] = {}
        for _ in range(entries):
            key = self._text(MAX_KEY_BYTES)
            wanted = key in _WANTED or key.partition(".")[2] in _WANTED_OF_ARCHITECTURE
            kind = int(self._number("<I"))
            if kind == _ARRAY:
                count, numbers = self._array(keep=wanted)
                if key == _TOKENS:
                    facts[_TOKENS] = count
                elif numbers:
                    facts[key] = numbers
            elif kind == _STRING and not wanted:
                self._skip(int(self._number("<Q")))
            else:
                value = self._text(MAX_TEXT_BYTES) if kind == _STRING else self._value(kind)
                if wanted:
                    facts[key] = value
        return facts

    def _array(self, *, keep: bool) -> tuple[int, list[JSON]]:
        """The length of a list, and its numbers if they are wanted."""
        kind, count = int(self._number("<I")), int(self._number("<Q"))
        if kind == _STRING:
            self._strings += count
            if self._strings > MAX_STRINGS:
                raise self._damaged(f"it lists more than {MAX_STRINGS:,} texts")
            self._skip_strings(count)
            return count, []
        if kind not in _FORMATS:
            raise self._damaged(f"a list has elements of the unknown type {kind}")
        if keep and count <= MAX_KEPT_NUMBERS:
            return count, [self._number(_FORMATS[kind]) for _ in range(count)]
        self._skip(count * struct.calcsize(_FORMATS[kind]))
        return count, []

    def _skip_strings(self, count: int) -> None:
        """Skip texts; a vocabulary has hundreds of thousands, so they are read in large blocks."""
        length_of, block, at = struct.Struct("<Q").unpack_from, b"", 0
        for _ in range(count):
            if at + 8 > len(block):
                self._skip(at)
                block, at = self._file.read(_BLOCK_BYTES), 0
                self._file.seek(-len(block), 1)
                if len(block) < 8:
                    raise self._cut_short()
            at += 8 + length_of(block, at)[0]
        self._skip(at)

    def _header(self, facts: dict[str, JSON], tensors: int) -> GgufHeader:
        architecture = facts.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise self._damaged("it does not name its architecture")
        parameters, quantisation = self._tensor_facts(
            tensors, _positive(facts, "general.alignment")
        )
        file_type = facts.get("general.file_type")
        mixture = _FILE_TYPES.get(file_type) if isinstance(file_type, int) else None
        template, name = facts.get("tokenizer.chat_template"), facts.get("general.name")
        vocabulary = _positive(facts, _TOKENS) or _positive(facts, f"{architecture}.vocab_size")
        return GgufHeader(
            architecture=architecture[:64],
            name=name[:200] if isinstance(name, str) else "",
            parameters=parameters,
            tensors=tensors,
            quantisation=mixture or quantisation,
            context_tokens=_positive(facts, f"{architecture}.context_length"),
            chat_template=template if isinstance(template, str) else "",
            cache_bytes_per_token=_cache_bytes_per_token(facts, architecture),
            vocabulary=vocabulary,
        )

    def _tensor_facts(self, tensors: int, alignment: int) -> tuple[int, str]:
        """The number of parameters and the type of most; checks that the file is complete."""
        parameters, end = 0, 0
        by_type: Counter[str] = Counter()
        for _ in range(tensors):
            self._skip(self._limited(int(self._number("<Q")), MAX_KEY_BYTES))
            dimensions = int(self._number("<I"))
            if not 0 < dimensions <= MAX_DIMENSIONS:
                raise self._damaged(f"a tensor has {dimensions} dimensions")
            numbers = math.prod(int(self._number("<Q")) for _ in range(dimensions))
            kind, offset = int(self._number("<I")), int(self._number("<Q"))
            name, block, block_bytes = _TENSOR_TYPES.get(kind, (f"type {kind}", 1, 0))
            by_type[name] += numbers
            parameters += numbers
            end = max(end, offset + numbers // block * block_bytes)
        alignment = alignment or 32
        start = -(-self._at // alignment) * alignment
        if start + end > self._size:
            raise GgufError(
                f"{self._path} is cut short: it has {self._size:,} bytes of at least "
                f"{start + end:,}; download it again"
            )
        weights = {name: count for name, count in by_type.items() if name not in _NOT_WEIGHTS}
        types = weights or by_type
        return parameters, max(types, key=lambda name: types[name]) if types else "unknown"

    def _value(self, kind: int) -> int | float | bool:
        if kind not in _FORMATS:
            raise self._damaged(f"a value has the unknown type {kind}")
        return self._number(_FORMATS[kind])

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _text(self, limit: int) -> str:
        return self._take(self._limited(int(self._number("<Q")), limit)).decode(errors="replace")

    def _count(self, limit: int, what: str) -> int:
        count = int(self._number("<Q"))
        if count > limit:
            raise self._damaged(f"it claims to have {count:,} {what}")
        return count

    def _limited(self, length: int, limit: int) -> int:
        if length > limit:
            raise self._damaged(f"a text claims to have {length:,} bytes")
        return length

    def _take(self, length: int) -> bytes:
        self._advance(length)
        data = self._file.read(length)
        if len(data) < length:
            raise self._cut_short()
        return data

    def _skip(self, length: int) -> None:
        self._advance(length)
        self._file.seek(length, 1)

    def _advance(self, length: int) -> None:
        if self._at + length > self._size:
            raise self._cut_short()
        self._at += length
        if self._at > MAX_HEADER_BYTES:
            raise self._damaged(f"its header exceeds {MAX_HEADER_BYTES >> 20} MiB")

    def _cut_short(self) -> GgufError:
        return GgufError(
            f"{self._path} is cut short: it has {self._size:,} bytes, and its header needs more; "
            "download it again"
        )

    def _damaged(self, problem: str) -> GgufError:
        return GgufError(f"{self._path} is damaged: {problem}; download it again")


def _positive(facts: dict[str, JSON], key: str) -> int:
    """A positive number of the metadata; 0 if there is none."""
    value = facts.get(key)
    return value if isinstance(value, int) and 0 < value < 2**48 else 0


def _cache_bytes_per_token(facts: dict[str, JSON], architecture: str) -> int:
    """Keys and values of all layers that attend to the whole context, in 16 bits each."""

    def fact(name: str) -> int:
        return _positive(facts, f"{architecture}.{name}")

    layers, heads = fact("block_count"), fact("attention.head_count")
    head_length = fact("embedding_length") // heads if heads else 0
    key_length = fact("attention.key_length") or head_length
    value_length = fact("attention.value_length") or head_length
    listed = facts.get(f"{architecture}.attention.head_count_kv")
    if isinstance(listed, list):
        numbers = cast("list[JSON]", listed)
        counts = [given for given in numbers if isinstance(given, int) and 0 < given < 2**16]
        kv_heads = sum(counts)
    else:
        # Of some models, only one layer in so many attends to the whole context.
        kv_heads = (
            layers
            // (fact("full_attention_interval") or 1)
            * (fact("attention.head_count_kv") or heads)
        )
    return 2 * kv_heads * (key_length + value_length)

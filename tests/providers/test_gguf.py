"""The headers of model files, well and badly formed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.providers.gguf import GgufHeader, read_gguf_header
from tests.support.tiny_model import CONTEXT_TOKENS, write_tiny_model


def test_the_header_says_what_a_server_needs(tmp_path: Path) -> None:
    assert read_gguf_header(write_tiny_model(tmp_path / "m.gguf")) == GgufHeader(
        architecture="llama",
        name="Tiny",
        context_tokens=CONTEXT_TOKENS,
        has_chat_template=True,
        # One layer, two heads of 8 numbers, for keys and values, of two bytes each.
        cache_bytes_per_token=1 * 2 * (8 + 8) * 2,
    )


def test_a_file_without_a_chat_template_is_recognized(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", template="")
    assert not read_gguf_header(path).has_chat_template


def test_heads_that_differ_between_layers_count_as_the_largest(tmp_path: Path) -> None:
    fields = {"llama.attention.head_count_kv": [1, 3], "llama.attention.key_length": 10}
    header = read_gguf_header(write_tiny_model(tmp_path / "m.gguf", fields={**fields}))
    assert header.cache_bytes_per_token == 3 * (10 + 8) * 2


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 100, 3000])
def test_a_file_that_was_cut_is_refused(kept: int, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match="GGUF"):
        read_gguf_header(path)


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04" + bytes(100),
        b"GGUF" + bytes(100),
        b"GGUF\x03\0\0\0" + b"\xff" * 100,
        b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\xff" * 60,
        b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + bytes(8) + b"\x63\0\0\0" + bytes(60),
    ],
)
def test_a_file_of_another_kind_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="GGUF"):
        read_gguf_header(path)


def test_a_missing_file_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_gguf_header(tmp_path / "missing.gguf")

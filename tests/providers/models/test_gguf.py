"""The header of a GGUF file: what it says, and that a hostile one does no harm."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.providers.models import gguf as reader
from evoclaw.providers.models.gguf import GgufError, GgufHeader, read_gguf_header
from tests.support.gguf_files import ARRAY, FACTS, STRING, TEMPLATE, gguf, text
from tests.support.properties import examples


def header_of(folder: Path, content: bytes) -> GgufHeader:
    path = folder / "x.gguf"
    path.write_bytes(content)
    return read_gguf_header(path)


def test_a_header_says_what_the_model_is_and_what_it_needs(tmp_path: Path) -> None:
    header = header_of(tmp_path, gguf())
    assert (header.architecture, header.name) == ("qwen2", "Tiny of the tests")
    assert (header.parameters, header.tensors) == (256 * 64 + 8, 2)
    assert (header.quantisation, header.vocabulary) == ("Q4_K", 4)
    assert (header.context_tokens, header.chat_template) == (32_768, TEMPLATE)
    # 24 layers, 2 heads, keys and values of 64 numbers each, 2 bytes a number
    assert header.cache_bytes_per_token == 24 * 2 * (64 + 64) * 2
    header.check_usable(tmp_path)


def test_the_file_type_names_the_mixture_of_quantisations(tmp_path: Path) -> None:
    assert header_of(tmp_path, gguf({**FACTS, "general.file_type": 15})).quantisation == "Q4_K_M"


def test_a_large_vocabulary_is_skipped_in_blocks(tmp_path: Path) -> None:
    words = [f"{'word' * (n % 9)}{n}" for n in range(60_000)]
    long = {**FACTS, "tokenizer.ggml.tokens": [*words, "x" * 600_000, "y"]}
    assert header_of(tmp_path, gguf(long)).vocabulary == 60_002
    content = gguf(long)
    with pytest.raises(GgufError, match="is cut short"):
        header_of(tmp_path, content[:300_000])


def test_layers_with_different_numbers_of_heads_are_added_up(tmp_path: Path) -> None:
    facts = {**FACTS, "qwen2.attention.head_count_kv": [2, 0, 0, 4], "qwen2.block_count": 4}
    assert header_of(tmp_path, gguf(facts)).cache_bytes_per_token == 6 * (64 + 64) * 2


def test_only_layers_that_attend_to_the_whole_context_count(tmp_path: Path) -> None:
    facts = {**FACTS, "qwen2.full_attention_interval": 4}
    assert header_of(tmp_path, gguf(facts)).cache_bytes_per_token == 6 * 2 * (64 + 64) * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04 a zip", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 9) + bytes(16), "only versions 2 and 3 are known"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "of another byte order"),
        (gguf()[:40], "is cut short"),
        (gguf()[:-2_000], "is cut short"),
        (gguf({"general.name": "x"}), "does not name its architecture"),
    ],
)
def test_a_file_that_is_no_complete_model_is_refused_with_advice(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(GgufError, match=message) as caught:
        header_of(tmp_path, content)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value) and ("; " in str(caught.value))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("tokenizer.chat_template", "has no chat template, so it is not a model for conversations"),
        ("qwen2.context_length", "does not say how long its context is"),
    ],
)
def test_a_model_without_template_or_context_cannot_be_used(
    tmp_path: Path, missing: str, message: str
) -> None:
    facts = {key: value for key, value in FACTS.items() if key != missing}
    header = header_of(tmp_path, gguf(facts))
    with pytest.raises(GgufError, match=message):
        header.check_usable(tmp_path / "x.gguf")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="there is no file"):
        read_gguf_header(tmp_path / "nothing.gguf")
    with pytest.raises(GgufError, match="is a folder"):
        read_gguf_header(tmp_path)


HUGE = 2**62


@pytest.mark.parametrize(
    "lie",
    [
        struct.pack("<QQ", HUGE, 1),
        struct.pack("<QQ", 1, HUGE),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", HUGE),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IQ", STRING, HUGE),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 4, HUGE),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, HUGE),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1),
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<I", 77),
        struct.pack("<QQ", 1, 1) + text("general.architecture") + struct.pack("<I", STRING)
        + text("x") + text("t") + struct.pack("<I", 2**31),
    ],
)  # fmt: skip
def test_lengths_that_lie_allocate_nothing(tmp_path: Path, lie: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + lie + bytes(64))
    tracemalloc.start()
    try:
        with pytest.raises(GgufError):
            read_gguf_header(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_long_header_of_many_small_texts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_STRINGS", 3)
    with pytest.raises(GgufError, match="more than 3 texts"):
        header_of(tmp_path, gguf())


@settings(max_examples=examples(400))
@given(
    at=st.integers(0, 600),
    noise=st.binary(min_size=1, max_size=16),
    cut=st.integers(0, 12_000) | st.none(),
)
def test_a_damaged_header_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes, cut: int | None
) -> None:
    content = bytearray(gguf())
    content[at : at + len(noise)] = noise
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        header = header_of(folder, bytes(content[:cut]))
        header.check_usable(folder)
    except GgufError:
        return
    assert header.parameters >= 0 and header.cache_bytes_per_token >= 0

"""TOML of all kinds through the loader: refused with a reason, or taken; never anything else.

The public corpus is in no wheel; `make test` takes it from the source distribution of tomlkit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.skills.desktop_tools import DESKTOP_TOOLS, bundled_skills_folder
from evoclaw.skills.folders import SkillRefused
from evoclaw.skills.manifest import read_manifest
from tests.support.properties import examples
from tests.support.skills import load, write_skill

CORPUS = Path(__file__).parents[2] / ".venv" / "toml-test" / "tests"
SHIPPED = (bundled_skills_folder() / DESKTOP_TOOLS / "skill.toml").read_text()
PIECES = (
    *("[[tools]]", "[tools.parameters]", "[tools]", "[skill]", "name", "=", '"x"', "'", '"""', "{"),
    *("}", "[", "]", ",", "\n", ".", "#", "0x", "1e999", "nan", "inf", "1979-05-27T07:32:00Z"),
    *("true", "\\u0000", "\\UFFFFFFFF", "\r", "\t", "\x00", "\ud7ff", "properties", "binary"),
    *("timeout_ms", "-1", "é", "_"),
)


def never_surprises(text: str) -> None:
    try:
        read_manifest(Path("skill.toml"), text, platform="linux")
    except SkillRefused as refused:
        assert refused.reason


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_fault_59_random_toml_pieces_are_loaded_or_refused(pieces: list[str]) -> None:
    never_surprises(" ".join(pieces))


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_fault_59_a_tampered_manifest_is_loaded_or_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SHIPPED)))
    end = data.draw(st.integers(start, min(len(SHIPPED), start + 40)))
    never_surprises(SHIPPED[:start] + data.draw(st.sampled_from(PIECES)) + SHIPPED[end:])


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus could not be fetched")
def test_fault_59_the_public_toml_corpus_never_crashes_the_loader(tmp_path: Path) -> None:
    # What both versions of the language agree on.
    old, new = (
        set(Path(CORPUS, f"files-toml-{v}").read_text().split()) for v in ("1.0.0", "1.1.0")
    )
    files = [Path(CORPUS, name) for name in sorted(old & new) if name.endswith(".toml")]
    assert len(files) > 500
    for file in files:
        folder = write_skill(tmp_path, "corpus", skill_toml=file.read_bytes())
        with pytest.raises(SkillRefused) as caught:
            load(folder)
        is_toml = "not TOML" not in caught.value.reason and "UTF-8" not in caught.value.reason
        if "\0" not in file.read_text(errors="replace"):
            assert is_toml == ("invalid" not in file.parts), (file, caught.value.reason)

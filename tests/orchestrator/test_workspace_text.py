"""AGENTS.md of a workspace: read, bounded, labelled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evoclaw.core.labels import CLEAN
from evoclaw.core.messages import label_of
from evoclaw.orchestrator.agents.workspace_text import (
    MAX_WORKSPACE_TEXT_BYTES,
    WorkspaceText,
    workspace_message,
)


def test_the_text_counts_as_that_of_outsiders_unless_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Run `make check`.\n\x1b[2Jhidden")
    found = workspace_message(tmp_path, WorkspaceText.UNTRUSTED)
    assert found is not None
    assert "Run `make check`." in found.text
    assert "\x1b" not in found.text
    assert (label_of(found).untrusted, label_of(found).sources) == (True, ("AGENTS.md",))
    trusted = workspace_message(tmp_path, WorkspaceText.TRUSTED)
    assert trusted is not None
    assert label_of(trusted) == CLEAN
    assert workspace_message(tmp_path, WorkspaceText.OFF) is None


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("x" * (MAX_WORKSPACE_TEXT_BYTES + 100))
    found = workspace_message(tmp_path, WorkspaceText.UNTRUSTED)
    assert found is not None
    assert "cut after" in found.text
    assert len(found.text) < MAX_WORKSPACE_TEXT_BYTES + 1_000


@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe", "blank"])
def test_only_a_regular_file_with_text_is_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "AGENTS.md"
    if kind == "link":
        (tmp_path / "secret").write_text("a password")
        file.symlink_to(tmp_path / "secret")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "blank":
        file.write_text(" \n")
    assert workspace_message(tmp_path, WorkspaceText.TRUSTED) is None

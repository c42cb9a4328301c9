"""Files in the workspace that are code or rules in disguise."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.files import LocalFiles
from evoclaw.tools.files import edit, write
from tests.support.tool_calls import use

PROTECTED = [
    ".git/hooks/pre-commit", ".git/config", "sub/module/.git/hooks/post-checkout", ".git",
    ".GIT/hooks/x", ".git./hooks/x", "x/../.git/hooks/pre-push", ".husky/pre-commit", ".bashrc",
    "home/.zshrc", ".profile", ".envrc", ".gitconfig", ".ssh/authorized_keys",
    ".config/fish/a.fish", ".config/autostart/x.desktop", ".config/systemd/user/x.service",
    ".evoclaw/skills/x/SKILL.md",
    "agent.toml", "Evoclaw.toml",
]  # fmt: skip
ORDINARY = [".gitignore", ".github/workflows/ci.yml", "git/hooks/x", ".config/app.toml", "bashrc"]


def files_in(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


@pytest.mark.parametrize("path", PROTECTED)
async def test_fault_37_auto_executed_files_are_not_written_unless_granted(
    tmp_path: Path, path: str
) -> None:
    with pytest.raises(ToolFailure, match="is protected") as refused:
        await use(write, tmp_path, path=path, content="evil")
    assert refused.value.kind is ErrorKind.PERMISSION_DENIED
    assert not files_in(tmp_path)
    await LocalFiles(tmp_path, protect=False).write(path, b"granted")
    with pytest.raises(ToolFailure, match="is protected"):
        await LocalFiles(tmp_path).remove(path)


async def test_fault_37_an_existing_git_hook_cannot_be_edited(tmp_path: Path) -> None:
    hook = tmp_path / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("exit 0\n")
    with pytest.raises(ToolFailure, match="git runs or reads"):
        await use(edit, tmp_path, path=".git/hooks/pre-commit", old_string="exit 0", new_string="x")
    assert hook.read_text() == "exit 0\n"


@pytest.mark.parametrize("path", ORDINARY)
async def test_files_with_similar_names_are_not_protected(tmp_path: Path, path: str) -> None:
    assert (await use(write, tmp_path, path=path, content="x")).error is None

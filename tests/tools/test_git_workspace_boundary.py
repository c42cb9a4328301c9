"""Fault 42: repositories that lead out of the workspace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.tools.git.reading import git_diff, git_log, git_status
from evoclaw.tools.git.writing import git_branch, git_commit
from tests.support.git import make, plain
from tests.support.tool_calls import use

pytestmark = pytest.mark.process

CALLS: tuple[tuple[BoundTool, dict[str, JSON]], ...] = (
    (git_status, {}),
    (git_diff, {}),
    (git_log, {}),
    (git_branch, {}),
    (git_commit, {"message": "x"}),
)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return make(tmp_path / "work")


def linked_out(repo: Path, outside: Path) -> None:
    (repo / ".git").rename(repo / "was")
    (repo / ".git").symlink_to(outside / ".git")


def pointed_out(repo: Path, outside: Path) -> None:
    (repo / ".git").rename(repo / "was")
    (repo / ".git").write_text(f"gitdir: {outside}/.git\n")


def worktree_out(repo: Path, outside: Path) -> None:
    plain(repo, "config", "core.worktree", str(outside))


def borrowed(repo: Path, outside: Path) -> None:
    (repo / ".git/objects/info/alternates").write_text(f"{outside}/.git/objects\n")


def borrowed_twice(repo: Path, outside: Path) -> None:
    (repo / ".git/store/info").mkdir(parents=True)
    (repo / ".git/store/info/alternates").write_text(f"{outside}/.git/objects\n")
    (repo / ".git/objects/info/alternates").write_text("../store\n")


def index_out(repo: Path, outside: Path) -> None:
    (repo / ".git/index").unlink()
    (repo / ".git/index").symlink_to(outside / ".git/index")


@pytest.mark.parametrize(
    "lead", [linked_out, pointed_out, worktree_out, borrowed, borrowed_twice, index_out]
)
async def test_fault_42_a_repository_leading_outside_the_workspace_is_refused(
    repo: Path, tmp_path: Path, lead: Callable[[Path, Path], None]
) -> None:
    outside = make(tmp_path / "outside")
    lead(repo, outside)
    for bound, arguments in CALLS:
        with pytest.raises(ToolFailure, match="outside the workspace") as failure:
            await use(bound, repo, **arguments)
        assert failure.value.kind is ErrorKind.PERMISSION_DENIED


async def test_a_repository_larger_than_the_workspace_is_refused(
    repo: Path,
) -> None:
    (repo / "sub").mkdir()
    with pytest.raises(ToolFailure, match="outside the workspace"):
        await use(git_status, repo / "sub")


async def test_git_commit_refuses_files_of_the_data_folder(repo: Path) -> None:
    (repo / ".evoclaw").mkdir()
    (repo / ".evoclaw/api.json").write_text("the token")
    (repo / "new.txt").write_text("new")
    for paths in (["."], [".evoclaw"], [".evoclaw/api.json"], ["new.txt", ".evoclaw"]):
        with pytest.raises(ToolFailure, match="own keys") as failure:
            await use(git_commit, repo, message="all", paths=paths)
        assert failure.value.kind is ErrorKind.PERMISSION_DENIED
    assert "api.json" not in plain(repo, "ls-files")
    await use(git_commit, repo, message="one", paths=["new.txt"])
    # A sandboxed command may tell git that it knows the file, and have it compared or committed.
    empty = plain(repo, "hash-object", "-w", "--stdin")
    plain(repo, "update-index", "--add", "--cacheinfo", f"100644,{empty},.evoclaw/api.json")
    with pytest.raises(ToolFailure, match="own keys"):
        await use(git_diff, repo)
    with pytest.raises(ToolFailure, match="own keys"):
        await use(git_commit, repo, message="all")


async def test_switching_branches_writes_nothing_into_the_data_folder(repo: Path) -> None:
    plain(repo, "switch", "--quiet", "other")
    (repo / ".Evoclaw").mkdir()
    (repo / ".Evoclaw/evoclaw.toml").write_text("[sandbox]\nengine = 'none'\n")
    plain(repo, "add", ".")
    plain(repo, "commit", "--quiet", "-m", "settings of theirs")
    plain(repo, "switch", "--quiet", "main")
    with pytest.raises(ToolFailure, match="own keys"):
        await use(git_branch, repo, action="switch", name="other")
    assert not (repo / ".Evoclaw").exists()

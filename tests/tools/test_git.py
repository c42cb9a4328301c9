from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.tools import ANY_RESOURCE, Effect
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.git.reading import git_diff, git_log, git_status
from evoclaw.tools.git.writing import git_branch, git_commit
from tests.support.git import make, plain
from tests.support.tool_calls import use

pytestmark = pytest.mark.process

EVERY = (git_status, git_diff, git_commit, git_log, git_branch)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own: the machine's git configuration must not matter."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make(tmp_path / "work")


async def test_status_lists_every_kind_of_change(repo: Path) -> None:
    (repo / "b.txt").unlink()
    (repo / "a.txt").write_text("changed\n")
    (repo / "new.txt").write_text("x")
    (repo / "odd\nname").write_text("x")
    (repo / "staged.txt").write_text("x")
    plain(repo, "add", "staged.txt")

    result = await use(git_status, repo)

    head = plain(repo, "rev-parse", "--short=10", "HEAD")
    assert result.text == (
        f"On branch main at {head}.\nStaged (1):\n  added: staged.txt\n"
        "Not staged (2):\n  modified: a.txt\n  deleted: b.txt\n"
        "Untracked (2):\n  new.txt\n  'odd\\nname'"
    )
    assert result.details["branch"] == "main"
    assert [".D", "b.txt"] in result.details["files"]


async def test_status_reports_clean_empty_and_detached_repositories(
    tmp_path: Path, repo: Path
) -> None:
    assert "no file is changed" in (await use(git_status, repo)).text
    plain(repo, "checkout", "--quiet", "--detach")
    assert "detached" in (await use(git_status, repo)).text
    assert (await use(git_branch, repo)).text.startswith("(on no branch)")
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    plain(fresh, "init", "--quiet", "--initial-branch=main")
    assert "no commit yet" in (await use(git_status, fresh)).text
    assert (await use(git_branch, fresh)).text == "There is no branch yet."
    with pytest.raises(ToolFailure, match="no commit 'HEAD'"):
        await use(git_log, fresh)


async def test_status_shows_renames_and_ahead_behind_counts(tmp_path: Path, repo: Path) -> None:
    plain(tmp_path, "clone", "--quiet", str(repo), "copy")
    copy = tmp_path / "copy"
    plain(copy, "mv", "b.txt", "c.txt")
    plain(copy, "-c", "user.name=x", "-c", "user.email=x", "commit", "--quiet", "-am", "mine")
    plain(copy, "mv", "c.txt", "d.txt")

    text = (await use(git_status, copy)).text

    assert "follows origin/main: 1 ahead, 0 behind" in text
    assert "renamed: c.txt -> d.txt" in text
    assert "[origin/main: ahead 1]" in (await use(git_branch, copy)).text


async def test_a_conflicted_file_is_shown_and_committed_only_when_named(repo: Path) -> None:
    plain(repo, "switch", "--quiet", "other")
    (repo / "a.txt").write_text("one\nzwei\n")
    plain(repo, "commit", "--quiet", "-am", "german")
    plain(repo, "merge", "main", check=False)

    assert "In conflict (1):\n  a.txt" in (await use(git_status, repo)).text
    with pytest.raises(ToolFailure, match="In conflict: a.txt") as failure:
        await use(git_commit, repo, message="merge")
    assert failure.value.kind is ErrorKind.CONFLICT
    (repo / "a.txt").write_text("one\n2 (zwei)\n")
    await use(git_commit, repo, message="merge", paths=["a.txt"])
    assert len(plain(repo, "log", "-1", "--format=%P").split()) == 2
    assert plain(repo, "status", "--porcelain") == ""


async def test_diff_shows_unstaged_staged_and_committed_changes(repo: Path) -> None:
    (repo / "a.txt").write_text("one\nthree\n")
    assert "-2\n+three" in (await use(git_diff, repo)).text
    plain(repo, "add", "a.txt")
    nothing = await use(git_diff, repo)
    assert nothing.text.startswith("No differences.")
    staged = await use(git_diff, repo, staged=True)
    assert "-2\n+three" in staged.text
    assert staged.details == {"files": 1, "added": 1, "deleted": 1}
    for commit in ("HEAD", "other..main", "other...", plain(repo, "rev-parse", "HEAD")):
        assert "-two\n+2" in (await use(git_diff, repo, commit=commit)).text
    assert "+bee" in (await use(git_diff, repo, commit="HEAD~1")).text
    assert "a.txt" not in (await use(git_diff, repo, commit="HEAD~1", paths=["b.txt"])).text


async def test_fault_28_a_long_diff_is_truncated_with_a_note(repo: Path) -> None:
    (repo / "a.txt").write_text("".join(f"line {number}\n" for number in range(50_000)))

    result = await use(git_diff, repo)

    assert len(result.text) < 70_000 and "bytes left out" in result.text
    assert "1 files, 50000 lines added, 2 deleted" in result.text


async def test_fault_29_invalid_utf8_is_shown_and_marked(repo: Path) -> None:
    (repo / "a.txt").write_bytes(b"caf\xe9\n")
    (repo / os.fsdecode(b"\xff.txt")).write_text("x")

    diff, status = await use(git_diff, repo), await use(git_status, repo)

    assert "not valid text" in diff.text
    for result in (diff, status):
        assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result


async def test_log_shows_the_last_commits(repo: Path) -> None:
    result = await use(git_log, repo, max_count=1)

    short = plain(repo, "rev-parse", "--short", "HEAD")
    assert result.text == (
        f"commit {short} (HEAD -> main)\nAuthor: Bowen <bowen@example.org>\n"
        "Date:   2025-02-15T10:00:00+00:00\n    Fix bug\n\n    It was a word."
    )
    assert result.details["commits"] == [plain(repo, "rev-parse", "HEAD")]
    assert (await use(git_log, repo)).text.count("commit ") == 2
    assert "Fix bug" not in (await use(git_log, repo, commit="other")).text
    assert "Fix bug" not in (await use(git_log, repo, paths=["b.txt"])).text
    assert (await use(git_log, repo, paths=["nix"])).text == "No commit changed these files."


async def test_a_long_log_names_the_commit_to_continue_from(repo: Path) -> None:
    for number in range(20):
        body = f"Number {number}\n\n" + "word " * 2_000
        plain(repo, "commit", "--quiet", "--allow-empty", "-F", "-", stdin=body)

    text = (await use(git_log, repo, max_count=20)).text
    assert len(text) < 70_000 and "continue with commit=" in text
    following = text.rpartition("commit=")[2].removesuffix(".]")
    last = text.count("    Number")
    assert f"Number {19 - last}\n" in (await use(git_log, repo, commit=following)).text


async def test_commit_includes_tracked_changes(repo: Path) -> None:
    (repo / "a.txt").write_text("changed\n")
    (repo / "b.txt").unlink()
    (repo / "new.txt").write_text("x")

    result = await use(git_commit, repo, message="# Change\n\nbody $(touch x) `y`")

    assert result.details["commit"] == plain(repo, "rev-parse", "HEAD")
    assert "Committed" in result.text and "2 files changed" in result.text
    assert plain(repo, "log", "-1", "--format=%B") == "# Change\n\nbody $(touch x) `y`"
    assert plain(repo, "log", "-1", "--format=%an %ce") == "Bowen bowen@example.org"
    assert plain(repo, "status", "--porcelain") == "?? new.txt"


async def test_commit_includes_only_the_named_files_and_folders(repo: Path) -> None:
    (repo / "a.txt").write_text("changed\n")
    (repo / "staged.txt").write_text("x")
    plain(repo, "add", "staged.txt")
    (repo / "dir").mkdir()
    for name in ("dir/one", "dir/-x", "dir/:(top)*", "*.txt"):
        (repo / name).write_text("new\n")

    await use(git_commit, repo, message="some", paths=["../work/dir", "*.txt"])

    changed = plain(repo, "show", "--format=", "--name-only").split("\n")
    assert changed == ["*.txt", "dir/-x", "dir/:(top)*", "dir/one"]
    assert plain(repo, "status", "--porcelain").split("\n") == ["M a.txt", "A  staged.txt"]


async def test_a_deleted_file_can_be_committed_by_name(repo: Path) -> None:
    (repo / "b.txt").unlink()
    await use(git_commit, repo, message="gone", paths=["b.txt"])
    assert plain(repo, "ls-files") == "a.txt"


async def test_paths_are_relative_to_the_workdir(tmp_path: Path, repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub/x").write_text("x")
    (repo / "x").write_text("x")
    await use(git_commit, tmp_path, message="x", paths=["x"], workdir="work/sub")
    assert plain(repo, "show", "--format=", "--name-only") == "sub/x"
    (repo / "sub/x").write_text("y")
    absolute = str(repo / "sub/x")
    assert "+y" in (await use(git_diff, tmp_path, workdir="work", paths=[absolute])).text
    for path in ("../../etc", "/etc/passwd", ""):
        with pytest.raises(ToolFailure, match="not a file of this repository"):
            await use(git_diff, repo, workdir="sub", paths=[path])


async def test_nothing_to_commit_is_an_error(repo: Path) -> None:
    (repo / "new.txt").write_text("x")
    (repo / ".gitignore").write_text("ignored\n")
    (repo / "ignored").write_text("x")
    before = plain(repo, "rev-parse", "HEAD")
    with pytest.raises(ToolFailure, match=r"Nothing to commit: .*Name new files"):
        await use(git_commit, repo, message="x")
    for path in ("b.txt", "nix", "ignored"):
        with pytest.raises(ToolFailure, match=f"Nothing to commit in {path}"):
            await use(git_commit, repo, message="x", paths=["new.txt", path])
    with pytest.raises(ToolFailure, match="message is empty"):
        await use(git_commit, repo, message=" \n")
    assert plain(repo, "rev-parse", "HEAD") == before


async def test_a_commit_without_git_identity_reports_the_default_author(tmp_path: Path) -> None:
    plain(tmp_path, "init", "--quiet")
    (tmp_path / "x").write_text("x")
    result = await use(git_commit, tmp_path, message="first", paths=["."])
    assert "committed as EvoClaw <evoclaw@localhost>" in result.text
    assert plain(tmp_path, "log", "--format=%an") == "EvoClaw"


async def test_the_git_identity_and_excludes_file_of_the_user_are_used(
    tmp_path: Path, home: Path
) -> None:
    (home / "mine").write_text("*.bak\n")
    (home / ".gitconfig").write_text(
        "[user]\nname = A=B\nemail = me@home\n[core]\nexcludesFile = ~/mine\nautocrlf = input\n"
    )
    plain(tmp_path, "init", "--quiet")
    (tmp_path / "x").write_bytes(b"x\r\n")
    (tmp_path / "x.bak").write_text("x")
    await use(git_commit, tmp_path, message="first", paths=["."])
    assert plain(tmp_path, "log", "--format=%an %ae") == "A=B me@home"
    assert plain(tmp_path, "ls-tree", "--name-only", "HEAD") == "x"
    assert plain(tmp_path, "cat-file", "-s", "HEAD:x") == "2"


async def test_branches_are_listed_created_switched_and_deleted(repo: Path) -> None:
    short = plain(repo, "rev-parse", "--short", "HEAD")
    listed = await use(git_branch, repo)
    assert listed.text.split("\n")[0] == f"* main {short} Fix bug"
    assert listed.details == {"branches": ["main", "other"], "current": "main"}

    await use(git_branch, repo, action="create", name="feature/x", start="other")
    await use(git_branch, repo, action="switch", name="feature/x")
    assert plain(repo, "branch", "--show-current") == "feature/x"
    assert (repo / "a.txt").read_text() == "one\ntwo\n"
    with pytest.raises(ToolFailure, match="failed: .*checked out|used by worktree"):
        await use(git_branch, repo, action="delete", name="feature/x")
    with pytest.raises(ToolFailure, match="does not have") as failure:
        await use(git_branch, repo, action="delete", name="main")
    assert failure.value.kind is ErrorKind.CONFLICT
    await use(git_branch, repo, action="delete", name="other")
    assert plain(repo, "branch", "--format=%(refname:short)") == "feature/x\nmain"


async def test_switching_branches_refuses_to_overwrite_local_changes(repo: Path) -> None:
    (repo / "a.txt").write_text("precious\n")
    with pytest.raises(ToolFailure, match="local changes"):
        await use(git_branch, repo, action="switch", name="other")
    assert (repo / "a.txt").read_text() == "precious\n"


@pytest.mark.parametrize(
    "value",
    ["-x", "--upload-pack=touch x", "-", "@{-1}", "a b", "a\nb", "", "a..b", "--output=x"],
)
async def test_fault_41_values_that_look_like_options_are_refused(repo: Path, value: str) -> None:
    (repo / "a.txt").write_text("changed\n")
    for action in ("create", "switch", "delete"):
        with pytest.raises(ToolFailure, match="is not a valid branch name"):
            await use(git_branch, repo, action=action, name=value)
    if value not in ("@{-1}", ""):
        for bound, name in ((git_log, "commit"), (git_branch, "start")):
            arguments: dict[str, JSON] = {name: value}
            if bound is git_branch:
                arguments |= {"action": "create", "name": "n"}
            with pytest.raises(ToolFailure):
                await use(bound, repo, **arguments)
    if value != "":
        found = await use(git_log, repo, paths=[value])
        assert found.text == "No commit changed these files."
    assert plain(repo, "status", "--porcelain", "--ignored") == "M a.txt"


@pytest.mark.parametrize("value", ["$(touch x)", "`touch x`", "; touch x", "| touch x", "&&x"])
async def test_fault_40_shell_characters_are_plain_text(repo: Path, value: str) -> None:
    name = value.replace("/", "")
    (repo / name).write_text("hello\n")
    await use(git_commit, repo, message=value, paths=[name])
    assert plain(repo, "show", "--format=%s", "--name-only", "-z").split("\0")[0] == value
    assert name in (await use(git_diff, repo, commit="HEAD")).text
    with pytest.raises(ToolFailure):
        await use(git_diff, repo, commit=value)
    assert not (repo / "x").exists()


async def test_a_missing_repository_or_git_program_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    without = LocalProcesses(tmp_path, env={"PATH": str(tmp_path / "empty")})
    for bound in EVERY:
        more: dict[str, JSON] = {"message": "x"} if bound is git_commit else {}
        with pytest.raises(ToolFailure, match="not in a git repository") as failure:
            await use(bound, tmp_path, **more)
        assert failure.value.kind is ErrorKind.NOT_FOUND
        with pytest.raises(ToolFailure, match="git is not installed"):
            await use(bound, tmp_path, exec=without, **more)
        with pytest.raises(ToolFailure, match="git is not installed"):
            machine = FakeOps()
            await use(bound, machine, exec=machine, **more)
        with pytest.raises(ToolFailure, match="nowhere"):
            await use(bound, tmp_path, workdir="nowhere", **more)


async def test_an_existing_index_lock_is_reported(repo: Path) -> None:
    (repo / "a.txt").write_text("changed\n")
    (repo / ".git/index.lock").write_text("")
    with pytest.raises(ToolFailure, match="Another git process may be running"):
        await use(git_commit, repo, message="x")
    assert "modified: a.txt" in (await use(git_status, repo)).text


def test_permissions_effects_and_timeouts_are_the_documented_ones() -> None:
    for bound in EVERY:
        made = bound.tool
        assert (made.timeout, made.max_timeout, made.resources) == (60, 300, (ANY_RESOURCE,))
        wanted = {"git", "file_write"} if bound is git_commit else {"git"}
        assert made.permissions == wanted
        writes = bound in (git_commit, git_branch)
        assert made.effect is (Effect.WRITE if writes else Effect.READ)

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.executors.git_layout import git_settings, harmful_setting
from evoclaw.executors.protected_paths import check_not_protected
from evoclaw.executors.workspace.guard import WorkspaceGuard
from evoclaw.sandbox.workers.trees import divide_environment
from tests.support.sandboxes import protected_paths


def test_auto_executed_files_are_mounted_read_only(tmp_path: Path) -> None:
    for name in (".git/config", "sub/.git/config", "sub/deep/agent.toml", ".envrc", "plain.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "worktree").mkdir()
    (tmp_path / "worktree" / ".git").write_text("gitdir: elsewhere")

    found = {path.removeprefix(f"{tmp_path}/") for path in protected_paths(str(tmp_path))}

    assert found == {
        *(".envrc", ".git/config", ".git/hooks", "sub/.git/config", "sub/.git/hooks"),
        *("sub/deep/agent.toml", "worktree/.git"),
    }


def test_symlinks_are_not_listed_as_protected_paths(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").symlink_to("/etc/passwd")

    assert protected_paths(str(tmp_path)) == ()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def refuse_all(guard: WorkspaceGuard, workspace: Path, files: dict[str, str]) -> list[str]:
    """Write files as a command would; what the guard renamed."""
    before = guard.scan()
    write(workspace, files)
    found = guard.planted(before, guard.scan(before), guard.protected(before))
    for path in found:
        guard.refuse(path)
    return [guard.relative(path) for path in found]


HEAD = {"HEAD": "ref: refs/heads/main", "objects/x": "", "refs/x": ""}


@pytest.mark.parametrize(
    ("made", "stays"),
    [
        ({"config": "[core]\n\tbare = false\n", "hooks/x.sample": ""}, True),
        (HEAD, True),
        ({"config": '[remote "o"]\n\turl = https://example.org/x.git\n'}, True),
        ({"hooks/pre-commit": "evil"}, False),
        ({"config": "[core]\n\tHooksPath = ./evil\n"}, False),
        ({"config": "[core]\n\tfsmonitor = ./evil\n"}, False),
        ({"config": "[include]\n\tpath = ../evil\n"}, False),
        ({"config": "[core]\n\tworktree = /home\n"}, False),
        ({"config": '[remote "o"]\n\turl = ext::sh -c evil\n'}, False),
        ({"config": '[submodule "o"]\n\tupdate = !evil\n'}, False),
        ({"config": "x" * (1 << 19)}, False),
        ({"commondir": "../evil"}, False),
        ({"info/attributes": "* filter=evil"}, False),
        ({"unheard-of": "a later version of git may obey it"}, False),
        ({"rebase-merge/git-rebase-todo": "pick 1234\nexec evil\n"}, False),
    ],
)
@pytest.mark.parametrize("top", [".git", "a/b/.git", "bare"])
def test_a_new_git_repository_is_renamed_if_it_can_run_code(
    tmp_path: Path, made: dict[str, str], stays: bool, top: str
) -> None:
    guard = WorkspaceGuard([str(tmp_path)])

    files = {f"{top}/{name}": text for name, text in (HEAD | made).items()}
    refused = refuse_all(guard, tmp_path, files)

    assert (refused == []) is stays, refused
    assert (tmp_path / top / "HEAD").exists() is stays


def test_a_created_symlink_is_removed_and_never_followed(tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    (outside / "hooks").mkdir(parents=True)
    work.mkdir()
    guard = WorkspaceGuard([str(work)])
    before = guard.scan()
    (work / ".git").symlink_to(outside)

    (found,) = guard.planted(before, guard.scan(before), ())

    assert guard.refuse(found) == "removed"
    assert not (work / ".git").is_symlink() and (outside / "hooks").is_dir()


def test_a_folder_swapped_for_a_link_is_not_followed_when_a_file_is_renamed(
    tmp_path: Path,
) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    write(outside, {".envrc": "the owner's"})
    work.mkdir()
    (work / "sub").symlink_to(outside)

    with pytest.raises(OSError):
        WorkspaceGuard([str(work)]).refuse(f"{work}/sub/.envrc")

    assert (outside / ".envrc").read_text() == "the owner's"


def test_a_changed_file_too_deep_to_be_mounted_is_found_by_its_change_time(tmp_path: Path) -> None:
    deep = "a/b/c/d/e/f/.git"
    write(tmp_path, {f"{deep}/{name}": text for name, text in HEAD.items()})
    write(tmp_path, {f"{deep}/config": "[core]\n\tbare = false\n"})
    guard = WorkspaceGuard([str(tmp_path)])
    assert guard.protected(guard.scan()) == ()

    refused = refuse_all(guard, tmp_path, {f"{deep}/config": "[core]\n\tfsmonitor = evil\n"})

    assert refused == [f"{deep}/config"] and not (tmp_path / deep / "config").exists()


def test_hooks_that_the_owners_own_settings_name_are_guarded_in_every_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, {".gitconfig": "[core]\n\thooksPath = .my/hooks\n[alias]\n\tx = !src\n"})
    for top in ("a", "b"):
        write(work, {f"{top}/.git/{name}": text for name, text in HEAD.items()})
    write(work, {"a/.my/hooks/pre-commit": "mine", "a/src/x": ""})
    guard = WorkspaceGuard([str(work)])

    assert f"{work}/a/.my/hooks" in guard.protected(guard.scan())
    assert f"{work}/a/src" not in guard.protected(guard.scan())
    assert refuse_all(guard, work, {"b/.my/hooks/pre-commit": "evil"}) == ["b/.my/hooks"]


def test_a_folder_that_a_command_made_unreadable_is_checked_all_the_same(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work, {f"a/b/{name}": text for name, text in HEAD.items()})

    def check() -> None:
        guard = WorkspaceGuard([str(work)])
        before = guard.scan()
        write(work / "a" / "b", {"config": "[core]\n\tfsmonitor = evil\n"})
        (work / "a" / "b").chmod(0o311)
        (work / "a").chmod(0o500 - 0o100)
        after = guard.scan(before)
        assert guard.planted(before, after, ()) == [f"{work}/a/b/config"]
        assert not after.unreadable

    assert as_plain_user(tmp_path, check) == 0


def as_plain_user(folder: Path, check: Callable[[], None]) -> int:
    """The exit code of a check, run by a user who is not root and owns a folder."""
    uid = os.geteuid() or 65534
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                for path in (folder, *folder.rglob("*")):
                    os.chown(path, uid, uid)
                for path in folder.parents:  # those of pytest are 0700
                    if path == Path(tempfile.gettempdir()):
                        break
                    path.chmod(path.stat().st_mode | 0o011)
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_further_writable_folders_are_guarded_and_hidden_ones_left_alone(tmp_path: Path) -> None:
    work, more, hidden = tmp_path / "work", tmp_path / "more", tmp_path / "work" / "hidden"
    for folder in (work, more, hidden):
        folder.mkdir()
    guard = WorkspaceGuard([str(work), str(more)], [str(hidden)])
    before = guard.scan()
    write(tmp_path, {"more/.envrc": "x", "work/hidden/.envrc": "x"})

    assert guard.planted(before, guard.scan(before), ()) == [f"{more}/.envrc"]


def test_git_settings_are_read_as_git_reads_them() -> None:
    text = (
        '[Core] Bare = "a#b" ; c\n\tfile\\\nMode\n'.replace("file\\\nMode", "fileMode")
        + '[remote "a]b\\"c"]\n\turl = one \\\n  two # x\n[a.b]c=1\n'
    )

    assert list(git_settings(text)) == [
        ("core", "bare", "a#b", ""),
        ("core", "filemode", "true", ""),
        ("remote", "url", "one   two", 'a]b\\"c'),
        ("a", "c", "1", "b"),
    ]
    assert harmful_setting('[core]\n\tbare = "x') and harmful_setting("[core\nbare = 1")


@pytest.mark.parametrize(
    "path",
    [
        *(".vscode/tasks.json", "a/.IDEA/x", ".gdbinit", "x/.exrc", ".mise.toml", ".envrc"),
        *(".cargo/config.toml", ".husky/x", "new/HEAD", ".Rprofile", ".hg/hgrc", "a/.git/config"),
    ],
)
def test_file_tools_refuse_files_that_programs_run_by_themselves(path: str) -> None:
    with pytest.raises(ToolFailure, match="is protected"):
        check_not_protected(path, path)


def test_file_tools_change_ordinary_files_of_the_same_folders() -> None:
    for path in (".cargo/registry/x", ".config/app/settings", "src/config.toml", "HEADER"):
        check_not_protected(path, path)


def test_command_variables_are_not_passed_outside_the_sandbox() -> None:
    given = {
        "LD_PRELOAD": "/w/x.so",
        "BASH_ENV": "/w/x",
        "PATH": "/w",
        "PYTHONPATH": "/w",
        "A": "1",
    }

    outside, inside = divide_environment(given)

    assert outside["A"] == "1" and outside.get("PATH") != "/w"
    assert not {"LD_PRELOAD", "BASH_ENV", "PYTHONPATH"} & set(outside)
    assert inside == {name: value for name, value in given.items() if name != "A"}

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.executors.protected_paths import absent_protected_names, protected_paths, set_aside
from evoclaw.sandbox.workers.trees import divide_environment


def test_auto_executed_files_are_found_at_any_depth(tmp_path: Path) -> None:
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


def test_absent_protected_names_are_listed_for_a_later_check(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("")

    names = set(absent_protected_names(str(tmp_path)))

    assert ".bashrc" not in names and {".zshrc", "agent.toml", ".git", ".evoclaw"} <= names


@pytest.mark.parametrize(
    ("made", "stays"),
    [
        ({"config": "[core]\n\tbare = false\n", "hooks/x.sample": ""}, True),
        ({"HEAD": "ref: refs/heads/main"}, True),
        ({"hooks/pre-commit": "evil"}, False),
        ({"config": "[core]\n\tHooksPath = ./evil\n"}, False),
        ({"config": "[core]\n\tfsmonitor = ./evil\n"}, False),
        ({"config": "[include]\n\tpath = ../evil\n"}, False),
        ({"config": "x" * (1 << 17)}, False),
        ({"commondir": "../evil"}, False),
    ],
)
def test_a_new_git_repository_is_quarantined_if_it_can_run_code(
    tmp_path: Path, made: dict[str, str], stays: bool
) -> None:
    for name, text in made.items():
        (tmp_path / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".git" / name).write_text(text)

    aside = set_aside(str(tmp_path), ".git")

    assert (aside == "") is stays and (tmp_path / ".git").exists() is stays


def test_a_created_symlink_is_quarantined_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "hooks").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".git").symlink_to(outside)

    aside = set_aside(str(tmp_path / "work"), ".git")

    assert aside and (tmp_path / "work" / aside).is_symlink()
    assert (outside / "hooks").is_dir()


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

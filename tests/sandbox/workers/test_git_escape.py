"""No sandboxed command makes the owner's own git, editor or shell run a program outside.

Each attack ends with what the owner does next: a plain `git status`, with no sandbox.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.engines.native.engine import NativeEngine
from evoclaw.sandbox.engines.podman import Podman
from tests.support.sandboxes import sandboxed
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="install git")

ENGINES: dict[str, type[SandboxEngine]] = {
    "bubblewrap": Bubblewrap,
    "native": NativeEngine,
    "podman": Podman,
}
IDENTITY = "-c user.name=me -c user.email=me@example.org -c protocol.file.allow=always"
EVIL = "'touch ESCAPED; false'"


@asynccontextmanager
async def repository(
    folder: Path, engine: str = "bubblewrap", *, worktree_config: bool = False
) -> AsyncGenerator[tuple[Path, LocalProcesses]]:
    """The owner's repository with one commit, and commands sandboxed in it."""
    work = make_repository(folder / "work")
    if worktree_config:
        git(work, "config", "extensions.worktreeConfig", "true")
    async with sandboxed(SandboxPolicy(str(work)), ENGINES[engine]()) as processes:
        yield work, processes


def make_repository(work: Path) -> Path:
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / "a.txt").write_text("1\n")
    git(work, "add", "a.txt")
    git(work, *IDENTITY.split(), "commit", "-q", "-m", "first")
    return work


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    """The owner's git, without a sandbox."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments],
        cwd=folder,
        env=environment,
        check=check,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout


async def attempt(processes: LocalProcesses, command: str, work: Path) -> str:
    """Run a command that may be refused; the text of the refusal, or nothing."""
    # Outside the workspace: the same program inside the sandbox cannot write there.
    command = command.replace("ESCAPED", str(work.parent / "ESCAPED"))
    async with asyncio.timeout(60):
        try:
            await processes.run(["bash", "-c", command])
        except ToolFailure as failure:
            assert failure.kind is ErrorKind.PERMISSION_DENIED, failure
            return failure.message
    return ""


def assert_owner_is_safe(work: Path) -> None:
    """What the owner does next runs nothing of the command's, in any folder."""
    folders = [work, *(path for path in work.rglob("*") if path.is_dir())]
    for folder in folders:
        if not folder.is_symlink() and ".git" not in folder.relative_to(work).parts:
            git(folder, "status", check=False)
            git(folder, "stash", "list", check=False)
    for folder in folders:
        git(folder, "rev-parse", "--git-dir", check=False)
        git(folder, "status", check=False)
    assert not (work.parent / "ESCAPED").exists()


ATTACKS = {
    "another common folder": (
        "cp -r .git evilgit && "
        f"git config -f evilgit/config core.fsmonitor {EVIL}; echo ../evilgit > .git/commondir"
    ),
    "an embedded repository": (
        f"git init -q new && cd new && git config core.fsmonitor {EVIL} && "
        f"touch x && git {IDENTITY} add x && git {IDENTITY} commit -qm x; cd .. && git add new"
    ),
    "settings of the worktree": f"git config -f .git/config.worktree core.fsmonitor {EVIL}",
}
MORE_ATTACKS = {
    "a bare repository": (
        f"git init -q --bare deep/x && git -C deep/x config core.fsmonitor {EVIL} && "
        'git -C deep/x config core.bare false && git -C deep/x config core.worktree "$PWD/deep/x"'
    ),
    "deeper than four folders": (
        f"git init -q a/b/c/d/e/f/g && git -C a/b/c/d/e/f/g config core.fsmonitor {EVIL}"
    ),
    "in a folder that is seldom looked into": (
        f"git init -q node_modules/x && git -C node_modules/x config core.fsmonitor {EVIL}"
    ),
    "behind many files": (
        "mkdir many && (cd many && seq 25000 | xargs touch) && "
        f"git init -q z && git -C z config core.fsmonitor {EVIL}"
    ),
    "a file that names a repository": (
        "git init -q --separate-git-dir=store sub && "
        f"git config -f store/config core.fsmonitor {EVIL}"
    ),
    "a link to a repository": (
        f"git init -q there && git -C there config core.fsmonitor {EVIL}; "
        "mkdir here; mv there/.git store; ln -s ../store here/.git"
    ),
    "a worktree of another repository": (
        f"cp -r .git evil && git config -f evil/config core.fsmonitor {EVIL}; "
        'git worktree add -q wt && echo "$PWD/evil" > .git/worktrees/wt/commondir'
    ),
    "a repository that may not be listed": (
        f"git init -q new && git -C new config core.fsmonitor {EVIL}; chmod 311 new"
    ),
    "an included file": (
        f"git init -q new && git config -f new/more core.fsmonitor {EVIL} && "
        "git -C new config include.path ../more"
    ),
    "a repository of a submodule": (
        "git init -q .git/modules/m && mv .git/modules/m/.git/* .git/modules/m/ && "
        f"git config -f .git/modules/m/config core.fsmonitor {EVIL} && "
        "git config -f .git/modules/m/config core.worktree ../../../m && "
        "mkdir m && echo 'gitdir: ../.git/modules/m' > m/.git"
    ),
    "a setting behind a continued line": (
        "git init -q new && printf '[core]\\n\\tbare = false ; x\\n\\tFsMo\\\\\\nnitor = x\\n"
        f'[ "a" ]\\n[core]fsmonitor = %s\\n\' {EVIL} >> new/.git/config'
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_fault_55_no_command_escapes_through_the_owners_git(
    tmp_path: Path, engine: str, attack: str
) -> None:
    async with repository(tmp_path, engine, worktree_config="settings" in attack) as (work, inside):
        message = await attempt(inside, ATTACKS[attack], work)
        assert_owner_is_safe(work)
    assert "refused" in message


@pytest.mark.parametrize("attack", MORE_ATTACKS)
async def test_fault_55_repositories_that_run_programs_are_disabled_at_any_depth(
    tmp_path: Path, attack: str
) -> None:
    async with repository(tmp_path) as (work, inside):
        message = await attempt(inside, MORE_ATTACKS[attack], work)
        assert_owner_is_safe(work)
    assert "refused" in message or "removed" in message


async def test_fault_55_links_in_a_repository_that_lead_outside_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "profile"
    outside.write_text("mine\n")
    async with repository(tmp_path) as (work, inside):
        command = (
            f"ln -sf {outside} .git/COMMIT_EDITMSG; rm .git/index; ln -s {outside} .git/index; "
            f"rm -r .git/logs; mkdir -p .git/logs; ln -s {outside} .git/logs/HEAD"
        )
        message = await attempt(inside, command, work)
        left = [path for path in (work / ".git").rglob("*") if path.is_symlink()]
    assert left == [] and message.count("removed") >= 3
    assert outside.read_text() == "mine\n"


async def test_fault_55_programs_that_the_owners_settings_name_are_read_only(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        (work / ".githooks").mkdir()
        (work / ".githooks" / "pre-commit").write_text("#!/bin/sh\nexit 0\n")
        (work / "more").write_text("[core]\n\tfsmonitor = ./tools/watch.sh\n")
        (work / "tools").mkdir()
        (work / "tools" / "watch.sh").write_text("#!/bin/sh\nexit 1\n")
        git(work, "config", "core.hooksPath", ".githooks")
        git(work, "config", "include.path", "../more")
        tried = await inside.run(
            ["bash", "-c", "for f in .githooks/pre-commit more tools/watch.sh .githooks/new; do "
             "echo evil >> $f && echo CHANGED; done; touch tools/other && echo fine"]
        )  # fmt: skip
        worktree = (
            "mkdir wt.src && git worktree add -q wt && mkdir wt/.githooks && "
            "echo evil > wt/.githooks/pre-commit"
        )
        message = await attempt(inside, worktree, work)
        assert not (work / "wt" / ".githooks").exists() and (work / "wt" / "a.txt").exists()
    assert tried.stdout == b"fine\n" and "wt/.githooks" in message


AUTOMATIC_FILES = (
    *(".vscode/tasks.json", ".idea/workspace.xml", ".gdbinit", ".exrc", ".mise.toml", ".envrc"),
    *(".cargo/config.toml", ".husky/pre-commit", ".hg/hgrc", ".claude/settings.json", ".Rprofile"),
    *(".config/mise/config.toml", "evoclaw.toml"),
)


@pytest.mark.parametrize("folder", ["", "src/", "src/new/deeper/than/four/folders/"])
async def test_fault_55_files_that_programs_run_by_themselves_are_renamed_at_any_depth(
    tmp_path: Path, folder: str
) -> None:
    async with repository(tmp_path) as (work, inside):
        (work / "src").mkdir()
        command = "".join(
            f"mkdir -p $(dirname {folder}{name}); echo evil > {folder}{name}; "
            for name in AUTOMATIC_FILES
        )
        message = await attempt(inside, command, work)
        assert [name for name in AUTOMATIC_FILES if (work / folder / name).exists()] == []
    top = [name.split("/")[0] for name in AUTOMATIC_FILES]
    assert [name for name in top if f"{folder}{name}" not in message] == []


async def test_fault_55_a_file_planted_while_a_long_command_runs_stops_the_command(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        message = await attempt(inside, "echo x > .envrc; sleep 50", work)
        assert not (work / ".envrc").exists()
    assert ".envrc" in message


async def test_fault_55_a_cancelled_command_leaves_nothing_that_runs_by_itself(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await inside.run(["bash", "-c", "touch .envrc; sleep 50"])
        assert not (work / ".envrc").exists()


async def test_the_owners_new_files_are_left_alone_and_protected_from_then_on(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        assert await attempt(inside, "true", work) == ""
        (work / ".envrc").write_text("mine\n")
        git(work, "config", "core.pager", "less")
        git(work, "init", "-q", "other")
        git(work / "other", "config", "core.fsmonitor", "watch")
        done = await inside.run(["bash", "-c", "echo evil > .envrc || echo no"])
        assert (work / ".envrc").read_text() == "mine\n"
        assert "watch" in (work / "other" / ".git" / "config").read_text()
    assert done.stdout == b"no\n"


LEGITIMATE = """
set -e
export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=me
export GIT_CONFIG_KEY_1=user.email GIT_CONFIG_VALUE_1=me@example.org
export GIT_CONFIG_KEY_2=protocol.file.allow GIT_CONFIG_VALUE_2=always
git switch -q -c topic; echo 2 >> a.txt; git add -A; git commit -qm two
git switch -q main; echo x > b.txt; git add b.txt; git commit -qm b
git merge -q -m merged topic; git tag v1; git branch old HEAD~1
git switch -q topic; git rebase -q main; git switch -q main
echo 3 >> a.txt; git stash -q; git stash pop -q; git commit -qam three
git cherry-pick --quit; git reset -q --hard HEAD; git gc -q; git bisect start HEAD HEAD~1
git bisect reset; git notes add -m note; git worktree add -q wt topic; git -C wt status -s
"""
NEW_REPOSITORIES = """
set -e
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=protocol.file.allow GIT_CONFIG_VALUE_0=always
git clone -q . clone; git clone -q --bare . bare.git; git init -q fresh
cd fresh; git config user.name me; git config user.email me@example.org
git remote add origin ../bare.git; git fetch -q; git checkout -q -b main origin/main
mkdir .vscode; echo '{}' > .vscode/tasks.json; git add .; git commit -qm tasks; git push -q
git submodule add -q ../bare.git inner; git commit -qm inner; cd ..
git clone -q --recurse-submodules fresh again
git init -q --separate-git-dir=store apart
"""


@pytest.mark.parametrize("engine", ["bubblewrap", "native"])
async def test_ordinary_git_work_goes_on_inside_the_sandbox(tmp_path: Path, engine: str) -> None:
    async with repository(tmp_path, engine) as (work, inside):
        for script in (LEGITIMATE, NEW_REPOSITORIES):
            done = await inside.run(["bash", "-c", script])
            assert done.exit_code == 0, done.stderr.decode()
        after = """
        set -e
        cd fresh; git config user.name other; git remote set-url origin ../clone; git status -s
        echo y > y; git add y; git commit -qm y; cd ..
        git worktree remove --force wt; git worktree prune; rm -rf again
        """
        done = await inside.run(["bash", "-c", after])
        assert done.exit_code == 0, done.stderr.decode()
        assert git(work, "fsck", "--no-progress", "--no-dangling") == ""
        assert git(work / "clone", "log", "--oneline").count("\n") >= 4
        assert (work / "fresh" / ".vscode" / "tasks.json").exists()
        assert_owner_is_safe(work)


async def test_fault_55_settings_that_the_owner_replaced_are_read_only_again(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        assert await attempt(inside, "true", work) == ""
        # Git renames the new file over the old one, and the kernel drops the mount on the old one.
        git(work, "config", "branch.main.description", "mine")
        command = f"git config -f .git/config core.fsmonitor {EVIL}; echo x >> .git/config"
        await attempt(inside, command, work)
        assert_owner_is_safe(work)
        assert "mine" in (work / ".git" / "config").read_text()


async def test_fault_55_settings_that_the_owner_replaces_while_a_command_runs_are_checked(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        # While git renames, the name leads for a moment to the old file without its mount: what is
        # written there is lost, so the command looks.
        waiting = (
            "touch waiting; for _ in $(seq 300); do "
            "{ printf '[core]\\n\\tfsmonitor = touch ESCAPED\\n' >> .git/config; } 2>/dev/null "
            "&& grep -q fsmonitor .git/config && exit; sleep 0.1; done"
        )
        running = asyncio.create_task(attempt(inside, waiting, work))
        await until((work / "waiting").exists)
        git(work, "config", "branch.main.description", "mine")
        message = await running
        assert_owner_is_safe(work)
    assert ".git/config" in message


async def test_the_owner_may_change_settings_while_a_command_runs(tmp_path: Path) -> None:
    async with repository(tmp_path) as (work, inside):
        running = asyncio.create_task(attempt(inside, "touch waiting; sleep 2", work))
        await until((work / "waiting").exists)
        git(work, "config", "branch.main.vscode-merge-base", "origin/main")
        git(work, "remote", "add", "origin", "https://example.org/x.git")
        assert await running == ""
        assert "example.org" in (work / ".git" / "config").read_text()


async def test_fault_55_a_missing_program_that_the_owners_settings_name_cannot_be_created(
    tmp_path: Path,
) -> None:
    async with repository(tmp_path) as (work, inside):
        git(work, "config", "core.hooksPath", ".githooks")
        git(work, "config", "filter.x.clean", "./tools/clean %f")
        command = (
            "mkdir .githooks tools; echo evil > tools/clean; chmod +x tools/clean; "
            "printf '#!/bin/sh\\ntouch ESCAPED\\n' > .githooks/pre-commit; "
            "chmod +x .githooks/pre-commit"
        )
        message = await attempt(inside, command, work)
        git(work, *IDENTITY.split(), "commit", "--allow-empty", "-qm", "owner")
        assert_owner_is_safe(work)
    assert ".githooks" in message and "tools/clean" in message


async def test_a_long_command_may_create_a_project_with_editor_settings(tmp_path: Path) -> None:
    async with repository(tmp_path) as (work, inside):
        command = "mkdir -p app/.vscode; echo '{}' > app/.vscode/tasks.json; sleep 3; touch app/end"
        message = await attempt(inside, command, work)
        assert (work / "app" / "end").exists(), "it was stopped"
        assert not (work / "app" / ".vscode").exists()
    assert "app/.vscode" in message

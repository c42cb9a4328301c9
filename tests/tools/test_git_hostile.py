"""Fault 42: repositories whose every setting runs a program that leaves a mark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.git.reading import git_diff, git_log, git_status
from evoclaw.tools.git.writing import git_branch, git_commit
from tests.support.git import make, plain
from tests.support.tool_calls import use

pytestmark = pytest.mark.process

HOOKS = (
    "commit-msg",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "pre-auto-gc",
    "pre-commit",
    "prepare-commit-msg",
    "reference-transaction",
)
CALLS: tuple[tuple[BoundTool, dict[str, JSON]], ...] = (
    (git_status, {}),
    (git_diff, {}),
    (git_diff, {"staged": True}),
    (git_diff, {"commit": "HEAD"}),
    (git_log, {"paths": ["a.txt"]}),
    (git_branch, {}),
    (git_branch, {"action": "create", "name": "fresh"}),
    (git_commit, {"message": "named", "paths": ["a.txt", "new.txt"]}),
    (git_commit, {"message": "all"}),
    (git_branch, {"action": "switch", "name": "other"}),
    (git_branch, {"action": "switch", "name": "main"}),
    (git_branch, {"action": "delete", "name": "fresh"}),
)


@dataclass(frozen=True)
class Scene:
    repo: Path
    mark: Path
    program: str
    """Leaves the mark, then copies its input to its output."""
    quitter: str
    """Leaves the mark and fails."""

    def config(self, *pairs: str) -> None:
        for pair in pairs:
            key, value = pair.split("=", 1)
            value = value.replace("PROG", self.program).replace("QUIT", self.quitter)
            plain(self.repo, "config", "--add", key, value)

    def attributes(self, text: str) -> None:
        (self.repo / ".git/info").mkdir(exist_ok=True)
        (self.repo / ".git/info/attributes").write_text(text)

    def hooks(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in HOOKS:
            (folder / name).write_text(f"#!/bin/sh\n{self.program} </dev/null >/dev/null\n")
            (folder / name).chmod(0o755)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    mark, program = tmp_path / "mark", tmp_path / "program"
    quitter = tmp_path / "quitter"
    for path, end in ((program, "exec cat"), (quitter, "exit 1")):
        path.write_text(f"#!/bin/sh\ntouch {mark}\n{end}\n")
        path.chmod(0o755)
    return Scene(make(tmp_path / "work"), mark, str(program), str(quitter))


def configured(*pairs: str, attributes: str = "") -> Callable[[Scene], None]:
    def build(scene: Scene) -> None:
        scene.config(*pairs)
        if attributes:
            scene.attributes(attributes)

    return build


def odd_name(scene: Scene) -> None:
    with (scene.repo / ".git/config").open("a") as file:
        file.write(f'[filter "a=b"]\nclean = {scene.program}\n')
    scene.attributes("* filter=a=b\n")


def in_tree_attributes(scene: Scene) -> None:
    (scene.repo / ".gitattributes").write_text("*.txt filter=f diff=d\n")
    plain(scene.repo, "add", ".gitattributes")
    plain(scene.repo, "commit", "--quiet", "-m", "attributes")
    scene.config("filter.f.clean=PROG", "filter.f.smudge=PROG", "diff.d.textconv=PROG")


def included(condition: str) -> Callable[[Scene], None]:
    def build(scene: Scene) -> None:
        (scene.repo / ".git/extra").write_text(f'[filter "f"]\nclean = {scene.program}\n')
        scene.config(f"{condition}.path=extra")
        scene.attributes("* filter=f\n")

    return build


def worktree_config(scene: Scene) -> None:
    scene.config("extensions.worktreeConfig=true")
    (scene.repo / ".git/config.worktree").write_text(f"[core]\nfsmonitor = {scene.program}\n")


def another_repository(scene: Scene) -> None:
    """What is looked at must be what is used: the working files hold a repository of their own."""
    other = make(scene.repo / "other")
    plain(other, "config", "filter.f.clean", scene.program)
    (other / ".git/info/attributes").write_text("* filter=f\n")
    (other / "a.txt").write_text("one\n3\n")
    scene.config(f"core.worktree={other}")


def macro(scene: Scene) -> None:
    """Only the other branch says that a file has a filter, and not in so many words."""
    scene.attributes("[attr]innocent filter=f\n")
    plain(scene.repo, "switch", "--quiet", "other")
    (scene.repo / ".gitattributes").write_text("*.txt innocent\n")
    plain(scene.repo, "add", ".gitattributes")
    plain(scene.repo, "commit", "--quiet", "-m", "attributes")
    plain(scene.repo, "switch", "--quiet", "main")
    scene.config("filter.f.smudge=PROG")


def hook_files(scene: Scene) -> None:
    scene.hooks(scene.repo / ".git/hooks")


def hooks_path(scene: Scene) -> None:
    scene.hooks(scene.repo / "tracked-hooks")
    scene.config("core.hooksPath=tracked-hooks")


def signed(scene: Scene) -> None:
    raw = plain(scene.repo, "cat-file", "commit", "HEAD")
    head, _, message = raw.partition("\n\n")
    armour = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----"
    whole = f"{head}\n{armour}\n\n{message}\n"
    made = plain(scene.repo, "hash-object", "-t", "commit", "-w", "--stdin", stdin=whole)
    plain(scene.repo, "update-ref", "refs/heads/main", made)
    scene.config("log.showSignature=true", "gpg.program=PROG")


def submodule(scene: Scene) -> None:
    inner = make(scene.repo / "inner")
    plain(scene.repo, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    (scene.repo / ".gitmodules").write_text('[submodule "inner"]\npath = inner\nurl = ./x\n')
    plain(scene.repo, "add", ".gitmodules")
    plain(scene.repo, "commit", "--quiet", "-m", "submodule")
    # Settings forced upon git reach a submodule too; not so what overrules names found here.
    plain(inner, "config", "filter.inner.clean", scene.program)
    (inner / ".git/info/attributes").write_text("* filter=inner\n")
    plain(inner, "commit", "--quiet", "--allow-empty", "-m", "moved")
    (inner / "a.txt").write_text("one\n3\n")
    scene.config("submodule.recurse=true", "diff.submodule=diff", "status.submoduleSummary=true")
    scene.config("submodule.inner.ignore=none", "submodule.inner.active=true")
    scene.mark.unlink(missing_ok=True)


def nested_bare(scene: Scene) -> None:
    """The working files themselves are laid out as a repository."""
    plain(scene.repo, "clone", "--quiet", "--bare", ".", "../bare")
    bare = scene.repo.parent / "bare"
    plain(bare, "config", "core.fsmonitor", scene.program)
    plain(bare, "config", "core.bare", "false")
    plain(bare, "config", "core.worktree", ".")
    (scene.repo / ".git").rename(scene.repo / "was")
    for entry in bare.iterdir():
        entry.rename(scene.repo / entry.name)


def lacking(*pairs: str) -> Callable[[Scene], None]:
    """Objects are missing, and a remote promises to have them."""

    def build(scene: Scene) -> None:
        blob = plain(scene.repo, "rev-parse", "HEAD~1:a.txt")
        (scene.repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
        scene.config("core.repositoryFormatVersion=1", "extensions.partialClone=evil")
        scene.config("remote.evil.promisor=true", *pairs)

    return build


def of_the_machine(*lines: str) -> Callable[[Scene], None]:
    def build(scene: Scene) -> None:
        text = "\n".join(lines).replace("PROG", scene.program)
        (Path(os.environ["HOME"]) / ".gitconfig").write_text(text + "\n")
        scene.attributes("* filter=f diff=f\n")

    return build


BY_TOOLS = {
    "fsmonitor": configured("core.fsmonitor=PROG"),
    "hook files": hook_files,
    "hooks path": hooks_path,
    "external diff": configured("diff.external=PROG"),
    "diff driver": configured("diff.d.command=PROG", attributes="* diff=d\n"),
    "textconv": configured("diff.d.textconv=PROG", attributes="* diff=d\n"),
    "clean filter": configured("filter.f.clean=PROG", attributes="* filter=f\n"),
    "smudge filter": configured("filter.f.smudge=PROG", attributes="* filter=f\n"),
    "filter process": configured(
        "filter.f.process=PROG", "filter.f.required=true", attributes="* filter=f\n"
    ),
    "filter of an odd name": odd_name,
    "filter with dots and capitals": configured(
        "filter.Foo.bar-Baz.clean=PROG", attributes="* filter=Foo.bar-Baz\n"
    ),
    "attributes in the tree": in_tree_attributes,
    "attributes by macro": macro,
    "include": included("include"),
    "include by folder": included("includeIf.gitdir:**"),
    "include by branch": included("includeIf.onbranch:main"),
    "configuration of the worktree": worktree_config,
    "signing": configured("commit.gpgSign=true", "gpg.program=PROG"),
    "signing with ssh": configured(
        "commit.gpgSign=true", "gpg.format=ssh", "gpg.ssh.program=PROG", "user.signingKey=x"
    ),
    "signature shown": signed,
    "submodule": submodule,
    "nested bare repository": nested_bare,
    "promised objects over ssh": lacking(
        "remote.evil.url=ssh://nowhere.invalid/x", "core.sshCommand=QUIT"
    ),
    "promised objects by a program": lacking(
        "remote.evil.url=ext::QUIT", "protocol.ext.allow=always"
    ),
    "promised objects from a folder": lacking("remote.evil.url=.", "remote.evil.uploadpack=QUIT"),
    "the machine's fsmonitor": of_the_machine("[core]", "fsmonitor = PROG"),
    "the machine's filter": of_the_machine('[filter "f"]', "clean = PROG"),
    "the machine's textconv": of_the_machine('[diff "f"]', "textconv = PROG"),
}
# Plain git runs these only on a terminal, with a network, or with commands that no tool uses.
BY_NOBODY = {
    "pagers": configured("core.pager=PROG", "pager.status=PROG", "pager.log=PROG"),
    "aliases": configured("alias.status=!PROG", "alias.log=!PROG", "alias.commit=!PROG"),
    "editors": configured("core.editor=PROG", "sequence.editor=PROG", "commit.verbose=true"),
    "credentials": configured("credential.helper=!PROG", "core.askPass=PROG"),
    "merge driver": configured("merge.m.driver=PROG", attributes="* merge=m\n"),
    "trailers": configured("trailer.sign.command=PROG", "trailer.sign.cmd=PROG"),
    "hooks by configuration": configured("hook.h.command=PROG", "hook.h.event=pre-commit"),
    "refs of alternates": configured("core.alternateRefsCommand=PROG"),
    "interactive filter": configured("interactive.diffFilter=PROG"),
}


def change(scene: Scene) -> None:
    """Make every command have something to do: a changed file of the same size, and a new one."""
    (scene.repo / "a.txt").write_text("one\n3\n")
    (scene.repo / "new.txt").write_text("new\n")
    scene.mark.unlink(missing_ok=True)


def all_others(scene: Scene) -> None:
    for build in BY_NOBODY.values():
        build(scene)


VECTORS = {**BY_TOOLS, "another repository": another_repository, "all others": all_others}


@pytest.mark.parametrize("name", VECTORS)
async def test_fault_42_git_tools_run_no_program_of_the_repository(scene: Scene, name: str) -> None:
    VECTORS[name](scene)
    change(scene)
    machine = LocalProcesses(scene.repo)
    for bound, arguments in CALLS:
        with suppress(ToolFailure):
            await use(bound, scene.repo, exec=machine, **arguments)
        assert not scene.mark.exists(), (bound.name, arguments)


@pytest.mark.parametrize("name", BY_TOOLS)
def test_plain_git_runs_the_programs_of_a_hostile_repository(scene: Scene, name: str) -> None:
    BY_TOOLS[name](scene)
    change(scene)
    for arguments in (
        ("status",),
        ("diff",),
        ("show",),
        ("diff", "other..main"),
        ("add", "a.txt", "new.txt"),
        ("commit", "-m", "x"),
        ("log", "-p"),
        ("switch", "other"),
    ):
        plain(scene.repo, *arguments, check=False)
    assert scene.mark.exists()


@pytest.mark.parametrize("name", ["hook files", "external diff", "signing", "fsmonitor"])
async def test_fault_42_git_tools_still_work_in_a_hostile_repository(
    scene: Scene, name: str
) -> None:
    BY_TOOLS[name](scene)
    change(scene)
    for bound, arguments in CALLS:
        if arguments != {"message": "all"}:
            await use(bound, scene.repo, **arguments)
    assert plain(scene.repo, "log", "-1", "--format=%s", "main") == "named"


async def test_files_with_a_git_filter_are_not_committed_or_checked_out(scene: Scene) -> None:
    in_tree_attributes(scene)
    change(scene)
    before = plain(scene.repo, "rev-parse", "HEAD")
    calls: tuple[tuple[BoundTool, dict[str, JSON]], ...] = (
        (git_commit, {"message": "x"}),
        (git_commit, {"message": "x", "paths": ["new.txt"]}),
        (git_branch, {"action": "switch", "name": "other"}),
    )
    for bound, arguments in calls:
        with pytest.raises(ToolFailure, match=r"filter f\).*Nothing was changed") as failure:
            await use(bound, scene.repo, **arguments)
        assert failure.value.kind is ErrorKind.PERMISSION_DENIED
    assert plain(scene.repo, "rev-parse", "HEAD") == before
    assert plain(scene.repo, "diff", "--cached", "--name-only") == ""
    assert "a.txt (filter f)" in (await use(git_status, scene.repo)).text
    assert "without the filter of: a.txt" in (await use(git_diff, scene.repo)).text


async def test_a_git_filter_detected_after_the_switch_is_reported(scene: Scene) -> None:
    macro(scene)
    scene.mark.unlink(missing_ok=True)
    result = await use(git_branch, scene.repo, action="switch", name="other")
    assert "Filters were not run for: a.txt (filter f)" in result.text
    assert not scene.mark.exists()


async def test_a_git_filter_of_the_target_branch_blocks_the_switch(scene: Scene) -> None:
    plain(scene.repo, "switch", "--quiet", "other")
    (scene.repo / ".gitattributes").write_text("*.txt filter=lfs\n")
    plain(scene.repo, "add", ".gitattributes")
    plain(scene.repo, "commit", "--quiet", "-m", "lfs")
    plain(scene.repo, "switch", "--quiet", "main")
    with pytest.raises(ToolFailure, match="Switching needs a filter"):
        await use(git_branch, scene.repo, action="switch", name="other")


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({"filter.a=b.clean": "x"}, "unusual name"),
        ({f"filter.f{number}.clean": "x" for number in range(501)}, "more than 500 programs"),
    ],
)
async def test_git_configuration_that_cannot_be_overridden_is_refused(
    scene: Scene, pairs: Mapping[str, str], words: str
) -> None:
    lines = [f'[filter "{key.split(".")[1]}"]\nclean = {value}\n' for key, value in pairs.items()]
    with (scene.repo / ".git/config").open("a") as file:
        file.writelines(lines)
    with pytest.raises(ToolFailure, match=words):
        await use(git_status, scene.repo)

"""Fault 55: an agent changes nothing that binds it, neither by file tools nor by a shell."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import reply, shell
from tests.support.governed_machine import (
    Given,
    audit_records,
    events,
    isolation,
    obfuscated,
    results,
    settings,
    text_of,
    turns,
    write_example_files,
)

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="install the package bubblewrap"
)

OFTEN = "[rates]\nper_minute = 0\nburst = 0\n"
"""Nobody is slowed down: these are very many calls."""
RULES = """
default = "allow"
unreadable = "ask"
code = "ask"

[[rules]]
name = "mine"
then = "deny"
access = "write"
paths = ["~/.evoclaw"]
denies = ["touch ~/.evoclaw/x"]
"""
KEPT = {
    "evoclaw.toml": '[policy]\nrules = "rules.toml"\n[budget.tenant]\ncalls = 500\nper = "1d"\n'
    + OFTEN,
    "rules.toml": RULES,
    "stops.json": '{"stops":[{"kind":"tool","name":"git_commit"}]}',
    "approved-skills.json": "{}",
    "skills/mine/SKILL.md": "---\nname: mine\ndescription: Does it.\n---\nDo it.\n",
}
"""In the data folder; the databases beside them are made by the run itself."""
FOUND = {
    ".git/hooks/pre-commit": "#!/bin/sh\ntrue\n",
    ".git/config": "[core]\n\tbare = false\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "agent.toml": 'agent_id = "pi"\n',
    "evoclaw.toml": "[budget]\nlines = 1\n",
    ".bashrc": "true\n",
}
"""In the workspace."""


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def same(folder: Path, files: dict[str, str]) -> None:
    """Each is there as it was, and is no link to something else."""
    for name, text in files.items():
        assert not (folder / name).is_symlink(), name
        assert (folder / name).read_text() == text, name


def by_file_tools(path: str) -> list[Given]:
    patch = f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch\n"
    return [
        ("write", {"path": path, "content": "evil"}),
        ("edit", {"path": path, "old_string": "e", "new_string": "evil"}),
        ("apply_patch", {"patch": patch}),
    ]


def spoil(*paths: Path) -> str:
    """Shell commands that try everything with some files, and say when something worked."""
    each = (
        'echo evil >> "$f" && echo CHANGED "$f"; [ -e "$f" ] && rm "$f" && echo GONE "$f"; '
        'mv "$f" "$f.old" && echo MOVED "$f"; ln -sf /dev/null "$f" && echo LINKED "$f"; '
        'd=$(dirname "$f"); mv "$d" "$d.old" && echo FOLDER MOVED "$d"; '
    )
    names = " ".join(f"'{path}'" for path in paths)
    return f"for f in {names}; do {each} done 2>/dev/null; true"


async def test_fault_55_tools_can_neither_read_nor_change_the_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "home" / ".evoclaw"
    mine = [data / name for name in (*KEPT, "approvals.db", "budget.db", "audit/head.json")]
    calls = [
        *(call for path in mine for call in by_file_tools(str(path))),
        ("read", {"path": str(data / "approvals.db")}),
        ("bash", {"command": f"echo evil > {data}/stops.json"}),
        ("bash", {"command": "cp /dev/null ~/.evoclaw/rules.toml"}),
        ("bash", {"command": obfuscated(spoil(*mine))}),
        ("bash", {"command": obfuscated(f"ls -A {data}; cat {data}/audit.key 2>&1 | base64")}),
    ]
    async with shell(tmp_path, *turns(*calls)) as here:
        write_example_files(here)
        lay(data, KEPT)
        ran = await here.type("run", "--yes", "--json", "--turns", "40", "go")
        same(data, KEPT)
        rows = {one["call_id"]: one for one in audit_records(data)}
        told = list(results(ran.out).values())
        listed = await here.type("approvals")
        spent = await here.type("budget", "--json")
        verified = await here.type("audit", "verify")
    assert all(one["error"] for one in told if one["name"] in ("write", "edit", "apply_patch"))
    plain = [one for one in rows.values() if one["tool"] == "bash" and one["verdict"] == "deny"]
    assert [one["code"] for one in plain] == ["rule:mine"] * 2
    sandboxed = [one for one in told if one["name"] == "bash" and isolation(one)]
    assert [isolation(one) != "none" for one in sandboxed] == [True] * 2
    # A sandbox has an empty folder of that name, gone with it; only skills can be read there.
    looked = text_of(sandboxed[-1])
    assert looked.split("\n")[0] == "skills"
    assert base64.b64decode(looked.partition("\n")[2]).endswith(b"No such file or directory\n")
    # What it is governed by still works.
    assert listed.code == spent.code == verified.code == 0, (listed, spent, verified)
    assert events(ran.out, "run_finished")[0]["stop"] == "completed"


async def test_fault_55_tools_cannot_change_protected_files_in_the_workspace(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    names = [name for name in FOUND if name != ".git/HEAD"]
    calls = [
        *(call for name in names for call in by_file_tools(name)),
        *(("bash", {"command": f"echo evil >> {name}"}) for name in names[:4]),
        ("bash", {"command": obfuscated(spoil(*(work / name for name in names)))}),
        ("bash", {"command": obfuscated("git config core.fsmonitor evil; git config -l")}),
    ]
    async with shell(tmp_path, *turns(*calls)) as here:
        write_example_files(here)
        lay(work, FOUND)
        settings(here, OFTEN)
        ran = await here.type("run", "--yes", "--json", "--turns", "40", "go")
        same(work, FOUND)
        rows = [one for one in audit_records(here.home / ".evoclaw") if one["code"]]
        denied = [one["code"] for one in rows if one["verdict"] != "allow"]
    told = list(results(ran.out).values())
    assert all(one["error"] for one in told if one["name"] in ("write", "edit", "apply_patch"))
    assert set(denied) == {"rule:runs-by-itself"}
    sandboxed = [one for one in told if one["name"] == "bash" and isolation(one)]
    assert len(sandboxed) == 2, "only the hidden ones got as far as the sandbox"
    for word in ("CHANGED", "GONE", "MOVED", "LINKED"):
        assert word not in text_of(sandboxed[0]), text_of(sandboxed[0])


async def test_fault_55_hooks_and_settings_created_by_a_command_are_moved_aside(
    tmp_path: Path,
) -> None:
    made = obfuscated(
        "mkdir -p .git/hooks .evoclaw; echo evil > .git/hooks/pre-commit; echo evil > agent.toml; "
        "echo evil > evoclaw.toml; echo evil > .bashrc; touch .evoclaw/stops.json; echo tried"
    )
    async with shell(tmp_path, *turns(("bash", {"command": made}))) as here:
        write_example_files(here)
        ran = await here.type("run", "--yes", "--json", "go")
        left = {path.name for path in here.workspace.iterdir()}
    (told,) = (one for one in results(ran.out).values() if one["name"] == "bash")
    assert told["error"] == "permission_denied" and "renamed" in text_of(told)
    assert not left & {".git", ".evoclaw", "agent.toml", "evoclaw.toml", ".bashrc"}, left


async def test_fault_55_the_owners_git_status_runs_nothing_that_a_command_left(
    tmp_path: Path,
) -> None:
    escaped = tmp_path / "ESCAPED"
    evil = f"'touch {escaped}; false'"
    attacks = (
        f"cp -r .git evil; git config -f evil/config core.fsmonitor {evil}; "
        "echo ../evil > .git/commondir",
        f"git init -q new; git -C new config core.fsmonitor {evil}; git add new 2>&1",
        f"git config -f .git/config.worktree core.fsmonitor {evil}; mkdir .vscode; "
        "echo '{}' > .vscode/tasks.json",
    )
    calls = [("bash", {"command": obfuscated(command)}) for command in attacks]
    async with shell(tmp_path, *turns(*calls)) as here:
        git(here.workspace, "init", "-q")
        git(here.workspace, "config", "extensions.worktreeConfig", "true")
        settings(here, OFTEN)
        ran = await here.type("run", "--yes", "--json", "go")
        git(here.workspace, "status")
        rows = [one for one in audit_records(here.home / ".evoclaw") if one.get("refused")]
    told = [one for one in results(ran.out).values() if one["name"] == "bash"]
    assert [one["error"] for one in told] == ["permission_denied"] * 3
    assert not escaped.exists()
    assert [str(one["refused"]).partition(" ")[0].strip("['") for one in rows] == [
        *(".git/commondir", "new/.git", ".git/config.worktree"),
    ]
    assert ".vscode" in text_of(told[2])


def git(folder: Path, *arguments: str) -> None:
    """The owner's own git, outside every sandbox."""
    subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments], cwd=folder, check=True, timeout=30
    )


@pytest.mark.parametrize("inside", [".evoclaw", "deep/er/.evoclaw"])
async def test_fault_55_a_data_folder_inside_the_workspace_is_hidden_from_tools(
    tmp_path: Path, inside: str
) -> None:
    calls: list[Given] = [
        ("bash", {"command": obfuscated(f"ls -A {inside}; cat {inside}/stops.json; echo looked")}),
        ("bash", {"command": obfuscated(spoil(tmp_path / "work" / inside / "stops.json"))}),
        ("write", {"path": f"{inside}/stops.json", "content": "{}"}),
        ("edit", {"path": f"{inside}/stops.json", "old_string": "s", "new_string": "x"}),
        ("glob", {"pattern": "**/st?ps.json"}),
        ("grep", {"pattern": "kind"}),
        ("bash", {"command": obfuscated("grep -r kind . ; find . -name '*.db'; echo searched")}),
    ]
    stops = {"stops.json": '{"stops":[{"kind":"tool","name":"git_commit"}]}'}
    async with shell(tmp_path, *turns(*calls)) as here:
        write_example_files(here)
        data = here.workspace / inside
        lay(data, stops)
        here.env["EVOCLAW_HOME"] = str(data)
        ran = await here.type("run", "--yes", "--json", "go")
        same(data, stops)
    told = list(results(ran.out).values())
    looked, spoilt, searched = (text_of(one) for one in told if one["name"] == "bash")
    assert "looked" in looked and "searched" in searched
    for word in ("git_commit", "approvals.db", "CHANGED", "GONE", "MOVED", "LINKED"):
        assert word not in looked + spoilt + searched, looked + spoilt + searched
    assert {one["error"] for one in told if one["name"] in ("write", "edit")} == {
        "permission_denied"
    }
    found = "".join(text_of(one) for one in told if one["name"] in ("glob", "grep"))
    assert "git_commit" not in found and "stops.json" not in found


async def test_fault_55_a_data_folder_of_another_name_in_the_workspace_is_refused(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, *turns(("bash", {"command": "touch made"}))) as here:
        here.env["EVOCLAW_HOME"] = str(here.workspace / "ours")
        ran = await here.type("run", "--yes", "go")
        assert not (here.workspace / "made").exists()
    assert ran.code == 2
    assert "EVOCLAW_HOME" in ran.err and "Traceback" not in ran.err


async def test_fault_55_a_symlink_in_the_workspace_does_not_reach_the_data_folder(
    tmp_path: Path,
) -> None:
    calls: list[Given] = [
        ("read", {"path": "door/stops.json"}),
        ("write", {"path": "door/stops.json", "content": "{}"}),
        ("bash", {"command": obfuscated("cat door/stops.json; echo evil > door/stops.json")}),
    ]
    async with shell(tmp_path, *turns(*calls)) as here:
        write_example_files(here)
        data = here.home / ".evoclaw"
        lay(data, {"stops.json": '{"stops":[]}'})
        (here.workspace / "door").symlink_to(data)
        ran = await here.type("run", "--yes", "--json", "go")
        kept = json.loads((data / "stops.json").read_text())
    told = list(results(ran.out).values())
    assert '"stops"' not in "".join(text_of(one) for one in told if one["name"] != "write")
    assert kept == {"stops": []}


async def test_a_tilde_in_evoclaw_home_is_expanded(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, reply("hi")) as here:
        here.env["EVOCLAW_HOME"] = "~/ours"
        assert (await here.type("run", "go")).code == 0
        assert list((here.home / "ours" / "runs").iterdir())
        assert list(here.workspace.iterdir()) == []

"""A yes that was given in advance counts only where a sandbox bounds what it was given for."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.ports import Ask, Deny, Verdict
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.autonomy import Level
from evoclaw.governance.rules.command_rules import command_rules
from tests.support.governed_machine import obfuscated


async def judged(command: str, workspace: Path, *, sandboxed: bool) -> Verdict:
    call = Call("1", Tool("bash", "", {}), {"command": command}, "run.1.0.1", 1.0)
    return await command_rules("", workspace, Level.FULL, workspace, sandboxed=sandboxed).judge(
        call
    )


@pytest.mark.parametrize(
    "command", [obfuscated("touch x"), "touch x; ((1+", "python3 -c 'print(1)'"]
)
async def test_unreadable_commands_need_approval_without_a_sandbox(
    tmp_path: Path, command: str
) -> None:
    free, bare = [
        await judged(command, tmp_path, sandboxed=sandboxed) for sandboxed in (True, False)
    ]
    assert not isinstance(free, Ask | Deny)
    assert isinstance(bare, Ask)


@pytest.mark.parametrize("sandboxed", [True, False])
async def test_a_denied_command_stays_denied_with_and_without_a_sandbox(
    tmp_path: Path, sandboxed: bool
) -> None:
    assert isinstance(await judged("cat /etc/shadow", tmp_path, sandboxed=sandboxed), Deny)


@pytest.mark.parametrize(
    ("path", "denied"),
    [
        ("{own}/edge/pi/workspace/notes.txt", False),
        ("{own}/edge/pi/workspace/sub/x.toml", False),
        ("{own}/edge/pi/workspace/.git/hooks/pre-commit", True),
        ("{own}/edge/pi/journal.db", True),
        ("{own}/edge/pi/device.key", True),
        ("{own}/edge/pi/password", True),
        ("{own}/edge/pi/audit/head.json", True),
        ("{own}/stops.json", True),
        ("{own}/skills/mine/SKILL.md", True),
    ],
)
async def test_a_workspace_inside_the_data_folder_is_writable_and_the_rest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, denied: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".evoclaw"
    workspace = own / "edge" / "pi" / "workspace"
    workspace.mkdir(parents=True)
    verdict = await judged(f"echo x > {path.format(own=own)}", workspace, sandboxed=True)
    assert isinstance(verdict, Ask | Deny) is denied, verdict

"""A yes that was given in advance counts only where a cage bounds what it was given for."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.ports import Ask, Deny, Verdict
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.autonomy import Level
from evoclaw.wiring.rules import command_rules
from tests.support.governed_machine import hidden


async def judged(command: str, workspace: Path, *, caged: bool) -> Verdict:
    call = Call("1", Tool("bash", "", {}), {"command": command}, "run.1.0.1", 1.0)
    return await command_rules("", workspace, Level.FULL, workspace, caged=caged).judge(call)


@pytest.mark.parametrize("command", [hidden("touch x"), "touch x; ((1+", "python3 -c 'print(1)'"])
async def test_what_cannot_be_read_is_asked_about_where_nothing_is_caged(
    tmp_path: Path, command: str
) -> None:
    free, bare = [await judged(command, tmp_path, caged=caged) for caged in (True, False)]
    assert not isinstance(free, Ask | Deny)
    assert isinstance(bare, Ask)


@pytest.mark.parametrize("caged", [True, False])
async def test_a_denial_stays_one(tmp_path: Path, caged: bool) -> None:
    assert isinstance(await judged("cat /etc/shadow", tmp_path, caged=caged), Deny)


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
async def test_a_workspace_in_our_folder_can_be_worked_in_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, denied: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".evoclaw"
    workspace = own / "edge" / "pi" / "workspace"
    workspace.mkdir(parents=True)
    verdict = await judged(f"echo x > {path.format(own=own)}", workspace, caged=True)
    assert isinstance(verdict, Ask | Deny) is denied, verdict

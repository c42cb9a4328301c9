"""What `[orchestrator]` says of all agents holds for every run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.governance.autonomy import Level
from evoclaw.wiring.local_run import capabilities_for_level


def said(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "evoclaw.toml").write_text(text)
    return {"EVOCLAW_HOME": str(tmp_path), "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("text", "level", "held"),
    [
        ("", Level.SUPERVISED, {"*"}),
        ("", Level.READ_ONLY, {"file_read"}),
        ("[orchestrator]\ntool_loop_enabled = false", Level.FULL, set[str]()),
        ('[orchestrator.tools]\npermissions = ["git"]', Level.FULL, {"git"}),
        ('[orchestrator.tools]\npermissions = ["git"]', Level.READ_ONLY, set[str]()),
        ("[orchestrator.tools.permissions]\nshell = false\ngit = true", Level.FULL, {"git"}),
    ],
)
def test_capabilities_never_exceed_those_granted_to_all_agents(
    tmp_path: Path, text: str, level: Level, held: set[str]
) -> None:
    assert capabilities_for_level(level, said(tmp_path, text)) == held

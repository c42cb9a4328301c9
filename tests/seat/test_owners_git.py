"""On an edge, too, no command makes the owner's own git run its program."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.governed_machine import obfuscated
from tests.support.seat import seat

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None or shutil.which("git") is None, reason="install bubblewrap, git"
)


def git(folder: Path, *arguments: str) -> None:
    """The owner's git, outside every sandbox."""
    argv = ["git", "-c", "safe.directory=*", *arguments]
    subprocess.run(argv, cwd=folder, check=True, timeout=30, capture_output=True)


async def test_fault_55_a_command_on_an_edge_cannot_plant_a_program_in_the_owners_repository(
    tmp_path: Path,
) -> None:
    escaped = tmp_path / "ESCAPED"
    command = (
        f"cp -r .git evil; git config -f evil/config core.fsmonitor 'touch {escaped}; false'; "
        "echo ../evil > .git/commondir"
    )
    async with seat(tmp_path) as place:
        garage = await place.add_edge("garage")
        garage.workspace.mkdir(parents=True, exist_ok=True)
        git(garage.workspace, "init", "-q")
        arguments = json.dumps({"command": obfuscated(command)})
        place.up.models.scripts["go"] = f"call bash {arguments}\nsay Done."
        ran = await place.type("run", "--yes", "--on", "garage", "go")
        told = str(place.up.models.asked[-1].body["messages"])
        git(garage.workspace, "status")
    assert not escaped.exists(), ran
    assert "commondir.refused-" in told, told

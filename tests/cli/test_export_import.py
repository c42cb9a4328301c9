"""`evoclaw export` and `evoclaw import`, from one machine's store to another's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from evoclaw.wiring.http import open_access
from tests.support.programs.governed_commands import main


@dataclass(frozen=True)
class Machine:
    """A machine, by its data folder."""

    home: Path

    async def new_token(self) -> str:
        async with open_access({"EVOCLAW_HOME": str(self.home)}) as access:
            return (await access.create("ci", "local", "", ["runs:read"]))[1]

    async def knows(self, secret: str) -> bool:
        async with open_access({"EVOCLAW_HOME": str(self.home)}) as access:
            return await access.authenticate(secret) is not None


def test_an_export_of_one_machine_is_imported_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = Machine(tmp_path / "here"), Machine(tmp_path / "there")
    secret = asyncio.run(here.new_token())
    file = str(tmp_path / "all.evoclaw")
    assert main(here.home, "export", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    assert Path(file).stat().st_mode & 0o077 == 0
    assert main(here.home, "export", file) == 2
    assert "exists" in capsys.readouterr().err
    assert main(there.home, "import", file) == 0
    assert "1 rows of " in capsys.readouterr().out
    assert asyncio.run(there.knows(secret))
    assert main(there.home, "import", file) == 2
    assert "nothing was changed" in capsys.readouterr().err
    assert main(there.home, "import", file, "--keep") == 0

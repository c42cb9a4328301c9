"""`evoclaw export` and `evoclaw import`, from one machine's store to another's."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from evoclaw.core.agent import Agent
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.scripted import Scripted, says
from evoclaw.wiring.http import open_access
from evoclaw.wiring.store import open_sessions
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


async def _run(home: Path) -> str:
    """The id of a stored run."""
    agent = Agent("lead", "scripted/model")
    ports = Ports(Scripted(says("Hello.")), LocalExecutor(()), AllowAll())

    def make_ports(*_: object) -> Ports:
        return ports

    async with open_sessions({"EVOCLAW_HOME": str(home)}) as store:
        talks = Conversations(store, {"lead": agent}, make_ports)
        session = await talks.open("lead")
        async with aclosing(talks.send(session.id, "Hi")) as records:
            return [record.run_id async for record in records][-1]


def test_one_run_is_exported_as_a_trajectory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "here", tmp_path / "run.json"
    run_id = asyncio.run(_run(home))
    assert main(home, "export", str(file), "--format", "atif", "--run", run_id) == 0
    assert f"steps of run {run_id}" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert file.stat().st_mode & 0o077 == 0
    assert [step["message"] for step in found["steps"]][-2:] == ["Hi", "Hello."]
    for words, why in (
        (("--format", "atif"), "--run RUN"),
        (("--run", run_id), "--format atif"),
        (("--format", "atif", "--run", "nobody"), "no run 'nobody'"),
    ):
        assert main(home, "export", str(tmp_path / "other.json"), *words) == 2
        assert why in capsys.readouterr().err

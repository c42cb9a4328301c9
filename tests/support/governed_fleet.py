"""An orchestrator and a device that joined it, each with a home of its own, as processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evoclaw.cli import exits
from tests.cli.test_fleet import Up, running
from tests.support.command_line import Shell, shell
from tests.support.governed_machine import results, write_example_files
from tests.support.llm_servers import Answer


@dataclass
class OrchestratorAndDevice:
    """An orchestrator, and a device with a home of its own."""

    here: Shell
    device: Shell
    up: Up

    @property
    def data(self) -> Path:
        """The device's own folder."""
        return self.device.home / ".evoclaw" / "edge" / "pi"

    @property
    def workspace(self) -> Path:
        """Where its tools work if nobody said where."""
        return self.data / "workspace"

    async def ask(self, *options: str) -> dict[str, list[dict[str, Any]]]:
        """What came of a run on the device, by tool."""
        ran = await self.here.type("run", "--on", "pi", "--json", *options, "go")
        assert "Traceback" not in ran.err, ran.err
        found: dict[str, list[dict[str, Any]]] = {}
        for one in results(ran.out).values():
            found.setdefault(one["name"], []).append(one)
        return found


@asynccontextmanager
async def joined_device(
    folder: Path, *answers: Answer, toml: str = ""
) -> AsyncGenerator[OrchestratorAndDevice]:
    """A device that joined, with more in its settings than joining writes there."""
    async with (
        shell(folder, *answers) as here,
        running(here, "up", "--no-edge", "--api-port", "0") as up,
    ):
        await up.says("broker on")
        line = (await here.type("edges", "invite", "pi")).out.split()
        device = replace(here, home=folder / "pi", workspace=folder / "pi", env={})
        device.home.mkdir()
        done = await device.type(*line[1:], "--capabilities", "*")
        assert done.code == exits.OK, done.err
        pair = OrchestratorAndDevice(here, device, up)
        pair.workspace.mkdir(parents=True)
        write_example_files(replace(device, workspace=pair.workspace))
        with (device.workspace / "agent.toml").open("a") as file:
            file.write(toml)
        yield pair


@asynccontextmanager
async def edge_online(pair: OrchestratorAndDevice) -> AsyncGenerator[None]:
    """Its edge, as a process."""
    async with running(pair.device, "edge"):
        await pair.up.says("edge pi: online")
        yield

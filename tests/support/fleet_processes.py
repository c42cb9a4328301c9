"""Real processes of a fleet: an edge and a driver, started, stopped, killed and looked into."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from evoclaw.config import write_agent_toml
from evoclaw.core.messages import JSON
from tests.support.programs.orchestrator_driver import Ask, CallOutcome, Setting

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 30.0
"""Seconds after which a slow machine is a broken one."""
GATE = "go"
"""The file in an edge's workspace that held calls wait for."""


class Process:
    """One process, whose words on standard error are kept."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: asyncio.subprocess.Process | None = None

    async def spawn(self, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL) -> None:
        """Start `python -m …`."""
        assert self.process is None or self.process.returncode is not None, "it runs already"
        names = ("PATH", "LANG", "HOME", "PYTHONPATH", "SSL_CERT_FILE")
        env = {name: os.environ[name] for name in names if name in os.environ}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *arguments),
                cwd=ROOT,
                env={**env, "PYTHONWARNINGS": "error"},
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE if stdin != asyncio.subprocess.DEVNULL else log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait_exit(self, seconds: float = PATIENCE) -> int:
        """Wait until it is gone by itself."""
        assert self.process is not None
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.wait_exit()

    async def stop(self) -> int:
        """Ask it to leave."""
        self.signal(signal.SIGTERM)
        return await self.wait_exit()

    def memory_mb(self) -> float:
        """What it holds of the machine's memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class EdgeProcess(Process):
    """`evoclaw edge`, its journal, and the marks that its calls leave."""

    def __init__(self, name: str, folder: Path, config: dict[str, JSON]) -> None:
        super().__init__(folder / "edge.log")
        self.name, self.folder = name, folder
        self.workspace, self.data = folder / "work", Path(str(config["data"]))
        self.workspace.mkdir(parents=True)
        self.config = folder / "agent.toml"
        write_agent_toml(self.config, {**config, "workspace": str(self.workspace)})

    async def start(self, *, dies: str = "") -> None:
        """Start it; with `dies` it ends itself there, as `mortal` says."""
        program = ("tests.support.programs.killable", dies) if dies else ("evoclaw",)
        await self.spawn(*program, "edge", "--config", str(self.config))

    def open_gate(self) -> None:
        """Let the held calls go on."""
        (self.workspace / GATE).touch()

    def marks(self, request_id: str) -> int:
        """How often a call really happened."""
        with suppress(FileNotFoundError):
            return (self.workspace / "marks").read_text().split().count(request_id)
        return 0

    def states(self) -> dict[str, str]:
        """What the journal says of each call."""
        return {row[0]: row[1] for row in self.rows("SELECT request_id, state FROM calls")}

    def unacknowledged(self) -> list[str]:
        """Calls whose end nobody is known to have."""
        found = "SELECT request_id FROM calls WHERE finished IS NOT NULL AND acked = 0"
        return [row[0] for row in self.rows(found)]

    def rows(self, statement: str) -> list[tuple[str, ...]]:
        """Ask the journal as another process would."""
        path = self.data / "journal.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as found:
            return found.execute(statement).fetchall()


class DriverProcess(Process):
    """An orchestrator of its own, and what it told."""

    def __init__(self, setting: Setting, log: Path) -> None:
        super().__init__(log)
        self.setting = setting
        self.told: dict[str, CallOutcome] = {}
        self._reading: asyncio.Task[None] | None = None

    async def start(self, *, dies: str = "") -> None:
        setting = msgspec.structs.replace(self.setting, dies=dies)
        text = msgspec.json.encode(setting).decode()
        await self.spawn(
            "tests.support.programs.orchestrator_driver", text, stdin=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())

    def submit(self, asked: Iterable[Ask], *, last: bool = False) -> None:
        """Hand it calls; it takes them when it can."""
        assert self.process is not None
        assert self.process.stdin is not None
        for one in asked:
            self.process.stdin.write(msgspec.json.encode(one) + b"\n")
        if last:
            self.process.stdin.close()

    async def wait_exit_and_output(self, seconds: float = PATIENCE) -> int:
        """Wait until it is gone and all that it told is read."""
        code = await self.wait_exit(seconds)
        assert self._reading is not None
        async with asyncio.timeout(seconds):
            await self._reading
        return code

    async def kill(self) -> None:
        await super().kill()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            with suppress(msgspec.DecodeError):  # cut off by a kill
                one = msgspec.json.decode(line, type=CallOutcome)
                self.told[one.id] = one

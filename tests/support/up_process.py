"""`evoclaw up` as a process: started, asked over its socket, stopped, killed, started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import ClientSession

from evoclaw.core.messages import JSON
from tests.support.command_line import Shell
from tests.support.model_server import ModelServer, model_server
from tests.support.service import Answer, Client
from tests.support.waiting import until

PATIENCE = 60.0
"""Seconds after which a slow machine is a broken one."""
SETTINGS = """
[server]
requests_per_minute = 100000
burst = 10000

[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"
"""
"""An agent that asks nobody, and a door that lets tests look as often as they like."""
ENDED = "ended"


class UpProcess:
    """One `evoclaw up`, its folder, and whoever asks it."""

    def __init__(self, folder: Path, models: ModelServer, http: ClientSession) -> None:
        home, workspace = folder / "home", folder / "work"
        for one in (home, workspace):
            one.mkdir()
        self.shell = Shell(home, workspace, dict(models.env))
        self.models, self._http = models, http
        self.home, self.workspace = home / ".evoclaw", workspace
        self.home.mkdir(mode=0o700)
        self.log = folder / "up.log"
        self.process: asyncio.subprocess.Process | None = None

    def configure(self, text: str = SETTINGS) -> None:
        """Write the settings."""
        (self.home / "evoclaw.toml").write_text(text)

    async def start(self, *options: str, edge: bool = False) -> Client:
        """Start it, and be its owner once it answers."""
        await self.launch(*options, edge=edge)
        return await self.wait_ready()

    async def launch(self, *options: str, edge: bool = False) -> None:
        """Start it, and wait for nothing."""
        (self.home / "api.json").unlink(missing_ok=True)
        chosen = [*options, *(["--name", "local"] if edge else ["--no-edge"])]
        with self.log.open("ab") as log:
            self.process = await self.shell.start(
                "up", "--api-port", "0", *chosen, stdout=log.fileno(), stderr=log.fileno()
            )

    async def wait_ready(self) -> Client:
        """Wait until it says where it is."""
        door = self.home / "api.json"

        def there() -> bool:
            assert self.running, self.output()
            return door.exists()

        await until(there, PATIENCE, "the service is up")
        said = json.loads(door.read_text())
        return Client(self._http, said["url"], said["token"])

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def output(self) -> str:
        """What it said so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def marks(self, name: str) -> int:
        """How often a command left an `x` in a file of the edge's."""
        path = self.workspace / name
        return path.read_text().count("x") if path.exists() else 0

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait_exit(self, seconds: float = PATIENCE) -> int:
        """Wait until it is gone."""
        assert self.process is not None
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def stop(self) -> int:
        """Ask it to leave, and again if something still goes on."""
        if self.running:
            self.signal(signal.SIGTERM)
            with suppress(ProcessLookupError):
                self.signal(signal.SIGTERM)
        return await self.wait_exit()

    async def kill(self) -> None:
        """End it as a power cut would; its broker and its edge are left to find out."""
        if self.running:
            self.signal(signal.SIGKILL)
            await self.wait_exit()

    def memory_mb(self) -> float:
        """What it holds of the machine's memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    async def wait_online(self, client: Client, name: str = "local") -> None:
        """Wait until an edge is there, with its tools."""

        async def so() -> bool:
            edges = ok(await client.get("/v1/fleet"))["items"]
            return any(edge["agent_id"] == name and edge.get("tools") for edge in edges)

        await until(so, PATIENCE, f"{name} is online")

    async def wait_for_output(self, text: str, times: int = 1) -> None:
        """Wait until it said something so often."""
        try:
            await until(lambda: self.output().count(text) >= times, PATIENCE)
        except AssertionError:
            raise AssertionError(f"it did not say {text!r}, but {self.output()}") from None


async def start_run(client: Client, message: str, **more: JSON) -> str:
    """The id of a run that was just begun."""
    answer = await client.post("/v1/runs", {"message": message, **more})
    assert answer.status == 201, answer.body
    return str(answer.json["run_id"])


async def wait_for_state(client: Client, run_id: str, state: str = ENDED) -> JSON:
    """Wait until a run stands so."""
    found: JSON = None

    async def so() -> bool:
        nonlocal found
        found = ok(await client.get(f"/v1/runs/{run_id}"))
        return found["state"] == state

    await until(so, PATIENCE, f"the run is {state}")
    return found


async def session_texts(client: Client, session: str) -> list[str]:
    """What user and agent said, in order."""
    page = ok(await client.get(f"/v1/sessions/{session}/messages"))
    messages = [one["message"] for one in page["items"]]
    spoken = [_text(one) for one in messages if one["role"] in ("user", "assistant")]
    return [text for text in spoken if not text.startswith("From memory")]


def _text(message: JSON) -> str:
    blocks = message.get("blocks", ())
    return str(message.get("text") or "".join(block.get("text", "") for block in blocks))


def ok(answer: Answer) -> JSON:
    """What was answered, if all went well."""
    assert 200 <= answer.status < 300, answer.body
    return answer.json


@asynccontextmanager
async def up_process(folder: Path) -> AsyncGenerator[UpProcess]:
    """A process to be started, with a model server beside it; both are gone when the block ends."""
    patience = aiohttp.ClientTimeout(PATIENCE)
    async with (
        model_server() as models,
        ClientSession(timeout=patience, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        up = UpProcess(folder, models, http)
        try:
            yield up
        finally:
            if up.running:
                await up.stop()

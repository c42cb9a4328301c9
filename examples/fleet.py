"""An orchestrator with a real broker and three edges on one machine, each edge in its own process.

`make demo` runs this. The model is scripted; everything else is real: the broker, the accounts, the
invitations, the journals, the processes, the kill -9.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

from evoclaw import LoopSettings, Ports, Scripted, calls, says, watch
from evoclaw.cli.render import TerminalRenderer
from evoclaw.core.errors import EvoClawError
from evoclaw.core.ports import Executor
from evoclaw.governance.permissions import Permissions
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.providers.scripted import ScriptStep
from evoclaw.wiring.application import open_application
from evoclaw.wiring.pairing import edge_pairing, join_fleet
from evoclaw.wiring.store import open_devices

EVERYTHING = frozenset({"*"})
GPIO = '#!/bin/sh\necho "GPIO $2: level=1 fsel=0 func=INPUT"\n'
EDGES = ("kitchen", "cellar", "garage")
START_TIMEOUT_S = 90
"""Also on a small machine that is busy."""


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}")


class Device:
    """A simulated machine: its own folder and its own process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.workspace = folder / "edge" / name / "workspace"
        self._process: subprocess.Popen[bytes] | None = None

    async def join(self, orchestrator_env: dict[str, str]) -> None:
        async with open_devices(orchestrator_env) as devices:
            invited = await edge_pairing(orchestrator_env).invite(self.name, 60.0, devices)
        print(f"  {self.name}: evoclaw edge join {invited.url} --token {invited.token[:12]}…")
        env = {**os.environ, "EVOCLAW_HOME": str(self.folder)}
        await join_fleet(invited.url, invited.token, self.folder / "agent.toml", ["*"], env)
        self.workspace.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        command = (sys.executable, "-m", "evoclaw", "edge", "--config", "agent.toml")
        self._process = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=START_TIMEOUT_S)


@asynccontextmanager
async def fleet(folder: Path) -> AsyncGenerator[tuple[Orchestrator, dict[str, Device]]]:
    """A broker, an orchestrator, and three edges that joined by invitation."""
    env = {**os.environ, "EVOCLAW_HOME": str(folder / "orchestrator")}
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(
            open_application(
                host="127.0.0.1",
                port=0,
                engine="nats",
                agent_id=None,
                workspace=folder,
                model="",
                env=env,
            )
        )
        print(f"  broker on {house.broker_url}")
        devices = {name: Device(name, folder / name) for name in EDGES}
        for device in devices.values():
            device.folder.mkdir()
            await device.join(env)
            device.start()
            stack.callback(device.stop)
        for device in devices.values():
            await house.orchestrator.wait_for(device.name, START_TIMEOUT_S)
        print(f"  online: {', '.join(m.agent_id for m in house.orchestrator.fleet.online())}")
        yield house.orchestrator, devices


async def show(task: str, executor: Executor, *script: ScriptStep) -> None:
    """Print one run: the task, the calls on each edge, and the answer."""
    print(f"> {task}")
    ports = Ports(Scripted(*script), executor, Permissions(EVERYTHING))
    screen = TerminalRenderer(sys.stdout, sys.stdout, colour=sys.stdout.isatty())
    async with aclosing(watch(task, ports, LoopSettings(), sinks=[screen])) as records:
        async for _ in records:
            pass


def prepare(devices: dict[str, Device]) -> None:
    """Prepare the devices: a GPIO program, a file with a host name, a repository."""
    gpio = devices["kitchen"].workspace / "raspi-gpio"
    gpio.write_text(GPIO)
    gpio.chmod(0o755)
    (devices["kitchen"].workspace / "hostname").write_text("raspberrypi\n")
    garage = devices["garage"].workspace
    git = ("git", "-C", str(garage), "-c", "user.name=Bowen", "-c", "user.email=b@example.org")
    subprocess.run(["git", "init", "-q", "-b", "main", str(garage)], check=True)
    for name, message in (("a", "Initial commit"), ("b", "Add feature"), ("c", "Fix bug")):
        (garage / f"{name}.txt").write_text(f"{message}\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", message], check=True)


async def examples(orchestrator: Orchestrator) -> None:
    title("Read a GPIO pin on the edge kitchen")
    await show(
        "Check if GPIO pin 17 is high",
        orchestrator.edge("kitchen"),
        calls(("bash", {"command": "./raspi-gpio get 17"})),
        says("GPIO pin 17 is currently HIGH (level=1). It's configured as an input."),
    )
    title("Read a file on the edge kitchen")
    await show(
        "What's in hostname?",
        orchestrator.edge("kitchen"),
        calls(("read", {"path": "hostname"})),
        says("The hostname is 'raspberrypi'."),
    )
    title("Two git commands on the edge garage")
    await show(
        "List the last 3 commits and show the diff for the most recent one",
        orchestrator.edge("garage"),
        calls(("bash", {"command": "git log --oneline -3"})),
        calls(("bash", {"command": "git show --stat --format=%s HEAD"})),
        says("Fix bug (most recent), Add feature, Initial commit; the last one added c.txt."),
    )
    title("edge_call: one edge by name")
    edge_call = orchestrator.edge_call(EVERYTHING)
    action = {"action": "bash", "params": {"command": "cat hostname"}}
    await show(
        "What is the kitchen called?",
        edge_call,
        calls(("edge_call", {"agent_id": "kitchen", **action})),
        says("The kitchen's machine is called raspberrypi."),
    )
    title("edge_call: all three edges concurrently")
    action = {"action": "bash", "params": {"command": "echo $((6 * 7)) here"}}
    await show(
        "Ask everybody",
        edge_call,
        calls(("edge_call", {"agent_id": "*", **action})),
        says("All three answered 42."),
    )


async def asleep(orchestrator: Orchestrator, device: Device) -> None:
    title("The edge is offline: the call waits, and runs once")
    device.kill()
    while orchestrator.fleet.is_online(device.name):
        await orchestrator.fleet.wait_for_change()
    print(f"  kill -9 {device.name}: offline")
    task = asyncio.create_task(
        show(
            "Note that the cellar was aired",
            orchestrator.edge(device.name, queue=60.0),
            calls(("bash", {"command": "echo aired >> notes && wc -l < notes"})),
            says("Noted."),
        )
    )
    await asyncio.sleep(1.0)
    print(f"  (the call waits; nothing has run: {not (device.workspace / 'notes').exists()})")
    device.start()
    await task
    lines = (device.workspace / "notes").read_text().splitlines()
    print(f"  the call ran {len(lines)} time")
    assert lines == ["aired"]


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="evoclaw-") as folder:
        title("A fleet of three edges")
        async with fleet(Path(folder)) as (orchestrator, devices):
            prepare(devices)
            await examples(orchestrator)
            await asleep(orchestrator, devices["cellar"])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except EvoClawError as error:
        sys.exit(str(error))

"""Two machines on one: network namespaces that are connected by a cable which can be unplugged."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command_line import Shell, Typed

HOUSE_ADDRESS, GARAGE_ADDRESS = "10.77.0.1", "10.77.0.2"
INSIDE_VARIABLE = "EVOCLAW_TEST_NETWORK_NAMESPACE"
"""Set in the process that runs in a namespace of its own."""
INSIDE_TIMEOUT_S = 240.0


def run_in_own_namespace(test: str) -> bool:
    """Run a test again in a network namespace of its own; False if this process is that one."""
    if os.environ.get(INSIDE_VARIABLE):
        return False
    unshare = _unshare()
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", test],
        env={**os.environ, INSIDE_VARIABLE: "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=INSIDE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True


def _unshare() -> list[str]:
    for name in ("ip", "unshare", "nsenter"):
        if shutil.which(name) is None:
            pytest.skip("install iproute2 and util-linux")
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    trial = [*command, "ip", "link", "set", "lo", "up"]
    if subprocess.run(trial, capture_output=True, check=False).returncode != 0:
        pytest.skip("network namespaces are not permitted here")
    return command


@dataclass(frozen=True)
class OtherMachine:
    """A network namespace that is connected with this one."""

    pid: int

    def plug(self, *, in_: bool) -> None:
        """Plug the cable in, or pull it out."""
        _run(*self.command, "ip", "link", "set", "garage0", "up" if in_ else "down")

    @property
    def command(self) -> list[str]:
        """What runs a program there."""
        return ["nsenter", "--target", str(self.pid), "--net"]

    def shell(self, home: Path, workspace: Path, env: dict[str, str]) -> Shell:
        """A shell there."""
        return _OtherShell(home, workspace, env, self)


@dataclass
class _OtherShell(Shell):
    machine: OtherMachine | None = None

    async def start(
        self,
        *arguments: str,
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int = asyncio.subprocess.PIPE,
        stderr: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        assert self.machine is not None
        command = [*self.machine.command, sys.executable, "-m", "evoclaw", *arguments]
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.workspace,
            env=self.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    async def type(self, *arguments: str, stdin: bytes | None = None) -> Typed:
        assert stdin is None
        process = await self.start(*arguments)
        out, err = await process.communicate()
        return Typed(process.returncode or 0, out.decode(), err.decode())


def add_address(address: str) -> None:
    """Give this namespace, which must be one of its own, an address that it serves."""
    assert os.environ.get(INSIDE_VARIABLE), "this would change the network of the machine"
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{address}/32", "dev", "lo")


@contextmanager
def other_machine() -> Generator[OtherMachine]:
    """Another namespace, connected with this one, which must be a namespace of its own."""
    assert os.environ.get(INSIDE_VARIABLE), "this would change the network of the machine"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec sleep 600"], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            there = OtherMachine(process.pid)
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "house0", "type", "veth", "peer", "name", "garage0")
            _run("ip", "link", "set", "garage0", "netns", str(process.pid))
            _run("ip", "address", "add", f"{HOUSE_ADDRESS}/24", "dev", "house0")
            _run("ip", "link", "set", "house0", "up")
            _run(*there.command, "ip", "address", "add", f"{GARAGE_ADDRESS}/24", "dev", "garage0")
            _run(*there.command, "ip", "link", "set", "lo", "up")
            there.plug(in_=True)
            yield there
        finally:
            process.terminate()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)

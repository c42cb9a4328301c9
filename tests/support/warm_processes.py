"""Commands as processes of their own that need not import everything anew.

To start Python and to import what a command needs takes longer than most commands do. So one
process imports it, once for each process that runs tests, and forks: each command has its own
memory, folder, environment, standard streams and end. What differs from `python -m evoclaw` is when
things were imported; `Shell.start` starts that one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import msgspec

import evoclaw

MOST = 1 << 20
"""Bytes of a request."""
ROOM = 1 << 16
"""Bytes that a pipe takes though nobody reads."""
PATIENCE = 120.0
"""Seconds for a command."""
MODULES = (
    "aiohttp",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "evoclaw.cli.client",
    "evoclaw.wiring.pipelines",
    "evoclaw.governance.flow",
    "evoclaw.wiring.governance",
    "evoclaw.wiring.local_run",
    "evoclaw.wiring.toolbox",
)
"""What most commands need; these bring the rest."""
ROOMS = ("config", "core", "governance", "tools", "workflows", "cli")
"""Rooms that need no library beyond those."""


class CommandRequest(msgspec.Struct):
    """A command, as its owner asks for it."""

    arguments: Sequence[str]
    folder: str
    env: Mapping[str, str]


@dataclass
class ForkServer:
    """The process that forks, as its owner sees it."""

    process: subprocess.Popen[bytes]
    line: socket.socket

    def close(self) -> None:
        """End it; commands that still run go on."""
        self.line.close()
        self.process.wait(30)

    def run(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str], stdin: bytes | None
    ) -> tuple[int, bytes, bytes]:
        """Run a command to its end; its exit code, and what it wrote."""
        ours = [os.pipe() for _ in range(4)]
        try:
            fds = [ours[0][0], ours[1][1], ours[2][1], ours[3][1]]
            asked = CommandRequest(arguments, str(folder), env)
            socket.send_fds(self.line, [msgspec.json.encode(asked)], fds)
            for fd in fds:
                os.close(fd)
            assert len(stdin or b"") <= ROOM, "nobody may read it yet"
            with contextlib.suppress(BrokenPipeError):
                os.write(ours[0][1], stdin or b"")
            os.close(ours[0][1])
            out, err, said = _drained([reading for reading, _ in ours[1:]])
        finally:
            for reading, _ in ours[1:]:
                os.close(reading)
        _, code = said.split()
        return int(code), out, err


@cache
def fork_server(environment: tuple[tuple[str, str], ...]) -> ForkServer:
    """The process that forks, for commands that Python itself is told this."""
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (line, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            env=dict(environment),
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    found = ForkServer(process, line)
    atexit.register(found.close)
    return found


def _drained(fds: Sequence[int]) -> list[bytes]:
    """Everything that is written there until all of it is closed.

    The last says which process it is. One that does not end in time is killed.
    """
    read = {fd: bytearray() for fd in fds}
    end = time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as selector:
        for fd in fds:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() > end:
                os.kill(int(read[fds[-1]].split()[0]), signal.SIGKILL)
                raise TimeoutError(read)
            for key, _ in selector.select(1.0):
                piece = os.read(key.fd, 1 << 16)
                read[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
    return [bytes(read[fd]) for fd in fds]


@dataclass
class _Forking:
    line: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    running: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """By the descriptor of a process: its id, and where its exit code is written."""

    def serve(self) -> CommandRequest | None:
        """Fork when asked: what for, in the process that is to be it; None at the end."""
        self.selector.register(self.line, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fd != self.line.fileno():
                    self._ended(key.fd)
                    continue
                body, fds, _, _ = socket.recv_fds(self.line, MOST, 4)
                if not body:
                    return None
                asked = msgspec.json.decode(body, type=CommandRequest)
                if self._forked(asked, fds):
                    return asked

    def _forked(self, asked: CommandRequest, fds: list[int]) -> bool:
        """Whether this is the new one of two processes."""
        pid = os.fork()
        if pid == 0:
            self._become(asked, fds)
            return True
        for fd in fds[:3]:
            os.close(fd)
        process = os.pidfd_open(pid)
        os.write(fds[3], f"{pid} ".encode())
        self.running[process] = pid, fds[3]
        self.selector.register(process, selectors.EVENT_READ)
        return False

    def _become(self, asked: CommandRequest, fds: list[int]) -> None:
        """Have the streams, the folder and the environment of a command, and nothing of ours."""
        self.selector.close()
        self.line.close()
        for process, (_, code) in self.running.items():
            os.close(process)
            os.close(code)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(asked.folder)
        os.environ.clear()
        os.environ.update(asked.env)
        sys.path[0] = asked.folder

    def _ended(self, process: int) -> None:
        pid, code = self.running.pop(process)
        self.selector.unregister(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        # Whoever asked may have given up.
        with contextlib.suppress(BrokenPipeError):
            os.write(code, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(code)


def _inside() -> Iterator[str]:
    for room in ROOMS:
        folder = Path(evoclaw.__file__).with_name(room)
        yield from (found.name for found in iter_modules([str(folder)], f"evoclaw.{room}."))


def main() -> int:
    """Fork until nobody is there to ask, or be one of the commands."""
    for name in (*MODULES, *_inside()):
        import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        asked = _Forking(line).serve()
    if asked is None:
        return 0
    sys.argv = [str(Path(evoclaw.__file__).with_name("__main__.py")), *asked.arguments]
    return import_module("evoclaw.__main__").main()


if __name__ == "__main__":
    sys.exit(main())

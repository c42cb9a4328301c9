"""`ChildProcess`: a child process that ends when this process ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self, cast

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
RESTART_DELAY_S = 2.0
"""Seconds before a supervised program that ended is restarted."""

# Runs in the child before exec: the kernel kills the child when the parent dies, and the program
# does not start if the parent died meanwhile. Python is always installed; `setpriv` is not.
_STUB = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class ChildProcess(asyncio.SubprocessProtocol):
    """A program from its start to its exit; its output is logged at debug level."""

    def __init__(self) -> None:
        self.ended, self._closed = asyncio.Event(), asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._lines: deque[str] = deque(maxlen=5)
        self._rest = b""

    @classmethod
    async def start(
        cls, folder: Path, program: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Self:
        """Start the program; `last_words` has its output, for error messages.

        Args:
            folder: Its working directory.
            program: The path of the program.
            arguments: Its arguments.
            env: Variables in addition to the minimal environment.
        """
        child = cls()
        stub = (sys.executable, "-I", "-S", "-c", _STUB, str(os.getpid()))
        await asyncio.get_running_loop().subprocess_exec(
            lambda: child,
            *(*stub, program, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C must not reach the child: the parent stops it after its clients have left.
            start_new_session=True,
            cwd=folder,
            env={**_environment(), **(env or {})},
        )
        return child

    @property
    def pid(self) -> int:
        """Its process id; 0 if it was never started."""
        return 0 if self._transport is None else self._transport.get_pid() or 0

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not exited."""
        return self._transport is not None and not self.ended.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the process was started."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Log its output."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-4096:]
        for line in lines:
            text = line[-4096:].decode(errors="replace")
            self._lines.append(text)
            logger.debug("%s", text)

    def process_exited(self) -> None:
        """It ended."""
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the process exited and its output was read."""
        self._closed.set()

    def signal(self, number: int) -> None:
        """Send a signal if the process is alive."""
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.send_signal(number)

    async def last_words(self) -> str:
        """Its last lines of output, for error messages."""
        if self.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._closed.wait()
        return " / ".join(self._lines) or "nothing"

    async def stop(self) -> None:
        """Send SIGTERM, wait, send SIGKILL; return when the process has exited."""
        if self._transport is None:
            return
        try:
            self.signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self.ended.wait()
            self.signal(signal.SIGKILL)
            await self.ended.wait()
        finally:
            # Kills the child also if this task was cancelled while it waited.
            self._transport.close()


@asynccontextmanager
async def supervised(
    name: str, folder: Path, *command: str, env: Mapping[str, str] | None = None
) -> AsyncGenerator[None]:
    """Run a program until the block ends, and restart it whenever it ends by itself.

    Args:
        name: The program in the log.
        folder: Its working directory.
        command: The program and its arguments.
        env: See `ChildProcess.start`.
    """
    task = asyncio.create_task(_keep_running(name, folder, command, env))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _keep_running(
    name: str, folder: Path, command: tuple[str, ...], env: Mapping[str, str] | None
) -> None:
    while True:
        child = await ChildProcess.start(folder, *command, env=env)
        try:
            await child.ended.wait()
        finally:
            await child.stop()
        text = await child.last_words()
        logger.error("%s ended, restarting in %.0f s: %s", name, RESTART_DELAY_S, text)
        await asyncio.sleep(RESTART_DELAY_S)


def _environment() -> dict[str, str]:
    """The variables that a program needs to start; secrets are not passed on."""
    names = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}

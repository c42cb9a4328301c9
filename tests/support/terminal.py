"""A terminal of the test's own: what a person sees there, and types."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from tests.support.command_line import Shell

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """One end of it; the command has the other."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._seen = ""
        self._at = 0
        """How far it was looked at."""
        self._news = asyncio.Event()
        self.process: asyncio.subprocess.Process

    def readable(self) -> None:
        try:
            self._seen += os.read(self._master, 65_536).decode(errors="replace")
        except OSError:  # the other end is gone
            asyncio.get_running_loop().remove_reader(self._master)
        self._news.set()

    @property
    def seen(self) -> str:
        """Everything so far, with plain line ends."""
        return self._seen.replace("\r\n", "\n")

    async def expect(self, text: str) -> str:
        """Wait until this is shown, after what was waited for before; what came before it."""
        try:
            async with asyncio.timeout(30):
                while (found := self.seen.find(text, self._at)) < 0:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {text!r} in {self.seen[self._at :]!r}") from None
        before, self._at = self.seen[self._at : found], found + len(text)
        return before

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    async def interrupt(self, text: str) -> None:
        """Press Ctrl-C once, and wait until this is shown."""
        self.type(CTRL_C)
        await self.expect(text)

    async def send_line(self, line: str) -> None:
        """Type a line when the prompt is there."""
        await self.expect("> ")
        self.type(line + "\n")

    async def wait_exit(self) -> int:
        """Wait for the command to end."""
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def terminal(
    shell: Shell,
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-m", "evoclaw"),
) -> AsyncGenerator[Terminal]:
    """A command at a terminal that is its own, so that Ctrl-C reaches it as it would a person's."""
    master, slave = pty.openpty()
    loop = asyncio.get_running_loop()
    here = Terminal(master)
    loop.add_reader(master, here.readable)
    try:
        here.process = await asyncio.create_subprocess_exec(
            *("setsid", "--ctty", *program, *arguments),
            cwd=shell.workspace,
            env={**shell.environment, "TERM": "xterm", "NO_COLOR": "1"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        try:
            yield here
        finally:
            if here.process.returncode is None:
                here.process.kill()
            await here.process.wait()
    finally:
        loop.remove_reader(master)
        os.close(master)

"""A terminal of the test's own: what a person sees there, and types."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.support.command_line import Shell

CTRL_C, CTRL_D, CTRL_R, TAB, ALT_ENTER = "\x03", "\x04", "\x12", "\t", "\x1b\r"
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]|\x1b\]0;[^\x07]*\x07")
"""Sequences that colour text and move the cursor."""


class Terminal:
    """One end of it; the command has the other."""

    def __init__(self, master: int, columns: int, rows: int) -> None:
        from pyte import HistoryScreen, Stream

        self._master = master
        self._seen = ""
        self._at = 0
        """How far it was looked at."""
        self._news = asyncio.Event()
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._display = HistoryScreen(columns, rows, history=2_000, ratio=0.01)
        self._drawing = Stream(self._display)
        self.process: asyncio.subprocess.Process

    def readable(self) -> None:
        try:
            text = self._decoder.decode(os.read(self._master, 65_536))
        except OSError:  # the other end is gone
            asyncio.get_running_loop().remove_reader(self._master)
        else:
            self._seen += text
            self._drawing.feed(text)
        self._news.set()

    @property
    def seen(self) -> str:
        """Everything so far, with plain line ends and without styles."""
        return re.sub("\r+\n", "\n", _STYLES.sub("", self._seen))

    @property
    def raw(self) -> str:
        """Everything so far, as it was written."""
        return self._seen

    @property
    def screen(self) -> str:
        """What is on the screen now."""
        return "\n".join(line.rstrip() for line in self._display.display).rstrip()

    @property
    def scrollback(self) -> str:
        """What is on the screen now, below what has left it at the top."""
        above = (
            "".join(row[at].data for at in range(self._display.columns)).rstrip()
            for row in self._display.history.top
        )
        return "\n".join([*above, self.screen])

    async def expect(self, text: str) -> str:
        """Wait until this is shown, after what was waited for before; what came before it."""
        await self._wait(
            lambda: self.seen.find(text, self._at) >= 0,
            lambda: f"no {text!r} in {self.seen[self._at :]!r}",
        )
        found = self.seen.find(text, self._at)
        before, self._at = self.seen[self._at : found], found + len(text)
        return before

    async def until(self, text: str, *, gone: str = "") -> str:
        """Wait until this is on the screen, and something else is not; returns the screen."""
        await self._wait(
            lambda: text in self.screen and not (gone and gone in self.screen),
            lambda: f"no {text!r} without {gone!r} on:\n{self.screen}",
        )
        return self.screen

    async def _wait(self, is_done: Callable[[], bool], problem: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(30):
                while not is_done():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(problem()) from None

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    async def interrupt(self, text: str) -> None:
        """Press Ctrl-C once, and wait until this is shown."""
        self.type(CTRL_C)
        await self.expect(text)

    async def send_line(self, line: str) -> None:
        """Type a message when the chat is ready for one, and wait until it has taken it."""
        await self.until("ready")
        self.type(line + "\r")
        await self.expect(f"> {line}\n")

    async def wait_exit(self) -> int:
        """Wait for the command to end."""
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def terminal(
    shell: Shell,
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-m", "evoclaw"),
    columns: int = 100,
    rows: int = 30,
    colour: bool = False,
) -> AsyncGenerator[Terminal]:
    """A command at a terminal that is its own, so that Ctrl-C reaches it as it would a person's."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    loop = asyncio.get_running_loop()
    here = Terminal(master, columns, rows)
    loop.add_reader(master, here.readable)
    try:
        here.process = await asyncio.create_subprocess_exec(
            *("setsid", "--ctty", *program, *arguments),
            cwd=shell.workspace,
            env={**shell.environment, "TERM": "xterm-256color"}
            | ({} if colour else {"NO_COLOR": "1"}),
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

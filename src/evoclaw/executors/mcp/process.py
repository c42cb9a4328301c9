"""An MCP server as a child process: lines of JSON both ways, bounded, its whole tree ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from evoclaw.core.errors import ConfigError
from evoclaw.executors.process_trees import END_TIMEOUT_S
from evoclaw.executors.processes import DEFAULT_PATH

MAX_GARBAGE_LINES = 1_000
"""Lines that are not messages before the server is ended."""
MAX_STDERR_BYTES = 2_000
"""The tail of stderr that explains why a server ended."""
END_GRACE_S = 1.0
"""How long a server may take to end once its stdin is closed, and again after SIGTERM."""

Inbound = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


class ServerProcess:
    """One process of a server that uses stdin and stdout."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        max_message: int,
        on_end: Callable[[], None],
    ) -> None:
        """Set the command; `on_end` is called when the process sends nothing more."""
        self._command, self._cwd, self._max_message = tuple(command), cwd, max_message
        self._on_end = on_end
        # Of our environment only PATH: every other variable must be configured.
        self._env = {"PATH": os.environ.get("PATH", DEFAULT_PATH), **env}
        self._last_words = bytearray()
        self.fault = ""
        """Why we ended it, if we did."""

    @property
    def last_words(self) -> str:
        """The end of its stderr."""
        return bytes(self._last_words[-MAX_STDERR_BYTES:]).decode(errors="replace").strip()

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Start it; when the block ends, everything it started has ended."""
        process, control = await self._start()
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        to_us, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outbound, to_it = anyio.create_memory_object_stream[SessionMessage](0)
        async with AsyncExitStack() as stack:
            for stream in (to_us, inbound, outbound, to_it):
                stack.callback(stream.close)
            pumps = [
                _pump(self._listen(process.stdout, to_us)),
                _pump(self._tell(to_it, process.stdin, to_us)),
                _pump(self._note(process.stderr)),
            ]
            try:
                yield inbound, outbound
            finally:
                outbound.close()
                ending = asyncio.ensure_future(_end(process, control))
                await _whatever_happens(ending, pumps)

    async def _start(self) -> tuple[asyncio.subprocess.Process, int]:
        program = shutil.which(self._command[0], path=self._env["PATH"])
        if program is None:
            raise ConfigError(f"the program {self._command[0]!r} is not installed on this machine")
        control_read, control = os.pipe()
        script = str(Path(__file__).parent.with_name("supervisor_program.py"))
        try:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-I",
                    "-S",
                    script,
                    str(control_read),
                    program,
                    *self._command[1:],
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=self._max_message,
                start_new_session=True,
                cwd=self._cwd or None,
                env=self._env,
                pass_fds=(control_read,),
            )
        except OSError as problem:
            os.close(control)
            raise ConfigError(f"it could not be started: {problem.strerror}") from None
        finally:
            os.close(control_read)
        return process, control

    async def _listen(self, stdout: asyncio.StreamReader, to_us: Inbound) -> None:
        rubbish = 0
        try:
            while line := await stdout.readline():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    rubbish += bool(line.strip())
                    if rubbish > MAX_GARBAGE_LINES:
                        self.fault = (
                            "it wrote lines to its standard output that are not MCP messages"
                        )
                        break
                    continue
                await to_us.send(SessionMessage(message))
        except ValueError:
            self.fault = f"it sent a message longer than {self._max_message:,} bytes"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # the session is closed; clean up below
        self._on_end()
        to_us.close()
        # Drain stdout: a process blocked on a write cannot exit.
        while await stdout.read(65_536):
            pass

    async def _tell(
        self,
        to_it: MemoryObjectReceiveStream[SessionMessage],
        stdin: asyncio.StreamWriter,
        to_us: Inbound,
    ) -> None:
        try:
            async for item in to_it:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()
        except (ConnectionError, anyio.ClosedResourceError):
            # It reads no more, so it will not answer: close the stream to fail pending requests.
            self._on_end()
            to_us.close()

    async def _note(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(4_096):
            self._last_words += data
            del self._last_words[: -2 * MAX_STDERR_BYTES]


def _pump(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)


async def _end(process: asyncio.subprocess.Process, control: int) -> None:
    """Close its input, ask it to end, kill what is left; the supervisor ends when all is dead."""
    if process.stdin is not None:
        process.stdin.close()
    exited = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([exited], timeout=END_GRACE_S)
        if not exited.done():
            with suppress(BrokenPipeError):
                os.write(control, b"T")
            await asyncio.wait([exited], timeout=END_GRACE_S)
    finally:
        os.close(control)
    await asyncio.wait([exited], timeout=END_TIMEOUT_S)
    if not exited.done():
        process.kill()
        await asyncio.wait([exited], timeout=END_TIMEOUT_S)
    exited.cancel()


async def _whatever_happens(
    ending: asyncio.Future[None], pumps: Sequence[asyncio.Task[None]]
) -> None:
    """Wait for the exit even if cancelled; it takes seconds at most."""

    async def settle() -> None:
        await ending
        await asyncio.wait(pumps, timeout=END_GRACE_S)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)

    settling, cancelled = asyncio.ensure_future(settle()), False
    while not settling.done():
        try:
            await asyncio.wait([settling])
        except asyncio.CancelledError:
            cancelled = True
    settling.result()
    if cancelled:
        raise asyncio.CancelledError

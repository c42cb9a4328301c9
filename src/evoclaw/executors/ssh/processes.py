"""`SshProcesses`: the processes of another machine; when a call ends, its process tree is dead."""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CompletedProcess
from evoclaw.executors.process_output import STDERR, STDOUT, ProcessWatch, wait_uncancelled
from evoclaw.executors.processes import MAX_SHOWN_OUTPUT_BYTES
from evoclaw.executors.roots import check_path, outside
from evoclaw.executors.ssh.connection import SshConnection, whole
from evoclaw.executors.ssh.scripts import RemoteCommand, boot, probe, script, word

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection

logger = logging.getLogger(__name__)

ISOLATION = "none (ssh)"
COMMAND_CONCURRENCY = 8
"""Concurrent commands: sshd allows ten sessions, one of them for files."""
MAX_ARGUMENT_BYTES = 128 << 10
MAX_COMMAND_BYTES = 1 << 20
MAX_LOGIN_OUTPUT_BYTES = 64 << 10
"""Output of a login shell that is skipped before the script answers."""
SCRIPT_TIMEOUT_S = 15.0
"""How long a script may take to answer."""
END_TIMEOUT_S = 6.0
"""How long until everything is dead: the supervisor takes four seconds at most."""
REFUSAL_MESSAGES = {
    "closed": (ErrorKind.PERMISSION_DENIED, "'{cwd}' may not be entered. Explain to the user."),
    "file": (ErrorKind.INVALID_PARAMS, "'{cwd}' is not a folder."),
    "missing": (
        ErrorKind.NOT_FOUND,
        "'{cwd}' does not exist. List the folder to see what there is.",
    ),
    "root": (ErrorKind.NOT_FOUND, "The workspace does not exist. Explain this to the user."),
    "program": (
        ErrorKind.NOT_FOUND,
        "The program '{program}' is not installed on this machine. Use another one.",
    ),
}


class SshChannel(Protocol):
    """The part of the library's channel that is used; its own types leave the data type open."""

    def write(self, data: bytes) -> None:
        """Send."""
        ...

    def write_eof(self) -> None:
        """Send end-of-file."""
        ...

    def abort(self) -> None:
        """Close it without sending what is buffered."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the other side closed it too."""
        ...


class RemoteSession:
    """One script on the other machine: its answer, its output and its exit."""

    def __init__(self, mark: str, watch: ProcessWatch) -> None:
        self.watch = watch
        self.answer: str | None = None
        self.code: int | None = None
        self.problem: BaseException | None = None
        self.noise = bytearray()
        self.heard = asyncio.Event()
        """Set when the script answered, or never will."""
        self._mark = mark.encode() + b" "
        self._before = bytearray()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Look for the script's answer first; what follows is the command's output."""
        if self.answer is not None:
            self.watch.pipe_data_received(STDOUT if datatype is None else STDERR, data)
        elif datatype is not None:
            self.noise += data[: MAX_LOGIN_OUTPUT_BYTES - len(self.noise)]
        else:
            self._before += data
            found = self._before.find(self._mark)
            end = self._before.find(b"\n", found)
            if found >= 0 and end >= 0:
                self.answer = self._before[found + len(self._mark) : end].decode(errors="replace")
                self.heard.set()
                if rest := bytes(self._before[end + 1 :]):
                    self.watch.pipe_data_received(STDOUT, rest)
            elif len(self._before) > MAX_LOGIN_OUTPUT_BYTES:
                self.heard.set()

    def exit_status_received(self, status: int) -> None:
        """Note the exit code."""
        self.code = status

    def exit_signal_received(self, name: str, _core: bool, _text: str, _language: str) -> None:
        """Note the signal that ended the command."""
        number = getattr(signal, f"SIG{name}", None)
        self.code = -int(number) if isinstance(number, signal.Signals) else 255

    def connection_lost(self, problem: BaseException | None) -> None:
        """Note that the channel is closed: the script ended, or the connection was lost."""
        self.problem = problem
        self.heard.set()
        for stream in (STDOUT, STDERR):
            self.watch.pipe_connection_lost(stream, None)
        self.watch.process_exited()

    def connection_made(self, _channel: object) -> None:
        """Required by the library; nothing to do."""

    def session_started(self) -> None:
        """Required by the library; nothing to do."""

    def eof_received(self) -> bool:
        """Keep our side open: end-of-file would end the command."""
        return True

    def pause_writing(self) -> None:
        """Required by the library; the input is bounded by the `stdin` of the call."""

    def resume_writing(self) -> None:
        """Required by the library; nothing to do."""


class SshProcesses:
    """Processes of another machine.

    They start in a clean environment (PATH, HOME and LANG as the login there has them), without a
    terminal and with nothing to read. When a call ends, however it ends, what it started is dead;
    also when the connection breaks. This is cleanup, not a sandbox: a command may do whatever the
    account may.
    """

    def __init__(
        self,
        connection: SshConnection,
        root: str,
        *,
        env: Mapping[str, str] | None = None,
        supervision: Literal["auto", "sh"] = "auto",
        max_bytes: int = 128 << 20,
        grace: float = 0.3,
    ) -> None:
        """Set the workspace and the limits.

        Args:
            connection: The machine.
            root: The workspace there: absolute, or relative to the home folder.
            env: Further environment variables for every command.
            supervision: `auto` uses a Python there, which can prove that nothing was left
                running, and falls back to `sh`, which does what it can.
            max_bytes: A command that writes more than this is stopped.
            grace: Seconds between asking a command to end and killing it.
        """
        self._ssh, self._root = connection, root.rstrip("/") or "/"
        self._env = dict(env or {})
        self._python = None if supervision == "auto" else ""
        self._max_bytes, self._grace = max_bytes, grace
        self._places = asyncio.Semaphore(COMMAND_CONCURRENCY)
        self._asking = asyncio.Lock()

    async def isolation(self) -> str:
        """The isolation of commands there: none, as far as is known."""
        return ISOLATION

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output: int = 1 << 20,
    ) -> CompletedProcess:
        """Run a program until it and everything it started has ended."""
        order = self._order(tuple(argv), cwd, {**self._env, **(env or {})}, stdin)
        watch = ProcessWatch(max_output, self._max_bytes, on_output)
        async with self._places:
            channel, remote = await self._prepared(order, watch, cwd)
            # From here on the command may have run. A separate task: cancelling the caller
            # must not cancel the cleanup.
            channel.write(word(order, self._python or "") + (stdin or b""))
            task = asyncio.create_task(self._live(channel, remote))
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                watch.wake.set()
                await wait_uncancelled(task)
                raise
            await task
        if watch.overflowed:
            raise self._too_much(watch)
        if remote.code is None:
            raise self._ssh.broke(remote.problem)
        out, err = watch.kept[STDOUT], watch.kept[STDERR]
        return CompletedProcess(
            remote.code, out.content(), err.content(), out.total, err.total, ISOLATION
        )

    async def _live(self, channel: SshChannel, remote: RemoteSession) -> None:
        watch = remote.watch
        await watch.wake.wait()
        if not watch.exited.is_set() and not watch.overflowed:
            channel.write(b"T" if self._python else b"T\n")
            await watch.settled(self._grace)
        if not watch.exited.is_set():
            channel.write_eof()
            if not await watch.settled(END_TIMEOUT_S):
                logger.warning(
                    "a command on %s may still run: its end was not confirmed", self._ssh.name
                )
                channel.abort()
        elif remote.code is None:
            logger.warning("the connection to %s was lost while a command ran", self._ssh.name)

    async def _prepared(
        self, order: RemoteCommand, watch: ProcessWatch, cwd: str
    ) -> tuple[SshChannel, RemoteSession]:
        """A script that waits for the start signal; until then nothing has run."""
        from asyncssh import Error

        for last in (False, True):
            connection = await self._ssh.reach()
            try:
                text = script(order, await self._interpreter(connection))
                channel, remote = await _opened(connection, order.mark, watch, text)
            except (Error, OSError) as problem:
                if connection.is_closed() and not last:
                    continue
                raise ToolFailure(
                    ErrorKind.AGENT_OFFLINE if connection.is_closed() else ErrorKind.INTERNAL,
                    f"No command could be started on {self._ssh.name}: {problem}. "
                    "Nothing was done. Explain this to the user.",
                ) from None
            if remote.answer == "ready":
                return channel, remote
            await _closed(channel)
            raise self._refused(remote, order, cwd)
        raise self._ssh.broke()

    async def _interpreter(self, connection: SSHClientConnection) -> str:
        """The Python that supervises there; empty if `sh` must."""
        # Probed once: sshd allows ten sessions, and the first commands may be concurrent.
        async with self._asking:
            if self._python is None:
                mark = secrets.token_hex(16)
                channel, remote = await _opened(
                    connection,
                    mark,
                    ProcessWatch(MAX_LOGIN_OUTPUT_BYTES, MAX_LOGIN_OUTPUT_BYTES),
                    probe(mark),
                )
                await _closed(channel)
                if remote.answer is None:
                    raise self._refused(remote, None, ".")
                self._python = remote.answer
            return self._python

    def _order(
        self, argv: tuple[str, ...], cwd: str, env: Mapping[str, str], stdin: bytes | None
    ) -> RemoteCommand:
        try:
            texts = [os.fsencode(text) for text in (*argv, *env.keys(), *env.values())]
        except UnicodeEncodeError:
            texts = [b"\0"]
        if any(b"\0" in text for text in texts):
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS,
                "An argument contains a NUL character or is not valid text. Leave it out.",
            )
        if not argv or not argv[0]:
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "The command names no program.")
        if any(not name or "=" in name or "\n" in name for name in env):
            raise ToolFailure(ErrorKind.INVALID_PARAMS, "An environment variable has no name.")
        sizes = [len(text) for text in texts]
        if max(sizes) >= MAX_ARGUMENT_BYTES or sum(sizes) > MAX_COMMAND_BYTES:
            raise ToolFailure(
                ErrorKind.TOO_LARGE,
                "The command is too long for this machine. Write it to a file and run that.",
            )
        mark = secrets.token_hex(16)
        size = None if stdin is None else len(stdin)
        return RemoteCommand(mark, self._root, self._folder(cwd), argv, env, size)

    def _folder(self, cwd: str) -> str:
        """Refuse a folder that textually leaves the root; the script there checks the rest."""
        check_path(cwd)
        normal = posixpath.normpath(cwd)
        if normal == ".." or normal.startswith("../"):
            raise outside(cwd)
        return cwd

    def _refused(self, remote: RemoteSession, order: RemoteCommand | None, cwd: str) -> ToolFailure:
        code = (remote.answer or "").removeprefix("no ")
        if code == "outside":
            return outside(cwd)
        if order is not None and code in REFUSAL_MESSAGES:
            kind, text = REFUSAL_MESSAGES[code]
            return ToolFailure(kind, text.format(cwd=cwd, program=order.argv[0]))
        reason = (
            remote.noise[-MAX_SHOWN_OUTPUT_BYTES:].decode(errors="replace").strip()
            or "it gave no reason"
        )
        return ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"The command could not be started on {self._ssh.name}, and nothing was done: {reason}",
        )

    def _too_much(self, watch: ProcessWatch) -> ToolFailure:
        out, err = watch.kept[STDOUT], watch.kept[STDERR]
        head = (out.content() or err.content())[:MAX_SHOWN_OUTPUT_BYTES].decode(errors="replace")
        return ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The command wrote more than {self._max_bytes:,} bytes and was stopped. Send its "
            f"output to a file, or cut it with head, tail or grep. It started with:\n{head}",
            stdout_bytes=out.total,
            stderr_bytes=err.total,
            isolation=ISOLATION,
        )


async def _opened(
    connection: SSHClientConnection, mark: str, watch: ProcessWatch, text: bytes
) -> tuple[SshChannel, RemoteSession]:
    """Send a script and read its answer, if it gives one."""
    from asyncssh import ConnectionLost

    remote = RemoteSession(mark, watch)
    create: Callable[..., Awaitable[tuple[SshChannel, object]]] = cast(
        "Any", connection
    ).create_session
    opening = create(lambda: remote, boot(text), encoding=None, request_pty=False)
    channel, _ = await whole(opening, _given_up)
    try:
        channel.write(text)
        async with asyncio.timeout(SCRIPT_TIMEOUT_S):
            await remote.heard.wait()
    except BaseException:
        await wait_uncancelled(asyncio.create_task(_closed(channel)))
        raise
    if remote.answer is None and connection.is_closed():
        raise ConnectionLost("the connection broke")
    return channel, remote


async def _given_up(opened: tuple[SshChannel, object]) -> None:
    await _closed(opened[0])


async def _closed(channel: SshChannel) -> None:
    """End a script that was not started; sshd counts its session until it ends."""
    channel.abort()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await channel.wait_closed()
    except TimeoutError:
        # The connection is dead too, and the next call detects that.
        return

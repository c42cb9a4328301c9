"""`SshConnection`: one SSH connection to one machine: authentication and reconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.process_output import wait_uncancelled

if TYPE_CHECKING:
    from asyncssh import SFTPClient, SSHClientConnection, SSHKey

T = TypeVar("T")

SSH_PORT = 22
MAX_MISSED_KEEPALIVES = 3
"""Unanswered keepalives after which the connection counts as lost."""
SFTP_CHECK_TIMEOUT_S = 5.0
"""How long an SFTP session may take to answer after a cancelled call."""


class SshUnreachable(ConfigError):
    """The machine did not answer; a later attempt may succeed."""


class SshTarget(Struct, frozen=True):
    """The parts of an `ssh://` address."""

    host: str
    path: str
    """The workspace there: absolute, or relative to the home folder."""
    port: int = SSH_PORT
    user: str | None = None


def parse_ssh_url(url: str) -> SshTarget:
    """Read `ssh://user@host:port/path`; `/~/path` starts in the home folder of that user.

    Args:
        url: The address. It holds no password: keys and agents are for that.
    """
    try:
        parts = urlsplit(url)
        port = SSH_PORT if parts.port is None else parts.port
    except ValueError as problem:
        raise ConfigError(f"{url!r} is not an ssh address: {problem}") from None
    path = unquote(parts.path)
    wrong = None
    if parts.scheme != "ssh" or not parts.hostname:
        wrong = "write it as ssh://user@host:port/path"
    elif parts.password is not None:
        wrong = "leave out the password; use a key or ssh-agent"
    elif parts.query or parts.fragment or "\0" in path:
        wrong = "leave out what follows the path"
    elif parts.hostname.startswith("-") or port == 0:
        wrong = "the host or the port is invalid"
    elif path in ("", "/"):
        wrong = "name the folder to work in, such as /srv/project or /~/project"
    if wrong is not None or parts.hostname is None:
        shown = url if parts.password is None else "the ssh address"
        raise ConfigError(f"{shown}: {wrong}")
    if path == "/~" or path.startswith("/~/"):
        path = path[2:].strip("/") or "."
    user = None if parts.username is None else unquote(parts.username)
    return SshTarget(parts.hostname, path, port, user)


class SshConnection:
    """A connection to a machine, opened when first needed and again when it was lost.

    The host key must be in the known-hosts file; there is no switch that trusts an unknown one.
    Nothing is forwarded and no password is ever asked for or sent.
    """

    def __init__(
        self,
        host: str,
        *,
        port: int = SSH_PORT,
        user: str | None = None,
        keys: Sequence[str | Path] = (),
        known_hosts: str | Path = "~/.ssh/known_hosts",
        patience: float = 15.0,
        keep_alive: float = 15.0,
    ) -> None:
        """Set the machine and the login.

        Args:
            host: The name or address of the machine.
            port: Where its sshd listens.
            user: The login name; the local user if left out.
            keys: Private key files. Without any, the agent and the usual keys are tried.
            known_hosts: The file with the host keys of trusted machines.
            patience: Seconds to connect and to log in.
            keep_alive: Seconds without traffic after which a keepalive is sent.
        """
        self.name = f"{host}:{port}"
        self._host, self._port, self._user = host, port, user
        self._keys = [str(Path(key).expanduser()) for key in keys]
        self._known_hosts = Path(known_hosts).expanduser()
        self._patience, self._keep_alive = patience, keep_alive
        self._lock = asyncio.Lock()
        self._connection: SSHClientConnection | None = None
        self._files: SFTPClient | None = None
        self._suspect = False

    async def __aenter__(self) -> SshConnection:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> SSHClientConnection:
        """The open connection; `ConfigError` says what to do if connecting fails."""
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._files = None
                self._connection = await self._connect()
            return self._connection

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        connection, self._connection, self._files = self._connection, None, None
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(SFTP_CHECK_TIMEOUT_S):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()

    async def reach(self) -> SSHClientConnection:
        """The connection, for a call; a failure to connect is worded for the model."""
        try:
            return await self.open()
        except SshUnreachable as problem:
            raise ToolFailure(
                ErrorKind.AGENT_OFFLINE, f"{problem}. Nothing was done. Explain this to the user."
            ) from None
        except ConfigError as problem:
            raise ToolFailure(
                ErrorKind.PERMISSION_DENIED, f"{problem}. Nothing was done. Tell the user."
            ) from None

    async def harmless(self, action: Callable[[SFTPClient], Awaitable[T]]) -> T:
        """Run an action that is safe to repeat over SFTP; retry once if the connection is dead."""
        try:
            return await self.once(action)
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.UNKNOWN:
                raise
        try:
            return await self.once(action)
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.UNKNOWN:
                raise
            raise ToolFailure(
                ErrorKind.AGENT_OFFLINE,
                f"The connection to {self.name} was lost twice. Explain this to the user.",
            ) from None

    async def once(self, action: Callable[[SFTPClient], Awaitable[T]]) -> T:
        """Run an action over SFTP exactly once; `UNKNOWN` if the connection breaks meanwhile."""
        from asyncssh import DisconnectError, SFTPConnectionLost, SFTPNoConnection

        files = await self._session()
        try:
            return await action(files)
        except asyncio.CancelledError:
            # The server handles requests in order: it may be stuck in the cancelled one.
            self._suspect = True
            raise
        except (SFTPConnectionLost, SFTPNoConnection, DisconnectError, OSError) as problem:
            if self._files is files:
                self._files = None
            raise self.broke(problem) from None

    def broke(self, problem: BaseException | None = None) -> ToolFailure:
        """The failure of a call whose connection was lost after the call had started."""
        reason = f" ({problem})" if problem is not None and str(problem) else ""
        return ToolFailure(
            ErrorKind.UNKNOWN,
            f"The connection to {self.name} was lost{reason}. The call may have happened. "
            "It was not repeated. Check first, then decide, or ask the user.",
        )

    async def _session(self) -> SFTPClient:
        from asyncssh import Error

        for last in (False, True):
            connection = await self.reach()
            async with self._lock:
                try:
                    return await self._sftp(connection)
                except (Error, OSError) as problem:
                    if last or not connection.is_closed():
                        raise ToolFailure(
                            ErrorKind.EXECUTION_FAILED,
                            f"{self.name} offers no file transfer: {problem}. Tell the user.",
                        ) from None
        raise self.broke()

    async def _sftp(self, connection: SSHClientConnection) -> SFTPClient:
        if self._files is not None and self._suspect:
            try:
                async with asyncio.timeout(SFTP_CHECK_TIMEOUT_S):
                    await self._files.realpath(b".")
            except TimeoutError:
                self._files.exit()
                self._files = None
        self._suspect = False
        if self._files is None:
            # File names are bytes on the server; surrogateescape keeps them exact.
            opening = connection.start_sftp_client(path_errors="surrogateescape")
            self._files = await whole(opening, _left)
        return self._files

    async def _connect(self) -> SSHClientConnection:
        try:
            import asyncssh
        except ImportError:
            raise ConfigError("SSH needs asyncssh: pip install 'evoclaw[ssh]'") from None
        offered: list[SSHKey] = []
        try:
            async with asyncio.timeout(self._patience):
                return await asyncssh.connect(
                    self._host, self._port, **await self._options(offered)
                )
        except asyncssh.HostKeyNotVerifiable as problem:
            raise ConfigError(self._untrusted(offered, problem)) from None
        except asyncssh.PermissionDenied:
            raise ConfigError(
                f"{self.name} rejected the login of {self._user or 'this user'}; add the "
                "public key "
                "to ~/.ssh/authorized_keys there, or name another key or user"
            ) from None
        except asyncssh.KeyImportError as problem:
            raise ConfigError(
                f"a key for {self.name} cannot be used: {problem}; "
                "load a key that has a passphrase into ssh-agent"
            ) from None
        except ValueError as problem:
            raise ConfigError(
                f"{self._known_hosts} cannot be read: {problem}; correct or remove that line"
            ) from None
        except TimeoutError:
            raise SshUnreachable(f"{self.name} did not answer in {self._patience:g} s") from None
        except (OSError, asyncssh.Error) as problem:
            raise SshUnreachable(f"{self.name} cannot be reached: {problem}") from None

    async def _options(self, offered: list[SSHKey]) -> dict[str, Any]:
        import asyncssh

        class HostKeyClient(asyncssh.SSHClient):
            def validate_host_public_key(
                self, host: str, addr: str, port: int, key: asyncssh.SSHKey
            ) -> bool:
                # Called only for keys that are not in the file; kept for the error message.
                offered.append(key)
                return False

        options: dict[str, Any] = {
            "client_factory": HostKeyClient,
            "known_hosts": await asyncio.to_thread(self._trusted),
            "config": None,
            "preferred_auth": "publickey",
            "keepalive_interval": self._keep_alive,
            "keepalive_count_max": MAX_MISSED_KEEPALIVES,
            "agent_forwarding": False,
        }
        if self._user is not None:
            options["username"] = self._user
        if self._keys:
            options["client_keys"] = self._keys
        return options

    def _trusted(self) -> bytes:
        """The content of the known-hosts file; never empty: asyncssh would use its default file."""
        if missing := [key for key in self._keys if not Path(key).is_file()]:
            raise ConfigError(f"the key file {missing[0]!r} does not exist")
        try:
            return self._known_hosts.read_bytes() + b"\n"
        except FileNotFoundError:
            return b"\n"
        except OSError as problem:
            raise ConfigError(f"{self._known_hosts} cannot be read: {problem.strerror}") from None

    def _untrusted(self, offered: Sequence[SSHKey], problem: Exception) -> str:
        from asyncssh import match_known_hosts

        file = self._known_hosts
        if not offered:
            return f"the host key of {self.name} is refused: {problem}; see {file}"
        fingerprint = offered[0].get_fingerprint()
        known = match_known_hosts(self._trusted(), self._host, "", self._port)[0]
        login = f"{self._user}@{self._host}" if self._user else self._host
        if known:
            name = self._host if self._port == SSH_PORT else f"[{self._host}]:{self._port}"
            return (
                f"the host key of {self.name} has changed to {fingerprint}: the connection "
                f"may be intercepted. "
                f"If the machine was reinstalled, check that fingerprint there, then run "
                f"`ssh-keygen -f {file} -R '{name}'` and log in once with ssh to accept it"
            )
        return (
            f"the host key of {self.name} is unknown; it is {fingerprint}. Compare it on that "
            "machine (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`), then accept it by "
            f"logging in once: `ssh -o UserKnownHostsFile={file} -p {self._port} {login}`"
        )


async def whole(work: Awaitable[T], spare: Callable[[T], Awaitable[object]]) -> T:
    """Await work that must not be interrupted, such as opening a session.

    Args:
        work: Continues for a while when the caller is cancelled.
        spare: Then cleans up the result of that work.
    """

    async def worked() -> T:
        return await work

    task = asyncio.create_task(worked())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await wait_uncancelled(asyncio.create_task(_put_away(task, spare)))
        raise
    return await task


async def _left(files: SFTPClient) -> None:
    files.exit()
    await files.wait_closed()


async def _put_away(task: asyncio.Task[T], spare: Callable[[T], Awaitable[object]]) -> None:
    async with asyncio.timeout(SFTP_CHECK_TIMEOUT_S):
        await spare(await task)

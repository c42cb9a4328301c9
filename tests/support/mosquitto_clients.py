"""The command-line clients of Mosquitto, as a device with software of its own would use MQTT."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from evoclaw.core.messages import JSON
from tests.support.up_process import PATIENCE
from tests.support.waiting import until

needs_mosquitto_clients = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None,
    reason="install mosquitto-clients",
)


@dataclass(frozen=True)
class MosquittoClient:
    """An account of a broker."""

    url: str
    username: str
    password: str
    ca_file: str = ""

    @property
    def options(self) -> list[str]:
        """The options that name the broker and the account."""
        at = urlsplit(self.url)
        login = ["-u", self.username, "-P", self.password, "-q", "1"]
        trusted = ["--cafile", self.ca_file] if self.ca_file else []
        return ["-h", str(at.hostname), "-p", str(at.port), *login, *trusted]

    async def publish(self, topic: str, message: str, *, retain: bool = False) -> None:
        """Publish one message with `mosquitto_pub`."""
        code, err = await self._publish(topic, message, retain=retain)
        assert code == 0, err

    async def wait_accepted(self, topic: str) -> None:
        """Wait until the broker accepts a new account: it looks for them once a second."""

        async def accepted() -> bool:
            return (await self._publish(topic, "", retain=False))[0] == 0

        await until(accepted, PATIENCE, f"the broker accepts {self.username}")

    async def _publish(self, topic: str, message: str, *, retain: bool) -> tuple[int, bytes]:
        kept = ["-r"] if retain else []
        process = await asyncio.create_subprocess_exec(
            "mosquitto_pub", *self.options, *kept, "-t", topic, "-m", message,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, err

    @asynccontextmanager
    async def subscribed(self, topic: str) -> AsyncGenerator[Subscription]:
        """Receive the messages of a topic with `mosquitto_sub`, from when it is subscribed."""
        process = await asyncio.create_subprocess_exec(
            "stdbuf", "-oL", "mosquitto_sub", "-d", *self.options, "-t", topic,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        heard = Subscription()
        reading = asyncio.create_task(heard.read(process))
        try:
            await until(lambda: heard.subscribed, PATIENCE, f"mosquitto_sub: {heard.lines}")
            yield heard
        finally:
            if process.returncode is None:
                # Not SIGTERM: its handler disconnects, and can wait for a lock for ever.
                process.kill()
            await process.wait()
            await reading


@dataclass
class Subscription:
    """What `mosquitto_sub` printed."""

    lines: list[str] = field(default_factory=list[str])
    subscribed: bool = False

    async def read(self, process: asyncio.subprocess.Process) -> None:
        """Read until it ends; its debug output says when it is subscribed."""
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace").strip():
            if line.startswith("Subscribed "):
                self.subscribed = True
            elif line.startswith("{"):
                self.lines.append(line)

    @property
    def messages(self) -> list[JSON]:
        """The messages so far, as JSON."""
        return [json.loads(line) for line in self.lines]

    async def wait_for(self, number: int) -> JSON:
        """Wait until so many messages have come; return the last of them."""
        await until(lambda: len(self.lines) >= number, PATIENCE, f"{number} messages arrive")
        return self.messages[number - 1]

"""A house to look at: a real `evoclaw up` with its broker, two edges and a scripted model.

`python -m tests.page.house` builds one and keeps it until it is ended: it prints a link that logs
in. What the model does is what one says: see tests/support/model_server.py.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from evoclaw.core.messages import JSON
from tests.support.command_line import Shell
from tests.support.fake_telegram import ANN, TOKEN, FakeTelegram, fake_telegram
from tests.support.notification_services import NotificationServices, notification_services
from tests.support.service import Client
from tests.support.up_process import UpProcess, ok, up_process

SETTINGS = """
[server]
port = 0
requests_per_minute = 100000
burst = 10000

[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"

[[agents]]
id = "careful"
capabilities = ["*"]
autonomy = "supervised"
model = "vllm/qwen2.5-vl-scripted"

[[notify]]
name = "browsers"
kind = "webpush"
[notify.webpush]
contact = "mailto:ann@example.org"
allow = ["127.0.0.0/8"]
"""
CHANNELS = """
[[channels]]
name = "phone"
kind = "telegram"
senders = {{ {ann} = "ann" }}
[channels.telegram]
token_env = "TELEGRAM_TOKEN"
url = "{url}"

[[channels]]
name = "broken"
kind = "telegram"
[channels.telegram]
token_env = "WRONG_TOKEN"
url = "{url}"

[[channels]]
name = "boxes"
kind = "mqtt"
senders = ["ann"]
"""
"""A bot that works, one whose token is wrong, and the boxes of the broker."""
SECOND = "garden"
"""The edge that joined."""
BEAT = "heartbeat_s = 2\n"
"""In an edge's agent.toml: how often it says how it is."""


@dataclass
class House:
    """What a test, or a person, sees of it."""

    up: UpProcess
    client: Client
    second: Shell
    telegram: FakeTelegram = field(default_factory=FakeTelegram)
    services: NotificationServices = field(default_factory=NotificationServices)
    edge: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return str(self._door["url"])

    @property
    def link(self) -> str:
        """The page, logged in."""
        return f"{self.url}/#token={self._door['token']}"

    @property
    def _door(self) -> JSON:
        return json.loads((self.up.home / "api.json").read_text())

    async def start_edge(self) -> None:
        """Start the second edge."""
        self.edge = await self.second.start(
            "edge", "--config", "agent.toml",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await self.up.wait_online(self.client, SECOND)

    async def kill_edge(self) -> None:
        """End the second edge as a power cut would."""
        assert self.edge is not None
        self.edge.send_signal(signal.SIGKILL)
        await self.edge.wait()
        self.edge = None


async def _join(house: House) -> None:
    """Let the second edge in, as its owner would: invited, joined, its tools approved."""
    invited = ok(await house.client.post("/v1/fleet/invitations", {"agent_id": SECOND}))
    shell = house.second
    words = ("edge", "join", invited["url"], "--token", invited["token"], "--capabilities", "*")
    joined = await shell.type(*words)
    assert joined.code == 0, joined.err
    config = shell.workspace / "agent.toml"
    config.write_text(f'{BEAT}workspace = "{shell.workspace}"\n{config.read_text()}')
    await house.start_edge()


@asynccontextmanager
async def page_house(folder: Path, settings: str = SETTINGS) -> AsyncGenerator[House]:
    """The house, up until the block ends."""
    async with (
        fake_telegram() as telegram,
        notification_services() as services,
        up_process(folder) as up,
    ):
        up.shell.env.update(TELEGRAM_TOKEN=TOKEN, WRONG_TOKEN="110201543:a-token-of-nobody")
        up.configure(settings + CHANNELS.format(ann=ANN, url=telegram.url))
        client = await up.start(edge=True)
        await up.wait_online(client)
        place = folder / SECOND
        for one in (place, place / "home", place / "work"):
            one.mkdir()
        second = Shell(place / "home", place / "work", dict(up.models.env))
        house = House(up, client, second, telegram, services)
        try:
            await _join(house)
            yield house
        finally:
            if house.edge is not None:
                await house.kill_edge()


async def main() -> None:
    """Build a house and keep it."""
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        async with page_house(Path(folder)) as house:
            print(house.link, house.up.home, flush=True)  # noqa: T201
            await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)

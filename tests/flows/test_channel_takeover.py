"""Two `evoclaw up` on one PostgreSQL with one Telegram bot; the one that polls it is killed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex

import aiohttp
import pytest

from tests.support.fake_telegram import ANN, TOKEN, FakeTelegram, fake_telegram
from tests.support.model_server import model_server
from tests.support.postgres import Postgres, why_no_postgres
from tests.support.service import Client
from tests.support.up_process import PATIENCE, SETTINGS, UpProcess, ok
from tests.support.waiting import until


def settings(fake: FakeTelegram) -> str:
    return f"""{SETTINGS}
[runs]
lease_s = 2.0

[[channels]]
name = "phone"
kind = "telegram"
senders = {{ {ANN} = "ann" }}
[channels.telegram]
token_env = "TELEGRAM_TOKEN"
url = "{fake.url}"
"""


async def channel_state(client: Client) -> str:
    (channel,) = ok(await client.get("/v1/channels"))["items"]
    return str(channel["state"])


async def wait_for_channel(client: Client, state: str) -> None:
    async def so() -> bool:
        return await channel_state(client) == state

    await until(so, PATIENCE, f"the channel is {state}")


async def test_another_orchestrator_polls_the_bot_when_the_first_is_killed(
    tmp_path: Path,
) -> None:
    if reason := why_no_postgres():
        pytest.skip(reason)
    server, schema = Postgres(), f"test_{token_hex(6)}"
    async with AsyncExitStack() as stack:
        stack.callback(server.close)
        server.start()
        fake = await stack.enter_async_context(fake_telegram())
        models = await stack.enter_async_context(model_server())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        ups: list[UpProcess] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            up = UpProcess(tmp_path / name, models, http)
            up.configure(settings(fake))
            up.shell.env |= {
                "EVOCLAW_STORE_URL": server.url,
                "EVOCLAW_STORE_SCHEMA": schema,
                "TELEGRAM_TOKEN": TOKEN,
            }
            ups.append(up)
            stack.push_async_callback(up.kill)
        first = await ups[0].start()
        await wait_for_channel(first, "connected")
        second = await ups[1].start()
        await wait_for_channel(second, "standby")
        await fake.write("say one")
        await fake.wait_sent(1)
        assert fake.conflicts == 0
        await ups[0].kill()
        await fake.write("say two")
        await fake.wait_sent(2)
        await wait_for_channel(second, "connected")
        await fake.write("say three")
        await fake.wait_sent(3)
        await fake.wait_for(lambda: not fake.updates)
    assert fake.texts == ["one", "two", "three"]

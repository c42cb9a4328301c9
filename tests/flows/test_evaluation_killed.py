"""An evaluation over HTTP when `evoclaw up` is killed: reported, and not silently lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.service import Client
from tests.support.up_process import PATIENCE, ok, up_process
from tests.support.waiting import until

pytestmark = pytest.mark.process
PATH = "/v1/agents/evoclaw/evaluations"
CASE = """
message = "{message}"
tools = [{{ name = "weather" }}]

[[checks]]
kind = "answer"
contains = "sunny"
"""


async def ended(client: Client, id: str) -> str:
    """How an evaluation ended."""
    found = "running"

    async def so() -> bool:
        nonlocal found
        found = str(ok(await client.get(f"{PATH}/{id}"))["state"])
        return found != "running"

    await until(so, PATIENCE, "the evaluation has ended")
    return found


async def test_an_evaluation_of_a_killed_service_is_interrupted_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        up.configure()
        (up.home / "cases").mkdir(mode=0o700)
        for name, message in (("quick", "say sunny"), ("slow", "wait sun 4")):
            text = CASE.format(message=message)
            (up.home / "cases" / f"{name}.toml").write_text(text)
        client = await up.start()
        started = ok(await client.post(PATH, {}))
        async with asyncio.timeout(PATIENCE):
            await up.models.held["sun"].wait()
        await up.kill()

        client = await up.start()
        found = ok(await client.get(f"{PATH}/{started['id']}"))
        assert (found["state"], found["result"]) == ("interrupted", None)
        again = ok(await client.post(PATH, {"cases": ["quick"], "repeat": 3}))
        assert await ended(client, again["id"]) == "completed"
        (result,) = ok(await client.get(PATH))["results"]
        assert (result["total"]["passed"], result["total"]["attempts"]) == (3, 3)
        verified = await up.shell.type("genome", "verify", "evoclaw")
        assert verified.code == 0, verified.err

"""`evoclaw stop` reaches clients of ours too, and a file of stops that is damaged stops all."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.governed.test_verdicts import Client
from tests.support.command_line import Shell, reply, shell
from tests.support.processes import alive, unique_seconds
from tests.support.waiting import until

SOON = 8.0
"""Seconds within which a stop must have ended everything, on a busy machine."""


def sleeping(mark: str) -> str:
    """A command that leaves sleepers in other sessions, and sleeps itself."""
    return f"setsid sleep {mark} & (setsid env -i /bin/sleep {mark} &) ; sleep {mark}"


async def asleep(mark: str) -> None:
    await until(lambda: len(alive(f"sleep\0{mark}")) == 3, 20, "the command sleeps")


async def stopped(here: Shell, mark: str, *what: str) -> None:
    """Stop it from another process; everything with the mark must be dead soon after."""
    assert (await here.type("stop", *what)).code == exits.OK
    said = time.monotonic()
    await until(lambda: not alive(f"sleep\0{mark}"), 10, "it is dead")
    assert time.monotonic() - said < SOON


@pytest.mark.slow
async def test_a_stop_ends_a_call_of_an_mcp_client_and_the_next_is_refused(
    tmp_path: Path,
) -> None:
    mark = unique_seconds()
    async with shell(tmp_path) as here, asyncio.timeout(120):
        serving = await here.start("mcp", "serve", "--yes", stdin=asyncio.subprocess.PIPE)
        client = Client(serving)
        await client.greet()
        call = {"name": "bash", "arguments": {"command": sleeping(mark)}}
        asking = asyncio.create_task(client.ask("tools/call", **call))
        await asleep(mark)
        await stopped(here, mark, "--all")
        ended = await asking
        refused = await client.ask("tools/call", name="glob", arguments={"pattern": "*"})
        assert (await here.type("stop", "--release", "--all")).code == exits.OK
        fine = await client.ask("tools/call", name="glob", arguments={"pattern": "*"})
        serving.send_signal(signal.SIGTERM)
        _, err = await serving.communicate()
    assert ended["result"]["isError"] is True
    assert "stopped" in str(refused["result"]["content"])
    assert not fine["result"].get("isError", False)
    assert b"Traceback" not in err


async def test_a_damaged_stop_file_stops_everything(tmp_path: Path) -> None:
    answers = (reply("", ("bash", {"command": "touch made"})), reply("never"))
    async with shell(tmp_path, *answers) as here:
        (here.home / ".evoclaw").mkdir(mode=0o700)
        (here.home / ".evoclaw" / "stops.json").write_text('{"stops": [')
        ran = await here.type("run", "--yes", "go")
        assert not (here.workspace / "made").exists()
        served = await here.type("mcp", "serve", stdin=b"")
    assert ran.code != exits.OK
    assert "evoclaw stop --release --all" in ran.out + ran.err
    assert "Traceback" not in ran.err + served.err

"""The same call gets the same verdict, on whichever way it comes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.command_line import Shell, reply, shell
from tests.support.governed_machine import (
    EXPECTED,
    FIRST,
    SECOND,
    TABLE,
    assert_untouched,
    audited_verdicts,
    write_policy,
)

ASKS = (reply("", *FIRST), reply("", *SECOND))


async def test_a_run_gives_the_expected_verdict_for_each_call(tmp_path: Path) -> None:
    async with shell(tmp_path, *ASKS, reply("done")) as here:
        write_policy(here)
        ran = await here.type("run", "--yes", "go")
        assert audited_verdicts(here.home / ".evoclaw") == EXPECTED, ran.err
        assert_untouched(here)
    assert "KEY-OF-THE-OWNER" not in ran.out + ran.err


async def test_a_session_gives_the_same_verdicts(tmp_path: Path) -> None:
    async with shell(tmp_path, *ASKS, reply("done")) as here:
        write_policy(here)
        ran = await here.type("run", "--yes", "--session", "s", "go")
        assert audited_verdicts(here.home / ".evoclaw") == EXPECTED, ran.err
        assert_untouched(here)


async def test_a_sub_run_gives_the_same_verdicts(tmp_path: Path) -> None:
    begin = reply("", ("task", {"prompt": "do it", "description": "it"}))
    async with shell(tmp_path, begin, *ASKS, reply("done below"), reply("done")) as here:
        write_policy(here)
        ran = await here.type("run", "--yes", "--session", "s", "go")
        assert "done" in ran.out, ran.err
        assert audited_verdicts(here.home / ".evoclaw", leave_out=["do it"]) == EXPECTED, ran.err
        assert_untouched(here)


async def test_a_resumed_run_gives_the_same_verdicts(tmp_path: Path) -> None:
    first = reply("", ("bash", {"command": "sudo touch waited"}))
    async with shell(tmp_path, first, *ASKS, reply("done")) as here:
        write_policy(here)
        ran = await here.type("run", "--yes", "--wait", "--record", "run.jsonl", "go")
        assert "waiting" in ran.err
        ((id_, _),) = await waiting(here)
        assert (await here.type("approvals", "deny", id_)).code == 0
        went_on = await here.type("run", "--yes", "--resume", "run.jsonl")
        assert went_on.out == "done\n", went_on.err
        assert audited_verdicts(here.home / ".evoclaw", leave_out=["waited"]) == EXPECTED
        assert_untouched(here)


async def waiting(here: Shell) -> list[tuple[str, str]]:
    """The calls that wait for a person: their ids, and which call each is."""
    listed = await here.type("approvals", "--json")
    assert listed.code == 0, listed.err
    return [(one["id"], one["request_id"]) for one in json.loads(listed.out)]


class Client:
    """An MCP client that says exactly what it is told to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._id = process, 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        self.say({"id": self._id, "method": method, "params": params})
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            while line := await self._process.stdout.readline():
                if (told := json.loads(line)).get("id") == self._id:
                    return told
        raise AssertionError("the server ended")

    def say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def greet(self) -> None:
        hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}
        await self.ask("initialize", **hello, clientInfo={"name": "t", "version": "1"})
        self.say({"method": "notifications/initialized"})


async def test_an_mcp_client_gets_the_same_verdicts(tmp_path: Path) -> None:
    async with shell(tmp_path) as here, asyncio.timeout(60):
        write_policy(here)
        process = await here.start("mcp", "serve", "--yes", stdin=asyncio.subprocess.PIPE)
        client = Client(process)
        await client.greet()
        told = [
            await client.ask("tools/call", name=name, arguments=arguments)
            for (name, arguments), _ in TABLE.values()
        ]
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0
        assert audited_verdicts(here.home / ".evoclaw") == EXPECTED
        assert_untouched(here)
    assert [one["result"].get("isError", False) for one in told] == [False] + [True] * 6

"""Two `evoclaw up` share the budget of a tenant on PostgreSQL, and one of them is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp
import psycopg
import pytest_asyncio

from tests.support.model_server import model_server
from tests.support.postgres import Postgres
from tests.support.service import Client
from tests.support.up_process import PATIENCE, SETTINGS, UpProcess, ok, start_run, wait_for_state
from tests.support.waiting import until

TURNS = 15
"""What all runs may spend together; they ask for 24."""
RUNS = 12
BUDGET = f"""
[runs]
lease_s = 2
look_s = 0.2

[budget]
warn_at = 1.0
ask_at = 1.0

[budget.tenant]
turns = {TURNS}
"""
WORK = 'call todowrite {"todos": [{"content": "work"}]}\nwait open 4'
"""A call, and a reply that is held up."""
FIND_ACCOUNT = "SELECT spent, held FROM {}.ledger_accounts WHERE name = 'tenant:local'"


class TenantAccount:
    """The stored account that both orchestrators use."""

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self.most_used = self.most_held = self.samples = 0

    async def read(self) -> tuple[int, int]:
        """The turns that are spent, and those that are held."""
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            return await self._read(connection)

    async def watch(self) -> None:
        """Look at the account all the time."""
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            while True:
                spent, held = await self._read(connection)
                self.most_used = max(self.most_used, spent + held)
                self.most_held = max(self.most_held, held)
                self.samples += 1
                await asyncio.sleep(0.005)

    async def _read(self, connection: psycopg.AsyncConnection) -> tuple[int, int]:
        statement = FIND_ACCOUNT.format(self._schema).encode()
        row = await (await connection.execute(statement)).fetchone()
        return (0, 0) if row is None else (_turns(row[0]), _turns(row[1]))


def _turns(amounts: Any) -> int:
    found = json.loads(amounts) if isinstance(amounts, str | bytes) else amounts
    return int(found.get("turns", 0))


@pytest_asyncio.fixture(name="ups")
async def _ups(postgres_server: Postgres, tmp_path: Path) -> AsyncGenerator[list[UpProcess]]:
    schema, ups = f"test_{token_hex(6)}", list[UpProcess]()
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(model_server())
        patience = aiohttp.ClientTimeout(PATIENCE)
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=patience, connector=connector)
        )
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            up = UpProcess(folder, models, http)
            up.configure(SETTINGS + BUDGET)
            up.shell.env |= {
                "EVOCLAW_STORE_URL": postgres_server.url,
                "EVOCLAW_STORE_SCHEMA": schema,
            }
            stack.push_async_callback(up.kill)
            ups.append(up)
        yield ups


async def test_fault_08_a_killed_orchestrator_loses_no_reservation_and_overspends_nothing(
    ups: list[UpProcess],
) -> None:
    """Half of the runs are driven by the one that dies, each with a turn that it reserved."""
    killed, heir = ups
    owners = [await up.start() for up in ups]
    env, models = killed.shell.env, killed.models
    account = TenantAccount(env["EVOCLAW_STORE_URL"], env["EVOCLAW_STORE_SCHEMA"])
    watching = asyncio.create_task(account.watch())
    runs = [await start_run(owners[number % 2], WORK) for number in range(RUNS)]

    async def is_used_up() -> bool:
        return sum(await account.read()) == TURNS

    await until(is_used_up, PATIENCE, "all turns are spent or held")
    _, held = await account.read()
    assert held > 0
    await killed.kill()
    models.gates["open"].set()
    views = [await wait_for_state(owners[1], run_id) for run_id in runs]

    async def is_released() -> bool:
        return (await account.read())[1] == 0

    await until(is_released, PATIENCE, "nothing is held any more")
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled(), watching
    spent, held = await account.read()
    assert (held, account.most_used) == (0, TURNS), "spent and held never exceed the limit"
    assert account.samples > 20 and account.most_held > 0
    completed = sum(view["stop"] == "completed" for view in views)
    assert 2 * completed <= spent <= TURNS and completed > 0
    assert await _driven(owners[1]) == 0
    assert "Traceback" not in heir.output(), heir.output()


async def _driven(owner: Client) -> int:
    found = ok(await owner.get("/v1/runs?limit=100"))["items"]
    return sum(run["state"] != "ended" for run in found)

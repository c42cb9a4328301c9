"""All that an orchestrator keeps, in one database, as the composition root opens it."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.export_import import tables_of
from evoclaw.store.governance.approvals import ApprovalClaim, StoredApproval
from evoclaw.store.sessions.sessions import Session
from evoclaw.wiring.store import all_schemas, connect_database, open_stores
from tests.support.databases import Place


async def test_all_store_schemas_fit_into_one_database(place: Place) -> None:
    parts = all_schemas()
    names = [table.name for part in parts for table in tables_of(part)]
    assert len(names) == len(set(names)), "no two have a table of the same name"
    for _ in range(2):
        database = await place.open(*parts)
        for name in names:
            count = f"SELECT count(*) FROM {name}"
            assert (await database.read(lambda c, s=count: c.execute(s).fetchone()))[0] == 0
        await database.close()
    for part in parts:
        await (await place.open(part)).close()


async def test_stored_data_survives_a_restart(tmp_path: Path) -> None:
    env = {"EVOCLAW_HOME": str(tmp_path)}
    async with open_stores(env) as stored:
        await stored.sessions.create(Session("s1", "a"))
        row = StoredApproval("a1", "local", "r.1.1", "sha", "scope", b"asked", 1e12)
        await stored.approvals.claim(ApprovalClaim(row, 1, "us"))
        await stored.ledger.open("tenant", {}, {"calls": 3})
    for _ in range(2):
        async with open_stores(env) as stored:
            assert await stored.sessions.session("s1") is not None
            assert [one.id for one in await stored.approvals.waiting("local")] == ["a1"]
            (account,) = await stored.ledger.accounts()
            assert account.spent == {"calls": 3}
            async with connect_database(env, *all_schemas(), existing=stored.database) as same:
                assert same is stored.database


async def test_open_store_uses_postgres_when_configured(tmp_path: Path, postgres_url: str) -> None:
    schema = f"test_{token_hex(6)}"
    env = {
        "EVOCLAW_HOME": str(tmp_path),
        "EVOCLAW_STORE_URL": postgres_url,
        "EVOCLAW_STORE_SCHEMA": schema,
        "EVOCLAW_STORE_PASSWORD": "not needed here",
    }
    async with open_stores(env) as stored:
        assert stored.database.dialect == "postgres" and schema in stored.database.name
        await stored.sessions.create(Session("s1", "a"))
    async with open_stores(env) as stored:
        assert await stored.sessions.session("s1") is not None
    assert not (tmp_path / "evoclaw.db").exists()
    env["EVOCLAW_STORE_PASSWORD_FILE"] = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match="password"):
        async with open_stores(env):
            pass

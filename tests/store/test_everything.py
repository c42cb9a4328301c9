"""All that an orchestrator keeps, in one database, as the composition root opens it."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.tables import tables_of
from evoclaw.store.governing.approvals import ApprovalStore, Claim, StoredApproval
from evoclaw.store.governing.ledger import StoredLedger
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.wiring.store import BEFORE, every_part, open_store, opened
from tests.support.databases import Place


async def test_every_kind_of_store_is_in_one_database(place: Place) -> None:
    parts = every_part()
    names = [table.name for part in parts for table in tables_of(part)]
    assert len(names) == len(set(names)), "no two have a table of the same name"
    assert set(BEFORE) <= {part.name for part in parts}
    for _ in range(2):
        database = await place.open(*parts)
        for name in names:
            count = f"SELECT count(*) FROM {name}"
            assert (await database.read(lambda c, s=count: c.execute(s).fetchone()))[0] == 0
        await database.close()
    for part in parts:
        await (await place.open(part)).close()


async def test_what_earlier_versions_kept_is_there_after_the_first_start(tmp_path: Path) -> None:
    env = {"EVOCLAW_HOME": str(tmp_path)}
    async with await SessionStore.open(tmp_path / "sessions.db") as sessions:
        await sessions.create(Session("s1", "a"))
    async with await ApprovalStore.open(tmp_path / "approvals.db") as approvals:
        row = StoredApproval("a1", "local", "r.1.1", "sha", "scope", b"asked", 1e12)
        await approvals.claim(Claim(row, 1, "us"))
    async with await StoredLedger.open_file(tmp_path / "budget.db") as ledger:
        await ledger.open("tenant", {}, {"calls": 3})
    for _ in range(2):
        async with open_store(env) as stored:
            assert await stored.sessions.session("s1") is not None
            assert [one.id for one in await stored.approvals.waiting("local")] == ["a1"]
            (account,) = await stored.ledger.accounts()
            assert account.spent == {"calls": 3}
            async with opened(env, *every_part(), given=stored.database) as same:
                assert same is stored.database


async def test_a_postgresql_is_used_if_the_settings_say_so(
    tmp_path: Path, postgres_url: str
) -> None:
    schema = f"test_{token_hex(6)}"
    env = {
        "EVOCLAW_HOME": str(tmp_path),
        "EVOCLAW_STORE_URL": postgres_url,
        "EVOCLAW_STORE_SCHEMA": schema,
        "EVOCLAW_STORE_PASSWORD": "not needed here",
    }
    async with open_store(env) as stored:
        assert stored.database.dialect == "postgres" and schema in stored.database.name
        await stored.sessions.create(Session("s1", "a"))
    async with open_store(env) as stored:
        assert await stored.sessions.session("s1") is not None
    assert not (tmp_path / "evoclaw.db").exists()
    env["EVOCLAW_STORE_PASSWORD_FILE"] = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match="password"):
        async with open_store(env):
            pass

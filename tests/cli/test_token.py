"""`evoclaw token` on the machine itself, with the service down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.cli.main import parser
from evoclaw.cli.token import token
from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.people.access import Access
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.governing import tokens
from evoclaw.store.governing.tokens import TokenStore


class Wiring:
    """What the command is given."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "evoclaw.db"

    @asynccontextmanager
    async def open_access(self, env: Mapping[str, str]) -> AsyncGenerator[Access]:
        database = await SqliteDatabase.open(self._file, tokens.SCHEMA, durable=False)
        try:
            yield Access(TokenStore(database))
        finally:
            await database.close()


def typed(wiring: Wiring, *words: str) -> int:
    return token(parser().parse_args(["token", *words]), wiring)


async def scopes_of(wiring: Wiring, secret: str) -> frozenset[str] | None:
    async with wiring.open_access({}) as access:
        caller = await access.caller(secret)
    return None if caller is None else caller.scopes


def test_a_token_is_made_listed_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVOCLAW_URL", raising=False)
    wiring = Wiring(tmp_path)
    typed(wiring, "new", "--scope", "runs:read", "--scope", "human", "--name", "me", "--expires",
          "30d")  # fmt: skip
    said = capsys.readouterr()
    secret = said.out.strip()
    assert asyncio.run(scopes_of(wiring, secret)) == {"runs:read", "human"}
    assert secret not in said.err

    typed(wiring, "list", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "me" and "hash" not in row
    assert 29 * 86_400 < row["expires_at"] - row["made_at"] <= 30 * 86_400
    typed(wiring)
    assert "human runs:read" in capsys.readouterr().out

    typed(wiring, "revoke", row["id"])
    assert asyncio.run(scopes_of(wiring, secret)) is None
    with pytest.raises(ConfigError, match="no token 'none'"):
        typed(wiring, "revoke", "none")


def test_what_a_token_may_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVOCLAW_URL", raising=False)
    with pytest.raises(ConfigError, match="no such scope: root"):
        typed(Wiring(tmp_path), "new", "--scope", "root")
    with pytest.raises(ConfigError, match="--expires"):
        typed(Wiring(tmp_path), "new", "--scope", "runs:read", "--expires", "soon")

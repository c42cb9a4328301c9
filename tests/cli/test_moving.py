"""`evoclaw export` and `evoclaw import`, from one machine's store to another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from evoclaw.cli.export import export, import_
from evoclaw.cli.main import parser
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.orchestrator.people.access import Access
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.moving import Manifest, export_to, import_from
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.governing import tokens
from evoclaw.store.governing.tokens import TokenStore

PARTS = (tokens.SCHEMA,)


@dataclass(frozen=True)
class Moving:
    database: Database

    async def write(self, file: Path, *, tenant: str = "") -> Manifest:
        return await export_to(file, self.database, PARTS, tenant=tenant)

    async def read(self, file: Path, *, existing: Literal["refuse", "keep"] = "refuse") -> Manifest:
        return await import_from(file, self.database, PARTS, existing=existing)


@dataclass(frozen=True)
class Machine:
    """What the commands are given on one machine."""

    file: Path

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Database]:
        database = await SqliteDatabase.open(self.file, tokens.SCHEMA, durable=False)
        try:
            yield database
        finally:
            await database.close()

    @asynccontextmanager
    async def open_moving(self, env: Mapping[str, str]) -> AsyncGenerator[Moving]:
        async with self.opened() as database:
            yield Moving(database)

    async def new_token(self) -> str:
        async with self.opened() as database:
            return (await Access(TokenStore(database)).new("ci", "local", "", ["runs:read"]))[1]

    async def knows(self, secret: str) -> bool:
        async with self.opened() as database:
            return await Access(TokenStore(database)).caller(secret) is not None


def test_what_one_machine_exports_another_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = Machine(tmp_path / "here.db"), Machine(tmp_path / "there.db")
    secret = asyncio.run(here.new_token())
    file = str(tmp_path / "all.evoclaw")
    export(parser().parse_args(["export", file, "--json"]), here)
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    assert Path(file).stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="there already"):
        export(parser().parse_args(["export", file]), here)

    import_(parser().parse_args(["import", file]), there)
    assert "1 rows of 1 stores" in capsys.readouterr().out
    assert asyncio.run(there.knows(secret))
    with pytest.raises(EvoClawError, match="nothing was changed"):
        import_(parser().parse_args(["import", file]), there)
    assert import_(parser().parse_args(["import", file, "--keep"]), there) == 0

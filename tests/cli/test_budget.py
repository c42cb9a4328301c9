from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.cli.budget import budget
from evoclaw.core.ledgers import Ledger, Limit
from evoclaw.store.governing.ledger import StoredLedger


class Wired:
    """Opens a ledger in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @asynccontextmanager
    async def open_ledger(self, env: Mapping[str, str]) -> AsyncGenerator[Ledger]:
        async with await StoredLedger.open_file(self._path) as ledger:
            yield ledger


@pytest.fixture
def wired(tmp_path: Path) -> Wired:
    made = Wired(tmp_path / "budget.db")

    async def fill() -> None:
        async with made.open_ledger({}) as ledger:
            await ledger.open("tenant:local", {"dollars": Limit(5_000_000, 86_400.0)}, {})
            await ledger.open("run:old", {"calls": Limit(2)}, {})
            await ledger.open("run:\x1b[31mnow", {"calls": Limit(2)}, {})
            for run in ("run:old", "run:\x1b[31mnow"):
                path = ("tenant:local", run)
                await ledger.reserve(path, {"calls": 1, "dollars": 250_000}, run)
            ledger.close("run:old")

    asyncio.run(fill())
    return made


def test_accounts_are_shown_with_what_is_left(
    wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget(Namespace(json=False, all=False), wired) == 0
    told = capsys.readouterr().out
    assert "$0.2500 spent, $0.2500 reserved, $4.5000 left of $5.0000 within 86,400 s" in told
    assert "0 calls spent, 1 call reserved, 1 call left of 2 calls" in told
    assert "run:old" not in told and "\x1b" not in told
    budget(Namespace(json=False, all=True), wired)
    assert "run:old" in capsys.readouterr().out


def test_as_json_amounts_are_in_the_units_that_people_use(
    wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    budget(Namespace(json=True, all=True), wired)
    told = {one["account"]: one for one in json.loads(capsys.readouterr().out)}
    assert told["tenant:local"]["kinds"]["dollars"] == {
        "spent": 0.25, "reserved": 0.25, "limit": 5.0, "per_seconds": 86_400.0, "left": 4.5,
    }  # fmt: skip
    assert told["run:old"]["closed"] is True
    assert told["tenant:local"]["kinds"]["calls"]["limit"] is None


def test_a_ledger_with_nothing_in_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget(Namespace(json=False, all=False), Wired(tmp_path / "empty.db")) == 0
    assert "nothing is counted" in capsys.readouterr().out

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evoclaw.core.ledgers import Limit
from evoclaw.wiring.budget import open_ledger
from tests.support.programs.governed_commands import typed


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of this machine."""
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def _spent(home: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    async def fill() -> None:
        async with open_ledger({"EVOCLAW_HOME": str(home)}) as ledger:
            await ledger.open("tenant:local", {"dollars": Limit(5_000_000, 86_400.0)}, {})
            await ledger.open("run:old", {"calls": Limit(2)}, {})
            await ledger.open("run:\x1b[31mnow", {"calls": Limit(2)}, {})
            for run in ("run:old", "run:\x1b[31mnow"):
                path = ("tenant:local", run)
                await ledger.reserve(path, {"calls": 1, "dollars": 250_000}, run)
            ledger.close("run:old")

    asyncio.run(fill())


@pytest.mark.usefixtures("_spent")
def test_accounts_are_shown_with_the_remaining_amounts(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("budget") == 0
    told = capsys.readouterr().out
    assert "$0.2500 spent, $0.2500 reserved, $4.5000 left of $5.0000 within 86,400 s" in told
    assert "0 calls spent, 1 call reserved, 1 call left of 2 calls" in told
    assert "run:old" not in told and "\x1b" not in told
    typed("budget", "show", "--all")
    assert "run:old" in capsys.readouterr().out


@pytest.mark.usefixtures("_spent")
def test_json_amounts_use_dollars_and_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed("budget", "--json", "--all")
    told = {one["account"]: one for one in json.loads(capsys.readouterr().out)}
    assert told["tenant:local"]["kinds"]["dollars"] == {
        "spent": 0.25, "reserved": 0.25, "limit": 5.0, "per_seconds": 86_400.0, "left": 4.5,
    }  # fmt: skip
    assert told["run:old"]["closed"] is True
    assert told["tenant:local"]["kinds"]["calls"]["limit"] is None


@pytest.mark.usefixtures("home")
def test_an_empty_ledger_prints_that_no_accounts_are_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed("budget") == 0
    assert "no open accounts" in capsys.readouterr().out

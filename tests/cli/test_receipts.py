"""`evoclaw receipts`: listed, shown, handed out, and checked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.core.errors import ConfigError
from evoclaw.core.tools import Call, Tool
from evoclaw.orchestrator.receipts.signer import LocalReceiptSigner
from evoclaw.store.calls.receipts import StoredReceipt
from evoclaw.trust.receipts import DeviceKey
from evoclaw.wiring.receipts import open_receipts
from tests.support.programs.governed_commands import typed

KEY = DeviceKey(bytes(range(32)))
SWITCH = Tool("switch", "Switch it.", {"type": "object"})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of this machine."""
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def book(home: Path) -> Path:
    """A machine that signed three results."""

    async def fill() -> None:
        async with open_receipts({"EVOCLAW_HOME": str(home)}) as archive:
            signer = LocalReceiptSigner(KEY, archive.store, "boot")
            for n in range(3):
                call = Call("c1", SWITCH, {"n": n}, f"run.{n}.0.1", 5.0)
                await signer.sign(call, call.ok("done"), 1.0, 2.0)

    asyncio.run(fill())
    return home


def test_receipts_are_listed(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("receipts") == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert ["r1-" in lines[0], "run.0.0.1" in lines[0], len(lines)] == [True, True, 3]
    assert typed("receipts", "list", "--json") == exits.OK
    found = json.loads(capsys.readouterr().out)
    assert [one["request"] for one in found["receipts"]] == [f"run.{n}.0.1" for n in range(3)]
    assert found["missing"] == []


def test_an_empty_archive_prints_how_receipts_are_created(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed("receipts") == exits.OK
    assert "an edge with a device key" in capsys.readouterr().out


def test_missing_and_flawed_receipts_are_reported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        async with open_receipts({"EVOCLAW_HOME": str(home)}) as archive:
            for n, flaw in ((1, ""), (4, ""), (5, "fork")):
                kept = StoredReceipt(
                    "pi", "c", n, f"{n:064x}", "", f"q{n}", "run", "", 1.0, "{}", "s", flaw
                )
                await archive.store.add(kept)

    asyncio.run(fill())
    assert typed("receipts") == exits.OK
    said = capsys.readouterr().out
    assert "pi: receipts 2 to 3 are missing" in said
    assert "FORK" in said


def test_a_receipt_is_shown_by_its_id_or_its_request_id(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("receipts", "list", "--json")
    id_ = json.loads(capsys.readouterr().out)["receipts"][1]["id"]
    assert typed("receipts", "show", id_) == exits.OK
    assert "request_id: run.1.0.1" in capsys.readouterr().out
    assert typed("receipts", "show", "run.2.0.1", "--json") == exits.OK
    assert json.loads(capsys.readouterr().out)["receipt"]["tool"] == "switch"
    with pytest.raises(ConfigError, match="no receipt"):
        typed("receipts", "show", "r9-99999999")


def test_an_export_verifies_and_a_modified_export_does_not(
    book: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.jsonl"
    assert typed("receipts", "export", str(file)) == exits.OK
    assert "3 receipts" in capfd.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    trusted = ("--key", f"here={KEY.public_key}", "--head", "here=3")
    assert typed("receipts", "verify", str(file), *trusted) == exits.OK
    assert "all receipts are valid" in capfd.readouterr().out
    with pytest.raises(ConfigError, match="choose another name"):
        typed("receipts", "export", str(file))
    file.write_text(file.read_text().replace("switch", "snatch"))
    assert typed("receipts", "verify", str(file)) == exits.FAILED
    assert "the signature is wrong" in capfd.readouterr().out

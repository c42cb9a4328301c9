"""`evoclaw receipts`: listed, shown, handed out, and checked."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evoclaw.cli import exits
from evoclaw.cli.receipts import receipts
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call, Tool
from evoclaw.orchestrator.receipts.archive import ReceiptArchive
from evoclaw.orchestrator.receipts.signer import LocalReceiptSigner
from evoclaw.store.calls.receipts import Kept, ReceiptStore
from evoclaw.trust.receipts import DeviceKey

KEY = DeviceKey(bytes(range(32)))
SWITCH = Tool("switch", "Switch it.", {"type": "object"})


class Wired:
    """Opens a book in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "receipts.db"

    @asynccontextmanager
    async def open_receipts(self, env: Mapping[str, str]) -> AsyncGenerator[ReceiptArchive]:
        async with await ReceiptStore.open(self.path, durable=False) as store:
            yield ReceiptArchive(store)


async def filled(folder: Path, many: int) -> Wired:
    wired = Wired(folder)
    async with await ReceiptStore.open(wired.path, durable=False) as store:
        signer = LocalReceiptSigner(KEY, store, "boot")
        for n in range(many):
            call = Call("c1", SWITCH, {"n": n}, f"run.{n}.0.1", 5.0)
            await signer.sign(call, call.ok("done"), 1.0, 2.0)
    return wired


def typed(action: str | None, **options: JSON) -> Namespace:
    usual: dict[str, JSON] = {"agent": None, "json": False, "file": "", "id": ""}
    return Namespace(command="receipts", action=action, **(usual | options))


@pytest.fixture(name="book")
def _book(tmp_path: Path) -> Wired:
    return asyncio.run(filled(tmp_path, 3))


def test_receipts_are_listed(book: Wired, capsys: pytest.CaptureFixture[str]) -> None:
    assert receipts(typed(None), book) == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert ["r1-" in lines[0], "run.0.0.1" in lines[0], len(lines)] == [True, True, 3]
    assert receipts(typed("list", json=True), book) == exits.OK
    found = json.loads(capsys.readouterr().out)
    assert [one["request"] for one in found["receipts"]] == [f"run.{n}.0.1" for n in range(3)]
    assert found["missing"] == []


def test_an_empty_book_says_how_receipts_come_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert receipts(typed(None), Wired(tmp_path)) == exits.OK
    assert "devices with a key" in capsys.readouterr().out


def test_a_gap_and_a_flaw_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wired = Wired(tmp_path)

    async def fill() -> None:
        async with await ReceiptStore.open(wired.path, durable=False) as store:
            for n, flaw in ((1, ""), (4, ""), (5, "fork")):
                kept = Kept("pi", "c", n, f"{n:064x}", "", f"q{n}", "run", "", 1.0, "{}", "s", flaw)
                await store.add(kept)

    asyncio.run(fill())
    assert receipts(typed(None), wired) == exits.OK
    said = capsys.readouterr().out
    assert "pi: receipts 2 to 3 have not come" in said
    assert "FORK" in said


def test_one_receipt_is_shown_by_its_id_or_its_request(
    book: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts(typed("list", json=True), book)
    id_ = json.loads(capsys.readouterr().out)["receipts"][1]["id"]
    assert receipts(typed("show", id=id_), book) == exits.OK
    assert "request_id: run.1.0.1" in capsys.readouterr().out
    assert receipts(typed("show", id="run.2.0.1", json=True), book) == exits.OK
    assert json.loads(capsys.readouterr().out)["receipt"]["tool"] == "switch"
    with pytest.raises(ConfigError, match="no receipt"):
        receipts(typed("show", id="r9-99999999"), book)


def test_what_is_exported_is_verified_and_a_changed_file_is_not(
    book: Wired, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.jsonl"
    assert receipts(typed("export", file=str(file)), book) == exits.OK
    assert "3 receipts" in capfd.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    given = typed("verify", file=str(file), key=[f"here={KEY.public_key}"], head=["here=3"])
    assert receipts(given, book) == exits.OK
    assert "everything holds" in capfd.readouterr().out
    with pytest.raises(ConfigError, match="choose another name"):
        receipts(typed("export", file=str(file)), book)
    file.write_text(file.read_text().replace("switch", "snatch"))
    assert receipts(typed("verify", file=str(file)), book) == exits.FAILED
    assert "the signature is wrong" in capfd.readouterr().out

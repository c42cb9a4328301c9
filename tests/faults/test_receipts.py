"""An edge killed by SIGKILL while it signs: no number is used twice, and none is left out."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evoclaw import verify
from evoclaw.store.databases.sqlite import verify_checksum
from evoclaw.trust.receipts import DeviceKey
from tests.support.fleet_processes import Process
from tests.support.waiting import until

MANY = 60


async def ended(folder: Path, *points: str) -> None:
    process = Process(folder / "log")
    await process.spawn("tests.support.programs.signing_edge", str(folder), str(MANY), *points)
    code = await process.wait_exit()
    assert code in ((-9,) if points else (0,)), process.output()


def journaled(folder: Path) -> list[dict[str, Any]]:
    """The payloads of all reports in the journal, in the order in which the calls ended."""
    path = folder / "journal.db"
    with closing(sqlite3.connect(path)) as found:
        rows = found.execute("SELECT report FROM calls ORDER BY finished").fetchall()
    return [json.loads(verify_checksum(row[0], path))["payload"] for row in rows]


def said(folder: Path) -> dict[str, set[str]]:
    """The bodies of all receipts that were ever heard, by request."""
    bodies: dict[str, set[str]] = {}
    lines = (folder / "said.jsonl").read_text().split("\n")
    for line in lines[:-1]:
        payload = json.loads(line)["payload"]
        if "receipt" in payload:
            bodies.setdefault(payload["request_id"], set()).add(payload["receipt"]["body"])
    return bodies


def assert_whole(folder: Path) -> None:
    """The journal's receipts are one chain, and nothing else was ever said."""
    ends = journaled(folder)
    key = DeviceKey.load_or_create(folder / "device.key").public_key
    lines: list[dict[str, Any]] = [{"type": "key", "agent_id": "pi", "key": key}]
    receipts: list[dict[str, Any]] = [
        {"type": "receipt", **end["receipt"], "result": end} for end in ends
    ]
    lines += sorted(receipts, key=lambda one: json.loads(one["body"])["counter"])
    _, wrong = verify.verify(verify.read_bundle(json.dumps(lines).encode()), {"pi": str(MANY)})
    assert wrong == []
    kept = {end["request_id"]: end["receipt"]["body"] for end in ends}
    assert len(kept) == MANY
    for request_id, bodies in said(folder).items():
        assert bodies == {kept[request_id]}, "said once, signed once"


@pytest.mark.parametrize("when", ["before", "amid", "after"])
async def test_an_edge_killed_while_signing_keeps_its_receipt_chain_intact(
    tmp_path: Path, when: str
) -> None:
    for n in (1, 3, 11):
        await ended(tmp_path, f"finish:{when}:{n}")
    await ended(tmp_path)
    assert_whole(tmp_path)


async def test_an_edge_killed_repeatedly_keeps_one_receipt_chain(
    tmp_path: Path,
) -> None:
    chance, heard = random.Random(7), tmp_path / "said.jsonl"
    heard.touch()
    for _ in range(6):
        process = Process(tmp_path / "log")
        more = heard.stat().st_size + chance.randint(1, 12_000)
        await process.spawn("tests.support.programs.signing_edge", str(tmp_path), str(MANY))
        await _grown(heard, more, process)
        await process.kill()
    await ended(tmp_path)
    assert_whole(tmp_path)


async def _grown(path: Path, size: int, process: Process) -> None:
    await until(lambda: not process.running or path.stat().st_size >= size)

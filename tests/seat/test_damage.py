"""Damage is said aloud: a home that cannot be written, a journal set aside, a broken audit."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.command_line import Shell
from tests.support.disks import small_disk
from tests.support.seat import Seat, seat
from tests.support.waiting import until

pytestmark = pytest.mark.process


@contextmanager
def read_only(disk: Path) -> Generator[None]:
    """The disk can only be read while the block lasts."""
    remount = ["mount", "-o"]
    subprocess.run([*remount, "remount,ro", str(disk)], check=True, timeout=10)
    try:
        yield
    finally:
        subprocess.run([*remount, "remount,rw", str(disk)], check=True, timeout=10)


@pytest.mark.parametrize("used", [False, True], ids=["new home", "used home"])
async def test_a_home_that_cannot_be_written_is_a_sentence_not_a_traceback(
    tmp_path: Path, used: bool
) -> None:
    with small_disk(tmp_path / "disk", "20m") as home:
        shell = Shell(home, tmp_path)
        if used:
            assert (await shell.type("receipts", "list")).code in (exits.OK, exits.FAILED)
            (home / ".evoclaw" / "audit").mkdir(exist_ok=True)
            (home / ".evoclaw" / "audit" / "2026-01-01.000000000001.jsonl").write_text("")
        (tmp_path / "agent.toml").write_text('agent_id = "pi"\nallow_unsigned = true\n')
        with read_only(home):
            for command in (
                ("up", "--no-edge", "--api-port", "0"),
                ("edge",),
                ("run", "--yes", "hello"),
                ("audit", "verify"),
                ("stop", "--all"),
            ):
                typed = await shell.type(*command)
                assert "Traceback" not in typed.err, (command, typed.err)
                assert typed.code != exits.OK, (command, typed.out)
                last = typed.err.splitlines()[-1]
                assert last.startswith("evoclaw: "), (command, typed.err)
                assert "cannot" in typed.err or "no audit" in typed.err, (command, typed.err)


async def test_a_damaged_journal_and_audit_are_said_at_start_in_status_and_in_the_audit(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as here:
        garage = await here.add_edge("garage")
        here.up.models.scripts["note?"] = 'call bash {"command": "true"}\nsay done'
        assert "done" in (await here.type("chat", stdin=b"note?\n")).out
        assert "DAMAGE" not in (await here.type("status")).out
        await garage.end()
        await here.up.stop()
        data = garage.shell.home / ".evoclaw" / "edge" / "garage"
        (data / "journal.db").write_bytes(b"no journal" * 1000)
        (here.up.home / "audit" / "head.json").write_text("{")

        client = await here.up.start()
        await garage.start()
        await here.wait_online("garage")
        assert "the audit in" in here.up.output() and "is damaged" in here.up.output()
        await here.wait_for(garage, "the journal was damaged")

        status = await here.type("status")
        assert "DAMAGE" in status.out, status.out
        assert "audit: head.json is missing or cannot be read" in status.out
        assert "edge garage: its journal was damaged and is set aside as journal.db" in status.out
        await until(lambda: "edge garage is damaged" in here.up.output())
        for kind in ("damage", "recovered"):
            found = (await client.get(f"/v1/audit?kind={kind}")).json["items"]
            assert kind == "recovered" or found[0]["agent_id"] == "garage", found
        lines = "".join(
            path.read_text() for path in sorted((here.up.home / "audit").glob("2*.jsonl"))
        )
        assert '"kind":"recovered"' in lines and '"kind":"damage"' in lines

        for path in data.glob("journal.db.damaged-*"):
            path.unlink()
        await garage.end()
        await garage.start()
        await here.wait_online("garage")
        await until(_is_mended(here), 30)

        assert "done" in (await here.type("chat", stdin=b"note?\n")).out
        await here.up.kill()  # it leaves its write-ahead log behind
        wal = here.up.home / "evoclaw.db-wal"
        log = wal.read_bytes()
        wal.write_bytes(log[:32] + random.Random(1).randbytes(len(log) - 32))
        await here.up.launch()
        assert await here.up.wait_exit() == exits.MISUSED
        last = here.up.output().splitlines()[-1]
        assert last.startswith("evoclaw: ") and "write-ahead log is damaged" in last
        days = sorted((here.up.home / "audit").glob("2*.jsonl"))
        assert "write-ahead log is damaged" in days[-1].read_text()


def _is_mended(here: Seat) -> Callable[[], Awaitable[bool]]:
    async def mended() -> bool:
        return "edge garage: its journal" not in (await here.type("status")).out

    return mended

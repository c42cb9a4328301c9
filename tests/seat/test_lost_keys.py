"""A lost key is reported before a new one is made, and only a person's command replaces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.seat import Seat, SeatEdge, seat
from tests.support.up_process import ENDED, PATIENCE, ok, start_run, wait_for_state
from tests.support.waiting import until

pytestmark = pytest.mark.process
SECRET = "sk-9f27c1Q8fT2m4Zr7Wx0aLp"
WAITING_CALL = (
    f'call bash {{"command": "touch started; until test -e go; do sleep 0.05; done; : {SECRET}"}}'
)


def key_of(home: Path, name: str) -> Path:
    """The default key file in a home folder."""
    return home / ".config" / "evoclaw" / name


async def test_a_lost_key_is_reported_everywhere_and_replaced_only_on_request(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as here:
        garage = await here.add_edge("garage")
        await _run_a_call_and_look_into_the_journal(here, garage)
        assert "is missing: restore" not in (await here.type("status")).out
        await garage.end()
        await here.up.stop()

        key = key_of(here.up.shell.home, "records.key")
        old = key.read_bytes()
        key.unlink()
        await _expect_refusals(here)
        assert not key.exists(), "none of them made a new key"

        asked = await here.type("keys", "renew")
        assert asked.code == exits.MISUSED and "--yes" in asked.err, asked.out
        assert "1 runs" in asked.out and "1 sessions" in asked.out, asked.out
        assert not key.exists(), "nothing was changed yet"
        key.write_bytes(old)
        key.chmod(0o600)
        client = await here.up.start()
        assert len(ok(await client.get("/v1/runs"))["items"]) == 1, "the restored key reads it"
        key.unlink()
        assert "is missing: restore" in (await here.type("status")).out, (
            "also while the service still runs"
        )
        await here.up.stop()

        renewed = await here.type("keys", "renew", "--yes")
        assert renewed.code == exits.OK, renewed.err
        (copy,) = here.up.home.glob("evoclaw.db.key-*")
        assert copy.stat().st_mode & 0o077 == 0 and key.read_bytes() != old
        client = await here.up.start()
        assert ok(await client.get("/v1/runs"))["items"] == []
        here.up.models.scripts["again"] = "say here"
        await wait_for_state(client, await start_run(client, "again"), ENDED)
        assert "is missing: restore" not in (await here.type("status")).out

        await _lose_the_key_of_the_edge(here, garage)


async def _run_a_call_and_look_into_the_journal(here: Seat, garage: SeatEdge) -> None:
    client = await here.up.wait_ready()
    here.up.models.scripts["work"] = f"{WAITING_CALL}\nsay done"
    run = await start_run(client, "work")
    await until((garage.workspace / "started").exists, PATIENCE, "the call runs")
    data = garage.shell.home / ".evoclaw" / "edge" / "garage"
    files = list(data.glob("journal.db*"))
    assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]
    (garage.workspace / "go").touch()
    await wait_for_state(client, run, ENDED)


async def _expect_refusals(here: Seat) -> None:
    """Every command that would need the key says what is lost and what to do."""
    await here.up.launch()
    assert await here.up.wait_exit() == exits.MISUSED
    last = here.up.output().splitlines()[-1]
    advice = "records.key is missing: restore that file from a backup"
    assert last.startswith("evoclaw: ") and advice in last and "evoclaw keys renew" in last
    status = await here.type("status")
    assert f"KEY        what {here.up.home} holds" in status.out and advice in status.out, (
        status.out
    )
    doctor = await here.type("doctor")
    (line,) = [line for line in doctor.out.splitlines() if line.split()[:2] == ["✗", "keys"]]
    assert advice in line
    run = await here.type("run", "hello")
    assert run.code == exits.MISUSED and advice in run.err, run.err


async def _lose_the_key_of_the_edge(here: Seat, garage: SeatEdge) -> None:
    key_of(garage.shell.home, "edge.key").unlink()
    refused = await garage.shell.type("edge")
    assert refused.code == exits.MISUSED, refused.err
    assert "edge.key is missing" in refused.err and "--new-key" in refused.err
    with garage.log.open("ab") as log:
        garage.process = await garage.shell.start(
            "edge", "--new-key", stdout=log.fileno(), stderr=log.fileno()
        )
    await here.wait_online("garage")
    assert "its journal was damaged and is set aside" in (await here.type("status")).out

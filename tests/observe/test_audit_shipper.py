"""Records reach the cold tier once, however it behaves; nothing is let go before it is there."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.observe.audit.cold import AuditQuery, SqlColdTier, open_cold
from evoclaw.observe.audit.cold_databases import SqliteColdDatabase
from evoclaw.observe.audit.reader import cold_lines, export, exported_files, search
from evoclaw.observe.audit.records import unseal
from evoclaw.observe.audit.settings import AuditError, AuditSettings
from evoclaw.observe.audit.shipper import Delivery, Shipper
from evoclaw.observe.audit.sink import AuditContext
from evoclaw.observe.audit.verify import verify
from evoclaw.observe.audit.warm import SHIPPED_FILE, day_files, read_head, read_shipped, spool_size
from evoclaw.observe.audit.writer import serving_audit
from tests.support.audit import (
    DAY,
    NOON,
    Clock,
    FlakyColdDatabase,
    audit_in,
    check,
    draft,
    fields,
    lines_in,
    public_key_of,
    warm_in,
)
from tests.support.waiting import until


def shipper(data: Path, database: SqliteColdDatabase, clock: Clock, **settings: object) -> Shipper:
    chosen = AuditSettings(**settings)  # pyright: ignore[reportArgumentType]
    return Shipper(warm_in(data), SqlColdTier(database), chosen, clock=clock.wall)


def write(data: Path, clock: Clock, count: int, first: int = 0) -> None:
    batch = [fields(number, clock.now) for number in range(first, first + count)]
    warm_in(data).append(batch, clock.now)


def rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as opened:
        found = [seq for (seq,) in opened.execute("SELECT seq FROM evoclaw_audit ORDER BY seq")]
    opened.close()
    return found


async def all_cold(data: Path, database: SqliteColdDatabase) -> list[tuple[int, bytes]]:
    head = read_head(data / "audit")
    assert head is not None
    return [row async for row in cold_lines(SqlColdTier(database), head.chain)]


async def test_records_are_shipped_once_and_later_only_new_ones(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 450)

    assert await shipper(tmp_path, cold, clock).ship() == Delivery(450, 450)
    assert await shipper(tmp_path, cold, clock).ship() == Delivery(0, 450)
    write(tmp_path, clock, 3)
    assert await shipper(tmp_path, cold, clock).ship() == Delivery(3, 453)

    found = await all_cold(tmp_path, cold)
    assert [line for _, line in found] == lines_in(tmp_path)
    assert check(tmp_path, cold=found).ok
    await cold.close()


async def test_fault_68_a_cold_tier_down_for_three_days_gets_every_record_once(
    tmp_path: Path,
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    audit = audit_in(tmp_path, clock)
    ship = shipper(tmp_path, cold, clock)
    cold.away = True
    for hour in range(72):
        audit.note(draft(clock, hour))
        audit.flush()
        with pytest.raises(AuditError, match="away"):
            await ship.ship()
        clock.advance(3600)
    audit.close()
    assert len(day_files(tmp_path / "audit")) == 4
    assert not (tmp_path / "cold.sqlite").exists()

    cold.away = False
    done = await ship.ship()

    assert (done.shipped, done.upto) == (72, 72)
    assert rows(tmp_path / "cold.sqlite") == list(range(1, 73))
    assert check(tmp_path, cold=await all_cold(tmp_path, cold)).ok
    await cold.close()


async def test_fault_68_a_slow_cold_tier_delays_no_call(tmp_path: Path) -> None:
    clock = Clock()
    gate = asyncio.Event()

    class Slow(SqliteColdDatabase):
        async def run(self, sql: str, *values: object) -> list[tuple[object, ...]]:  # pyright: ignore
            await gate.wait()
            return await super().run(sql, *values)  # pyright: ignore

    cold = Slow(tmp_path / "cold.sqlite")
    audit = audit_in(tmp_path, clock)
    audit.note(draft(clock))
    audit.flush()
    shipping = asyncio.create_task(shipper(tmp_path, cold, clock).ship())
    await asyncio.sleep(0)
    for number in range(500):
        audit.note(draft(clock, number))
    audit.flush()
    audit.close()
    assert len(lines_in(tmp_path)) == 501
    assert not shipping.done()

    gate.set()
    async with asyncio.timeout(20):
        await shipping
        await shipper(tmp_path, cold, clock).ship()
    assert rows(tmp_path / "cold.sqlite") == list(range(1, 502))
    await cold.close()


@pytest.mark.parametrize("lost", range(4, 13))
async def test_fault_68_lost_responses_cause_no_duplicates_and_no_gaps(
    tmp_path: Path, lost: int
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 450)
    warm_in(tmp_path).checkpoint(clock.now)
    cold.mute_after = lost
    with pytest.raises(AuditError, match="lost"):
        await shipper(tmp_path, cold, clock).ship()
    cold.mute_after = None

    done = await shipper(tmp_path, cold, clock).ship()

    assert done.upto == 450
    assert rows(tmp_path / "cold.sqlite") == list(range(1, 451))
    found = await all_cold(tmp_path, cold)
    assert check(tmp_path, cold=found).ok
    head = read_head(tmp_path / "audit")
    assert head is not None
    assert len(await SqlColdTier(cold).checkpoints(head.chain)) == 1
    await cold.close()


async def test_fault_68_shipping_everything_again_changes_nothing(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 250)
    await shipper(tmp_path, cold, clock).ship()
    before = await all_cold(tmp_path, cold)
    (tmp_path / "audit" / SHIPPED_FILE).unlink()

    assert (await shipper(tmp_path, cold, clock).ship()).shipped == 250
    assert await all_cold(tmp_path, cold) == before
    await cold.close()


async def test_a_record_that_differs_in_the_cold_tier_is_not_counted_as_shipped(
    tmp_path: Path,
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 5)
    await shipper(tmp_path, cold, clock).ship()
    await cold.run("UPDATE evoclaw_audit SET line = replace(line, 'echo 2', 'echo 9')")
    (tmp_path / "audit" / SHIPPED_FILE).unlink()

    with pytest.raises(AuditError, match="record 3 in .* differs"):
        await shipper(tmp_path, cold, clock).ship()
    found = check(tmp_path, cold=await all_cold(tmp_path, cold)).findings[0]
    assert (found.kind, found.place, found.line) == ("cold", "cold", 3)
    await cold.close()


async def test_a_record_missing_in_the_cold_tier_is_reported(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 5)
    await shipper(tmp_path, cold, clock).ship()
    await cold.run("DELETE FROM evoclaw_audit WHERE seq = 3")

    await cold.run("DELETE FROM evoclaw_audit WHERE seq = 5")
    found = check(tmp_path, cold=await all_cold(tmp_path, cold), delivered=5).findings
    assert found[1].text == "it had records up to 5, and ends with 4"
    found = found[0]
    assert (found.kind, found.text) == ("cold", "records 3 to 3 are missing there")
    await cold.close()


async def test_fault_69_files_are_deleted_after_seven_days_and_only_when_shipped(
    tmp_path: Path,
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    for day in range(12):
        write(tmp_path, clock, 3, day * 3)
        if day == 5:
            cold.away = True
        if day < 5:
            assert (await shipper(tmp_path, cold, clock).ship()).retired == ()
        else:
            with pytest.raises(AuditError):
                await shipper(tmp_path, cold, clock).ship()
        clock.advance(DAY)
    assert len(day_files(tmp_path / "audit")) == 12, "while it is away everything stays"

    cold.away = False
    done = await shipper(tmp_path, cold, clock).ship()

    days = [file.day for file in day_files(tmp_path / "audit")]
    assert len(done.retired) == 5
    assert days[0] == "2026-10-31", "seven whole days, and the one that is under way"
    found = await all_cold(tmp_path, cold)
    assert [seq for seq, _ in found[:36]] == list(range(1, 37))
    assert check(tmp_path).ok, "the chain says itself what was retired"
    assert check(tmp_path, cold=found).ok
    assert check(tmp_path, cold=found).first == 1
    await cold.close()


@pytest.mark.parametrize("second", [-1.0, 0.0, 1.0])
async def test_fault_69_retention_is_exact_to_the_second_at_midnight(
    tmp_path: Path, second: float
) -> None:
    clock, cold = Clock(NOON - NOON % DAY), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 2)
    clock.advance(DAY)
    write(tmp_path, clock, 2)
    clock.advance(7 * DAY + second)
    done = await shipper(tmp_path, cold, clock).ship()
    assert len(done.retired) == (0 if second < 0 else 1)
    await cold.close()


async def test_fault_69_a_clock_jump_deletes_nothing_that_is_not_shipped(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 3)
    clock.now += 400 * DAY
    write(tmp_path, clock, 3)
    cold.away = True
    with pytest.raises(AuditError):
        await shipper(tmp_path, cold, clock).ship()
    assert len(lines_in(tmp_path)) == 6
    cold.away = False
    clock.now -= 800 * DAY
    write(tmp_path, clock, 3)
    done = await shipper(tmp_path, cold, clock).ship()
    assert done.retired == ()
    assert check(tmp_path, cold=await all_cold(tmp_path, cold)).ok
    await cold.close()


async def test_fault_69_records_lost_by_the_cold_tier_are_not_deleted_locally(
    tmp_path: Path,
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 3)
    clock.advance(DAY)
    write(tmp_path, clock, 3)
    await shipper(tmp_path, cold, clock).ship()
    await cold.run("DELETE FROM evoclaw_audit WHERE seq = 2")
    clock.advance(30 * DAY)

    with pytest.raises(AuditError, match="does not have"):
        await shipper(tmp_path, cold, clock).ship()
    assert len(day_files(tmp_path / "audit")) == 2
    await cold.close()


async def test_fault_69_a_modified_file_is_kept_as_evidence(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 3)
    clock.advance(DAY)
    write(tmp_path, clock, 3)
    path = day_files(tmp_path / "audit")[0].path
    path.write_bytes(path.read_bytes().replace(b"echo 1", b"echo 7"))
    clock.advance(30 * DAY)

    done = await shipper(tmp_path, cold, clock).ship()

    assert (done.shipped, done.broken, done.retired) == (5, 1, ())
    assert path.exists()
    await cold.close()


async def test_fault_69_a_crash_between_retirement_and_deletion_is_repaired(
    tmp_path: Path,
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 3)
    clock.advance(DAY)
    write(tmp_path, clock, 3)
    first = day_files(tmp_path / "audit")[0].path
    content = first.read_bytes()
    clock.advance(30 * DAY)
    await shipper(tmp_path, cold, clock).ship()
    first.write_bytes(content)  # as if the process had been killed before it deleted the file

    assert check(tmp_path).ok
    assert first.name in (await shipper(tmp_path, cold, clock).ship()).retired
    assert check(tmp_path).ok
    await cold.close()


async def test_a_missing_first_file_that_was_not_retired_is_reported(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, clock, 3)
    clock.advance(DAY)
    write(tmp_path, clock, 3)
    day_files(tmp_path / "audit")[0].path.unlink()

    found = [one for one in check(tmp_path).findings if one.kind == "gap"]
    assert found[0].text == "missing before this line: 1 to 3"


async def test_retired_records_must_be_in_the_cold_tier(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 3)
    clock.advance(DAY)
    write(tmp_path, clock, 3)
    clock.advance(30 * DAY)
    assert (await shipper(tmp_path, cold, clock).ship()).retired
    await shipper(tmp_path, cold, clock).ship()
    assert check(tmp_path).ok
    assert check(tmp_path, cold=await all_cold(tmp_path, cold), tier=cold.name).ok

    await cold.run("DELETE FROM evoclaw_audit WHERE seq <= 3")

    left = await all_cold(tmp_path, cold)
    found = check(tmp_path, cold=left, tier=cold.name).findings
    assert found[-1].text == "missing before this line: 1 to 3"
    assert check(tmp_path, cold=left, tier="another").ok
    await cold.close()


async def test_without_a_cold_tier_nothing_is_deleted(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(20):
        write(tmp_path, clock, 1)
        clock.advance(DAY)
    done = await Shipper(warm_in(tmp_path), None, clock=clock.wall).ship()
    assert done == Delivery()
    assert len(day_files(tmp_path / "audit")) == 20


async def test_fault_68_a_full_spool_drops_the_oldest_records_only_if_configured(
    tmp_path: Path,
) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    cold.away = True
    for _ in range(5):
        write(tmp_path, clock, 60)
        clock.advance(DAY)
    for chosen, left in (("refuse", 5), ("drop", 3)):
        ship = shipper(tmp_path, cold, clock, spool_bytes=65_536, when_full=chosen)
        with pytest.raises(AuditError, match="away"):
            await ship.ship()
        assert len(day_files(tmp_path / "audit")) >= left
    assert spool_size(tmp_path / "audit") <= 65_536
    report = check(tmp_path)
    assert report.ok
    assert report.dropped[0] == "1 to 60"
    cold.away = False
    await shipper(tmp_path, cold, clock).ship()
    found = await all_cold(tmp_path, cold)
    assert check(tmp_path, cold=found, tier=cold.name).ok
    await cold.close()


async def test_two_processes_do_not_ship_at_the_same_time(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 300)
    first = asyncio.create_task(shipper(tmp_path, cold, clock).ship())
    await until((tmp_path / "audit" / "ship.lock").exists)
    second = await shipper(tmp_path, cold, clock).ship()
    assert second.busy
    assert (await first).shipped == 300
    await cold.close()


async def test_a_new_cold_tier_gets_all_local_records(tmp_path: Path) -> None:
    clock, one = Clock(), FlakyColdDatabase(tmp_path / "one.sqlite")
    two = FlakyColdDatabase(tmp_path / "two.sqlite")
    write(tmp_path, clock, 5)
    await shipper(tmp_path, one, clock).ship()
    assert (await shipper(tmp_path, two, clock).ship()).shipped == 5
    known = read_shipped(tmp_path / "audit")
    assert known is not None and known.cold == two.name
    await one.close()
    await two.close()


async def test_shipping_continues_after_a_failure(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    write(tmp_path, clock, 5)
    cold.away = True
    ship = shipper(tmp_path, cold, clock, ship_seconds=0.1)
    task = asyncio.create_task(ship.keep_shipping())
    await until(lambda: ship.problem)
    cold.away = False
    await until(lambda: not ship.problem)
    task.cancel()
    await asyncio.wait([task])
    assert rows(tmp_path / "cold.sqlite") == [1, 2, 3, 4, 5]
    await cold.close()


async def test_search_finds_records_in_files_and_in_the_cold_tier(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    for day in range(12):
        for number in range(3):
            one = fields(day * 3 + number, clock.now) | {"tool": f"tool{number}"}
            one["verdict"] = "deny" if number == 2 else "allow"
            one["parameters"] = {"text": f'50% of "day_{day}" Ä'}
            warm_in(tmp_path).append([one], clock.now)
        clock.advance(DAY)
    await shipper(tmp_path, cold, clock).ship()
    tier, folder = SqlColdTier(cold), tmp_path / "audit"
    assert len(day_files(folder)) == 8

    async def count(**wanted: object) -> int:
        query = AuditQuery(**wanted)  # pyright: ignore[reportArgumentType]
        found = await search(folder, query, tier)
        assert [one["seq"] for one in found] == sorted({one["seq"] for one in found})
        return len(found)

    assert await count(kind="call") == 36
    assert await count(tool="tool1") == 12
    assert await count(verdict="deny", tenant="acme") == 12
    assert await count(tenant="other") == 0
    assert await count(user="ann", agent_id="desktop-agent", limit=5) == 5
    assert await count(run_id="run0") == 12
    assert await count(text='50% of "DAY_1"') == 3
    assert await count(text="day_1") == 9
    assert await count(text="dayx1") == 0
    assert await count(since=NOON, until=NOON + 2 * DAY) == 6
    newest = await search(folder, AuditQuery(kind="call", limit=2))
    assert [one["seq"] for one in newest] == [35, 36]
    await cold.close()


async def test_an_export_of_a_time_span_can_be_verified_elsewhere(tmp_path: Path) -> None:
    clock, cold = Clock(), FlakyColdDatabase(tmp_path / "cold.sqlite")
    for day in range(12):
        write(tmp_path, clock, 3, day * 3)
        clock.advance(DAY)
    warm_in(tmp_path).checkpoint(clock.now)
    await shipper(tmp_path, cold, clock).ship()
    warm_in(tmp_path).checkpoint(clock.now)
    folder, out = tmp_path / "audit", tmp_path / "out.jsonl"

    whole = await export(folder, out, AuditQuery(), SqlColdTier(cold))
    part = await export(
        folder,
        tmp_path / "part.jsonl",
        AuditQuery(since=NOON + DAY, until=NOON + 3 * DAY),
        SqlColdTier(cold),
    )

    assert whole[0] == 1 and part == (4, 9)
    for name in ("out.jsonl", "part.jsonl"):
        assert verify(exported_files([tmp_path / name]), [public_key_of(tmp_path)]).findings == ()
    assert out.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AuditError, match="choose another file"):
        await export(folder, out, AuditQuery(), SqlColdTier(cold))
    with pytest.raises(AuditError, match="no record"):
        await export(folder, tmp_path / "none", AuditQuery(until=1.0), SqlColdTier(cold))
    await cold.close()


def test_the_cold_setting_selects_the_cold_tier(tmp_path: Path) -> None:
    def name(cold: str, **env: str) -> str:
        found = open_cold(tmp_path, AuditSettings(cold=cold), env)
        return "" if found is None else found.name

    assert name("none") == ""
    assert name("sqlite") == f"sqlite:{tmp_path}/audit/cold.sqlite"
    assert name("sqlite:far.db") == f"sqlite:{tmp_path}/far.db"
    assert name("libsql://x.turso.io", EVOCLAW_AUDIT_TOKEN="t") == "libsql://x.turso.io"
    assert name("http://127.0.0.1:8080") == "libsql://127.0.0.1:8080"
    assert name("postgresql://ann@h/db") == "postgresql://h:5432/db"
    for wrong in (
        "turso",
        "http://",
        "https://u:p@h",
        "libsql://h?authToken=x",
        "postgresql://a:b@h",
    ):
        with pytest.raises(ConfigError):
            name(wrong)
    with pytest.raises(ConfigError, match="cold_token_file"):
        open_cold(tmp_path, AuditSettings(cold="libsql://h", cold_token_file="/no/such"), {})


def test_shipped_lines_equal_the_local_lines(tmp_path: Path) -> None:
    write(tmp_path, Clock(), 1)
    assert unseal(lines_in(tmp_path)[0]).line == lines_in(tmp_path)[0]
    assert json.loads(lines_in(tmp_path)[0])["seq"] == 1


async def test_closing_the_audit_closes_the_cold_tier_file(tmp_path: Path) -> None:
    settings = AuditSettings(ship_seconds=0.01)
    async with serving_audit(tmp_path, settings, {}, long_running=True) as audit:
        assert audit is not None
        audit.record("policy_loaded", AuditContext(principal=LOCAL_PRINCIPAL, agent_id="a"))
        await until(lambda: bool(_open_files(tmp_path)))
    assert _open_files(tmp_path) == []


def _open_files(folder: Path) -> list[str]:
    """What this process holds open of the cold tier."""
    links = (os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
    return [one for one in links if one.startswith(str(folder / "audit" / "cold.sqlite"))]

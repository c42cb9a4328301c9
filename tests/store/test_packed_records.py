"""Records of a run that are stored at once share a row, and are read one by one."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Awaitable, Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.core.events import (
    CallOutput,
    ReasoningDelta,
    Record,
    Replied,
    StopReason,
    TextDelta,
    ToolsChanged,
)
from evoclaw.core.messages import Message, Reply, SystemMessage, user
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.agents.prompt import system_prompt
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import DamagedStore, Database, Work, seal_blob
from evoclaw.store.databases.unreadable_rows import delete_unreadable
from evoclaw.store.sessions.changes import delete_session
from evoclaw.store.sessions.json_compression import DICTIONARY, compress_json, decompress_json
from evoclaw.store.sessions.packed_records import pack_records, unpack_records
from evoclaw.store.sessions.sessions import RunUsage, Session, SessionStore
from evoclaw.store.sessions.tables import SCHEMA
from tests.support.databases import Place
from tests.support.properties import examples

TOOLS = tuple(
    Tool(f"tool_{number}", "Does something. " * 20, {"type": "object"}) for number in range(20)
)
DAY_S = 86_400.0
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
T = TypeVar("T")


def deltas(first: int, last: int) -> list[Record]:
    return [Record("r", seq, 1.0, TextDelta(f"word {seq} ")) for seq in range(first, last + 1)]


def test_any_number_of_records_is_read_as_it_was_stored() -> None:
    for count in (1, 2, 50):
        records = deltas(1, count)
        assert unpack_records(pack_records(records).row, {}) == records


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e12) | st.floats(1.7e9, 1.9e9),
            st.integers(1, 3),
            st.builds(TextDelta, TEXTS)
            | st.builds(ReasoningDelta, TEXTS)
            | st.builds(CallOutput, TEXTS, TEXTS),
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=examples(300), deadline=None)
def test_times_numbers_and_deltas_of_any_kind_are_read_as_they_were_stored(
    made: list[tuple[float, int, TextDelta | ReasoningDelta | CallOutput]],
) -> None:
    seqs = accumulate(step for _, step, _ in made)
    records = [Record("r", seq, at, event) for seq, (at, _, event) in zip(seqs, made, strict=True)]
    assert unpack_records(pack_records(records).row, {}) == records


def test_a_streamed_reply_is_stored_about_once() -> None:
    words = [f"{number * 7919 % 1000} " for number in range(50)]
    start = 1_794_970_941.350732
    pieces = [Record("r", n, start + n / 1000, TextDelta(word)) for n, word in enumerate(words, 1)]
    reply = Record("r", 51, start + 1, Replied(Reply("".join(words))))
    text = zlib.compress("".join(words).encode())
    assert len(pack_records([*pieces, reply]).row) < 2 * len(text)


def test_short_and_long_values_are_compressed_and_older_ones_are_still_read() -> None:
    prompt = SystemMessage(system_prompt(None))
    for value in (b"[1]", msgspec.json.encode(prompt), b"[%b]" % (b"1234567890," * 5_000)):
        assert decompress_json(compress_json(value)) == value
        assert decompress_json(value) == value
        assert decompress_json(zlib.compress(value)) == value
    assert len(compress_json(msgspec.json.encode(prompt))) < 100


def test_the_dictionary_of_stored_values_never_changes() -> None:
    assert hashlib.sha256(DICTIONARY).hexdigest().startswith("b03eb92d4f11ac88")


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


async def begun(
    store: SessionStore, number: int, *events: ToolsChanged | TextDelta
) -> list[Record]:
    """A run of its own session that stored these events."""
    await store.create(Session(f"s{number}", "a"))
    run = await store.create_run(f"r{number}", f"s{number}", "hello")
    records = [Record(run.id, seq, 1.0, event) for seq, event in enumerate(events, 1)]
    await store.append(run, records, (), RunUsage(), StopReason.COMPLETED)
    return records


async def stored_lists(store: SessionStore) -> int:
    count = "SELECT count(*) FROM tool_lists"
    return (await store.database.read(lambda c: c.execute(count).fetchone()))[0]


async def test_runs_with_the_same_tools_store_the_list_once(place: Place) -> None:
    store = SessionStore(await place.open(SCHEMA))
    offered = ToolsChanged(TOOLS), TextDelta("a"), ToolsChanged(()), ToolsChanged(TOOLS[:3])
    first = await begun(store, 1, *offered)
    # Equal tools that another process built are the same list.
    same = msgspec.json.decode(msgspec.json.encode(TOOLS), type=tuple[Tool, ...])
    second = await begun(store, 2, ToolsChanged(same), TextDelta("b"))

    assert await stored_lists(store) == 2
    rows = await store.database.read(
        lambda c: c.execute("SELECT length(record) FROM records ORDER BY run_id").fetchall()
    )
    assert max(size for (size,) in rows) < 500
    assert await store.records("r1") == first and await store.records("r2") == second
    assert await store.records("r1", after=3) == first[3:]
    run = await store.run("r2")
    assert run is not None and (await store.load_run(run)).records == second
    last = await store.last_record("r1")
    assert last == first[-1]
    await store.database.close()


async def test_a_row_that_holds_the_list_itself_is_still_read(place: Place) -> None:
    store = SessionStore(await place.open(SCHEMA))
    await store.create(Session("s", "a"))
    await store.create_run("r", "s", "hello")
    records = [Record("r", 1, 1.0, ToolsChanged(TOOLS)), Record("r", 2, 1.0, TextDelta("a"))]
    lines = b"\n".join(map(msgspec.json.encode, records))
    rows = [(2, seal_blob(store.database, zlib.compress(lines)))]
    rows.append((4, seal_blob(store.database, lines)))
    put = "INSERT INTO records VALUES ('local', 'r', ?, ?)"
    await store.database.write(lambda c: c.executemany(put, rows))

    assert await store.records("r") == [*records, *records]
    await store.database.close()


async def test_a_list_that_no_run_can_refer_to_is_deleted_with_the_last_sessions(
    place: Place,
) -> None:
    now = [0.0]
    store = SessionStore(await place.open(SCHEMA), lambda: now[0])
    await begun(store, 1, ToolsChanged(TOOLS))
    now[0] = 1.5 * DAY_S
    second = await begun(store, 2, ToolsChanged(TOOLS), ToolsChanged(TOOLS[:3]))
    now[0] = 5 * DAY_S
    third = await begun(store, 3, ToolsChanged(TOOLS[:5]))

    await delete_session(store, "s1")
    assert await stored_lists(store) == 3
    assert await store.records("r2") == second
    await delete_session(store, "s2")
    assert await stored_lists(store) == 1
    assert await store.records("r3") == third
    await delete_session(store, "s3")
    assert await stored_lists(store) == 0
    await store.database.close()


class InterruptedReads:
    """A database where something else happens right after the first read."""

    def __init__(self, inner: Database, interrupt: Callable[[], Awaitable[object]]) -> None:
        self._inner, self._interrupt = inner, interrupt
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        result = await self._inner.read(work, allow_stale=allow_stale)
        if self._is_first:
            self._is_first = False
            await self._interrupt()
        return result


@pytest.mark.parametrize("what", ["records", "last_record", "load_run"])
async def test_records_of_a_session_deleted_while_they_are_read_are_not_found(
    place: Place, what: str
) -> None:
    store = SessionStore(await place.open(SCHEMA), lambda: 0.0)
    await begun(store, 1, ToolsChanged(TOOLS))
    run = await store.run("r1")
    assert run is not None
    interrupted = InterruptedReads(store.database, lambda: delete_session(store, "s1"))
    reader = SessionStore(cast("Database", interrupted))

    if what == "load_run":
        assert (await reader.load_run(run)).records == []
    elif what == "records":
        assert await reader.records("r1") == []
    else:
        assert await reader.last_record("r1") is None
    assert await stored_lists(store) == 0
    await store.database.close()


async def test_a_missing_tool_list_of_a_stored_run_is_damage(place: Place) -> None:
    store = SessionStore(await place.open(SCHEMA))
    await begun(store, 1, ToolsChanged(TOOLS))
    await store.database.write(lambda c: c.execute("DELETE FROM tool_lists"))
    with pytest.raises(DamagedStore, match="tools of a record are missing"):
        await store.records("r1")
    await store.database.close()


async def test_records_never_refer_to_a_list_of_a_lost_key(place: Place) -> None:
    lost, key = BlobCipher(b"1" * 32), BlobCipher(b"2" * 32)
    for number, cipher in enumerate((lost, key)):
        store = SessionStore(await place.open(SCHEMA, cipher=cipher))
        records = await begun(store, number, ToolsChanged(TOOLS))
        await delete_unreadable(store.database, (SCHEMA,))
        assert await store.records(f"r{number}") == records
        assert await stored_lists(store) == 1
        await store.database.close()


async def test_long_messages_are_compressed_and_older_ones_still_read(place: Place) -> None:
    store = SessionStore(await place.open(SCHEMA))
    await store.create(Session("s", "a"))
    run = await store.create_run("r", "s", "hello")
    messages: list[tuple[int, Message]] = [(0, user("short")), (1, user("many words " * 200))]
    await store.append(run, (), messages, RunUsage(), None)
    old = user("from before " * 200)
    blob = seal_blob(store.database, msgspec.json.encode(old))
    put = "INSERT INTO messages VALUES ('local', 's', 2, ?)"
    await store.database.write(lambda c: c.execute(put, (blob,)))

    assert await store.messages("s") == [*messages, (2, old)]
    rows = await store.database.read(
        lambda c: c.execute("SELECT length(message) FROM messages ORDER BY number").fetchall()
    )
    assert rows[1][0] < 500 < rows[2][0]
    await store.database.close()

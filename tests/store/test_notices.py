"""Notices: told here at once, and with the commit to all who share a PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from secrets import token_hex

import psycopg
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import Record, RunFinished, RunResumed, RunStarted, StopReason
from evoclaw.core.profile import Profile
from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.databases.notices import (
    LISTENER_TTL_S,
    MAX_PAYLOAD_BYTES,
    WATCH_TTL_S,
    Notice,
    NoticeKind,
    Notices,
    encode_payloads,
    progress_notice,
)
from evoclaw.store.databases.postgres_connection import PostgresServer
from evoclaw.store.databases.postgres_listener import listen
from tests.support.databases import Place
from tests.support.postgres import Postgres
from tests.support.stores import SCHEMA, add, names

STANDS = Notice(NoticeKind.STATE_CHANGED, "local", "r1")
KEPT = Notice(NoticeKind.RECORDS_STORED, "local", "r1")
WATCHED = Notice(NoticeKind.WATCHED, "local", "r1")
SAID = Notice(NoticeKind.MESSAGE_SENT, "local", "r1")
NEWCOMER = Notice(NoticeKind.LISTENER_JOINED, "", "")
PATIENCE = 30.0


class Heard:
    """What a process was told, and a way to wait for it."""

    def __init__(self) -> None:
        self.all: list[Notice | None] = []
        self.newcomers = 0
        self._more = asyncio.Event()

    def __call__(self, notice: Notice | None) -> None:
        if notice == NEWCOMER:
            self.newcomers += 1
        else:
            self.all.append(notice)
        self._more.set()

    async def reached(self, notices: Notices, reach: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            while notices.is_live is not reach:
                self._more.clear()
                await self._more.wait()

    async def until(self, wanted: Notice | None, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.all.count(wanted) < times:
                self._more.clear()
                await self._more.wait()


@contextmanager
def heard(database: Database) -> Generator[Heard]:
    told = Heard()
    with database.notices.subscribe(told):
        yield told


@asynccontextmanager
async def opened(place: Place, *, listens: bool = False) -> AsyncGenerator[Database]:
    async with AsyncExitStack() as stack:
        database = await place.open(SCHEMA)
        stack.push_async_callback(database.close)
        if listens:
            told = stack.enter_context(heard(database))
            await stack.enter_async_context(database.listening())
            await told.until(None)
            assert database.notices.is_live
        yield database


@pytest.fixture(name="shared")
def _shared(postgres_url: str) -> Place:
    return Place(postgres_url, f"test_{token_hex(6)}")


async def test_subscribers_of_the_same_process_are_notified_on_write(place: Place) -> None:
    async with opened(place) as database:
        with heard(database) as told:
            await database.write(add("a"), notices=(STANDS,))
            assert told.all == [STANDS]
            await database.announce((WATCHED,))
            assert told.all == [STANDS, WATCHED]
        await database.write(add("b"), notices=(STANDS,))
        assert told.all == [STANDS, WATCHED], "he has left"


async def test_sqlite_notices_do_not_reach_other_processes(place: Place) -> None:
    async with opened(place) as database, database.listening():
        assert not (place.is_file and database.notices.is_live)


async def test_other_processes_are_notified_after_the_commit(shared: Place) -> None:
    async with opened(shared) as one, opened(shared, listens=True) as two:
        with heard(two) as told:
            await one.write(add("a"), notices=(STANDS, STANDS))
            await told.until(STANDS)
            assert await two.read(names) == ["a"]
            await one.write(add("b"), wait=False, notices=(SAID,))
            await told.until(SAID)
            assert await two.read(names) == ["a", "b"], "nobody is told before the commit"
            assert told.all == [STANDS, SAID], "the same twice is told once"


async def test_a_failed_write_sends_no_notice_to_other_processes(shared: Place) -> None:
    def fails(connection: Connection) -> None:
        raise ValueError("no")

    async with opened(shared) as one, opened(shared, listens=True) as two:
        with heard(two) as told:
            with pytest.raises(ValueError, match="no"):
                await one.write(fails, notices=(STANDS,))
            await one.write(add("a"), notices=(SAID,))
            await told.until(SAID)
            assert STANDS not in told.all


async def test_a_process_receives_its_own_notice_once(shared: Place) -> None:
    async with opened(shared, listens=True) as one, opened(shared, listens=True) as two:
        with heard(one) as here, heard(two) as there:
            await one.write(add("a"), notices=(STANDS,))
            await there.until(STANDS)
            await two.write(add("b"), notices=(Notice(NoticeKind.ANSWERED, "t", "r"),))
            # What the server sends comes in order: ours would have been there by now.
            await here.until(Notice(NoticeKind.ANSWERED, "t", "r"))
            assert here.all.count(STANDS) == 1


async def test_another_schema_on_the_same_server_is_not_notified(postgres_url: str) -> None:
    ours, other = (Place(postgres_url, f"test_{token_hex(6)}") for _ in range(2))
    async with opened(ours) as one, opened(other) as stranger, opened(ours, listens=True) as two:
        with heard(two) as told:
            await stranger.write(add("a"), notices=(STANDS,))
            await one.write(add("a"), notices=(SAID,))
            await told.until(SAID)
            assert told.all == [SAID]


async def test_a_new_listener_announces_itself(shared: Place) -> None:
    async with opened(shared, listens=True) as one:
        with heard(one) as told:
            assert told.newcomers == 0
            async with opened(shared, listens=True) as two:
                await two.announce((SAID,))
                await told.until(SAID)
                assert told.newcomers == 1


async def test_a_terminated_listener_reconnects_and_reports_missed_notices(shared: Place) -> None:
    async with opened(shared) as one, opened(shared, listens=True) as two:
        with heard(two) as told:
            end_listeners(str(shared.at))
            await told.until(None, 2)  # one when it broke, one when it was there again
            assert two.notices.is_live
            await one.write(add("a"), notices=(STANDS,))
            await told.until(STANDS)


class Cable:
    """Between a client and a server; nothing gets through while it is not open."""

    def __init__(self, port: int) -> None:
        self._far, self.open = port, asyncio.Event()
        self.open.set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, there = await asyncio.open_connection("127.0.0.1", self._far)
        for reader, writer in ((near, there), (far, back)):
            pump = asyncio.create_task(self._pump(reader, writer))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def end(self) -> None:
        for pump in tuple(self._pumps):
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)


async def test_a_silently_dead_connection_is_detected_and_replaced(
    shared: Place, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.store.databases.postgres_listener.KEEPALIVE_INTERVAL_S", 0.1)
    monkeypatch.setattr("evoclaw.store.databases.postgres_listener.KEEPALIVE_TIMEOUT_S", 1.0)
    cable, notices, told = Cable(postgres_server.port), Notices(), Heard()
    door = await asyncio.start_server(cable.accept, "127.0.0.1", 0)
    port = door.sockets[0].getsockname()[1]
    behind = PostgresServer(
        str(shared.at).replace(f":{postgres_server.port}/", f":{port}/"), shared.schema
    )
    async with opened(shared) as database:
        with notices.subscribe(told):
            listening = asyncio.create_task(listen(behind, notices))
            try:
                await told.reached(notices, True)
                cable.open.clear()
                await told.reached(notices, False)
                cable.open.set()
                await told.reached(notices, True)
                async with asyncio.timeout(PATIENCE):
                    while SAID not in told.all:
                        await database.announce((SAID,))
                        await asyncio.sleep(0.05)
            finally:
                listening.cancel()
                await asyncio.wait([listening])
                door.close()
                await cable.end()


def end_listeners(url: str, *, least: int = 1) -> None:
    """Have the server end every connection that listens; so many at least."""
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE application_name = 'evoclaw notices'"
        ).fetchone()
    assert ended is not None
    assert ended[0] >= least


async def test_a_thousand_notices_are_sent_in_few_payloads(shared: Place) -> None:
    async with opened(shared) as one, opened(shared, listens=True) as two:
        with heard(two) as told:
            notices = [
                Notice(NoticeKind.STATE_CHANGED, "local", token_hex(16)) for _ in range(1_000)
            ]
            before = one.commits
            await asyncio.gather(*(one.announce((notice,)) for notice in notices))
            await told.until(notices[-1])
            assert sorted(told.all, key=str) == sorted(notices, key=str)
            assert one.commits - before < 100


async def test_notice_text_is_escaped_in_sql(shared: Place) -> None:
    strange = Notice(
        NoticeKind.STATE_CHANGED, "o'hara\\", "'); DROP TABLE things; -- \n\u20ac\x00\U0001f980"
    )
    async with opened(shared) as one, opened(shared, listens=True) as two:
        with heard(two) as told:
            await one.write(add("a"), notices=(strange,))
            await told.until(strange)
            assert await two.read(names) == ["a"]


async def test_progress_notices_are_sent_only_to_processes_that_watch(shared: Place) -> None:
    async with opened(shared, listens=True) as one, opened(shared, listens=True) as two:
        with heard(one) as here, heard(two) as there:
            await one.write(add("a"), notices=(KEPT,))
            assert here.all == [KEPT], "in the same process it costs nothing"
            watched = asyncio.Event()
            with one.notices.register_driver("local", "r1", watched.set):
                await two.announce((WATCHED,))
                await asyncio.wait_for(watched.wait(), PATIENCE)
            await one.write(
                add("b"), notices=(KEPT, Notice(NoticeKind.RECORDS_STORED, "local", "other"))
            )
            await there.until(KEPT)
            assert there.all == [WATCHED, KEPT]


def test_payloads_fit_the_size_limit_and_hold_each_notice_once() -> None:
    notices = [Notice(NoticeKind.RECORDS_STORED, "local", f"{n:0100}") for n in range(200)]
    letters = encode_payloads("me", [*notices, *notices])
    assert len(letters) > 1
    assert all(len(letter.encode()) < 8_000 for letter in letters)
    found: list[Notice | None] = []
    hearing = Notices()
    with hearing.subscribe(found.append):
        for letter in letters:
            hearing.receive(letter)
    assert found == notices
    assert (
        encode_payloads("me", [Notice(NoticeKind.RECORDS_STORED, "local", "x" * MAX_PAYLOAD_BYTES)])
        == []
    )
    assert encode_payloads("me", []) == []


@pytest.mark.parametrize("letter", ["", "{}", "[]", '["x"]', '["x", [1]]', "\x00", '["x", null]'])
def test_a_malformed_payload_is_ignored(letter: str) -> None:
    found: list[Notice | None] = []
    hearing = Notices()
    with hearing.subscribe(found.append):
        hearing.receive(letter)
    assert found == []


def test_a_watch_expires_and_can_be_renewed() -> None:
    now, asked = 100.0, 0

    def watched() -> None:
        nonlocal asked
        asked += 1

    hearing, letter = Notices(lambda: now), encode_payloads("other", [WATCHED])[0]
    assert not hearing.is_watched("local", "r1")
    with hearing.register_driver("local", "r1", watched):
        hearing.receive(letter)
        hearing.receive(letter)
        assert asked == 1, "who is told already need not be answered"
        hearing.receive(encode_payloads("third", [WATCHED])[0])
        assert asked == 2
        assert hearing.is_watched("local", "r1")
        assert not hearing.is_watched("local", "r2")
        assert not hearing.is_watched("other", "r1")
        now += WATCH_TTL_S + 1
        assert not hearing.is_watched("local", "r1")
        hearing.receive(letter)
        assert asked == 3
        hearing.receive(encode_payloads(hearing.sender, [WATCHED])[0])
        assert asked == 3, "our own"
    now += WATCH_TTL_S + 1
    hearing.receive(letter)
    assert hearing.is_watched("local", "r1"), "whoever drives it next knows"
    assert asked == 3


def test_a_subscriber_can_exclude_notices_of_its_own_process() -> None:
    hearing, ours, all_ = Notices(), list[Notice | None](), list[Notice | None]()
    with hearing.subscribe(ours.append, own=False), hearing.subscribe(all_.append):
        hearing.deliver((SAID,))
        assert (ours, all_) == ([], [SAID])
        hearing.receive(encode_payloads("other", [STANDS])[0])
        hearing.report_missed(is_live=True)
        assert (ours, all_) == ([STANDS, None], [SAID, STANDS, None])


def test_the_number_of_watched_runs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evoclaw.store.databases.notices.MAX_WATCHED_RUNS", 10)
    now = 100.0
    hearing = Notices(lambda: now)
    for number in range(20):
        hearing.receive(
            encode_payloads("other", [Notice(NoticeKind.WATCHED, "local", str(number))])[0]
        )
    assert [hearing.is_watched("local", str(n)) for n in range(20)] == [True] * 10 + [False] * 10
    now += WATCH_TTL_S + 1
    hearing.receive(encode_payloads("other", [Notice(NoticeKind.WATCHED, "local", "15")])[0])
    assert hearing.is_watched("local", "15")
    assert len(hearing._watchers) == 1, "the others were forgotten"  # pyright: ignore[reportPrivateUsage]


def test_notices_are_sent_only_while_another_process_listens() -> None:
    now = [100.0]
    notices = Notices(lambda: now[0])
    ended = [Notice(NoticeKind.STATE_CHANGED, "t", "r1")]
    assert notices.outgoing(ended) == ended, "unknown who listens, as this process does not"
    notices.report_missed(is_live=True)
    assert notices.outgoing(ended) == ended, "those who listened before were not heard yet"
    now[0] += LISTENER_TTL_S + 1
    assert not notices.outgoing(ended)
    (alive,) = encode_payloads("other", [Notice(NoticeKind.LISTENING, "", "")])
    notices.receive(alive)
    assert notices.outgoing(ended) == ended
    now[0] += LISTENER_TTL_S + 1
    assert not notices.outgoing(ended)
    notices.report_missed(is_live=False)
    assert notices.outgoing(ended) == ended


def test_all_are_told_of_a_run_that_waits_or_was_resumed_and_only_watchers_of_the_rest() -> None:
    settings, profile = LoopSettings(), Profile()
    started = Record("r1", 1, 0.0, RunStarted("m", (), settings, profile))
    resumed = Record("r1", 2, 0.0, RunResumed("m", settings, profile))
    ended = Record("r1", 3, 0.0, RunFinished(StopReason.COMPLETED, "done"))
    waits = Record("r1", 3, 0.0, RunFinished(StopReason.WAITING, ""))
    for records, stop, kind in (
        ([started], None, NoticeKind.RECORDS_STORED),
        ([ended], StopReason.COMPLETED, NoticeKind.RECORDS_STORED),
        ([resumed], None, NoticeKind.STATE_CHANGED),
        ([resumed, ended], StopReason.CANCELLED, NoticeKind.STATE_CHANGED),
        ([waits], StopReason.WAITING, NoticeKind.STATE_CHANGED),
    ):
        assert progress_notice("local", "r1", records, stop) == Notice(kind, "local", "r1")

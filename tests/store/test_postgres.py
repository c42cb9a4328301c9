"""A server that goes away: what was promised is kept, and what nobody knows is said."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import Any

import pytest

from evoclaw.core.errors import ConfigError, RunSuspended
from evoclaw.store.databases.database import (
    CommitUnknown,
    Connection,
    Database,
    StoreError,
    StoreUnavailable,
    Work,
)
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.databases.steps import Step
from tests.store.test_contract import (
    ADD_THING,
    THINGS,
    add,
    adding,
    names,
    nothing,
    seen_by_others,
)
from tests.support.databases import Place
from tests.support.ports import free_port
from tests.support.postgres import Postgres, why_no_postgres
from tests.support.stores import ROOT

WAIT = 30.0
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres() or "there is one"),
]


class Cable:
    """The way to a server, which can be cut at a word."""

    def __init__(self, port: int) -> None:
        self.port, self._server = free_port(), port
        self.cut_before = self.cut_after = b""
        """A word of the client's: cut before it arrives, or before its answer does."""
        self.away = False
        """Whether nobody gets through any more once it was cut."""
        self.cuts = 0
        self._refusing = False
        self._carrying: set[asyncio.Task[None]] = set()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    def mend(self) -> None:
        """Let everybody through again."""
        self._refusing = self.away = False

    async def over(self) -> None:
        """Wait until everybody has hung up: a loop that ends must not cut them off."""
        if self._carrying:
            await asyncio.wait(self._carrying, timeout=WAIT)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        if self._refusing:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._server)
        ends = (writer, back)
        up = asyncio.create_task(self._pass(reader, back, ends, watched=True))
        down = asyncio.create_task(self._pass(there, writer, ends, watched=False))
        await asyncio.wait([up, down])

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, ...],
        *,
        watched: bool,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if watched and self.cut_before and self.cut_before in data:
                    self._cut()
                    break
                late = watched and self.cut_after and self.cut_after in data
                if late:
                    ends[0].close()  # no answer gets back
                    self._cut()
                sink.write(data)
                await sink.drain()
                if late:
                    await source.read()
                    break
        for end in ends:
            end.close()

    def _cut(self) -> None:
        self.cuts += 1
        self.cut_before = self.cut_after = b""
        self._refusing = self.away


@asynccontextmanager
async def cabled(
    server: Postgres, patience: float = 20.0
) -> AsyncGenerator[tuple[Cable, Database, Place]]:
    """A database behind a cable, and the way to it that is never cut."""
    cable, schema = Cable(server.port), f"test_{token_hex(6)}"
    async with await cable.serve():
        url = server.url.replace(str(server.port), str(cable.port))
        database = await open_database(url, (THINGS,), schema=schema, reconnect_timeout_s=patience)
        try:
            yield cable, database, Place(server.url, schema)
        finally:
            cable.mend()
            await database.close()
            await cable.over()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_on_a_cut_connection_is_checked_and_applied_once(
    postgres_server: Postgres, when: str
) -> None:
    async with cabled(postgres_server) as (cable, database, place), asyncio.timeout(WAIT):
        await database.write(add("before"))
        await database.write(add("promised"), wait=False)
        setattr(cable, f"cut_{when}", b"COMMIT")
        answers = await asyncio.gather(*(database.write(add(f"row {n}")) for n in range(3)))
        assert cable.cuts == 1 and len(set(answers)) == 3
        assert await database.read(names) == ["before", "promised", "row 0", "row 1", "row 2"]
        assert await seen_by_others(place) == await database.read(names)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_steps_on_a_cut_connection_are_sent_again_and_applied_once(
    postgres_server: Postgres, when: str
) -> None:
    async with cabled(postgres_server) as (cable, database, place), asyncio.timeout(WAIT):
        await database.apply(adding("before"))
        database.defer(adding("deferred"))
        setattr(cable, f"cut_{when}", b"row 0")
        answers = await asyncio.gather(*(database.apply(adding(f"row {n}")) for n in range(3)))
        assert cable.cuts == 1 and len(set(answers)) == 3, "the answers of the first time"
        assert await seen_by_others(place) == ["before", "deferred", "row 0", "row 1", "row 2"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_step_stays_unknown_while_the_server_is_unreachable_and_is_never_applied_twice(
    postgres_server: Postgres, when: str
) -> None:
    async with cabled(postgres_server, 0.3) as (cable, database, place), asyncio.timeout(WAIT):
        await database.apply(adding("before"))
        cable.away = True
        setattr(cable, f"cut_{when}", b"unknown")
        database.defer(adding("deferred"))
        with pytest.raises(CommitUnknown, match="check before you repeat it"):
            await database.apply(adding("unknown"))
        with pytest.raises(StoreUnavailable):
            await database.apply(adding("not done"))
        cable.mend()
        await database.apply(adding("later"))
        assert await seen_by_others(place) == ["before", "deferred", "unknown", "later"]


async def test_a_batch_that_arrives_after_a_later_one_is_not_applied(postgres_url: str) -> None:
    import psycopg

    place = Place(postgres_url, f"test_{token_hex(6)}")
    database = await place.open(THINGS)
    await database.apply(adding("one"))
    await database.apply(adding("two"))
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute(f"SET search_path = {place.schema}".encode())
        find = "SELECT name, batch FROM step_writers"
        writer, batch = raw.execute(find).fetchone() or ("", 0)
        (function,) = raw.execute(
            "SELECT proname FROM pg_proc WHERE proname LIKE 'step\\_run\\_all%%' "
            "AND pronamespace = %s::regnamespace",
            (place.schema,),
        ).fetchone() or ("",)
        late = '[["add_thing", ["late", "", 9]]]'
        for number in (batch - 1, batch):
            raw.execute(
                f"SELECT * FROM {function}(%s, %s, '{{}}', %s)".encode(), (writer, number, late)
            )
    assert await seen_by_others(place) == ["one", "two"]
    await database.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_stays_unknown_while_the_server_is_unreachable(
    postgres_server: Postgres, when: str
) -> None:
    async with cabled(postgres_server, 0.3) as (cable, database, place), asyncio.timeout(WAIT):
        await database.write(add("promised"), wait=False)
        cable.away = True
        setattr(cable, f"cut_{when}", b"COMMIT")
        with pytest.raises(CommitUnknown, match="check before you repeat it") as told:
            await database.write(add("unknown"))
        assert isinstance(told.value, RunSuspended), "a run looks, and goes on from what it finds"
        with pytest.raises(StoreError):
            await database.write(add("not done"))
        cable.mend()
        await database.write(add("later"))
        found = ["promised", "later"] if when == "before" else ["promised", "unknown", "later"]
        assert await database.read(names) == found
        assert await seen_by_others(place) == found


async def test_a_writer_that_was_paused_still_gets_its_full_retry_time(
    postgres_server: Postgres,
) -> None:
    async with cabled(postgres_server, 0.3) as (cable, database, place), asyncio.timeout(WAIT):
        tries: list[float] = []

        def stopped_once(connection: Connection) -> None:
            tries.append(time.monotonic())
            while time.monotonic() < tries[0] + 0.4:
                pass  # as long as a stopped process stands still, and longer than it is patient
            add("woken")(connection)

        cable.cut_before = b"INSERT"
        await database.write(stopped_once)
        assert (cable.cuts, len(tries)) == (1, 2)
        assert await seen_by_others(place) == ["woken"]


async def test_a_connection_lost_during_a_request_is_reopened(postgres_server: Postgres) -> None:
    async with cabled(postgres_server) as (cable, database, place), asyncio.timeout(WAIT):
        await database.write(add("promised"), wait=False)
        cable.cut_before = b"INSERT"
        await database.write(add("one"))
        cable.cut_before = b"SELECT"
        assert await database.read(names) == ["promised", "one"]
        await database.write(add("two"), wait=False)
        cable.cut_before = b"SELECT"
        assert await database.read(names) == ["promised", "one", "two"]
        await database.write(nothing)
        assert cable.cuts == 3
        assert await seen_by_others(place) == ["promised", "one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_restarted_server_is_used_again(how: signal.Signals) -> None:
    server = Postgres()
    place = Place(server.url)
    try:
        await asyncio.to_thread(server.start)
        database = await place.open(THINGS, durable=True, patience=0.3)
        await database.write(add("one"))
        await asyncio.to_thread(server.stop, how)
        with pytest.raises(StoreError, match="postgresql://127.0.0.1") as away:
            await database.write(add("two"))
        assert not isinstance(away.value, CommitUnknown), "it is known that nothing was done"
        with pytest.raises(StoreError):
            await database.read(names)
        await asyncio.to_thread(server.start)
        await database.write(add("three"))
        assert await database.read(names) == ["one", "three"]
        await database.close()
    finally:
        await asyncio.to_thread(server.close)


HOLDER = """
import asyncio, sys
from tests.support.databases import Place
from tests.store.test_contract import THINGS, add

async def main():
    database = await Place.of(*sys.argv[1:]).open(THINGS)
    await database.write(add("before"))
    await database.write(add("held"), wait=False)
    print("holds", flush=True)
    sys.stdin.readline()
    await database.write(add("after"))
    await database.close()

asyncio.run(main())
"""


async def test_fault_10_a_paused_process_does_not_block_other_writers_for_long(
    postgres_url: str,
) -> None:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, postgres_url, place.schema,
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        async with asyncio.timeout(WAIT):
            assert await child.stdout.readline() == b"holds\n"
            os.kill(child.pid, signal.SIGSTOP)
            database = await place.open(THINGS)
            await database.write(add("other"))
            os.kill(child.pid, signal.SIGCONT)
            await child.communicate(b"\n")
            assert child.returncode == 0
            found = await database.read(names)
            assert sorted(found) == ["after", "before", "held", "other"]
            assert found.index("held") < found.index("after"), "in order, and nothing is lost"
            await database.close()
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:secret@127.0.0.1/x", "must not contain a password"),
        ("postgresql://u@127.0.0.1/x?password=secret", "must not contain a password"),
        ("postgresql://u@127.0.0.1:1/x", "start the server, or check"),
        ("postgresql://u@[bad", "write postgresql://"),
    ],
)
async def test_an_unusable_url_is_explained_without_its_secrets(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        await open_database(url, (THINGS,), password="hidden")
    assert "secret" not in str(refused.value) and "hidden" not in str(refused.value)


async def test_schemas_are_isolated_and_their_names_are_checked(postgres_url: str) -> None:
    first, second = (Place(postgres_url, f"test_{token_hex(6)}") for _ in range(2))
    one, other = await first.open(THINGS), await second.open(THINGS)
    await one.write(add("mine"))
    assert await other.read(names) == []
    await one.close()
    await other.close()
    with pytest.raises(ConfigError, match="cannot be the name of a schema"):
        await Place(postgres_url, 'x"; DROP').open(THINGS)


async def test_work_that_suppresses_a_statement_error_is_rolled_back(postgres_url: str) -> None:
    import psycopg

    def hiding(connection: Connection) -> str:
        add("half")(connection)
        with suppress(psycopg.Error):
            connection.execute("SELECT * FROM elsewhere")
        return "done"

    def wrong(connection: Connection) -> Any:
        return connection.execute("SELECT * FROM things WHERE n = 'x'")

    database = await Place(postgres_url, f"test_{token_hex(6)}").open(THINGS)
    with pytest.raises(StoreError, match="rolled back"):
        await database.write(hiding)
    with pytest.raises(StoreError):
        await database.write(wrong)
    await database.write(add("one"))
    assert await database.read(names) == ["one"]
    await database.close()


async def test_a_function_that_writes_is_a_serializable_transaction_and_is_run_again(
    postgres_url: str,
) -> None:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    one, other = await place.open(THINGS), await place.open(THINGS)
    loop, runs, both_read = asyncio.get_running_loop(), list[str](), asyncio.Event()
    release = threading.Event()

    def add_if_few(name: str) -> Work[None]:
        """Reads all rows, and writes another: two of them must not miss each other's."""

        def work(connection: Connection) -> None:
            runs.append(name)
            count = len(names(connection))
            if len(runs) == 2:
                loop.call_soon_threadsafe(both_read.set)
            release.wait(WAIT)
            if count < 1:
                add(name)(connection)

        return work

    writes = [
        asyncio.create_task(database.write(add_if_few(name)))
        for database, name in ((one, "one"), (other, "other"))
    ]
    async with asyncio.timeout(WAIT):
        await both_read.wait()
        release.set()
        await asyncio.gather(*writes)
    assert len(runs) == 3, "one of them ran again"
    assert len(await seen_by_others(place)) == 1
    await one.close()
    await other.close()


async def test_arguments_that_cannot_be_stored_fail_their_step_alone(postgres_url: str) -> None:
    place = Place(postgres_url, f"test_{token_hex(6)}")
    database = await place.open(THINGS)
    answers = await asyncio.gather(
        database.apply(adding("good")),
        database.apply(adding("zero \0")),
        database.apply(Step(ADD_THING, (object(), b"", 1))),
        return_exceptions=True,
    )
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, True]
    assert await seen_by_others(place) == ["good"]
    await database.close()

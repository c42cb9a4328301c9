"""Every kind of cold tier behaves the same: SQLite, a real libSQL server, a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from evoclaw.core.errors import ConfigError
from evoclaw.observe.audit.checkpoints import AuditKey, Checkpoint
from evoclaw.observe.audit.cold import AuditQuery, SqlColdTier, open_cold
from evoclaw.observe.audit.cold_databases import (
    LibsqlColdDatabase,
    PostgresColdDatabase,
    SqliteColdDatabase,
)
from evoclaw.observe.audit.records import SealedRecord, genesis, seal
from evoclaw.observe.audit.settings import AuditError, AuditSettings
from tests.support.audit import NOON, fields
from tests.support.database_servers import sqld, sqld_program

PROCESSES = [pytest.param(name, marks=pytest.mark.process) for name in ("libsql", "postgresql")]


@pytest.fixture(name="sqld_url", scope="module")
def _sqld_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = sqld_program()
    if program is None:
        pytest.skip("there is no sqld: `make test` would install sqld")
    with sqld(tmp_path_factory.mktemp("sqld"), program) as server:
        yield server.url


@pytest_asyncio.fixture(name="cold", params=["sqlite", *PROCESSES])
async def _cold(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlColdTier]:
    match request.param:
        case "sqlite":
            database = SqliteColdDatabase(tmp_path / "cold.sqlite")
        case "libsql":
            database = LibsqlColdDatabase(request.getfixturevalue("sqld_url"))
        case _:
            database = PostgresColdDatabase(request.getfixturevalue("postgres_url"))
    await SqlColdTier(database).prepare()
    cold = SqlColdTier(database)
    await cold.prepare()  # making the tables again harms nothing
    yield cold
    await cold.close()


@pytest.fixture(name="chain")
def _chain() -> str:
    return os.urandom(8).hex()


def chained(chain: str, count: int, **more: object) -> list[SealedRecord]:
    prev, found = genesis(chain), list[SealedRecord]()
    for number in range(1, count + 1):
        one = seal({**fields(number, NOON + number), **more}, number, prev)
        prev = one.hash
        found.append(one)
    return found


async def test_records_are_read_back_byte_for_byte_page_by_page(
    cold: SqlColdTier, chain: str
) -> None:
    records = chained(chain, 450, text='naughty \x00 \u2028 "quotes" % _ ? é 🦀 \\', big=2**53 - 1)

    await cold.put(chain, records)

    page = await cold.lines(chain, 1, 450)
    assert len(page) == 200
    rest = await cold.lines(chain, 201, 450)
    last = await cold.lines(chain, 401, 10**15)
    assert [*page, *rest, *last] == [(one.seq, one.line) for one in records]
    assert await cold.lines("another", 1, 450) == []


async def test_records_put_twice_are_stored_once(cold: SqlColdTier, chain: str) -> None:
    records = chained(chain, 150)

    await cold.put(chain, records[:100])
    await cold.put(chain, records)
    await cold.put(chain, records)

    assert [seq for seq, _ in await cold.lines(chain, 1, 1000)] == list(range(1, 151))


async def test_a_stored_record_is_never_overwritten(cold: SqlColdTier, chain: str) -> None:
    await cold.put(chain, chained(chain, 3))
    await cold.put(chain, chained(chain, 3, user="mallory"))

    assert all(b"mallory" not in line for _, line in await cold.lines(chain, 1, 3))


async def test_checkpoints_are_read_back_in_order_without_duplicates(
    cold: SqlColdTier, chain: str
) -> None:
    key, prev, signed = AuditKey(b"k" * 32), "", list[Checkpoint]()
    for number in range(1, 251):
        one = key.sign(Checkpoint(chain, number, number * 10, "h", 1.5, prev, ""))
        prev = one.hash
        signed.append(one)

    await cold.put_checkpoints(signed)
    await cold.put_checkpoints(signed[:20])

    assert await cold.checkpoints(chain) == signed


async def test_records_are_found_by_each_field(cold: SqlColdTier, chain: str) -> None:
    await cold.put(chain, chained(chain, 30))

    async def seqs(query: AuditQuery) -> list[int]:
        from evoclaw.observe.audit.records import unseal

        return [unseal(line).seq for line in await cold.find(chain, query)]

    assert await seqs(AuditQuery(run_id="run1", limit=3)) == [28, 25, 22]
    assert await seqs(AuditQuery(since=NOON + 5, until=NOON + 8)) == [7, 6, 5]
    assert await seqs(AuditQuery(text="ECHO 1", limit=100)) == [*range(19, 9, -1), 1]
    assert await seqs(AuditQuery(text="100% _")) == []
    assert await seqs(
        AuditQuery(user="ann", tenant="acme", tool="bash", verdict="allow", limit=1)
    ) == [30]
    assert await seqs(AuditQuery(tool="bash' OR 1=1 --")) == []
    assert await seqs(AuditQuery(agent_id="desktop-agent", kind="call", limit=2)) == [30, 29]


Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answering) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_post("/v2/pipeline", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


OK = '{"results":[{"type":"ok","response":{"type":"execute","result":{"rows":[]}}}]}'


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, "oops", "answered 500: oops"),
        (401, "who are you", "answered 401"),
        (302, "", "answered 302"),
        (200, "not json", "unreadable response"),
        (200, "[]", "unreadable response"),
        (200, "{}", "empty response"),
        (200, '{"results":[]}', "empty response"),
        (
            200,
            '{"results":[{"type":"error","error":{"message":"no such table"}}]}',
            "no such table",
        ),
        (200, '{"results":[{"type":"ok","response":{}}]}', "unreadable response"),
        (
            200,
            '{"results":[{"type":"ok","response":{"result":{"rows":[[{"x":1}]]}}}]}',
            "unreadable",
        ),
        (200, '{"results":[{"type":"ok","response":{"result":{"rows":[[1]]}}}]}', "unreadable"),
    ],
)
async def test_an_invalid_libsql_response_is_an_error(status: int, body: str, said: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
        return web.Response(status=status, text=body, headers=headers)

    async with answering(answer) as url:
        database = LibsqlColdDatabase(url)
        with pytest.raises(AuditError, match=said):
            await database.run("SELECT 1")
        await database.close()


async def test_the_libsql_token_is_sent_only_in_the_authorization_header(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers.get("Authorization", ""), await request.text()))
        return web.Response(text=OK, content_type="application/json")

    token = tmp_path / "token"
    token.write_text("t0ken-from-file\n")
    async with answering(answer) as url:
        for env, file in (({"EVOCLAW_AUDIT_TOKEN": "t0ken"}, ""), ({}, str(token))):
            cold = open_cold(tmp_path, AuditSettings(cold=url, cold_token_file=file), env)
            assert cold is not None
            await cold.prepare()
            assert "t0ken" not in cold.name
            await cold.close()
    assert {header for header, _ in seen} == {"Bearer t0ken", "Bearer t0ken-from-file"}
    assert not any("t0ken" in body for _, body in seen)


async def test_a_slow_or_unreachable_libsql_server_is_a_timely_error() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response(text=OK)

    async with answering(answer) as url:
        database = LibsqlColdDatabase(url, seconds=0.2)
        with pytest.raises(AuditError, match="cannot be reached"):
            await database.run("SELECT 1")
        await database.close()
    gone = LibsqlColdDatabase(url)
    with pytest.raises(AuditError, match="cannot be reached"):
        await gone.run("SELECT 1")
    await gone.close()


async def test_a_truncated_libsql_response_is_an_error() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"results":[')
        assert request.transport is not None
        request.transport.close()
        return response

    async with answering(answer) as url:
        database = LibsqlColdDatabase(url)
        with pytest.raises(AuditError):
            await database.run("SELECT 1")
        await database.close()


async def test_postgresql_without_psycopg_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match="pip install"):
        await PostgresColdDatabase("postgresql://h/db").run("SELECT 1")


async def test_an_invalid_sqlite_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cold.sqlite").write_text("this is no database, and long enough to be seen as none")
    database = SqliteColdDatabase(tmp_path / "cold.sqlite")
    with pytest.raises(AuditError, match="cannot be used"):
        await database.run("SELECT 1")
    await database.close()

"""Receives the notices of all processes that share a PostgreSQL, on one LISTEN connection.

A lost connection is made again; until then listeners poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib

import psycopg

from evoclaw.store.databases.notices import Kind, Notice, Notices, letters_of
from evoclaw.store.databases.postgres_link import Server

logger = logging.getLogger(__name__)
QUIET = 5.0
"""Seconds between two checks that the server still answers."""
ANSWER = 5.0
"""Seconds that the server has to answer such a check."""
FIRST, LAST = 0.1, 5.0
"""Seconds before the first attempt to reconnect, and at most before later ones."""


def channel_of(schema: str) -> str:
    """The NOTIFY channel of a schema."""
    return f"evoclaw_{zlib.crc32(schema.encode()):08x}"


async def listen(server: Server, notices: Notices) -> None:
    """Listen until cancelled."""
    pause = FIRST
    while True:
        try:
            connection = await server.connect_to_listen()
            async with connection:
                await _begin(connection, channel_of(server.schema), notices)
                notices.miss(reach=True)
                pause = FIRST
                await _hear(connection, notices)
        except (psycopg.Error, OSError, TimeoutError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            logger.info("%s: LISTEN failed, polling until reconnected: %s", server.name, reason)
        finally:
            if notices.reach:
                notices.miss(reach=False)
        # With jitter: many processes may have lost the same server.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LAST)


async def _begin(connection: psycopg.AsyncConnection, channel: str, notices: Notices) -> None:
    await connection.execute(f"LISTEN {channel}".encode())
    for payload in letters_of(notices.sender, [Notice(Kind.NEWCOMER, "", "")]):
        await connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))


async def _hear(connection: psycopg.AsyncConnection, notices: Notices) -> None:
    while True:
        async for notification in connection.notifies(timeout=QUIET):
            notices.receive(notification.payload)
        await _answered(connection, notices)


async def _answered(connection: psycopg.AsyncConnection, notices: Notices) -> None:
    """Check that the server answers: a network that drops every packet is silent, too."""
    check = asyncio.create_task(connection.execute(b"SELECT 1"))
    try:
        await asyncio.wait([check], timeout=ANSWER)
        if not check.done():
            # Listeners poll from now on; to close the connection may take a while.
            notices.miss(reach=False)
            raise TimeoutError("the server does not answer")
        check.result()
    finally:
        check.cancel()
        await asyncio.wait([check])

"""Hears what all who share a PostgreSQL write, as they commit it: one connection that listens.

If it breaks, it is made again; those who were to be told look for themselves meanwhile.
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
"""Seconds without a question after which the server is asked whether it is still there."""
ANSWER = 5.0
"""Seconds that it has to say so."""
FIRST, LAST = 0.1, 5.0
"""Seconds before the first and the later attempts to be connected again."""


def channel_of(schema: str) -> str:
    """The name under which those who share a schema tell each other."""
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
            words = " ".join(str(problem).split()) or type(problem).__name__
            logger.info("%s: what others write is looked for meanwhile: %s", server.name, words)
        finally:
            if notices.reach:
                notices.miss(reach=False)
        # Not all at once: there may be many who lost the same server.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LAST)


async def _begin(connection: psycopg.AsyncConnection, channel: str, notices: Notices) -> None:
    await connection.execute(f"LISTEN {channel}".encode())
    for letter in letters_of(notices.sender, [Notice(Kind.NEWCOMER, "", "")]):
        await connection.execute("SELECT pg_notify(%s, %s)", (channel, letter))


async def _hear(connection: psycopg.AsyncConnection, notices: Notices) -> None:
    while True:
        async for letter in connection.notifies(timeout=QUIET):
            notices.receive(letter.payload)
        await _answered(connection, notices)


async def _answered(connection: psycopg.AsyncConnection, notices: Notices) -> None:
    """Have the server say that it is there: a network that swallows everything is silent, too."""
    asking = asyncio.create_task(connection.execute(b"SELECT 1"))
    try:
        await asyncio.wait([asking], timeout=ANSWER)
        if not asking.done():
            # They look for themselves now; to leave the connection may take a while.
            notices.miss(reach=False)
            raise TimeoutError("the server does not answer")
        asking.result()
    finally:
        asking.cancel()
        await asyncio.wait([asking])

"""Receives the notices of all processes that share a PostgreSQL, on one LISTEN connection.

A lost connection is made again; until then listeners poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib

import psycopg

from evoclaw.store.databases.notices import Notice, NoticeKind, Notices, encode_payloads
from evoclaw.store.databases.postgres_connection import PostgresServer

logger = logging.getLogger(__name__)
KEEPALIVE_INTERVAL_S = 5.0
"""Seconds between two checks that the server still answers."""
KEEPALIVE_TIMEOUT_S = 5.0
"""Seconds that the server has to answer such a check."""
MIN_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.1, 5.0
"""Seconds before the first attempt to reconnect, and at most before later ones."""


def notify_channel(schema: str) -> str:
    """The NOTIFY channel of a schema."""
    return f"evoclaw_{zlib.crc32(schema.encode()):08x}"


async def listen(server: PostgresServer, notices: Notices) -> None:
    """Listen until cancelled."""
    pause = MIN_RECONNECT_DELAY_S
    while True:
        try:
            connection = await server.connect_to_listen()
            async with connection:
                await _subscribe(connection, notify_channel(server.schema), notices)
                notices.report_missed(is_live=True)
                pause = MIN_RECONNECT_DELAY_S
                await _receive_notices(connection, notices)
        except (psycopg.Error, OSError, TimeoutError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            logger.info("%s: LISTEN failed, polling until reconnected: %s", server.name, reason)
        finally:
            if notices.is_live:
                notices.report_missed(is_live=False)
        # With jitter: many processes may have lost the same server.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, MAX_RECONNECT_DELAY_S)


async def _subscribe(connection: psycopg.AsyncConnection, channel: str, notices: Notices) -> None:
    await connection.execute(f"LISTEN {channel}".encode())
    for payload in encode_payloads(notices.sender, [Notice(NoticeKind.LISTENER_JOINED, "", "")]):
        await connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))


async def _receive_notices(connection: psycopg.AsyncConnection, notices: Notices) -> None:
    while True:
        async for notification in connection.notifies(timeout=KEEPALIVE_INTERVAL_S):
            notices.receive(notification.payload)
        await _check_alive(connection, notices)


async def _check_alive(connection: psycopg.AsyncConnection, notices: Notices) -> None:
    """Check that the server answers: a network that drops every packet is silent, too."""
    check = asyncio.create_task(connection.execute(b"SELECT 1"))
    try:
        await asyncio.wait([check], timeout=KEEPALIVE_TIMEOUT_S)
        if not check.done():
            # Listeners poll from now on; to close the connection may take a while.
            notices.report_missed(is_live=False)
            raise TimeoutError("the server does not answer")
        check.result()
    finally:
        check.cancel()
        await asyncio.wait([check])

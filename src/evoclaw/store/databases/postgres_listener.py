"""Receives the notices of all processes that share a PostgreSQL, on one LISTEN connection.

A lost connection is made again; until then listeners poll.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import zlib
from collections.abc import Sequence

import psycopg

from evoclaw.store.databases.notices import Notice, NoticeKind, Notices, encode_payloads
from evoclaw.store.databases.postgres_connection import PostgresServer

logger = logging.getLogger(__name__)
KEEPALIVE_INTERVAL_S = 5.0
"""Seconds between two checks that the server still answers."""
KEEPALIVE_TIMEOUT_S = 5.0
"""Seconds that the server has to answer such a check."""
NOTICE_DELAY_S = 0.005
"""Seconds to wait for more notices before some are sent."""
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
                channel = notify_channel(server.schema)
                await _subscribe(connection, channel, notices)
                notices.report_missed(is_live=True)
                pause = MIN_RECONNECT_DELAY_S
                await _receive_notices(connection, channel, notices)
        except (psycopg.Error, OSError, TimeoutError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            logger.info("%s: LISTEN failed, polling until reconnected: %s", server.name, reason)
        finally:
            if notices.is_live:
                notices.report_missed(is_live=False)
        # With jitter: many processes may have lost the same server.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, MAX_RECONNECT_DELAY_S)


class NoticeSender:
    """Sends notices on a connection of its own, many at a time.

    Not with the commit: PostgreSQL lets only one transaction with a NOTIFY commit at a time.
    """

    def __init__(self, server: PostgresServer, notices: Notices) -> None:
        self._server, self._sender = server, notices.sender
        self._channel = notify_channel(server.schema)
        self._waiting: list[Notice] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: psycopg.AsyncConnection | None = None

    def send(self, notices: Sequence[Notice]) -> None:
        """Send notices soon; those that cannot be sent are found by polling."""
        if notices:
            self._waiting.extend(notices)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._send_all(), name="send notices")

    async def close(self) -> None:
        """Send the last ones and end."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=KEEPALIVE_TIMEOUT_S)
            self._task.cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _send_all(self) -> None:
        await asyncio.sleep(NOTICE_DELAY_S)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                if self._connection is None:
                    self._connection = await self._server.connect_to_listen()
                for payload in encode_payloads(self._sender, batch):
                    values = (self._channel, payload)
                    await self._connection.execute("SELECT pg_notify(%s, %s)", values)
            except (psycopg.Error, OSError) as problem:
                logger.info("%s: notices were not sent: %s", self._server.name, problem)
                if self._connection is not None:
                    await self._connection.close()
                self._connection = None


async def _subscribe(connection: psycopg.AsyncConnection, channel: str, notices: Notices) -> None:
    await connection.execute(f"LISTEN {channel}".encode())
    await _tell_others(connection, channel, notices, NoticeKind.LISTENER_JOINED)


async def _tell_others(
    connection: psycopg.AsyncConnection, channel: str, notices: Notices, kind: NoticeKind
) -> None:
    for payload in encode_payloads(notices.sender, [Notice(kind, "", "")]):
        await connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))


async def _receive_notices(
    connection: psycopg.AsyncConnection, channel: str, notices: Notices
) -> None:
    while True:
        next_check_at = time.monotonic() + KEEPALIVE_INTERVAL_S
        while (left := next_check_at - time.monotonic()) > 0:
            async for notification in connection.notifies(timeout=left, stop_after=100):
                notices.receive(notification.payload)
        await _check_alive(connection, channel, notices)


async def _check_alive(connection: psycopg.AsyncConnection, channel: str, notices: Notices) -> None:
    """Tell others that this process listens, and check that the server answers.

    A network that drops every packet is silent, too.
    """
    telling = _tell_others(connection, channel, notices, NoticeKind.LISTENING)
    check = asyncio.create_task(telling)
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

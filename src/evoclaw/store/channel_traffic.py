"""What a channel received and sent last, and the answers that could not be delivered."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from evoclaw.store.channels import DELIVERY_ENDED, MESSAGE_ENDED, MESSAGE_OPEN
from evoclaw.store.databases.database import Connection, Database

# Two statements: each uses the index with its condition.
_LAST_RECEIVED = tuple(
    f"SELECT max(taken_at) FROM channel_letters WHERE channel = ? AND {condition}"
    for condition in (MESSAGE_OPEN, MESSAGE_ENDED)
)
_LAST_SENT = (
    "SELECT max(ended_at) FROM channel_deliveries "
    f"WHERE channel = ? AND {DELIVERY_ENDED} AND state = 'sent'"
)
_COUNT_RETRYING = (
    "SELECT count(*) FROM channel_deliveries WHERE channel = ? AND state = 'due' AND problem <> ''"
)
_COUNT_DEAD = (
    "SELECT count(*) FROM channel_deliveries "
    f"WHERE channel = ? AND {DELIVERY_ENDED} AND state = 'dead'"
)
_LAST_PROBLEM = (
    "SELECT problem, coalesce(ended_at, made_at) FROM channel_deliveries "
    "WHERE channel = ? AND problem <> '' ORDER BY seq DESC LIMIT 1"
)


class ChannelTraffic(Struct, frozen=True):
    """The last messages of a channel, as far as they are stored; old ones are deleted."""

    last_received_at: float | None
    last_sent_at: float | None
    retrying: int
    """Answers that could not be delivered yet."""
    given_up: int
    """Answers that could not be delivered, and are not retried."""
    problem: str
    """Why the last of these answers could not be delivered."""
    problem_at: float | None


async def read_traffic(database: Database, channel: str) -> ChannelTraffic:
    """The traffic of a channel, of all processes that share the database."""

    def work(connection: Connection) -> ChannelTraffic:
        def value(statement: str) -> Any:
            return connection.execute(statement, (channel,)).fetchone()[0]

        received = [value(statement) for statement in _LAST_RECEIVED]
        problem, problem_at = connection.execute(_LAST_PROBLEM, (channel,)).fetchone() or ("", None)
        return ChannelTraffic(
            max((at for at in received if at is not None), default=None),
            value(_LAST_SENT),
            value(_COUNT_RETRYING),
            value(_COUNT_DEAD),
            problem,
            problem_at,
        )

    return await database.read(work)

"""The inbound messages of channels and the deliveries of answers, so that a restart loses neither.

A message is stored before it is handled, under the id that its sender gave it, so that a duplicate
is recognised. An answer is stored until it is delivered or given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    open_blob,
    seal_blob,
)

GENERATED_ID_PREFIX = "text-"
"""The start of the id of a message whose sender chose none; it never comes again."""
DELETE_BATCH_ROWS = 500
"""Rows that are deleted in one transaction, so that others can write in between."""
# A statement uses the index with a condition only if it has the same condition.
MESSAGE_OPEN = "state IN ('taken', 'started')"
MESSAGE_ENDED = "state IN ('done', 'failed')"
_ID_GENERATED = "id >= 'text-' AND id < 'text.'"
DELIVERY_ENDED = "state <> 'due'"
SCHEMA = Schema(
    "channels",
    (
        (
            """CREATE TABLE channel_conversations (
                tenant TEXT NOT NULL, channel TEXT NOT NULL, sender TEXT NOT NULL,
                conversation TEXT NOT NULL, session_id TEXT NOT NULL, made_at REAL NOT NULL,
                PRIMARY KEY (tenant, channel, sender, conversation)
            ) STRICT""",
            """CREATE TABLE channel_letters (
                seq INTEGER PRIMARY KEY,
                tenant TEXT NOT NULL,
                channel TEXT NOT NULL,
                sender TEXT NOT NULL,
                id TEXT NOT NULL,
                sha256 TEXT NOT NULL,
                letter BLOB NOT NULL,
                session_id TEXT NOT NULL,
                run_id TEXT NOT NULL DEFAULT '',
                state TEXT NOT NULL,
                taken_at REAL NOT NULL,
                UNIQUE (tenant, channel, sender, id)
            ) STRICT""",
            "CREATE INDEX channel_letters_open ON channel_letters (channel, seq) "
            f"WHERE {MESSAGE_OPEN}",
            # For the retention: messages that are over, and those whose id the channel made up.
            "CREATE INDEX channel_letters_ended ON channel_letters (channel, taken_at) "
            f"WHERE {MESSAGE_ENDED}",
            "CREATE INDEX channel_letters_generated ON channel_letters (taken_at) "
            f"WHERE {MESSAGE_ENDED} AND {_ID_GENERATED}",
            """CREATE TABLE channel_deliveries (
                seq INTEGER PRIMARY KEY,
                tenant TEXT NOT NULL,
                id TEXT NOT NULL,
                channel TEXT NOT NULL,
                letter INTEGER NOT NULL,
                answer BLOB NOT NULL,
                state TEXT NOT NULL,
                attempts INTEGER NOT NULL DEFAULT 0,
                next_at REAL NOT NULL,
                made_at REAL NOT NULL,
                ended_at REAL,
                problem TEXT NOT NULL DEFAULT '',
                UNIQUE (tenant, id)
            ) STRICT""",
            "CREATE INDEX channel_deliveries_due ON channel_deliveries (channel, next_at) "
            "WHERE state = 'due'",
            "CREATE INDEX channel_deliveries_of ON channel_deliveries (letter, seq)",
            "CREATE INDEX channel_deliveries_ended ON channel_deliveries (ended_at) "
            f"WHERE {DELIVERY_ENDED}",
        ),
        (
            """CREATE TABLE channel_state (
                channel TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
                changed_at REAL NOT NULL, PRIMARY KEY (channel, name)
            ) STRICT""",
        ),
        (
            """CREATE TABLE channel_receivers (
                channel TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL, lease_until REAL NOT NULL
            ) STRICT""",
        ),
    ),
    checksummed=(("channel_letters", ("letter",)), ("channel_deliveries", ("answer",))),
    sealed=True,
    foreign_keys=(("channel_deliveries", "letter", "channel_letters"),),
)
TAKEN, STARTED, FAILED, DONE = "taken", "started", "failed", "done"
"""States of a message: stored; a run answers it; no run could start, it may be sent again; done."""
DUE, SENT, DEAD = "due", "sent", "dead"
"""States of a delivery: to be sent; delivered; given up."""

_WITHOUT_DELIVERIES = (
    "NOT EXISTS (SELECT 1 FROM channel_deliveries d WHERE d.letter = channel_letters.seq)"
)
_DELETE_DELIVERIES = (
    "DELETE FROM channel_deliveries WHERE seq IN (SELECT seq FROM channel_deliveries "
    f"WHERE {DELIVERY_ENDED} AND ended_at < ? LIMIT ?)"
)
_DELETE_GENERATED = (
    "DELETE FROM channel_letters WHERE seq IN (SELECT seq FROM channel_letters "
    f"WHERE {MESSAGE_ENDED} AND {_ID_GENERATED} AND taken_at < ? AND {_WITHOUT_DELIVERIES} "
    "LIMIT ?)"
)
_DELETE_OF_CHANNEL = (
    "DELETE FROM channel_letters WHERE seq IN (SELECT seq FROM channel_letters "
    f"WHERE {MESSAGE_ENDED} AND channel = ? AND taken_at < ? AND {_WITHOUT_DELIVERIES} LIMIT ?)"
)
_MESSAGE_COLUMNS = (
    "seq, tenant, channel, sender, id, sha256, letter, session_id, run_id, state, taken_at"
)
_FIND_MESSAGE = (
    f"SELECT {_MESSAGE_COLUMNS} FROM channel_letters "
    "WHERE tenant = ? AND channel = ? AND sender = ? AND id = ?"
)
_DELIVERY_COLUMNS = (
    "d.seq, d.tenant, d.id, d.channel, d.answer, d.state, d.attempts, d.next_at, d.made_at, "
    "d.problem, l.letter"
)
_FROM_DELIVERIES = "FROM channel_deliveries d JOIN channel_letters l ON l.seq = d.letter"
# The answers to one message are delivered in order.
_NO_EARLIER_DUE = (
    "NOT EXISTS (SELECT 1 FROM channel_deliveries e "
    "WHERE e.letter = d.letter AND e.seq < d.seq AND e.state = 'due')"
)


class NewInboundMessage(Struct, frozen=True):
    """An inbound message to store."""

    tenant: str
    channel: str
    sender: str
    id: str
    conversation: str
    sha256: str
    """The hash of its content: the same id must have the same content."""
    message: bytes
    session_id: str
    """The session to start, if the conversation has none yet."""


class StoredInboundMessage(Struct, frozen=True):
    """A stored inbound message."""

    seq: int
    tenant: str
    channel: str
    sender: str
    id: str
    sha256: str
    message: bytes
    session_id: str
    run_id: str
    state: str
    taken_at: float


class StoredDelivery(Struct, frozen=True):
    """An answer to deliver, or that was delivered or given up."""

    seq: int
    tenant: str
    id: str
    channel: str
    answer: bytes
    state: str
    attempts: int
    next_at: float
    made_at: float
    problem: str
    """Why the last attempt failed."""
    message: bytes


class ChannelStore:
    """The inbound messages and deliveries of all channels; a channel belongs to one tenant."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database, self.clock = database, clock

    async def add_message(self, new: NewInboundMessage) -> tuple[StoredInboundMessage, bool]:
        """Store a message; True if it is to be answered now, False for a duplicate.

        A message for which no run could start may be sent again.
        """
        key = (new.tenant, new.channel, new.sender, new.id)

        def work(connection: Connection) -> tuple[StoredInboundMessage, bool]:
            session = self._session_id(connection, new)
            fresh = connection.execute(
                "INSERT INTO channel_letters (tenant, channel, sender, id, sha256, letter, "
                "session_id, state, taken_at) VALUES (?, ?, ?, ?, ?, ?, ?, 'taken', ?) "
                "ON CONFLICT (tenant, channel, sender, id) DO NOTHING",
                (*key, new.sha256, seal_blob(self.database, new.message), session, self.clock()),
            ).rowcount
            fresh = (
                fresh
                or connection.execute(
                    "UPDATE channel_letters SET state = 'taken' WHERE tenant = ? AND channel = ? "
                    "AND sender = ? AND id = ? AND sha256 = ? AND state = 'failed'",
                    (*key, new.sha256),
                ).rowcount
            )
            return self._message(connection.execute(_FIND_MESSAGE, key).fetchone()), bool(fresh)

        return await self.database.write(work)

    def _session_id(self, connection: Connection, new: NewInboundMessage) -> str:
        key = (new.tenant, new.channel, new.sender, new.conversation)
        connection.execute(
            "INSERT INTO channel_conversations VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, channel, sender, conversation) DO NOTHING",
            (*key, new.session_id, self.clock()),
        )
        (session,) = connection.execute(
            "SELECT session_id FROM channel_conversations "
            "WHERE tenant = ? AND channel = ? AND sender = ? AND conversation = ?",
            key,
        ).fetchone()
        return str(session)

    async def move_conversation(
        self, message: StoredInboundMessage, conversation: str, session_id: str
    ) -> None:
        """Give a conversation another session; its next messages go there."""
        statement = (
            "UPDATE channel_conversations SET session_id = ? "
            "WHERE tenant = ? AND channel = ? AND sender = ? AND conversation = ?"
        )
        values = (session_id, message.tenant, message.channel, message.sender, conversation)
        await self.database.write(lambda c: c.execute(statement, values))

    async def read_state(self, channel: str, name: str) -> str:
        """A value that a channel stored; empty if there is none."""
        statement = "SELECT value FROM channel_state WHERE channel = ? AND name = ?"
        row = await self.database.read(lambda c: c.execute(statement, (channel, name)).fetchone())
        return "" if row is None else str(row[0])

    async def list_state(self, channel: str, prefix: str) -> dict[str, str]:
        """The values of a channel whose names start so."""
        statement = "SELECT name, value FROM channel_state WHERE channel = ? ORDER BY name"
        rows = await self.database.read(lambda c: c.execute(statement, (channel,)).fetchall())
        return {str(name): str(value) for name, value in rows if str(name).startswith(prefix)}

    async def write_state(self, channel: str, name: str, value: str) -> None:
        """Store a value of a channel."""
        statement = (
            "INSERT INTO channel_state VALUES (?1, ?2, ?3, ?4) ON CONFLICT (channel, name) "
            "DO UPDATE SET value = ?3, changed_at = ?4"
        )
        values = (channel, name, value, self.clock())
        await self.database.write(lambda c: c.execute(statement, values))

    async def add_state(self, channel: str, name: str, value: str) -> bool:
        """Store a value of a channel once; False if it has one of this name."""
        statement = (
            "INSERT INTO channel_state VALUES (?, ?, ?, ?) ON CONFLICT (channel, name) DO NOTHING"
        )
        values = (channel, name, value, self.clock())
        return await self.database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def delete_state(self, channel: str, name: str) -> bool:
        """Delete a value of a channel; False if there is none."""
        statement = "DELETE FROM channel_state WHERE channel = ? AND name = ?"
        values = (channel, name)
        return await self.database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def claim_receiver(self, channel: str, holder: str, lease_s: float) -> bool:
        """Claim the messages of a channel for one process, or renew that; False if another has it.

        Args:
            channel: The channel.
            holder: The process.
            lease_s: Seconds until the claim expires, unless it is renewed.
        """
        statement = (
            "INSERT INTO channel_receivers VALUES (?1, ?2, ?3) ON CONFLICT (channel) DO UPDATE "
            "SET holder = ?2, lease_until = ?3 "
            "WHERE channel_receivers.holder = ?2 OR channel_receivers.lease_until <= ?4"
        )
        now = self.clock()
        values = (channel, holder, now + lease_s, now)
        return await self.database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def receiver(self, channel: str) -> str:
        """The process that has the messages of a channel, or had them last; empty if none."""
        statement = "SELECT holder FROM channel_receivers WHERE channel = ?"
        row = await self.database.read(lambda c: c.execute(statement, (channel,)).fetchone())
        return "" if row is None else row[0]

    async def release_receiver(self, channel: str, holder: str) -> None:
        """Give up a claim, if this process still has it."""
        statement = "DELETE FROM channel_receivers WHERE channel = ? AND holder = ?"
        await self.database.write(lambda c: c.execute(statement, (channel, holder)))

    async def find_message(
        self, tenant: str, channel: str, sender: str, id_: str
    ) -> StoredInboundMessage | None:
        """A stored message, by the id that its sender gave it."""
        key = (tenant, channel, sender, id_)
        row = await self.database.read(lambda c: c.execute(_FIND_MESSAGE, key).fetchone())
        return None if row is None else self._message(row)

    async def mark_started(self, seq: int, run_id: str) -> None:
        """Record that a run answers a message."""
        statement = "UPDATE channel_letters SET state = 'started', run_id = ? WHERE seq = ?"
        await self.database.write(lambda c: c.execute(statement, (run_id, seq)))

    async def open_messages(self, channels: Sequence[str]) -> Sequence[StoredInboundMessage]:
        """The messages of these channels without a final answer, oldest first."""
        if not channels:
            return ()
        statement = (
            f"SELECT {_MESSAGE_COLUMNS} FROM channel_letters WHERE state IN ('taken', 'started') "
            f"AND channel IN ({', '.join('?' * len(channels))}) ORDER BY seq"
        )
        rows = await self.database.read(lambda c: c.execute(statement, channels).fetchall())
        return [self._message(row) for row in rows]

    async def add_delivery(
        self, message: StoredInboundMessage, id_: str, answer: bytes, *, message_state: str = ""
    ) -> bool:
        """Store an answer until it is delivered; False if it was stored before.

        Args:
            message: The message that it answers.
            id_: The id of the answer, which is the same after a restart.
            answer: The content.
            message_state: The final state of the message, `DONE` or `FAILED`, if this ends it.
        """
        now = self.clock()
        put = (
            "INSERT INTO channel_deliveries "
            "(tenant, id, channel, letter, answer, state, next_at, made_at) "
            "VALUES (?, ?, ?, ?, ?, 'due', ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
        )
        values = (
            message.tenant,
            id_,
            message.channel,
            message.seq,
            seal_blob(self.database, answer),
            now,
            now,
        )

        def work(connection: Connection) -> bool:
            fresh = connection.execute(put, values).rowcount
            if message_state:
                connection.execute(
                    "UPDATE channel_letters SET state = ? WHERE seq = ?",
                    (message_state, message.seq),
                )
            return bool(fresh)

        return await self.database.write(work)

    async def mark_done(self, seq: int, run_id: str) -> None:
        """Close a message without an answer: it was the reply to a question of this run."""
        statement = "UPDATE channel_letters SET state = 'done', run_id = ? WHERE seq = ?"
        await self.database.write(lambda c: c.execute(statement, (run_id, seq)))

    async def claim_deliveries(
        self, channels: Sequence[str], lease_s: float, limit: int
    ) -> tuple[Sequence[StoredDelivery], float | None]:
        """Claim due deliveries; and when the next one is due.

        The caller has them for the time of the lease; one that is not settled by then is due again.

        Args:
            channels: The channels.
            lease_s: Seconds in which the caller settles them.
            limit: How many at most.
        """
        if not channels:
            return (), None
        marks, now = ", ".join("?" * len(channels)), self.clock()
        where = f"WHERE d.state = 'due' AND d.channel IN ({marks}) AND {_NO_EARLIER_DUE}"
        due = f"{where} AND d.next_at <= ? ORDER BY d.next_at LIMIT ?"
        find = f"SELECT {_DELIVERY_COLUMNS} {_FROM_DELIVERIES} {due}"
        take = (
            "UPDATE channel_deliveries SET next_at = ?, attempts = attempts + 1 "
            "WHERE seq = ? AND state = 'due' AND next_at = ?"
        )

        def work(connection: Connection) -> tuple[Sequence[StoredDelivery], float | None]:
            found = connection.execute(find, (*channels, now, limit)).fetchall()
            claimed = [
                self._delivery(row)
                for row in found
                # Another orchestrator may have claimed it first.
                if connection.execute(take, (now + lease_s, row[0], row[7])).rowcount
            ]
            (next_at,) = connection.execute(
                f"SELECT min(d.next_at) FROM channel_deliveries d {where}", tuple(channels)
            ).fetchone()
            return claimed, next_at

        return await self.database.write(work)

    async def settle_delivery(
        self, delivery: StoredDelivery, state: str, problem: str = "", next_at: float = 0.0
    ) -> None:
        """Record the result of a delivery: `SENT`, `DEAD`, or `DUE` again at `next_at`.

        An attempt that failed counts only if no other process has claimed the delivery since.
        """
        ended = None if state == DUE else self.clock()
        statement = (
            "UPDATE channel_deliveries SET state = ?1, problem = ?2, next_at = ?3, ended_at = ?4 "
            "WHERE seq = ?5 AND state = 'due' AND (?1 = 'sent' OR attempts = ?6)"
        )
        # The stored count does not include the attempt of the caller.
        values = (state, problem, next_at, ended, delivery.seq, delivery.attempts + 1)
        await self.database.write(lambda c: c.execute(statement, values))

    async def retry_now(self, channel: str) -> None:
        """Make all deliveries of a channel due now, after it works again."""
        statement = (
            "UPDATE channel_deliveries SET next_at = ?1 "
            "WHERE channel = ?2 AND state = 'due' AND next_at > ?1"
        )
        await self.database.write(lambda c: c.execute(statement, (self.clock(), channel)))

    async def redeliver_last(self, message: StoredInboundMessage) -> bool:
        """Deliver the last answer to a message again; False if there is none."""
        statement = (
            "UPDATE channel_deliveries SET state = 'due', next_at = ?1, made_at = ?1, "
            "attempts = 0, ended_at = NULL WHERE state <> 'due' AND seq = "
            "(SELECT max(seq) FROM channel_deliveries WHERE letter = ?2)"
        )
        values = (self.clock(), message.seq)
        return await self.database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def deliveries(
        self, tenant: str, state: str = DEAD, limit: int = 100
    ) -> Sequence[StoredDelivery]:
        """The deliveries of a tenant in a state, newest first."""
        statement = (
            f"SELECT {_DELIVERY_COLUMNS} {_FROM_DELIVERIES} WHERE d.tenant = ? AND d.state = ? "
            "ORDER BY d.seq DESC LIMIT ?"
        )
        values = (tenant, state, limit)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [self._delivery(row) for row in rows]

    async def retry_dead(self, tenant: str, id_: str) -> bool:
        """Retry a delivery that was given up; False if there is none with this id."""
        statement = (
            "UPDATE channel_deliveries SET state = 'due', next_at = ?1, made_at = ?1, "
            "attempts = 0, ended_at = NULL WHERE tenant = ?2 AND id = ?3 AND state = 'dead'"
        )
        values = (self.clock(), tenant, id_)
        return await self.database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def count_due(self) -> int:
        """How many answers are still to be delivered."""
        statement = "SELECT count(*) FROM channel_deliveries WHERE state = 'due'"
        (count,) = await self.database.read(lambda c: c.execute(statement).fetchone())
        return int(count)

    async def prune(self, before: float, channels: Sequence[str]) -> int:
        """Delete what ended before a time; how many messages.

        Args:
            before: Unix seconds.
            channels: The channels whose messages cannot be sent again after so long; of others only
                the deliveries and the messages without an id of their sender are deleted, so that
                duplicates are always recognised.
        """
        await self._delete(_DELETE_DELIVERIES, before)
        deleted = await self._delete(_DELETE_GENERATED, before)
        for channel in channels:
            deleted += await self._delete(_DELETE_OF_CHANNEL, channel, before)
        return deleted

    async def _delete(self, statement: str, *values: object) -> int:
        """Delete in batches, a transaction for each; how many rows."""
        deleted, last = 0, DELETE_BATCH_ROWS
        while last == DELETE_BATCH_ROWS:
            last = await self.database.write(
                lambda c: c.execute(statement, (*values, DELETE_BATCH_ROWS)).rowcount
            )
            deleted += last
        return deleted

    def _message(self, row: Sequence[Any]) -> StoredInboundMessage:
        seq, tenant, channel, sender, id_, sha256, letter, session, run_id, state, taken_at = row
        message = open_blob(self.database, letter)
        return StoredInboundMessage(
            seq, tenant, channel, sender, id_, sha256, message, session, run_id, state, taken_at
        )

    def _delivery(self, row: Sequence[Any]) -> StoredDelivery:
        seq, tenant, id_, channel, answer, state, attempts, next_at, made_at, problem, letter = row
        answer, message = (open_blob(self.database, blob) for blob in (answer, letter))
        return StoredDelivery(
            seq, tenant, id_, channel, answer, state, attempts, next_at, made_at, problem, message
        )

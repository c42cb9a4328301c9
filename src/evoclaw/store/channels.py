"""What came in over channels and what is owed to whoever sent it, so that a restart loses neither.

A letter is kept before anything is done about it, under the sender's own id, so that one that comes
twice is seen. An answer is kept until it was delivered, or was given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import Connection, Database, Schema, sealed, unsealed

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
            "WHERE state IN ('taken', 'started')",
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
        ),
    ),
    sealed=(("channel_letters", ("letter",)), ("channel_deliveries", ("answer",))),
    refers=(("channel_deliveries", "letter", "channel_letters"),),
)
TAKEN, STARTED, FAILED, DONE = "taken", "started", "failed", "done"
"""What became of a letter: kept; a run answers it; none could begin, it may come again; ended."""
DUE, SENT, DEAD = "due", "sent", "dead"
"""What became of an answer: owed; delivered; given up."""

_LETTER = "seq, tenant, channel, sender, id, sha256, letter, session_id, run_id, state, taken_at"
_FIND = (
    f"SELECT {_LETTER} FROM channel_letters "
    "WHERE tenant = ? AND channel = ? AND sender = ? AND id = ?"
)
_DELIVERY = (
    "d.seq, d.tenant, d.id, d.channel, d.answer, d.state, d.attempts, d.next_at, d.made_at, "
    "d.problem, l.letter"
)
_FROM = "FROM channel_deliveries d JOIN channel_letters l ON l.seq = d.letter"
# What was said first about a letter is delivered first.
_IN_TURN = (
    "NOT EXISTS (SELECT 1 FROM channel_deliveries e "
    "WHERE e.letter = d.letter AND e.seq < d.seq AND e.state = 'due')"
)


class NewLetter(Struct, frozen=True):
    """A letter as it came."""

    tenant: str
    channel: str
    sender: str
    id: str
    conversation: str
    sha256: str
    """Of what it says: the same id must mean the same."""
    letter: bytes
    session_id: str
    """Of the session to begin, if the conversation has none yet."""


class StoredLetter(Struct, frozen=True):
    """A letter that was kept."""

    seq: int
    tenant: str
    channel: str
    sender: str
    id: str
    sha256: str
    letter: bytes
    session_id: str
    run_id: str
    state: str
    taken_at: float


class StoredDelivery(Struct, frozen=True):
    """An answer that is owed, or was."""

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
    """Why it was not delivered the last time."""
    letter: bytes


class ChannelStore:
    """The letters and deliveries of all channels; a channel belongs to one tenant."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self.clock = database, clock

    async def keep(self, new: NewLetter) -> tuple[StoredLetter, bool]:
        """Keep a letter, and whether it is to be answered now: not so if it came before.

        One for which no run could begin may come again.
        """
        key = (new.tenant, new.channel, new.sender, new.id)

        def work(connection: Connection) -> tuple[StoredLetter, bool]:
            session = self._session(connection, new)
            fresh = connection.execute(
                "INSERT INTO channel_letters (tenant, channel, sender, id, sha256, letter, "
                "session_id, state, taken_at) VALUES (?, ?, ?, ?, ?, ?, ?, 'taken', ?) "
                "ON CONFLICT (tenant, channel, sender, id) DO NOTHING",
                (*key, new.sha256, sealed(new.letter), session, self.clock()),
            ).rowcount
            fresh = (
                fresh
                or connection.execute(
                    "UPDATE channel_letters SET state = 'taken' WHERE tenant = ? AND channel = ? "
                    "AND sender = ? AND id = ? AND sha256 = ? AND state = 'failed'",
                    (*key, new.sha256),
                ).rowcount
            )
            return self._letter(connection.execute(_FIND, key).fetchone()), bool(fresh)

        return await self._database.write(work)

    def _session(self, connection: Connection, new: NewLetter) -> str:
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

    async def find(self, tenant: str, channel: str, sender: str, id_: str) -> StoredLetter | None:
        """A letter that was kept, by the sender's own id."""
        key = (tenant, channel, sender, id_)
        row = await self._database.read(lambda c: c.execute(_FIND, key).fetchone())
        return None if row is None else self._letter(row)

    async def started(self, seq: int, run_id: str) -> None:
        """A run answers a letter."""
        statement = "UPDATE channel_letters SET state = 'started', run_id = ? WHERE seq = ?"
        await self._database.write(lambda c: c.execute(statement, (run_id, seq)))

    async def open_letters(self, channels: Sequence[str]) -> Sequence[StoredLetter]:
        """Letters of these channels that nobody was told the end of, in the order they came."""
        if not channels:
            return ()
        statement = (
            f"SELECT {_LETTER} FROM channel_letters WHERE state IN ('taken', 'started') "
            f"AND channel IN ({', '.join('?' * len(channels))}) ORDER BY seq"
        )
        rows = await self._database.read(lambda c: c.execute(statement, channels).fetchall())
        return [self._letter(row) for row in rows]

    async def owe(self, letter: StoredLetter, id_: str, answer: bytes, *, closes: str = "") -> bool:
        """Keep an answer until it was delivered; False if that one was kept before.

        Args:
            letter: What it is about.
            id_: The answer's own; the same after a restart.
            answer: What to deliver.
            closes: What has become of the letter with this, `DONE` or `FAILED`.
        """
        now = self.clock()
        put = (
            "INSERT INTO channel_deliveries "
            "(tenant, id, channel, letter, answer, state, next_at, made_at) "
            "VALUES (?, ?, ?, ?, ?, 'due', ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
        )
        values = (letter.tenant, id_, letter.channel, letter.seq, sealed(answer), now, now)

        def work(connection: Connection) -> bool:
            fresh = connection.execute(put, values).rowcount
            if closes:
                connection.execute(
                    "UPDATE channel_letters SET state = ? WHERE seq = ?", (closes, letter.seq)
                )
            return bool(fresh)

        return await self._database.write(work)

    async def closed(self, seq: int, run_id: str) -> None:
        """A letter needs no answer of its own: it was one to a question of this run."""
        statement = "UPDATE channel_letters SET state = 'done', run_id = ? WHERE seq = ?"
        await self._database.write(lambda c: c.execute(statement, (run_id, seq)))

    async def claim(
        self, channels: Sequence[str], lease: float, most: int
    ) -> tuple[Sequence[StoredDelivery], float | None]:
        """Answers to deliver now, and when the next one is due.

        Those are left to the caller for a while; what nobody has settled by then is due again.

        Args:
            channels: Whose.
            lease: Seconds in which they are settled.
            most: How many.
        """
        if not channels:
            return (), None
        marks, now = ", ".join("?" * len(channels)), self.clock()
        where = f"WHERE d.state = 'due' AND d.channel IN ({marks}) AND {_IN_TURN}"
        find = f"SELECT {_DELIVERY} {_FROM} {where} AND d.next_at <= ? ORDER BY d.next_at LIMIT ?"
        take = (
            "UPDATE channel_deliveries SET next_at = ?, attempts = attempts + 1 "
            "WHERE seq = ? AND state = 'due' AND next_at = ?"
        )

        def work(connection: Connection) -> tuple[Sequence[StoredDelivery], float | None]:
            found = connection.execute(find, (*channels, now, most)).fetchall()
            mine = [
                self._delivery(row)
                for row in found
                # Another orchestrator may have been quicker.
                if connection.execute(take, (now + lease, row[0], row[7])).rowcount
            ]
            (next_at,) = connection.execute(
                f"SELECT min(d.next_at) FROM channel_deliveries d {where}", tuple(channels)
            ).fetchone()
            return mine, next_at

        return await self._database.write(work)

    async def settle(self, seq: int, state: str, problem: str = "", next_at: float = 0.0) -> None:
        """Note how a delivery went: it is `SENT`, `DEAD`, or `DUE` again at that time."""
        ended = None if state == DUE else self.clock()
        statement = (
            "UPDATE channel_deliveries SET state = ?, problem = ?, next_at = ?, ended_at = ? "
            "WHERE seq = ? AND state = 'due'"
        )
        values = (state, problem, next_at, ended, seq)
        await self._database.write(lambda c: c.execute(statement, values))

    async def hurry(self, channel: str) -> None:
        """The way is free again: what is owed there is due now."""
        statement = (
            "UPDATE channel_deliveries SET next_at = ?1 "
            "WHERE channel = ?2 AND state = 'due' AND next_at > ?1"
        )
        await self._database.write(lambda c: c.execute(statement, (self.clock(), channel)))

    async def say_again(self, letter: StoredLetter) -> bool:
        """Deliver the last thing that was said about a letter once more; False if nothing was."""
        statement = (
            "UPDATE channel_deliveries SET state = 'due', next_at = ?1, made_at = ?1, "
            "attempts = 0, ended_at = NULL WHERE state <> 'due' AND seq = "
            "(SELECT max(seq) FROM channel_deliveries WHERE letter = ?2)"
        )
        values = (self.clock(), letter.seq)
        return await self._database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def deliveries(
        self, tenant: str, state: str = DEAD, limit: int = 100
    ) -> Sequence[StoredDelivery]:
        """Answers to a tenant's people that are in this state, the newest first."""
        statement = (
            f"SELECT {_DELIVERY} {_FROM} WHERE d.tenant = ? AND d.state = ? "
            "ORDER BY d.seq DESC LIMIT ?"
        )
        values = (tenant, state, limit)
        rows = await self._database.read(lambda c: c.execute(statement, values).fetchall())
        return [self._delivery(row) for row in rows]

    async def revive(self, tenant: str, id_: str) -> bool:
        """Try again to deliver what was given up; False if there is no such answer."""
        statement = (
            "UPDATE channel_deliveries SET state = 'due', next_at = ?1, made_at = ?1, "
            "attempts = 0, ended_at = NULL WHERE tenant = ?2 AND id = ?3 AND state = 'dead'"
        )
        values = (self.clock(), tenant, id_)
        return await self._database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def waiting(self) -> int:
        """How many answers are owed."""
        statement = "SELECT count(*) FROM channel_deliveries WHERE state = 'due'"
        (count,) = await self._database.read(lambda c: c.execute(statement).fetchone())
        return int(count)

    async def forget(self, before: float, channels: Sequence[str]) -> int:
        """Drop what ended before this time; how many letters that was.

        Args:
            before: Unix seconds.
            channels: Those whose letters cannot come again after so long; of others only the
                answers are dropped, so that a letter is known for ever.
        """
        marks = ", ".join("?" * len(channels))
        gone = (
            "DELETE FROM channel_letters WHERE state IN ('done', 'failed') AND taken_at < ? "
            f"AND channel IN ({marks}) "
            "AND NOT EXISTS "
            "(SELECT 1 FROM channel_deliveries d WHERE d.letter = channel_letters.seq)"
        )

        def work(connection: Connection) -> int:
            connection.execute(
                "DELETE FROM channel_deliveries WHERE state <> 'due' AND ended_at < ?", (before,)
            )
            if not channels:
                return 0
            return connection.execute(gone, (before, *channels)).rowcount

        return await self._database.write(work)

    def _letter(self, row: Sequence[Any]) -> StoredLetter:
        seq, tenant, channel, sender, id_, sha256, letter, session, run_id, state, taken_at = row
        said = unsealed(letter, self._database.name)
        return StoredLetter(
            seq, tenant, channel, sender, id_, sha256, said, session, run_id, state, taken_at
        )

    def _delivery(self, row: Sequence[Any]) -> StoredDelivery:
        seq, tenant, id_, channel, answer, state, attempts, next_at, made_at, problem, letter = row
        said, about = (unsealed(one, self._database.name) for one in (answer, letter))
        return StoredDelivery(
            seq, tenant, id_, channel, said, state, attempts, next_at, made_at, problem, about
        )

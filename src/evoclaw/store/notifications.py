"""Notifications to people: each is sent once, also with several orchestrators and after a restart.

A notification is stored when the reason for it is found, as `held`. As many as the limit of its
notifier permits are released, and so become due; the others wait, and one summary covers them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    open_blob,
    seal_blob,
)

RATE_WINDOW_S = 3_600.0
"""The period that a limit is for."""
NOTIFICATION_RETENTION_S = 30 * 86_400.0
"""Of notifications that were sent, given up or left out."""
DELETE_BATCH_ROWS = 500
_ENDED = "state NOT IN ('held', 'due')"

SCHEMA = Schema(
    "notifications",
    (
        (
            """CREATE TABLE notifications (
                seq INTEGER PRIMARY KEY,
                tenant TEXT NOT NULL,
                notifier TEXT NOT NULL,
                target TEXT NOT NULL,
                subject TEXT NOT NULL,
                content BLOB NOT NULL,
                state TEXT NOT NULL,
                attempts INTEGER NOT NULL DEFAULT 0,
                next_at REAL NOT NULL,
                made_at REAL NOT NULL,
                released_at REAL,
                ended_at REAL,
                problem TEXT NOT NULL DEFAULT '',
                UNIQUE (notifier, target, subject)
            ) STRICT""",
            "CREATE INDEX notifications_due ON notifications (notifier, next_at) "
            "WHERE state = 'due'",
            "CREATE INDEX notifications_held ON notifications (notifier, target, seq) "
            "WHERE state = 'held'",
            "CREATE INDEX notifications_released ON notifications (notifier, target, released_at) "
            "WHERE released_at IS NOT NULL",
            f"CREATE INDEX notifications_ended ON notifications (ended_at) WHERE {_ENDED}",
            # When a notifier was first configured: what ended before is not reported.
            """CREATE TABLE notifiers (
                name TEXT PRIMARY KEY, since REAL NOT NULL
            ) STRICT""",
            """CREATE TABLE notification_keys (
                name TEXT PRIMARY KEY, secret BLOB NOT NULL
            ) STRICT""",
            """CREATE TABLE push_subscriptions (
                id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                person TEXT NOT NULL,
                subscription BLOB NOT NULL,
                made_at REAL NOT NULL
            ) STRICT""",
            "CREATE INDEX push_subscriptions_of ON push_subscriptions (tenant, person)",
        ),
    ),
    checksummed=(
        ("notifications", ("content",)),
        ("notification_keys", ("secret",)),
        ("push_subscriptions", ("subscription",)),
    ),
    sealed=True,
)
LEFT_OUT, COVERED = "left out", "covered"
"""States of a held notification that is no longer needed, or that a summary covers."""
_COLUMNS = "seq, tenant, notifier, target, subject, content, attempts, next_at, made_at"


class NewNotification(Struct, frozen=True):
    """A notification to store."""

    tenant: str
    notifier: str
    target: str
    """One of several receivers of a notifier; empty if it has only one."""
    subject: str
    """What it is about; the same subject is stored once for each receiver."""
    content: bytes


class StoredNotification(Struct, frozen=True):
    """A stored notification."""

    seq: int
    tenant: str
    notifier: str
    target: str
    subject: str
    content: bytes
    attempts: int
    next_at: float
    made_at: float


class StoredSubscription(Struct, frozen=True):
    """A browser that receives notifications by Web Push."""

    id: str
    tenant: str
    user: str
    subscription: bytes


class NotificationStore:
    """The notifications of all tenants, the keys that sign for them, and push subscriptions."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self.clock = database, clock

    async def key(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret key that all processes share; made when it is first needed."""
        find = "SELECT secret FROM notification_keys WHERE name = ?"
        row = await self._database.read(lambda c: c.execute(find, (name,)).fetchone())
        if row is None:
            sealed = seal_blob(self._database, make())

            def work(connection: Connection) -> Any:
                connection.execute(
                    "INSERT INTO notification_keys VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                    (name, sealed),
                )
                return connection.execute(find, (name,)).fetchone()

            row = await self._database.write(work)
        return open_blob(self._database, row[0])

    async def register(self, names: Sequence[str]) -> Mapping[str, float]:
        """When each notifier was first configured; those that are new are stored now."""
        now = self.clock()

        def work(connection: Connection) -> dict[str, float]:
            for name in names:
                connection.execute(
                    "INSERT INTO notifiers VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, now)
                )
            return dict(connection.execute("SELECT name, since FROM notifiers").fetchall())

        found = await self._database.write(work)
        return {name: found[name] for name in names}

    async def known(self, notifier: str, target: str, subjects: Sequence[str]) -> set[str]:
        """Those of these subjects that are stored already."""
        if not subjects:
            return set()
        statement = (
            "SELECT subject FROM notifications WHERE notifier = ? AND target = ? "
            f"AND subject IN ({', '.join('?' * len(subjects))})"
        )
        values = (notifier, target, *subjects)
        rows = await self._database.read(lambda c: c.execute(statement, values).fetchall())
        return {subject for (subject,) in rows}

    async def add(self, new: Sequence[NewNotification]) -> None:
        """Store notifications as held; those that are stored already are kept."""
        now = self.clock()
        put = (
            "INSERT INTO notifications "
            "(tenant, notifier, target, subject, content, state, next_at, made_at) "
            "VALUES (?, ?, ?, ?, ?, 'held', ?, ?) ON CONFLICT (notifier, target, subject) "
            "DO NOTHING"
        )
        rows = [
            (
                *(item.tenant, item.notifier, item.target, item.subject),
                *(seal_blob(self._database, item.content), now, now),
            )
            for item in new
        ]

        def work(connection: Connection) -> None:
            for row in rows:
                connection.execute(put, row)

        await self._database.write(work)

    async def held(self, notifier: str, target: str) -> Sequence[StoredNotification]:
        """The held notifications of a receiver, the oldest first."""
        where = "WHERE notifier = ? AND target = ? AND state = 'held' ORDER BY seq"
        statement = f"SELECT {_COLUMNS} FROM notifications {where}"
        rows = await self._database.read(
            lambda c: c.execute(statement, (notifier, target)).fetchall()
        )
        return [self._notification(row) for row in rows]

    async def release(
        self,
        notifier: str,
        target: str,
        max_per_hour: int,
        unneeded: Collection[int],
        summarize: Callable[[Sequence[StoredNotification]], NewNotification],
    ) -> tuple[int, int]:
        """Make as many held notifications due as the limit permits; the others get a summary.

        Args:
            notifier: The notifier.
            target: One of its receivers.
            max_per_hour: Messages that the receiver may get in an hour.
            unneeded: The numbers of held notifications that are left out.
            summarize: Makes the message that covers the given ones, if there is no room for all.

        Returns:
            How many messages became due, and how many notifications are still held.
        """
        now = self.clock()

        def work(connection: Connection) -> tuple[int, int]:
            for seq in unneeded:
                self._end(connection, seq, LEFT_OUT, now)
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM notifications WHERE notifier = ? AND target = ? "
                "AND state = 'held' ORDER BY seq",
                (notifier, target),
            ).fetchall()
            held = [self._notification(row) for row in rows]
            (used,) = connection.execute(
                "SELECT count(*) FROM notifications WHERE notifier = ? AND target = ? "
                "AND released_at IS NOT NULL AND released_at > ?",
                (notifier, target, now - RATE_WINDOW_S),
            ).fetchone()
            room = max(0, max_per_hour - int(used))
            if not held or not room:
                return 0, len(held)
            # With room for all, each is a message; else the last message covers the rest.
            alone = held if len(held) <= room else held[: room - 1]
            for item in alone:
                connection.execute(
                    "UPDATE notifications SET state = 'due', next_at = ?1, released_at = ?1 "
                    "WHERE seq = ?2",
                    (now, item.seq),
                )
            if rest := held[len(alone) :]:
                for item in rest:
                    self._end(connection, item.seq, COVERED, now)
                self._put_summary(connection, summarize(rest), now)
            return len(alone) + bool(rest), 0

        return await self._database.write(work)

    def _put_summary(self, connection: Connection, new: NewNotification, now: float) -> None:
        connection.execute(
            "INSERT INTO notifications (tenant, notifier, target, subject, content, state, "
            "next_at, made_at, released_at) VALUES (?1, ?2, ?3, ?4, ?5, 'due', ?6, ?6, ?6) "
            "ON CONFLICT (notifier, target, subject) DO NOTHING",
            (
                *(new.tenant, new.notifier, new.target, new.subject),
                *(seal_blob(self._database, new.content), now),
            ),
        )

    def _end(self, connection: Connection, seq: int, state: str, now: float) -> None:
        connection.execute(
            "UPDATE notifications SET state = ?, ended_at = ? WHERE seq = ? AND state = 'held'",
            (state, now, seq),
        )

    async def claim_deliveries(
        self, channels: Sequence[str], lease_s: float, limit: int
    ) -> tuple[Sequence[StoredNotification], float | None]:
        """Claim due notifications of notifiers; and when the next one is due.

        The caller has them for the time of the lease; one that is not settled by then is due again.
        """
        if not channels:
            return (), None
        marks, now = ", ".join("?" * len(channels)), self.clock()
        where = f"WHERE state = 'due' AND notifier IN ({marks})"
        find = (
            f"SELECT {_COLUMNS} FROM notifications {where} AND next_at <= ? "
            "ORDER BY next_at, seq LIMIT ?"
        )
        take = (
            "UPDATE notifications SET next_at = ?, attempts = attempts + 1 "
            "WHERE seq = ? AND state = 'due' AND next_at = ?"
        )

        def work(connection: Connection) -> tuple[Sequence[StoredNotification], float | None]:
            found = connection.execute(find, (*channels, now, limit)).fetchall()
            claimed = [
                self._notification(row)
                for row in found
                # Another orchestrator may have claimed it first.
                if connection.execute(take, (now + lease_s, row[0], row[7])).rowcount
            ]
            (next_at,) = connection.execute(
                f"SELECT min(next_at) FROM notifications {where}", tuple(channels)
            ).fetchone()
            return claimed, next_at

        return await self._database.write(work)

    async def settle_delivery(
        self, delivery: StoredNotification, state: str, problem: str = "", next_at: float = 0.0
    ) -> None:
        """Record the result of an attempt: sent, dead, or due again at `next_at`."""
        ended = None if state == "due" else self.clock()
        statement = (
            "UPDATE notifications SET state = ?1, problem = ?2, next_at = ?3, ended_at = ?4 "
            "WHERE seq = ?5 AND state = 'due' AND (?1 = 'sent' OR attempts = ?6)"
        )
        # The stored count does not include the attempt of the caller.
        values = (state, problem, next_at, ended, delivery.seq, delivery.attempts + 1)
        await self._database.write(lambda c: c.execute(statement, values))

    async def last_result(self, notifier: str) -> tuple[str, str, float] | None:
        """The state, problem and time of the last notification that ended or failed."""
        statement = (
            "SELECT state, problem, coalesce(ended_at, made_at) FROM notifications "
            "WHERE notifier = ? AND (state IN ('sent', 'dead') OR problem <> '') "
            "ORDER BY seq DESC LIMIT 1"
        )
        return await self._database.read(lambda c: c.execute(statement, (notifier,)).fetchone())

    async def prune(self) -> int:
        """Delete what ended long ago; how many notifications."""
        statement = (
            "DELETE FROM notifications WHERE seq IN (SELECT seq FROM notifications "
            f"WHERE {_ENDED} AND ended_at < ? LIMIT ?)"
        )
        before = self.clock() - NOTIFICATION_RETENTION_S
        deleted, last = 0, DELETE_BATCH_ROWS
        while last == DELETE_BATCH_ROWS:
            last = await self._database.write(
                lambda c: c.execute(statement, (before, DELETE_BATCH_ROWS)).rowcount
            )
            deleted += last
        return deleted

    async def subscribe(self, new: StoredSubscription, max_of_user: int) -> bool:
        """Store a push subscription, or replace it; False if the user has too many."""
        sealed = seal_blob(self._database, new.subscription)

        def work(connection: Connection) -> bool:
            (count,) = connection.execute(
                "SELECT count(*) FROM push_subscriptions "
                "WHERE tenant = ? AND person = ? AND id <> ?",
                (new.tenant, new.user, new.id),
            ).fetchone()
            if count >= max_of_user:
                return False
            connection.execute("DELETE FROM push_subscriptions WHERE id = ?", (new.id,))
            connection.execute(
                "INSERT INTO push_subscriptions VALUES (?, ?, ?, ?, ?)",
                (new.id, new.tenant, new.user, sealed, self.clock()),
            )
            return True

        return await self._database.write(work)

    async def unsubscribe(self, id_: str, tenant: str, user: str | None = None) -> bool:
        """Delete a push subscription of a user, or of any for None; False if there is none."""
        statement = (
            "DELETE FROM push_subscriptions WHERE id = ?1 AND tenant = ?2 "
            "AND (?3 = 1 OR person = ?4)"
        )
        values = (id_, tenant, int(user is None), user or "")
        return await self._database.write(lambda c: c.execute(statement, values).rowcount) > 0

    async def subscriptions(self, tenant: str) -> Sequence[StoredSubscription]:
        """The push subscriptions of a tenant."""
        statement = (
            "SELECT id, tenant, person, subscription FROM push_subscriptions "
            "WHERE tenant = ? ORDER BY made_at, id"
        )
        rows = await self._database.read(lambda c: c.execute(statement, (tenant,)).fetchall())
        return [
            StoredSubscription(id_, of, user, open_blob(self._database, blob))
            for id_, of, user, blob in rows
        ]

    def _notification(self, row: Sequence[Any]) -> StoredNotification:
        seq, tenant, notifier, target, subject, content, attempts, next_at, made_at = row
        opened = open_blob(self._database, content)
        return StoredNotification(
            seq, tenant, notifier, target, subject, opened, attempts, next_at, made_at
        )

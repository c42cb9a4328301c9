"""Runs that wait for their turn, and who holds those that go on.

A run is kept in the session store; here is what its driving needs: keys that make a start happen
once, leases, what people said to it meanwhile, what it waits for, and that it is to be cancelled.
It shares the session store's database, so that a start is kept whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from evoclaw.core.labels import CLEAN, Label
from evoclaw.store.database import Connection, Schema, Work
from evoclaw.store.sessions import Fenced, Session, SessionStore, StoredRun

SCHEMA = Schema(
    "run queue",
    (
        (
            """CREATE TABLE queue_keys (
                tenant TEXT NOT NULL, owner TEXT NOT NULL, key TEXT NOT NULL,
                digest TEXT NOT NULL, run_id TEXT NOT NULL, at REAL NOT NULL,
                PRIMARY KEY (tenant, owner, key)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX queue_keys_old ON queue_keys (at)",
            """CREATE TABLE queue_inbox (
                tenant TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER NOT NULL,
                message BLOB NOT NULL,
                PRIMARY KEY (tenant, run_id, number)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE queue_pending (
                tenant TEXT NOT NULL, run_id TEXT NOT NULL, place TEXT NOT NULL,
                PRIMARY KEY (tenant, run_id, place)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE queue_cancels (
                tenant TEXT NOT NULL, run_id TEXT NOT NULL,
                PRIMARY KEY (tenant, run_id)
            ) STRICT, WITHOUT ROWID""",
        ),
    ),
    sealed=(("queue_inbox", ("message",)),),
)
OPEN = "(stop IS NULL OR stop = 'waiting')"
FREE = "(holder = '' OR lease_until <= ?)"
SAME = "tenant = ? AND run_id = ?"

# Only the first open run of a session may go on. A sub-run is its parent's affair, unless it went
# on by itself after that had ended.
READY = f"""
SELECT id FROM runs r
WHERE tenant = ? AND stop IS NULL AND {FREE} AND holder <> ?
    AND (parent_run = '' OR holder <> '')
    AND NOT EXISTS (
        SELECT 1 FROM runs e WHERE e.tenant = r.tenant AND e.session_id = r.session_id
            AND e.seq < r.seq AND (e.stop IS NULL OR e.stop = 'waiting')
    )
ORDER BY seq LIMIT ?
"""
# Whoever held these died before they were parked, or before they went on.
LEFT = """
SELECT tenant, id FROM runs
WHERE holder <> '' AND stop = 'waiting' AND lease_until <= ? AND holder <> ?
"""
# The run that a key was used for may have been forgotten since.
KEEP_KEY = """
INSERT INTO queue_keys VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, key) DO UPDATE SET run_id = excluded.run_id, at = excluded.at
"""
LET_GO = """
UPDATE runs SET holder = '', lease_until = NULL WHERE tenant = ? AND id = ? AND epoch = ?
"""
NOBODY = "-"
"""Holds runs that wait, and are to go on until they are parked."""
CLAIM = f"""
UPDATE runs SET epoch = epoch + 1, holder = ?, lease_until = ?
WHERE tenant = ? AND id = ? AND {FREE} AND {OPEN} RETURNING epoch
"""
# A sub-run is its parent's, and only as long as nobody has taken that over.
ADOPT = f"""
UPDATE runs SET epoch = epoch + 1
WHERE tenant = ? AND id = ? AND {FREE} AND EXISTS (
    SELECT 1 FROM runs p WHERE p.tenant = runs.tenant AND p.id = ? AND p.epoch = ?
) RETURNING epoch
"""
ORPHANS = """
SELECT r.tenant, r.id FROM runs r JOIN runs t ON t.tenant = r.tenant AND t.id = r.root_run
WHERE r.stop IS NULL AND r.parent_run <> '' AND r.holder = ''
    AND t.stop IS NOT NULL AND t.stop <> 'waiting' LIMIT 100
"""


class Outcome(StrEnum):
    """What became of a run that was to be kept."""

    NEW = "new"
    SAME = "same"
    """It was there already."""
    OTHER = "other"
    """The key was used for another errand."""
    NO_SESSION = "no_session"
    NOT_EMPTY = "not_empty"
    """Something was said in the session before."""
    FULL = "full"
    FULL_TENANT = "full_tenant"
    FULL_SESSION = "full_session"


class Entry(Struct, frozen=True):
    """A run to be kept."""

    run_id: str
    session: Session
    """Where; made if `opens`."""
    opens: bool
    asked: str
    errand: bytes
    owner: str = ""
    """Whose key it is."""
    key: str = ""
    digest: str = ""
    label: Label = CLEAN
    empty: bool = False
    """Only in a session where nothing was said yet."""

    def beginning(self, store: SessionStore) -> Work[StoredRun]:
        """Keep the run itself."""
        return store.beginning(
            self.run_id, self.session.id, self.asked, label=self.label, errand=self.errand
        )


class Bounds(Struct, frozen=True):
    """How many runs may be queued."""

    all: int
    tenant: int
    session: int


class Placed(Struct, frozen=True):
    """A run that was kept, or why it was not."""

    outcome: Outcome
    run: StoredRun | None = None
    epoch: int = 0
    """Above 0 if it may be driven right away."""


class Claim(Struct, frozen=True):
    """A run that may be driven, until the lease is over or somebody has a higher epoch."""

    tenant: str
    run_id: str
    epoch: int


class RunQueue:
    """The runs of all tenants, as one process sees them."""

    def __init__(
        self,
        sessions: SessionStore,
        holder: str,
        *,
        lease_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Hold runs under a name.

        Args:
            sessions: Where runs are kept; of any tenant.
            holder: What this process is called; no other one is called so.
            lease_s: How long a claim holds unless it is renewed.
            clock: What time it is.
        """
        self._sessions, self._database = sessions, sessions.database
        self.holder, self._lease, self._clock = holder, lease_s, clock

    async def put(self, tenant: str, entry: Entry, bounds: Bounds, *, claim: bool) -> Placed:
        """Keep a run, its session and its key: all of it, or nothing.

        Args:
            tenant: Whose.
            entry: What is to be kept.
            bounds: How many may be queued.
            claim: Whether to hold it at once, if it is its session's turn.
        """
        store = self._sessions.of(tenant)

        def work(connection: Connection) -> Placed:
            known = self._known(connection, store, entry)
            if known is None and not entry.opens:
                known = self._refused(connection, store, entry)
            known = known or self._full(connection, store, entry, bounds)
            if known is not None:
                return known
            if entry.opens:
                store.creating(entry.session)(connection)
            run = entry.beginning(store)(connection)
            if entry.key:
                values = (tenant, entry.owner, entry.key, entry.digest, run.id, self._clock())
                connection.execute(KEEP_KEY, values)
            first = claim and self._is_first(connection, tenant, entry)
            return Placed(Outcome.NEW, run, self._claim(connection, tenant, run.id) if first else 0)

        return await self._database.write(work)

    def _known(self, connection: Connection, store: SessionStore, entry: Entry) -> Placed | None:
        run_id = entry.run_id
        if entry.key:
            find = (
                "SELECT digest, run_id FROM queue_keys WHERE tenant = ? AND owner = ? AND key = ?"
            )
            values = (store.tenant, entry.owner, entry.key)
            row = connection.execute(find, values).fetchone()
            if row is not None and row[0] != entry.digest:
                return Placed(Outcome.OTHER, store.find_run(connection, row[1]))
            run_id = row[1] if row is not None else run_id
        found = store.find_run(connection, run_id)
        return None if found is None else Placed(Outcome.SAME, found)

    def _refused(self, connection: Connection, store: SessionStore, entry: Entry) -> Placed | None:
        if store.find_session(connection, entry.session.id) is None:
            return Placed(Outcome.NO_SESSION)
        values = (store.tenant, entry.session.id)
        spoken = "SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? LIMIT 1"
        if entry.empty and connection.execute(spoken, values).fetchone():
            return Placed(Outcome.NOT_EMPTY)
        return None

    def _full(
        self, connection: Connection, store: SessionStore, entry: Entry, bounds: Bounds
    ) -> Placed | None:
        queued = "SELECT count(*) FROM runs WHERE stop IS NULL AND epoch = 0 AND parent_run = ''"
        ours, here = (store.tenant,), (store.tenant, entry.session.id)
        for limit, condition, values, outcome in (
            (bounds.all, "", (), Outcome.FULL),
            (bounds.tenant, " AND tenant = ?", ours, Outcome.FULL_TENANT),
            (bounds.session, " AND tenant = ? AND session_id = ?", here, Outcome.FULL_SESSION),
        ):
            if connection.execute(queued + condition, values).fetchone()[0] >= limit:
                return Placed(outcome)
        return None

    def _is_first(self, connection: Connection, tenant: str, entry: Entry) -> bool:
        before = f"SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? AND id <> ? AND {OPEN}"
        values = (tenant, entry.session.id, entry.run_id)
        return connection.execute(before, values).fetchone() is None

    def _claim(self, connection: Connection, tenant: str, run_id: str) -> int:
        """Hold a run; 0 if it cannot be had."""
        now = self._clock()
        values = (self.holder, now + self._lease, tenant, run_id, now)
        row = connection.execute(CLAIM, values).fetchone()
        return 0 if row is None else row[0]

    async def next(self, live: Mapping[str, int], most: int, per_tenant: int) -> Sequence[Claim]:
        """Hold some of the runs whose turn it is: of those tenants first that have the fewest.

        Args:
            live: How many of each tenant go on.
            most: How many to take at most.
            per_tenant: How many of one tenant may go on.
        """
        chosen = await self._database.read(lambda c: self._choose(c, live, most, per_tenant))
        if not chosen:
            return ()

        def work(connection: Connection) -> list[Claim]:
            claims = [
                Claim(tenant, run_id, self._claim(connection, tenant, run_id))
                for tenant, run_id in chosen
            ]
            return [claim for claim in claims if claim.epoch]

        return await self._database.write(work)

    def _choose(
        self, connection: Connection, live: Mapping[str, int], most: int, per_tenant: int
    ) -> Sequence[tuple[str, str]]:
        # What is ours is driven already, also when the lease was not renewed in time.
        tenants = f"SELECT DISTINCT tenant FROM runs WHERE stop IS NULL AND {FREE} AND holder <> ?"
        now, counts, ready = self._clock(), dict(live), dict[str, list[str]]()
        for (tenant,) in connection.execute(tenants, (now, self.holder)).fetchall():
            room = min(most, per_tenant - counts.get(tenant, 0))
            if room > 0:
                rows = connection.execute(READY, (tenant, now, self.holder, room)).fetchall()
                ready[tenant] = [row[0] for row in reversed(rows)]
        left = connection.execute(LEFT, (now, self.holder)).fetchall()
        chosen: list[tuple[str, str]] = [(tenant, run_id) for tenant, run_id in left[:most]]
        while len(chosen) < most and (more := [tenant for tenant in ready if ready[tenant]]):
            tenant = min(more, key=lambda one: counts.get(one, 0))
            counts[tenant] = counts.get(tenant, 0) + 1
            chosen.append((tenant, ready[tenant].pop()))
        return chosen

    async def claim(self, tenant: str, run_id: str) -> Claim | None:
        """Hold this very run, out of turn; None if it has ended, or somebody holds it."""
        epoch = await self._database.write(lambda c: self._claim(c, tenant, run_id))
        return Claim(tenant, run_id, epoch) if epoch else None

    async def renew(self) -> frozenset[Claim]:
        """Go on holding; what is still held."""
        now = self._clock()

        def work(connection: Connection) -> frozenset[Claim]:
            update = "UPDATE runs SET lease_until = ? WHERE holder = ? AND holder <> ''"
            connection.execute(update, (now + self._lease, self.holder))
            held = "SELECT tenant, id, epoch FROM runs WHERE holder = ? AND holder <> ''"
            rows = connection.execute(held, (self.holder,)).fetchall()
            return frozenset(Claim(*row) for row in rows)

        return await self._database.write(work)

    async def release(self, claims: Sequence[Claim]) -> None:
        """Hold no longer; whoever comes next may have them at once.

        One that waits is not parked by this: it is gone on with, and parked then.
        """
        update = (
            f"UPDATE runs SET holder = CASE WHEN stop IS NULL THEN '' ELSE '{NOBODY}' END, "
            "lease_until = 0 WHERE tenant = ? AND id = ? AND epoch = ? AND holder = ?"
        )
        rows = [(one.tenant, one.run_id, one.epoch, self.holder) for one in claims]
        await self._database.write(lambda c: c.executemany(update, rows))

    async def park(self, claim: Claim, places: Sequence[str]) -> None:
        """Let go of a run that waits, and know what for."""
        update = f"{LET_GO} AND holder = ?"
        values = (claim.tenant, claim.run_id, claim.epoch, self.holder)
        rows = [(claim.tenant, claim.run_id, place) for place in places]

        def work(connection: Connection) -> None:
            if connection.execute(update, values).rowcount:
                same = (claim.tenant, claim.run_id)
                connection.execute(f"DELETE FROM queue_pending WHERE {SAME}", same)
                connection.executemany("INSERT INTO queue_pending VALUES (?, ?, ?)", rows)

        await self._database.write(work)

    async def done(self, claim: Claim) -> None:
        """Let go of a run that has ended, and of what was kept to drive it."""
        same = (claim.tenant, claim.run_id)

        def work(connection: Connection) -> None:
            connection.execute(LET_GO, (*same, claim.epoch))
            connection.execute(f"DELETE FROM queue_pending WHERE {SAME}", same)
            connection.execute(f"DELETE FROM queue_cancels WHERE {SAME}", same)

        await self._database.write(work)

    async def holders(self) -> Sequence[str]:
        """Who else holds runs, by name."""
        find = "SELECT DISTINCT holder FROM runs WHERE holder <> '' AND holder <> ?"
        rows = await self._database.read(lambda c: c.execute(find, (self.holder,)).fetchall())
        return [row[0] for row in rows]

    async def outlived(self, holders: Sequence[str]) -> None:
        """These are gone: what they held may be taken over at once."""
        update = "UPDATE runs SET lease_until = 0 WHERE holder = ? AND holder <> ''"
        rows = [(holder,) for holder in holders]
        await self._database.write(lambda c: c.executemany(update, rows))

    async def orphans(self) -> Sequence[tuple[str, str]]:
        """Sub-runs that were cut off and whose run has ended: nobody takes them up."""
        rows = await self._database.read(lambda c: c.execute(ORPHANS).fetchall())
        return [(tenant, run_id) for tenant, run_id in rows]

    async def below(self, tenant: str, run_id: str) -> Sequence[str]:
        """The sub-runs of a run that have not ended."""
        find = f"SELECT id FROM runs WHERE tenant = ? AND parent_run = ? AND {OPEN}"
        values = (tenant, run_id)
        rows = await self._database.read(lambda c: c.execute(find, values).fetchall())
        return [row[0] for row in rows]

    async def forget_keys(self, older_than: float) -> None:
        """Forget keys that are older than so many seconds."""
        before = self._clock() - older_than
        delete = "DELETE FROM queue_keys WHERE at < ?"
        await self._database.write(lambda c: c.execute(delete, (before,)))


async def adopt(
    store: SessionStore,
    run_id: str,
    parent: str,
    epoch: int,
    clock: Callable[[], float] = time.time,
) -> int:
    """Drive a sub-run by the right of the run above: its epoch. `Fenced` if that is lost."""
    values = (store.tenant, run_id, clock(), parent, epoch)
    row = await store.database.write(lambda c: c.execute(ADOPT, values).fetchone())
    if row is None:
        raise Fenced(run_id, epoch, epoch + 1)
    return row[0]

"""Who holds a run, as its row says it: an epoch that only grows, a holder, and until when.

The epoch is the safety of it: whoever has a lower one cannot write. The lease is how SQLite finds
out that a holder is gone; on PostgreSQL an engine does (`store/runs/job_queue.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from evoclaw.store.databases.database import Connection
from evoclaw.store.sessions.sessions import Fenced, SessionStore

OPEN = "(stop IS NULL OR stop = 'waiting')"
FREE = "(holder = '' OR lease_until <= ?)"
SAME = "tenant = ? AND run_id = ?"

# Only the first open run of a session may go on.
FIRST = """
NOT EXISTS (
    SELECT 1 FROM runs e WHERE e.tenant = r.tenant AND e.session_id = r.session_id
        AND e.seq < r.seq AND (e.stop IS NULL OR e.stop = 'waiting')
)
"""
# A sub-run is its parent's affair, unless it went on by itself after that had ended.
READY = f"""
SELECT id FROM runs r
WHERE tenant = ? AND stop IS NULL AND {FREE} AND holder <> ?
    AND (parent_run = '' OR holder <> '') AND {FIRST}
ORDER BY seq LIMIT ?
"""
# From one tenant to the next, not through all that each has.
TENANTS = """
WITH RECURSIVE with_runs (tenant) AS (
    SELECT min(tenant) FROM runs WHERE stop IS NULL
    UNION ALL
    SELECT (SELECT min(tenant) FROM runs WHERE stop IS NULL AND tenant > with_runs.tenant)
    FROM with_runs WHERE tenant IS NOT NULL
)
SELECT tenant FROM with_runs WHERE tenant IS NOT NULL
"""
# Whoever held these died before they were parked, or before they went on.
LEFT = """
SELECT tenant, id FROM runs
WHERE holder <> '' AND stop = 'waiting' AND lease_until <= ? AND holder <> ?
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
RELEASE = f"""
UPDATE runs SET holder = CASE WHEN stop IS NULL THEN '' ELSE '{NOBODY}' END, lease_until = 0
WHERE tenant = ? AND id = ? AND epoch = ? AND holder = ?
"""
# A sub-run is its parent's, and only as long as nobody has taken that over.
ADOPT = f"""
UPDATE runs SET epoch = epoch + 1
WHERE tenant = ? AND id = ? AND {FREE} AND EXISTS (
    SELECT 1 FROM runs p WHERE p.tenant = runs.tenant AND p.id = ? AND p.epoch = ?
) RETURNING epoch
"""


class Claim(Struct, frozen=True):
    """A run that may be driven, until it is taken over: then somebody has a higher epoch."""

    tenant: str
    run_id: str
    epoch: int


class Claims:
    """The runs of all tenants, as one process holds them."""

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
        self._holder, self._lease, self._clock = holder, lease_s, clock

    @property
    def holder(self) -> str:
        """What this process is called as a holder."""
        return self._holder

    def _until(self, now: float) -> float | None:
        """When a claim of this moment is over by itself."""
        return now + self._lease

    def _claim(self, connection: Connection, tenant: str, run_id: str) -> int:
        """Hold a run; 0 if it cannot be had."""
        now = self._clock()
        values = (self.holder, self._until(now), tenant, run_id, now)
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
        now, counts, ready = self._clock(), dict(live), dict[str, list[str]]()
        for (tenant,) in connection.execute(TENANTS).fetchall():
            room = min(most, per_tenant - counts.get(tenant, 0))
            if room > 0:
                # What is ours is driven already, also when the lease was not renewed in time.
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
            connection.execute(update, (self._until(now), self.holder))
            return self._held(connection)

        return await self._database.write(work)

    def _held(self, connection: Connection) -> frozenset[Claim]:
        held = "SELECT tenant, id, epoch FROM runs WHERE holder = ? AND holder <> ''"
        rows = connection.execute(held, (self.holder,)).fetchall()
        return frozenset(Claim(*row) for row in rows)

    async def release(self, claims: Sequence[Claim]) -> None:
        """Hold no longer; whoever comes next may have them at once.

        One that waits is not parked by this: it is gone on with, and parked then.
        """
        await self._database.write(lambda c: self._release(c, claims))

    def _release(self, connection: Connection, claims: Sequence[Claim]) -> None:
        rows = [(one.tenant, one.run_id, one.epoch, self.holder) for one in claims]
        connection.executemany(RELEASE, rows)

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
        await self._database.write(lambda c: self._done(c, claim))

    def _done(self, connection: Connection, claim: Claim) -> None:
        same = (claim.tenant, claim.run_id)
        connection.execute(LET_GO, (*same, claim.epoch))
        connection.execute(f"DELETE FROM queue_pending WHERE {SAME}", same)
        connection.execute(f"DELETE FROM queue_cancels WHERE {SAME}", same)

    async def holders(self) -> Sequence[str]:
        """Who else holds runs, by name."""
        find = "SELECT DISTINCT holder FROM runs WHERE holder <> '' AND holder <> ?"
        rows = await self._database.read(lambda c: c.execute(find, (self.holder,)).fetchall())
        return [row[0] for row in rows]

    async def outlived(self, holders: Sequence[str]) -> None:
        """These are gone: what they held may be taken over at once."""
        await self._database.write(lambda c: self._outlived(c, holders))

    def _outlived(self, connection: Connection, holders: Sequence[str]) -> None:
        update = "UPDATE runs SET lease_until = 0 WHERE holder = ? AND holder <> ''"
        connection.executemany(update, [(holder,) for holder in holders])


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

"""Claims on runs: each has an epoch that only grows, a holder process, and a lease.

The epoch is the fence: a process with a lower epoch cannot write. On SQLite an expired lease shows
that a holder is dead; on PostgreSQL procrastinate does (`store/runs/job_queue.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from evoclaw.store.databases.database import Connection
from evoclaw.store.sessions.sessions import Fenced, SessionStore

IS_OPEN = "(stop IS NULL OR stop = 'waiting')"
IS_UNCLAIMED = "(holder = '' OR lease_until <= ?)"
SAME_RUN = "tenant = ? AND run_id = ?"

# Only the first open run of a session may be driven.
IS_FIRST_OF_SESSION = """
NOT EXISTS (
    SELECT 1 FROM runs e WHERE e.tenant = r.tenant AND e.session_id = r.session_id
        AND e.seq < r.seq AND (e.stop IS NULL OR e.stop = 'waiting')
)
"""
# A sub-run is driven by its parent, unless it was claimed separately after the parent had ended.
READY_RUNS = f"""
SELECT id FROM runs r
WHERE tenant = ? AND stop IS NULL AND {IS_UNCLAIMED} AND holder <> ?
    AND (parent_run = '' OR holder <> '') AND {IS_FIRST_OF_SESSION}
ORDER BY seq LIMIT ?
"""
# A skip scan: from one tenant to the next, not through all their runs.
TENANTS_WITH_RUNS = """
WITH RECURSIVE with_runs (tenant) AS (
    SELECT min(tenant) FROM runs WHERE stop IS NULL
    UNION ALL
    SELECT (SELECT min(tenant) FROM runs WHERE stop IS NULL AND tenant > with_runs.tenant)
    FROM with_runs WHERE tenant IS NOT NULL
)
SELECT tenant FROM with_runs WHERE tenant IS NOT NULL
"""
# Their holder died before it parked or resumed them.
ABANDONED_WAITING_RUNS = """
SELECT tenant, id FROM runs
WHERE holder <> '' AND stop = 'waiting' AND lease_until <= ? AND holder <> ?
"""
CLEAR_HOLDER = """
UPDATE runs SET holder = '', lease_until = NULL WHERE tenant = ? AND id = ? AND epoch = ?
"""
RESUMABLE = "-"
"""The holder of waiting runs that any process may resume."""
CLAIM = f"""
UPDATE runs SET epoch = epoch + 1, holder = ?, lease_until = ?
WHERE tenant = ? AND id = ? AND {IS_UNCLAIMED} AND {IS_OPEN} RETURNING epoch
"""
RELEASE = f"""
UPDATE runs SET holder = CASE WHEN stop IS NULL THEN '' ELSE '{RESUMABLE}' END, lease_until = 0
WHERE tenant = ? AND id = ? AND epoch = ? AND holder = ?
"""
# A sub-run belongs to its parent, as long as no other process has taken over the parent.
ADOPT = f"""
UPDATE runs SET epoch = epoch + 1
WHERE tenant = ? AND id = ? AND {IS_UNCLAIMED} AND EXISTS (
    SELECT 1 FROM runs p WHERE p.tenant = runs.tenant AND p.id = ? AND p.epoch = ?
) RETURNING epoch
"""


class Claim(Struct, frozen=True):
    """The right to drive a run, until another process claims it with a higher epoch."""

    tenant: str
    run_id: str
    epoch: int


class Claims:
    """The claims of one process on runs of all tenants."""

    def __init__(
        self,
        sessions: SessionStore,
        process_identity: str,
        *,
        lease_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Claim runs under a name.

        Args:
            sessions: The session store, of any tenant.
            process_identity: The unique name of this process.
            lease_s: Seconds until a claim expires unless it is renewed.
            clock: The time in seconds since 1970.
        """
        self._sessions, self._database = sessions, sessions.database
        self._holder, self._lease, self._clock = process_identity, lease_s, clock

    @property
    def holder(self) -> str:
        """The name of this process as a holder of runs."""
        return self._holder

    def _lease_end(self, now: float) -> float | None:
        """When a claim made now expires."""
        return now + self._lease

    def _claim(self, connection: Connection, tenant: str, run_id: str) -> int:
        """Claim a run; returns its epoch, or 0 if it cannot be claimed."""
        now = self._clock()
        values = (self.holder, self._lease_end(now), tenant, run_id, now)
        row = connection.execute(CLAIM, values).fetchone()
        return 0 if row is None else row[0]

    async def claim_next(
        self, active: Mapping[str, int], limit: int, per_tenant: int
    ) -> Sequence[Claim]:
        """Claim the next runs, of the tenants with the fewest active runs first.

        Args:
            active: The number of active runs of each tenant.
            limit: The largest number of runs to claim.
            per_tenant: The largest number of active runs of one tenant.
        """
        chosen = await self._database.read(
            lambda c: self._choose_runs(c, active, limit, per_tenant)
        )
        if not chosen:
            return ()

        def work(connection: Connection) -> list[Claim]:
            claims = [
                Claim(tenant, run_id, self._claim(connection, tenant, run_id))
                for tenant, run_id in chosen
            ]
            return [claim for claim in claims if claim.epoch]

        return await self._database.write(work)

    def _choose_runs(
        self, connection: Connection, active: Mapping[str, int], limit: int, per_tenant: int
    ) -> Sequence[tuple[str, str]]:
        now, counts, ready = self._clock(), dict(active), dict[str, list[str]]()
        for (tenant,) in connection.execute(TENANTS_WITH_RUNS).fetchall():
            slots = min(limit, per_tenant - counts.get(tenant, 0))
            if slots > 0:
                # Runs of this process are driven already, also when a lease was renewed too late.
                rows = connection.execute(READY_RUNS, (tenant, now, self.holder, slots)).fetchall()
                ready[tenant] = [row[0] for row in reversed(rows)]
        abandoned = connection.execute(ABANDONED_WAITING_RUNS, (now, self.holder)).fetchall()
        chosen: list[tuple[str, str]] = [(tenant, run_id) for tenant, run_id in abandoned[:limit]]
        while len(chosen) < limit and (more := [tenant for tenant in ready if ready[tenant]]):
            tenant = min(more, key=lambda name: counts.get(name, 0))
            counts[tenant] = counts.get(tenant, 0) + 1
            chosen.append((tenant, ready[tenant].pop()))
        return chosen

    async def claim(self, tenant: str, run_id: str) -> Claim | None:
        """Claim a certain run; None if it has ended, or another process holds it."""
        epoch = await self._database.write(lambda c: self._claim(c, tenant, run_id))
        return Claim(tenant, run_id, epoch) if epoch else None

    async def renew(self) -> frozenset[Claim]:
        """Renew the leases of all claims; returns the claims still held."""
        now = self._clock()

        def work(connection: Connection) -> frozenset[Claim]:
            update = "UPDATE runs SET lease_until = ? WHERE holder = ? AND holder <> ''"
            connection.execute(update, (self._lease_end(now), self.holder))
            return self._held(connection)

        return await self._database.write(work)

    def _held(self, connection: Connection) -> frozenset[Claim]:
        held = "SELECT tenant, id, epoch FROM runs WHERE holder = ? AND holder <> ''"
        rows = connection.execute(held, (self.holder,)).fetchall()
        return frozenset(Claim(*row) for row in rows)

    async def release(self, claims: Sequence[Claim]) -> None:
        """Release claims, so that another process can claim the runs at once.

        A waiting run is not parked by this: the next process resumes it and parks it.
        """
        await self._database.write(lambda c: self._release(c, claims))

    def _release(self, connection: Connection, claims: Sequence[Claim]) -> None:
        rows = [(claim.tenant, claim.run_id, claim.epoch, self.holder) for claim in claims]
        connection.executemany(RELEASE, rows)

    async def park(self, claim: Claim, pending_calls: Sequence[str]) -> None:
        """Release a waiting run, and store which calls it waits for."""
        update = f"{CLEAR_HOLDER} AND holder = ?"
        values = (claim.tenant, claim.run_id, claim.epoch, self.holder)
        rows = [(claim.tenant, claim.run_id, place) for place in pending_calls]

        def work(connection: Connection) -> None:
            if connection.execute(update, values).rowcount:
                same = (claim.tenant, claim.run_id)
                connection.execute(f"DELETE FROM queue_pending WHERE {SAME_RUN}", same)
                connection.executemany("INSERT INTO queue_pending VALUES (?, ?, ?)", rows)

        await self._database.write(work)

    async def other_holders(self) -> Sequence[str]:
        """The names of the other processes that hold runs."""
        find = "SELECT DISTINCT holder FROM runs WHERE holder <> '' AND holder <> ?"
        rows = await self._database.read(lambda c: c.execute(find, (self.holder,)).fetchall())
        return [row[0] for row in rows]

    async def expire_holders(self, holders: Sequence[str]) -> None:
        """Expire the leases of dead processes, so that their runs can be claimed at once."""
        await self._database.write(lambda c: self._expire_holders(c, holders))

    def _expire_holders(self, connection: Connection, holders: Sequence[str]) -> None:
        update = "UPDATE runs SET lease_until = 0 WHERE holder = ? AND holder <> ''"
        connection.executemany(update, [(holder,) for holder in holders])


async def adopt_subrun(
    store: SessionStore,
    run_id: str,
    parent: str,
    epoch: int,
    clock: Callable[[], float] = time.time,
) -> int:
    """Raise the epoch of a sub-run under its parent's claim; `Fenced` if that claim is lost."""
    values = (store.tenant, run_id, clock(), parent, epoch)
    row = await store.database.write(lambda c: c.execute(ADOPT, values).fetchone())
    if row is None:
        raise Fenced(run_id, epoch, epoch + 1)
    return row[0]

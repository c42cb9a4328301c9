"""Approval requests and their answers: each used once, or for a session, before it expires."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import Connection, Database, Schema, sealed, unsealed
from evoclaw.store.databases.notices import Kind, Notice, run_of
from evoclaw.store.databases.sqlite import SqliteDatabase

KEPT = 30 * 86_400.0
"""Seconds that an approval request is kept after it has expired."""

SCHEMA = Schema(
    "approval store",
    (
        (
            """CREATE TABLE approvals (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                tenant TEXT NOT NULL,
                request_id TEXT NOT NULL,
                sha256 TEXT NOT NULL,
                scope TEXT NOT NULL,
                asked BLOB NOT NULL,
                expires_at REAL NOT NULL,
                decision TEXT,
                answer BLOB,
                closed_at REAL,
                used_at REAL,
                used_epoch INTEGER,
                used_by TEXT,
                uses INTEGER NOT NULL DEFAULT 0,
                UNIQUE (tenant, request_id, sha256)
            ) STRICT""",
            "CREATE INDEX approvals_open ON approvals (tenant, seq) "
            "WHERE decision IS NULL AND closed_at IS NULL",
            "CREATE INDEX approvals_wide ON approvals (scope) "
            "WHERE decision = 'session' AND closed_at IS NULL",
            "CREATE INDEX approvals_old ON approvals (expires_at)",
        ),
    ),
    sealed=(("approvals", ("asked", "answer")),),
)
_COLUMNS = (
    "id, tenant, request_id, sha256, scope, asked, expires_at, decision, answer, closed_at, "
    "used_at, used_epoch, used_by, uses"
)


class Standing(StrEnum):
    """The status of an approval request."""

    UNKNOWN = "unknown"
    """There is no request, and none was to be stored."""
    WAITING = "waiting"
    ONCE = "once"
    SESSION = "session"
    DENIED = "denied"
    EXPIRED = "expired"
    USED = "used"
    """Another process has used the approval, or uses it."""
    CLOSED = "closed"
    """It can no longer be answered, and its answer no longer be used."""
    FULL = "full"
    """Too many requests of the tenant wait already."""


class StoredApproval(Struct, frozen=True):
    """An approval request, and its answer."""

    id: str
    tenant: str
    request_id: str
    sha256: str
    scope: str
    asked: bytes
    expires_at: float
    decision: str | None = None
    answer: bytes | None = None
    closed_at: float | None = None
    used_at: float | None = None
    used_epoch: int | None = None
    used_by: str | None = None
    uses: int = 0

    def standing(self, now: float) -> Standing:
        """Its status for the people who answer it."""
        if self.closed_at is not None:
            return Standing.CLOSED
        if self.decision == "deny":
            return Standing.DENIED
        if self.used_at is not None and self.decision == "once":
            return Standing.USED
        if self.expires_at <= now:
            return Standing.EXPIRED
        return Standing.WAITING if self.decision is None else Standing(self.decision)


class Claim(Struct, frozen=True):
    """A process is about to run a call and needs its approval."""

    row: StoredApproval
    """The request to store if there is none yet."""
    epoch: int
    holder: str
    """The process that would run it: another holder with the same epoch is a different one."""
    resumed: bool = False
    """The call was started before; to resume it is the same use."""
    keep: bool = True
    """Whether to store the request for a person to answer."""
    most: int = 1_000
    """Requests of a tenant that may wait at a time."""


class ApprovalStore:
    """Approval requests and answers, shared by several processes."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database, self._clock = database, clock

    @classmethod
    async def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> ApprovalStore:
        """Open or create the file, and prune it."""
        store = cls(await SqliteDatabase.open(path, SCHEMA), clock)
        await store.tidy()
        return store

    async def __aenter__(self) -> ApprovalStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.database.close()

    async def tidy(self) -> None:
        """Delete the requests that expired long ago."""
        statement, before = "DELETE FROM approvals WHERE expires_at < ?", self._clock() - KEPT
        await self.database.write(lambda c: c.execute(statement, (before,)))

    def now(self) -> float:
        """The time by which requests expire."""
        return self._clock()

    async def claim(self, claim: Claim) -> tuple[Standing, StoredApproval | None]:
        """Use an approval if there is one, else request one: in one transaction."""
        return await self.database.write(lambda c: self._claim(c, claim))

    async def answer(
        self, id_: str, tenant: str, decision: str, answer: bytes
    ) -> tuple[Standing, bool]:
        """Store the first answer; the status before, and whether this answer counts."""

        def work(connection: Connection) -> tuple[Standing, bool]:
            row = self._one(connection, "WHERE id = ? AND tenant = ?", id_, tenant)
            if row is None:
                return Standing.UNKNOWN, False
            status = row.standing(self._clock())
            if status is not Standing.WAITING:
                return status, False
            statement = "UPDATE approvals SET decision = ?, answer = ? WHERE id = ?"
            connection.execute(statement, (decision, sealed(answer), id_))
            return status, True

        return await self.database.write(work, tells=await self._answered(id_, tenant))

    async def _answered(self, id_: str, tenant: str) -> Sequence[Notice]:
        """The notices for a request that is answered or closed."""
        row = await self.get(id_, tenant)
        return () if row is None else (Notice(Kind.ANSWERED, tenant, run_of(row.request_id)),)

    async def close(self, id_: str, tenant: str) -> bool:
        """Withdraw a request or an unused approval; False if it is too late."""
        statement = (
            "UPDATE approvals SET closed_at = ? WHERE id = ? AND tenant = ? "
            "AND closed_at IS NULL AND (decision IS NULL OR decision <> 'deny') "
            "AND (used_at IS NULL OR decision = 'session')"
        )
        values, notices = (self._clock(), id_, tenant), await self._answered(id_, tenant)
        count = await self.database.write(
            lambda c: c.execute(statement, values).rowcount, tells=notices
        )
        return count > 0

    async def give_up(self, run_id: str, tenant: str) -> None:
        """Close the waiting requests of a run that has ended."""
        statement = (
            "UPDATE approvals SET closed_at = ? WHERE tenant = ? "
            "AND request_id >= ? AND request_id < ? AND decision IS NULL AND closed_at IS NULL"
        )
        values = (self._clock(), tenant, f"{run_id}.", f"{run_id}/")  # '/' comes right after '.'
        await self.database.write(lambda c: c.execute(statement, values))

    async def forget(self, run_ids: Sequence[str], tenant: str) -> None:
        """Delete the requests of these runs."""
        delete = "DELETE FROM approvals WHERE tenant = ? AND request_id >= ? AND request_id < ?"
        rows = [(tenant, f"{run_id}.", f"{run_id}/") for run_id in run_ids]
        await self.database.write(lambda c: c.executemany(delete, rows))

    async def get(self, id_: str, tenant: str) -> StoredApproval | None:
        """A request of a tenant."""
        condition = "WHERE id = ? AND tenant = ?"
        return await self.database.read(lambda c: self._one(c, condition, id_, tenant))

    async def waiting(self, tenant: str) -> list[StoredApproval]:
        """The requests that wait for an answer, oldest first."""
        condition = (
            "WHERE tenant = ? AND decision IS NULL AND closed_at IS NULL AND expires_at > ? "
            "ORDER BY seq"
        )
        now = self._clock()
        return await self.database.read(lambda c: self._rows(c, condition, tenant, now))

    async def in_force(self, tenant: str) -> list[StoredApproval]:
        """The approvals for a session that are valid now."""
        condition = (
            "WHERE tenant = ? AND decision = 'session' AND closed_at IS NULL AND expires_at > ? "
            "ORDER BY seq"
        )
        now = self._clock()
        return await self.database.read(lambda c: self._rows(c, condition, tenant, now))

    def _claim(
        self, connection: Connection, claim: Claim
    ) -> tuple[Standing, StoredApproval | None]:
        new, now = claim.row, self._clock()
        exact = "WHERE tenant = ? AND request_id = ? AND sha256 = ?"
        row = self._one(connection, exact, new.tenant, new.request_id, new.sha256)
        if row is None or row.standing(now) is Standing.WAITING:
            approval = self._wide(connection, new, now)
            if approval is not None:
                return Standing.SESSION, approval
        if row is None:
            return self._ask(connection, claim, now)
        if row.closed_at is not None or row.decision not in ("once", "session"):
            return row.standing(now), row
        return self._use(connection, claim, row, now), row

    def _ask(
        self, connection: Connection, claim: Claim, now: float
    ) -> tuple[Standing, StoredApproval | None]:
        new = claim.row
        # The same call with other arguments than before: its earlier requests are void.
        connection.execute(
            "UPDATE approvals SET closed_at = ? "
            "WHERE tenant = ? AND request_id = ? AND closed_at IS NULL",
            (now, new.tenant, new.request_id),
        )
        if not claim.keep:
            return Standing.UNKNOWN, None
        count = (
            "SELECT count(*) FROM approvals "
            "WHERE tenant = ? AND decision IS NULL AND closed_at IS NULL AND expires_at > ?"
        )
        if connection.execute(count, (new.tenant, now)).fetchone()[0] >= claim.most:
            return Standing.FULL, None
        connection.execute(
            "INSERT INTO approvals (id, tenant, request_id, sha256, scope, asked, expires_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                new.id,
                new.tenant,
                new.request_id,
                new.sha256,
                new.scope,
                sealed(new.asked),
                new.expires_at,
            ),
        )
        return Standing.WAITING, new

    def _wide(
        self, connection: Connection, new: StoredApproval, now: float
    ) -> StoredApproval | None:
        """Use an approval for the session that covers a call; close the request for it."""
        condition = (
            "WHERE scope = ? AND tenant = ? AND decision = 'session' AND closed_at IS NULL "
            "AND expires_at > ? ORDER BY seq LIMIT 1"
        )
        approval = self._one(connection, condition, new.scope, new.tenant, now)
        if approval is not None:
            connection.execute("UPDATE approvals SET uses = uses + 1 WHERE id = ?", (approval.id,))
            connection.execute(
                "UPDATE approvals SET closed_at = ? WHERE tenant = ? AND request_id = ? "
                "AND decision IS NULL AND closed_at IS NULL",
                (now, new.tenant, new.request_id),
            )
        return approval

    def _use(
        self, connection: Connection, claim: Claim, row: StoredApproval, now: float
    ) -> Standing:
        """Use an approval for its call: once, or again by the same process or a resumed run."""
        if row.used_epoch is not None:
            same_use = claim.epoch == row.used_epoch and claim.holder == row.used_by
            if claim.epoch <= row.used_epoch and not same_use:
                return Standing.USED
        resumed = row.used_at is not None and claim.resumed
        if row.expires_at <= now and not resumed:
            return Standing.EXPIRED
        connection.execute(
            "UPDATE approvals SET used_at = coalesce(used_at, ?), used_epoch = ?, used_by = ?, "
            "uses = uses + CASE WHEN used_at IS NULL THEN 1 ELSE 0 END WHERE id = ?",
            (now, claim.epoch, claim.holder, row.id),
        )
        return Standing.ONCE if row.decision == "once" else Standing.SESSION

    def _one(self, connection: Connection, condition: str, *values: Any) -> StoredApproval | None:
        found = self._rows(connection, condition, *values)
        return found[0] if found else None

    def _rows(self, connection: Connection, condition: str, *values: Any) -> list[StoredApproval]:
        name = self.database.name
        rows: list[StoredApproval] = []
        for row in connection.execute(f"SELECT {_COLUMNS} FROM approvals {condition}", values):
            id_, tenant, request, sha, scope, asked, expires, decision, answer, *rest = row
            answer = None if answer is None else unsealed(answer, name)
            asked = unsealed(asked, name)
            rows.append(
                StoredApproval(
                    id_, tenant, request, sha, scope, asked, expires, decision, answer, *rest
                )
            )
        return rows

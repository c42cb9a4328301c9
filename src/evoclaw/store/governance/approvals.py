"""Approval requests and their answers: each used once, or for a session, before it expires."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from evoclaw.store.databases.database import (
    Connection,
    Database,
    Schema,
    Work,
    open_blob,
    seal_blob,
)
from evoclaw.store.databases.notices import Notice, NoticeKind, run_id_of
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.steps import Step
from evoclaw.store.governance.approval_steps import (
    ANSWER_APPROVAL,
    CLAIM_APPROVAL,
    USE_STANDING_APPROVAL,
)

APPROVAL_RETENTION_S = 30 * 86_400.0
"""Seconds that an approval request is kept after it has expired."""
PRUNE_BATCH_ROWS = 500
"""Requests that are deleted in one transaction."""
DELETE_EXPIRED = """
DELETE FROM approvals WHERE seq IN (SELECT seq FROM approvals WHERE expires_at < ? LIMIT ?)
"""

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
    checksummed=(("approvals", ("asked", "answer")),),
    sealed=True,
    procedures=(CLAIM_APPROVAL, ANSWER_APPROVAL, USE_STANDING_APPROVAL),
)
_COLUMNS = (
    "id, tenant, request_id, sha256, scope, asked, expires_at, decision, answer, closed_at, "
    "used_at, used_epoch, used_by, uses"
)


_IN_FORCE = "AND tenant = ? AND decision = 'session' AND closed_at IS NULL AND expires_at > ?"


class ApprovalStatus(StrEnum):
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

    def status(self, now: float) -> ApprovalStatus:
        """Its status for the people who answer it."""
        if self.closed_at is not None:
            return ApprovalStatus.CLOSED
        if self.decision == "deny":
            return ApprovalStatus.DENIED
        if self.used_at is not None and self.decision == "once":
            return ApprovalStatus.USED
        if self.expires_at <= now:
            return ApprovalStatus.EXPIRED
        return ApprovalStatus.WAITING if self.decision is None else ApprovalStatus(self.decision)


class ApprovalClaim(Struct, frozen=True):
    """A process is about to run a call and needs its approval."""

    row: StoredApproval
    """The request to store if there is none yet."""
    epoch: int
    holder: str
    """The process that would run it: another holder with the same epoch is a different one."""
    resumed: bool = False
    """The call was started before; to resume it is the same use."""
    store_request: bool = True
    """Whether to store the request for a person to answer."""
    max_waiting: int = 1_000
    """Requests of a tenant that may wait at a time."""
    step_scope: str = ""
    """Another scope whose approvals cover the call: that of its step in a workflow."""


class ApprovalStore:
    """Approval requests and answers, shared by several processes."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database, self._clock = database, clock

    @classmethod
    async def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> ApprovalStore:
        """Open or create the file, and prune it."""
        store = cls(await SqliteDatabase.open(path, SCHEMA), clock)
        await store.prune()
        return store

    async def __aenter__(self) -> ApprovalStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.database.close()

    async def prune(self) -> None:
        """Delete the requests that expired long ago, in batches."""
        values = (self._clock() - APPROVAL_RETENTION_S, PRUNE_BATCH_ROWS)
        deleted = PRUNE_BATCH_ROWS
        while deleted == PRUNE_BATCH_ROWS:
            deleted = await self.database.write(
                lambda c: c.execute(DELETE_EXPIRED, values).rowcount
            )

    def now(self) -> float:
        """The time by which requests expire."""
        return self._clock()

    async def claim(self, claim: ApprovalClaim) -> tuple[ApprovalStatus, StoredApproval | None]:
        """Use an approval if there is one, else request one: in one step."""
        new, epoch, store_request = claim.row, claim.epoch, claim.store_request
        step = Step(
            CLAIM_APPROVAL,
            (
                (new.tenant, new.request_id, new.sha256),
                (new.scope, claim.step_scope or new.scope),
                (new.id, seal_blob(self.database, new.asked), new.expires_at),
                (epoch, claim.holder, claim.resumed),
                *(store_request, claim.max_waiting, self._clock()),
            ),
        )
        status, id_ = await self.database.apply(step)
        if id_ is None or (status == ApprovalStatus.WAITING and id_ == new.id):
            return ApprovalStatus(status), None if id_ is None else new
        return ApprovalStatus(status), await self.get(id_, new.tenant)

    async def answer(
        self, id_: str, tenant: str, decision: str, answer: bytes
    ) -> tuple[ApprovalStatus, bool]:
        """Store the first answer; the status before, and whether this answer counts."""
        now, sealed = self._clock(), seal_blob(self.database, answer)
        step = Step(ANSWER_APPROVAL, (tenant, id_, decision, sealed, now))
        notices = await self._answer_notices(id_, tenant)
        if await self.database.apply(step, notices=notices):
            return ApprovalStatus.WAITING, True
        row = await self.get(id_, tenant)
        return (ApprovalStatus.UNKNOWN if row is None else row.status(now)), False

    async def _answer_notices(self, id_: str, tenant: str) -> Sequence[Notice]:
        """The notices for a request that is answered or closed."""
        row = await self.get(id_, tenant)
        return (
            () if row is None else (Notice(NoticeKind.ANSWERED, tenant, run_id_of(row.request_id)),)
        )

    async def add_standing(self, new: StoredApproval) -> StoredApproval:
        """Store an approval that a person gave before any call asked; one in force is kept."""

        def work(connection: Connection) -> StoredApproval:
            in_force = f"WHERE scope = ? {_IN_FORCE}"
            found = self._find(connection, in_force, new.scope, new.tenant, self._clock())
            if found is not None:
                return found
            assert new.answer is not None
            connection.execute(
                "INSERT INTO approvals "
                "(id, tenant, request_id, sha256, scope, asked, expires_at, decision, answer) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 'session', ?)",
                (
                    new.id,
                    new.tenant,
                    new.request_id,
                    new.sha256,
                    new.scope,
                    seal_blob(self.database, new.asked),
                    new.expires_at,
                    seal_blob(self.database, new.answer),
                ),
            )
            return new

        return await self.database.write(work)

    async def use_standing(self, scope: str, tenant: str) -> StoredApproval | None:
        """Count a use of the approval in force for a scope; None if there is none."""
        step = Step(USE_STANDING_APPROVAL, (tenant, scope, self._clock()))
        id_ = await self.database.apply(step)
        return None if id_ is None else await self.get(id_, tenant)

    async def close(self, id_: str, tenant: str) -> bool:
        """Withdraw a request or an unused approval; False if it is too late."""
        statement = (
            "UPDATE approvals SET closed_at = ? WHERE id = ? AND tenant = ? "
            "AND closed_at IS NULL AND (decision IS NULL OR decision <> 'deny') "
            "AND (used_at IS NULL OR decision = 'session')"
        )
        values, notices = (self._clock(), id_, tenant), await self._answer_notices(id_, tenant)
        count = await self.database.write(
            lambda c: c.execute(statement, values).rowcount, notices=notices
        )
        return count > 0

    async def close_waiting(self, run_id: str, tenant: str) -> None:
        """Close the waiting requests of a run that has ended."""
        await self.database.write(self.close_work(run_id, tenant))

    def close_work(self, run_id: str, tenant: str) -> Work[object]:
        """The work of `close_waiting`, to run it in a transaction with other work."""
        statement = (
            "UPDATE approvals SET closed_at = ? WHERE tenant = ? "
            "AND request_id >= ? AND request_id < ? AND decision IS NULL AND closed_at IS NULL"
        )
        values = (self._clock(), tenant, f"{run_id}.", f"{run_id}/")  # '/' comes right after '.'
        return lambda connection: connection.execute(statement, values)

    async def delete_for_runs(self, run_ids: Sequence[str], tenant: str) -> None:
        """Delete the requests of these runs."""
        delete = "DELETE FROM approvals WHERE tenant = ? AND request_id >= ? AND request_id < ?"
        rows = [(tenant, f"{run_id}.", f"{run_id}/") for run_id in run_ids]
        await self.database.write(lambda c: c.executemany(delete, rows))

    async def get(self, id_: str, tenant: str) -> StoredApproval | None:
        """A request of a tenant."""
        condition = "WHERE id = ? AND tenant = ?"
        return await self.database.read(lambda c: self._find(c, condition, id_, tenant))

    async def waiting(self, tenant: str) -> list[StoredApproval]:
        """The requests that wait for an answer, oldest first."""
        condition = (
            "WHERE tenant = ? AND decision IS NULL AND closed_at IS NULL AND expires_at > ? "
            "ORDER BY seq"
        )
        now = self._clock()
        return await self.database.read(lambda c: self._rows(c, condition, tenant, now))

    async def session_approvals(self, tenant: str) -> list[StoredApproval]:
        """The approvals for a session that are valid now."""
        condition = (
            "WHERE tenant = ? AND decision = 'session' AND closed_at IS NULL AND expires_at > ? "
            "ORDER BY seq"
        )
        now = self._clock()
        return await self.database.read(lambda c: self._rows(c, condition, tenant, now))

    def _find(self, connection: Connection, condition: str, *values: Any) -> StoredApproval | None:
        found = self._rows(connection, condition, *values)
        return found[0] if found else None

    def _rows(self, connection: Connection, condition: str, *values: Any) -> list[StoredApproval]:
        rows: list[StoredApproval] = []
        for row in connection.execute(f"SELECT {_COLUMNS} FROM approvals {condition}", values):
            id_, tenant, request, sha, scope, asked, expires, decision, answer, *rest = row
            answer = None if answer is None else open_blob(self.database, answer)
            asked = open_blob(self.database, asked)
            rows.append(
                StoredApproval(
                    id_, tenant, request, sha, scope, asked, expires, decision, answer, *rest
                )
            )
        return rows

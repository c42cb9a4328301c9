"""The orchestrator's outbox: stores commands to agents until their outcome is known.

Delivery ignores tenants, because tenants share edges. Code that acts for a user or a run uses
`CommandStore.of` its tenant, where commands of other tenants do not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from evoclaw.core.commands import (
    FINAL_STATES,
    OPEN_STATES,
    CommandPutKind,
    CommandPutResult,
    CommandRow,
    CommandState,
    LateOutcome,
    SettleResult,
)
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.store.calls.command_steps import MARK, NO_OUTCOME, PUT, SETTLE
from evoclaw.store.calls.command_tables import SCHEMA
from evoclaw.store.databases.database import (
    NO_LIMIT,
    Connection,
    Database,
    StoreError,
    open_blob,
    seal_blob,
)
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.steps import Step

COLUMNS = "request_id, agent_id, run_id, payload, expires_at, state, outcome, settled_at, tenant"
EXPIRE = """
UPDATE commands SET state = 'expired', settled_at = ?1 WHERE seq IN
    (SELECT seq FROM commands WHERE state = 'queued' AND expires_at <= ?1 LIMIT ?2)
RETURNING request_id
"""
DELETE_CLOSED = """
DELETE FROM commands WHERE seq IN (SELECT seq FROM commands WHERE settled_at < ? LIMIT ?)
RETURNING request_id
"""
LATE_OUTCOMES = """
SELECT at, outcome FROM notes WHERE request_id = ?1
AND EXISTS (SELECT 1 FROM commands WHERE request_id = ?1 AND tenant = ?2) ORDER BY seq
"""
MAX_REMEMBERED_COUNTS = 10_000
COUNT_INTERVAL_S = 1.0
"""Seconds after which the waiting commands of an agent are counted again."""
MAX_UNCOUNTED_SHARE = 8
"""One in so many of the remaining places may be taken before they are counted again: the next are
counted one by one, and a few processes together do not exceed the maximum."""
BATCH_ROWS = 500
"""Rows that are expired or deleted in one transaction, so that other commands do not wait long."""


class QueueFull(StoreError):
    """An agent has the maximum number of waiting commands of a tenant."""

    def __init__(self, agent_id: str, cap: int) -> None:
        super().__init__(
            f"agent {agent_id!r} has {cap:,} commands waiting, which is the maximum; "
            "wait for some to end, or cancel them, before sending more"
        )
        self.agent_id, self.cap = agent_id, cap


class CommandStore:
    """The commands of all tenants. Several processes may share it."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        *,
        defer_outcomes: bool = False,
    ) -> None:
        """Use a database.

        Args:
            database: Where the commands are.
            clock: Unix seconds.
            defer_outcomes: Whether an outcome is committed with the next write, for a file that
                this process has for itself: until then no other process could write to it.
        """
        self.database, self._defers = database, defer_outcomes
        self._name, self._clock = database.name, clock
        self._places: dict[tuple[str, str, int], tuple[int, float]] = {}
        """How many commands may be put before they are counted again, and until when: by tenant,
        agent and maximum."""

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        durable: bool = True,
        set_aside: bool = False,
        clock: Callable[[], float] = time.time,
        defer_outcomes: bool = False,
    ) -> CommandStore:
        """Open or create a store; see `SqliteDatabase.open`, also for its errors."""
        opened = await SqliteDatabase.open(path, SCHEMA, durable=durable, set_aside=set_aside)
        return cls(opened, clock, defer_outcomes=defer_outcomes)

    async def __aenter__(self) -> CommandStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish writing and close the file."""
        await self.database.close()

    def of(self, tenant: str) -> TenantCommands:
        """The commands of one tenant: all that its users and runs may see."""
        return TenantCommands(self.database, tenant)

    async def put(
        self,
        request_id: str,
        agent_id: str,
        run_id: str,
        payload: bytes,
        expires_at: float | None,
        *,
        sent: bool = False,
        cap: int = 10_000,
        tenant: str = LOCAL_PRINCIPAL.tenant,
    ) -> CommandPutResult:
        """Store a command until it is settled; `QueueFull` if its agent has too many of the tenant.

        `sent` marks it as sent at once, for a caller that sends it right after.

        The payload of a known command that still waits is replaced: after a restart the caller may
        drive the run under a new epoch.
        """
        blob, tenant = seal_blob(self.database, payload), tenant or LOCAL_PRINCIPAL.tenant
        state = CommandState.SENT if sent else CommandState.QUEUED
        counted = None if self._take_place(tenant, agent_id, cap) else cap
        new = (request_id, agent_id, run_id, blob, expires_at, state, tenant, counted)
        count: int | None = await self.database.apply(Step(PUT, new))
        if count is None:
            return await self._known(request_id, agent_id, tenant)
        if counted is not None:
            if count >= cap:
                raise QueueFull(agent_id, cap)
            places = (cap - count) // MAX_UNCOUNTED_SHARE
            until = time.monotonic() + COUNT_INTERVAL_S
            if len(self._places) >= MAX_REMEMBERED_COUNTS:
                self._places.clear()
            self._places[tenant, agent_id, cap] = places, until
        return CommandPutResult(CommandPutKind.NEW)

    def _take_place(self, tenant: str, agent_id: str, cap: int) -> bool:
        """Whether there is certainly a place for another command."""
        places, until = self._places.get((tenant, agent_id, cap), (0, 0.0))
        if places <= 0 or time.monotonic() > until:
            return False
        self._places[tenant, agent_id, cap] = places - 1, until
        return True

    async def _known(self, request_id: str, agent_id: str, tenant: str) -> CommandPutResult:
        row = await self.get(request_id)
        # Reveal nothing about another tenant.
        if row is None or row.tenant != tenant:
            raise StoreError(f"command id {request_id!r} is not available; use another id")
        if row.agent_id != agent_id:
            raise StoreError(
                f"command {request_id!r} is for agent {row.agent_id!r}; use another id"
            )
        return CommandPutResult(CommandPutKind.KNOWN, row)

    async def flush(self) -> None:
        """Wait until the outcomes stored so far are committed."""
        if self._defers:
            await self.database.flush()

    async def mark(self, request_id: str, state: CommandState | str) -> bool:
        """Advance the state of a command; False if it is as far already, or closed.

        Mark a command as sent before sending it: an unmarked one may expire as never sent.
        """
        if state not in OPEN_STATES[1:]:
            raise ValueError(f"cannot mark a command as {state}; use settle or expire")
        values = (request_id, state, OPEN_STATES[: OPEN_STATES.index(state)])
        step = Step(MARK, values)
        # That an agent has accepted a command is only shown.
        return await self._apply(step, wait=state != CommandState.ACCEPTED)

    async def settle(
        self,
        request_id: str,
        agent_id: str,
        outcome: bytes,
        state: CommandState = CommandState.SETTLED,
    ) -> SettleResult:
        """Store an outcome; only the first one counts, and only from the agent of the command.

        Acknowledge it after `flush`: it may be committed a moment later. Until then its agent
        reports it again, and the run that asked for it stores its result in a later commit.
        """
        if state not in FINAL_STATES:
            raise ValueError(f"{state} does not close a command")
        step = self._settle_step(request_id, agent_id, outcome, state)
        return SettleResult(await self._apply(step, wait=False))

    def settle_soon(
        self,
        request_id: str,
        agent_id: str,
        outcome: bytes,
        *,
        on_result: Callable[[SettleResult], None],
        on_failure: Callable[[BaseException], None],
    ) -> bool:
        """`settle` without a task that waits for it; False unless outcomes are deferred."""
        if not self._defers_here:
            return False
        step = self._settle_step(request_id, agent_id, outcome, CommandState.SETTLED)
        self.database.defer(
            step, on_result=lambda kept: on_result(SettleResult(kept)), on_failure=on_failure
        )
        return True

    def _settle_step(
        self, request_id: str, agent_id: str, outcome: bytes, state: CommandState
    ) -> Step:
        blob = seal_blob(self.database, outcome)
        return Step(SETTLE, (request_id, agent_id, blob, state, self._clock()))

    @property
    def _defers_here(self) -> bool:
        return self._defers and self.database.dialect == "sqlite"

    async def _apply(self, step: Step, *, wait: bool) -> Any:
        """Run a step; a file has its result before the commit, which need not be waited for."""
        if wait or not self._defers_here:
            return await self.database.apply(step)
        run, values = step.procedure.sqlite, step.values()
        return await self.database.write(lambda c: run(c, *values), wait=False)

    async def get(self, request_id: str) -> CommandRow | None:
        """A stored command."""
        return await self.database.read(lambda connection: self._find(connection, request_id))

    async def get_all(self, request_ids: Iterable[str]) -> dict[str, CommandRow]:
        """Those of some ids that are known, and their commands."""
        ids = sorted(request_ids)
        places = ", ".join("?" * len(ids))
        rows = await self._rows(f"WHERE request_id IN ({places})", *ids)
        return {row.request_id: row for row in rows}

    @property
    def is_shared(self) -> bool:
        """Whether other processes may send and settle commands, too."""
        return self.database.dialect != "sqlite"

    async def late_outcomes(self, request_id: str) -> list[LateOutcome]:
        """Outcomes that arrived after the command was closed, in order."""
        statement = "SELECT at, outcome FROM notes WHERE request_id = ? ORDER BY seq"
        found = await self.database.read(lambda c: c.execute(statement, (request_id,)).fetchall())
        return [LateOutcome(at, self._read(outcome)) for at, outcome in found]

    async def wanted(self, agent_id: str, now: float, limit: int = NO_LIMIT) -> list[CommandRow]:
        """The commands that an agent should still execute, oldest first.

        Expired commands that were sent are among them: the agent does not start them any more, but
        it knows whether it has.
        """
        return await self._rows(
            f"WHERE agent_id = ? AND {NO_OUTCOME} AND state <> 'cancelling' "
            "AND (state <> 'queued' OR expires_at IS NULL OR expires_at > ?) ORDER BY seq LIMIT ?",
            agent_id,
            now,
            limit,
        )

    async def overdue(self, now: float, limit: int = 500) -> list[CommandRow]:
        """Commands that were sent, have expired, and have no outcome."""
        condition = f"WHERE {NO_OUTCOME} AND state <> 'queued' AND expires_at <= ?"
        return await self._rows(f"{condition} ORDER BY expires_at LIMIT ?", now, limit)

    async def cancelling(self, agent_id: str) -> list[CommandRow]:
        """The commands that an agent should cancel."""
        return await self._rows(
            f"WHERE agent_id = ? AND {NO_OUTCOME} AND state = 'cancelling' ORDER BY seq", agent_id
        )

    async def expire(self, now: float) -> list[str]:
        """Close the expired commands that were never sent; their ids.

        A command that was sent may have started: its pending request closes it, as unknown.
        """
        return await self._in_batches(EXPIRE, now)

    async def known(self, request_ids: Iterable[str]) -> dict[str, CommandState]:
        """Those of some ids that are known, and their states."""
        ids = list(request_ids)
        statement = "SELECT state FROM commands WHERE request_id = ?"

        def work(connection: Connection) -> dict[str, CommandState]:
            rows = [(id_, connection.execute(statement, (id_,)).fetchone()) for id_ in ids]
            return {id_: CommandState(row[0]) for id_, row in rows if row is not None}

        return await self.database.read(work)

    async def prune(self, older_than: float) -> int:
        """Delete the commands that were closed before a time, with late outcomes; how many."""
        return len(await self._in_batches(DELETE_CLOSED, older_than))

    async def _in_batches(self, statement: str, time_: float) -> list[str]:
        def work(connection: Connection) -> list[str]:
            found = connection.execute(statement, (time_, BATCH_ROWS)).fetchall()
            if statement is DELETE_CLOSED:
                connection.executemany("DELETE FROM notes WHERE request_id = ?", found)
            return [row[0] for row in found]

        found: list[str] = []
        while batch := await self.database.write(work):
            found += batch
        return found

    async def _rows(self, condition: str, *values: object) -> list[CommandRow]:
        statement = f"SELECT {COLUMNS} FROM commands {condition}"
        found = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [_row(columns, self._read) for columns in found]

    def _read(self, blob: bytes) -> bytes:
        return open_blob(self.database, blob)

    def _find(self, connection: Connection, request_id: str) -> CommandRow | None:
        statement = f"SELECT {COLUMNS} FROM commands WHERE request_id = ?"
        columns = connection.execute(statement, (request_id,)).fetchone()
        return None if columns is None else _row(columns, self._read)


class TenantCommands:
    """The commands of one tenant."""

    def __init__(self, database: Database, tenant: str) -> None:
        self.tenant, self._database = tenant, database

    def _read(self, blob: bytes) -> bytes:
        return open_blob(self._database, blob)

    async def get(self, request_id: str) -> CommandRow | None:
        """A stored command."""
        statement = f"SELECT {COLUMNS} FROM commands WHERE request_id = ? AND tenant = ?"
        found = await self._all(statement, request_id, self.tenant)
        return _row(found[0], self._read) if found else None

    async def late_outcomes(self, request_id: str) -> list[LateOutcome]:
        """Outcomes that arrived after the command was closed, in order."""
        found = await self._all(LATE_OUTCOMES, request_id, self.tenant)
        return [LateOutcome(at, self._read(outcome)) for at, outcome in found]

    async def known(self, request_ids: Iterable[str]) -> dict[str, CommandState]:
        """Those of some ids that are known, and their states."""
        ids, ours = list(request_ids), self.tenant
        statement = "SELECT state FROM commands WHERE request_id = ? AND tenant = ?"

        def work(connection: Connection) -> dict[str, CommandState]:
            rows = [(id_, connection.execute(statement, (id_, ours)).fetchone()) for id_ in ids]
            return {id_: CommandState(row[0]) for id_, row in rows if row is not None}

        return await self._database.read(work)

    async def waiting(self, agent_id: str = "", limit: int = NO_LIMIT) -> list[CommandRow]:
        """Commands without an outcome, of one agent or of all, oldest first."""
        statement = (
            f"SELECT {COLUMNS} FROM commands WHERE tenant = ?1 AND {NO_OUTCOME} "
            "AND (?2 = '' OR agent_id = ?2) ORDER BY seq LIMIT ?3"
        )
        found = await self._all(statement, self.tenant, agent_id, limit)
        return [_row(columns, self._read) for columns in found]

    async def _all(self, statement: str, *values: object) -> list[Any]:
        return await self._database.read(lambda c: c.execute(statement, values).fetchall())


def _row(columns: tuple[Any, ...], read: Callable[[bytes], bytes]) -> CommandRow:
    id_, agent, run, payload, expires_at, state, outcome, settled_at, tenant = columns
    return CommandRow(
        *(id_, agent, run, read(payload), expires_at, CommandState(state)),
        None if outcome is None else read(outcome),
        settled_at,
        tenant,
    )

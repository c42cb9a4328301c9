"""Stores sessions: their runs, records, messages, todos and questions.

A store belongs to one tenant: it treats the ids of other tenants as unknown. So no caller can
forget to name the tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from evoclaw.core.events import Record, StopReason
from evoclaw.core.labels import CLEAN, LOCAL_PRINCIPAL, Label
from evoclaw.core.messages import Message
from evoclaw.store.databases.database import (
    NO_LIMIT,
    Connection,
    DamagedStore,
    Database,
    StoreError,
    Work,
    open_blob,
    seal_blob,
)
from evoclaw.store.databases.notices import progress_notice
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.steps import Step
from evoclaw.store.sessions import statements
from evoclaw.store.sessions.append_step import APPEND, Packed
from evoclaw.store.sessions.json_compression import compress_json, decompress_json
from evoclaw.store.sessions.packed_records import (
    pack_records,
    referenced_tool_lists,
    unpack_records,
)
from evoclaw.store.sessions.questions import QuestionStore
from evoclaw.store.sessions.tables import (
    SCHEMA,
    Fenced,
    LoadedRun,
    RunUsage,
    Session,
    SessionSummary,
    StoredRun,
)

_IS_BEING_DELETED = "SELECT 1 FROM deleted_sessions WHERE tenant = ? AND id = ?"
_SESSION_DECODER = msgspec.json.Decoder(Session)
_MESSAGE_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def _being_deleted(session_id: str) -> StoreError:
    return StoreError(f"session {session_id!r} is being deleted; use another one")


def _check_epoch(run_id: str, epoch: int | None, higher: int) -> None:
    if higher and epoch is not None:
        raise Fenced(run_id, epoch, higher)


class SessionStore:
    """The sessions of one tenant, with their runs, records, messages and questions."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        tenant: str = LOCAL_PRINCIPAL.tenant,
    ) -> None:
        self.database, self.tenant = database, tenant
        self._clock = clock
        self.questions = QuestionStore(database, clock, tenant)
        """The questions to people."""

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        durable: bool = True,
        set_aside: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> SessionStore:
        """Open or create a store, as the tenant `local`; see `SqliteDatabase.open`."""
        opened = await SqliteDatabase.open(path, SCHEMA, durable=durable, set_aside=set_aside)
        return cls(opened, clock)

    def of(self, tenant: str) -> SessionStore:
        """The store of a tenant in the same database, which is closed with this one."""
        if tenant == self.tenant:
            return self
        return SessionStore(self.database, self._clock, tenant)

    async def __aenter__(self) -> SessionStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.database.close()

    async def create(self, session: Session) -> Session:
        """Store a session; an existing one with that id is returned unchanged.

        Raises `StoreError` if one with that id is still being deleted.
        """
        return await self.database.write(self.create_work(session))

    def create_work(self, session: Session) -> Work[Session]:
        """The work of `create`, to run it in a transaction with other work."""
        new = self.new_session(session)
        values = (self.tenant, new.id, *self.session_values(new))
        put = (
            "INSERT INTO sessions (tenant, id, owner, parent, agent, session) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
        )

        def work(connection: Connection) -> Session:
            if connection.execute(_IS_BEING_DELETED, values[:2]).fetchone():
                raise _being_deleted(new.id)
            connection.execute(put, values)
            return self.find_session(connection, new.id) or new

        return work

    def new_session(self, session: Session) -> Session:
        """A session as it is created now."""
        return msgspec.structs.replace(session, created_at=self._clock(), tenant=self.tenant)

    def session_values(self, session: Session) -> tuple[str, str, str, bytes]:
        """The columns of a session after its id."""
        blob = seal_blob(self.database, msgspec.json.encode(session))
        return session.owner, session.parent, session.agent, blob

    async def session(self, session_id: str) -> Session | None:
        """A session."""
        return await self.database.read(
            lambda connection: self.find_session(connection, session_id), allow_stale=True
        )

    async def sessions(
        self,
        owner: str,
        *,
        within: str = "",
        agent: str = "",
        before: str = "",
        limit: int = NO_LIMIT,
    ) -> list[SessionSummary]:
        """The sessions of a user, newest first.

        Args:
            owner: The user.
            within: Only this session and its descendants.
            agent: Only those with this agent.
            before: Only those created before this session.
            limit: How many at most.
        """
        statement = statements.select_sessions(
            below=bool(within), agent=bool(agent), before=bool(before)
        )
        above = (within,) if within else ()
        values = (self.tenant, *above, owner, *(value for value in (agent, before) if value), limit)

        def work(connection: Connection) -> list[SessionSummary]:
            rows = connection.execute(statement, values).fetchall()
            return [self._summary(connection, self._decode_session(row[0])) for row in rows]

        return await self.database.read(work, allow_stale=True)

    async def is_used(self) -> bool:
        """Whether the tenant has a session."""
        statement = "SELECT 1 FROM sessions WHERE tenant = ? LIMIT 1"
        row = await self.database.read(
            lambda connection: connection.execute(statement, (self.tenant,)).fetchone(),
            allow_stale=True,
        )
        return row is not None

    async def summary(self, session_id: str) -> SessionSummary | None:
        """A session with its last run."""

        def work(connection: Connection) -> SessionSummary | None:
            session = self.find_session(connection, session_id)
            return None if session is None else self._summary(connection, session)

        return await self.database.read(work)

    async def create_run(
        self,
        run_id: str,
        session_id: str,
        message: str,
        *,
        parent_run: str = "",
        root_run: str = "",
        background: bool = False,
        label: Label = CLEAN,
        run_request: bytes | None = None,
    ) -> StoredRun:
        """Store a run; an existing one with that id is returned unchanged."""
        new = self.create_run_work(
            run_id, session_id, message, parent_run=parent_run, root_run=root_run,
            background=background, label=label, run_request=run_request,
        )  # fmt: skip
        return await self.database.write(new)

    def create_run_work(
        self,
        run_id: str,
        session_id: str,
        message: str,
        *,
        parent_run: str = "",
        root_run: str = "",
        background: bool = False,
        label: Label = CLEAN,
        run_request: bytes | None = None,
    ) -> Work[StoredRun]:
        """The work of `create_run`, to run it in a transaction with other work."""
        # The session cannot be deleted meanwhile.
        lock = "FOR SHARE" if self.database.dialect == "postgres" else ""
        put = (
            "INSERT INTO runs "
            "(tenant, id, session_id, asked, parent_run, root_run, background, began_at, label, "
            f"{statements.REQUEST_COLUMN}, owner) "
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, coalesce("
            f"(SELECT s.owner FROM sessions s WHERE s.tenant = ?1 AND s.id = ?3 {lock}), '')) "
            "ON CONFLICT (tenant, id) DO NOTHING"
        )
        values = (
            *(self.tenant, run_id, session_id, seal_blob(self.database, message.encode())),
            *(parent_run, root_run or run_id, background, self._clock()),
            msgspec.json.encode(label).decode(),
            None if run_request is None else seal_blob(self.database, run_request),
        )

        def work(connection: Connection) -> StoredRun:
            connection.execute(put, values)
            found = self.find_run(connection, run_id)
            if found is None:
                raise _being_deleted(session_id)
            return found

        return work

    async def run(self, run_id: str) -> StoredRun | None:
        """A run."""
        return await self.database.read(lambda connection: self.find_run(connection, run_id))

    def find_run(self, connection: Connection, run_id: str) -> StoredRun | None:
        """A run, read in the transaction of the caller."""
        found = self._runs(connection, "AND id = ?", run_id)
        return found[0] if found else None

    async def runs(
        self,
        *,
        session_id: str = "",
        state: Literal["", "open", "waiting", "ended"] = "",
        owner: str | None = None,
        parent_run: str = "",
        before: str = "",
        limit: int = 50,
        agent: str = "",
    ) -> list[StoredRun]:
        """Runs, newest first.

        Args:
            session_id: Only those of one session.
            state: Only those that are open, wait for a person, or have ended.
            owner: Only those of the sessions of a user.
            parent_run: Only those that this run started.
            before: Only those created before this run.
            limit: How many at most.
            agent: Only those of the sessions of an agent.
        """
        chosen = [
            *([session_id] if session_id else []),
            *([owner] if owner is not None else []),
            *(value for value in (parent_run, before, agent) if value),
        ]
        statement = statements.select_runs(
            state,
            session=bool(session_id),
            owner=owner is not None,
            parent=bool(parent_run),
            before=bool(before),
            agent=bool(agent),
        )
        values = (self.tenant, *chosen, limit)
        rows = await self.database.read(
            lambda c: c.execute(statement, values).fetchall(), allow_stale=True
        )
        return [self._run(row) for row in rows]

    async def run_counts(
        self, owner: str | None = None
    ) -> list[tuple[str, int, float, float | None]]:
        """By agent: the number of runs, the start of the last one and their known cost.

        Args:
            owner: Only those of the sessions of a user.
        """
        statement = statements.count_runs(owner=owner is not None)
        values = (self.tenant,) if owner is None else (self.tenant, owner)
        rows = await self.database.read(
            lambda c: c.execute(statement, values).fetchall(), allow_stale=True
        )
        return [(agent, count, last, cost) for agent, count, last, cost in rows]

    async def ended_runs(self, since: float, long_s: float, limit: int) -> list[StoredRun]:
        """Runs without a parent that failed or took long, in the order of their ends.

        Args:
            since: Only those that ended at this time or later.
            long_s: The seconds after which a run that succeeded or was cancelled is included.
            limit: How many at most.
        """
        statement = (
            f"SELECT {statements.RUN_COLUMNS} FROM runs WHERE tenant = ? AND ended_at IS NOT NULL "
            "AND ended_at >= ? AND parent_run = '' AND stop <> 'waiting' "
            "AND (stop NOT IN ('completed', 'cancelled') OR ended_at - began_at >= ?) "
            f"AND {statements.IS_SHOWN} ORDER BY ended_at LIMIT ?"
        )
        values = (self.tenant, since, long_s, limit)
        rows = await self.database.read(lambda c: c.execute(statement, values).fetchall())
        return [self._run(row) for row in rows]

    async def run_request(self, run_id: str) -> bytes | None:
        """The run request of a run, if it was stored."""
        return await self.database.read(lambda c: self._run_request(c, run_id))

    def _run_request(self, connection: Connection, run_id: str) -> bytes | None:
        statement = f"SELECT {statements.REQUEST_COLUMN} FROM runs WHERE tenant = ? AND id = ?"
        row = connection.execute(statement, (self.tenant, run_id)).fetchone()
        return None if row is None or row[0] is None else open_blob(self.database, row[0])

    async def load_run(self, run: StoredRun) -> LoadedRun:
        """All that is needed to start or resume a run, in one read."""

        def work(connection: Connection) -> tuple[bytes | None, RunUsage, list[Any], list[Any]]:
            of_session = (self.tenant, run.session_id, 0, NO_LIMIT)
            of_run = (self.tenant, run.id, 0, NO_LIMIT)
            return (
                self._run_request(connection, run.id),
                self._usage(connection, run.root_run),
                connection.execute(statements.MESSAGES, of_session).fetchall(),
                connection.execute(statements.RECORDS, of_run).fetchall(),
            )

        request, usage, messages, records = await self.database.read(work)
        unpacked = await self._records(run.id, records)
        return LoadedRun(request, usage, self._messages(messages), unpacked)

    async def open_background_runs(self, parent_run: str) -> list[StoredRun]:
        """The background runs that a run started and that have not ended."""
        condition = (
            "AND parent_run = ? AND parent_run <> '' AND background = 1 AND stop IS NULL "
            "ORDER BY seq"
        )
        return await self.database.read(lambda c: self._runs(c, condition, parent_run))

    async def usage(self, root_run: str) -> RunUsage:
        """The usage of a root run and all its descendants."""
        return await self.database.read(lambda c: self._usage(c, root_run))

    def _usage(self, connection: Connection, root_run: str) -> RunUsage:
        return RunUsage(
            *connection.execute(statements.USAGE_OF_ROOT_RUN, (self.tenant, root_run)).fetchone()
        )

    async def append(
        self,
        run: StoredRun,
        records: Sequence[Record],
        messages: Sequence[tuple[int, Message]],
        usage: RunUsage,
        stop: StopReason | None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Store the progress of a run in one transaction.

        Args:
            run: The run.
            records: Its new records.
            messages: New messages, and their numbers in the session.
            usage: The total usage of the run.
            stop: Why it ended, if it did.
            epoch: The epoch of the caller; `Fenced` if the run has a higher one.
        """
        step = self._append_step(run, records, messages, usage, stop, epoch)
        notices = (progress_notice(self.tenant, run.id, records, stop),)
        _check_epoch(run.id, epoch, await self.database.apply(step, notices=notices))

    def append_later(
        self,
        run: StoredRun,
        records: Sequence[Record],
        messages: Sequence[tuple[int, Message]],
        usage: RunUsage,
        *,
        epoch: int | None = None,
    ) -> None:
        """Store the progress of an open run with the next commit; see `append`."""
        self.database.defer(
            self._append_step(run, records, messages, usage, None, epoch),
            notices=(progress_notice(self.tenant, run.id, records, None),),
            on_result=partial(_check_epoch, run.id, epoch),
        )

    def _append_step(
        self,
        run: StoredRun,
        records: Sequence[Record],
        messages: Sequence[tuple[int, Message]],
        usage: RunUsage,
        stop: StopReason | None,
        epoch: int | None,
    ) -> Step:
        return Step(
            APPEND,
            (
                *(self.tenant, run.id, run.session_id, NO_LIMIT if epoch is None else epoch),
                *self.progress_values(records, messages, usage, stop),
            ),
        )

    def progress_values(
        self,
        records: Sequence[Record],
        messages: Sequence[tuple[int, Message]],
        usage: RunUsage,
        stop: StopReason | None,
    ) -> tuple[Sequence[Any], Packed | None, Sequence[tuple[int, bytes]]]:
        """The columns of the run, its packed records and its messages, as a step takes them."""
        now, packed = self._clock(), None
        if records:
            cipher = self.database.cipher
            found = pack_records(records, cipher.key_id if cipher.seals else "")
            row = seal_blob(self.database, found.row)
            lists = [
                (tools.digest, seal_blob(self.database, tools.data)) for tools in found.tool_lists
            ]
            packed = (records[-1].seq, row, now, lists)
        rows = [(number, self.encode_message(message)) for number, message in messages]
        used = (usage.turns, usage.calls, usage.tokens_in, usage.tokens_out, usage.cost)
        return (stop, *used, now), packed, rows

    async def records(self, run_id: str, after: int = 0, limit: int = NO_LIMIT) -> list[Record]:
        """The records of a run after a number, in order."""
        values = (self.tenant, run_id, after, limit)
        rows = await self.database.read(lambda c: c.execute(statements.RECORDS, values).fetchall())
        found: list[Record] = []
        for row in rows:  # a row may have many records: unpack no more than are wanted
            unpacked = await self._records(run_id, [row])
            found += [record for record in unpacked if record.seq > after]
            if len(found) >= limit:
                break
        return found[:limit]

    async def _records(self, run_id: str, rows: Sequence[tuple[Any, ...]]) -> list[Record]:
        """The records of these rows of a run; none if its session was deleted meanwhile."""
        packed = [open_blob(self.database, row[0]) for row in rows]
        digests = {digest for row in packed for digest in referenced_tool_lists(row).values()}
        lists = await self._tool_lists(run_id, digests) if digests else {}
        if lists is None:
            return []
        return [record for row in packed for record in unpack_records(row, lists)]

    async def _tool_lists(self, run_id: str, digests: set[str]) -> dict[str, bytes] | None:
        """Tool lists of a run by digest; None if the run, and so perhaps its lists, is deleted."""
        find = "SELECT tools FROM tool_lists WHERE tenant = ? AND digest = ?"

        def work(connection: Connection) -> tuple[dict[str, Any], bool]:
            found = {
                digest: connection.execute(find, (self.tenant, digest)).fetchone()
                for digest in digests
            }
            is_deleted = not all(found.values()) and self.find_run(connection, run_id) is None
            return found, is_deleted

        found, is_deleted = await self.database.read(work)
        if is_deleted:
            return None
        if not all(found.values()):
            raise DamagedStore(self.database.name, "the tools of a record are missing")
        return {digest: open_blob(self.database, row[0]) for digest, row in found.items()}

    async def last_record(self, run_id: str) -> Record | None:
        """The last record of a run."""
        statement = (
            "SELECT record FROM records WHERE tenant = ? AND run_id = ? ORDER BY seq DESC LIMIT 1"
        )
        values = (self.tenant, run_id)
        row = await self.database.read(lambda c: c.execute(statement, values).fetchone())
        records = [] if row is None else await self._records(run_id, [row])
        return records[-1] if records else None

    async def messages(
        self, session_id: str, start: int = 0, limit: int = NO_LIMIT
    ) -> list[tuple[int, Message]]:
        """The messages of a session from a number on."""
        values = (self.tenant, session_id, start, limit)
        rows = await self.database.read(lambda c: c.execute(statements.MESSAGES, values).fetchall())
        return self._messages(rows)

    def encode_message(self, message: Message) -> bytes:
        """A message as it is stored."""
        return seal_blob(self.database, compress_json(msgspec.json.encode(message)))

    def _messages(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[int, Message]]:
        return [
            (number, _MESSAGE_DECODER.decode(decompress_json(open_blob(self.database, blob))))
            for number, blob in rows
        ]

    async def todos(self, session_id: str) -> bytes | None:
        """The encoded todos of a session."""
        statement = "SELECT todos FROM todos WHERE tenant = ? AND session_id = ?"
        values = (self.tenant, session_id)
        row = await self.database.read(
            lambda c: c.execute(statement, values).fetchone(), allow_stale=True
        )
        return None if row is None else open_blob(self.database, row[0])

    async def put_todos(self, session_id: str, todos: bytes) -> None:
        """Replace the todos of a session."""
        values = (self.tenant, session_id, seal_blob(self.database, todos))
        put = (
            "INSERT INTO todos VALUES (?, ?, ?) "
            "ON CONFLICT (tenant, session_id) DO UPDATE SET todos = excluded.todos"
        )
        await self.database.write(lambda c: c.execute(put, values))

    def find_session(self, connection: Connection, session_id: str) -> Session | None:
        """A session, read in the transaction of the caller."""
        statement = "SELECT session FROM sessions WHERE tenant = ? AND id = ?"
        row = connection.execute(statement, (self.tenant, session_id)).fetchone()
        return None if row is None else self._decode_session(row[0])

    def _decode_session(self, blob: bytes) -> Session:
        return _SESSION_DECODER.decode(open_blob(self.database, blob))

    def _summary(self, connection: Connection, session: Session) -> SessionSummary:
        row = connection.execute(statements.LAST_RUN, (self.tenant, session.id)).fetchone()
        count = connection.execute(statements.MESSAGE_COUNT, (self.tenant, session.id)).fetchone()[
            0
        ]
        return SessionSummary(session, None if row is None else self._run(row), count)

    def _runs(self, connection: Connection, condition: str, value: str) -> list[StoredRun]:
        statement = (
            f"SELECT {statements.RUN_COLUMNS} FROM runs WHERE tenant = ? AND {statements.IS_SHOWN} "
            f"{condition}"
        )
        rows = connection.execute(statement, (self.tenant, value)).fetchall()
        return [self._run(row) for row in rows]

    def _run(self, row: tuple[Any, ...]) -> StoredRun:
        id_, session, asked, parent, root, background, stop, *spent = row[:12]
        began, ended, label_json, epoch, holder, lease_until, owner, agent = row[12:]
        message = open_blob(self.database, asked).decode()
        reason = None if stop is None else StopReason(stop)
        label = msgspec.json.decode(label_json, type=Label)
        return StoredRun(
            id_, session, message, parent, root, bool(background), reason, RunUsage(*spent), began,
            ended, label if label != CLEAN else CLEAN, epoch, holder, lease_until, owner,
            agent or "",
        )  # fmt: skip

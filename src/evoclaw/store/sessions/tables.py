"""The tables of the session store, and their values: a session, its runs, and their usage.

The tenant is a part of every key and index.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from evoclaw.core.events import Record, StopReason
from evoclaw.core.labels import CLEAN, LOCAL_PRINCIPAL, Label
from evoclaw.core.messages import Message
from evoclaw.store.databases.database import Schema, StoreError
from evoclaw.store.sessions.append_step import APPEND
from evoclaw.store.sessions.delete_steps import (
    DELETE_EXPIRED_SESSION,
    DELETE_HIDDEN_SESSION,
    DELETE_SESSION,
)
from evoclaw.store.sessions.question_steps import ANSWER_QUESTION, ASK_QUESTION
from evoclaw.store.sessions.questions import QUESTION_TABLES

SESSION_TABLES = (
    """CREATE TABLE sessions (
        seq INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        owner TEXT NOT NULL,
        parent TEXT NOT NULL,
        agent TEXT NOT NULL,
        session BLOB NOT NULL,
        UNIQUE (tenant, id)
    ) STRICT""",
    "CREATE INDEX sessions_below ON sessions (tenant, parent)",
    "CREATE INDEX sessions_of ON sessions (tenant, owner, seq)",
    "CREATE INDEX sessions_asked ON sessions (tenant, owner, agent, seq)",
    # For the descendants of a session: most sessions have no parent.
    "CREATE INDEX sessions_under ON sessions (tenant, parent) WHERE parent <> ''",
)
RUN_TABLES = (
    # `holder`, `epoch` and `lease_until`: the process that drives it. `errand`: the run request,
    # see `statements.REQUEST_COLUMN`.
    # `owner`: that of its session, which never changes.
    """CREATE TABLE runs (
        seq INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        asked BLOB NOT NULL,
        parent_run TEXT NOT NULL,
        root_run TEXT NOT NULL,
        background INTEGER NOT NULL,
        stop TEXT,
        turns INTEGER NOT NULL DEFAULT 0,
        calls INTEGER NOT NULL DEFAULT 0,
        tokens_in INTEGER NOT NULL DEFAULT 0,
        tokens_out INTEGER NOT NULL DEFAULT 0,
        cost REAL DEFAULT 0,
        began_at REAL NOT NULL,
        ended_at REAL,
        label TEXT NOT NULL DEFAULT '{}',
        epoch INTEGER NOT NULL DEFAULT 0,
        holder TEXT NOT NULL DEFAULT '',
        lease_until REAL,
        errand BLOB,
        owner TEXT NOT NULL DEFAULT '',
        UNIQUE (tenant, id)
    ) STRICT""",
    "CREATE INDEX runs_of ON runs (tenant, session_id, seq)",
    "CREATE INDEX runs_below ON runs (tenant, parent_run)",
    "CREATE INDEX runs_under ON runs (tenant, root_run)",
    "CREATE INDEX runs_listed ON runs (tenant, seq)",
    # For open and held runs, among all that have ended.
    "CREATE INDEX runs_open ON runs (tenant, session_id, seq) "
    "WHERE stop IS NULL OR stop = 'waiting'",
    "CREATE INDEX runs_held ON runs (holder) WHERE holder <> ''",
    # For runs that ended in a period; open runs are not in it.
    "CREATE INDEX runs_ended ON runs (tenant, ended_at) WHERE ended_at IS NOT NULL",
    # For the newest runs of a user.
    "CREATE INDEX runs_owned ON runs (tenant, owner, seq)",
    # To count queued runs without scanning the others.
    "CREATE INDEX runs_queued ON runs (tenant, session_id) "
    "WHERE stop IS NULL AND epoch = 0 AND parent_run = ''",
    # For the first open run of each tenant, among all that have ended.
    "CREATE INDEX runs_next ON runs (tenant, seq) WHERE stop IS NULL",
)
CONTENT_TABLES = (
    # A row is all that a run stored at once; `seq` is the number of its last record.
    """CREATE TABLE records (
        tenant TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL, record BLOB NOT NULL,
        PRIMARY KEY (tenant, run_id, seq)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE messages (
        tenant TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL,
        message BLOB NOT NULL,
        PRIMARY KEY (tenant, session_id, number)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE todos (
        tenant TEXT NOT NULL, session_id TEXT NOT NULL, todos BLOB NOT NULL,
        PRIMARY KEY (tenant, session_id)
    ) STRICT, WITHOUT ROWID""",
)
# Most runs have no parent, and `sessions_under` finds the descendants of a session.
FEWER_INDEX_ROWS = (
    "DROP INDEX sessions_below",
    "DROP INDEX runs_below",
    "CREATE INDEX runs_below ON runs (tenant, parent_run) WHERE parent_run <> ''",
)
# PostgreSQL writes a new version of a row with each step of its run: if that fits into the same
# page, no index is written. `runs_next` is for schedulers without jobs.
POSTGRES_ROW_VERSIONS = (
    "DROP INDEX runs_next",
    "ALTER TABLE runs SET (fillfactor = 50)",
)
# Most runs are their own root. The ids come first in their index: see `run_by_id`.
POSTGRES_RUN_INDEXES = (
    "ALTER TABLE runs DROP CONSTRAINT runs_tenant_id_key, ADD UNIQUE (id, tenant)",
    "DROP INDEX runs_under",
    "CREATE INDEX runs_under ON runs (tenant, root_run) WHERE root_run <> id",
)
TOOL_LIST_TABLES = (
    # Lists of tools that records refer to by digest; see `packed_records`.
    """CREATE TABLE tool_lists (
        tenant TEXT NOT NULL, digest TEXT NOT NULL, used_at REAL NOT NULL, tools BLOB NOT NULL,
        PRIMARY KEY (tenant, digest)
    ) STRICT, WITHOUT ROWID""",
)
DELETED_SESSION_TABLES = (
    # Sessions that are deleted in several steps: see `delete_steps`.
    """CREATE TABLE deleted_sessions (
        tenant TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tenant, id)
    ) STRICT, WITHOUT ROWID""",
)
SCHEMA = Schema(
    "session store",
    (
        (*SESSION_TABLES, *RUN_TABLES, *CONTENT_TABLES, *QUESTION_TABLES),
        FEWER_INDEX_ROWS,
        TOOL_LIST_TABLES,
        # Values that are compressed with a dictionary: older versions cannot read them.
        (),
        DELETED_SESSION_TABLES,
    ),
    postgres_migrations=(
        None,
        (*FEWER_INDEX_ROWS, *POSTGRES_ROW_VERSIONS),
        None,
        POSTGRES_RUN_INDEXES,
    ),
    checksummed=(
        ("sessions", ("session",)),
        ("runs", ("asked", "errand")),
        ("records", ("record",)),
        ("messages", ("message",)),
        ("tool_lists", ("tools",)),
        ("todos", ("todos",)),
        ("questions", ("question", "answer")),
    ),
    sealed=True,
    procedures=(
        APPEND,
        ASK_QUESTION,
        ANSWER_QUESTION,
        DELETE_SESSION,
        DELETE_EXPIRED_SESSION,
        DELETE_HIDDEN_SESSION,
    ),
)


class Session(Struct, frozen=True):
    """A conversation with an agent."""

    id: str
    agent: str
    owner: str = ""
    """The user."""
    title: str = ""
    parent: str = ""
    """The session that started it, if one did."""
    depth: int = 0
    """How many ancestors it has."""
    capabilities: frozenset[str] = frozenset()
    """The most capabilities that its runs may hold."""
    tools: frozenset[str] | None = None
    """The tools that its runs may use at most; None is all that the capabilities allow."""
    created_at: float = 0.0
    tenant: str = LOCAL_PRINCIPAL.tenant
    """The tenant of its owner; set by the store, not by the caller."""
    on: str = ""
    """The edge that its runs work on, `any` or `*`, as the user chose; empty: the default."""


class RunUsage(Struct, frozen=True):
    """The usage of runs."""

    turns: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    """In US dollars; None if the price of a part is unknown."""


class StoredRun(Struct, frozen=True):
    """A run: one message, and the state of its answer."""

    id: str
    session_id: str
    message: str
    """The message of the user, or of the parent session."""
    parent_run: str
    root_run: str
    """The run at the top, whose budget all descendants share."""
    background: bool
    """No parent run waits for it."""
    stop: StopReason | None
    usage: RunUsage
    began_at: float
    ended_at: float | None
    label: Label = CLEAN
    """The label of what the caller had seen."""
    epoch: int = 0
    """How often a process started or resumed it."""
    holder: str = ""
    """The process that drives it, or did last."""
    lease_until: float | None = None
    """When the lease of the holder ends; None without a lease, or if a job queue manages it."""
    owner: str = ""
    """The user of its session."""
    agent: str = ""
    """The agent of its session."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.stop is None or self.stop is StopReason.WAITING


class LoadedRun(Struct, frozen=True):
    """All that is needed to start or resume a run."""

    request: bytes | None
    """Its run request."""
    usage: RunUsage
    """The usage of its root run."""
    messages: Sequence[tuple[int, Message]]
    """The messages of its session, with their numbers."""
    records: Sequence[Record]


class Fenced(StoreError):
    """Another process drives the run under a higher epoch; nothing was stored."""

    def __init__(self, run_id: str, epoch: int, now: int) -> None:
        super().__init__(
            f"run {run_id} is driven by another orchestrator (epoch {now}, ours is {epoch}); "
            "leave it alone"
        )
        self.run_id, self.epoch, self.now = run_id, epoch, now


class SessionSummary(Struct, frozen=True):
    """A session with its last run and the number of its messages."""

    session: Session
    last: StoredRun | None
    messages: int

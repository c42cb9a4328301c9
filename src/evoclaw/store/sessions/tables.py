"""The tables of the session store: a tenant is a part of every key and every index.

What was kept before there were tenants is of the one who had the machine, `local`.
"""

from __future__ import annotations

from evoclaw.store.databases.database import Schema
from evoclaw.store.sessions.questions import QUESTIONS, QUESTIONS_OF_TENANTS

# A table is not renamed: SQLite would look through the whole schema, at every opening of a file.
SESSIONS = (
    "CREATE TABLE old_sessions AS SELECT * FROM sessions",
    "DROP TABLE sessions",
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
    "INSERT INTO sessions SELECT seq, 'local', id, owner, parent, agent, session FROM old_sessions",
    "DROP TABLE old_sessions",
    "CREATE INDEX sessions_below ON sessions (tenant, parent)",
    "CREATE INDEX sessions_of ON sessions (tenant, owner, seq)",
)
_FIGURES = (
    "id, session_id, asked, parent_run, root_run, background, stop, turns, calls, tokens_in, "
    "tokens_out, cost, began_at, ended_at, label"
)
RUNS = (
    "CREATE TABLE old_runs AS SELECT * FROM runs",
    "DROP TABLE runs",
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
        UNIQUE (tenant, id)
    ) STRICT""",
    f"INSERT INTO runs (seq, tenant, {_FIGURES}) SELECT seq, 'local', {_FIGURES} FROM old_runs",
    "DROP TABLE old_runs",
    "CREATE INDEX runs_of ON runs (tenant, session_id, seq)",
    "CREATE INDEX runs_below ON runs (tenant, parent_run)",
    "CREATE INDEX runs_under ON runs (tenant, root_run)",
)
THE_REST = (
    "CREATE TABLE old_records AS SELECT * FROM records",
    "DROP TABLE records",
    """CREATE TABLE records (
        tenant TEXT NOT NULL, run_id TEXT NOT NULL, seq INTEGER NOT NULL, record BLOB NOT NULL,
        PRIMARY KEY (tenant, run_id, seq)
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO records SELECT 'local', run_id, seq, record FROM old_records",
    "DROP TABLE old_records",
    "CREATE TABLE old_messages AS SELECT * FROM messages",
    "DROP TABLE messages",
    """CREATE TABLE messages (
        tenant TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL,
        message BLOB NOT NULL,
        PRIMARY KEY (tenant, session_id, number)
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO messages SELECT 'local', session_id, number, message FROM old_messages",
    "DROP TABLE old_messages",
    "CREATE TABLE old_todos AS SELECT * FROM todos",
    "DROP TABLE todos",
    """CREATE TABLE todos (
        tenant TEXT NOT NULL, session_id TEXT NOT NULL, todos BLOB NOT NULL,
        PRIMARY KEY (tenant, session_id)
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO todos SELECT 'local', session_id, todos FROM old_todos",
    "DROP TABLE old_todos",
)

HOLDERS = (
    "ALTER TABLE runs ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN holder TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN lease_until REAL",
    "ALTER TABLE runs ADD COLUMN errand BLOB",
    "CREATE INDEX runs_listed ON runs (tenant, seq)",
    # To find what may go on, and what is held, among all the runs that have ended.
    "CREATE INDEX runs_open ON runs (tenant, session_id, seq) "
    "WHERE stop IS NULL OR stop = 'waiting'",
    "CREATE INDEX runs_held ON runs (holder) WHERE holder <> ''",
)
"""Who drives a run now, under which epoch, and what it was begun with."""

ENDED = (
    # To find what ended within a time; a run that goes on is not in it.
    "CREATE INDEX runs_ended ON runs (tenant, ended_at) WHERE ended_at IS NOT NULL",
)

OWNED = (
    # A run is its session's, and that never changes hands: to list somebody's newest ones.
    "ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET owner = coalesce((SELECT s.owner FROM sessions s "
    "WHERE s.tenant = runs.tenant AND s.id = runs.session_id), '')",
    "CREATE INDEX runs_owned ON runs (tenant, owner, seq)",
    "CREATE INDEX sessions_asked ON sessions (tenant, owner, agent, seq)",
    # To count what is queued without a look at what was.
    "CREATE INDEX runs_queued ON runs (tenant, session_id) "
    "WHERE stop IS NULL AND epoch = 0 AND parent_run = ''",
)

NEXT = (
    # To find the first that may go on, of each tenant, among all the runs that have ended.
    "CREATE INDEX runs_next ON runs (tenant, seq) WHERE stop IS NULL",
    # To find what is below a session: most are below none.
    "CREATE INDEX sessions_under ON sessions (tenant, parent) WHERE parent <> ''",
)

SCHEMA = Schema(
    "session store",
    (
        (
            """CREATE TABLE sessions (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                owner TEXT NOT NULL,
                parent TEXT NOT NULL,
                agent TEXT NOT NULL,
                session BLOB NOT NULL
            ) STRICT""",
            "CREATE INDEX sessions_below ON sessions (parent)",
            "CREATE INDEX sessions_of ON sessions (owner, seq)",
            """CREATE TABLE runs (
                seq INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
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
                ended_at REAL
            ) STRICT""",
            "CREATE INDEX runs_of ON runs (session_id, seq)",
            "CREATE INDEX runs_below ON runs (parent_run)",
            "CREATE INDEX runs_under ON runs (root_run)",
            """CREATE TABLE records (
                run_id TEXT NOT NULL, seq INTEGER NOT NULL, record BLOB NOT NULL,
                PRIMARY KEY (run_id, seq)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE messages (
                session_id TEXT NOT NULL, number INTEGER NOT NULL, message BLOB NOT NULL,
                PRIMARY KEY (session_id, number)
            ) STRICT, WITHOUT ROWID""",
            "CREATE TABLE todos (session_id TEXT PRIMARY KEY, todos BLOB NOT NULL) STRICT",
            *QUESTIONS,
        ),
        ("ALTER TABLE runs ADD COLUMN label TEXT NOT NULL DEFAULT '{}'",),
        (*SESSIONS, *RUNS, *THE_REST, *QUESTIONS_OF_TENANTS),
        HOLDERS,
        ENDED,
        OWNED,
        NEXT,
    ),
    sealed=(
        ("sessions", ("session",)),
        ("runs", ("asked", "errand")),
        ("records", ("record",)),
        ("messages", ("message",)),
        ("todos", ("todos",)),
        ("questions", ("question", "answer")),
    ),
)

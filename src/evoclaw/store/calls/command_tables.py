"""The tables of the command store; what was kept before there were tenants is of `local`.

The id of a command is what its edge knows it by, and edges are shared: it is one for all tenants.
"""

from __future__ import annotations

from evoclaw.store.databases.database import Schema

WAITS = "settled_at IS NULL"
STATES = ("queued", "sent", "accepted", "cancelling", "settled", "expired")
# Not `IN`: for that SQLite would build a small table at every write.
CHECKED = " OR ".join(f"state = '{state}'" for state in STATES)
TENANTS = (
    "ALTER TABLE commands ADD COLUMN tenant TEXT NOT NULL DEFAULT 'local'",
    f"CREATE INDEX commands_asked ON commands (tenant, seq) WHERE {WAITS}",
    "DROP TRIGGER came",
    "DROP TRIGGER closed",
    "CREATE TABLE old_waiting AS SELECT * FROM waiting",
    "DROP TABLE waiting",
    """CREATE TABLE waiting (
        tenant TEXT NOT NULL, agent_id TEXT NOT NULL, n INTEGER NOT NULL CHECK (n >= 0),
        PRIMARY KEY (tenant, agent_id)
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO waiting SELECT 'local', agent_id, n FROM old_waiting",
    "DROP TABLE old_waiting",
    """CREATE TRIGGER came AFTER INSERT ON commands BEGIN
        INSERT INTO waiting VALUES (NEW.tenant, NEW.agent_id, 1)
        ON CONFLICT (tenant, agent_id) DO UPDATE SET n = n + 1;
    END""",
    """CREATE TRIGGER closed AFTER UPDATE OF settled_at ON commands
    WHEN OLD.settled_at IS NULL AND NEW.settled_at IS NOT NULL
    BEGIN
        UPDATE waiting SET n = n - 1 WHERE tenant = NEW.tenant AND agent_id = NEW.agent_id;
    END""",
)
# Who closes a command counts: triggers are written differently for every database.
COUNTED = (
    "DROP TRIGGER came",
    "DROP TRIGGER closed",
    "CREATE TABLE old_notes AS SELECT * FROM notes ORDER BY rowid",
    "DROP TABLE notes",
    """CREATE TABLE notes (
        seq INTEGER PRIMARY KEY, request_id TEXT NOT NULL, at REAL NOT NULL, outcome BLOB NOT NULL
    ) STRICT""",
    "INSERT INTO notes (request_id, at, outcome) "
    "SELECT request_id, at, outcome FROM old_notes ORDER BY rowid",
    "DROP TABLE old_notes",
    "CREATE INDEX notes_of ON notes (request_id)",
)
ALL_AT_ONCE = (
    f"""CREATE TABLE commands (
        seq INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL UNIQUE,
        agent_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        payload BLOB NOT NULL,
        expires_at REAL,
        state TEXT NOT NULL CHECK ({CHECKED}),
        outcome BLOB,
        settled_at REAL,
        tenant TEXT NOT NULL DEFAULT 'local'
    )""",
    f"CREATE INDEX commands_waiting ON commands (agent_id, seq) WHERE {WAITS}",
    "CREATE INDEX commands_unsent ON commands (expires_at) WHERE state = 'queued'",
    "CREATE INDEX commands_closed ON commands (settled_at) WHERE settled_at IS NOT NULL",
    f"CREATE INDEX commands_asked ON commands (tenant, seq) WHERE {WAITS}",
    """CREATE TABLE notes (
        seq INTEGER PRIMARY KEY, request_id TEXT NOT NULL, at REAL NOT NULL, outcome BLOB NOT NULL
    )""",
    "CREATE INDEX notes_of ON notes (request_id)",
    """CREATE TABLE waiting (
        tenant TEXT NOT NULL, agent_id TEXT NOT NULL, n INTEGER NOT NULL CHECK (n >= 0),
        PRIMARY KEY (tenant, agent_id)
    )""",
)
"""What the three steps come to, for a database that never had the first two."""
COUNT_ANEW = (
    "DELETE FROM waiting",
    "INSERT INTO waiting (tenant, agent_id, n) SELECT tenant, agent_id, count(*) FROM commands "
    f"WHERE {WAITS} GROUP BY tenant, agent_id",
)
SCHEMA = Schema(
    "command store",
    (
        (
            f"""CREATE TABLE commands (
                seq INTEGER PRIMARY KEY,
                request_id TEXT NOT NULL UNIQUE,
                agent_id TEXT NOT NULL,
                run_id TEXT NOT NULL,
                payload BLOB NOT NULL,
                expires_at REAL,
                state TEXT NOT NULL CHECK ({CHECKED}),
                outcome BLOB,
                settled_at REAL
            ) STRICT""",
            f"CREATE INDEX commands_waiting ON commands (agent_id, seq) WHERE {WAITS}",
            "CREATE INDEX commands_unsent ON commands (expires_at) WHERE state = 'queued'",
            "CREATE INDEX commands_closed ON commands (settled_at) WHERE settled_at IS NOT NULL",
            """CREATE TABLE notes (
                request_id TEXT NOT NULL, at REAL NOT NULL, outcome BLOB NOT NULL
            ) STRICT""",
            "CREATE INDEX notes_of ON notes (request_id)",
            # Counting ten thousand rows for every command would be the dearest part of it.
            """CREATE TABLE waiting (
                agent_id TEXT PRIMARY KEY NOT NULL, n INTEGER NOT NULL CHECK (n >= 0)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TRIGGER came AFTER INSERT ON commands BEGIN
                INSERT INTO waiting VALUES (NEW.agent_id, 1)
                ON CONFLICT (agent_id) DO UPDATE SET n = n + 1;
            END""",
            """CREATE TRIGGER closed AFTER UPDATE OF settled_at ON commands
            WHEN OLD.settled_at IS NULL AND NEW.settled_at IS NOT NULL
            BEGIN
                UPDATE waiting SET n = n - 1 WHERE agent_id = NEW.agent_id;
            END""",
        ),
        TENANTS,
        COUNTED,
    ),
    sealed=(("commands", ("payload", "outcome")), ("notes", ("outcome",))),
    postgres=((), (), ALL_AT_ONCE),
    derived=(("waiting", COUNT_ANEW),),
)

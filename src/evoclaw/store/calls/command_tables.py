"""The tables of the command store.

The edge knows a command by its id, and tenants share edges: so ids are unique across all tenants.
"""

from __future__ import annotations

from evoclaw.store.calls.command_steps import NO_OUTCOME, PROCEDURES
from evoclaw.store.databases.database import Schema

STATES = ("queued", "sent", "accepted", "cancelling", "settled", "expired")
# Not `IN`: for that SQLite would build a temporary table at every write.
STATE_CHECK = " OR ".join(f"state = '{state}'" for state in STATES)
TABLES = (
    f"""CREATE TABLE commands (
        seq INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL UNIQUE,
        agent_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        payload BLOB NOT NULL,
        expires_at REAL,
        state TEXT NOT NULL CHECK ({STATE_CHECK}),
        outcome BLOB,
        settled_at REAL,
        tenant TEXT NOT NULL DEFAULT 'local'
    ) STRICT""",
    f"CREATE INDEX commands_waiting ON commands (agent_id, seq) WHERE {NO_OUTCOME}",
    "CREATE INDEX commands_unsent ON commands (expires_at) WHERE state = 'queued'",
    "CREATE INDEX commands_closed ON commands (settled_at) WHERE settled_at IS NOT NULL",
    f"CREATE INDEX commands_asked ON commands (tenant, seq) WHERE {NO_OUTCOME}",
    """CREATE TABLE notes (
        seq INTEGER PRIMARY KEY, request_id TEXT NOT NULL, at REAL NOT NULL, outcome BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX notes_of ON notes (request_id)",
    """CREATE TABLE waiting (
        tenant TEXT NOT NULL, agent_id TEXT NOT NULL, n INTEGER NOT NULL CHECK (n >= 0),
        PRIMARY KEY (tenant, agent_id)
    ) STRICT, WITHOUT ROWID""",
)
# All orchestrators that call the same edge would wait for each other to update its row.
WITHOUT_WAITING_COUNTS = ("DROP TABLE waiting",)
SCHEMA = Schema(
    "command store",
    (TABLES, WITHOUT_WAITING_COUNTS),
    checksummed=(("commands", ("payload", "outcome")), ("notes", ("outcome",))),
    sealed=True,
    procedures=PROCEDURES,
)

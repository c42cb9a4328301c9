"""The tables of the workflow store, and their rows."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.store.databases.database import Schema
from evoclaw.store.workflows.steps import PROCEDURES

SCHEMA = Schema(
    "workflow store",
    (
        (
            """CREATE TABLE workflow_runs (
                seq INTEGER PRIMARY KEY,
                tenant TEXT NOT NULL,
                id TEXT NOT NULL,
                name TEXT NOT NULL,
                parent TEXT NOT NULL,
                state TEXT NOT NULL,
                asked_key TEXT,
                digest TEXT NOT NULL,
                plan BLOB NOT NULL,
                outcome BLOB,
                head INTEGER NOT NULL,
                wakes INTEGER NOT NULL,
                due REAL,
                holder TEXT,
                lease_until REAL NOT NULL,
                started_at REAL NOT NULL,
                ended_at REAL,
                UNIQUE (tenant, id),
                UNIQUE (tenant, asked_key)
            ) STRICT""",
            "CREATE INDEX workflow_runs_due ON workflow_runs (due) WHERE ended_at IS NULL",
            "CREATE INDEX workflow_runs_held ON workflow_runs (holder) WHERE holder IS NOT NULL",
            "CREATE INDEX workflow_runs_named ON workflow_runs (tenant, name, seq)",
            """CREATE TABLE workflow_events (
                tenant TEXT NOT NULL, workflow_id TEXT NOT NULL, seq INTEGER NOT NULL,
                at REAL NOT NULL, event BLOB NOT NULL,
                PRIMARY KEY (tenant, workflow_id, seq)
            ) STRICT, WITHOUT ROWID""",
            """CREATE TABLE workflow_schedules (
                tenant TEXT NOT NULL, name TEXT NOT NULL, rule TEXT NOT NULL,
                next_at REAL NOT NULL, last_at REAL,
                PRIMARY KEY (tenant, name)
            ) STRICT, WITHOUT ROWID""",
        ),
        # For the runs that ended longest ago.
        (
            "CREATE INDEX workflow_runs_ended ON workflow_runs (ended_at, seq) "
            "WHERE ended_at IS NOT NULL",
        ),
    ),
    checksummed=(("workflow_runs", ("plan", "outcome")), ("workflow_events", ("event",))),
    sealed=True,
    procedures=PROCEDURES,
)


class StoredWorkflow(Struct, frozen=True):
    """A run of a workflow, without its events."""

    tenant: str
    id: str
    name: str
    parent: str
    state: str
    digest: str
    """The hash of its request."""
    plan: bytes
    outcome: bytes | None
    head: int
    """The number of its last event."""
    wakes: int
    """How often another process or a user woke it."""
    due: float | None
    """When to continue; None is when it is woken."""
    started_at: float
    ended_at: float | None


class NewWorkflow(Struct, frozen=True):
    """A workflow run to start."""

    id: str
    name: str
    digest: str
    plan: bytes
    event: bytes
    """Its first event."""
    parent: str = ""
    key: str | None = None


class StoredEvent(Struct, frozen=True):
    """An event of a workflow run."""

    seq: int
    at: float
    event: bytes


class WorkflowUpdate(Struct, frozen=True):
    """The state that is stored with new events."""

    state: str
    outcome: bytes | None = None
    """The outcome of a workflow that ends with them."""


class StoredSchedule(Struct, frozen=True):
    """When a workflow starts next."""

    name: str
    rule: str
    next_at: float
    last_at: float | None = None

"""The tables of the metrics: one row per run, call and edge, derived from stored records.

All rows can be derived again at any time, so none is exported or checksummed.
"""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.metrics import Spending
from evoclaw.store.databases.database import Schema

RUNS, CALLS, HOPS = "figures_runs", "figures_calls", "figures_hops"
TABLES = (RUNS, CALLS, HOPS)
"""Each of them has the columns `tenant` and `run_id`."""

SCHEMA = Schema(
    "figures",
    (
        (
            f"""CREATE TABLE {RUNS} (
                tenant TEXT NOT NULL,
                run_id TEXT NOT NULL,
                ended_at REAL NOT NULL,
                at REAL NOT NULL,
                owner TEXT NOT NULL,
                agent TEXT NOT NULL,
                parent_run TEXT NOT NULL,
                parent_agent TEXT NOT NULL,
                stop TEXT NOT NULL,
                turns INTEGER NOT NULL,
                seconds REAL NOT NULL,
                tokens_in INTEGER NOT NULL,
                tokens_out INTEGER NOT NULL,
                cost REAL NOT NULL,
                unpriced INTEGER NOT NULL,
                saved REAL NOT NULL,
                PRIMARY KEY (tenant, run_id)
            ) STRICT, WITHOUT ROWID""",
            f"CREATE INDEX figures_runs_at ON {RUNS} (tenant, at)",
            f"""CREATE TABLE {CALLS} (
                tenant TEXT NOT NULL,
                at REAL NOT NULL,
                run_id TEXT NOT NULL,
                number INTEGER NOT NULL,
                owner TEXT NOT NULL,
                agent TEXT NOT NULL,
                tool TEXT NOT NULL,
                ms REAL,
                error TEXT NOT NULL,
                denied INTEGER NOT NULL,
                recovered INTEGER NOT NULL,
                bytes INTEGER NOT NULL,
                said TEXT NOT NULL,
                PRIMARY KEY (tenant, at, run_id, number)
            ) STRICT, WITHOUT ROWID""",
            f"CREATE INDEX figures_calls_of ON {CALLS} (tenant, run_id)",
            f"""CREATE TABLE {HOPS} (
                tenant TEXT NOT NULL,
                at REAL NOT NULL,
                run_id TEXT NOT NULL,
                number INTEGER NOT NULL,
                edge TEXT NOT NULL,
                agent TEXT NOT NULL,
                owner TEXT NOT NULL,
                error TEXT NOT NULL,
                PRIMARY KEY (tenant, at, run_id, number, edge)
            ) STRICT, WITHOUT ROWID""",
            f"CREATE INDEX figures_hops_of ON {HOPS} (tenant, run_id)",
        ),
        (
            f"ALTER TABLE {RUNS} ADD COLUMN genome TEXT NOT NULL DEFAULT ''",
            # For the runs of an agent with one genome.
            f"CREATE INDEX figures_runs_with ON {RUNS} (tenant, agent, genome, at)",
        ),
    ),
    # Rows that are missing after an import are derived on the next query.
    derived_tables=((RUNS, ()), (CALLS, ()), (HOPS, ())),
)


class RunRow(Struct, frozen=True, gc=False):
    """The metrics of one run."""

    at: float
    """When it ended or started to wait; of a run in progress, when its last record was written."""
    run_id: str
    owner: str
    agent: str
    parent_run: str
    parent_agent: str
    """The agent of the parent run; empty if there is none."""
    stop: str
    """Why it ended, `waiting`, or `running`."""
    turns: int
    seconds: float
    """From the request until then, without the time that it waited for people."""
    tokens_in: int
    tokens_out: int
    cost: float
    """In US dollars, as far as prices are known."""
    unpriced: int
    """Replies without a known price."""
    saved: float
    """Seconds saved by parallel calls."""
    genome: str
    """The digest of the agent's genome; empty: as configured."""

    @property
    def spending(self) -> Spending:
        """What its replies cost."""
        return Spending(self.tokens_in, self.tokens_out, self.cost, self.unpriced)


class CallRow(Struct, frozen=True, gc=False):
    """The metrics of one call."""

    at: float
    """When it ended."""
    run_id: str
    number: int
    """The position of the call in its run."""
    tool: str
    ms: float | None
    """How long it ran; None if it never did."""
    error: str
    """Its kind; empty if it succeeded."""
    denied: bool
    """A policy or a person denied it."""
    recovered: bool
    """It failed, and the run recovered."""
    bytes: int
    """Of the result that the model got."""
    said: str
    """The first characters of the error text."""


class EdgeCallRow(Struct, frozen=True, gc=False):
    """A call, or one part of it, that was sent to an edge."""

    at: float
    run_id: str
    number: int
    """The position of the call in its run."""
    edge: str
    agent: str
    """The agent that made the call."""
    error: str
    """Its kind; empty if it succeeded."""

"""The tables of the figures: what is known of runs and calls, made from their records.

All of it can be made anew at any time, so none of it is moved or sealed.
"""

from __future__ import annotations

from msgspec import Struct

from evoclaw.store.databases.database import Schema

RUNS, CALLS, HOPS = "figures_runs", "figures_calls", "figures_hops"
TABLES = (RUNS, CALLS, HOPS)
"""All of them name a run by `tenant` and `run_id`."""

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
    ),
    # What is missing after an import is folded when it is asked for.
    derived=((RUNS, ()), (CALLS, ()), (HOPS, ())),
)


class RunFigures(Struct, frozen=True, gc=False):
    """What is known of one run."""

    at: float
    """When it ended or began to wait; of one that goes on, when something happened last."""
    run_id: str
    owner: str
    agent: str
    parent_run: str
    parent_agent: str
    """Whose run began it; empty if none did."""
    stop: str
    """Why it ended, `waiting`, or `running`."""
    turns: int
    seconds: float
    """From when it was asked for until then, without the time that it waited for people."""
    tokens_in: int
    tokens_out: int
    cost: float
    """In US dollars, as far as prices are known."""
    unpriced: int
    """Replies that have no known price."""
    saved: float
    """Seconds saved by calls side by side."""


class CallFigures(Struct, frozen=True, gc=False):
    """What is known of one call."""

    at: float
    """When it had its answer."""
    run_id: str
    number: int
    """Of the call in its run."""
    tool: str
    ms: float | None
    """How long it ran; None if it never did."""
    error: str
    """Its kind; empty if it succeeded."""
    denied: bool
    """It was not let run."""
    recovered: bool
    """It failed, and the run got over it."""
    bytes: int
    """Of what it gave back to the model."""
    said: str
    """The beginning of what was said about its failure."""


class Hop(Struct, frozen=True, gc=False):
    """A call, or its part, that an edge was asked to do."""

    at: float
    run_id: str
    number: int
    """Of the call in its run."""
    edge: str
    agent: str
    """Who asked."""
    error: str
    """Its kind; empty if it succeeded."""

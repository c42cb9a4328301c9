"""The SQL of the session store; every statement is limited to one tenant."""

from __future__ import annotations

RUN_COLUMNS = (
    "id, session_id, asked, parent_run, root_run, background, stop, "
    "turns, calls, tokens_in, tokens_out, cost, began_at, ended_at, label, "
    "epoch, holder, lease_until, owner, "
    "(SELECT s.agent FROM sessions s WHERE s.tenant = runs.tenant AND s.id = runs.session_id)"
)
STATE_CONDITIONS = {
    "": "",
    "open": "AND stop IS NULL",
    "waiting": "AND stop = 'waiting'",
    "ended": "AND stop <> 'waiting'",
}
RARE_STATES = ("open", "waiting")
"""States that few runs have: such runs are found by state, and sorted afterwards. A unary `+`, and
an empty text appended to a column, keep the database from scanning another index instead."""


def select_runs(state: str, *, session: bool, owner: bool, parent: bool, before: bool) -> str:
    """The SELECT of the runs of a tenant, newest first, in a state and with these filters.

    Its values are the tenant, those of the filters, and the limit.
    """
    few = state in RARE_STATES
    seq, owned = ("+seq", "owner || ''") if few else ("seq", "owner")
    chosen = (
        (session, "AND session_id = ?"),
        (owner, f"AND {owned} = ?"),
        (parent, "AND parent_run = ?"),
        (before, f"AND {seq} < (SELECT seq FROM runs WHERE tenant = ?1 AND id = ?)"),
    )
    conditions = " ".join(condition for wanted, condition in chosen if wanted)
    return (
        f"SELECT {RUN_COLUMNS} FROM runs WHERE tenant = ?1 {conditions} {STATE_CONDITIONS[state]} "
        f"ORDER BY {seq} DESC LIMIT ?"
    )


LAST_RUN = (
    f"SELECT {RUN_COLUMNS} FROM runs WHERE tenant = ? AND session_id = ? ORDER BY seq DESC LIMIT 1"
)
MESSAGE_COUNT = (
    "SELECT coalesce(max(number) + 1, 0) FROM messages WHERE tenant = ? AND session_id = ?"
)
_DESCENDANTS = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM sessions WHERE tenant = ?1 AND id = ?2 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?1 AND sessions.parent = below.id AND sessions.parent <> ''
)
SELECT s.session FROM below JOIN sessions s ON s.tenant = ?1 AND s.id = below.id
"""
_SESSIONS = "SELECT s.session FROM sessions s"


def select_sessions(*, below: bool, agent: bool, before: bool) -> str:
    """The SELECT of the sessions of a user, newest first: all, or the descendants of one.

    Its values are the tenant, the ancestor if `below`, the owner, those of the filters, and the
    limit.
    """
    seq = "+s.seq" if below else "s.seq"
    chosen = (
        (agent, "AND s.agent = ?"),
        (before, f"AND {seq} < (SELECT seq FROM sessions WHERE tenant = ?1 AND id = ?)"),
    )
    conditions = " ".join(condition for wanted, condition in chosen if wanted)
    return (
        f"{_DESCENDANTS if below else _SESSIONS} WHERE s.tenant = ?1 AND s.owner = ? {conditions} "
        f"ORDER BY {seq} DESC LIMIT ?"
    )


UPDATE_PROGRESS = """
UPDATE runs SET stop = ?, turns = ?, calls = ?, tokens_in = ?, tokens_out = ?, cost = ?,
    ended_at = CASE WHEN CAST(?1 AS TEXT) IS NULL THEN NULL ELSE ?7 END
WHERE tenant = ?8 AND id = ?9 AND epoch <= ?10
"""
PUT_MESSAGE = """
INSERT INTO messages VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, session_id, number) DO UPDATE SET message = excluded.message
"""
# A run without a known price makes the sum unknown: never report less than was spent.
USAGE_OF_ROOT_RUN = """
SELECT coalesce(sum(turns), 0), coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0),
    coalesce(sum(tokens_out), 0), CASE WHEN count(*) = count(cost) THEN coalesce(sum(cost), 0.0) END
FROM runs WHERE tenant = ? AND root_run = ?
"""
RECORDS = (
    "SELECT record FROM records WHERE tenant = ? AND run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
)
MESSAGES = (
    "SELECT number, message FROM messages WHERE tenant = ? AND session_id = ? AND number >= ? "
    "ORDER BY number LIMIT ?"
)

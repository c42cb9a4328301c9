"""The SQL of the session store; every statement is limited to one tenant."""

from __future__ import annotations

REQUEST_COLUMN = "errand"
"""The column of `runs` with the run request: older versions may share the database."""
_SESSION_OF_RUN = "SELECT 1 FROM sessions s WHERE s.tenant = runs.tenant AND s.id = runs.session_id"
RUN_COLUMNS = (
    "id, session_id, asked, parent_run, root_run, background, stop, "
    "turns, calls, tokens_in, tokens_out, cost, began_at, ended_at, label, "
    "epoch, holder, lease_until, owner, "
    "(SELECT s.agent FROM sessions s WHERE s.tenant = runs.tenant AND s.id = runs.session_id)"
)
IS_SHOWN = (
    "NOT EXISTS (SELECT 1 FROM deleted_sessions d "
    "WHERE d.tenant = runs.tenant AND d.id = runs.session_id)"
)
"""The condition for a run whose session is not being deleted: see `delete_steps`."""
STATE_CONDITIONS = {
    "": "",
    "open": "AND stop IS NULL",
    "waiting": "AND stop = 'waiting'",
    "ended": "AND stop <> 'waiting'",
}
RARE_STATES = ("open", "waiting")
"""States that few runs have: such runs are found by state, and sorted afterwards. A unary `+`, and
an empty text appended to a column, keep the database from scanning another index instead."""


def run_by_id(tenant: str, run_id: str) -> str:
    """The condition for one run in a step on PostgreSQL, which makes its plans only once.

    While a table is new, all indexes that begin with the tenant look alike, and PostgreSQL would
    read all runs of the tenant: for this condition it can use no other index than that of the ids.
    """
    return f"id = {run_id} AND tenant || '' = {tenant}"


def select_runs(
    state: str, *, session: bool, owner: bool, parent: bool, before: bool, agent: bool = False
) -> str:
    """The SELECT of the runs of a tenant, newest first, in a state and with these filters.

    Its values are the tenant, those of the filters, and the limit.
    """
    few = state in RARE_STATES
    seq, owned = ("+seq", "owner || ''") if few else ("seq", "owner")
    chosen = (
        (session, "AND session_id = ?"),
        (owner, f"AND {owned} = ?"),
        (parent, "AND parent_run = ? AND parent_run <> ''"),
        (before, f"AND {seq} < (SELECT seq FROM runs WHERE tenant = ?1 AND id = ?)"),
        (agent, f"AND EXISTS ({_SESSION_OF_RUN} AND s.agent = ?)"),
    )
    conditions = " ".join(condition for wanted, condition in chosen if wanted)
    return (
        f"SELECT {RUN_COLUMNS} FROM runs WHERE tenant = ?1 {conditions} {STATE_CONDITIONS[state]} "
        f"AND {IS_SHOWN} ORDER BY {seq} DESC LIMIT ?"
    )


def count_runs(*, owner: bool) -> str:
    """The SELECT of the number of runs and the last start by agent; its values: tenant, owner."""
    return (
        "SELECT s.agent, count(*), max(runs.began_at), sum(runs.cost) FROM runs "
        "JOIN sessions s ON s.tenant = runs.tenant AND s.id = runs.session_id "
        f"WHERE runs.tenant = ? {'AND runs.owner = ?' if owner else ''} GROUP BY s.agent"
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
UPDATE_USAGE = """
UPDATE runs SET turns = ?, calls = ?, tokens_in = ?, tokens_out = ?, cost = ?
WHERE tenant = ? AND id = ? AND epoch <= ? AND stop IS NULL
"""
"""The progress of a run that was open before and stays so: no index of its state changes."""
PUT_TOOL_LIST = """
INSERT INTO tool_lists VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, digest) DO UPDATE SET used_at = excluded.used_at
WHERE tool_lists.used_at < excluded.used_at - 86400
"""
"""`used_at` is a day late at most: the list of most runs costs no write."""
DELETE_UNUSED_TOOL_LISTS = """
DELETE FROM tool_lists WHERE tenant = ?1 AND used_at < coalesce(
    (SELECT began_at FROM runs WHERE tenant = ?1 ORDER BY seq LIMIT 1), ?2) - 172800
"""
"""The lists that were last used before the oldest run that is left began; two days are more than
`used_at` is late, and than clocks differ."""
PUT_MESSAGE = """
INSERT INTO messages VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, session_id, number) DO UPDATE SET message = excluded.message
"""
# A run without a known price makes the sum unknown: never report less than was spent.
USAGE_OF_ROOT_RUN = """
SELECT coalesce(sum(turns), 0), coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0),
    coalesce(sum(tokens_out), 0), CASE WHEN count(*) = count(cost) THEN coalesce(sum(cost), 0.0) END
FROM runs WHERE tenant = ?1
    AND ((id = ?2 AND root_run = ?2) OR (root_run = ?2 AND root_run <> id))
"""
RECORDS = (
    "SELECT record FROM records WHERE tenant = ? AND run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
)
MESSAGES = (
    "SELECT number, message FROM messages WHERE tenant = ? AND session_id = ? AND number >= ? "
    "ORDER BY number LIMIT ?"
)

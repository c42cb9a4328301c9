"""What the session store asks its database; `tenant` is in every condition."""

from __future__ import annotations

RUN = (
    "id, session_id, asked, parent_run, root_run, background, stop, "
    "turns, calls, tokens_in, tokens_out, cost, began_at, ended_at, label, "
    "epoch, holder, lease_until"
)
STATES = {
    "": "",
    "open": "AND stop IS NULL",
    "waiting": "AND stop = 'waiting'",
    "ended": "AND stop <> 'waiting'",
}
RUNS = f"""
SELECT {RUN} FROM runs WHERE tenant = ?1 AND (?2 = '' OR session_id = ?2)
AND (?3 = '' OR seq < (SELECT seq FROM runs WHERE tenant = ?1 AND id = ?3))
AND (?5 = 0 OR session_id IN (SELECT id FROM sessions WHERE tenant = ?1 AND owner = ?6))
{{state}} {{below}} ORDER BY seq DESC LIMIT ?4
"""
BEGUN_BY = "AND parent_run = ?7"
LAST = f"SELECT {RUN} FROM runs WHERE tenant = ? AND session_id = ? ORDER BY seq DESC LIMIT 1"
COUNT = "SELECT coalesce(max(number) + 1, 0) FROM messages WHERE tenant = ? AND session_id = ?"
BELOW = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM sessions WHERE tenant = ?4 AND id = ?1 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?4 AND sessions.parent = below.id
)
SELECT session FROM sessions
WHERE tenant = ?4 AND owner = ?2 AND (?3 = '' OR agent = ?3)
AND (?1 = '' OR id IN (SELECT id FROM below))
AND (?5 = '' OR seq < (SELECT seq FROM sessions WHERE tenant = ?4 AND id = ?5))
ORDER BY seq DESC LIMIT ?6
"""
PROGRESS = """
UPDATE runs SET stop = ?, turns = ?, calls = ?, tokens_in = ?, tokens_out = ?, cost = ?,
    ended_at = CASE WHEN CAST(?1 AS TEXT) IS NULL THEN NULL ELSE ?7 END
WHERE tenant = ?8 AND id = ?9
"""
SAY = """
INSERT INTO messages VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, session_id, number) DO UPDATE SET message = excluded.message
"""
# A run without a known price makes the sum unknown: never report less than was spent.
SPENT = """
SELECT coalesce(sum(turns), 0), coalesce(sum(calls), 0), coalesce(sum(tokens_in), 0),
    coalesce(sum(tokens_out), 0), CASE WHEN count(*) = count(cost) THEN coalesce(sum(cost), 0.0) END
FROM runs WHERE tenant = ? AND root_run = ?
"""

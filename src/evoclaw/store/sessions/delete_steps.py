"""The steps that delete sessions with their runs, records and messages.

A session is deleted only if none of its runs is open. Whatever stores a run holds the lock of its
session, or a lock on its row, and these steps take both: so a run is stored before the check, or
finds its session deleted.

This is the only code that knows all tables with rows of a session.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure, ServerFunction
from evoclaw.store.sessions import statements

TABLES_BY_RUN_ID = (
    "records",
    "queue_inbox",
    "queue_pending",
    "queue_cancels",
    "queue_keys",
    "figures_runs",
    "figures_calls",
    "figures_hops",
)
"""Tables with the id of a run."""
TABLES_BY_SESSION_ID = ("messages", "todos", "questions", "runs")
"""Tables with the id of a session."""
EXPIRED, IN_USE, KEPT = "expired", "in_use", "kept"
"""Deleted; a run of it is open or ended later, and its end leads back to the session; it is young
and has no runs, or a relative of its runs is open."""

_DESCENDANTS = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM sessions WHERE tenant = ?1 AND id = ?2 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?1 AND sessions.parent = below.id AND sessions.parent <> ''
)
SELECT id FROM below
"""
_STOP_REASONS = "SELECT stop FROM runs WHERE tenant = ? AND session_id = ?"
_RUN_IDS = "SELECT id FROM runs WHERE tenant = ? AND session_id = ?"
# Whether a run of it is open, and whether an ancestor or a descendant of its runs is.
_SESSION_STATE = """
SELECT (SELECT max(r.ended_at) FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id),
    EXISTS (SELECT 1 FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id
        AND (r.stop IS NULL OR r.stop = 'waiting')),
    EXISTS (SELECT 1 FROM runs o WHERE o.tenant = s.tenant AND o.root_run IN (
        SELECT r.root_run FROM runs r WHERE r.tenant = s.tenant AND r.session_id = s.id)
        AND (o.stop IS NULL OR o.stop = 'waiting'))
FROM sessions s WHERE s.tenant = ? AND s.id = ? AND s.seq = ?
"""


def session_lock(tenant: str, session_id: str) -> str:
    """The name of the lock of a session."""
    return f"session/{tenant}/{session_id}"


def _delete_rows(connection: Connection, tenant: str, session_ids: Sequence[str]) -> list[str]:
    """Delete sessions and all that belongs to them; the ids of their runs."""
    # Not every process uses, and so has created, every schema.
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    existing = {name for (name,) in names}
    sessions = [(tenant, id_) for id_ in session_ids]
    runs = [
        (tenant, run_id)
        for session in sessions
        for (run_id,) in connection.execute(_RUN_IDS, session).fetchall()
    ]
    for table in TABLES_BY_RUN_ID:
        if table in existing:
            connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", runs)
    for table in TABLES_BY_SESSION_ID:
        delete = f"DELETE FROM {table} WHERE tenant = ? AND session_id = ?"
        connection.executemany(delete, sessions)
    connection.executemany("DELETE FROM sessions WHERE tenant = ? AND id = ?", sessions)
    connection.execute(statements.DELETE_UNUSED_TOOL_LISTS, (tenant, time.time()))
    return [run_id for _, run_id in runs]


def _delete(
    connection: Connection, tenant: str, session_id: str
) -> tuple[list[str], list[str]] | None:
    """The ids of the deleted sessions and runs; None if a run is open, and nothing was deleted."""
    ids = [row[0] for row in connection.execute(_DESCENDANTS, (tenant, session_id)).fetchall()]
    for id_ in ids:
        for (stop,) in connection.execute(_STOP_REASONS, (tenant, id_)).fetchall():
            if stop in (None, "waiting"):
                return None
    return ids, _delete_rows(connection, tenant, ids)


def _delete_expired(
    connection: Connection,
    tenant: str,
    session_id: str,
    seq: int,
    created_at: float,
    before: float,
) -> str:
    """Delete a session that ended before a time: `EXPIRED`, or why it is kept."""
    row: Any = connection.execute(_SESSION_STATE, (tenant, session_id, seq)).fetchone()
    if row is None:  # another process deleted it
        return IN_USE
    ended_at, is_open, has_open_relative = row
    if is_open:
        return IN_USE
    if has_open_relative:
        return KEPT
    if (created_at if ended_at is None else ended_at) < before:
        _delete_rows(connection, tenant, [session_id])
        return EXPIRED
    return KEPT if ended_at is None else IN_USE


def _delete_by_run(table: str) -> str:
    return f"""
    IF to_regclass('{table}') IS NOT NULL THEN
        DELETE FROM {table} WHERE tenant = in_tenant AND run_id = ANY (runs_of);
    END IF;"""


# The steps that create, claim and end runs hold the same lock. That of the session itself is taken
# before; these are for its descendants.
_LOCK_FUNCTION = ServerFunction(
    "step_lock_sessions",
    "in_tenant text, ids text[]",
    "void",
    """
BEGIN
    PERFORM pg_advisory_xact_lock(
        hashtextextended('evoclaw session/' || in_tenant || '/' || id, 0)
    ) FROM unnest(ids) AS id;
    PERFORM 1 FROM sessions WHERE tenant = in_tenant AND id = ANY (ids) ORDER BY id FOR UPDATE;
END
""",
)
_DELETE_FUNCTION = ServerFunction(
    "step_delete_session_rows",
    "in_tenant text, ids text[]",
    "jsonb",
    # The rows of the runs are locked first: what is derived from a run locks them, too.
    f"""
DECLARE
    runs_of text[];
BEGIN
    SELECT coalesce(array_agg(r.id), '{{}}') INTO runs_of FROM (
        SELECT id FROM runs WHERE tenant = in_tenant AND session_id = ANY (ids)
        ORDER BY id FOR UPDATE) r;
    {"".join(map(_delete_by_run, TABLES_BY_RUN_ID))}
    {
        "".join(
            f'''
    DELETE FROM {table} WHERE tenant = in_tenant AND session_id = ANY (ids);'''
            for table in TABLES_BY_SESSION_ID
        )
    }
    DELETE FROM sessions WHERE tenant = in_tenant AND id = ANY (ids);
    DELETE FROM tool_lists WHERE tenant = in_tenant AND used_at < coalesce(
        (SELECT began_at FROM runs WHERE tenant = in_tenant ORDER BY seq LIMIT 1),
        extract(epoch FROM clock_timestamp())) - 172800;
    RETURN to_jsonb(runs_of);
END
""",
)

DELETE_SESSION = Procedure(
    name="delete_session",
    sqlite=_delete,
    functions=(_LOCK_FUNCTION, _DELETE_FUNCTION),
    # The check is one statement, after the lock: an open run might start another session.
    postgres="""
DECLARE
    ids text[];
    now_below text[];
    is_busy boolean;
BEGIN
    WITH RECURSIVE below (id) AS (
        SELECT id FROM sessions WHERE tenant = a->>0 AND id = a->>1 UNION
        SELECT s.id FROM sessions s JOIN below
        ON s.tenant = a->>0 AND s.parent = below.id AND s.parent <> ''
    )
    SELECT array_agg(id ORDER BY id) INTO ids FROM below;
    PERFORM step_lock_sessions(a->>0, ids);
    WITH RECURSIVE below (id) AS (
        SELECT id FROM sessions WHERE tenant = a->>0 AND id = a->>1 UNION
        SELECT s.id FROM sessions s JOIN below
        ON s.tenant = a->>0 AND s.parent = below.id AND s.parent <> ''
    )
    SELECT array_agg(below.id ORDER BY below.id), bool_or(EXISTS (
        SELECT 1 FROM runs r WHERE r.tenant = a->>0 AND r.session_id = below.id
            AND (r.stop IS NULL OR r.stop = 'waiting')))
    INTO now_below, is_busy FROM below;
    IF now_below IS NULL THEN
        RETURN '[[], []]'::jsonb;
    END IF;
    IF is_busy OR NOT now_below <@ ids THEN
        RETURN NULL;
    END IF;
    RETURN jsonb_build_array(to_jsonb(now_below), step_delete_session_rows(a->>0, now_below));
END
""",
)
DELETE_EXPIRED_SESSION = Procedure(
    name="delete_expired_session",
    sqlite=_delete_expired,
    functions=(_LOCK_FUNCTION, _DELETE_FUNCTION),
    postgres="""
DECLARE
    last_end float8;
    is_open boolean;
BEGIN
    PERFORM step_lock_sessions(a->>0, ARRAY[a->>1]);
    PERFORM 1 FROM sessions WHERE tenant = a->>0 AND id = a->>1 AND seq = (a->>2)::bigint;
    IF NOT FOUND THEN
        RETURN to_jsonb('in_use'::text);
    END IF;
    SELECT max(ended_at), coalesce(bool_or(stop IS NULL OR stop = 'waiting'), false)
    INTO last_end, is_open FROM runs WHERE tenant = a->>0 AND session_id = a->>1;
    IF is_open THEN
        RETURN to_jsonb('in_use'::text);
    END IF;
    IF EXISTS (
        SELECT 1 FROM runs r JOIN runs o ON o.tenant = r.tenant AND o.id = r.root_run
        WHERE r.tenant = a->>0 AND r.session_id = a->>1
            AND (o.stop IS NULL OR o.stop = 'waiting')
    ) OR EXISTS (
        SELECT 1 FROM runs r JOIN runs o
            ON o.tenant = r.tenant AND o.root_run = r.root_run AND o.root_run <> o.id
        WHERE r.tenant = a->>0 AND r.session_id = a->>1
            AND (o.stop IS NULL OR o.stop = 'waiting')
    ) THEN
        RETURN to_jsonb('kept'::text);
    END IF;
    IF coalesce(last_end, (a->>3)::float8) < (a->>4)::float8 THEN
        PERFORM step_delete_session_rows(a->>0, ARRAY[a->>1]);
        RETURN to_jsonb('expired'::text);
    END IF;
    RETURN to_jsonb(CASE WHEN last_end IS NULL THEN 'kept' ELSE 'in_use' END);
END
""",
)

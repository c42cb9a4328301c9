"""The steps that delete sessions with their runs, records and messages.

A session is deleted only if none of its runs is open. Whatever stores a run holds the lock of its
session, or a lock on its row, and these steps take both: so a run is stored before the check, or
finds its session deleted.

A session with many runs is deleted in several steps, so that others can write in between. The first
one deletes its row and stores its id in `deleted_sessions`: from then on nothing of it is shown, as
if all of it were deleted. The others delete the rest in batches; after a crash they are continued.

This is the only code that knows all tables with rows of a session.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from evoclaw.store.databases.database import Connection, Database
from evoclaw.store.databases.steps import Procedure, ServerFunction, Step
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
MAX_RUNS_AT_ONCE = 200
"""Runs of a session that is deleted in one step, and of each further step if it has more."""
MAX_MESSAGES_AT_ONCE = 1_000
"""Messages that are deleted in one of the further steps."""
EXPIRED, HIDDEN, IN_USE, KEPT = "expired", "hidden", "in_use", "kept"
"""Deleted; no longer shown, and to be deleted in further steps; a run of it is open or ended later,
and its end leads back to the session; it is young and has no runs, or a relative of its runs is
open."""

_DESCENDANTS = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM sessions WHERE tenant = ?1 AND id = ?2 UNION
    SELECT sessions.id FROM sessions JOIN below
    ON sessions.tenant = ?1 AND sessions.parent = below.id AND sessions.parent <> ''
)
SELECT id FROM below
"""
_OPEN_RUN = (
    "SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? "
    "AND (stop IS NULL OR stop = 'waiting') LIMIT 1"
)
_RUN_IDS = "SELECT id FROM runs WHERE tenant = ? AND session_id = ? ORDER BY seq LIMIT ?"
_HIDE = "INSERT INTO deleted_sessions (tenant, id) VALUES (?, ?) ON CONFLICT DO NOTHING"
_IS_HIDDEN = "SELECT 1 FROM deleted_sessions WHERE tenant = ? AND id = ?"
_DELETE_SESSION = "DELETE FROM sessions WHERE tenant = ? AND id = ?"
_DELETE_MESSAGES = """
DELETE FROM messages WHERE tenant = ?1 AND session_id = ?2 AND number IN (
    SELECT number FROM messages WHERE tenant = ?1 AND session_id = ?2 ORDER BY number LIMIT ?3)
"""
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


def _delete_sessions(
    connection: Connection, tenant: str, session_ids: Sequence[str], limit: int
) -> list[str] | None:
    """Delete sessions and all that belongs to them; the ids of their runs.

    None if they have more runs than `limit`, and so are only hidden.
    """
    sessions, runs = [(tenant, id_) for id_ in session_ids], list[str]()
    for session in sessions:
        left = limit + 1 - len(runs)
        runs += [run_id for (run_id,) in connection.execute(_RUN_IDS, (*session, left)).fetchall()]
    connection.executemany(_DELETE_SESSION, sessions)
    if len(runs) > limit:
        connection.executemany(_HIDE, sessions)
        return None
    _delete_runs(connection, tenant, runs)
    _delete_rest(connection, tenant, sessions)
    return runs


def _delete_runs(connection: Connection, tenant: str, run_ids: Sequence[str]) -> None:
    # Not every process uses, and so has created, every schema.
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    existing = {name for (name,) in names}
    runs = [(tenant, run_id) for run_id in run_ids]
    for table in TABLES_BY_RUN_ID:
        if table in existing:
            connection.executemany(f"DELETE FROM {table} WHERE tenant = ? AND run_id = ?", runs)
    connection.executemany("DELETE FROM runs WHERE tenant = ? AND id = ?", runs)


def _delete_rest(connection: Connection, tenant: str, sessions: Sequence[tuple[str, str]]) -> None:
    """Delete what is left of sessions without runs."""
    for table in TABLES_BY_SESSION_ID:
        delete = f"DELETE FROM {table} WHERE tenant = ? AND session_id = ?"
        connection.executemany(delete, sessions)
    connection.execute(statements.DELETE_UNUSED_TOOL_LISTS, (tenant, time.time()))


def _delete(
    connection: Connection, tenant: str, session_id: str, limit: int
) -> tuple[list[str], list[str] | None] | None:
    """The ids of the deleted sessions and runs; None if a run is open, and nothing was deleted.

    Without the ids of runs, the sessions are hidden.
    """
    ids = [row[0] for row in connection.execute(_DESCENDANTS, (tenant, session_id)).fetchall()]
    for id_ in ids:
        if connection.execute(_OPEN_RUN, (tenant, id_)).fetchone():
            return None
    return ids, _delete_sessions(connection, tenant, ids, limit)


def _delete_hidden(
    connection: Connection, tenant: str, session_id: str, max_runs: int, max_messages: int
) -> tuple[list[str], bool]:
    """Delete a part of a hidden session: the ids of its runs, and whether nothing is left."""
    session = (tenant, session_id)
    if not connection.execute(_IS_HIDDEN, session).fetchone():
        return [], True
    rows = connection.execute(_RUN_IDS, (*session, max_runs)).fetchall()
    runs = [run_id for (run_id,) in rows]
    if runs:
        _delete_runs(connection, tenant, runs)
    elif not connection.execute(_DELETE_MESSAGES, (*session, max_messages)).rowcount:
        _delete_rest(connection, tenant, [session])
        connection.execute("DELETE FROM deleted_sessions WHERE tenant = ? AND id = ?", session)
        return [], True
    return runs, False


def _delete_expired(
    connection: Connection,
    tenant: str,
    session_id: str,
    seq: int,
    created_at: float,
    before: float,
    limit: int,
) -> str:
    """Delete a session that ended before a time: `EXPIRED` or `HIDDEN`, or why it is kept."""
    row: Any = connection.execute(_SESSION_STATE, (tenant, session_id, seq)).fetchone()
    if row is None:  # another process deleted it
        return IN_USE
    ended_at, is_open, has_open_relative = row
    if is_open:
        return IN_USE
    if has_open_relative:
        return KEPT
    if (created_at if ended_at is None else ended_at) < before:
        runs = _delete_sessions(connection, tenant, [session_id], limit)
        return HIDDEN if runs is None else EXPIRED
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
_DELETE_RUNS_FUNCTION = ServerFunction(
    "step_delete_runs",
    "in_tenant text, runs_of text[]",
    "void",
    # The rows of the runs are locked first: what is derived from a run locks them, too.
    f"""
BEGIN
    PERFORM 1 FROM runs WHERE tenant = in_tenant AND id = ANY (runs_of) ORDER BY id FOR UPDATE;
    {"".join(map(_delete_by_run, TABLES_BY_RUN_ID))}
    DELETE FROM runs WHERE tenant = in_tenant AND id = ANY (runs_of);
END
""",
)
_DELETE_REST_FUNCTION = ServerFunction(
    # What is left of sessions without runs.
    "step_delete_session_rest",
    "in_tenant text, ids text[]",
    "void",
    f"""
BEGIN
    {
        "".join(
            f'''
    DELETE FROM {table} WHERE tenant = in_tenant AND session_id = ANY (ids);'''
            for table in TABLES_BY_SESSION_ID
        )
    }
    DELETE FROM tool_lists WHERE tenant = in_tenant AND used_at < coalesce(
        (SELECT began_at FROM runs WHERE tenant = in_tenant ORDER BY seq LIMIT 1),
        extract(epoch FROM clock_timestamp())) - 172800;
END
""",
)
_DELETE_FUNCTION = ServerFunction(
    # The ids of the runs; null if there are more than `at_most`, and the sessions are hidden.
    "step_delete_sessions",
    "in_tenant text, ids text[], at_most bigint",
    "jsonb",
    """
DECLARE
    runs_of text[] := ARRAY(
        SELECT id FROM runs WHERE tenant = in_tenant AND session_id = ANY (ids) LIMIT at_most + 1);
BEGIN
    DELETE FROM sessions WHERE tenant = in_tenant AND id = ANY (ids);
    IF cardinality(runs_of) > at_most THEN
        INSERT INTO deleted_sessions (tenant, id) SELECT in_tenant, id FROM unnest(ids) AS id
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END IF;
    PERFORM step_delete_runs(in_tenant, runs_of);
    PERFORM step_delete_session_rest(in_tenant, ids);
    RETURN to_jsonb(runs_of);
END
""",
)
_DELETE_FUNCTIONS = (_LOCK_FUNCTION, _DELETE_RUNS_FUNCTION, _DELETE_REST_FUNCTION, _DELETE_FUNCTION)

DELETE_SESSION = Procedure(
    name="delete_session",
    sqlite=_delete,
    functions=_DELETE_FUNCTIONS,
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
    RETURN jsonb_build_array(to_jsonb(now_below),
        step_delete_sessions(a->>0, now_below, (a->>2)::bigint));
END
""",
)
DELETE_EXPIRED_SESSION = Procedure(
    name="delete_expired_session",
    sqlite=_delete_expired,
    functions=_DELETE_FUNCTIONS,
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
        RETURN to_jsonb(CASE
            WHEN step_delete_sessions(a->>0, ARRAY[a->>1], (a->>5)::bigint) IS NULL
            THEN 'hidden' ELSE 'expired' END);
    END IF;
    RETURN to_jsonb(CASE WHEN last_end IS NULL THEN 'kept' ELSE 'in_use' END);
END
""",
)
DELETE_HIDDEN_SESSION = Procedure(
    name="delete_hidden_session",
    sqlite=_delete_hidden,
    functions=_DELETE_FUNCTIONS,
    postgres="""
DECLARE
    runs_of text[];
    is_left boolean;
BEGIN
    PERFORM 1 FROM deleted_sessions WHERE tenant = a->>0 AND id = a->>1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN '[[], true]'::jsonb;
    END IF;
    runs_of := ARRAY(SELECT id FROM runs WHERE tenant = a->>0 AND session_id = a->>1
        ORDER BY seq LIMIT (a->>2)::bigint);
    IF cardinality(runs_of) > 0 THEN
        PERFORM step_delete_runs(a->>0, runs_of);
        RETURN jsonb_build_array(to_jsonb(runs_of), false);
    END IF;
    DELETE FROM messages WHERE tenant = a->>0 AND session_id = a->>1 AND number IN (
        SELECT number FROM messages WHERE tenant = a->>0 AND session_id = a->>1
        ORDER BY number LIMIT (a->>3)::bigint);
    is_left := FOUND;
    IF NOT is_left THEN
        PERFORM step_delete_session_rest(a->>0, ARRAY[a->>1]);
        DELETE FROM deleted_sessions WHERE tenant = a->>0 AND id = a->>1;
    END IF;
    RETURN jsonb_build_array('[]'::jsonb, NOT is_left);
END
""",
)


async def delete_hidden(database: Database, tenant: str, session_id: str) -> list[str]:
    """Delete all that is left of a hidden session, in batches; the ids of its runs."""
    values = (tenant, session_id, MAX_RUNS_AT_ONCE, MAX_MESSAGES_AT_ONCE)
    lock, deleted, is_done = session_lock(tenant, session_id), list[str](), False
    while not is_done:
        runs, is_done = await database.apply(Step(DELETE_HIDDEN_SESSION, values, lock=lock))
        deleted += runs
    return deleted


async def delete_all_hidden(database: Database) -> None:
    """Delete the hidden sessions of all tenants: their deletion may have been interrupted."""
    find = "SELECT tenant, id FROM deleted_sessions ORDER BY tenant, id"
    for tenant, session_id in await database.read(lambda c: c.execute(find).fetchall()):
        await delete_hidden(database, tenant, session_id)

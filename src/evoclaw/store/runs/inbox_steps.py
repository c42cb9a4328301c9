"""The steps that store control requests for a run: a cancellation or a steering message.

Each locks the row of the run, so that the run cannot end in between: the end of a run updates the
same row. What is stored for an open run is therefore seen by the step that finishes it.
"""

from __future__ import annotations

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure
from evoclaw.store.sessions.statements import run_by_id


def _cancel(connection: Connection, tenant: str, run_id: str) -> bool:
    """Whether the run is open, and its cancellation is stored."""
    find = "SELECT 1 FROM runs WHERE tenant = ? AND id = ? AND (stop IS NULL OR stop = 'waiting')"
    put = "INSERT INTO queue_cancels VALUES (?, ?) ON CONFLICT (tenant, run_id) DO NOTHING"
    if connection.execute(find, (tenant, run_id)).fetchone() is None:
        return False
    connection.execute(put, (tenant, run_id))
    return True


CANCEL = Procedure(
    name="cancel",
    sqlite=_cancel,
    postgres=f"""
BEGIN
    PERFORM 1 FROM runs WHERE {run_by_id("a->>0", "a->>1")}
        AND (stop IS NULL OR stop = 'waiting') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN to_jsonb(false);
    END IF;
    INSERT INTO queue_cancels VALUES (a->>0, a->>1) ON CONFLICT (tenant, run_id) DO NOTHING;
    RETURN to_jsonb(true);
END
""",
)


def _add_message(
    connection: Connection, tenant: str, run_id: str, message: bytes
) -> tuple[str, bool] | None:
    """The session of the run, and whether it is open and the message is stored."""
    find = "SELECT session_id, stop FROM runs WHERE tenant = ? AND id = ?"
    row = connection.execute(find, (tenant, run_id)).fetchone()
    if row is None:
        return None
    session_id, stop = row
    if stop not in (None, "waiting"):
        return session_id, False
    put = (
        "INSERT INTO queue_inbox SELECT ?1, ?2, coalesce(max(number) + 1, 0), ?3 "
        "FROM queue_inbox WHERE tenant = ?1 AND run_id = ?2"
    )
    connection.execute(put, (tenant, run_id, message))
    return session_id, True


ADD_MESSAGE = Procedure(
    name="add_message",
    sqlite=_add_message,
    postgres=f"""
DECLARE
    run record;
    is_open boolean;
BEGIN
    SELECT session_id, stop INTO run FROM runs
    WHERE {run_by_id("a->>0", "a->>1")} FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    is_open := run.stop IS NULL OR run.stop = 'waiting';
    IF is_open THEN
        INSERT INTO queue_inbox
        SELECT a->>0, a->>1, coalesce(max(number) + 1, 0), decode(a->>2, 'base64')
        FROM queue_inbox WHERE tenant = a->>0 AND run_id = a->>1;
    END IF;
    RETURN jsonb_build_array(run.session_id, is_open);
END
""",
)

"""The step that ends a run: its last records, its end, its open requests, and its claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure
from evoclaw.store.runs.claims import CLEAR_HOLDER, SAME_RUN
from evoclaw.store.runs.session_steps import SESSION_FUNCTIONS
from evoclaw.store.sessions.append_step import (
    PUT_GIVEN_MESSAGES,
    PUT_TOOL_LISTS,
    Packed,
    append_rows,
)
from evoclaw.store.sessions.statements import UPDATE_PROGRESS, run_by_id

FIND_EPOCH = "SELECT epoch FROM runs WHERE tenant = ? AND id = ?"
# '/' comes right after '.': the ids of its calls start with the id of the run and a dot.
CLOSE_QUESTIONS = """
UPDATE questions SET closed_at = ?
WHERE tenant = ? AND id >= ? AND id < ? AND answer IS NULL AND closed_at IS NULL
"""
CLOSE_APPROVALS = """
UPDATE approvals SET closed_at = ? WHERE tenant = ?
    AND request_id >= ? AND request_id < ? AND decision IS NULL AND closed_at IS NULL
"""


def _end_run(
    connection: Connection,
    tenant: str,
    run_id: str,
    session_id: str,
    epoch: int,
    progress: Sequence[Any] | None,
    packed: Packed | None,
    messages: Sequence[tuple[int, bytes]],
    now: float,
    _: str | None,
) -> tuple[int, bool]:
    """The epoch of the run if it is another one than the caller's; whether messages are left."""
    same = (tenant, run_id)
    row = connection.execute(FIND_EPOCH, same).fetchone()
    if row is None or row[0] != epoch:
        return 0 if row is None else row[0], False
    if progress is not None:
        connection.execute(UPDATE_PROGRESS, (*progress, *same, epoch))
        append_rows(connection, tenant, run_id, session_id, packed, messages)
        requests = (now, tenant, f"{run_id}.", f"{run_id}/")
        connection.execute(CLOSE_QUESTIONS, requests)
        connection.execute(CLOSE_APPROVALS, requests)
    connection.execute(CLEAR_HOLDER, (*same, epoch))
    connection.execute(f"DELETE FROM queue_pending WHERE {SAME_RUN}", same)
    connection.execute(f"DELETE FROM queue_cancels WHERE {SAME_RUN}", same)
    left = f"SELECT 1 FROM queue_inbox WHERE {SAME_RUN} LIMIT 1"
    return 0, connection.execute(left, same).fetchone() is not None


END_RUN = Procedure(
    name="end_run",
    sqlite=_end_run,
    functions=(*SESSION_FUNCTIONS, PUT_TOOL_LISTS),
    postgres=f"""
DECLARE
    v_tenant text := a->>0;
    v_run text := a->>1;
    v_session text := a->>2;
    v_epoch bigint := (a->>3)::bigint;
    v_progress jsonb := a->4;
    v_now float8 := (a->>7)::float8;
    v_higher bigint;
    v_messages_left boolean;
BEGIN
    IF jsonb_typeof(v_progress) = 'array' THEN
        UPDATE runs SET stop = v_progress->>0, turns = (v_progress->>1)::bigint,
            calls = (v_progress->>2)::bigint, tokens_in = (v_progress->>3)::bigint,
            tokens_out = (v_progress->>4)::bigint, cost = (v_progress->>5)::float8,
            ended_at = (v_progress->>6)::float8, holder = '', lease_until = NULL
        WHERE {run_by_id("v_tenant", "v_run")} AND epoch = v_epoch;
    ELSE
        UPDATE runs SET holder = '', lease_until = NULL
        WHERE {run_by_id("v_tenant", "v_run")} AND epoch = v_epoch;
    END IF;
    IF NOT FOUND THEN
        SELECT epoch INTO v_higher FROM runs WHERE {run_by_id("v_tenant", "v_run")};
        RETURN jsonb_build_array(coalesce(v_higher, 0), false);
    END IF;
    IF jsonb_typeof(v_progress) = 'array' THEN
        IF jsonb_typeof(a->5) = 'array' THEN
            INSERT INTO records
            VALUES (v_tenant, v_run, (a->5->>0)::bigint, decode(a->5->>1, 'base64'));
            IF jsonb_array_length(a->5->3) > 0 THEN
                PERFORM step_put_tool_lists(jsonb_build_array(a));
            END IF;
        END IF;
        WITH given AS (
            SELECT v_tenant AS tenant, v_session AS session_id, (m->>0)::bigint AS number,
                decode(m->>1, 'base64') AS message
            FROM jsonb_array_elements(a->6) AS m
        ), {PUT_GIVEN_MESSAGES};
        WITH closed AS (
            UPDATE questions SET closed_at = v_now
            WHERE tenant = v_tenant AND id >= v_run || '.' AND id < v_run || '/'
                AND answer IS NULL AND closed_at IS NULL
        )
        UPDATE approvals SET closed_at = v_now
        WHERE tenant = v_tenant AND request_id >= v_run || '.' AND request_id < v_run || '/'
            AND decision IS NULL AND closed_at IS NULL;
    END IF;
    WITH cancels AS (
        DELETE FROM queue_cancels WHERE tenant = v_tenant AND run_id = v_run
    ), pending AS (
        DELETE FROM queue_pending WHERE tenant = v_tenant AND run_id = v_run
    )
    SELECT EXISTS (SELECT 1 FROM queue_inbox WHERE tenant = v_tenant AND run_id = v_run)
    INTO v_messages_left;
    IF a->>8 IS NOT NULL THEN
        PERFORM step_offer_session(v_tenant, v_session, v_now, a->>8);
    END IF;
    RETURN jsonb_build_array(0, v_messages_left);
END
""",
)

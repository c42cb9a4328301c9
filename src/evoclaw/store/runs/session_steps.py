"""Functions of the steps that create, claim and end runs on PostgreSQL.

These steps hold the lock of their session. So they exclude each other, and a session that needs a
job always has one.
"""

from __future__ import annotations

from typing import Any

from evoclaw.store.databases.steps import ServerFunction
from evoclaw.store.runs.claims import IS_OPEN

TASK_NAME = "drive"
"""The name of the procrastinate task."""
DECLARE_SESSION = """
DECLARE
    v_tenant text := a->>0;
    v_session text := a->>1;"""
"""The start of a step whose first two arguments name a session."""
# A waiting run continues when it is answered, or when its holder is dead. A sub-run is driven by
# its parent, unless it was claimed separately.
CAN_CONTINUE = "(holder <> '' OR (stop IS NULL AND parent_run = ''))"

NEXT_RUN = ServerFunction(
    "step_next_run",
    "v_tenant text, v_session text, v_now float8, v_holder text",
    "text",
    f"""
DECLARE
    v_found text;
BEGIN
    SELECT id INTO v_found FROM (
        SELECT id, stop, holder, lease_until, parent_run FROM runs
        WHERE tenant = v_tenant AND session_id = v_session AND {IS_OPEN} ORDER BY seq LIMIT 1
    ) AS f
    WHERE {CAN_CONTINUE} AND (holder = '' OR lease_until <= v_now) AND holder <> v_holder;
    RETURN v_found;
END
""",
)
# Without the tables no worker was ever started; the first one polls for itself.
OFFER_SESSION = ServerFunction(
    "step_offer_session",
    "v_tenant text, v_session text, v_now float8, v_holder text",
    "void",
    f"""
DECLARE
    v_lock text := v_tenant || '/' || v_session;
BEGIN
    IF step_next_run(v_tenant, v_session, v_now, v_holder) IS NULL
        OR to_regclass('procrastinate_jobs') IS NULL
    THEN
        RETURN;
    END IF;
    PERFORM procrastinate_defer_jobs_v1(ARRAY[
        ROW(left(v_tenant, 128)::varchar, '{TASK_NAME}', 0, v_lock, v_lock,
            jsonb_build_object('tenant', v_tenant, 'session_id', v_session), NULL)
    ]::procrastinate_job_to_defer_v1[])
    WHERE NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs WHERE lock = v_lock AND status = 'doing'
    ) AND NOT EXISTS (
        SELECT 1 FROM procrastinate_jobs WHERE queueing_lock = v_lock AND status = 'todo'
    );
END
""",
)
SESSION_FUNCTIONS = (NEXT_RUN, OFFER_SESSION)


def postgres_only(*_: Any) -> Any:
    """Stands for the SQLite side of a procedure that only PostgreSQL runs."""
    raise NotImplementedError("this step is only run on PostgreSQL")

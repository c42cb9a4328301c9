"""The step that stores a new run, its session and its key, and claims it or offers it as a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure
from evoclaw.store.runs.claims import IS_OPEN
from evoclaw.store.runs.session_steps import DECLARE_SESSION, SESSION_FUNCTIONS
from evoclaw.store.sessions.statements import REQUEST_COLUMN, run_by_id

KEY_LOCKED = "busy"
"""The outcome if another process is storing the same run, session or key: ask again."""
Enqueued: TypeAlias = Sequence[Any]
"""The outcome, the id of an existing run, and the epoch if the new one is claimed."""
FIND_KEY = "SELECT digest, run_id FROM queue_keys WHERE tenant = ? AND owner = ? AND key = ?"
# The run that a key was used for may have been deleted since.
UPSERT_KEY = """
INSERT INTO queue_keys VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, owner, key) DO UPDATE SET run_id = excluded.run_id, at = excluded.at
"""
IS_QUEUED = "stop IS NULL AND epoch = 0 AND parent_run = ''"
COUNT_QUEUED = f"""
SELECT count(*), coalesce(sum(tenant = ?1), 0),
    coalesce(sum(tenant = ?1 AND session_id = ?2), 0)
FROM runs WHERE {IS_QUEUED}
"""
FIND_OPEN = f"SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? AND {IS_OPEN} LIMIT 1"
PUT_RUN = f"""
INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background, began_at, label,
    {REQUEST_COLUMN}, owner, epoch, holder, lease_until)
VALUES (?1, ?2, ?3, ?4, '', ?2, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
"""
PUT_SESSION = """
INSERT INTO sessions (tenant, id, owner, parent, agent, session) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, id) DO NOTHING
"""


def _enqueue(
    connection: Connection,
    tenant: str,
    session_id: str,
    run_id: str,
    key: Sequence[str] | None,
    new_session: Sequence[Any] | None,
    requires_empty: bool,
    limits: Sequence[int],
    run: Sequence[Any],
    claim: Sequence[Any] | None,
    now: float,
    _: str | None,
) -> Enqueued:
    here = (tenant, session_id)
    found = _find_existing(connection, tenant, run_id, key)
    if found is None and new_session is None:
        found = _check_session(connection, here, requires_empty)
    if found is not None:
        return found
    counts = connection.execute(COUNT_QUEUED, here).fetchone()
    for count, limit, outcome in zip(
        counts, limits, ("full", "full_tenant", "full_session"), strict=True
    ):
        if count >= limit:
            return outcome, "", 0
    first = claim is not None and (
        new_session is not None or not connection.execute(FIND_OPEN, here).fetchone()
    )
    held = (1, *claim) if first and claim is not None else (0, "", None)
    connection.execute(PUT_RUN, (tenant, run_id, session_id, *run, *held))
    if new_session is not None:
        connection.execute(PUT_SESSION, (*here, *new_session))
    if key is not None:
        connection.execute(UPSERT_KEY, (tenant, *key, run_id, now))
    return "new", "", held[0]


def _find_existing(
    connection: Connection, tenant: str, run_id: str, key: Sequence[str] | None
) -> Enqueued | None:
    wanted = [run_id]
    if key is not None:
        owner, name, digest = key
        known = connection.execute(FIND_KEY, (tenant, owner, name)).fetchone()
        if known is not None and known[0] != digest:
            return "other", known[1], 0
        wanted = [run_id] if known is None else [known[1], run_id]
    for id_ in wanted:
        find = "SELECT 1 FROM runs WHERE tenant = ? AND id = ?"
        if connection.execute(find, (tenant, id_)).fetchone():
            return "same", id_, 0
    return None


def _check_session(
    connection: Connection, session: tuple[str, str], requires_empty: bool
) -> Enqueued | None:
    find = "SELECT 1 FROM sessions WHERE tenant = ? AND id = ?"
    if not connection.execute(find, session).fetchone():
        return "no_session", "", 0
    has_runs = "SELECT 1 FROM runs WHERE tenant = ? AND session_id = ? LIMIT 1"
    if requires_empty and connection.execute(has_runs, session).fetchone():
        return "not_empty", "", 0
    return None


ENQUEUE = Procedure(
    name="enqueue",
    sqlite=_enqueue,
    functions=SESSION_FUNCTIONS,
    postgres=f"""{DECLARE_SESSION}
    v_run text := a->>2;
    v_has_key boolean := jsonb_typeof(a->3) = 'array';
    v_is_new boolean := jsonb_typeof(a->4) = 'array';
    v_digest text;
    v_known text;
    v_all bigint;
    v_ours bigint;
    v_here bigint;
    v_claimed boolean := false;
BEGIN
    IF v_has_key THEN
        IF NOT pg_try_advisory_xact_lock(hashtextextended(
            'evoclaw key/' || jsonb_build_array(v_tenant, a->3->>0, a->3->>1)::text, 0
        )) THEN
            RETURN jsonb_build_array('{KEY_LOCKED}', '', 0);
        END IF;
        SELECT k.digest, k.run_id INTO v_digest, v_known FROM queue_keys AS k
        WHERE k.tenant = v_tenant AND k.owner = a->3->>0 AND k.key = a->3->>1;
        IF v_digest <> a->3->>2 THEN
            RETURN jsonb_build_array('other', v_known, 0);
        END IF;
        IF v_known IS NOT NULL THEN
            PERFORM 1 FROM runs WHERE {run_by_id("v_tenant", "v_known")};
            IF FOUND THEN
                RETURN jsonb_build_array('same', v_known, 0);
            END IF;
        END IF;
    END IF;
    PERFORM 1 FROM runs WHERE {run_by_id("v_tenant", "v_run")};
    IF FOUND THEN
        RETURN jsonb_build_array('same', v_run, 0);
    END IF;
    IF NOT v_is_new THEN
        PERFORM 1 FROM sessions WHERE tenant = v_tenant AND id = v_session;
        IF NOT FOUND THEN
            RETURN jsonb_build_array('no_session', '', 0);
        END IF;
        IF (a->>5)::boolean THEN
            PERFORM 1 FROM runs WHERE tenant = v_tenant AND session_id = v_session LIMIT 1;
            IF FOUND THEN
                RETURN jsonb_build_array('not_empty', '', 0);
            END IF;
        END IF;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE tenant = v_tenant),
        count(*) FILTER (WHERE tenant = v_tenant AND session_id = v_session)
    INTO v_all, v_ours, v_here FROM runs WHERE {IS_QUEUED};
    IF v_all >= (a->6->>0)::bigint THEN
        RETURN jsonb_build_array('full', '', 0);
    ELSIF v_ours >= (a->6->>1)::bigint THEN
        RETURN jsonb_build_array('full_tenant', '', 0);
    ELSIF v_here >= (a->6->>2)::bigint THEN
        RETURN jsonb_build_array('full_session', '', 0);
    END IF;
    IF jsonb_typeof(a->8) = 'array' THEN
        v_claimed := v_is_new OR NOT EXISTS (
            SELECT 1 FROM runs WHERE tenant = v_tenant AND session_id = v_session AND {IS_OPEN}
        );
    END IF;
    -- ON CONFLICT would write one more record to the WAL for each row.
    BEGIN
        INSERT INTO runs (tenant, id, session_id, asked, parent_run, root_run, background,
            began_at, label, {REQUEST_COLUMN}, owner, epoch, holder, lease_until)
        VALUES (v_tenant, v_run, v_session, decode(a->7->>0, 'base64'), '', v_run, 0,
            (a->7->>1)::float8, a->7->>2, decode(a->7->>3, 'base64'), a->7->>4,
            CASE WHEN v_claimed THEN 1 ELSE 0 END, CASE WHEN v_claimed THEN a->8->>0 ELSE '' END,
            CASE WHEN v_claimed THEN (a->8->>1)::float8 END);
        IF v_is_new THEN
            INSERT INTO sessions (tenant, id, owner, parent, agent, session)
            SELECT v_tenant, v_session, a->4->>0, a->4->>1, a->4->>2, decode(a->4->>3, 'base64')
            WHERE NOT EXISTS (
                SELECT 1 FROM sessions WHERE tenant = v_tenant AND id = v_session);
        END IF;
        IF v_known IS NOT NULL THEN
            UPDATE queue_keys SET run_id = v_run, at = (a->>9)::float8
            WHERE tenant = v_tenant AND owner = a->3->>0 AND key = a->3->>1;
            v_has_key := NOT FOUND;
        END IF;
        IF v_has_key THEN
            INSERT INTO queue_keys
            VALUES (v_tenant, a->3->>0, a->3->>1, a->3->>2, v_run, (a->>9)::float8);
        END IF;
    EXCEPTION WHEN unique_violation THEN
        RETURN jsonb_build_array('{KEY_LOCKED}', '', 0);
    END;
    IF v_claimed THEN
        RETURN jsonb_build_array('new', '', 1);
    END IF;
    IF a->>10 IS NOT NULL THEN
        PERFORM step_offer_session(v_tenant, v_session, (a->>9)::float8, a->>10);
    END IF;
    RETURN jsonb_build_array('new', '', 0);
END
""",
)

"""The steps of the command store: put a command, advance its state, settle it."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure

NO_OUTCOME = "settled_at IS NULL"
MAX_LATE_OUTCOMES = 20

_COUNT = f"""
SELECT count(*) FROM
    (SELECT 1 FROM commands WHERE agent_id = ? AND {NO_OUTCOME} AND tenant = ? LIMIT ?) AS waiting
"""
_PUT = """
INSERT INTO commands (request_id, agent_id, run_id, payload, expires_at, state, tenant)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO NOTHING
"""
_RENEW = f"""
UPDATE commands SET payload = ?, expires_at = ?
WHERE request_id = ? AND agent_id = ? AND tenant = ? AND {NO_OUTCOME}
"""
_SETTLE = f"""
UPDATE commands SET state = ?, outcome = ?, settled_at = ?
WHERE request_id = ? AND agent_id = ? AND {NO_OUTCOME}
"""
# The same outcome again is ignored, and the number of different ones is limited.
_PUT_LATE_OUTCOME = f"""
INSERT INTO notes (request_id, at, outcome) SELECT ?1, ?2, ?3
WHERE NOT EXISTS (SELECT 1 FROM commands WHERE request_id = ?1 AND outcome = ?3)
AND NOT EXISTS (SELECT 1 FROM notes WHERE request_id = ?1 AND outcome = ?3)
AND (SELECT count(*) FROM notes WHERE request_id = ?1) < {MAX_LATE_OUTCOMES}
"""


def _put(
    connection: Connection,
    request_id: str,
    agent_id: str,
    run_id: str,
    payload: bytes,
    expires_at: float | None,
    state: str,
    tenant: str,
    cap: int | None,
) -> int | None:
    """The number of waiting commands, or 0 if they were not counted; None if it was known.

    With a cap they are counted first; if there are so many, a new command is not stored.
    """
    known = "SELECT 1 FROM commands WHERE request_id = ?"
    count = 0
    if cap is not None:
        (count,) = connection.execute(_COUNT, (agent_id, tenant, cap)).fetchone()
        if count >= cap and connection.execute(known, (request_id,)).fetchone() is None:
            return count
    new = (request_id, agent_id, run_id, payload, expires_at, state, tenant)
    if connection.execute(_PUT, new).rowcount:
        return count
    connection.execute(_RENEW, (payload, expires_at, request_id, agent_id, tenant))
    return None


PUT = Procedure(
    name="put_command",
    changes_once=True,
    sqlite=_put,
    postgres="""
DECLARE
    count bigint := 0;
BEGIN
    IF a->>7 IS NOT NULL THEN
        SELECT count(*) INTO count FROM (
            SELECT 1 FROM commands
            WHERE agent_id = a->>1 AND settled_at IS NULL AND tenant = a->>6
            LIMIT (a->>7)::bigint
        ) AS waiting;
        IF count >= (a->>7)::bigint
            AND NOT EXISTS (SELECT 1 FROM commands WHERE request_id = a->>0)
        THEN
            RETURN to_jsonb(count);
        END IF;
    END IF;
    INSERT INTO commands (request_id, agent_id, run_id, payload, expires_at, state, tenant)
    VALUES (a->>0, a->>1, a->>2, decode(a->>3, 'base64'), (a->>4)::float8, a->>5, a->>6)
    ON CONFLICT (request_id) DO NOTHING;
    IF FOUND THEN
        RETURN to_jsonb(count);
    END IF;
    UPDATE commands SET payload = decode(a->>3, 'base64'), expires_at = (a->>4)::float8
    WHERE request_id = a->>0 AND agent_id = a->>1 AND tenant = a->>6 AND settled_at IS NULL;
    RETURN NULL;
END
""",
)


def _mark(connection: Connection, request_id: str, state: str, before: Sequence[str]) -> bool:
    """Whether the command was in one of the states before."""
    states = ", ".join("?" * len(before))
    statement = f"UPDATE commands SET state = ? WHERE request_id = ? AND state IN ({states})"
    return connection.execute(statement, (state, request_id, *before)).rowcount > 0


MARK = Procedure(
    name="mark_command",
    changes_once=True,
    sqlite=_mark,
    postgres="""
BEGIN
    UPDATE commands SET state = a->>1
    WHERE request_id = a->>0
        AND state IN (SELECT jsonb_array_elements_text(a->2));
    RETURN to_jsonb(FOUND);
END
""",
)


def _settle(
    connection: Connection, request_id: str, agent_id: str, outcome: bytes, state: str, now: float
) -> str:
    """A `SettleResult`; only the first outcome settles a command, and only of its own agent."""
    if connection.execute(_SETTLE, (state, outcome, now, request_id, agent_id)).rowcount:
        return "first"
    find = "SELECT agent_id FROM commands WHERE request_id = ?"
    if connection.execute(find, (request_id,)).fetchone() != (agent_id,):
        return "foreign"
    connection.execute(_PUT_LATE_OUTCOME, (request_id, now, outcome))
    return "again"


SETTLE = Procedure(
    name="settle_command",
    changes_once=True,
    sqlite=_settle,
    postgres=f"""
DECLARE
    result bytea := decode(a->>2, 'base64');
    owner text;
BEGIN
    UPDATE commands SET state = a->>3, outcome = result, settled_at = (a->>4)::float8
    WHERE request_id = a->>0 AND agent_id = a->>1 AND settled_at IS NULL;
    IF FOUND THEN
        RETURN to_jsonb('first'::text);
    END IF;
    SELECT agent_id INTO owner FROM commands WHERE request_id = a->>0;
    IF owner IS DISTINCT FROM a->>1 THEN
        RETURN to_jsonb('foreign'::text);
    END IF;
    INSERT INTO notes (request_id, at, outcome)
    SELECT a->>0, (a->>4)::float8, result
    WHERE NOT EXISTS (SELECT 1 FROM commands WHERE request_id = a->>0 AND outcome = result)
        AND NOT EXISTS (SELECT 1 FROM notes WHERE request_id = a->>0 AND outcome = result)
        AND (SELECT count(*) FROM notes WHERE request_id = a->>0) < {MAX_LATE_OUTCOMES};
    RETURN to_jsonb('again'::text);
END
""",
)
PROCEDURES = (PUT, MARK, SETTLE)

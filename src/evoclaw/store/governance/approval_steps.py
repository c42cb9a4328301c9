"""The steps that use, request and answer an approval.

Each locks the row that it decides by, and writes under a condition: an approval for one call is
used once, and the first answer counts, with any number of processes.
"""

from __future__ import annotations

from typing import Any

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure

_REQUEST = "tenant = ? AND request_id = ?"
_FIND = (
    "SELECT id, expires_at, decision, closed_at, used_at, used_epoch, used_by FROM approvals "
    f"WHERE {_REQUEST} AND sha256 = ?"
)
_FIND_COVERING = (
    "SELECT id FROM approvals WHERE scope IN (?, ?) AND tenant = ? AND decision = 'session' "
    "AND closed_at IS NULL AND expires_at > ? ORDER BY seq LIMIT 1"
)
_COUNT_WAITING = (
    "SELECT count(*) FROM approvals "
    "WHERE tenant = ? AND decision IS NULL AND closed_at IS NULL AND expires_at > ?"
)
_PUT = (
    "INSERT INTO approvals (id, tenant, request_id, sha256, scope, asked, expires_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_USE = (
    "UPDATE approvals SET used_at = coalesce(used_at, ?), used_epoch = ?, used_by = ?, "
    "uses = uses + CASE WHEN used_at IS NULL THEN 1 ELSE 0 END WHERE id = ?"
)


def _claim(
    connection: Connection,
    request: tuple[str, str, str],
    scopes: tuple[str, str],
    new: tuple[str, bytes, float],
    user: tuple[int, str, bool],
    store_request: bool,
    max_waiting: int,
    now: float,
) -> tuple[str, str | None]:
    """The status of the request, and the id of the approval or request.

    Args:
        connection: In a transaction.
        request: The tenant, the id of the request and the hash of its call.
        scopes: The scopes whose approvals cover the call; the request is for the first.
        new: Id, content and expiry of the request, to store if there is none.
        user: The epoch and the name of the process, and whether it resumes the call.
        store_request: Whether to store the request.
        max_waiting: Requests of a tenant that may wait at a time.
        now: The time.
    """
    tenant, request_id, _ = request
    row = connection.execute(_FIND, request).fetchone()
    if row is None or (row[2] is None and row[3] is None and row[1] > now):
        covering = connection.execute(_FIND_COVERING, (*scopes, tenant, now)).fetchone()
        if covering is not None:
            connection.execute("UPDATE approvals SET uses = uses + 1 WHERE id = ?", covering)
            close = f"UPDATE approvals SET closed_at = ? WHERE {_REQUEST} AND decision IS NULL"
            connection.execute(f"{close} AND closed_at IS NULL", (now, tenant, request_id))
            return "session", covering[0]
    if row is not None:
        return _use(connection, row, user, now), row[0]
    # The same call with other arguments than before: its earlier requests are void.
    void = f"UPDATE approvals SET closed_at = ? WHERE {_REQUEST} AND closed_at IS NULL"
    connection.execute(void, (now, tenant, request_id))
    if not store_request:
        return "unknown", None
    if connection.execute(_COUNT_WAITING, (tenant, now)).fetchone()[0] >= max_waiting:
        return "full", None
    id_, asked, expires_at = new
    connection.execute(_PUT, (id_, *request, scopes[0], asked, expires_at))
    return "waiting", id_


def _use(connection: Connection, row: Any, user: tuple[int, str, bool], now: float) -> str:
    """Use an approval for its call: once, or again by the same process or a resumed run."""
    id_, expires_at, decision, closed_at, used_at, used_epoch, used_by = row
    epoch, holder, resumed = user
    if closed_at is not None:
        return "closed"
    if decision == "deny":
        return "denied"
    if decision is None:
        return "waiting" if expires_at > now else "expired"
    if used_epoch is not None and epoch <= used_epoch and (epoch, holder) != (used_epoch, used_by):
        return "used"
    if expires_at <= now and not (used_at is not None and resumed):
        return "expired"
    connection.execute(_USE, (now, epoch, holder, id_))
    return decision


CLAIM_APPROVAL = Procedure(
    name="claim_approval",
    sqlite=_claim,
    postgres="""
DECLARE
    in_tenant text := a->0->>0;
    request text := a->0->>1;
    at float8 := (a->>6)::float8;
    user_epoch bigint := (a->3->>0)::bigint;
    exact record;
    is_known boolean;
    covering text;
BEGIN
    SELECT id, expires_at, decision, closed_at, used_at, used_epoch, used_by INTO exact
    FROM approvals WHERE tenant = in_tenant AND request_id = request AND sha256 = a->0->>2
    FOR UPDATE;
    is_known := FOUND;
    IF NOT is_known OR (
        exact.decision IS NULL AND exact.closed_at IS NULL AND exact.expires_at > at
    ) THEN
        UPDATE approvals SET uses = uses + 1 WHERE id = (
            SELECT id FROM approvals WHERE scope IN (a->1->>0, a->1->>1) AND tenant = in_tenant
                AND decision = 'session' AND closed_at IS NULL AND expires_at > at
            ORDER BY seq LIMIT 1 FOR UPDATE)
        RETURNING id INTO covering;
        IF FOUND THEN
            UPDATE approvals SET closed_at = at WHERE tenant = in_tenant AND request_id = request
                AND decision IS NULL AND closed_at IS NULL;
            RETURN jsonb_build_array('session', covering);
        END IF;
    END IF;
    IF NOT is_known THEN
        UPDATE approvals SET closed_at = at
        WHERE tenant = in_tenant AND request_id = request AND closed_at IS NULL;
        IF NOT (a->>4)::boolean THEN
            RETURN '["unknown", null]'::jsonb;
        END IF;
        IF (SELECT count(*) FROM approvals WHERE tenant = in_tenant AND decision IS NULL
            AND closed_at IS NULL AND expires_at > at) >= (a->>5)::bigint
        THEN
            RETURN '["full", null]'::jsonb;
        END IF;
        INSERT INTO approvals (id, tenant, request_id, sha256, scope, asked, expires_at)
        VALUES (a->2->>0, in_tenant, request, a->0->>2, a->1->>0, decode(a->2->>1, 'base64'),
            (a->2->>2)::float8)
        ON CONFLICT (tenant, request_id, sha256) DO NOTHING;
        IF FOUND THEN
            RETURN jsonb_build_array('waiting', a->2->>0);
        END IF;
        -- Another process requested the same meanwhile.
        SELECT id, expires_at, decision, closed_at, used_at, used_epoch, used_by INTO exact
        FROM approvals WHERE tenant = in_tenant AND request_id = request AND sha256 = a->0->>2
        FOR UPDATE;
    END IF;
    IF exact.closed_at IS NOT NULL THEN
        RETURN jsonb_build_array('closed', exact.id);
    ELSIF exact.decision = 'deny' THEN
        RETURN jsonb_build_array('denied', exact.id);
    ELSIF exact.decision IS NULL THEN
        RETURN jsonb_build_array(
            CASE WHEN exact.expires_at > at THEN 'waiting' ELSE 'expired' END, exact.id);
    ELSIF exact.used_epoch IS NOT NULL AND user_epoch <= exact.used_epoch
        AND NOT (user_epoch = exact.used_epoch AND a->3->>1 = exact.used_by)
    THEN
        RETURN jsonb_build_array('used', exact.id);
    ELSIF exact.expires_at <= at AND NOT (exact.used_at IS NOT NULL AND (a->3->>2)::boolean) THEN
        RETURN jsonb_build_array('expired', exact.id);
    END IF;
    UPDATE approvals SET used_at = coalesce(used_at, at), used_epoch = user_epoch,
        used_by = a->3->>1, uses = uses + CASE WHEN used_at IS NULL THEN 1 ELSE 0 END
    WHERE id = exact.id;
    RETURN jsonb_build_array(exact.decision, exact.id);
END
""",
)


def _answer(
    connection: Connection, tenant: str, id_: str, decision: str, answer: bytes, now: float
) -> bool:
    """Whether the request waited for this answer."""
    put = (
        "UPDATE approvals SET decision = ?, answer = ? WHERE id = ? AND tenant = ? "
        "AND decision IS NULL AND closed_at IS NULL AND expires_at > ?"
    )
    return connection.execute(put, (decision, answer, id_, tenant, now)).rowcount > 0


ANSWER_APPROVAL = Procedure(
    name="answer_approval",
    sqlite=_answer,
    postgres="""
BEGIN
    UPDATE approvals SET decision = a->>2, answer = decode(a->>3, 'base64')
    WHERE id = a->>1 AND tenant = a->>0
        AND decision IS NULL AND closed_at IS NULL AND expires_at > (a->>4)::float8;
    RETURN to_jsonb(FOUND);
END
""",
)


def _use_standing(connection: Connection, tenant: str, scope: str, now: float) -> str | None:
    """Count a use of the approval in force; its id."""
    found = connection.execute(_FIND_COVERING, (scope, scope, tenant, now)).fetchone()
    if found is None:
        return None
    connection.execute("UPDATE approvals SET uses = uses + 1 WHERE id = ?", found)
    return found[0]


USE_STANDING_APPROVAL = Procedure(
    name="use_standing_approval",
    sqlite=_use_standing,
    postgres="""
DECLARE
    used text;
BEGIN
    UPDATE approvals SET uses = uses + 1 WHERE id = (
        SELECT id FROM approvals WHERE scope = a->>1 AND tenant = a->>0
            AND decision = 'session' AND closed_at IS NULL AND expires_at > (a->>2)::float8
        ORDER BY seq LIMIT 1 FOR UPDATE)
    RETURNING id INTO used;
    RETURN to_jsonb(used);
END
""",
)

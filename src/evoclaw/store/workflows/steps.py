"""The steps of a workflow run: new events, leases and wakes.

`head`, the number of the last event, is the version of a workflow run: events are stored under the
condition that it is the one the caller knows, in the same statement that raises it. So the events
of a run are numbered without gaps, and become visible in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure, ServerFunction

STORED, OUTDATED, LEASE_LOST = "stored", "outdated", "lease_lost"
"""Results: stored; the caller missed an event or a wake; another process has the lease."""

_WAKE = (
    "UPDATE workflow_runs SET wakes = wakes + 1, due = 0 "
    "WHERE tenant = ? AND id = ? AND ended_at IS NULL"
)
_PUT_EVENT = (
    "INSERT INTO workflow_events (tenant, workflow_id, seq, at, event) VALUES (?, ?, ?, ?, ?)"
)


def put_events(
    connection: Connection,
    tenant: str,
    workflow_id: str,
    first: int,
    at: float,
    events: Sequence[bytes],
) -> None:
    """Insert events, numbered from the first."""
    rows = [(tenant, workflow_id, seq, at, event) for seq, event in enumerate(events, first)]
    connection.executemany(_PUT_EVENT, rows)


def _refusal(connection: Connection, tenant: str, workflow_id: str, holder: str) -> str:
    find = "SELECT 1 FROM workflow_runs WHERE tenant = ? AND id = ? AND holder = ?"
    held = connection.execute(find, (tenant, workflow_id, holder)).fetchone() is not None
    return OUTDATED if held else LEASE_LOST


def _append(
    connection: Connection,
    tenant: str,
    workflow_id: str,
    holder: str,
    head: int,
    events: Sequence[bytes],
    state: str,
    outcome: bytes | None,
    ended: bool,
    now: float,
) -> str:
    """Store events under a lease, and wake the parent of a workflow that ends with them."""
    change = (
        "UPDATE workflow_runs SET head = head + ?, state = ?, outcome = ?, ended_at = ?, "
        "holder = CASE WHEN ? = 1 THEN NULL ELSE holder END "
        "WHERE tenant = ? AND id = ? AND holder = ? AND head = ? AND ended_at IS NULL "
        "RETURNING parent"
    )
    values = (len(events), state, outcome, now if ended else None, int(ended))
    row = connection.execute(change, (*values, tenant, workflow_id, holder, head)).fetchone()
    if row is None:
        return _refusal(connection, tenant, workflow_id, holder)
    put_events(connection, tenant, workflow_id, head + 1, now, events)
    if ended:
        connection.execute(_WAKE, (tenant, row[0]))
    return STORED


_REFUSAL = ServerFunction(
    "step_workflow_refusal",
    "in_tenant text, workflow text, by_holder text",
    "jsonb",
    """
BEGIN
    RETURN to_jsonb(CASE WHEN EXISTS (
        SELECT 1 FROM workflow_runs
        WHERE tenant = in_tenant AND id = workflow AND holder = by_holder
    ) THEN 'outdated' ELSE 'lease_lost' END);
END
""",
)
APPEND_EVENTS = Procedure(
    name="append_workflow_events",
    sqlite=_append,
    functions=(_REFUSAL,),
    postgres="""
DECLARE
    first bigint := (a->>3)::bigint;
    at float8 := (a->>8)::float8;
    ended boolean := (a->>7)::boolean;
    waker text;
BEGIN
    UPDATE workflow_runs SET head = head + jsonb_array_length(a->4), state = a->>5,
        outcome = decode(a->>6, 'base64'), ended_at = CASE WHEN ended THEN at END,
        holder = CASE WHEN ended THEN NULL ELSE holder END
    WHERE tenant = a->>0 AND id = a->>1 AND holder = a->>2 AND head = first AND ended_at IS NULL
    RETURNING parent INTO waker;
    IF NOT FOUND THEN
        RETURN step_workflow_refusal(a->>0, a->>1, a->>2);
    END IF;
    INSERT INTO workflow_events (tenant, workflow_id, seq, at, event)
    SELECT a->>0, a->>1, first + number, at, decode(event, 'base64')
    FROM jsonb_array_elements_text(a->4) WITH ORDINALITY AS e (event, number);
    IF ended THEN
        UPDATE workflow_runs SET wakes = wakes + 1, due = 0
        WHERE tenant = a->>0 AND id = waker AND ended_at IS NULL;
    END IF;
    RETURN to_jsonb('stored'::text);
END
""",
)


def _add_event(
    connection: Connection, tenant: str, workflow_id: str, head: int, event: bytes, now: float
) -> bool:
    """Store an event from outside; whether `head` was the last one."""
    change = (
        "UPDATE workflow_runs SET head = head + 1, wakes = wakes + 1, due = 0 "
        "WHERE tenant = ? AND id = ? AND head = ? AND ended_at IS NULL"
    )
    if not connection.execute(change, (tenant, workflow_id, head)).rowcount:
        return False
    put_events(connection, tenant, workflow_id, head + 1, now, (event,))
    return True


ADD_EVENT = Procedure(
    name="add_workflow_event",
    sqlite=_add_event,
    postgres="""
BEGIN
    UPDATE workflow_runs SET head = head + 1, wakes = wakes + 1, due = 0
    WHERE tenant = a->>0 AND id = a->>1 AND head = (a->>2)::bigint AND ended_at IS NULL;
    IF NOT FOUND THEN
        RETURN to_jsonb(false);
    END IF;
    INSERT INTO workflow_events (tenant, workflow_id, seq, at, event)
    VALUES (a->>0, a->>1, (a->>2)::bigint + 1, (a->>4)::float8, decode(a->>3, 'base64'));
    RETURN to_jsonb(true);
END
""",
)


def _wake(connection: Connection, tenant: str, workflow_id: str) -> bool:
    return connection.execute(_WAKE, (tenant, workflow_id)).rowcount > 0


WAKE = Procedure(
    name="wake_workflow",
    sqlite=_wake,
    postgres="""
BEGIN
    UPDATE workflow_runs SET wakes = wakes + 1, due = 0
    WHERE tenant = a->>0 AND id = a->>1 AND ended_at IS NULL;
    RETURN to_jsonb(FOUND);
END
""",
)


def _release(
    connection: Connection,
    tenant: str,
    workflow_id: str,
    holder: str,
    seen: tuple[int, int],
    state: str,
    due: float | None,
) -> str:
    """Release a lease, unless the caller missed an event or a wake."""
    change = (
        "UPDATE workflow_runs SET holder = NULL, state = ?, due = ? "
        "WHERE tenant = ? AND id = ? AND holder = ? AND head = ? AND wakes = ?"
    )
    if connection.execute(change, (state, due, tenant, workflow_id, holder, *seen)).rowcount:
        return STORED
    return _refusal(connection, tenant, workflow_id, holder)


RELEASE = Procedure(
    name="release_workflow",
    sqlite=_release,
    functions=(_REFUSAL,),
    postgres="""
BEGIN
    UPDATE workflow_runs SET holder = NULL, state = a->>4, due = (a->>5)::float8
    WHERE tenant = a->>0 AND id = a->>1 AND holder = a->>2
        AND head = (a->3->>0)::bigint AND wakes = (a->3->>1)::bigint;
    IF NOT FOUND THEN
        RETURN step_workflow_refusal(a->>0, a->>1, a->>2);
    END IF;
    RETURN to_jsonb('stored'::text);
END
""",
)


def _claim(
    connection: Connection, holder: str, now: float, until: float, limit: int
) -> list[tuple[str, str]]:
    """Lease workflow runs that are due and free; their tenants and ids."""
    find = (
        "SELECT tenant, id FROM workflow_runs WHERE due <= ?1 AND ended_at IS NULL "
        "AND (holder IS NULL OR lease_until <= ?1) ORDER BY due, seq LIMIT ?2"
    )
    take = "UPDATE workflow_runs SET holder = ?, lease_until = ? WHERE tenant = ? AND id = ?"
    keys = [(tenant, id_) for tenant, id_ in connection.execute(find, (now, limit)).fetchall()]
    connection.executemany(take, [(holder, until, *key) for key in keys])
    return keys


CLAIM = Procedure(
    name="claim_workflows",
    sqlite=_claim,
    # Rows that another process changes just now are skipped: they are free at the next look.
    postgres="""
DECLARE
    at float8 := (a->>1)::float8;
    keys jsonb;
BEGIN
    WITH free AS (
        SELECT seq FROM workflow_runs WHERE due <= at AND ended_at IS NULL
            AND (holder IS NULL OR lease_until <= at)
        ORDER BY due, seq LIMIT (a->>3)::bigint FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE workflow_runs w SET holder = a->>0, lease_until = (a->>2)::float8
        FROM free WHERE w.seq = free.seq RETURNING w.tenant, w.id, w.due, w.seq
    )
    SELECT jsonb_agg(jsonb_build_array(tenant, id) ORDER BY due, seq) INTO keys FROM taken;
    RETURN coalesce(keys, '[]'::jsonb);
END
""",
)


def _renew(
    connection: Connection, holder: str, until: float, keys: Sequence[tuple[str, str]]
) -> list[tuple[str, str, int, int]]:
    """Renew leases; tenant, id, last event and wakes of all that are still held."""
    change = "UPDATE workflow_runs SET lease_until = ? WHERE holder = ? AND tenant = ? AND id = ?"
    connection.executemany(change, [(until, holder, *key) for key in keys])
    held = "SELECT tenant, id, head, wakes FROM workflow_runs WHERE holder = ?"
    return [
        (tenant, id_, head, wakes)
        for tenant, id_, head, wakes in connection.execute(held, (holder,))
    ]


RENEW = Procedure(
    name="renew_workflows",
    sqlite=_renew,
    # Locked in the order of their ids, like the steps of other processes that renew theirs.
    postgres="""
DECLARE
    held jsonb;
BEGIN
    PERFORM 1 FROM workflow_runs w
    WHERE w.holder = a->>0 AND (w.tenant, w.id) IN (
        SELECT k->>0, k->>1 FROM jsonb_array_elements(a->2) AS k)
    ORDER BY w.id, w.tenant FOR UPDATE;
    UPDATE workflow_runs w SET lease_until = (a->>1)::float8
    WHERE w.holder = a->>0 AND (w.tenant, w.id) IN (
        SELECT k->>0, k->>1 FROM jsonb_array_elements(a->2) AS k);
    SELECT jsonb_agg(jsonb_build_array(tenant, id, head, wakes)) INTO held
    FROM workflow_runs WHERE holder = a->>0;
    RETURN coalesce(held, '[]'::jsonb);
END
""",
)
PROCEDURES = (APPEND_EVENTS, ADD_EVENT, WAKE, RELEASE, CLAIM, RENEW)

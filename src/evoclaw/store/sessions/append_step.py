"""The step that stores the progress of a run: its row, new records and new messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure, ServerFunction
from evoclaw.store.sessions import statements

Packed: TypeAlias = tuple[int, bytes, float, Sequence[tuple[str, bytes]]]
"""New records of a run: the number of the last one, the row, the time, and the tool lists that the
row refers to, each with its digest."""

PUT_TOOL_LISTS = ServerFunction(
    "step_put_tool_lists",
    # Steps that have the tenant first and the packed records as their sixth argument.
    "steps jsonb",
    "void",
    # Most lists exist: a row that all runs share is not locked by each of them.
    """
BEGIN
    INSERT INTO tool_lists
    SELECT DISTINCT ON (s->>0, l->>0) s->>0, l->>0, (s->5->>2)::float8, decode(l->>1, 'base64')
    FROM jsonb_array_elements(steps) AS s, jsonb_array_elements(s->5->3) AS l
    WHERE jsonb_typeof(s->5) = 'array'
        AND NOT EXISTS (SELECT 1 FROM tool_lists t WHERE t.tenant = s->>0
            AND t.digest = l->>0 AND t.used_at > (s->5->>2)::float8 - 86400)
    ORDER BY s->>0, l->>0, (s->5->>2)::float8 DESC
    ON CONFLICT (tenant, digest) DO UPDATE SET used_at = excluded.used_at;
END
""",
)


def _append(
    connection: Connection,
    tenant: str,
    run_id: str,
    session_id: str,
    epoch: int,
    progress: Sequence[object],
    packed: Packed | None,
    messages: Sequence[tuple[int, bytes]],
) -> int:
    """The epoch of the run if it is above the caller's, and nothing was stored; else 0."""
    run = (tenant, run_id, epoch)
    if not (
        progress[0] is None
        and connection.execute(statements.UPDATE_USAGE, (*progress[1:6], *run)).rowcount
        or connection.execute(statements.UPDATE_PROGRESS, (*progress, *run)).rowcount
    ):
        find = "SELECT epoch FROM runs WHERE tenant = ? AND id = ?"
        row = connection.execute(find, (tenant, run_id)).fetchone()
        if row is not None:
            return row[0]
    append_rows(connection, tenant, run_id, session_id, packed, messages)
    return 0


def append_rows(
    connection: Connection,
    tenant: str,
    run_id: str,
    session_id: str,
    packed: Packed | None,
    messages: Sequence[tuple[int, bytes]],
) -> None:
    """Store new records and messages of a run."""
    if packed is not None:
        seq, row, now, tool_lists = packed
        connection.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (tenant, run_id, seq, row))
        lists = [(tenant, digest, now, data) for digest, data in tool_lists]
        if lists:
            connection.executemany(statements.PUT_TOOL_LIST, lists)
    if messages:
        rows = [(tenant, session_id, *message) for message in messages]
        connection.executemany(statements.PUT_MESSAGE, rows)


PUT_GIVEN_MESSAGES = """
changed AS (
    UPDATE messages AS t SET message = g.message FROM given AS g
    WHERE t.tenant = g.tenant AND t.session_id = g.session_id AND t.number = g.number
)
INSERT INTO messages (tenant, session_id, number, message)
SELECT g.tenant, g.session_id, g.number, g.message FROM given AS g
WHERE NOT EXISTS (SELECT 1 FROM messages AS t
    WHERE t.tenant = g.tenant AND t.session_id = g.session_id AND t.number = g.number)
"""
# Only the run that the step has locked writes to its session, so nothing conflicts; ON CONFLICT
# would write one more record to the WAL for each message.
APPEND = Procedure(
    name="append",
    sqlite=_append,
    takes_many=True,
    functions=(PUT_TOOL_LISTS,),
    # Of several steps of a run, the progress of the last one counts.
    postgres=f"""
DECLARE
    v_run record;
    v_higher bigint;
    v_fenced jsonb := '{{}}';
    v_answers jsonb;
BEGIN
    FOR v_run IN
        SELECT DISTINCT ON (s.step->>0, s.step->>1, s.step->3) s.step->>0 AS tenant,
            s.step->>1 AS id, (s.step->>3)::bigint AS epoch, s.step->4->>0 AS stop,
            (s.step->4->>1)::bigint AS turns, (s.step->4->>2)::bigint AS calls,
            (s.step->4->>3)::bigint AS tokens_in, (s.step->4->>4)::bigint AS tokens_out,
            (s.step->4->>5)::float8 AS cost, (s.step->4->>6)::float8 AS now
        FROM jsonb_array_elements(a) WITH ORDINALITY AS s (step, n)
        ORDER BY s.step->>0, s.step->>1, s.step->3, s.n DESC
    LOOP
        UPDATE runs SET stop = v_run.stop, turns = v_run.turns, calls = v_run.calls,
            tokens_in = v_run.tokens_in, tokens_out = v_run.tokens_out, cost = v_run.cost,
            ended_at = CASE WHEN v_run.stop IS NULL THEN NULL ELSE v_run.now END
        WHERE {statements.run_by_id("v_run.tenant", "v_run.id")} AND epoch <= v_run.epoch;
        IF NOT FOUND THEN
            SELECT epoch INTO v_higher FROM runs
            WHERE {statements.run_by_id("v_run.tenant", "v_run.id")};
            IF v_higher IS NOT NULL THEN
                v_fenced := v_fenced || jsonb_build_object(
                    jsonb_build_array(v_run.tenant, v_run.id, v_run.epoch)::text, v_higher);
            END IF;
        END IF;
    END LOOP;
    IF v_fenced = '{{}}' THEN
        v_answers := to_jsonb(array_fill(0, ARRAY[jsonb_array_length(a)]));
    ELSE
        SELECT jsonb_agg(coalesce(v_fenced->s.key, '0') ORDER BY s.n),
            coalesce(jsonb_agg(s.step ORDER BY s.n) FILTER (WHERE NOT v_fenced ? s.key), '[]')
        INTO v_answers, a FROM (
            SELECT g.step, g.n, jsonb_build_array(g.step->0, g.step->1, g.step->3)::text AS key
            FROM jsonb_array_elements(a) WITH ORDINALITY AS g (step, n)
        ) AS s;
    END IF;
    INSERT INTO records
    SELECT s->>0, s->>1, (s->5->>0)::bigint, decode(s->5->>1, 'base64')
    FROM jsonb_array_elements(a) AS s WHERE jsonb_typeof(s->5) = 'array';
    WITH given AS (
        SELECT DISTINCT ON (s.step->>0, s.step->>2, (m->>0)::bigint)
            s.step->>0 AS tenant, s.step->>2 AS session_id, (m->>0)::bigint AS number,
            decode(m->>1, 'base64') AS message
        FROM jsonb_array_elements(a) WITH ORDINALITY AS s (step, n),
            jsonb_array_elements(s.step->6) AS m
        ORDER BY s.step->>0, s.step->>2, (m->>0)::bigint, s.n DESC
    ), {PUT_GIVEN_MESSAGES};
    PERFORM step_put_tool_lists(a);
    RETURN v_answers;
END
""",
)

"""The step of a ledger: a list of operations on its accounts.

Operations are arrays, `now` being the time of the ledger:

    open     now, account, limits, spent
    reserve  now, id, path, amounts, leaving, [[id, path, amounts], …]
    settle   now, id, amounts, path
    release  now, id
    close    now, account
    prune    now, reservations made until, accounts closed before

A reservation that is refused changes nothing; the operations after it happen all the same.
PostgreSQL executes them one by one only if it cannot take the plan of the process: `ledger_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from evoclaw.core.ledgers import InsufficientFunds, Reservation
from evoclaw.store.databases.database import Connection
from evoclaw.store.databases.steps import Procedure
from evoclaw.store.governance.ledger_functions import ACCOUNT_FUNCTIONS, OPERATION_FUNCTIONS
from evoclaw.store.governance.ledger_operations import AccountState
from evoclaw.store.governance.ledger_plan import APPLY_PLAN
from evoclaw.store.governance.ledger_transaction import LedgerTransaction


def _execute(
    connection: Connection,
    operations: Sequence[Sequence[Any]],
    names: Sequence[str],
    ids: Sequence[str],
    plan: Sequence[Any] | None = None,
    adopt: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the operations; the other arguments are for PostgreSQL, which locks the rows first."""
    transaction = LedgerTransaction(connection)
    results = [_execute_operation(transaction, operation) for operation in operations]
    transaction.flush()
    states = [AccountState.of(*found) for found in transaction.stored_accounts()]
    return {"results": results, "accounts": msgspec.to_builtins(states)}


def _execute_operation(transaction: LedgerTransaction, operation: Sequence[Any]) -> dict[str, Any]:
    kind, now, *values = operation
    match kind:
        case "open":
            transaction.open(values[0], values[1], values[2], now)
        case "reserve":
            id, path, amounts, leaving, also = values
            return _result(transaction.reserve(tuple(path), amounts, id, leaving, also, now))
        case "settle":
            transaction.settle(values[0], values[1], now, tuple(values[2]))
        case "release":
            transaction.release(values[0])
        case "close":
            transaction.close(values[0], now)
        case _:
            return {"pruned": transaction.prune(now, values[0], values[1])}
    return {}


def _result(found: Reservation | InsufficientFunds) -> dict[str, Any]:
    key = "refused" if isinstance(found, InsufficientFunds) else "reserved"
    return {key: msgspec.to_builtins(found)}


LEDGER = Procedure(
    name="ledger",
    rank=70,
    sqlite=_execute,
    functions=(*ACCOUNT_FUNCTIONS, *OPERATION_FUNCTIONS, APPLY_PLAN),
    postgres="""
DECLARE
    v_operations jsonb;
    v_names text[];
    v_ids text[] := ARRAY(SELECT jsonb_array_elements_text(a->2));
    v_versions jsonb;
    v_operation jsonb;
    v_at float8;
    v_result jsonb;
    v_results jsonb[] := '{}';
BEGIN
    IF jsonb_typeof(a->3) = 'array' THEN
        v_result := step_ledger_apply_plan(a->3);
        IF v_result IS NOT NULL THEN
            RETURN v_result;
        END IF;
    END IF;
    v_operations := a->>0;
    FOR v_operation IN SELECT value FROM jsonb_array_elements(v_operations) LOOP
        IF v_operation->>0 = 'prune' THEN
            v_ids := v_ids || ARRAY(
                SELECT id FROM ledger_holds WHERE open = 1 AND at <= (v_operation->>2)::float8
                ORDER BY at LIMIT 200);
        ELSIF v_operation->>0 = 'close' THEN
            v_ids := v_ids || ARRAY(
                SELECT id FROM ledger_holds WHERE owner = v_operation->>2 AND open = 1);
        END IF;
    END LOOP;
    v_names := ARRAY(
        SELECT jsonb_array_elements_text(a->1) UNION
        SELECT jsonb_array_elements_text(path::jsonb) FROM ledger_holds WHERE id = ANY (v_ids));
    v_versions := step_ledger_lock(v_names);
    FOR v_operation IN SELECT value FROM jsonb_array_elements(v_operations) LOOP
        v_at := v_operation->>1;
        v_result := '{}';
        CASE v_operation->>0
        WHEN 'open' THEN
            PERFORM step_ledger_open(v_operation->>2, v_operation->3, v_operation->4, v_at);
        WHEN 'reserve' THEN
            v_result := step_ledger_reserve_all(v_operation);
        WHEN 'settle' THEN
            PERFORM step_ledger_settle(v_operation->>2, v_operation->3, v_operation->4, v_at);
        WHEN 'release' THEN
            PERFORM step_ledger_release(v_operation->>2);
        WHEN 'close' THEN
            PERFORM step_ledger_close(v_operation->>2, v_at);
        ELSE
            v_result := jsonb_build_object('pruned', step_ledger_prune(
                v_at, (v_operation->>2)::float8, (v_operation->>3)::float8, v_names));
        END CASE;
        v_results := array_append(v_results, v_result);
    END LOOP;
    -- An account that only a refused reservation mentioned.
    DELETE FROM ledger_accounts WHERE name = ANY (v_names) AND touched = -1;
    RETURN jsonb_build_object('results', to_jsonb(v_results), 'accounts', (
        SELECT coalesce(jsonb_agg(jsonb_build_array(t.name, t.limits::jsonb, t.spent::jsonb,
            t.held::jsonb, t.recent::jsonb, t.touched, t.closed_at IS NOT NULL,
            v_versions->>t.name IS NULL, t.xmin::text, coalesce(v_versions->>t.name, ''))), '[]')
        FROM ledger_accounts AS t WHERE t.name = ANY (v_names)),
    'adopted', (
        SELECT coalesce(jsonb_agg(jsonb_build_array(o.owner, o.ids, o.open)), '[]')
        FROM (
            SELECT t.owner, jsonb_agg(t.id) AS ids, coalesce(jsonb_agg(jsonb_build_array(
                t.id, t.path::jsonb, t.amounts::jsonb, t.at)) FILTER (WHERE t.open = 1), '[]')
                AS open
            FROM ledger_holds AS t
            WHERE t.owner = ANY (ARRAY(SELECT jsonb_array_elements_text(a->4))) GROUP BY t.owner
        ) AS o));
END
""",
)

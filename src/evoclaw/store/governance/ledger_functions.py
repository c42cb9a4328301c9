"""What PostgreSQL does with the accounts and reservations of a ledger, as `LedgerTransaction` does.

A limit is an array: the kind, the amount, and the length of its window or 0. An account that was
inserted for a step and is not used yet has -1 in `touched`.
"""

from __future__ import annotations

from evoclaw.store.databases.steps import ServerFunction

_ADD = ServerFunction(
    # The sum of amounts, without those that are 0; `v_sign` is 1, or -1 to subtract.
    "step_ledger_add",
    "v_amounts jsonb, v_more jsonb, v_sign int",
    "jsonb",
    """
DECLARE
    v_kind text;
    v_amount bigint;
BEGIN
    FOR v_kind, v_amount IN SELECT key, value::bigint FROM jsonb_each_text(v_more) LOOP
        v_amount := coalesce((v_amounts->>v_kind)::bigint, 0) + v_sign * v_amount;
        IF v_amount = 0 THEN
            v_amounts := v_amounts - v_kind;
        ELSE
            v_amounts := v_amounts || jsonb_build_object(v_kind, v_amount);
        END IF;
    END LOOP;
    RETURN v_amounts;
END
""",
)
_LEFT = ServerFunction(
    # What is left of a limit; below 0 if more was spent.
    "step_ledger_left",
    "v_limit jsonb, v_spent jsonb, v_held jsonb, v_recent jsonb, v_at float8",
    "bigint",
    """
DECLARE
    v_kind text := v_limit->>0;
    v_per float8 := v_limit->>2;
    v_left bigint := (v_limit->>1)::bigint - coalesce((v_held->>v_kind)::bigint, 0);
BEGIN
    IF v_per = 0 THEN
        RETURN v_left - coalesce((v_spent->>v_kind)::bigint, 0);
    END IF;
    RETURN v_left - (
        SELECT coalesce(sum((e->>2)::bigint), 0) FROM jsonb_array_elements(v_recent->v_kind) AS e
        WHERE (e->>1)::float8 > v_at - v_per
    );
END
""",
)
_RECORD = ServerFunction(
    # Adds spending to the windows of an account.
    "step_ledger_record",
    "v_recent jsonb, v_limits jsonb, v_spent jsonb, v_at float8",
    "jsonb",
    """
DECLARE
    v_limit jsonb;
    v_per float8;
    v_amount bigint;
    v_entries jsonb;
    v_last jsonb;
BEGIN
    FOR v_limit IN SELECT value FROM jsonb_array_elements(v_limits) LOOP
        v_per := v_limit->>2;
        v_amount := v_spent->>(v_limit->>0);
        CONTINUE WHEN v_per = 0 OR v_amount IS NULL OR v_amount = 0;
        SELECT coalesce(jsonb_agg(e.entry ORDER BY e.number), '[]') INTO v_entries
        FROM jsonb_array_elements(v_recent->(v_limit->>0)) WITH ORDINALITY AS e (entry, number)
        WHERE (e.entry->>1)::float8 > v_at - v_per;
        v_last := v_entries->-1;
        IF jsonb_array_length(v_entries) >= 128 AND v_at - (v_last->>0)::float8 < v_per / 128 THEN
            v_entries := v_entries - -1;
            v_last := jsonb_build_array(v_last->0, v_at, (v_last->>2)::bigint + v_amount);
        ELSE
            v_last := jsonb_build_array(v_at, v_at, v_amount);
        END IF;
        v_recent := v_recent
            || jsonb_build_object(v_limit->>0, v_entries || jsonb_build_array(v_last));
    END LOOP;
    RETURN v_recent;
END
""",
)
CHANGE_ACCOUNT = ServerFunction(
    # Adds amounts to what an account holds, and to what it has spent unless that is null.
    "step_ledger_change",
    "v_name text, v_held jsonb, v_sign int, v_spent jsonb, v_at float8",
    "void",
    """
BEGIN
    IF v_spent IS NULL THEN
        UPDATE ledger_accounts AS t SET held = step_ledger_add(t.held::jsonb, v_held, v_sign)::text,
            touched = greatest(t.touched, 0), checksum = NULL
        WHERE t.name = v_name;
    ELSE
        UPDATE ledger_accounts AS t SET held = step_ledger_add(t.held::jsonb, v_held, v_sign)::text,
            spent = step_ledger_add(t.spent::jsonb, v_spent, 1)::text,
            recent = step_ledger_record(t.recent::jsonb, t.limits::jsonb, v_spent,
                greatest(t.touched, v_at))::text,
            touched = greatest(t.touched, v_at), checksum = NULL
        WHERE t.name = v_name;
    END IF;
END
""",
)
_CHANGE_PATH = ServerFunction(
    # The same for each account of a path.
    "step_ledger_change_path",
    "v_path jsonb, v_held jsonb, v_sign int, v_spent jsonb, v_at float8",
    "void",
    """
DECLARE
    v_name text;
BEGIN
    FOR v_name IN SELECT jsonb_array_elements_text(v_path) LOOP
        PERFORM step_ledger_change(v_name, v_held, v_sign, v_spent, v_at);
    END LOOP;
END
""",
)
_TIME = ServerFunction(
    # The time, which never goes back behind the last spending of an account.
    "step_ledger_time",
    "v_path jsonb, v_at float8",
    "float8",
    """
BEGIN
    RETURN greatest(v_at, (
        SELECT max((SELECT t.touched FROM ledger_accounts AS t WHERE t.name = p.name))
        FROM jsonb_array_elements_text(v_path) AS p (name)
    ));
END
""",
)
_OPEN = ServerFunction(
    "step_ledger_open",
    "v_name text, v_limits jsonb, v_spent jsonb, v_at float8",
    "void",
    """
DECLARE
    v_account ledger_accounts%ROWTYPE;
BEGIN
    SELECT * INTO v_account FROM ledger_accounts WHERE name = v_name;
    IF v_account.touched > 0 AND v_account.limits::jsonb = v_limits
        AND v_account.closed_at IS NULL THEN
        RETURN;
    END IF;
    UPDATE ledger_accounts SET limits = v_limits::text, closed_at = NULL, checksum = NULL
    WHERE name = v_name;
    IF v_account.touched <= 0 THEN
        PERFORM step_ledger_change(v_name, '{}', 1, v_spent, v_at);
    END IF;
END
""",
)
_RESERVE = ServerFunction(
    # Reserves on one path; an object with `is_new` and `remaining_before`, or the refusal.
    "step_ledger_reserve",
    "v_id text, v_path jsonb, v_amounts jsonb, v_leaving jsonb, v_at float8",
    "jsonb",
    """
DECLARE
    v_hold ledger_holds%ROWTYPE;
    v_account record;
    v_is_new boolean;
    v_own jsonb := '{}';
    v_limit jsonb;
    v_kind text;
    v_wanted bigint;
    v_left bigint;
    v_kinds text[] := '{}';
    v_least jsonb := '{}';
BEGIN
    SELECT * INTO v_hold FROM ledger_holds WHERE id = v_id;
    v_is_new := NOT FOUND;
    IF NOT v_is_new THEN
        v_path := v_hold.path;
        v_amounts := v_hold.amounts;
        IF v_hold.open = 1 THEN
            v_own := v_amounts;
        END IF;
    END IF;
    v_at := step_ledger_time(v_path, v_at);
    FOR v_account IN
        SELECT t.name, t.limits::jsonb, t.spent::jsonb, t.held::jsonb, t.recent::jsonb
        FROM jsonb_array_elements_text(v_path) WITH ORDINALITY AS p (name, number)
        JOIN ledger_accounts AS t ON t.name = p.name ORDER BY p.number
    LOOP
        FOR v_limit IN SELECT value FROM jsonb_array_elements(v_account.limits) LOOP
            v_kind := v_limit->>0;
            v_wanted := v_amounts->>v_kind;
            CONTINUE WHEN v_wanted IS NULL;
            v_left := greatest(0, step_ledger_left(
                v_limit, v_account.spent, v_account.held, v_account.recent, v_at));
            IF v_is_new AND v_wanted > 0
                AND v_wanted + coalesce((v_leaving->>v_kind)::bigint, 0) > v_left THEN
                v_left := greatest(0, v_left - coalesce((v_leaving->>v_kind)::bigint, 0));
                RETURN jsonb_build_object('refused', jsonb_build_object('kind', v_kind, 'account',
                    v_account.name, 'left', v_left, 'wanted', v_wanted, 'per', v_limit->2));
            END IF;
            CONTINUE WHEN v_left >= (v_least->v_kind->>'left')::bigint;
            IF NOT v_least ? v_kind THEN
                v_kinds := v_kinds || v_kind;
            END IF;
            v_least := v_least || jsonb_build_object(v_kind, jsonb_build_object(
                'kind', v_kind, 'account', v_account.name, 'left', v_left, 'most', v_limit->1));
        END LOOP;
    END LOOP;
    IF v_is_new THEN
        PERFORM step_ledger_change_path(v_path, v_amounts, 1, NULL, v_at);
        INSERT INTO ledger_holds (id, owner, path, amounts, at, open)
        VALUES (v_id, v_path->>-1, v_path::text, v_amounts::text, v_at, 1);
    END IF;
    RETURN jsonb_build_object('is_new', v_is_new, 'remaining_before', (
        SELECT coalesce(jsonb_agg((v_least->k.kind) || jsonb_build_object('left',
            (v_least->k.kind->>'left')::bigint + coalesce((v_own->>k.kind)::bigint, 0))
            ORDER BY k.number), '[]')
        FROM unnest(v_kinds) WITH ORDINALITY AS k (kind, number)));
END
""",
)
_RESERVE_ALL = ServerFunction(
    # All reservations of an operation, or none.
    "step_ledger_reserve_all",
    "v_operation jsonb",
    "jsonb",
    """
DECLARE
    v_at float8 := v_operation->>1;
    v_first jsonb := step_ledger_reserve(v_operation->>2, v_operation->3, v_operation->4,
        v_operation->5, v_at);
    v_item jsonb;
    v_next jsonb;
    v_also text[] := '{}';
BEGIN
    IF v_first ? 'refused' THEN
        RETURN v_first;
    END IF;
    FOR v_item IN SELECT value FROM jsonb_array_elements(v_operation->6) LOOP
        v_next := step_ledger_reserve(v_item->>0, v_item->1, v_item->2, '{}', v_at);
        IF v_next ? 'refused' THEN
            IF (v_first->>'is_new')::boolean THEN
                v_also := v_also || (v_operation->>2);
            END IF;
            PERFORM step_ledger_release(id) FROM unnest(v_also) AS made (id);
            RETURN v_next;
        END IF;
        IF (v_next->>'is_new')::boolean THEN
            v_also := v_also || (v_item->>0);
        END IF;
    END LOOP;
    RETURN jsonb_build_object('reserved', v_first
        || jsonb_build_object('id', v_operation->2, 'also', to_jsonb(v_also)));
END
""",
)
_SETTLE = ServerFunction(
    # Without `v_spent` the reserved amount is spent; without a path only what was reserved counts.
    "step_ledger_settle",
    "v_id text, v_spent jsonb, v_path jsonb, v_at float8",
    "void",
    """
DECLARE
    v_hold ledger_holds%ROWTYPE;
    v_amounts jsonb := '{}';
BEGIN
    SELECT * INTO v_hold FROM ledger_holds WHERE id = v_id;
    IF FOUND THEN
        IF v_hold.open = 0 THEN
            RETURN;
        END IF;
        v_path := v_hold.path;
        v_amounts := v_hold.amounts;
        UPDATE ledger_holds SET open = 0, checksum = NULL WHERE id = v_id;
    ELSIF jsonb_array_length(v_path) = 0 THEN
        RETURN;
    ELSE
        INSERT INTO ledger_holds (id, owner, path, amounts, at, open)
        VALUES (v_id, v_path->>-1, v_path::text, '{}', v_at, 0);
    END IF;
    PERFORM step_ledger_change_path(v_path, v_amounts, -1, coalesce(v_spent, v_amounts),
        step_ledger_time(v_path, v_at));
END
""",
)
_RELEASE = ServerFunction(
    "step_ledger_release",
    "v_id text",
    "void",
    """
DECLARE
    v_hold ledger_holds%ROWTYPE;
BEGIN
    DELETE FROM ledger_holds WHERE id = v_id AND open = 1 RETURNING * INTO v_hold;
    IF FOUND THEN
        PERFORM step_ledger_change_path(v_hold.path::jsonb, v_hold.amounts::jsonb, -1, NULL, 0);
    END IF;
END
""",
)
_CLOSE = ServerFunction(
    "step_ledger_close",
    "v_name text, v_at float8",
    "void",
    """
BEGIN
    PERFORM step_ledger_settle(id, NULL, '[]', v_at) FROM ledger_holds
    WHERE owner = v_name AND open = 1;
    UPDATE ledger_accounts SET closed_at = greatest(v_at, touched),
        touched = greatest(touched, 0), checksum = NULL
    WHERE name = v_name;
    DELETE FROM ledger_holds WHERE owner = v_name;
END
""",
)
_PRUNE = ServerFunction(
    # Of the reservations, those of whose accounts all are locked.
    "step_ledger_prune",
    "v_at float8, v_reserved_until float8, v_closed_before float8, v_locked text[]",
    "bigint",
    """
DECLARE
    v_old text[] := ARRAY(
        SELECT id FROM ledger_holds
        WHERE open = 1 AND at <= v_reserved_until AND path::jsonb <@ to_jsonb(v_locked)
        ORDER BY at LIMIT 200);
    v_count bigint;
BEGIN
    PERFORM step_ledger_settle(id, NULL, '[]', v_at) FROM unnest(v_old) AS old (id);
    -- One that others still hold something in would not know of it when they release it.
    DELETE FROM ledger_accounts WHERE name IN (
        SELECT name FROM ledger_accounts
        WHERE closed_at < v_closed_before AND held = '{}' AND name <> ALL (v_locked)
        ORDER BY closed_at LIMIT 200 FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count + cardinality(v_old);
END
""",
)
_LOCK = ServerFunction(
    # Locks accounts in the order of their names, as all processes do, and inserts those that do
    # not exist; an object with the version of each, or null for a new one.
    "step_ledger_lock",
    "v_names text[]",
    "jsonb",
    """
DECLARE
    v_new text[] := '{}';
    v_made text[];
    v_versions jsonb;
    v_count bigint;
BEGIN
    LOOP
        -- New ones are first: a process that waits for one of these has locked no other row.
        WITH inserted AS (
            INSERT INTO ledger_accounts (name, limits, spent, held, recent, touched)
            SELECT u.name, '[]', '{}', '{}', '{}', -1 FROM unnest(v_names) AS u (name)
            WHERE (SELECT t.touched FROM ledger_accounts AS t WHERE t.name = u.name) IS NULL
            ORDER BY u.name COLLATE "C"
            ON CONFLICT (name) DO NOTHING RETURNING name
        )
        SELECT array_agg(name) INTO v_made FROM inserted;
        v_new := v_new || v_made;
        SELECT count(*), jsonb_object_agg(t.name,
            CASE WHEN t.name <> ALL (v_new) THEN t.version END)
        INTO v_count, v_versions
        FROM (
            SELECT name, xmin::text AS version FROM ledger_accounts
            WHERE name = ANY (v_names) ORDER BY name FOR UPDATE
        ) AS t;
        EXIT WHEN v_count = cardinality(v_names);
    END LOOP;
    RETURN coalesce(v_versions, '{}');
END
""",
)
ACCOUNT_FUNCTIONS = (_ADD, _LEFT, _RECORD, CHANGE_ACCOUNT)
OPERATION_FUNCTIONS = (
    _CHANGE_PATH,
    _TIME,
    _OPEN,
    _RESERVE,
    _RESERVE_ALL,
    _SETTLE,
    _RELEASE,
    _CLOSE,
    _PRUNE,
    _LOCK,
)

"""The usual case of a ledger step on PostgreSQL: what is to be stored, instead of operations.

Nearly always a process knows what its operations change. It sends a plan: the accounts as they will
be, and the reservations that are made or ended. The server compares the version of each account
with the one that the process knows. If it is the same, nobody else has changed the account, nor
made or ended a reservation of it, since each of these writes the row of its owner.

For accounts that others use too, such as that of a tenant, the plan also has the sums that the
operations add. If another process has changed such an account, the server checks that the sums fit
into all limits, in any order of the operations, adds them, and returns the account as it was
before; from that the process computes the answers.

If anything else differs, the server executes the operations one by one; see `ledger_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from evoclaw.core.ledgers import (
    NO_AMOUNTS,
    Account,
    AccountPath,
    Amounts,
    InsufficientFunds,
    LedgerEntry,
    Limit,
    RemainingBudget,
    Reservation,
    check_funds,
)
from evoclaw.store.databases.steps import ServerFunction
from evoclaw.store.governance.ledger_operations import (
    AccountEffect,
    AccountState,
    LedgerOperation,
    LedgerResult,
    OperationResult,
)
from evoclaw.store.governance.ledger_rows import account_texts, encode_json


class StoredAccount(NamedTuple):
    """An account as it is stored, for a plan."""

    account: Account
    version: str
    """Identifies what is stored; empty for an account that does not exist."""
    ids: set[str] | None
    """All its reservations, if they are known."""

    @property
    def is_own(self) -> bool:
        """Whether only this process uses it, as that of a run, or it is new.

        An account without reservations of its own is that of a tenant or a user.
        """
        return not self.version or bool(self.ids)


class _Sums:
    """What the operations add to an account that others use too."""

    def __init__(self, now: float) -> None:
        self.held: dict[str, int] = {}
        self.spent: dict[str, int] | None = None
        self.reserved: dict[str, int] = {}
        """What must be left for the reservations."""
        self.exceeded: dict[str, int] = {}
        """What is spent beyond the reservations."""
        self.first = self.last = now

    def add(self, effect: AccountEffect, leaving: Amounts, now: float) -> None:
        self.last = now
        for kind, amount in effect.held.items():
            _add(self.held, kind, amount)
            if amount:
                _add(self.reserved, kind, amount + leaving.get(kind, 0))
        for kind, amount in effect.released.items():
            _add(self.held, kind, -amount)
        if effect.spent is not None:
            self.spent = self.spent or {}
            for kind, amount in effect.spent.items():
                _add(self.spent, kind, amount)
                _add(self.exceeded, kind, max(0, amount - effect.released.get(kind, 0)))

    def encode(self, version: str) -> Sequence[Any]:
        needed = {kind: much + self.exceeded.get(kind, 0) for kind, much in self.reserved.items()}
        return version, self.held, self.spent, needed, self.first, self.last


def _add(amounts: dict[str, int], kind: str, amount: int) -> None:
    amounts[kind] = amounts.get(kind, 0) + amount


class _Hold(NamedTuple):
    """A reservation that the plan makes."""

    path: AccountPath
    amounts: Amounts
    at: float
    is_open: bool


class LedgerPlan:
    """What a list of operations changes."""

    def __init__(
        self, operations: Sequence[LedgerOperation], find: Callable[[str], StoredAccount]
    ) -> None:
        """Plan the operations; `find` returns an account as this process last saw it stored."""
        self._operations = operations
        self._find = find
        self._stored: dict[str, StoredAccount] = {}
        """The accounts as they are before."""
        self._accounts: dict[str, Account] = {}
        """The accounts as they will be."""
        self._shared: dict[str, _Sums] = {}
        """The sums for those that others use too."""
        self._closed: dict[str, tuple[float, int]] = {}
        """When an account is closed, and how many of its reservations were open before."""
        self._put: dict[str, _Hold] = {}
        self._settled: dict[str, str] = {}
        self._released: dict[str, str] = {}
        """The owners of reservations that were made before, by id."""
        self.is_possible = all(self._add(operation) for operation in operations)
        """False if the operations are to be executed one by one."""

    def _add(self, operation: LedgerOperation) -> bool:
        match operation.kind:
            case "reserve":
                return self._reserve(operation)
            case "open" if self._owns(operation.values[2]):
                execute(operation, self._accounts)
                return True
            case "close" if operation.is_certain:
                return self._close(operation)
            case "settle" | "release" if operation.is_certain:
                return self._end(operation)
            case _:
                return False

    def _account(self, name: str) -> Account:
        """An account as it will be."""
        account = self._accounts.get(name)
        if account is None:
            found = self._stored[name] = self._find(name)
            account = self._accounts[name] = copy_account(found.account)
        return account

    def _owns(self, name: str) -> bool:
        """Whether only this process uses an account, and it is not closed."""
        return not self._account(name).closed and self._stored[name].is_own

    def _reserve(self, operation: LedgerOperation) -> bool:
        leaving: Amounts = operation.values[5]
        fresh = operation.fresh()
        for id, path, _ in fresh:
            if not self._owns(path[-1]) or id in self._put:
                return False
            if operation.expected is None and id in (self._stored[path[-1]].ids or ()):
                return False  # it exists, and the answer depends on it
        for id, path, amounts in fresh:
            accounts = [self._account(name) for name in path]
            if isinstance(_check(accounts, amounts, leaving, operation.now), InsufficientFunds):
                return False
            if not self._change(operation, AccountEffect(path, amounts), leaving):
                return False
            self._put[id] = _Hold(path, amounts, operation.now, is_open=True)
            leaving = NO_AMOUNTS  # counts for the first one alone
        return True

    def _end(self, operation: LedgerOperation) -> bool:
        (effect,) = operation.effects
        id, owner = operation.ids[0], effect.path[-1]
        if not self._owns(owner):
            return False
        hold = self._put.pop(id, None)
        if hold is not None and not operation.has_reservation:
            return False  # it was asked for, and not answered when this was said
        if operation.kind == "release":
            if hold is None:
                self._released[id] = owner
        elif hold is not None:
            self._put[id] = hold._replace(is_open=False)
        elif operation.has_reservation:
            self._settled[id] = owner
        else:
            self._put[id] = _Hold(effect.path, {}, operation.now, is_open=False)
        return self._change(operation, effect)

    def _close(self, operation: LedgerOperation) -> bool:
        name = operation.values[2]
        put = {id for id, hold in self._put.items() if hold.path[-1] == name}
        if not self._owns(name) or any(
            self._put[id].is_open and id not in operation.ids for id in put
        ):
            return False  # the last one was not answered when this was said
        if not all(self._change(operation, effect) for effect in operation.effects):
            return False
        account = self._accounts[name]
        account.closed = True
        count = len(set(operation.ids) - put)
        for ids in (self._settled, self._released):
            for id in [id for id, owner in ids.items() if owner == name]:
                del ids[id]
                count += 1
        for id in put:
            del self._put[id]
        self._closed[name] = max(operation.now, account.touched), count
        return True

    def _change(
        self, operation: LedgerOperation, effect: AccountEffect, leaving: Amounts = NO_AMOUNTS
    ) -> bool:
        """Add what an operation does; False if an account is closed already."""
        for name in effect.path:
            account = self._account(name)
            if account.closed:
                return False
            change_account(account, effect, operation.now)
            if not self._stored[name].is_own:
                sums = self._shared.setdefault(name, _Sums(operation.now))
                sums.add(effect, leaving, operation.now)
        return True

    def encode(self) -> Sequence[Any]:
        """The argument of the server function."""
        rows: dict[str, Sequence[Any]] = {}
        new: list[Sequence[Any]] = []
        for name, account in self._accounts.items():
            closed_at, _ = self._closed.get(name, (None, 0))
            row = (*account_texts(account), account.touched, closed_at)
            if version := self._stored[name].version:
                rows[name] = (version, *row)
            else:
                new.append((name, *row))
        return (
            {name: sums.encode(self._stored[name].version) for name, sums in self._shared.items()},
            rows,
            new,
            [
                (id, hold.path[-1], encode_json(hold.path), encode_json(hold.amounts), hold.at,
                    int(hold.is_open))
                for id, hold in self._put.items()
            ],
            list(self._settled),
            list(self._released),
            {name: count for name, (_, count) in self._closed.items()},
        )  # fmt: skip

    def result(self, taken: Any) -> LedgerResult:
        """The result of the operations, after the server has taken the plan; see `APPLY_PLAN`."""
        changed = msgspec.convert(taken["before"], list[AccountState])
        versions = {name: stored.version for name, stored in self._stored.items()}
        accounts = {name: copy_account(stored.account) for name, stored in self._stored.items()}
        for state in changed:
            versions[state.name], accounts[state.name] = state.version, state.account()
        answers = [execute(operation, accounts) for operation in self._operations]
        return LedgerResult(
            [OperationResult(reserved=answer) for answer in answers],
            [
                AccountState.of(account, not versions[name], taken["version"], versions[name])
                for name, account in accounts.items()
            ],
        )


def copy_account(account: Account) -> Account:
    """An account that can be changed on its own."""
    recent = {
        kind: [LedgerEntry(entry.since, entry.until, entry.amount) for entry in entries]
        for kind, entries in account.recent.items()
    }
    return Account(
        account.name, account.limits, dict(account.spent), dict(account.held), recent,
        account.touched, account.closed,
    )  # fmt: skip


def change_account(account: Account, effect: AccountEffect, now: float) -> None:
    """Change an account by the effect of an operation."""
    account.hold(effect.held)
    account.release(effect.released)
    if effect.spent is not None:
        account.spend(effect.spent, max(now, account.touched))


def execute(operation: LedgerOperation, accounts: Mapping[str, Account]) -> Reservation | None:
    """Execute an operation of which all is known; the answer to a reservation."""
    values = operation.values
    if operation.kind == "open":
        account = accounts[values[2]]
        account.limits = {kind: Limit(most, per) for kind, most, per in values[3]}
        if not account.touched:
            account.spend(values[4], operation.now)
        return None
    if operation.kind == "reserve":
        return _execute_reserve(operation, accounts)
    for effect in operation.effects:
        for name in effect.path:
            change_account(accounts[name], effect, operation.now)
    if operation.kind == "close":
        accounts[values[2]].closed = True
    return None


def _execute_reserve(operation: LedgerOperation, accounts: Mapping[str, Account]) -> Reservation:
    _, now, id, path, amounts, leaving, _ = operation.values
    before = _check([accounts[name] for name in path], amounts, leaving, now)
    if isinstance(before, InsufficientFunds):
        raise AssertionError(f"the plan of a ledger did not fit: {before}")
    fresh = operation.fresh()
    for _, used, reserved in fresh:
        for name in used:
            accounts[name].hold(reserved)
    return Reservation(id, remaining_before=before, also=tuple(other for other, _, _ in fresh[1:]))


def _check(
    accounts: Sequence[Account], amounts: Amounts, leaving: Amounts, now: float
) -> tuple[RemainingBudget, ...] | InsufficientFunds:
    """As `check_funds`, at a time that never goes back behind the last spending."""
    return check_funds(accounts, amounts, leaving, max([now, *[a.touched for a in accounts]]))


APPLY_PLAN = ServerFunction(
    # The version of what was written, and the shared accounts that others have changed as they were
    # before; or null if nothing was done, and the operations are to be executed one by one. Rows
    # are found by arrays of their keys: for a join, the tables might be read whole.
    "step_ledger_apply_plan",
    "v_plan jsonb",
    "jsonb",
    """
DECLARE
    v_shared jsonb := v_plan->0;
    v_rows jsonb := v_plan->1;
    v_names text[] := ARRAY(SELECT jsonb_object_keys(v_rows));
    v_ids text[] := ARRAY(SELECT jsonb_array_elements_text(v_plan->4));
    v_changed text[] := '{}';
    v_name text;
    v_count bigint;
    v_version text;
    v_sums jsonb;
    v_limit jsonb;
    v_account record;
    v_before jsonb[] := '{}';
BEGIN
    IF v_shared <> '{}' THEN
        -- Locked in the order of their names, as all processes do.
        SELECT array_agg(s.name) FILTER (WHERE s.version <> v_shared->s.name->>0)
        INTO v_changed
        FROM (
            SELECT t.name, t.xmin::text AS version FROM ledger_accounts AS t
            WHERE t.name = ANY (ARRAY(SELECT jsonb_object_keys(v_shared)))
            ORDER BY t.name FOR UPDATE
        ) AS s;
        v_changed := coalesce(v_changed, '{}');
    END IF;
    WITH written AS (
        UPDATE ledger_accounts AS t
        SET limits = v_rows->t.name->>1, spent = v_rows->t.name->>2, held = v_rows->t.name->>3,
            recent = v_rows->t.name->>4, touched = (v_rows->t.name->>5)::float8,
            closed_at = (v_rows->t.name->>6)::float8, checksum = NULL
        WHERE t.name = ANY (v_names) AND t.xmin::text = v_rows->t.name->>0
        RETURNING t.xmin::text AS version
    )
    SELECT count(*), max(version) INTO v_count, v_version FROM written;
    IF v_count + cardinality(v_changed) <> cardinality(v_names) THEN
        RAISE EXCEPTION 'an account was changed by another process, or deleted';
    END IF;
    IF jsonb_array_length(v_plan->2) > 0 THEN
        WITH written AS (
            INSERT INTO ledger_accounts (name, limits, spent, held, recent, touched, closed_at)
            SELECT r->>0, r->>1, r->>2, r->>3, r->>4, (r->>5)::float8, (r->>6)::float8
            FROM jsonb_array_elements(v_plan->2) AS r
            RETURNING xmin::text AS version
        )
        SELECT max(version) INTO v_version FROM written;
    END IF;
    FOREACH v_name IN ARRAY v_changed LOOP
        v_sums := v_shared->v_name;
        SELECT t.limits::jsonb, t.spent::jsonb, t.held::jsonb, t.recent::jsonb, t.touched,
            t.closed_at, t.xmin::text AS version
        INTO v_account FROM ledger_accounts AS t WHERE t.name = v_name;
        IF v_account.closed_at IS NOT NULL THEN
            RAISE EXCEPTION 'a shared account is closed';
        END IF;
        FOR v_limit IN SELECT value FROM jsonb_array_elements(v_account.limits) LOOP
            IF (v_sums->3->>(v_limit->>0))::bigint > step_ledger_left(v_limit, v_account.spent,
                v_account.held, v_account.recent,
                greatest(v_account.touched, (v_sums->>4)::float8)) THEN
                RAISE EXCEPTION 'not enough is left';
            END IF;
        END LOOP;
        v_before := array_append(v_before, jsonb_build_array(v_name, v_account.limits,
            v_account.spent, v_account.held, v_account.recent, v_account.touched, false, false,
            v_account.version));
        PERFORM step_ledger_change(v_name, v_sums->1, 1, nullif(v_sums->2, 'null'),
            (v_sums->>5)::float8);
    END LOOP;
    IF v_plan->6 <> '{}' THEN
        WITH deleted AS (
            DELETE FROM ledger_holds AS t
            WHERE t.owner = ANY (ARRAY(SELECT jsonb_object_keys(v_plan->6))) RETURNING t.open
        )
        SELECT coalesce(sum(open), 0) INTO v_count FROM deleted;
        IF v_count <> (SELECT sum(value::bigint) FROM jsonb_each_text(v_plan->6)) THEN
            RAISE EXCEPTION 'a reservation was made or ended by another process';
        END IF;
    END IF;
    IF cardinality(v_ids) > 0 THEN
        UPDATE ledger_holds SET open = 0, checksum = NULL WHERE open = 1 AND id = ANY (v_ids);
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> cardinality(v_ids) THEN
            RAISE EXCEPTION 'a reservation was ended by another process';
        END IF;
    END IF;
    IF jsonb_array_length(v_plan->5) > 0 THEN
        DELETE FROM ledger_holds
        WHERE open = 1 AND id = ANY (ARRAY(SELECT jsonb_array_elements_text(v_plan->5)));
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count <> jsonb_array_length(v_plan->5) THEN
            RAISE EXCEPTION 'a reservation was ended by another process';
        END IF;
    END IF;
    IF jsonb_array_length(v_plan->3) > 0 THEN
        INSERT INTO ledger_holds (id, owner, path, amounts, at, open)
        SELECT p->>0, p->>1, p->>2, p->>3, (p->>4)::float8, (p->>5)::bigint
        FROM jsonb_array_elements(v_plan->3) AS p;
    END IF;
    RETURN jsonb_build_object('version', v_version, 'before', to_jsonb(v_before));
EXCEPTION WHEN raise_exception OR unique_violation THEN
    RETURN NULL;
END
""",
)

"""The operations of a ledger on the tables of a SQLite file, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from evoclaw.core.ledgers import (
    NO_AMOUNTS,
    Account,
    AccountPath,
    Amounts,
    InsufficientFunds,
    Limit,
    Reservation,
    ReservationRecord,
    check_funds,
    existing_reservation,
)
from evoclaw.store.databases.database import Connection
from evoclaw.store.governance.ledger_rows import (
    SELECT_ACCOUNTS,
    SELECT_HOLDS,
    StoredLimits,
    put_accounts,
    put_holds,
    read_account,
    read_hold,
)

MAX_PRUNED_ROWS = 200
"""Reservations, and accounts, that one operation prunes at most."""


class LedgerTransaction:
    """The accounts and holds of one transaction: each is read once, and written by `flush`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._accounts: dict[str, Account] = {}
        self._closed_at: dict[str, float | None] = {}
        self._holds: dict[str, ReservationRecord | None] = {}
        self._changed: tuple[set[str], set[str]] = (set(), set())
        """The accounts and the holds that are not written yet."""
        self._new: set[str] = set()

    def stored_accounts(self) -> list[tuple[Account, bool]]:
        """All accounts that are in the database, and whether this transaction created them."""
        return [
            (account, name in self._new)
            for name, account in self._accounts.items()
            if name not in self._new or name in self._changed[0]
        ]

    def open(self, name: str, limits: StoredLimits, spent: Amounts, now: float) -> None:
        """Open an account with these limits; `spent` counts if the account is new."""
        (account,) = self.accounts((name,))
        wanted = {kind: Limit(most, per) for kind, most, per in limits}
        if account.touched and account.limits == wanted and not account.closed:
            return  # as with nearly every account of a tenant or a user
        self._accounts_to_change((name,))
        account.limits, account.closed, self._closed_at[name] = wanted, False, None
        if not account.touched:
            account.spend(spent, now)

    def close(self, name: str, now: float) -> None:
        """Close an account: its open reservations count as spent, and are deleted."""
        self._write_holds()
        rows = "SELECT id FROM ledger_holds WHERE owner = ? AND open = 1"
        for (id,) in self._connection.execute(rows, (name,)).fetchall():
            self.settle(id, None, now)
        (account,) = self._accounts_to_change((name,))
        account.closed, self._closed_at[name] = True, max(now, account.touched)
        for id, hold in self._holds.items():
            if hold is not None and hold.owner == name:
                self._holds[id] = None
        self._connection.execute("DELETE FROM ledger_holds WHERE owner = ?", (name,))

    def prune(self, now: float, reserved_until: float, closed_before: float) -> int:
        """Settle old reservations in full, and delete old closed accounts; how many of both."""
        self.flush()
        rows = "SELECT id FROM ledger_holds WHERE open = 1 AND at <= ? ORDER BY at LIMIT ?"
        found = self._connection.execute(rows, (reserved_until, MAX_PRUNED_ROWS)).fetchall()
        for (id,) in found:
            self.settle(id, None, now)
        # One that others still hold something in would not know of it when they release it.
        old = (
            "SELECT name FROM ledger_accounts WHERE closed_at < ? AND held = '{}'"
            " ORDER BY closed_at LIMIT ?"
        )
        names = self._connection.execute(old, (closed_before, MAX_PRUNED_ROWS)).fetchall()
        names = [row for row in names if row[0] not in self._accounts]
        self._connection.executemany("DELETE FROM ledger_accounts WHERE name = ?", names)
        return len(found) + len(names)

    def hold(self, id: str) -> ReservationRecord | None:
        """The hold with an id."""
        if id not in self._holds:
            row = self._connection.execute(f"{SELECT_HOLDS} WHERE id = ?", (id,)).fetchone()
            self._holds[id] = None if row is None else read_hold(row)
        return self._holds[id]

    def accounts(self, path: AccountPath) -> list[Account]:
        """The accounts of a path."""
        missing = [name for name in path if name not in self._accounts]
        if missing:
            marks = ",".join("?" * len(missing))
            statement = f"{SELECT_ACCOUNTS} WHERE name IN ({marks})"
            for row in self._connection.execute(statement, missing):
                self._accounts[row[0]], self._closed_at[row[0]] = read_account(row), row[6]
            for name in missing:
                if name not in self._accounts:
                    self._accounts[name], self._closed_at[name] = Account(name), None
                    self._new.add(name)
        return [self._accounts[name] for name in path]

    def _accounts_to_change(self, path: AccountPath) -> list[Account]:
        self._changed[0].update(path)
        return self.accounts(path)

    def _put_hold(self, hold: ReservationRecord) -> None:
        self._holds[hold.id] = hold
        self._changed[1].add(hold.id)

    def _reserve_on_path(
        self, path: AccountPath, amounts: Amounts, id: str, leaving: Amounts, now: float
    ) -> Reservation | InsufficientFunds:
        """Reserve an amount on one path; `InsufficientFunds` names what is exhausted."""
        known = self.hold(id)
        if known is not None:
            accounts = self.accounts(known.path)
            return existing_reservation(known, accounts, _latest(accounts, now))
        accounts = self.accounts(path)
        now = _latest(accounts, now)
        before = check_funds(accounts, amounts, leaving, now)
        if isinstance(before, InsufficientFunds):
            return before
        for account in self._accounts_to_change(path):
            account.hold(amounts)
        self._put_hold(ReservationRecord(id, path, dict(amounts), now))
        return Reservation(id, remaining_before=before)

    def reserve(
        self,
        path: AccountPath,
        amounts: Amounts,
        id: str,
        leaving: Amounts,
        also: Iterable[tuple[str, Sequence[str], Amounts]],
        now: float,
    ) -> Reservation | InsufficientFunds:
        """Reserve all amounts, or none and return `InsufficientFunds`."""
        found = self._reserve_on_path(path, amounts, id, leaving, now)
        if isinstance(found, InsufficientFunds):
            return found
        fresh: list[str] = []
        for other, other_path, more in also:
            result = self._reserve_on_path(tuple(other_path), more, other, NO_AMOUNTS, now)
            if isinstance(result, InsufficientFunds):
                for reserved in [*fresh, *([id] if found.is_new else [])]:
                    self.release(reserved)
                return result
            fresh += [other] if result.is_new else []
        return replace(found, also=tuple(fresh)) if fresh else found

    def settle(self, id: str, real: Amounts | None, now: float, path: AccountPath = ()) -> None:
        """Replace a reservation by the real amount; None is the reserved amount.

        With a path, the amount is spent there if there is no reservation.
        """
        hold = self.hold(id) or (ReservationRecord(id, path, {}, now) if path else None)
        if hold is None or hold.settled:
            return
        accounts = self._accounts_to_change(hold.path)
        now = _latest(accounts, now)
        for account in accounts:
            account.release(hold.amounts)
            account.spend(hold.amounts if real is None else real, now)
        hold.settled = True
        self._put_hold(hold)

    def release(self, id: str) -> None:
        """Release a reservation."""
        hold = self.hold(id)
        if hold is None or hold.settled:
            return
        for account in self._accounts_to_change(hold.path):
            account.release(hold.amounts)
        self._holds[id] = None
        self._changed[1].discard(id)
        self._connection.execute("DELETE FROM ledger_holds WHERE id = ?", (id,))

    def flush(self) -> None:
        """Write all changes since the last flush."""
        self._write_holds()
        changed = self._changed[0]
        put_accounts(
            self._connection,
            [(self._accounts[name], self._closed_at[name]) for name in sorted(changed)],
        )

    def _write_holds(self) -> None:
        holds = [self._holds[id] for id in self._changed[1]]
        put_holds(self._connection, [hold for hold in holds if hold is not None])
        self._changed[1].clear()


def _latest(accounts: Iterable[Account], now: float) -> float:
    """The time, which never goes back behind the last spending of an account."""
    return max([now, *[account.touched for account in accounts]])

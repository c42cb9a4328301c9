"""One transaction on the tables of a ledger."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
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
from evoclaw.store.databases.database import Connection, add_checksum, verify_checksum

ACCOUNT_DECODER = msgspec.msgpack.Decoder(Account)
_HOLD_DECODER = msgspec.msgpack.Decoder(ReservationRecord)
_ENCODER = msgspec.msgpack.Encoder()


class LedgerTransaction:
    """The accounts and holds of one transaction: each is read once, and written by `flush`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._accounts: dict[str, Account] = {}
        self._holds: dict[str, ReservationRecord | None] = {}
        self._changed: tuple[set[str], set[str]] = (set(), set())
        """The accounts and the holds that are not written yet."""

    def open(self, name: str, limits: Mapping[str, Limit], spent: Amounts, now: float) -> Account:
        """Open an account with these limits; `spent` counts if the account is new."""
        (account,) = self.accounts((name,))
        if account.touched and account.limits == limits and not account.closed:
            return account  # as with nearly every account of a tenant or a user
        self._accounts_to_change((name,))
        account.limits, account.closed = dict(limits), False
        if not account.touched:
            account.spend(spent, now)
            account.touched = now
        return account

    def close(self, name: str, now: float) -> None:
        """Close an account: its open reservations count as spent, and are deleted."""
        self.flush()
        rows = "SELECT id FROM holds WHERE owner = ? AND open = 1"
        for (id,) in self._connection.execute(rows, (name,)).fetchall():
            self.settle(id, None, now)
        (account,) = self._accounts_to_change((name,))
        account.closed = True
        self.flush()
        self._connection.execute("DELETE FROM holds WHERE owner = ?", (name,))
        for id, hold in self._holds.items():
            if hold is not None and hold.owner == name:
                self._holds[id] = None

    def hold(self, id: str) -> ReservationRecord | None:
        """The hold with an id."""
        if id not in self._holds:
            statement = "SELECT state FROM holds WHERE id = ?"
            row = self._connection.execute(statement, (id,)).fetchone()
            self._holds[id] = (
                _HOLD_DECODER.decode(verify_checksum(row[0], self._name)) if row else None
            )
        return self._holds[id]

    def accounts(self, path: AccountPath) -> list[Account]:
        """The accounts of a path."""
        missing = [name for name in path if name not in self._accounts]
        if missing:
            marks = ",".join("?" * len(missing))
            statement = f"SELECT name, state FROM accounts WHERE name IN ({marks})"
            for name, state in self._connection.execute(statement, missing):
                self._accounts[name] = ACCOUNT_DECODER.decode(verify_checksum(state, self._name))
            for name in missing:
                if name not in self._accounts:
                    self._accounts[name] = Account(name)
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
            return existing_reservation(known, self.accounts(known.path), now)
        if min(amounts.values(), default=0) < 0:
            raise ValueError(f"an amount below nothing: {amounts}")
        accounts = self.accounts(path)
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
        also: Mapping[str, tuple[AccountPath, Amounts]],
        now: float,
    ) -> Reservation | InsufficientFunds:
        """Reserve all amounts, or none and return `InsufficientFunds`."""
        found = self._reserve_on_path(path, amounts, id, leaving, now)
        if isinstance(found, InsufficientFunds):
            return found
        fresh: list[str] = []
        for other, (other_path, more) in also.items():
            result = self._reserve_on_path(other_path, more, other, NO_AMOUNTS, now)
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
        for account in self._accounts_to_change(hold.path):
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
        self._connection.execute("DELETE FROM holds WHERE id = ?", (id,))

    def flush(self) -> None:
        """Write all changes since the last flush."""
        accounts, holds = self._changed
        put = (
            "INSERT INTO accounts (name, state, touched, closed) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE "
            "SET state = excluded.state, touched = excluded.touched, closed = excluded.closed"
        )
        rows = [
            (account.name, add_checksum(_ENCODER.encode(account)), account.touched, account.closed)
            for account in map(self._accounts.__getitem__, accounts)
        ]
        self._connection.executemany(put, rows)
        keep = (
            "INSERT INTO holds (id, owner, state, at, open) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET state = excluded.state, open = excluded.open"
        )
        kept = [
            (hold.id, hold.owner, add_checksum(_ENCODER.encode(hold)), hold.at, not hold.settled)
            for hold in map(self._holds.__getitem__, holds)
            if hold is not None
        ]
        self._connection.executemany(keep, kept)
        self._changed = (set(), set())

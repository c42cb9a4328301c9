"""The rows of a ledger that one transaction touches."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from evoclaw.core.ledgers import (
    NOTHING,
    Account,
    Amounts,
    Hold,
    Path,
    Refusal,
    Reservation,
    found_again,
    weigh,
)
from evoclaw.store.databases.database import Connection, sealed, unsealed

ACCOUNT = msgspec.msgpack.Decoder(Account)
_HOLD = msgspec.msgpack.Decoder(Hold)
_PACK = msgspec.msgpack.Encoder()


class Books:
    """The rows that one transaction touches."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._accounts: dict[str, Account] = {}
        self._holds: dict[str, Hold] = {}

    def account(self, name: str) -> Account:
        """One account."""
        return self.on((name,))[0]

    def hold(self, id: str) -> Hold | None:
        """What is set aside under an id."""
        statement = "SELECT state FROM holds WHERE id = ?"
        row = self._connection.execute(statement, (id,)).fetchone()
        return _HOLD.decode(unsealed(row[0], self._name)) if row else None

    def on(self, path: Path) -> list[Account]:
        """The accounts of a path."""
        missing = [name for name in path if name not in self._accounts]
        if missing:
            marks = ",".join("?" * len(missing))
            statement = f"SELECT name, state FROM accounts WHERE name IN ({marks})"
            for name, state in self._connection.execute(statement, missing):
                self._accounts[name] = ACCOUNT.decode(unsealed(state, self._name))
            for name in missing:
                if name not in self._accounts:
                    self._accounts[name] = Account(name)
        return [self._accounts[name] for name in path]

    def reserve(
        self, path: Path, amounts: Amounts, id: str, leaving: Amounts, now: float
    ) -> Reservation | Refusal:
        """Set aside an amount, or say what there is not enough of."""
        known = self._holds.get(id) or self.hold(id)
        if known is not None:
            return found_again(known, self.on(known.path), now)
        if min(amounts.values(), default=0) < 0:
            raise ValueError(f"an amount below nothing: {amounts}")
        accounts = self.on(path)
        before = weigh(accounts, amounts, leaving, now)
        if isinstance(before, Refusal):
            return before
        for account in accounts:
            account.hold(amounts)
        self._holds[id] = Hold(id, path, dict(amounts), now)
        return Reservation(id, before=before)

    def reserve_all(
        self,
        path: Path,
        amounts: Amounts,
        id: str,
        leaving: Amounts,
        also: Mapping[str, tuple[Path, Amounts]],
        now: float,
    ) -> Reservation | Refusal:
        """Set aside everything, or say what there is not enough for."""
        found = self.reserve(path, amounts, id, leaving, now)
        fresh: list[str] = []
        for other, (where, more) in also.items():
            if isinstance(found, Refusal):
                return found
            one = self.reserve(where, more, other, NOTHING, now)
            if isinstance(one, Refusal):
                return one
            fresh += [other] if one.fresh else []
        return (
            found if isinstance(found, Refusal) or not fresh else replace(found, also=tuple(fresh))
        )

    def settle(self, hold: Hold, real: Amounts, now: float) -> None:
        """Count what was really spent instead of what was set aside."""
        for account in self.on(hold.path):
            account.let_go(hold.amounts)
            account.spend(real, now)
        hold.settled = True
        self._holds[hold.id] = hold

    def release(self, hold: Hold) -> None:
        """Set aside no longer."""
        for account in self.on(hold.path):
            account.let_go(hold.amounts)
        self._connection.execute("DELETE FROM holds WHERE id = ?", (hold.id,))

    def put(self) -> None:
        """Write what was changed."""
        put = (
            "INSERT INTO accounts (name, state, touched, closed) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE "
            "SET state = excluded.state, touched = excluded.touched, closed = excluded.closed"
        )
        rows = [
            (account.name, sealed(_PACK.encode(account)), account.touched, account.closed)
            for account in self._accounts.values()
        ]
        self._connection.executemany(put, rows)
        keep = (
            "INSERT INTO holds (id, owner, state, at, open) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET state = excluded.state, open = excluded.open"
        )
        holds = [
            (hold.id, hold.owner, sealed(_PACK.encode(hold)), hold.at, not hold.settled)
            for hold in self._holds.values()
        ]
        self._connection.executemany(keep, holds)

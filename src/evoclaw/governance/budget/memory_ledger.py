"""A ledger in memory: as exact as the one on disk, but lost when the process ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from evoclaw.core.ledgers import (
    NO_AMOUNTS,
    NO_RESERVATIONS,
    Account,
    AccountPath,
    Amounts,
    InsufficientFunds,
    Limit,
    RemainingBudget,
    Reservation,
    ReservationRecord,
    check_funds,
    existing_reservation,
    remaining_by_kind,
)


class MemoryLedger:
    """The accounts of one process, in memory."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._holds: dict[str, ReservationRecord] = {}
        self._owned: dict[str, list[str]] = {}
        """The reservation ids of each account, to settle them when it is closed."""

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Create an account, or reopen it, with these limits."""
        known = self._accounts.get(account)
        if known is None:
            known = self._account(account)
            known.limits = dict(limits)
            known.spend(spent, self._clock())
        known.limits, known.closed = dict(limits), False

    async def reserve(
        self,
        path: AccountPath,
        amounts: Amounts,
        id: str,
        *,
        leaving: Amounts = NO_AMOUNTS,
        also: Mapping[str, tuple[AccountPath, Amounts]] = NO_RESERVATIONS,
    ) -> Reservation | InsufficientFunds:
        """Reserve an amount in every account of a path, or in none."""
        now = self._clock()
        found = self._reserve(path, amounts, id, leaving, now)
        if isinstance(found, InsufficientFunds) or not also:
            return found
        taken, more_taken = [id] if found.is_new else [], list[str]()
        for other, (where, more) in also.items():
            reserved = self._reserve(where, more, other, NO_AMOUNTS, now)
            if isinstance(reserved, InsufficientFunds):
                for undone in (*taken, *more_taken):
                    self.release(undone)
                return reserved
            more_taken += [other] if reserved.is_new else []
        return Reservation(found.id, found.is_new, found.remaining_before, tuple(more_taken))

    def _reserve(
        self, path: AccountPath, amounts: Amounts, id: str, leaving: Amounts, now: float
    ) -> Reservation | InsufficientFunds:
        known = self._holds.get(id)
        if known is not None:
            return existing_reservation(known, [self._accounts[name] for name in known.path], now)
        if min(amounts.values(), default=0) < 0:
            raise ValueError(f"a reserved amount is negative: {amounts}")
        accounts = [self._accounts.get(name) or self._account(name) for name in path]
        before = check_funds(accounts, amounts, leaving, now)
        if isinstance(before, InsufficientFunds):
            return before
        for account in accounts:
            account.hold(amounts)
        self._keep(ReservationRecord(id, path, dict(amounts), now))
        return Reservation(id, remaining_before=before)

    def settle(self, id: str, real: Amounts, path: AccountPath = ()) -> None:
        """Settle a reservation with what was really spent; only the first call counts."""
        hold = self._holds.get(id)
        if hold is None:
            if not path:
                return
            hold = ReservationRecord(id, path, {}, self._clock())
            self._keep(hold)
        if not hold.settled:
            hold.settled = True
            now = self._clock()
            for name in hold.path:
                account = self._accounts.get(name) or self._account(name)
                account.release(hold.amounts)
                account.spend(real, now)

    def release(self, id: str) -> None:
        """Cancel a reservation."""
        hold = self._holds.get(id)
        if hold is None or hold.settled:
            return
        del self._holds[id]
        self._owned[hold.owner].remove(id)
        for name in hold.path:
            self._accounts[name].release(hold.amounts)

    def close(self, account: str) -> None:
        """Close an account: its open reservations are spent, and its data is dropped."""
        for id in self._owned.pop(account, []):
            self.settle(id, self._holds[id].amounts)
            del self._holds[id]
        self._accounts.pop(account, None)

    def remaining(self, path: AccountPath) -> dict[str, RemainingBudget]:
        """What is left of each kind, in the account of the path that has the least."""
        found = [self._accounts[name] for name in path if name in self._accounts]
        return remaining_by_kind(found, self._clock())

    async def accounts(self, within: str = "") -> Sequence[Account]:
        """All open accounts, or only one and those below it, by name."""
        names = sorted(self._accounts)
        return [
            self._accounts[name]
            for name in names
            if not within or name == within or name.startswith(f"{within}/")
        ]

    def _account(self, name: str) -> Account:
        made = self._accounts[name] = Account(name)
        return made

    def _keep(self, hold: ReservationRecord) -> None:
        self._holds[hold.id] = hold
        self._owned.setdefault(hold.owner, []).append(hold.id)

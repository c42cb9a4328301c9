"""Budget accounts: limits, spending and reservations, and the `Ledger` port that stores them.

Every amount is an integer: money in millionths of a dollar, time in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

DOLLARS, TOKENS, SECONDS = "dollars", "tokens", "seconds"
CALLS, TURNS = "calls", "turns"
FILES, LINES, BYTES = "files", "lines", "bytes"
ACTION_PREFIX = "action."
"""The prefix of kinds that count physical actions, before the action's name."""
UNITS_PER_KIND: Mapping[str, int] = {DOLLARS: 1_000_000, SECONDS: 1_000}
"""How many integer units make one dollar or second; 1 for kinds not listed."""
MAX_WINDOW_ENTRIES = 128
"""Entries that a time window keeps; more are merged, and so expire later."""

Amounts: TypeAlias = Mapping[str, int]
"""An amount for each kind."""
AccountPath: TypeAlias = tuple[str, ...]
"""The names of the accounts that pay, the outermost first."""
NO_AMOUNTS: Amounts = {}
NO_RESERVATIONS: Mapping[str, tuple[AccountPath, Amounts]] = {}


class Limit(Struct, frozen=True, gc=False, omit_defaults=True):
    """How much of a kind an account may spend."""

    most: int
    per: float = 0.0
    """The length of the sliding window in seconds; 0: no window, the limit is a total."""


class LedgerEntry(Struct, array_like=True):
    """Spending within a short time."""

    since: float
    until: float
    amount: int


class RemainingBudget(Struct, frozen=True, gc=False):
    """What is left of a kind in the account that has least."""

    kind: str
    account: str
    left: int
    most: int

    @property
    def share(self) -> float:
        """The share of the limit that is left, from 0 to 1."""
        return self.left / self.most if self.most else 0.0


class Reservation(Struct, frozen=True, gc=False):
    """An amount was reserved."""

    id: str
    is_new: bool = True
    """False if this id was reserved before: nothing was reserved a second time."""
    remaining_before: tuple[RemainingBudget, ...] = ()
    """What was left of each requested kind before, in the account that had least."""
    also: tuple[str, ...] = ()
    """The additional ids that were not reserved before."""


class InsufficientFunds(Struct, frozen=True, gc=False):
    """Nothing was reserved: an account has not enough left."""

    kind: str
    account: str
    left: int
    wanted: int
    per: float = 0.0


class Account(Struct, omit_defaults=True):
    """The limits and the spending of one account. Only a ledger changes it."""

    name: str
    limits: dict[str, Limit] = {}
    spent: dict[str, int] = {}
    """In total, since the account was opened."""
    held: dict[str, int] = {}
    """Reserved and not settled yet."""
    recent: dict[str, list[LedgerEntry]] = {}
    """The spending within the window, for kinds whose limit has one."""
    touched: float = 0.0
    closed: bool = False

    def used(self, kind: str, now: float) -> int:
        """What counts against the limit: the spending within its window, and open reservations."""
        held, limit = self.held.get(kind, 0), self.limits.get(kind)
        if limit is None or not limit.per:
            return held + self.spent.get(kind, 0)
        entries = self.recent.get(kind, [])
        _drop_expired(entries, now - limit.per)
        return held + sum([entry.amount for entry in entries])

    def remaining(self, kind: str, now: float) -> int | None:
        """What may still be reserved; None if there is no limit."""
        limit = self.limits.get(kind)
        return None if limit is None else max(0, limit.most - self.used(kind, now))

    def hold(self, amounts: Amounts) -> None:
        """Add a reservation."""
        held = self.held
        for kind, amount in amounts.items():
            if amount:
                held[kind] = held.get(kind, 0) + amount

    def release(self, amounts: Amounts) -> None:
        """Remove a reservation."""
        held = self.held
        for kind, amount in amounts.items():
            remaining = held.get(kind, 0) - amount
            if remaining:
                held[kind] = remaining
            else:
                held.pop(kind, None)

    def spend(self, amounts: Amounts, now: float) -> None:
        """Record spending, even beyond the limit."""
        spent, limits = self.spent, self.limits
        self.touched = now
        for kind, amount in amounts.items():
            if amount:
                spent[kind] = spent.get(kind, 0) + amount
                limit = limits.get(kind)
                if limit is not None and limit.per:
                    self._record_spending(kind, amount, now, limit.per)

    def _record_spending(self, kind: str, amount: int, now: float, per: float) -> None:
        entries = self.recent.setdefault(kind, [])
        _drop_expired(entries, now - per)
        if (
            len(entries) >= MAX_WINDOW_ENTRIES
            and now - entries[-1].since < per / MAX_WINDOW_ENTRIES
        ):
            entries[-1].until = now
            entries[-1].amount += amount
        else:
            entries.append(LedgerEntry(now, now, amount))


def _drop_expired(entries: list[LedgerEntry], expired: float) -> None:
    while entries and entries[0].until <= expired:
        del entries[0]


def check_funds(
    accounts: Iterable[Account], amounts: Amounts, leaving: Amounts, now: float
) -> tuple[RemainingBudget, ...] | InsufficientFunds:
    """What is left of each requested kind where there is least, or the account that cannot pay."""
    found: dict[str, RemainingBudget] = {}
    for account in accounts:
        for kind, limit in account.limits.items():
            requested = amounts.get(kind)
            if requested is None:
                continue
            remaining = limit.most - account.used(kind, now)
            remaining = remaining if remaining > 0 else 0
            if requested and requested + leaving.get(kind, 0) > remaining:
                spare = max(0, remaining - leaving.get(kind, 0))
                return InsufficientFunds(kind, account.name, spare, requested, limit.per)
            known = found.get(kind)
            if known is None or remaining < known.left:
                found[kind] = RemainingBudget(kind, account.name, remaining, limit.most)
    return tuple(found.values())


def remaining_by_kind(
    accounts: Iterable[Account], now: float, kinds: Amounts | None = None
) -> dict[str, RemainingBudget]:
    """What is left of each limited kind, or of some kinds, in the account that has least."""
    found: dict[str, RemainingBudget] = {}
    for account in accounts:
        for kind, limit in account.limits.items():
            if kinds is None or kind in kinds:
                remaining = account.remaining(kind, now) or 0
                known = found.get(kind)
                if known is None or remaining < known.left:
                    found[kind] = RemainingBudget(kind, account.name, remaining, limit.most)
    return found


class ReservationRecord(Struct, omit_defaults=True):
    """A stored reservation."""

    id: str
    path: AccountPath
    amounts: dict[str, int]
    at: float
    settled: bool = False

    @property
    def owner(self) -> str:
        """The innermost account, which made the reservation."""
        return self.path[-1]


def existing_reservation(
    record: ReservationRecord, accounts: Iterable[Account], now: float
) -> Reservation:
    """The reservation for an id that was reserved already."""
    own = {} if record.settled else record.amounts
    before = [
        RemainingBudget(rest.kind, rest.account, rest.left + own.get(rest.kind, 0), rest.most)
        for rest in remaining_by_kind(accounts, now, record.amounts).values()
    ]
    return Reservation(record.id, is_new=False, remaining_before=tuple(before))


class Ledger(Protocol):
    """Stores accounts. An amount counts against every account on its path, or against none."""

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Create an account if it does not exist, and set its limits.

        Args:
            account: The name of the account.
            limits: What it may spend, by kind.
            spent: What it has spent already; used only if the account is new.
        """
        ...

    async def reserve(
        self,
        path: AccountPath,
        amounts: Amounts,
        id: str,
        *,
        leaving: Amounts = NO_AMOUNTS,
        also: Mapping[str, tuple[AccountPath, Amounts]] = NO_RESERVATIONS,
    ) -> Reservation | InsufficientFunds:
        """Reserve amounts in every account of a path, or in none.

        Args:
            path: The accounts; an account that was not opened has no limits.
            amounts: How much of each kind.
            id: Names the reservation; the same id is never reserved twice.
            leaving: What must be left after the reservation.
            also: More reservations by id: all of them are made, or none.
        """
        ...

    def settle(self, id: str, real: Amounts, path: AccountPath = ()) -> None:
        """Replace a reservation by what was really spent, even if more; the first call counts.

        It takes effect before any later reservation. With a path, spending is recorded even if
        nothing was reserved under the id.
        """
        ...

    def release(self, id: str) -> None:
        """Cancel a reservation: nothing was spent."""
        ...

    def close(self, account: str) -> None:
        """Close an account: its open reservations count as spent in full."""
        ...

    def remaining(self, path: AccountPath) -> dict[str, RemainingBudget]:
        """What is left of each limited kind where there is least, as last known to this process."""
        ...

    async def accounts(self, within: str = "") -> Sequence[Account]:
        """All accounts, or one account and those below it."""
        ...

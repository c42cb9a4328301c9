"""What a process knows of the accounts and reservations of a ledger, to answer from memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
)
from evoclaw.store.governance.ledger_operations import (
    AccountEffect,
    AccountState,
    LedgerOperation,
    OwnerReservations,
)
from evoclaw.store.governance.ledger_plan import StoredAccount, change_account, copy_account

SHARED_ACCOUNT_MARGIN = 4
"""A reservation on an account that other processes may use is answered from memory only if a
quarter of the limit is left after it: so much may others have spent since."""
MAX_SEEN_AGE_S = 10.0
"""Seconds for which the state of such an account is believed."""
MAX_SEEN_ACCOUNTS = 20_000
"""Accounts whose last state is kept in memory."""


class SeenAccount:
    """An account as this process saw it last."""

    __slots__ = ("account", "confirmed_at", "ids", "stored", "version", "was_adopted")

    def __init__(self, account: Account) -> None:
        self.account = account
        """With the operations of this process since."""
        self.stored: Account | None = None
        """As the database returned it."""
        self.version = ""
        self.confirmed_at = 0.0
        """When the database returned it."""
        self.ids: set[str] | None = None
        """All reservations that it ever made, if this process created or adopted it and no other
        has written it since: then `AccountMemory.holds` has those that are open."""
        self.was_adopted = False

    def forget_stored(self) -> None:
        """What is stored is not known any more."""
        self.stored, self.version, self.ids = None, "", None


class AccountMemory:
    """The accounts that a process saw last, and its open reservations."""

    def __init__(self) -> None:
        self.accounts: dict[str, SeenAccount] = {}
        """Those that were used last are last."""
        self.holds: dict[str, ReservationRecord] = {}
        """The open reservations of this process."""

    def see(self, account: Account) -> SeenAccount:
        """Remember an account instead of what was known of it."""
        known = self.accounts.pop(account.name, None)
        seen = self.accounts[account.name] = known or SeenAccount(account)
        seen.account = account
        if len(self.accounts) > MAX_SEEN_ACCOUNTS:
            del self.accounts[next(iter(self.accounts))]
        return seen

    def confirm(self, state: AccountState, now: float) -> None:
        """Remember an account as the database returned it."""
        if state.closed:
            self.accounts.pop(state.name, None)
            return
        account = state.account()
        seen = self.see(account)
        if state.is_new:
            seen.ids = seen.ids or set()
        elif state.version_before != seen.version:
            seen.ids = None  # another process has written it
        seen.stored, seen.version, seen.confirmed_at = copy_account(account), state.version, now

    def to_adopt(self, owners: Iterable[str]) -> list[str]:
        """The accounts whose reservations this process should know, as of a run that it resumes.

        Each is adopted once: if other processes use it too, it would not be worth it.
        """
        found = [(owner, self.accounts.get(owner)) for owner in owners]
        return [
            owner
            for owner, seen in found
            if seen is None or seen.ids is None and not seen.was_adopted
        ]

    def adopt(self, found: OwnerReservations) -> None:
        """Remember all reservations of an account."""
        seen = self.accounts.get(found.owner)
        if seen is not None:
            seen.ids, seen.was_adopted = found.ids, True
            for id, path, amounts, at in found.open:
                self.holds.setdefault(id, ReservationRecord(id, path, amounts, at))

    def end_holds(self, operation: LedgerOperation) -> None:
        """Forget reservations that were answered after an operation that ends them was added."""
        if operation.kind == "close":
            name = operation.values[2]
            for id in [id for id, hold in self.holds.items() if hold.owner == name]:
                del self.holds[id]
        elif operation.kind in ("settle", "release"):
            self.holds.pop(operation.values[2], None)

    def stored(self, name: str) -> StoredAccount:
        """An account as it is stored, as far as this process knows."""
        seen = self.accounts.get(name)
        if seen is None or seen.stored is None:
            return StoredAccount(Account(name), "", None)
        return StoredAccount(seen.stored, seen.version, seen.ids)

    def known_ids(self, owner: str) -> set[str] | None:
        """All reservations of an account; None if others may have made some."""
        seen = self.accounts.get(owner)
        return None if seen is None else seen.ids

    def answer(
        self, wanted: Sequence[tuple[str, AccountPath, Amounts]], leaving: Amounts, now: float
    ) -> Reservation | None:
        """The answer that the database will give; None if that is not clear."""
        fresh: list[str] = []
        totals: dict[str, dict[str, int]] = {}
        for id, path, amounts in wanted:
            ids = self.known_ids(path[-1])
            if ids is None:
                return None
            if id in ids:
                if not fresh:
                    return None  # what was left when it was reserved is not in memory
                continue
            fresh.append(id)
            for name in path:
                total = totals.setdefault(name, {})
                for kind, amount in amounts.items():
                    total[kind] = total.get(kind, 0) + amount
        id, path, amounts = wanted[0]
        for name, total in totals.items():
            if not self._has_enough(name, total, leaving if name in path else NO_AMOUNTS, now):
                return None
        accounts = [self.accounts[name].account for name in path]
        before = check_funds(accounts, amounts, leaving, now)
        if isinstance(before, InsufficientFunds):
            return None
        return Reservation(id, remaining_before=before, also=tuple(fresh[1:]))

    def _has_enough(self, name: str, total: Amounts, leaving: Amounts, now: float) -> bool:
        seen = self.accounts.get(name)
        if seen is None or seen.stored is None or seen.account.closed:
            return False
        is_own, account = seen.ids is not None, seen.account
        for kind, limit in account.limits.items():
            if not total.get(kind):
                continue
            rest = limit.most - account.used(kind, now) - total[kind] - leaving.get(kind, 0)
            if rest < 0:
                return False
            if not is_own and (
                rest * SHARED_ACCOUNT_MARGIN < limit.most
                or now - seen.confirmed_at > MAX_SEEN_AGE_S
            ):
                return False
        return True

    def hold(self, id: str, path: AccountPath, amounts: Amounts, now: float) -> None:
        """Remember a reservation that was made."""
        self.holds[id] = ReservationRecord(id, path, dict(amounts), now)
        self.add_id(id, path)

    def add_id(self, id: str, path: AccountPath) -> None:
        """Remember that an id is used."""
        if (ids := self.known_ids(path[-1])) is not None:
            ids.add(id)

    def disown(self, name: str) -> None:
        """Which reservations an account has is not known any more."""
        if (seen := self.accounts.get(name)) is not None:
            seen.ids = None

    def apply(
        self, effects: Iterable[AccountEffect], now: float, only: frozenset[str] | None = None
    ) -> None:
        """Change the accounts as the database will."""
        for effect in effects:
            for name in effect.path:
                seen = self.accounts.get(name)
                if seen is not None and (only is None or name in only):
                    change_account(seen.account, effect, now)

    def apply_again(self, operation: LedgerOperation, names: frozenset[str], now: float) -> None:
        """Change accounts that were just confirmed by an operation that was not answered yet."""
        match operation.kind:
            case "open" if operation.values[2] in names:
                _, opened_at, name, limits, spent = operation.values
                seen = self.accounts.get(name) or self.see(Account(name))
                if not seen.account.touched:
                    seen.account.spend(spent, opened_at)
                seen.account.limits = {kind: Limit(most, per) for kind, most, per in limits}
            case "close" if (closed := self.accounts.get(operation.values[2])) is not None:
                closed.account.closed = True
            case _:
                pass
        self.apply(operation.effects, now, names)

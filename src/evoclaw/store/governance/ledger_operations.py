"""The operations of a ledger as this process sends them, and the results that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from evoclaw.core.ledgers import (
    NO_AMOUNTS,
    Account,
    AccountPath,
    Amounts,
    InsufficientFunds,
    LedgerEntry,
    Limit,
    Reservation,
)
from evoclaw.store.governance.gathered_step import Operation


class AccountEffect(NamedTuple):
    """What an operation does to the accounts of a path."""

    path: AccountPath
    held: Amounts = NO_AMOUNTS
    released: Amounts = NO_AMOUNTS
    spent: Amounts | None = None


class LedgerOperation(Operation):
    """An operation, and what this process expects of it."""

    def __init__(
        self,
        values: Sequence[Any],
        names: Sequence[str],
        ids: Sequence[str] = (),
        effects: Sequence[AccountEffect] = (),
        expected: Reservation | None = None,
        *,
        is_certain: bool = False,
        has_reservation: bool = True,
    ) -> None:
        """Describe an operation.

        Args:
            values: The operation, as the database gets it; see `ledger_step`.
            names: The accounts that it uses, as far as they are known.
            ids: The reservations that it uses, as far as they are known.
            effects: What it changes.
            expected: The reservation that was granted from memory.
            is_certain: Whether `effects` are all that it changes, unless another process has
                changed the same reservations.
            has_reservation: False if it settles what was never reserved.
        """
        super().__init__(values)
        self.kind: str = values[0]
        self.now: float = values[1]
        self.names, self.ids, self.effects, self.expected = names, ids, effects, expected
        self.is_certain, self.has_reservation = is_certain, has_reservation

    def fresh(self) -> list[tuple[str, AccountPath, Amounts]]:
        """The reservations that it makes; if that is not known, those that it asks for."""
        _, _, id, path, amounts, _, also = self.values
        every = [(id, path, amounts), *also]
        if self.expected is None:
            return every
        return [found for found in every if found[0] == id or found[0] in self.expected.also]


class OperationResult(Struct, frozen=True, omit_defaults=True):
    """The result of one operation; empty for most."""

    refused: InsufficientFunds | None = None
    reserved: Reservation | None = None
    pruned: int = 0


class AccountState(Struct, frozen=True, array_like=True):
    """An account in a result."""

    name: str
    limits: tuple[tuple[str, int, float], ...]
    spent: dict[str, int]
    held: dict[str, int]
    recent: dict[str, list[LedgerEntry]]
    touched: float
    closed: bool
    is_new: bool = False
    """Whether the step created it."""
    version: str = ""
    """Identifies what is stored, on PostgreSQL: each write changes it."""
    version_before: str = ""

    @classmethod
    def of(
        cls, account: Account, is_new: bool, version: str = "", version_before: str = ""
    ) -> AccountState:
        """The state of an account."""
        limits = tuple((kind, limit.most, limit.per) for kind, limit in account.limits.items())
        return cls(
            account.name, limits, account.spent, account.held, account.recent, account.touched,
            account.closed, is_new, version, version_before,
        )  # fmt: skip

    def account(self) -> Account:
        """The account."""
        limits = {kind: Limit(most, per) for kind, most, per in self.limits}
        return Account(
            self.name, limits, self.spent, self.held, self.recent, self.touched, self.closed
        )


class OwnerReservations(Struct, frozen=True, array_like=True):
    """All reservations of an account."""

    owner: str
    ids: set[str]
    open: list[tuple[str, AccountPath, dict[str, int], float]]
    """Those that are open: id, path, amounts, and when they were made."""


class LedgerResult(Struct, frozen=True):
    """The result of a step."""

    results: list[OperationResult]
    """For each operation."""
    accounts: list[AccountState]
    """All that were used and exist."""
    adopted: list[OwnerReservations] = []
    """The reservations of accounts that this process continues to use, on PostgreSQL."""

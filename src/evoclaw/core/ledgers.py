"""What may be spent, by whom, and what was: accounts, and the port that keeps them.

Every amount is a whole number: money in millionths of a dollar, time in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

DOLLARS, TOKENS, SECONDS = "dollars", "tokens", "seconds"
CALLS, TURNS = "calls", "turns"
FILES, LINES, BYTES = "files", "lines", "bytes"
ACTION = "action."
"""Before the name of a physical action."""
PARTS: Mapping[str, int] = {DOLLARS: 1_000_000, SECONDS: 1_000}
"""How many of what is counted make one of a kind; one if not named here."""
MOST_ENTRIES = 128
"""Times that a window remembers one by one; more are put together, and so forgotten later."""

Amounts: TypeAlias = Mapping[str, int]
"""How much of each kind."""
Path: TypeAlias = tuple[str, ...]
"""The accounts that pay, the widest first."""
NOTHING: Amounts = {}
NO_MORE: Mapping[str, tuple[Path, Amounts]] = {}


class Limit(Struct, frozen=True, gc=False, omit_defaults=True):
    """How much an account may spend of a kind."""

    most: int
    per: float = 0.0
    """Within how many seconds, wherever they begin; 0 is for ever."""


class Entry(Struct, array_like=True):
    """What was spent at about one time."""

    since: float
    until: float
    amount: int


class Left(Struct, frozen=True, gc=False):
    """What is left of a kind where there is least."""

    kind: str
    account: str
    left: int
    most: int

    @property
    def share(self) -> float:
        """Of what there was."""
        return self.left / self.most if self.most else 0.0


class Reservation(Struct, frozen=True, gc=False):
    """An amount is set aside."""

    id: str
    fresh: bool = True
    """False if it was set aside under this id before, and not a second time."""
    before: tuple[Left, ...] = ()
    """What was left of each kind wanted before this was taken, where there was least."""
    also: tuple[str, ...] = ()
    """Of the further ids, those that were not known before."""


class Refusal(Struct, frozen=True, gc=False):
    """Nothing is set aside: an account has not so much left."""

    kind: str
    account: str
    left: int
    wanted: int
    per: float = 0.0


class Account(Struct, omit_defaults=True):
    """What one account may spend and has spent. Changed by a ledger alone."""

    name: str
    limits: dict[str, Limit] = {}
    spent: dict[str, int] = {}
    """Since it was opened."""
    held: dict[str, int] = {}
    """Set aside and not settled."""
    recent: dict[str, list[Entry]] = {}
    """What was spent of the kinds that are bounded in time."""
    touched: float = 0.0
    closed: bool = False

    def used(self, kind: str, now: float) -> int:
        """What counts against its limit: what was spent within the time, and what is held."""
        held, limit = self.held.get(kind, 0), self.limits.get(kind)
        if limit is None or not limit.per:
            return held + self.spent.get(kind, 0)
        entries = self.recent.get(kind, [])
        gone = now - limit.per
        while entries and entries[0].until <= gone:
            del entries[0]
        return held + sum([entry.amount for entry in entries])

    def left(self, kind: str, now: float) -> int | None:
        """What may still be set aside; None if nothing bounds it."""
        limit = self.limits.get(kind)
        return None if limit is None else max(0, limit.most - self.used(kind, now))

    def hold(self, amounts: Amounts) -> None:
        """Set aside."""
        held = self.held
        for kind, amount in amounts.items():
            held[kind] = held.get(kind, 0) + amount

    def let_go(self, amounts: Amounts) -> None:
        """Set aside no longer."""
        held = self.held
        for kind, amount in amounts.items():
            left = held.get(kind, 0) - amount
            if left:
                held[kind] = left
            else:
                held.pop(kind, None)

    def spend(self, amounts: Amounts, now: float) -> None:
        """Write down what was spent, however much there was."""
        spent, limits = self.spent, self.limits
        self.touched = now
        for kind, amount in amounts.items():
            if amount:
                spent[kind] = spent.get(kind, 0) + amount
                limit = limits.get(kind)
                if limit is not None and limit.per:
                    self._remember(kind, amount, now, limit.per)

    def _remember(self, kind: str, amount: int, now: float, per: float) -> None:
        entries = self.recent.setdefault(kind, [])
        if len(entries) >= MOST_ENTRIES and now - entries[-1].since < per / MOST_ENTRIES:
            entries[-1].until = now
            entries[-1].amount += amount
        else:
            entries.append(Entry(now, now, amount))


def weigh(
    accounts: Iterable[Account], amounts: Amounts, leaving: Amounts, now: float
) -> tuple[Left, ...] | Refusal:
    """What is left of each kind wanted where there is least, or which account cannot pay."""
    found: dict[str, Left] = {}
    for account in accounts:
        for kind, limit in account.limits.items():
            wanted = amounts.get(kind)
            if wanted is None:
                continue
            left = limit.most - account.used(kind, now)
            left = left if left > 0 else 0
            if wanted and wanted + leaving.get(kind, 0) > left:
                spare = max(0, left - leaving.get(kind, 0))
                return Refusal(kind, account.name, spare, wanted, limit.per)
            known = found.get(kind)
            if known is None or left < known.left:
                found[kind] = Left(kind, account.name, left, limit.most)
    return tuple(found.values())


def least(accounts: Iterable[Account], now: float, kinds: Amounts | None = None) -> dict[str, Left]:
    """What is left of each bounded kind, or of some of them, in the account that has least."""
    found: dict[str, Left] = {}
    for account in accounts:
        for kind, limit in account.limits.items():
            if kinds is None or kind in kinds:
                left = account.left(kind, now) or 0
                known = found.get(kind)
                if known is None or left < known.left:
                    found[kind] = Left(kind, account.name, left, limit.most)
    return found


class Hold(Struct, omit_defaults=True):
    """What is known of a reservation."""

    id: str
    path: Path
    amounts: dict[str, int]
    at: float
    settled: bool = False

    @property
    def owner(self) -> str:
        """The account that ends with it."""
        return self.path[-1]


def found_again(hold: Hold, accounts: Iterable[Account], now: float) -> Reservation:
    """The answer to whoever sets aside what is set aside already."""
    own = {} if hold.settled else hold.amounts
    before = [
        Left(one.kind, one.account, one.left + own.get(one.kind, 0), one.most)
        for one in least(accounts, now, hold.amounts).values()
    ]
    return Reservation(hold.id, fresh=False, before=tuple(before))


class Ledger(Protocol):
    """Keeps accounts. An amount counts against every account on its path, all or none."""

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Make sure an account is there, with these limits.

        Args:
            account: Its name.
            limits: What it may spend, by kind.
            spent: What it is known to have spent; counts only if it was not there before.
        """
        ...

    async def reserve(
        self,
        path: Path,
        amounts: Amounts,
        id: str,
        *,
        leaving: Amounts = NOTHING,
        also: Mapping[str, tuple[Path, Amounts]] = NO_MORE,
    ) -> Reservation | Refusal:
        """Set an amount aside in every account of a path, or in none.

        Args:
            path: The accounts; one that was not opened has no limits.
            amounts: How much.
            id: Under which it is settled, and not set aside twice.
            leaving: What must be left over.
            also: More, under ids of their own: all of it is set aside, or nothing.
        """
        ...

    def settle(self, id: str, real: Amounts, path: Path = ()) -> None:
        """Say what was really spent, be it more; the first time counts.

        It comes into force before anything that is asked for later. With a path, an id that
        nothing was set aside under is written down too.
        """
        ...

    def release(self, id: str) -> None:
        """Set aside no longer: nothing was spent."""
        ...

    def close(self, account: str) -> None:
        """Nothing more comes: what it still has set aside is spent, to the last bit."""
        ...

    def left(self, path: Path) -> dict[str, Left]:
        """What is left of each bounded kind where there is least, as last seen from here."""
        ...

    async def accounts(self, within: str = "") -> Sequence[Account]:
        """All of them, or only one and those below it, by name."""
        ...

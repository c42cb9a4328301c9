"""A ledger in a database, which several processes may share: no reservation is ever lost.

All operations are steps: those of many runs go together, in one statement and one commit. What a
process knows of its accounts answers most reservations, and the database decides: if it refuses a
reservation that was answered from memory, because another process has spent the amount, the write
scope fails before the work that it pays for starts. The run is suspended, and asks again.

The real amount is written behind: a process that dies before leaves the reservation, which counts
in full until the run is resumed or closed. So after a crash the ledger may count too much, never
too little; only what a reply used beyond its reservation can be lost with the last moments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as File
from typing import Any

import msgspec

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
    remaining_by_kind,
)
from evoclaw.store.databases.database import Database, Schema, StoreError, StoreUnavailable
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.sqlite_file import SingleSchemaFormat
from evoclaw.store.databases.write_requests import current_write_scope
from evoclaw.store.governance.gathered_step import GatheredStep, Operation
from evoclaw.store.governance.ledger_memory import AccountMemory
from evoclaw.store.governance.ledger_operations import (
    AccountEffect,
    LedgerOperation,
    LedgerResult,
    OperationResult,
)
from evoclaw.store.governance.ledger_plan import LedgerPlan
from evoclaw.store.governance.ledger_rows import (
    MIGRATIONS,
    POSTGRES_MIGRATIONS,
    convert_first_tables,
    encode_json,
    select_accounts,
    stored_limits,
    verify_rows,
)
from evoclaw.store.governance.ledger_step import LEDGER

SCHEMA = Schema(
    "budget ledger",
    MIGRATIONS,
    postgres_migrations=POSTGRES_MIGRATIONS,
    checksummed=(("accounts", ("state",)), ("holds", ("state",))),
    procedures=(LEDGER,),
)
CLOSED_ACCOUNT_RETENTION_S = 7 * 86_400.0
"""Seconds that a closed account is kept."""
RESERVATION_TIMEOUT_S = 86_400.0
"""Seconds after which an unsettled reservation counts as spent."""
PRUNE_INTERVAL_S = 3_600.0
"""Seconds after which a ledger in use looks for what is too old."""


class StoredLedger:
    """A ledger whose accounts are stored in a database."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        *,
        wait: bool = True,
    ) -> None:
        """See `open_file`, and `start` for a database with more schemas.

        Args:
            database: The database.
            clock: The wall clock; of the server, if several machines share the ledger.
            wait: Whether `open` and `reserve` always wait for their commit. If not, `open` never
                does, and `reserve` answers from memory where it can in a write scope: the caller
                must wait for `Database.flush` before the work that the reservation pays for.
        """
        self.database, self._owns, self._wait = database, False, wait
        self._wall, self._latest = clock, 0.0
        self._pruned_at: float | None = None
        self._memory = AccountMemory()
        self._plans: dict[int, LedgerPlan] = {}
        """The plans of steps that were not answered yet, by the identity of their operations."""
        self._again: list[Operation] = []
        """What is to be sent before anything else, also after it could not be stored."""
        self._uncommitted = False
        """Whether an operation was sent since the last `flush`."""
        self._steps = GatheredStep(database, LEDGER, self._encode, self._receive, self._on_failure)

    @classmethod
    async def open_file(
        cls,
        path: File,
        *,
        durable: bool = False,
        exclusive: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> StoredLedger:
        """Open or create a ledger.

        Args:
            path: The file.
            durable: Whether a reservation survives a power cut too, not just the process.
            exclusive: No other process uses it: open reservations belong to a dead process, and
                count as spent.
            clock: The wall clock; the time of an account never goes back.
        """
        # NORMAL: a power cut may lose the last commits, and nothing else is lost.
        file_format = SingleSchemaFormat(SCHEMA, "NORMAL")
        ledger = cls(await SqliteDatabase.open(path, file_format, durable=durable), clock)
        ledger._owns = True
        try:
            await ledger.start(exclusive=exclusive)
        except BaseException:
            await ledger.database.close()
            raise
        return ledger

    async def __aenter__(self) -> StoredLedger:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.flush()
        finally:
            if self._owns:
                await self.database.close()

    async def flush(self) -> None:
        """Wait until all operations are committed."""
        self._send()
        if self._uncommitted or self._again:
            self._uncommitted = False
            try:
                await self.database.flush()
            except BaseException:
                self._uncommitted = True
                raise

    async def start(self, *, exclusive: bool = False) -> None:
        """Convert older tables, and prune; see `open_file` for `exclusive`."""
        await self.database.write(convert_first_tables)
        if self.database.dialect == "sqlite":
            await self.database.read(verify_rows)
        while await self.prune(exclusive=exclusive):
            pass

    async def prune(self, *, exclusive: bool = False) -> bool:
        """Settle reservations and delete accounts that are too old; whether there may be more."""
        found = await self._ask(self._prune_operation(exclusive), commit=True)
        return found.pruned > 0

    def _prune_operation(self, exclusive: bool = False) -> LedgerOperation:
        now = self._pruned_at = self._now()
        reserved_until = now if exclusive else now - RESERVATION_TIMEOUT_S
        values = ("prune", now, reserved_until, now - CLOSED_ACCOUNT_RETENTION_S)
        return LedgerOperation(values, ())

    async def open(self, account: str, limits: Mapping[str, Limit], spent: Amounts) -> None:
        """Open an account with these limits, or update the limits of an existing one."""
        seen = self._memory.accounts.get(account)
        if seen is not None and seen.account.limits == limits and not seen.account.closed:
            return
        now = self._now()
        if seen is None:
            # As if it were new, until the database says more; `reserve` does not rely on that.
            seen = self._memory.see(Account(account))
            seen.account.spend(spent, now)
        seen.account.limits, seen.account.closed = dict(limits), False
        values = ("open", now, account, stored_limits(limits), dict(spent))
        # It goes with the next operation: before that it changes nothing.
        self._again.append(LedgerOperation(values, (account,)))
        if self._wait:
            await self.flush()

    async def reserve(
        self,
        path: AccountPath,
        amounts: Amounts,
        id: str,
        *,
        leaving: Amounts = NO_AMOUNTS,
        also: Mapping[str, tuple[AccountPath, Amounts]] = NO_RESERVATIONS,
    ) -> Reservation | InsufficientFunds:
        """Reserve an amount on every account of a path, or on none."""
        wanted = [(id, path, dict(amounts))]
        wanted += [(other, used, dict(more)) for other, (used, more) in also.items()]
        for _, _, some in wanted:
            if min(some.values(), default=0) < 0:
                raise ValueError(f"an amount below nothing: {some}")
        now = self._now()
        values = ("reserve", now, *wanted[0], dict(leaving), wanted[1:])
        names = [name for _, used, _ in wanted for name in used]
        ids = [other for other, _, _ in wanted]
        in_scope = current_write_scope() is not None
        if not self._wait and in_scope:
            known = self._memory.answer(wanted, leaving, now)
            if known is not None:
                fresh = [of for of in wanted if of[0] == id or of[0] in known.also]
                effects = [AccountEffect(used, some) for _, used, some in fresh]
                for reserved in fresh:
                    self._memory.hold(*reserved, now)
                self._memory.apply(effects, now)
                self._add(LedgerOperation(values, names, ids, effects, known))
                return known
        operation = LedgerOperation(values, names, ids)
        found = await self._ask(operation, commit=self._wait or not in_scope)
        if found.refused is not None:
            return found.refused
        assert found.reserved is not None
        return found.reserved

    def settle(self, id: str, real: Amounts, path: AccountPath = ()) -> None:
        """Settle a reservation with the real amount; only the first time counts."""
        spent = dict(real)
        self._end(("settle", self._now(), id, spent, path), id, spent, path)

    def release(self, id: str) -> None:
        """Release a reservation."""
        self._end(("release", self._now(), id), id, None, ())

    def _end(
        self, values: Sequence[Any], id: str, spent: Amounts | None, path: AccountPath
    ) -> None:
        memory = self._memory
        hold = memory.holds.pop(id, None)
        names, effects = path, list[AccountEffect]()
        if hold is not None:
            names = (*path, *hold.path)
            effects = [AccountEffect(hold.path, released=hold.amounts, spent=spent)]
        elif path and (ids := memory.known_ids(path[-1])) is not None and id not in ids:
            ids.add(id)
            effects = [AccountEffect(path, spent=spent)]
        memory.apply(effects, self._now())
        self._add(
            LedgerOperation(
                values, names, (id,), effects, is_certain=bool(effects),
                has_reservation=hold is not None,
            )
        )  # fmt: skip

    def close(self, account: str) -> None:
        """Close an account: its open reservations count as spent, and are deleted."""
        now, memory = self._now(), self._memory
        own = [hold for hold in memory.holds.values() if hold.owner == account]
        for hold in own:
            del memory.holds[hold.id]
        effects = [
            AccountEffect(hold.path, released=hold.amounts, spent=hold.amounts) for hold in own
        ]
        memory.apply(effects, now)
        seen = memory.accounts.get(account)
        if seen is not None:
            seen.account.closed = True
        names = list({account, *(name for hold in own for name in hold.path)})
        is_certain = memory.known_ids(account) is not None
        values = ("close", now, account)
        ids = [hold.id for hold in own]
        self._add(LedgerOperation(values, names, ids, effects, is_certain=is_certain))

    def remaining(self, path: AccountPath) -> dict[str, RemainingBudget]:
        """The least that is left on a path, as last seen by this process."""
        seen = [found.account for name in path if (found := self._memory.accounts.get(name))]
        return remaining_by_kind([one for one in seen if not one.closed], self._now())

    async def accounts(self, within: str = "") -> Sequence[Account]:
        """All accounts, or one and those below it, sorted by name."""
        # '0' comes right after '/'
        only = "WHERE name = ? OR (name >= ? AND name < ?)" if within else ""
        values = (within, f"{within}/", f"{within}0") if within else ()
        await self.flush()
        return await self.database.read(lambda c: select_accounts(c, only, values))

    async def _ask(self, operation: LedgerOperation, *, commit: bool) -> OperationResult:
        """Send an operation after those that were not sent yet, and wait for its result."""
        first, self._again = self._again, []
        self._uncommitted = self._uncommitted or not commit
        try:
            return await self._steps.ask(operation, commit=commit, first=first)
        except StoreError:
            if not operation.sent:
                self._again = [*first, *self._again]
            raise

    def _add(self, operation: LedgerOperation) -> None:
        """Send an operation with the next commit."""
        self._again.append(operation)
        if self._pruned_at is not None and self._now() > self._pruned_at + PRUNE_INTERVAL_S:
            prune = self._prune_operation()
            holds = self._memory.holds
            for old in [hold for hold in holds.values() if hold.at <= prune.values[2]]:
                del holds[old.id]  # of a run that continues elsewhere
                self._memory.disown(old.owner)
            self._again.append(prune)
        self._send()

    def _send(self) -> None:
        again, self._again = self._again, []
        if again:
            self._uncommitted = True
            try:
                self._steps.add(*again)
            except StoreError:
                self._again = again  # the next operation that waits raises it

    def _encode(self, operations: Sequence[Operation]) -> Sequence[Any]:
        """The arguments of a step; see `ledger_step`."""
        known = _ledger_operations(operations)
        names = dict.fromkeys(name for operation in known for name in operation.names)
        ids = dict.fromkeys(id for operation in known for id in operation.ids)
        values = [operation.values for operation in known]
        if self.database.dialect == "postgres":
            plan = LedgerPlan(known, self._memory.stored)
            if plan.is_possible:
                self._plans[id(operations)] = plan
                # As a text, which the server parses only if it cannot take the plan.
                return encode_json(values), list(names), list(ids), plan.encode()
        owners = {
            path[-1]
            for operation in known
            if operation.kind == "reserve" and operation.expected is None
            for _, path, _ in operation.fresh()
        }
        return values, list(names), list(ids), None, self._memory.to_adopt(owners)

    def _receive(self, operations: Sequence[Operation], result: Any) -> None:
        plan = self._plans.pop(id(operations), None)
        if plan is not None and "before" in result:
            found = plan.result(result)
        else:
            found = msgspec.convert(result, LedgerResult)
        now = self._now()
        for state in found.accounts:
            self._latest = max(self._latest, state.touched)
            self._memory.confirm(state, now)
        known = _ledger_operations(operations)
        later = _ledger_operations((*self._steps.unanswered, *self._again))
        for account in found.adopted:
            self._memory.adopt(account)
        for operation, answer in zip(known, found.results, strict=True):
            if operation.kind == "reserve":
                self._receive_reservation(operation, answer, now)
            elif operation.kind == "settle" and (path := operation.values[4]):
                self._memory.add_id(operation.values[2], path)
            if operation.answer is not None and not operation.answer.done():
                operation.answer.set_result(answer)
        for operation in (*known, *later):
            self._memory.end_holds(operation)
        # What was asked since is not in the states.
        names = frozenset(state.name for state in found.accounts)
        for operation in later:
            self._memory.apply_again(operation, names, now)

    def _receive_reservation(
        self, operation: LedgerOperation, answer: OperationResult, now: float
    ) -> None:
        reserved, expected = answer.reserved, operation.expected
        if expected is None:
            if reserved is not None:
                for id, path, amounts in operation.fresh():
                    self._memory.add_id(id, path)
                    if id in reserved.also or id == reserved.id and reserved.is_new:
                        self._memory.hold(id, path, amounts, now)
        elif not _agrees(expected, reserved):
            for id, path, _ in operation.fresh():
                self._memory.holds.pop(id, None)
                self._memory.disown(path[-1])
            operation.fail(
                StoreUnavailable(
                    f"{self.database.name}: another process has used the budget of "
                    f"{operation.values[3][-1]!r} in the meantime; the run is suspended and "
                    "tries again when it resumes"
                )
            )

    def _on_failure(self, operations: Sequence[Operation], problem: BaseException) -> None:
        """Nothing was stored: all but the reservations is sent again with the next operation."""
        self._plans.pop(id(operations), None)
        again: list[Operation] = []
        for operation in _ledger_operations(operations):
            for name in operation.names:
                if (seen := self._memory.accounts.get(name)) is not None:
                    seen.forget_stored()
            if operation.kind not in ("reserve", "prune"):
                again.append(operation)
            elif operation.expected is not None:
                for reserved in operation.ids:
                    self._memory.holds.pop(reserved, None)
        self._again = [*again, *self._again]

    def _now(self) -> float:
        self._latest = max(self._latest, self._wall())
        return self._latest


def _ledger_operations(operations: Sequence[Operation]) -> list[LedgerOperation]:
    return [operation for operation in operations if isinstance(operation, LedgerOperation)]


def _agrees(expected: Reservation, reserved: Reservation | None) -> bool:
    return reserved is not None and reserved.is_new and set(reserved.also) == set(expected.also)

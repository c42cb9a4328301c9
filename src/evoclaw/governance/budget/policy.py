"""The budget of a run: reserves before a reply or a call, settles by what the records say.

The model is told when little of its budget is left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.events import (
    DELTA_EVENTS,
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    ContextTrimmed,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TurnStarted,
)
from evoclaw.core.labels import LOCAL_PRINCIPAL, Principal
from evoclaw.core.ledgers import (
    ACTION_PREFIX,
    DOLLARS,
    FILES,
    NO_AMOUNTS,
    NO_RESERVATIONS,
    SECONDS,
    TOKENS,
    TURNS,
    UNITS_PER_KIND,
    AccountPath,
    Amounts,
    InsufficientFunds,
    Ledger,
    Limit,
    RemainingBudget,
)
from evoclaw.core.messages import JSON, TextBlock, ToolResult, Usage
from evoclaw.core.pipeline import Execution, ResultStep
from evoclaw.core.ports import ALLOW, Allow, Ask, Deny, Policy, Verdict
from evoclaw.core.tools import Call
from evoclaw.governance.budget import wordings
from evoclaw.governance.budget.boundaries import Boundaries, verdict_of
from evoclaw.governance.budget.call_usage import (
    CallUsage,
    action_matcher,
    actual_usage,
    estimate_usage,
    file_id,
)
from evoclaw.governance.budget.cost_estimator import CostEstimator, to_microdollars, token_amounts
from evoclaw.governance.budget.options import (
    DEFAULT_OPTIONS,
    BudgetOptions,
    account_path,
    budget_denial,
)
from evoclaw.governance.budget.settings import BudgetSettings, limits_of

WARNED_CODE = "budget_warned"
"""The code of a verdict which says that a limit is near."""
UNPRICED_REASON = (
    "a reply of {model} has no known price, and the budget limits dollars. Configure a price for "
    'the model, or set unpriced = "allow"'
)
FREE_FAILURES = frozenset(
    {"rate_limited", "quota_exhausted", "auth_error", "model_not_found", "context_too_long"}
)
"""Provider errors that cost nothing."""
Threshold = tuple[str, int]
"""A kind, and the number of a threshold before its limit: 1 warns, 2 asks again."""


class _PendingCall(Struct):
    """A judged call whose result is pending."""

    reservation: str
    """The id of what is reserved for it."""
    measured: CallUsage
    files: dict[str, bool]
    """The ids of its files, and whether this call was the first to reserve each."""
    seconds: int
    started: bool = False
    asked: frozenset[Threshold] = frozenset()


class RunBudget(Policy):
    """Reserves what a call or reply takes, and denies what the budget of the run has no room for.

    Also a sink: it needs the run's records to settle what was really used.
    """

    def __init__(
        self,
        ledger: Ledger,
        run_id: str,
        settings: BudgetSettings | None = None,
        options: BudgetOptions = DEFAULT_OPTIONS,
        *,
        principal: Principal = LOCAL_PRINCIPAL,
        parent: RunBudget | None = None,
        spent: Amounts = NO_AMOUNTS,
    ) -> None:
        """Choose the parts.

        Args:
            ledger: Where amounts are reserved and settled.
            run_id: The id of the run.
            settings: The limits; the default budget if None. A sub-run has those of its root.
            options: Prices, stop conditions and the like.
            principal: On whose behalf the run acts; the principal's accounts also bound the run.
            parent: The budget of the parent run, for a sub-run.
            spent: What the run has already used, if the ledger does not know the run.
        """
        self.settings = settings or (BudgetSettings() if parent is None else parent.settings)
        own = account_path(principal, run_id)
        self.path: AccountPath = own if parent is None else (*parent.path, own[-1])
        self._root: AccountPath = own if parent is None else parent._root
        self._depth: int = 0 if parent is None else parent._depth + 1
        """The number of ancestor runs: one turn is left for each, to answer with."""
        self._ledger, self._run_id, self._parent, self._spent = ledger, run_id, parent, spent
        self._options, self._estimator = options, CostEstimator(options.price)
        self._boundaries = Boundaries(self.settings.allowed, options.commands)
        self._actions = action_matcher(self.settings.actions)
        self._is_open = False
        self._counted_until = options.clock()
        self._calls: dict[str, _PendingCall] = {}
        """By call id."""
        self._edited: set[str] = set()
        """The ids of calls that a person edited: they may use more than the model asked for."""
        self._turn: tuple[str, dict[str, int], frozenset[Threshold]] | None = None
        """The requested reply: its id, what is reserved, the thresholds a person is asked about."""
        self._turn_started = False
        self._segment = 0
        self._cleared: set[Threshold] = set()
        """The thresholds beyond which the run may continue."""
        self._notified: set[Threshold] = set()
        self._subrun_accounts: list[str] = []
        """The accounts of sub-runs, to close those that a cancelled sub-run left open."""
        if parent is not None:
            parent._subrun_accounts.append(self.path[-1])

    async def judge(self, call: Call) -> Verdict:
        """Reserve what a call says it will use."""
        if not self._is_open or self._options.stops:
            stopped = await self._open_unless_stopped()
            if stopped is not None:
                return stopped
        verdict = verdict_of(self._boundaries.check(call))
        if isinstance(verdict, Deny):
            return verdict
        reservation = self._reservation_id(call)
        measured, seconds = estimate_usage(call), self._elapsed()
        if actions := self._actions(call):
            measured = CallUsage({**measured.amounts, **actions}, measured.files)
        wanted = {**measured.amounts, SECONDS: seconds}
        files = [file_id(self._root[-1], path) for path in measured.files]
        also = {id: (self._root, {FILES: 1}) for id in files} if files else NO_RESERVATIONS
        found = await self._ledger.reserve(self.path, wanted, reservation, also=also)
        if isinstance(found, InsufficientFunds):
            return budget_denial(found)
        seconds = self._count_seconds(seconds, found.is_new)
        known = self._calls[call.id] = _PendingCall(
            reservation, measured, {id: id in found.also for id in files}, seconds
        )
        near, asked = self._near_limits(found.remaining_before)
        if isinstance(verdict, Ask) or not near or call.resumed:
            return verdict  # a resumed call is already paid for: too late to ask a person
        known.asked = asked
        return self._warning(near, asked)

    async def admit(self, turn: int) -> Verdict:
        """Reserve a turn, and what the reply costs in the worst case."""
        stopped = await self._open_unless_stopped()
        if stopped is not None:
            return stopped
        seconds = self._elapsed()
        wanted = {TURNS: 1, TOKENS: self._estimator.max_tokens(), SECONDS: seconds}
        bounded = self._ledger.remaining(self.path)
        if DOLLARS in bounded:
            cost = self._estimator.max_cost()
            if cost is None and self.settings.unpriced == "refuse":
                text = UNPRICED_REASON.format(model=self._estimator.model or "the model")
                return Deny("budget_unpriced", text)
            wanted[DOLLARS] = cost or 0
        id = f"{self._run_id}.turn.{turn}.{self._segment}"
        leaving = {TURNS: self._depth} if self._depth else NO_AMOUNTS
        found = await self._ledger.reserve(self.path, wanted, id, leaving=leaving)
        if isinstance(found, InsufficientFunds):
            return budget_denial(found)
        wanted[SECONDS] = self._count_seconds(seconds, found.is_new)
        near, asked = self._near_limits(found.remaining_before)
        self._turn, self._turn_started = (id, wanted, asked), False
        return self._warning(near, asked) if near else ALLOW

    def receive(self, record: Record) -> None:
        """Settle the reservations that a record completes."""
        if type(record.event) not in DELTA_EVENTS:
            self._settle(record)
            self._estimator.observe(record.event)

    def _settle(self, record: Record) -> None:
        event = record.event
        match event:
            case RunStarted() | RunResumed():
                self._segment = record.seq
            case TurnStarted():
                self._turn_started = True
                if self._turn is not None:
                    self._cleared |= self._turn[2]
            case Replied(reply):
                self._settle_turn(reply.usage, reply.cost)
            case ReplyFailed(kind, usage=usage):
                self._settle_turn(usage, None, free=kind in FREE_FAILURES)
            case ContextTrimmed(usage=usage, cost=cost) if usage != Usage():
                real = token_amounts(usage) | {DOLLARS: self._cost(usage, cost, 0)}
                self._ledger.settle(f"{self._run_id}.trim.{record.seq}", real, self.path)
            case CallJudged() | ApprovalAnswered() | CallStarted():
                self._update_call(event)
            case CallFinished(result):
                self.settle_call(result)
            case RunFinished(stop):
                self._finish(stop)
            case _:
                pass

    def restore(self, records: Iterable[Record]) -> None:
        """Restore what earlier records of a resumed run say about it; counts nothing."""
        for record in records:
            self._estimator.observe(record.event)
            if isinstance(record.event, ApprovalAnswered):
                self._note_edit(record.event)

    def start_call(self, call_id: str) -> None:
        """Count a judged call as started, for calls that have no records of their own."""
        if (call := self._calls.get(call_id)) is not None:
            call.started = True

    def settle_call(self, result: ToolResult) -> None:
        """Settle a call by its result."""
        call = self._calls.pop(result.call_id, None)
        if call is None:
            return
        if not call.started:
            self._ledger.settle(call.reservation, {SECONDS: call.seconds})
            self._release_files(call)
            return
        real, changed = actual_usage(call.measured, result)
        self._ledger.settle(call.reservation, real | {SECONDS: call.seconds}, self.path)
        for id, first in call.files.items():
            if changed:
                self._ledger.settle(id, {FILES: 1}, self._root)
            elif first:
                self._ledger.release(id)

    def left(self) -> dict[str, RemainingBudget]:
        """What is left of each bounded kind, in the account that has the least."""
        return self._ledger.remaining(self.path)

    def remaining(self) -> dict[str, JSON]:
        """What is left, in units that people use."""
        return wordings.remaining_amounts(self.left())

    @property
    def turns_left(self) -> int:
        """The number of turns left."""
        return left.left if (left := self.left().get(TURNS)) is not None else sys.maxsize

    def remaining_share(self) -> float:
        """The share of dollars or tokens that is left, whichever is smaller."""
        left = self.left()
        return min([left[kind].share for kind in (DOLLARS, TOKENS) if kind in left], default=1.0)

    def notice(self) -> str:
        """The notice for the model, once for each threshold; empty if there is none."""
        found: list[RemainingBudget] = []
        for left in self.left().values():
            share, steps = left.share, self.settings.tell_at
            level = (
                0 if share >= steps else 1 if share >= steps / 2 else 2 if share >= steps / 4 else 3
            )
            if level and (left.kind, level) not in self._notified:
                self._notified.update((left.kind, below) for below in range(1, level + 1))
                found.append(left)
        return wordings.budget_notice(found) if found else ""

    async def _open_unless_stopped(self) -> Deny | None:
        """Open the accounts, and check the stop conditions."""
        if not self._is_open:
            await self.open()
        for stop in self._options.stops:
            if reason := stop():
                return Deny("budget_stop", reason)
        return None

    async def open(self) -> None:
        """Open the accounts; the first reservation does this too."""
        settings, limits = self.settings, dict[str, Mapping[str, Limit]]()
        if self._parent is not None and not self._parent._is_open:
            await self._parent.open()  # after a resume, a sub-run may start before its root
        if self._parent is None:
            for name in self.path[:-1]:
                level = name.rpartition("/")[2].partition(":")[0]
                limits[name] = limits_of(getattr(settings, level))
            limits[self.path[0]] = {**limits[self.path[0]], **settings.action_limits()}
            limits[self.path[-1]] = settings.run_limits()
        for name, these in limits.items():
            spent = self._spent if name == self.path[-1] else NO_AMOUNTS
            await self._ledger.open(name, these, spent)
        self._is_open = True

    def _near_limits(
        self, before: Iterable[RemainingBudget]
    ) -> tuple[list[RemainingBudget], frozenset[Threshold]]:
        """The limits that are near and not cleared by a person, and their thresholds."""
        settings = self.settings
        near: list[RemainingBudget] = []
        asked: set[Threshold] = set()
        for left in before:
            spent = 1 - left.share
            if spent < settings.warn_at or left.kind.startswith(ACTION_PREFIX) or not left.most:
                continue
            level = (left.kind, 2 if spent >= settings.ask_at else 1)
            if level not in self._cleared:
                near.append(left)
                asked.update((left.kind, step) for step in range(1, level[1] + 1))
        return near, frozenset(asked)

    def _warning(self, near: list[RemainingBudget], asked: frozenset[Threshold]) -> Verdict:
        text = wordings.near_limit_warning(near)
        if self._options.attended:
            return Ask(WARNED_CODE, text)
        if self.settings.unattended == "refuse":
            return Deny(WARNED_CODE, f"{text}, and no person can be asked whether to continue")
        self._cleared |= asked
        return Allow(WARNED_CODE)

    def _elapsed(self) -> int:
        """The uncounted time so far; 0 for a sub-run, whose time its root counts."""
        if self._parent is not None:
            return 0
        return max(
            0, round((self._options.clock() - self._counted_until) * UNITS_PER_KIND[SECONDS])
        )

    def _count_seconds(self, seconds: int, fresh: bool) -> int:
        """The time that this reservation counts; 0 if it is not a new one."""
        if not fresh:
            return 0
        self._counted_until += seconds / UNITS_PER_KIND[SECONDS]
        return seconds

    def _reservation_id(self, call: Call) -> str:
        """The id of what a call reserves; what an edited call reserved before is released."""
        if call.id not in self._edited:
            return call.request_id
        before = self._calls.get(call.id)
        if before is None:
            # Perhaps reserved by the process that drove the run before.
            self._ledger.release(call.request_id)
        elif before.reservation == call.request_id:
            del self._calls[call.id]
            self._counted_until -= before.seconds / UNITS_PER_KIND[SECONDS]
            self._ledger.release(before.reservation)
            self._release_files(before)
        return f"{call.request_id}.edited"

    def _release_files(self, call: _PendingCall) -> None:
        for id in [id for id, first in call.files.items() if first]:
            self._ledger.release(id)

    def _note_edit(self, event: ApprovalAnswered) -> None:
        if event.arguments is not None:
            self._edited.add(event.call_id)

    def _update_call(self, event: CallJudged | ApprovalAnswered | CallStarted) -> None:
        if isinstance(event, ApprovalAnswered):
            self._note_edit(event)
        call = self._calls.get(event.call_id)
        if call is None:
            return
        if isinstance(event, CallStarted):
            self.start_call(event.call_id)
        elif isinstance(event, CallJudged):
            # Another policy asked the person, about something else.
            call.asked = call.asked if event.code == WARNED_CODE else frozenset()
        elif event.decision in ("once", "session"):
            self._cleared |= call.asked

    def _settle_turn(self, usage: Usage, cost: float | None, *, free: bool = False) -> None:
        if self._turn is None:
            return
        id, held, _ = self._turn
        self._turn = None
        if usage == Usage():
            real = {**held, TOKENS: 0, DOLLARS: 0} if free else held
        else:
            worst = held.get(DOLLARS, 0)
            real = {**held, **token_amounts(usage), DOLLARS: self._cost(usage, cost, worst)}
        self._ledger.settle(id, real, self.path)

    def _cost(self, usage: Usage, cost: float | None, worst: int) -> int:
        if cost is not None:
            return to_microdollars(cost)
        if DOLLARS not in self.left():
            return 0
        known = self._estimator.cost_of(usage)
        return worst if known is None else known

    def _finish(self, stop: StopReason) -> None:
        if self._turn is not None:
            id, held, _ = self._turn
            if self._turn_started:
                self._ledger.settle(id, held)
            else:
                self._ledger.settle(id, {SECONDS: held[SECONDS]})
            self._turn = None
        if stop is not StopReason.WAITING:
            self._calls.clear()
            for account in (*self._subrun_accounts, self.path[-1]):
                self._ledger.close(account)


@dataclass(frozen=True, slots=True)
class BudgetNotice(ResultStep):
    """Appends a line to the result when the budget passes a threshold, once for each."""

    budget: RunBudget

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Append what is left of the budget, if the model should know."""
        notice = self.budget.notice()
        return replace(result, blocks=(*result.blocks, TextBlock(notice))) if notice else result

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, ToolFailure
from evoclaw.core.events import (
    ApprovalAnswered,
    CallJudged,
    CallStarted,
    Record,
    StopReason,
    TurnStarted,
)
from evoclaw.core.labels import Principal
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, Reply, ToolResult, Usage, user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import (
    Allow,
    Approval,
    Ask,
    Decision,
    Deny,
    Policy,
    Ports,
    Progress,
    Verdict,
)
from evoclaw.core.profile import Profile
from evoclaw.core.reported_usage import (
    MAX_REPORTED_TOKENS,
    MODEL_USAGE_KEY,
    report_usage,
    with_nested_usage,
)
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.budget.call_usage import RESERVED_PROMPT_TOKENS
from evoclaw.governance.budget.cost_estimator import Price, highest_price
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.options import BudgetOptions
from evoclaw.governance.budget.policy import BudgetNotice, RunBudget
from evoclaw.governance.budget.settings import AccountLimits, ActionLimit, BudgetSettings
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from tests.support.budgets import (
    EDIT,
    KINDS,
    READ,
    RELAY,
    WRITE,
    Clock,
    ScriptedApprover,
    account,
    all_tools,
    answered,
    call,
    finished_event,
    open_ledger,
    results,
    run_with_budget,
)
from tests.support.loop import Table

SMALL = Profile(context_tokens=1_000, max_output_tokens=100)
ALONE = "tenant:local", "run:r"


def cheap(model: str, usage: Usage) -> float | None:
    """A dollar for a million tokens."""
    return (usage.input + usage.output) / 1_000_000


def reading(number: int) -> Reply:
    return calls(("read", {"path": f"{number}.txt"}))


def endless(asked: ScriptedRequest) -> Reply:
    """Never does the same thing twice in a row, so that nothing but a budget stops it."""
    return reading(len(asked.messages))


def priced(reply: Reply, cost: float | None, tokens: int = 100) -> Reply:
    return Reply(reply.text, reply.calls, reply.finish, Usage(tokens, 0), "m", cost)


async def test_fault_49_a_runaway_loop_ends_at_its_turn_limit_with_the_reason() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(turns=7))
    model = Scripted(*[endless] * 50)
    records = await run_with_budget(model, budget)
    assert finished_event(records).stop is StopReason.BUDGET_EXCEEDED
    assert "EF-05" in finished_event(records).reason and "turns" in finished_event(records).text
    assert len(model.requests) == 7


async def test_fault_49_without_settings_the_default_budget_applies() -> None:
    ledger = MemoryLedger()
    model = Scripted(*[endless] * 200)
    records = await run_with_budget(model, RunBudget(ledger, "r"))
    assert finished_event(records).stop is StopReason.BUDGET_EXCEEDED and len(model.requests) == 100
    settings = BudgetSettings()
    assert {kind: limit.most for kind, limit in settings.run_limits().items()} == {
        "turns": 100,
        "seconds": 3_600_000,
        "calls": 200,
        "files": 50,
        "lines": 5_000,
    }


async def test_fault_50_of_fifty_calls_in_one_reply_a_budget_of_one_runs_one() -> None:
    executor, wanted = all_tools(), [("read", {"path": str(n)}) for n in range(50)]
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=1))
    many = LoopSettings(max_calls_per_turn=50, max_parallel=50)
    records = await run_with_budget(
        Scripted(calls(*wanted), says("done")), budget, executor, settings=many
    )
    assert len(executor.started) == 1
    assert sum(result.error is None for result in results(records)) == 1
    assert "used all of their calls" in results(records)[0].text


async def test_tokens_are_reserved_for_the_longest_reply_and_settled_by_usage() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(tokens=2_000))
    held: list[int] = []

    def look(asked: ScriptedRequest) -> Reply:
        held.append(2_000 - budget.left()["tokens"].left)
        return endless(asked)

    records = await run_with_budget(Scripted(look, look, says("ok"), profile=SMALL), budget)
    assert finished_event(records).stop is StopReason.COMPLETED
    assert held[0] > 100, "the output limit, and the prompt"
    assert held[1] > 115, "what was used, and the next one"
    assert (await account(ledger, "tenant:local")).spent["tokens"] == 45


async def test_a_reply_without_enough_tokens_left_is_never_requested() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(tokens=300))
    model = Scripted(says("never"), profile=SMALL)
    records = await run_with_budget(model, budget)
    assert model.requests == []
    assert (
        finished_event(records).stop is StopReason.BUDGET_EXCEEDED
        and "300 tokens left" in finished_event(records).reason
    )


async def test_usage_over_the_reserved_tokens_is_counted_and_ends_the_run() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(tokens=5_000))
    greedy = priced(reading(1), 0.0, 6_000)
    records = await run_with_budget(Scripted(greedy, says("x"), profile=SMALL), budget)
    assert finished_event(records).stop is StopReason.BUDGET_EXCEEDED
    assert (await account(ledger, "tenant:local")).spent["tokens"] == 6_000


async def test_cost_is_reserved_by_price_and_settled_by_the_actual_cost() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(dollars=0.01, tenant=AccountLimits(dollars=0.5, per="1d"))
    budget = RunBudget(ledger, "r", settings, BudgetOptions(price=cheap))
    model = Scripted(priced(reading(1), 0.0042), says("ok"), profile=SMALL)
    records = await run_with_budget(model, budget)
    assert finished_event(records).stop is StopReason.COMPLETED
    assert (await account(ledger, "tenant:local")).spent["dollars"] == 4_200
    dear = BudgetOptions(price=lambda model, usage: 0.011)
    records = await run_with_budget(Scripted(says("x")), RunBudget(ledger, "r", settings, dear))
    assert (
        finished_event(records).stop is StopReason.BUDGET_EXCEEDED
        and "$0.0110" in finished_event(records).reason
    )


def unknown(model: str, usage: Usage) -> float | None:
    """No price."""
    return None


@pytest.mark.parametrize("price", [None, unknown])
async def test_an_unpriced_model_is_not_called_when_cost_is_limited(
    price: Price | None,
) -> None:
    terms = BudgetOptions(price=price)
    model = Scripted(says("x"))
    records = await run_with_budget(
        model, RunBudget(MemoryLedger(), "r", BudgetSettings(dollars=1.0), terms)
    )
    assert model.requests == [] and "no known price" in finished_event(records).reason
    allowed = BudgetSettings(dollars=1.0, unpriced="allow")
    records = await run_with_budget(model, RunBudget(MemoryLedger(), "r", allowed, terms))
    assert finished_event(records).stop is StopReason.COMPLETED
    records = await run_with_budget(
        Scripted(says("x")), RunBudget(MemoryLedger(), "r", None, terms)
    )
    assert finished_event(records).stop is StopReason.COMPLETED, "money is not bounded"


async def test_a_reply_of_unknown_cost_is_charged_by_its_tokens() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(dollars=1.0)
    model = Scripted(priced(says("x"), None, 500_000))
    await run_with_budget(model, RunBudget(ledger, "r", settings, BudgetOptions(price=cheap)))
    assert (await account(ledger, "tenant:local")).spent["dollars"] == 500_000


@pytest.mark.parametrize(
    ("kind", "counted"),
    [(ProviderErrorKind.AUTH_ERROR, False), (ProviderErrorKind.TIMEOUT, True)],
)
async def test_a_failed_reply_is_counted_unless_it_is_not_charged(
    kind: ProviderErrorKind, counted: bool
) -> None:
    ledger = MemoryLedger()
    await run_with_budget(
        Scripted(ProviderError(kind, "no"), profile=SMALL), RunBudget(ledger, "r")
    )
    found = await account(ledger, "tenant:local")
    assert (found.spent.get("tokens", 0) > 100) is counted
    assert found.spent["turns"] == 1 and not found.held


async def test_with_several_models_the_most_expensive_price_is_reserved() -> None:
    usage = Usage(10, 10)
    assert highest_price([lambda m, u: 1.0, lambda m, u: 3.0])("m", usage) == 3.0
    assert highest_price([lambda m, u: 1.0, lambda m, u: None])("m", usage) is None


async def test_a_file_written_several_times_counts_once() -> None:
    ledger, executor = MemoryLedger(), all_tools()
    budget = RunBudget(ledger, "r", BudgetSettings(files=2))
    replies = [
        calls(("write", {"path": path, "content": f"{number}\n"}))
        for number, path in enumerate(["a", "./a", "b", "x/../a", "c"])
    ]
    records = await run_with_budget(Scripted(*replies, says("ok")), budget, executor)
    assert [result.error for result in results(records)] == [
        None, None, None, None, ErrorKind.PERMISSION_DENIED,
    ]  # fmt: skip
    assert "files" in results(records)[-1].text
    assert (await account(ledger, "tenant:local")).spent["files"] == 2


async def test_a_denied_or_failed_write_costs_neither_files_nor_lines() -> None:
    async def unfit(call: Call, progress: Progress) -> str:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "does not occur")

    ledger = MemoryLedger()
    table = Table((EDIT, unfit), (WRITE, answered))
    edit = calls(("edit", {"path": "a", "old_string": "x\ny", "new_string": "z"}))
    write = calls(("write", {"path": "b", "content": "1\n2\n"}))
    settings = BudgetSettings(lines=3)
    both = await run_with_budget(
        Scripted(edit, write, says("ok")), RunBudget(ledger, "r", settings), table
    )
    assert [result.error is None for result in results(both)] == [False, True]
    found = await account(ledger, "tenant:local")
    assert (found.spent["lines"], found.spent["files"]) == (2, 1)
    assert not found.held


async def test_line_counts_reported_by_a_result_replace_the_estimate() -> None:
    ledger = MemoryLedger()

    class Exact(Table):
        async def execute(self, call: Call, progress: Progress) -> ToolResult:
            return call.ok("Edited", lines_added=30, lines_removed=3)

    edit = calls(("edit", {"path": "a", "old_string": "x", "new_string": "y", "replace_all": True}))
    await run_with_budget(
        Scripted(edit, says("ok")), RunBudget(ledger, "r"), Exact((EDIT, answered))
    )
    assert (await account(ledger, "tenant:local")).spent["lines"] == 33


@pytest.mark.parametrize(
    ("patch", "files", "lines"),
    [
        ("*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n+--- z\n*** End Patch", 1, 3),
        ("*** Begin Patch\n*** Add File: a\n+1\n*** Delete File: b\n*** End Patch", 2, 1),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1,2 @@\n-1\n+2\n+3\n", 1, 3),
        ("--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+1\n", 1, 1),
        ("rename from a\nrename to b\n", 2, 0),
    ],
)
async def test_a_patch_counts_its_files_and_changed_lines(
    patch: str, files: int, lines: int
) -> None:
    ledger = MemoryLedger()
    asked = calls(("apply_patch", {"patch": patch}))
    await run_with_budget(Scripted(asked, says("ok")), RunBudget(ledger, "r"))
    spent = (await account(ledger, "tenant:local")).spent
    assert (spent.get("files", 0), spent.get("lines", 0)) == (files, lines)
    dry = calls(("apply_patch", {"patch": patch, "dry_run": True}))
    await run_with_budget(Scripted(dry, says("ok")), RunBudget(ledger, "r2"))
    assert (await account(ledger, "tenant:local")).spent.get("files", 0) == files


async def test_approval_is_requested_near_a_limit_and_again_before_its_end() -> None:
    person = ScriptedApprover(*[Decision.ONCE] * 9)
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(turns=20), BudgetOptions(attended=True))
    records = await run_with_budget(Scripted(*[endless] * 99), budget, approver=person)
    assert finished_event(records).stop is StopReason.BUDGET_EXCEEDED
    assert person.asked == [("r.17.reply.1", "budget_warned"), ("r.20.reply.1", "budget_warned")]
    assert sum(isinstance(record.event, TurnStarted) for record in records) == 20


async def test_a_denied_budget_warning_ends_the_run() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(turns=20), BudgetOptions(attended=True))
    records = await run_with_budget(
        Scripted(*[endless] * 99), budget, approver=ScriptedApprover(Decision.DENY)
    )
    assert finished_event(records).stop is StopReason.BUDGET_EXCEEDED
    assert sum(isinstance(record.event, TurnStarted) for record in records) == 16


async def test_a_run_waiting_for_approval_asks_again_when_resumed() -> None:
    ledger, settings = MemoryLedger(), BudgetSettings(turns=5)
    person = ScriptedApprover(Decision.PENDING, Decision.ONCE)
    first = RunBudget(ledger, "r", settings, BudgetOptions(attended=True))
    records = await run_with_budget(Scripted(*[endless] * 9), first, approver=person)
    assert (
        finished_event(records).stop is StopReason.WAITING
        and "1 turn of 5 turns left" in finished_event(records).reason
    )
    second = RunBudget(ledger, "r", settings, BudgetOptions(attended=True))
    second.restore(records)
    more = await run_with_budget(Scripted(says("done")), second, approver=person, before=records)
    assert finished_event(more).stop is StopReason.COMPLETED
    assert [asked for asked, _ in person.asked] == ["r.5.reply.1"] * 2
    spent = (await account(ledger, "tenant:local")).spent
    assert spent["turns"] == 5, "the turn that waited was not taken"


async def test_calls_near_a_limit_need_approval_until_one_is_granted() -> None:
    def three(asked: ScriptedRequest) -> Reply:
        number = len(asked.messages)
        return calls(*[("read", {"path": f"{number}.{n}"}) for n in range(3)])

    person = ScriptedApprover(Decision.DENY, Decision.ONCE, *[Decision.ONCE] * 5)
    executor = all_tools()
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=10), BudgetOptions(attended=True))
    records = await run_with_budget(
        Scripted(*[three] * 4, says("ok")), budget, executor, approver=person
    )
    assert [code for _, code in person.asked] == ["budget_warned"] * 2, "no, then yes"
    assert len(executor.started) == 10
    judged = [r.event for r in records if isinstance(r.event, CallJudged)]
    assert judged[-1].code == "budget_calls"


async def test_without_an_approver_the_unattended_setting_decides() -> None:
    model = Scripted(*[endless] * 99)
    await run_with_budget(model, RunBudget(MemoryLedger(), "r", BudgetSettings(turns=10)))
    assert len(model.requests) == 10
    model = Scripted(*[endless] * 99)
    strict = BudgetSettings(turns=10, unattended="refuse")
    records = await run_with_budget(model, RunBudget(MemoryLedger(), "r", strict))
    assert len(model.requests) == 8 and "no person can be asked" in finished_event(records).reason


async def test_the_model_is_notified_of_the_remaining_budget_once_per_threshold() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=20))
    executor = Pipeline([all_tools()], [BudgetNotice(budget)])
    records = await run_with_budget(Scripted(*[endless] * 20, says("ok")), budget, executor)
    told = [
        (number, result.text.splitlines()[-1])
        for number, result in enumerate(results(records), 1)
        if len(result.blocks) > 1
    ]
    assert [number for number, _ in told] == [17, 19, 20]
    assert told[0][1].startswith("[Budget: 3 calls of 20 left")


async def test_a_call_resumed_after_a_crash_is_counted_once() -> None:
    ledger = MemoryLedger()
    write = calls(("write", {"path": "a", "content": "1\n2\n"}))
    records = await run_with_budget(Scripted(write, says("ok")), RunBudget(ledger, "r"))
    started = next(i for i, r in enumerate(records) if isinstance(r.event, CallStarted))

    ledger = MemoryLedger()
    before = records[: started + 1]
    first = RunBudget(ledger, "r")
    assert isinstance(await first.admit(1), Allow)
    assert isinstance(await first.judge(call(WRITE, 0, path="a", content="1\n2\n")), Allow)
    second = RunBudget(ledger, "r")
    second.restore(before)
    await run_with_budget(Scripted(says("ok")), second, before=before)
    found = await account(ledger, "tenant:local")
    assert (found.spent["calls"], found.spent["lines"], found.spent["files"]) == (1, 2, 1)
    assert found.spent["turns"] == 2, "a reply that was cut off may have been charged"


async def test_a_cancelled_reply_is_counted_in_full_when_the_run_ends() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r")
    deadline = Deadline()

    def cut(asked: ScriptedRequest) -> Reply:
        deadline.cancel()
        return says("too late")

    ports = Ports(Scripted(cut, profile=SMALL), all_tools(), budget)
    events = run_loop(new_run([user("x")], "r"), ports, LoopSettings(), deadline)
    _ = [record async for record in recorded(events, Bus("r", [budget]))]
    found = await account(ledger, "tenant:local")
    assert found.spent["tokens"] > 0 and not found.held


async def test_elapsed_time_of_replies_and_calls_is_counted() -> None:
    clock, ledger = Clock(), MemoryLedger()

    def slow(asked: ScriptedRequest) -> Reply:
        clock.now += 50
        return endless(asked)

    budget = RunBudget(ledger, "r", BudgetSettings(minutes=2), BudgetOptions(clock=clock))
    model = Scripted(*[slow] * 9)
    records = await run_with_budget(model, budget)
    assert (
        finished_event(records).stop is StopReason.BUDGET_EXCEEDED
        and "EF-06" in finished_event(records).reason
    )
    assert len(model.requests) == 3
    assert (await account(ledger, "tenant:local")).spent["seconds"] == 100_000


async def test_a_stop_condition_ends_the_run_with_its_reason() -> None:
    why = [""]

    def stop(asked: ScriptedRequest) -> Reply:
        why[0] = "the tests are green"
        return endless(asked)

    terms = BudgetOptions(stops=(lambda: why[0],))
    records = await run_with_budget(
        Scripted(stop, says("x")), RunBudget(MemoryLedger(), "r", None, terms)
    )
    assert finished_event(records).reason == "the tests are green"


async def test_physical_actions_are_limited_across_all_runs_of_a_tenant() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock)
    relay = ActionLimit(tools=("gpio", "edge_*"), arguments={"action": "toggle"}, most=3, per="1h")
    settings = BudgetSettings(actions={"relay": relay})
    for number in range(3):
        budget = RunBudget(ledger, f"r{number}", settings)
        verdict = await budget.judge(call(RELAY, run=f"r{number}", action=" Toggle "))
        assert isinstance(verdict, Allow)
    other = RunBudget(ledger, "r9", settings)
    verdict = await other.judge(call(RELAY, run="r9", action="toggle"))
    assert isinstance(verdict, Deny) and verdict.code == "budget_action_relay"
    assert "tell the user" in verdict.reason
    assert isinstance(await other.judge(call(RELAY, 2, run="r9", action="read")), Allow)
    elsewhere = RunBudget(ledger, "r10", settings, principal=Principal("another"))
    assert isinstance(await elsewhere.judge(call(RELAY, run="r10", action="toggle")), Allow)


@pytest.mark.parametrize(
    ("rule", "arguments", "times"),
    [
        (ActionLimit(tools=("g*",), most=1), {}, 1),
        (ActionLimit(tools=("other",), most=1), {}, 0),
        (ActionLimit(tools=("gpio",), arguments={"pin": 4}, most=1), {"pin": 4}, 1),
        (ActionLimit(tools=("gpio",), arguments={"pin": 4}, most=1), {"pin": "4"}, 1),
        (ActionLimit(tools=("gpio",), arguments={"pin": 4}, most=1), {"pin": 5}, 0),
        (ActionLimit(tools=("gpio",), arguments={"on": True}, most=1), {"on": 1}, 0),
        (ActionLimit(tools=("gpio",), arguments={"on": True}, most=1), {"on": "TRUE"}, 1),
        (ActionLimit(tools=("gpio",), arguments={"p.pin": "4*"}, most=1), {"p": {"pin": 42}}, 1),
        (ActionLimit(tools=("gpio",), arguments={"do": ["a", "b"]}, most=1), {"do": "b"}, 1),
        (ActionLimit(tools=("gpio",), arguments={"do": "b"}, most=1), {"do": ["a", "b"]}, 1),
        (ActionLimit(tools=("gpio",), arguments={"do": "b"}, most=1), {}, 0),
        (ActionLimit(tools=("gpio",), times="n", most=9), {"n": 4}, 4),
        (ActionLimit(tools=("gpio",), times="n", most=9), {"n": 2.5}, 3),
        (ActionLimit(tools=("gpio",), times="n", most=9), {"n": -5}, 1),
        (ActionLimit(tools=("gpio",), times="n", most=9), {"n": "many"}, 1),
    ],
)
async def test_an_action_limit_matches_by_tool_and_arguments(
    rule: ActionLimit, arguments: dict[str, JSON], times: int
) -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(actions={"it": rule}))
    await budget.judge(call(RELAY, **arguments))
    assert (await account(ledger, "run:r")).held.get("action.it", 0) == times


async def test_each_run_also_draws_on_the_accounts_of_tenant_user_and_agent() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(
        agent=AccountLimits(calls=2), user=AccountLimits(calls=3), tenant=AccountLimits(calls=4)
    )
    seen: list[bool] = []
    for number, who in enumerate(
        [("u", "a"), ("u", "a"), ("u", "a"), ("u", "b"), ("u", "b"), ("v", "a"), ("v", "a")]
    ):
        principal = Principal("t/1", *who)
        budget = RunBudget(ledger, f"r{number}", settings, principal=principal)
        verdict = await budget.judge(call(READ, run=f"r{number}", path="x"))
        seen.append(isinstance(verdict, Allow))
    assert seen == [True, True, False, True, False, True, False]
    names = [one.name for one in await ledger.accounts()]
    assert "tenant:t%2F1/user:u/agent:b" in names


async def test_an_allowed_call_near_the_limit_has_the_code_budget_warned() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=10))
    codes: Sequence[str] = [
        verdict.code
        for number in range(11)
        if (verdict := await budget.judge(call(READ, number, path=str(number))))
    ]
    assert codes[7:] == ["", "budget_warned", "", "budget_calls"]
    assert not isinstance(await budget.judge(call(READ, 10, path="x")), Ask)


async def test_a_resumed_call_needs_no_new_approval_near_the_limit() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=10), BudgetOptions(attended=True))
    for number in range(8):
        await budget.judge(call(READ, number, path=str(number)))
    near = call(READ, 8, path="8")
    assert isinstance(await budget.judge(near), Ask)
    # Who drove the run before was given a yes, and began it.
    begun = msgspec.structs.replace(near, resumed=True)
    assert isinstance(await budget.judge(begun), Allow)


async def test_a_sub_run_started_before_its_root_is_limited_by_the_root_budget() -> None:
    ledger = MemoryLedger()
    root = RunBudget(ledger, "r", BudgetSettings(turns=4), spent={"turns": 2})
    below = RunBudget(ledger, "s", parent=root)
    verdicts = [await below.admit(turn) for turn in (1, 2)]
    assert [isinstance(verdict, Allow) for verdict in verdicts] == [True, False], (
        "one is the root's"
    )
    assert isinstance(await root.admit(1), Allow)
    assert (await account(ledger, "run:r")).spent == {"turns": 2}


ASKED = Tool("edge_call", "Asks an edge.", {"type": "object"}, frozenset({"device"}), resources=())


def query(number: int, **arguments: JSON) -> Call:
    return Call(f"c{number}", ASKED, {"query": "why?", **arguments}, f"r.{number}.0.1", 10.0)


async def test_tokens_of_an_edges_model_are_reserved_and_settled_by_what_the_edge_reports() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(tokens=20_000, warn_at=1.0))
    cases: list[tuple[JSON, dict[str, JSON], ErrorKind | None, int]] = [
        ("pi", report_usage(Usage(30, 12), 0.5), None, 42),
        (["pi", "box"], report_usage(Usage(3, 1), None), ErrorKind.TIMEOUT, 4),
        ("pi", {}, ErrorKind.UNKNOWN, RESERVED_PROMPT_TOKENS),
        ("pi", {}, ErrorKind.AGENT_OFFLINE, 0),
    ]
    left = 20_000
    for number, (edges, details, error, used) in enumerate(cases):
        asked = query(number, agent_id=edges)
        assert isinstance(await budget.judge(asked), Allow)
        held = RESERVED_PROMPT_TOKENS * (2 if number == 1 else 1)
        assert budget.left()["tokens"].left == left - held
        budget.start_call(asked.id)
        budget.settle_call(ToolResult(asked.id, "edge_call", (), error=error, details=details))
        left -= used
        assert budget.left()["tokens"].left == left, (edges, error)
    tight = RunBudget(MemoryLedger(), "t", BudgetSettings(tokens=RESERVED_PROMPT_TOKENS - 1))
    assert isinstance(await tight.judge(query(9, agent_id="pi")), Deny)


@pytest.mark.parametrize(
    "report",
    [
        {"input": -5, "output": 1 << 80, "cost": float("nan")},
        {"input": "many", "output": True, "cost": -1.0},
        {"input": [1], "cost": "free"},
        "nothing",
    ],
)
def test_an_edge_cannot_report_negative_or_endless_tokens(report: JSON) -> None:
    used = with_nested_usage({MODEL_USAGE_KEY: report, "calls": [{MODEL_USAGE_KEY: report}] * 2})
    tokens = Usage() if used is None else used[0]
    assert tokens.input == 0 and 0 <= tokens.output <= 3 * MAX_REPORTED_TOKENS
    assert used is None or used[1] is None or used[1] == 0.0


class AskingBudget(Policy):
    """A budget, and a rule that asks about every call."""

    def __init__(self, budget: RunBudget) -> None:
        self._chain = Chain((budget,))

    async def judge(self, call: Call) -> Verdict:
        verdict = await self._chain.judge(call)
        return verdict if isinstance(verdict, Deny) else Ask("ask", "a person decides")

    async def admit(self, turn: int) -> Verdict:
        return await self._chain.admit(turn)


class EditingApprover:
    """A person who replaces the arguments of a call."""

    def __init__(self, **arguments: JSON) -> None:
        self._arguments = arguments

    async def approve(self, call: Call, ask: Ask) -> Approval:
        return Approval(Decision.ONCE, "", self._arguments)


async def run_edited(
    budget: RunBudget, asked: dict[str, JSON], edited: dict[str, JSON]
) -> tuple[Table, list[ToolResult]]:
    """A run whose model asks for a `write`, which a person edits."""
    executor = all_tools()
    provider = Scripted(calls(("write", asked)), says("ok"))
    ports = Ports(provider, executor, AskingBudget(budget), EditingApprover(**edited))
    bus = Bus("r", [budget])
    events = run_loop(new_run([user("do it")], "r"), ports, LoopSettings())
    return executor, results([record async for record in recorded(events, bus)])


@pytest.mark.parametrize("kind", KINDS)
async def test_an_edited_call_that_needs_more_than_is_left_is_denied(
    kind: str, tmp_path: Path
) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        budget = RunBudget(ledger, "r", BudgetSettings(lines=10))
        executor, (result,) = await run_edited(
            budget, {"path": "a", "content": "one\n"}, {"path": "a", "content": "one\n" * 11}
        )
        assert executor.started == []
        assert result.error is ErrorKind.PERMISSION_DENIED and "lines" in result.text
        spent = (await account(ledger, "tenant:local")).spent
        assert not spent.get("lines") and not spent.get("files")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_edited_call_is_counted_once_and_as_it_ran(kind: str, tmp_path: Path) -> None:
    async with open_ledger(kind, tmp_path, Clock()) as ledger:
        budget = RunBudget(ledger, "r", BudgetSettings(lines=10, files=1, calls=1))
        executor, (result,) = await run_edited(
            budget, {"path": "a", "content": "one\n" * 9}, {"path": "b", "content": "one\n" * 3}
        )
        assert result.error is None and len(executor.started) == 1
        tenant = await account(ledger, "tenant:local")
        assert (tenant.spent["lines"], tenant.spent["files"], tenant.spent["calls"]) == (3, 1, 1)
        assert tenant.held == {}


async def test_a_run_that_crashed_after_the_edit_reserves_for_the_edited_call() -> None:
    ledger, settings = MemoryLedger(), BudgetSettings(lines=10)
    first = RunBudget(ledger, "r", settings)
    original = call(WRITE, path="a", content="one\n")
    assert isinstance(await first.judge(original), Allow)
    second = RunBudget(ledger, "r", settings)
    second.restore([Record("r", 1, 0.0, ApprovalAnswered(original.id, "once", "", {"path": "a"}))])
    larger = call(WRITE, path="a", content="one\n" * 11)
    assert isinstance(await second.judge(larger), Deny)
    smaller = call(WRITE, path="a", content="one\n" * 10)
    assert isinstance(await second.judge(smaller), Allow)

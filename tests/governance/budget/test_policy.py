from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus, recorded
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, ToolFailure
from evoclaw.core.events import CallJudged, CallStarted, StopReason, TurnStarted
from evoclaw.core.labels import Principal
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ErrorKind, Reply, ToolResult, Usage, user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Allow, Ask, Decision, Deny, Ports, Progress
from evoclaw.core.profile import Profile
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call
from evoclaw.governance.budget.cost_estimator import Price, highest_price
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.notices import BudgetNotice
from evoclaw.governance.budget.options import BudgetOptions
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.budget.settings import AccountLimits, ActionLimit, BudgetSettings
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from tests.support.budgets import (
    EDIT,
    READ,
    RELAY,
    WRITE,
    Clock,
    Person,
    account,
    answered,
    call,
    end,
    everything,
    go,
    results,
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


async def test_fault_49_a_runaway_loop_ends_when_its_turns_are_used_and_says_so() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(turns=7))
    model = Scripted(*[endless] * 50)
    records = await go(model, budget)
    assert end(records).stop is StopReason.BUDGET_EXCEEDED
    assert "EF-05" in end(records).reason and "turns" in end(records).text
    assert len(model.requests) == 7


async def test_fault_49_without_a_word_about_a_budget_there_is_the_usual_one() -> None:
    ledger = MemoryLedger()
    model = Scripted(*[endless] * 200)
    records = await go(model, RunBudget(ledger, "r"))
    assert end(records).stop is StopReason.BUDGET_EXCEEDED and len(model.requests) == 100
    settings = BudgetSettings()
    assert {kind: limit.most for kind, limit in settings.run_limits().items()} == {
        "turns": 100,
        "seconds": 3_600_000,
        "calls": 200,
        "files": 50,
        "lines": 5_000,
    }


async def test_fault_50_of_fifty_calls_of_one_reply_exactly_one_runs() -> None:
    executor, wanted = everything(), [("read", {"path": str(n)}) for n in range(50)]
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=1))
    many = LoopSettings(max_calls_per_turn=50, max_parallel=50)
    records = await go(Scripted(calls(*wanted), says("done")), budget, executor, settings=many)
    assert len(executor.started) == 1
    assert sum(result.error is None for result in results(records)) == 1
    assert "used up" in results(records)[0].text


async def test_tokens_are_set_aside_for_the_longest_reply_and_given_back() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(tokens=2_000))
    held: list[int] = []

    def look(asked: ScriptedRequest) -> Reply:
        held.append(2_000 - budget.left()["tokens"].left)
        return endless(asked)

    records = await go(Scripted(look, look, says("ok"), profile=SMALL), budget)
    assert end(records).stop is StopReason.COMPLETED
    assert held[0] > 100, "the output limit, and the prompt"
    assert held[1] > 115, "what was used, and the next one"
    assert (await account(ledger, "tenant:local")).spent["tokens"] == 45


async def test_a_reply_there_are_not_enough_tokens_for_is_never_asked_for() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(tokens=300))
    model = Scripted(says("never"), profile=SMALL)
    records = await go(model, budget)
    assert model.requests == []
    assert (
        end(records).stop is StopReason.BUDGET_EXCEEDED and "300 tokens left" in end(records).reason
    )


async def test_more_tokens_than_were_set_aside_are_counted_and_end_it() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(tokens=5_000))
    greedy = priced(reading(1), 0.0, 6_000)
    records = await go(Scripted(greedy, says("x"), profile=SMALL), budget)
    assert end(records).stop is StopReason.BUDGET_EXCEEDED
    assert (await account(ledger, "tenant:local")).spent["tokens"] == 6_000


async def test_money_is_set_aside_by_the_price_and_settled_by_what_the_reply_cost() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(dollars=0.01, tenant=AccountLimits(dollars=0.5, per="1d"))
    budget = RunBudget(ledger, "r", settings, BudgetOptions(price=cheap))
    model = Scripted(priced(reading(1), 0.0042), says("ok"), profile=SMALL)
    records = await go(model, budget)
    assert end(records).stop is StopReason.COMPLETED
    assert (await account(ledger, "tenant:local")).spent["dollars"] == 4_200
    dear = BudgetOptions(price=lambda model, usage: 0.011)
    records = await go(Scripted(says("x")), RunBudget(ledger, "r", settings, dear))
    assert end(records).stop is StopReason.BUDGET_EXCEEDED and "$0.0110" in end(records).reason


def unknown(model: str, usage: Usage) -> float | None:
    """No price."""
    return None


@pytest.mark.parametrize("price", [None, unknown])
async def test_a_model_without_a_price_is_not_asked_where_money_is_bounded(
    price: Price | None,
) -> None:
    terms = BudgetOptions(price=price)
    model = Scripted(says("x"))
    records = await go(model, RunBudget(MemoryLedger(), "r", BudgetSettings(dollars=1.0), terms))
    assert model.requests == [] and "no known price" in end(records).reason
    allowed = BudgetSettings(dollars=1.0, unpriced="allow")
    records = await go(model, RunBudget(MemoryLedger(), "r", allowed, terms))
    assert end(records).stop is StopReason.COMPLETED
    records = await go(Scripted(says("x")), RunBudget(MemoryLedger(), "r", None, terms))
    assert end(records).stop is StopReason.COMPLETED, "money is not bounded"


async def test_a_reply_whose_cost_is_not_known_costs_what_its_tokens_cost_at_least() -> None:
    ledger = MemoryLedger()
    settings = BudgetSettings(dollars=1.0)
    model = Scripted(priced(says("x"), None, 500_000))
    await go(model, RunBudget(ledger, "r", settings, BudgetOptions(price=cheap)))
    assert (await account(ledger, "tenant:local")).spent["dollars"] == 500_000


@pytest.mark.parametrize(
    ("kind", "counted"),
    [(ProviderErrorKind.AUTH_ERROR, False), (ProviderErrorKind.TIMEOUT, True)],
)
async def test_a_reply_that_failed_counts_unless_nobody_charges_for_it(
    kind: ProviderErrorKind, counted: bool
) -> None:
    ledger = MemoryLedger()
    await go(Scripted(ProviderError(kind, "no"), profile=SMALL), RunBudget(ledger, "r"))
    found = await account(ledger, "tenant:local")
    assert (found.spent.get("tokens", 0) > 100) is counted
    assert found.spent["turns"] == 1 and not found.held


async def test_what_of_several_models_may_answer_is_priced_by_the_dearest() -> None:
    usage = Usage(10, 10)
    assert highest_price([lambda m, u: 1.0, lambda m, u: 3.0])("m", usage) == 3.0
    assert highest_price([lambda m, u: 1.0, lambda m, u: None])("m", usage) is None


async def test_one_file_counts_once_however_often_it_is_written() -> None:
    ledger, executor = MemoryLedger(), everything()
    budget = RunBudget(ledger, "r", BudgetSettings(files=2))
    replies = [
        calls(("write", {"path": path, "content": f"{number}\n"}))
        for number, path in enumerate(["a", "./a", "b", "x/../a", "c"])
    ]
    records = await go(Scripted(*replies, says("ok")), budget, executor)
    assert [result.error for result in results(records)] == [
        None, None, None, None, ErrorKind.PERMISSION_DENIED,
    ]  # fmt: skip
    assert "files" in results(records)[-1].text
    assert (await account(ledger, "tenant:local")).spent["files"] == 2


async def test_a_write_that_was_refused_or_failed_costs_neither_file_nor_lines() -> None:
    async def unfit(call: Call, progress: Progress) -> str:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "does not occur")

    ledger = MemoryLedger()
    table = Table((EDIT, unfit), (WRITE, answered))
    edit = calls(("edit", {"path": "a", "old_string": "x\ny", "new_string": "z"}))
    write = calls(("write", {"path": "b", "content": "1\n2\n"}))
    settings = BudgetSettings(lines=3)
    both = await go(Scripted(edit, write, says("ok")), RunBudget(ledger, "r", settings), table)
    assert [result.error is None for result in results(both)] == [False, True]
    found = await account(ledger, "tenant:local")
    assert (found.spent["lines"], found.spent["files"]) == (2, 1)
    assert not found.held


async def test_what_a_result_says_more_exactly_is_what_counts() -> None:
    ledger = MemoryLedger()

    class Exact(Table):
        async def execute(self, call: Call, progress: Progress) -> ToolResult:
            return call.ok("Edited", lines_added=30, lines_removed=3)

    edit = calls(("edit", {"path": "a", "old_string": "x", "new_string": "y", "replace_all": True}))
    await go(Scripted(edit, says("ok")), RunBudget(ledger, "r"), Exact((EDIT, answered)))
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
async def test_a_patch_counts_the_files_it_names_and_the_lines_it_changes(
    patch: str, files: int, lines: int
) -> None:
    ledger = MemoryLedger()
    asked = calls(("apply_patch", {"patch": patch}))
    await go(Scripted(asked, says("ok")), RunBudget(ledger, "r"))
    spent = (await account(ledger, "tenant:local")).spent
    assert (spent.get("files", 0), spent.get("lines", 0)) == (files, lines)
    dry = calls(("apply_patch", {"patch": patch, "dry_run": True}))
    await go(Scripted(dry, says("ok")), RunBudget(ledger, "r2"))
    assert (await account(ledger, "tenant:local")).spent.get("files", 0) == files


async def test_a_person_is_asked_once_when_a_limit_is_near_and_once_more_before_its_end() -> None:
    person = Person(*[Decision.ONCE] * 9)
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(turns=20), BudgetOptions(attended=True))
    records = await go(Scripted(*[endless] * 99), budget, approver=person)
    assert end(records).stop is StopReason.BUDGET_EXCEEDED
    assert person.asked == [("r.17.reply.1", "budget_warned"), ("r.20.reply.1", "budget_warned")]
    assert sum(isinstance(record.event, TurnStarted) for record in records) == 20


async def test_a_person_who_says_no_ends_the_run_there() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(turns=20), BudgetOptions(attended=True))
    records = await go(Scripted(*[endless] * 99), budget, approver=Person(Decision.DENY))
    assert end(records).stop is StopReason.BUDGET_EXCEEDED
    assert sum(isinstance(record.event, TurnStarted) for record in records) == 16


async def test_a_run_that_waits_for_a_person_asks_again_when_it_is_resumed_and_goes_on() -> None:
    ledger, settings = MemoryLedger(), BudgetSettings(turns=5)
    person = Person(Decision.PENDING, Decision.ONCE)
    first = RunBudget(ledger, "r", settings, BudgetOptions(attended=True))
    records = await go(Scripted(*[endless] * 9), first, approver=person)
    assert (
        end(records).stop is StopReason.WAITING and "1 turn of 5 turns left" in end(records).reason
    )
    second = RunBudget(ledger, "r", settings, BudgetOptions(attended=True))
    second.restore(records)
    more = await go(Scripted(says("done")), second, approver=person, before=records)
    assert end(more).stop is StopReason.COMPLETED
    assert [asked for asked, _ in person.asked] == ["r.5.reply.1"] * 2
    spent = (await account(ledger, "tenant:local")).spent
    assert spent["turns"] == 5, "the turn that waited was not taken"


async def test_calls_are_asked_about_until_a_person_said_yes() -> None:
    def three(asked: ScriptedRequest) -> Reply:
        number = len(asked.messages)
        return calls(*[("read", {"path": f"{number}.{n}"}) for n in range(3)])

    person = Person(Decision.DENY, Decision.ONCE, *[Decision.ONCE] * 5)
    executor = everything()
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=10), BudgetOptions(attended=True))
    records = await go(Scripted(*[three] * 4, says("ok")), budget, executor, approver=person)
    assert [code for _, code in person.asked] == ["budget_warned"] * 2, "no, then yes"
    assert len(executor.started) == 10
    judged = [r.event for r in records if isinstance(r.event, CallJudged)]
    assert judged[-1].code == "budget_calls"


async def test_where_nobody_is_there_a_setting_decides_and_the_limit_holds() -> None:
    model = Scripted(*[endless] * 99)
    await go(model, RunBudget(MemoryLedger(), "r", BudgetSettings(turns=10)))
    assert len(model.requests) == 10
    model = Scripted(*[endless] * 99)
    strict = BudgetSettings(turns=10, unattended="refuse")
    records = await go(model, RunBudget(MemoryLedger(), "r", strict))
    assert len(model.requests) == 8 and "no person can be asked" in end(records).reason


async def test_the_model_is_told_what_is_left_once_for_each_threshold() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=20))
    executor = Pipeline([everything()], [BudgetNotice(budget)])
    records = await go(Scripted(*[endless] * 20, says("ok")), budget, executor)
    told = [
        (number, result.text.splitlines()[-1])
        for number, result in enumerate(results(records), 1)
        if len(result.blocks) > 1
    ]
    assert [number for number, _ in told] == [17, 19, 20]
    assert told[0][1].startswith("[Budget: 3 calls of 20 left")


async def test_a_call_that_goes_on_after_a_crash_is_counted_once() -> None:
    ledger = MemoryLedger()
    write = calls(("write", {"path": "a", "content": "1\n2\n"}))
    records = await go(Scripted(write, says("ok")), RunBudget(ledger, "r"))
    started = next(i for i, r in enumerate(records) if isinstance(r.event, CallStarted))

    ledger = MemoryLedger()
    before = records[: started + 1]
    first = RunBudget(ledger, "r")
    assert isinstance(await first.admit(1), Allow)
    assert isinstance(await first.judge(call(WRITE, 0, path="a", content="1\n2\n")), Allow)
    second = RunBudget(ledger, "r")
    second.restore(before)
    await go(Scripted(says("ok")), second, before=before)
    found = await account(ledger, "tenant:local")
    assert (found.spent["calls"], found.spent["lines"], found.spent["files"]) == (1, 2, 1)
    assert found.spent["turns"] == 2, "a reply that was cut off may have been charged"


async def test_a_reply_that_was_cut_off_counts_in_full_when_the_run_ends() -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r")
    deadline = Deadline()

    def cut(asked: ScriptedRequest) -> Reply:
        deadline.cancel()
        return says("too late")

    ports = Ports(Scripted(cut, profile=SMALL), everything(), budget)
    events = run_loop(new_run([user("x")], "r"), ports, LoopSettings(), deadline)
    _ = [record async for record in recorded(events, Bus("r", [budget]))]
    found = await account(ledger, "tenant:local")
    assert found.spent["tokens"] > 0 and not found.held


async def test_time_is_counted_between_replies_and_calls() -> None:
    clock, ledger = Clock(), MemoryLedger()

    def slow(asked: ScriptedRequest) -> Reply:
        clock.now += 50
        return endless(asked)

    budget = RunBudget(ledger, "r", BudgetSettings(minutes=2), BudgetOptions(clock=clock))
    model = Scripted(*[slow] * 9)
    records = await go(model, budget)
    assert end(records).stop is StopReason.BUDGET_EXCEEDED and "EF-06" in end(records).reason
    assert len(model.requests) == 3
    assert (await account(ledger, "tenant:local")).spent["seconds"] == 100_000


async def test_a_stop_condition_ends_the_run_with_its_reason() -> None:
    why = [""]

    def stop(asked: ScriptedRequest) -> Reply:
        why[0] = "the tests are green"
        return endless(asked)

    terms = BudgetOptions(stops=(lambda: why[0],))
    records = await go(Scripted(stop, says("x")), RunBudget(MemoryLedger(), "r", None, terms))
    assert end(records).reason == "the tests are green"


async def test_physical_actions_are_bounded_for_all_runs_of_a_tenant_together() -> None:
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
async def test_a_rule_knows_its_action_by_tool_and_arguments(
    rule: ActionLimit, arguments: dict[str, JSON], times: int
) -> None:
    ledger = MemoryLedger()
    budget = RunBudget(ledger, "r", BudgetSettings(actions={"it": rule}))
    await budget.judge(call(RELAY, **arguments))
    assert (await account(ledger, "run:r")).held.get("action.it", 0) == times


async def test_accounts_of_tenant_user_and_agent_stand_above_each_run() -> None:
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


async def test_an_ask_of_a_boundary_comes_before_a_warning_and_an_allow_has_its_code() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=10))
    codes: Sequence[str] = [
        verdict.code
        for number in range(11)
        if (verdict := await budget.judge(call(READ, number, path=str(number))))
    ]
    assert codes[7:] == ["", "budget_warned", "", "budget_calls"]
    assert not isinstance(await budget.judge(call(READ, 10, path="x")), Ask)


async def test_a_call_that_has_begun_is_not_asked_about_when_little_is_left() -> None:
    budget = RunBudget(MemoryLedger(), "r", BudgetSettings(calls=10), BudgetOptions(attended=True))
    for number in range(8):
        await budget.judge(call(READ, number, path=str(number)))
    near = call(READ, 8, path="8")
    assert isinstance(await budget.judge(near), Ask)
    # Who drove the run before was given a yes, and began it.
    begun = msgspec.structs.replace(near, resumed=True)
    assert isinstance(await budget.judge(begun), Allow)


async def test_a_sub_run_that_is_quicker_than_its_root_is_bounded_all_the_same() -> None:
    ledger = MemoryLedger()
    root = RunBudget(ledger, "r", BudgetSettings(turns=4), spent={"turns": 2})
    below = RunBudget(ledger, "s", parent=root)
    verdicts = [await below.admit(turn) for turn in (1, 2)]
    assert [isinstance(verdict, Allow) for verdict in verdicts] == [True, False], (
        "one is the root's"
    )
    assert isinstance(await root.admit(1), Allow)
    assert (await account(ledger, "run:r")).spent == {"turns": 2}

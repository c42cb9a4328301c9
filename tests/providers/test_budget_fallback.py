from __future__ import annotations

import asyncio

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import ContextTrimmed, Record, ReplyRetried, RunFinished
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Reply, Usage, user
from evoclaw.core.ports import Decision, Ports
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.core.replay import Replay
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.options import BudgetOptions
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.providers.budget_fallback import BudgetFallback
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from tests.support.budgets import ScriptedApprover
from tests.support.loop import Table, run, tool


async def long_answer(call: Call, progress: object) -> str:
    return "x" * 6_000


def looks(asked: ScriptedRequest) -> Reply:
    return calls(("look", {"text": str(len(asked.messages))}))


def table() -> Table:
    return Table((tool("look", "text"), long_answer))


async def test_with_enough_budget_the_primary_model_answers_without_trimming() -> None:
    model, other = Scripted(looks, looks, says("ok")), Scripted()
    ran = await run(BudgetFallback(model, lambda: 0.31, [other]), table())
    assert ran.end.text == "ok" and other.requests == []
    assert "ContextTrimmed" not in ran.kinds


async def test_below_each_budget_threshold_the_conversation_is_trimmed_further() -> None:
    left = [1.0, 0.5, 0.29, 0.28, 0.27, 0.18, 0.17]
    now, share = iter(left), [1.0]

    def step(asked: ScriptedRequest) -> Reply:
        share[0] = next(now)
        return looks(asked) if share[0] > 0.17 else says("done")

    model = Scripted(*[step] * 40)
    ran = await run(
        BudgetFallback(model, lambda: share[0]), table(), settings=LoopSettings(max_turns=40)
    )
    retried = [event for event in ran.events if isinstance(event, ReplyRetried)]
    assert [event.kind for event in retried] == ["context_too_long"] * 2
    assert "29% of the budget" in retried[0].reason and "18%" in retried[1].reason
    assert sum(isinstance(event, ContextTrimmed) for event in ran.events) == 2
    assert ran.end.stop == "completed"


async def test_a_short_conversation_is_not_trimmed() -> None:
    ran = await run(BudgetFallback(Scripted(calls(("echo", {})), says("ok")), lambda: 0.2))
    assert ran.end.text == "ok" and "ReplyRetried" not in ran.kinds


@pytest.mark.parametrize(
    ("left", "who"), [(0.15, "dear"), (0.149, "mid"), (0.08, "mid"), (0.07, "low"), (0.0, "low")]
)
async def test_with_less_budget_a_cheaper_model_answers(left: float, who: str) -> None:
    models = {name: Scripted(says(name), model=f"x/{name}") for name in ("dear", "mid", "low")}
    thrifty = BudgetFallback(models["dear"], lambda: left, [models["mid"], models["low"]])
    assert thrifty.current_model == f"x/{who}" and thrifty.model == "x/dear"
    assert (await run(thrifty)).end.text == who


async def test_the_profile_promises_only_what_every_model_supports() -> None:
    small = Scripted(profile=Profile(context_tokens=10, max_output_tokens=5, images=False))
    large = Scripted(profile=Profile(images=True))
    found = BudgetFallback(large, lambda: 1.0, [small]).profile
    assert found == Profile(context_tokens=10, max_output_tokens=5, images=False)
    mute = Scripted(profile=Profile(calls=CallStyle.NONE))
    with pytest.raises(ConfigError, match="must be able to call tools"):
        BudgetFallback(large, lambda: 1.0, [mute])


async def test_the_budget_ladder_trims_then_falls_back_then_asks_and_replays() -> None:
    count = iter(range(100))

    def reply(asked: ScriptedRequest) -> Reply:
        found = calls(("look", {"text": str(next(count))}))
        return Reply("", found.calls, found.finish, Usage(5_000, 100), "m", 0.0)

    profile = Profile(context_tokens=20_000, max_output_tokens=100)
    dear, low = (Scripted(*[reply] * 30, model=f"x/{n}", profile=profile) for n in ("dear", "low"))
    settings = BudgetSettings(tokens=100_000, warn_at=0.75, ask_at=0.75)
    budget = RunBudget(MemoryLedger(), "r", settings, BudgetOptions(attended=True))
    thrifty = BudgetFallback(dear, budget.remaining_share, [low])
    person = ScriptedApprover(*[Decision.ONCE] * 3)
    state = new_run([user("go")], "r")
    loop = run_loop(state, Ports(thrifty, table(), budget, person), LoopSettings(max_turns=50))
    async with asyncio.timeout(30):
        records: list[Record] = [r async for r in recorded(loop, Bus("r", [budget]))]
    end = records[-1].event
    assert isinstance(end, RunFinished) and end.stop == "budget_exceeded"
    kinds = [type(record.event).__name__ for record in records]
    assert "ContextTrimmed" in kinds
    assert dear.requests and low.requests
    assert len(person.asked) == 1
    played = [record async for record in Replay(records).records()]
    assert [record.event for record in played] == [record.event for record in records]

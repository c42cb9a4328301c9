"""Sub-runs and what they may use: one budget for all, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evoclaw.core.agent import Agent
from evoclaw.core.labels import Principal
from evoclaw.core.ledgers import Account
from evoclaw.core.messages import Reply, Usage
from evoclaw.core.ports import Decision, Ports
from evoclaw.core.profile import Profile
from evoclaw.governance.budget.cost_estimator import Price
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.settings import AccountLimits, BudgetSettings
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from evoclaw.store.governance.ledger import StoredLedger
from evoclaw.store.sessions.sessions import Session
from tests.support.budgets import ScriptedApprover, account
from tests.support.conversations import SessionHarness, agent, end_of, open_session_harness, results

MANY = 12


def ask(prompt: str = "do it", who: str = "help") -> tuple[str, dict[str, str]]:
    return "task", {"prompt": prompt, "agent": who}


def digs(asked: ScriptedRequest) -> Reply:
    return calls(("work", {"what": str(len(asked.messages))}))


def costing(dollars: float) -> Price:
    def price(model: str, usage: Usage) -> float | None:
        return dollars

    return price


async def spent(home: SessionHarness) -> Account:
    return await account(home.talks.ledger, "tenant:local")


async def test_fault_57_concurrent_sub_runs_never_exceed_the_shared_budget(
    tmp_path: Path,
) -> None:
    lead_agent = agent("lead", max_calls_per_turn=MANY, max_parallel=MANY)
    help_agent = agent("help", max_turns=40)
    for limits, kind, most in (
        (BudgetSettings(calls=20), "calls", 20),
        (BudgetSettings(turns=20), "turns", 20),
    ):
        lead = Scripted(calls(*[ask(str(n)) for n in range(MANY)]), says("so be it"))
        help_ = Scripted(*[digs] * 500)
        async with open_session_harness(
            tmp_path / kind,
            agents=(lead_agent, help_agent),
            limits=RunLimits(budget=limits, max_concurrent_per_run=MANY, max_active=MANY),
            lead=lead,
            help=help_,
        ) as home:
            records = await home.send("go")
            found = await spent(home)
            assert found.spent[kind] == most, "all of it, and not one more"
            assert not found.held
            if kind == "calls":
                assert len(home.ran) == most - MANY
            assert len(results(records)) == MANY


async def test_fault_57_shared_tokens_are_reserved_before_each_reply(tmp_path: Path) -> None:
    profile = Profile(context_tokens=50, max_output_tokens=10)

    def costly(asked: ScriptedRequest) -> Reply:
        found = digs(asked)
        return Reply("", found.calls, found.finish, Usage(50, 10), "m", 0.0)

    lead = Scripted(calls(*[ask(str(n)) for n in range(4)]), says("ok"), profile=profile)
    help_ = Scripted(*[costly] * 200, profile=profile)
    limits = RunLimits(budget=BudgetSettings(tokens=1_000))
    async with open_session_harness(tmp_path, limits=limits, lead=lead, help=help_) as home:
        await home.send("go")
        used = (await spent(home)).spent["tokens"]
        assert 900 < used <= 1_000


async def test_fault_57_sub_runs_nest_at_most_three_levels_deep(tmp_path: Path) -> None:
    def deeper(asked: ScriptedRequest) -> Reply:
        if len(asked.messages) > 2 or "task" not in asked.tools:
            return says("up")
        return calls(("task", {"prompt": "deeper"}))

    lead = Scripted(calls(ask()), says("ok"))
    async with open_session_harness(tmp_path, lead=lead, help=Scripted(*[deeper] * 20)) as home:
        await home.send("go")
        depths = [one.session.depth for one in await home.store.sessions("")]
        assert max(depths) == 3 and len(depths) == 4


async def test_fault_57_an_agent_cannot_delegate_to_an_agent_that_waits_for_it(
    tmp_path: Path,
) -> None:
    lead = Scripted(calls(ask()), says("thanks"))
    help_ = Scripted(calls(ask("you do it", "lead")), says("I did it myself"))
    async with open_session_harness(tmp_path, lead=lead, help=help_) as home:
        records = await home.send("go")
        assert results(records)[0].text.startswith("I did it myself")
        assert "waiting for this work itself" in str(help_.requests[1].messages[-1])
        assert len(await home.store.sessions("")) == 2


async def test_an_agent_may_delegate_to_another_run_of_itself(tmp_path: Path) -> None:
    def speak(asked: ScriptedRequest) -> Reply:
        last = asked.messages[-1]
        return calls(ask("part", "lead")) if str(last).count("'go'") else says("done")

    async with open_session_harness(tmp_path, lead=Scripted(*[speak] * 5)) as home:
        (result,) = results(await home.send("go"))
        assert result.error is None and result.text.startswith("done")


async def test_session_status_in_a_sub_run_reports_the_remaining_shared_budget(
    tmp_path: Path,
) -> None:
    status = calls(("session_status", {}))
    limits = RunLimits(budget=BudgetSettings(turns=50, calls=10))
    lead, help_ = Scripted(calls(ask()), says("ok")), Scripted(status, says("done"))
    async with open_session_harness(tmp_path, limits=limits, lead=lead, help=help_) as home:
        await home.send("go")
        told = str(help_.requests[1].messages[-1])
        assert "left in the shared budget: turns 48, calls 8" in told


async def test_a_tenant_budget_survives_restarts_and_limits_every_session(
    tmp_path: Path,
) -> None:
    settings = BudgetSettings(tenant=AccountLimits(turns=3, per="1d"))
    for number, stop in enumerate(["completed", "budget_exceeded"]):
        model = Scripted(digs, says("ok"))
        async with (
            await StoredLedger.open_file(tmp_path / "budget.db") as ledger,
            open_session_harness(tmp_path, limits=RunLimits(budget=settings), lead=model) as home,
        ):
            home.talks.ledger = ledger
            records = await home.send("go", session=f"s{number}")
            assert end_of(records).stop == stop


async def test_a_dollar_budget_uses_model_prices_and_refuses_unpriced_models(
    tmp_path: Path,
) -> None:
    limits = RunLimits(budget=BudgetSettings(dollars=1.0))
    async with open_session_harness(
        tmp_path, limits=limits, lead=Scripted(says("hi"), says("hi"))
    ) as home:
        assert "no known price" in end_of(await home.send("go", session="one")).reason
        home.talks.price = costing(0.25)
        assert end_of(await home.send("go", session="two")).stop == "completed"
        home.talks.price = costing(1.01)
        assert "$1.0100" in end_of(await home.send("go", session="three")).reason


async def test_each_tenant_user_and_agent_has_its_own_budget_account(tmp_path: Path) -> None:
    class Asking(SessionHarness):
        def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
            ports = super().equip(agent, session, given)
            who = Principal("another", "anybody", agent.name)
            return Ports(ports.provider, ports.executor, ports.policy, ports.approver, who)

    async with open_session_harness(tmp_path, lead=Scripted(says("hi"))) as plain:
        home = Asking(plain.store, (agent("lead"),), RunLimits())
        home.models = plain.models
        home.talks.ledger = ledger = MemoryLedger()
        talks = home.talks.of("acme")
        await talks.open("lead", session_id="main", owner="bob")
        assert end_of([record async for record in talks.send("main", "go")]).text == "hi"
        names = [one.name for one in await ledger.accounts()]
        assert names == ["tenant:acme", "tenant:acme/user:bob", "tenant:acme/user:bob/agent:lead"]
        found = await account(ledger, names[-1])
        assert found.spent["turns"] == 1


async def test_approval_is_requested_near_a_budget_limit_and_the_session_continues(
    tmp_path: Path,
) -> None:
    limits, person = (
        RunLimits(budget=BudgetSettings(turns=5)),
        ScriptedApprover(Decision.PENDING, Decision.ONCE),
    )
    async with open_session_harness(
        tmp_path, limits=limits, lead=Scripted(*[digs] * 4, says("done"))
    ) as home:
        home.talks.attended, home.approver = True, person
        assert end_of(await home.send("go")).stop == "waiting"
        records = [record async for record in home.talks.resume("main")]
        assert end_of(records).text == "done"
        assert len(person.asked) == 2 and (await spent(home)).spent["turns"] == 5

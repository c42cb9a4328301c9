"""The call pipeline of a run in a session: rules are neither lost nor judged twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evoclaw.core.agent import Agent
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import ALLOW, Deny, Policy, Ports, Verdict
from evoclaw.core.tools import Call
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import Session, SessionStore
from tests.support.conversations import HELP, LEAD, SessionHarness, results

TASK = ("task", {"agent": "help", "prompt": "Work on x."})


class Counting(Policy):
    """Allows everything, and counts it."""

    def __init__(self) -> None:
        self.judged: list[str] = []

    async def judge(self, call: Call) -> Verdict:
        self.judged.append(call.name)
        return ALLOW


class NoWork(Policy):
    """Denies `work`."""

    async def judge(self, call: Call) -> Verdict:
        return Deny("no_work", "no work today") if call.name == "work" else ALLOW


class Piped(SessionHarness):
    """Runs get a pipeline: one policy is shared by all agents, another is the lead's own."""

    def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        ports = super().equip(agent, session, given)
        own = [self.shared, NoWork()] if agent.name in self.strict else [self.shared]
        pipeline = Pipeline([ports.executor], own)
        policy = pipeline.policy if self.as_steps else ports.policy
        return Ports(ports.provider, pipeline, policy, ports.approver)

    shared = Counting()
    strict: frozenset[str] = frozenset()
    as_steps = True


async def piped(folder: Path, lead: Scripted, help: Scripted) -> tuple[SessionStore, Piped]:
    store = await SessionStore.open(folder / "sessions.db", durable=False)
    house = Piped(store, (LEAD, HELP), RunLimits())
    house.shared = Counting()
    house.models = {"lead": lead, "help": help}
    return store, house


async def test_a_policy_that_parent_and_sub_run_share_judges_a_call_once(tmp_path: Path) -> None:
    help = Scripted(calls(("work", {"what": "x"})), says("Done."))
    store, house = await piped(tmp_path, Scripted(calls(TASK), says("Done.")), help)
    async with store:
        await house.send("Have somebody work.")
    assert house.shared.judged == ["task", "work"]


async def test_a_sub_run_cannot_do_what_its_parents_policy_denies(tmp_path: Path) -> None:
    help = Scripted(calls(("work", {"what": "x"})), says("I may not."))
    store, house = await piped(tmp_path, Scripted(calls(TASK), says("Done.")), help)
    house.strict = frozenset({"lead"})
    async with store:
        await house.send("Have somebody work.")
    assert house.ran == []


async def test_a_policy_outside_the_pipeline_is_enforced(tmp_path: Path) -> None:
    lead = Scripted(calls(("work", {"what": "x"})), says("I may not."))
    store, house = await piped(tmp_path, lead, Scripted())
    house.as_steps, house.policy = False, NoWork()
    async with store:
        told = results(await house.send("Work."))
    assert house.ran == [] and "no work today" in told[0].text

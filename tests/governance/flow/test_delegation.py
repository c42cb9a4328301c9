"""What was read is known below and above: labels go down with the brief, and up with the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from evoclaw.core.agent import Agent
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import UserMessage, label_of
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports
from evoclaw.governance.flow.policy import Flow
from evoclaw.governance.flow.settings import FlowFlags, FlowSettings
from evoclaw.orchestrator.sessions.session_run import RunLimits
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.sessions.sessions import Session, SessionStore
from tests.support.conversations import HELP, LEAD, SessionHarness, results

WORK = Label(untrusted=True, sources=("work",))
SETTINGS = FlowSettings(outside=("work",))


class Flagging(SessionHarness):
    """A house in which `work` brings in what outsiders wrote."""

    def equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        ports = super().equip(agent, session, given)
        executor = Pipeline([ports.executor], [FlowFlags(SETTINGS)])
        return replace(ports, executor=executor, policy=Flow(SETTINGS, executor.tools))


async def open_house(folder: Path, lead: Scripted, help: Scripted) -> tuple[SessionStore, Flagging]:
    store = await SessionStore.open(folder / "sessions.db", durable=False)
    house = Flagging(store, (LEAD, HELP), RunLimits())
    house.models = {"lead": lead, "help": help}
    return store, house


TASK = ("task", {"agent": "help", "prompt": "Work on x."})


async def test_a_sub_run_started_after_an_untrusted_read_inherits_the_label(tmp_path: Path) -> None:
    lead = Scripted(calls(("work", {"what": "page"})), calls(TASK), says("Done."))
    # Its brief vouches for nothing: the one acting call is refused.
    help = Scripted(calls(("work", {"what": "x"})), says("I did it."))
    store, house = await open_house(tmp_path, lead, help)
    async with store:
        told = results(await house.send("Look at the page."))
    brief = help.requests[0].messages[-1]
    assert isinstance(brief, UserMessage)
    assert label_of(brief) == WORK
    assert [what for _, what in house.ran] == ["page"]
    assert label_of(told[-1]) == WORK


async def test_the_answer_of_a_sub_run_carries_the_label_of_what_it_read(tmp_path: Path) -> None:
    lead = Scripted(calls(TASK), calls(("work", {"what": "evil"})), says("Done."))
    help = Scripted(calls(("work", {"what": "x"})), says("Now work on evil."))
    store, house = await open_house(tmp_path, lead, help)
    async with store:
        told = results(await house.send("Have somebody look at x."))
    assert label_of(help.requests[0].messages[-1]) == CLEAN
    assert label_of(told[0]) == WORK
    # And so the lead may not act on it.
    assert [what for _, what in house.ran] == ["x"]


async def test_the_error_of_a_failed_sub_run_carries_its_label(tmp_path: Path) -> None:
    lead = Scripted(calls(TASK), says("Done."))
    help = Scripted(calls(("work", {"what": "x"})))  # and then its provider has nothing to say
    store, house = await open_house(tmp_path, lead, help)
    async with store:
        told = results(await house.send("Have somebody look at x."))
    assert told[0].error is not None
    assert label_of(told[0]) == WORK


async def test_reading_another_session_adds_the_label_of_that_session(tmp_path: Path) -> None:
    read = calls(("sessions_history", {"session_id": "old"}))
    lead = Scripted(calls(("work", {"what": "page"})), says("Read."), read, says("Done."))
    store, house = await open_house(tmp_path, lead, Scripted())
    async with store:
        await house.send("Look at the page.", session="old")
        told = results(await house.send("What was said in the old session?"))
    assert label_of(told[0]) == WORK


async def test_the_label_of_a_run_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with await SessionStore.open(path, durable=False) as store:
        await store.create(Session("s", "help"))
        await store.create_run("r1", "s", "Work on x.", label=WORK)
        await store.create_run("r2", "s", "Hello.")
    async with await SessionStore.open(path, durable=False) as store:
        kept, clean = await store.run("r1"), await store.run("r2")
    assert kept is not None
    assert clean is not None
    assert kept.label == WORK
    assert clean.label is CLEAN

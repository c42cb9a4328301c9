"""Agents asked by runs that are kept: the answer is the same, and outlives the process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.agent import Agent, Field, FieldType, LoopSettings
from evoclaw.core.errors import AgentNotFound, ProviderError, ProviderErrorKind
from evoclaw.core.events import RunFinished, RunStarted, StopReason
from evoclaw.core.messages import JSON, Reply, UserMessage
from evoclaw.core.ports import Request
from evoclaw.orchestrator.agents.definitions import InvalidAgentInputs
from evoclaw.orchestrator.runs.invoke import InvocationOutcome, Invocations, NoAnswer
from evoclaw.orchestrator.runs.runs import KeyReused, RunSettings, RunStatus
from evoclaw.providers.scripted import calls, says
from tests.support.databases import Place
from tests.support.runs import WHO, Gate, RunServiceHarness, open_run_service

WORKER = Agent(
    "worker",
    "scripted/model",
    "You work.",
    frozenset({"*"}),
    LoopSettings(output_fields=("answer",)),
    inputs={"task": Field(FieldType.STRING, required=True)},
)
TALKER = Agent("talker", "scripted/model")
AGENTS = (WORKER, TALKER)


def asks(house: RunServiceHarness) -> Invocations:
    return Invocations(house.runs, house.talks.agents)


async def invoked(
    house: RunServiceHarness, name: str, inputs: dict[str, JSON], *, single: bool = False
) -> InvocationOutcome:
    view = await asks(house).start(WHO, name, inputs, single=single)
    return await asks(house).outcome(WHO.tenant, view)


def works(agent: str, request: Request) -> Reply:
    """Use the tool if there is one, then answer, then confirm."""
    said = request.history.to_tuple()
    if request.tools and not any(isinstance(one, Reply) for one in said):
        return calls(("work", {"what": "it"}))
    asked = isinstance(said[-1], UserMessage) and "COMPLETED" in said[-1].text
    return says("COMPLETED: done" if asked else "done")


async def test_invoke_iterative_uses_tools_confirms_and_stores_the_run(tmp_path: Path) -> None:
    place = Place(tmp_path / "e.db")
    async with open_run_service(place, agents=AGENTS) as house, asyncio.timeout(30):
        house.answer = works
        answer = (await invoked(house, "worker", {"task": "x"})).iterative_response()
        assert (answer.output, answer.tools_used) == ({"answer": "done"}, ("work",))
        assert (answer.iterations, answer.termination_reason) == (3, StopReason.COMPLETED)
        assert msgspec.to_builtins(answer) == {
            "agent": "worker",
            "output": {"answer": "done"},
            "raw_response": "done",
            "tokens_used": 45,
            "model": "scripted/model",
            "iterations": 3,
            "tool_calls_made": 1,
            "tools_used": ("work",),
            "termination_reason": "completed",
            "run_id": answer.run_id,
        }
        view = await house.runs.get("local", answer.run_id)
        assert view is not None
        assert (view.state, view.owner, view.asked) == (RunStatus.ENDED, "ann", '{"task":"x"}')


async def test_a_single_shot_invocation_has_no_tools_and_no_confirmation(tmp_path: Path) -> None:
    async with (
        open_run_service(Place(tmp_path / "e.db"), agents=AGENTS) as house,
        asyncio.timeout(30),
    ):
        house.answer = works
        answer = (await invoked(house, "worker", {"task": "x"}, single=True)).single_response()
        assert (answer.output, answer.tokens_used) == ({"answer": "done"}, 15)
        assert house.ran == []


async def test_a_started_invocation_is_answered_after_a_restart(tmp_path: Path) -> None:
    place = Place(tmp_path / "e.db")
    async with open_run_service(place, agents=AGENTS) as house:
        house.answer, house.gate = works, Gate()
        view = await asks(house).start(WHO, "worker", {"task": "x"}, key="k")
        await house.gate.next()
    async with open_run_service(place, agents=AGENTS) as house, asyncio.timeout(30):
        house.answer = works
        same = await asks(house).start(WHO, "worker", {"task": "x"}, key="k")
        assert same.run_id == view.run_id
        answer = (await asks(house).outcome("local", same)).iterative_response()
        assert (answer.output, answer.tool_calls_made) == ({"answer": "done"}, 1)
        with pytest.raises(KeyReused):
            await asks(house).start(WHO, "worker", {"task": "y"}, key="k")


async def test_invocation_settings_override_the_agents_limits(tmp_path: Path) -> None:
    async with (
        open_run_service(Place(tmp_path / "e.db"), agents=AGENTS) as house,
        asyncio.timeout(30),
    ):
        house.answer = works
        limits = {"confirm": False, "temperature": 0.1}
        view = await asks(house).start(WHO, "worker", {"task": "x"}, settings=limits, model="m/x")
        outcome = await asks(house).outcome("local", view)
        assert (outcome.result.turns, outcome.model) == (2, "m/x")
        end = (await house.records(view.run_id))[-1].event
        assert isinstance(end, RunFinished)


async def test_an_unknown_agent_or_invalid_inputs_start_no_run(tmp_path: Path) -> None:
    async with open_run_service(Place(tmp_path / "e.db"), agents=AGENTS) as house:
        with pytest.raises(AgentNotFound):
            await asks(house).start(WHO, "nobody", {})
        for inputs in ({}, {"task": 1}, {"task": "x", "more": 1}):
            with pytest.raises(InvalidAgentInputs):
                await asks(house).start(WHO, "worker", inputs)
        assert await house.runs.list("local") == []


async def test_a_provider_failure_raises_provider_error_and_a_cancel_no_answer(
    tmp_path: Path,
) -> None:
    async with (
        open_run_service(Place(tmp_path / "e.db"), agents=AGENTS) as house,
        asyncio.timeout(30),
    ):

        def fails(agent: str, request: Request) -> Reply:
            raise ProviderError(ProviderErrorKind.SERVER_ERROR, "it is down")

        house.answer = fails
        for answer in (InvocationOutcome.single_response, InvocationOutcome.iterative_response):
            single = answer is InvocationOutcome.single_response
            outcome = await invoked(house, "talker", {}, single=single)
            with pytest.raises(ProviderError, match="it is down") as down:
                answer(outcome)
            assert down.value.kind is ProviderErrorKind.SERVER_ERROR
        house.answer, house.gate = works, Gate()
        view = await asks(house).start(WHO, "talker", {}, single=True)
        await house.gate.next()
        await house.runs.cancel("local", view.run_id)
        outcome = await asks(house).outcome("local", view)
        with pytest.raises(NoAnswer) as none:
            outcome.single_response()
        assert none.value.result.stop is StopReason.CANCELLED
        assert outcome.iterative_response().termination_reason == "cancelled"


async def test_an_invocation_returns_an_answer_larger_than_the_watcher_buffer(
    tmp_path: Path,
) -> None:
    rushed = RunSettings(look_s=0.02, lease_s=2.0, slow_watcher=5)
    words = "\n".join(f"word {number}" for number in range(500))

    def rush(agent: str, request: Request) -> Reply:
        done = works(agent, request)
        return says(f"{done.text}\n{words}") if done.text else done

    async with (
        open_run_service(Place(tmp_path / "e.db"), agents=AGENTS, settings=rushed) as house,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        house.answer, house.gate = rush, Gate()
        asked = group.create_task(invoked(house, "worker", {"task": "x"}))
        assert await house.gate.next() == "calls"
        (view,) = await house.runs.list("local")
        async with aclosing(house.runs.watch("local", view.run_id)) as records:
            assert isinstance((await anext(records)).event, RunStarted)
        house.gate.wide = True
        house.gate.open("calls")
        answer = (await asked).iterative_response()
        assert answer.iterations == 3
        assert answer.raw_response.endswith("word 499")

"""Calls that the model of an edge makes through the orchestrator while it answers a prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from msgspec.structs import replace

from evoclaw.core.calls import prepare
from evoclaw.core.history import History
from evoclaw.core.messages import JSON, ErrorKind, ToolCall, ToolResult, user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Policy, Ports
from evoclaw.core.tools import Context
from evoclaw.core.toolset import Toolset
from evoclaw.edge.commands import QUICK_COMMANDS
from evoclaw.edge.device import UNSIGNED_COMMANDS
from evoclaw.edge.genome import EDGE_DEFAULTS
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.governance.flow.policy import Flow
from evoclaw.governance.forwarded_calls import ForwardedRates
from evoclaw.governance.rate_limits import RateLimit, RateLimits, RateSettings
from evoclaw.orchestrator.fleet.edge_call import allow_nested_calls
from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls
from evoclaw.orchestrator.fleet.nested_calls import MAX_NESTED_CALLS
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from evoclaw.transport.topics import TopicKind
from evoclaw.transport.wire import NestedCall, Report, ReportType, as_payload, encode
from tests.support.fleet import BrokerListener, Fault, FleetHarness, new_id, open_fleet
from tests.support.waiting import until

ALL = frozenset({"*"})


def of_run(here: FleetHarness, *policies: Policy) -> Pipeline:
    """The finished pipeline of a run that may call edges."""
    pipeline = Pipeline([here.orchestrator.edge_call(ALL)], policies)
    ports = Ports(Scripted(), pipeline, pipeline.policy)
    allow_nested_calls(ports, RunBudget(MemoryLedger(), "run"))
    return pipeline


async def ask(
    pipeline: Pipeline, request_id: str = "", *, resumed: bool = False, **given: JSON
) -> ToolResult:
    """Call `edge_call` as the loop would."""
    asked = ToolCall("c1", "edge_call", msgspec.json.encode(given).decode())
    context = Context(history=History([user("Look after the house.")]))
    tools = Toolset.of(pipeline.tools())
    call = prepare(
        asked, tools, request_id=request_id or new_id(), resumed=resumed, context=context
    )
    assert not isinstance(call, ToolResult), call
    async with asyncio.timeout(30):
        return await pipeline.execute(call, lambda text: None)


def edge_call(agent_id: str, **given: JSON) -> tuple[str, dict[str, JSON]]:
    return "edge_call", {"agent_id": agent_id, **given}


def mark(agent_id: str, text: str) -> tuple[str, dict[str, JSON]]:
    return edge_call(agent_id, action="mark", params={"text": text})


def results(request: ScriptedRequest) -> list[ToolResult]:
    """The results that a model was shown."""
    return [message for message in request.messages if isinstance(message, ToolResult)]


async def start(here: FleetHarness, **models: Scripted) -> None:
    for name, device in here.devices.items():
        device.provider = models.get(name)
        await device.start()
    await here.wait_online(*here.devices)


async def test_the_model_of_an_edge_uses_a_tool_of_another_edge(tmp_path: Path) -> None:
    model = Scripted(calls(mark("desk", "a")), says("Marked."))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        await start(here, pi=model)
        result = await ask(of_run(here), agent_id="pi", query="Mark a on the desk.")
        assert result.text == "Marked."
        assert results(model.requests[1])[0].text == "marked a"
        assert here.marks.made == ["a"]
        made: JSON = {"tool": "edge_call", "outcome": "ok", "agent": "desk", "path": ["pi"]}
        assert result.details["calls"] == [made]


async def test_the_genomes_of_all_models_that_answered_are_in_the_result(tmp_path: Path) -> None:
    async with open_fleet(tmp_path, "pi", "desk", "shed", start=False) as here:
        pi = Scripted(calls(edge_call("desk", query="Say hello.")), says("It did."))
        await start(here, pi=pi, desk=Scripted(says("Hello.")), shed=Scripted(says("Hi.")))
        patch: JSON = {"genome": {"prompt": "Be brief."}}
        desk = await here.orchestrator.query("desk", "update_genome", patch)
        assert desk.status == "success"
        wanted = replace(EDGE_DEFAULTS, prompt="Be brief.").digest
        result = await ask(of_run(here), agent_id=["pi", "shed"], query="Ask the desk.")
        as_configured = EDGE_DEFAULTS.digest
        assert result.details["genomes"] == {"pi": as_configured, "shed": as_configured}
        assert [made["genome"] for made in result.details["calls"]] == [wanted]


async def test_a_call_is_run_once_though_its_messages_are_lost_and_repeated(
    tmp_path: Path,
) -> None:
    model = Scripted(calls(mark("desk", "a")), says("Marked."))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        await start(here, pi=model)
        lost: set[bytes] = set()

        def fault(topic: str, payload: bytes) -> Fault:
            for word in (b'"report_type":"call"', b'"nested_result"'):
                if word in payload and word not in lost:
                    lost.add(word)
                    return Fault.DROP
                if word in payload:
                    return Fault.TWICE
            return Fault.NONE

        here.link.fault = here.pi.link.fault = fault
        result = await ask(of_run(here), agent_id="pi", query="Mark a on the desk.")
        assert (result.text, len(lost)) == ("Marked.", 2)
        assert here.marks.made == ["a"]


async def test_reading_is_free_and_acting_needs_a_person_whom_nobody_can_ask(
    tmp_path: Path,
) -> None:
    look = edge_call("desk", action="look", params={"text": "b"})
    model = Scripted(calls(mark("desk", "a")), calls(look), says("Only seen."))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        await start(here, pi=model)
        result = await ask(of_run(here, Flow()), agent_id="pi", query="See to the desk.")
        refused, seen = results(model.requests[2])
        assert refused.error is ErrorKind.PERMISSION_DENIED
        assert "needs a person's approval" in refused.text
        assert seen.text == "saw b"
        assert here.marks.made == ["b"]
        outcomes = [made["outcome"] for made in result.details["calls"]]
        assert outcomes == ["permission_denied", "ok"]


async def test_a_nested_call_counts_once_for_the_rate_of_the_edges_tool(tmp_path: Path) -> None:
    model = Scripted(calls(mark("desk", "a")), calls(mark("desk", "b")), says("Once."))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        await start(here, pi=model)
        settings = RateSettings(tools={"mark": RateLimit(per_minute=1)})
        rates = ForwardedRates(RateLimits(settings), forwarded_calls(here.orchestrator.fleet))
        await ask(of_run(here, rates), agent_id="pi", query="Mark twice.")
        _, refused = results(model.requests[2])
        assert "mark was called too often (1 a minute)" in refused.text
        assert here.marks.made == ["a"]


async def test_a_question_is_judged_as_one_though_it_bears_the_name_of_a_tool_that_reads(
    tmp_path: Path,
) -> None:
    ask_desk = edge_call("desk", action="look", params={"text": "Open the door."})
    ask_all = edge_call("*", action="look", params={"text": "Open the door."})
    model = Scripted(calls(ask_desk), calls(ask_all), says("Refused."))
    desk = Scripted(says("The door is open."), says("The door is open."))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        here.devices["desk"].executor = LocalExecutor([])
        await start(here, pi=model, desk=desk)
        await ask(of_run(here, Flow()), agent_id="pi", query="See to the desk.")
        assert desk.requests == [], "it has no tool `look`: its model would have been asked"
        for refused in results(model.requests[2]):
            assert refused.error is ErrorKind.PERMISSION_DENIED
            assert "needs a person's approval" in refused.text


async def test_no_edge_is_twice_on_a_path_and_the_last_one_passes_nothing_on(
    tmp_path: Path,
) -> None:
    first = Scripted(calls(edge_call("desk", query="Go on.")), says("First."))
    second = Scripted(
        calls(edge_call("*", action="mark", params={"text": "all but the path"})),
        calls(edge_call("attic", query="Go on.")),
        says("Second."),
    )
    third = Scripted(says("Third."))
    async with open_fleet(tmp_path, "pi", "desk", "attic", start=False) as here:
        await start(here, pi=first, desk=second, attic=third)
        result = await ask(of_run(here), agent_id="pi", query="Go on.")
        assert result.text == "First."
        assert here.marks.made == ["all but the path"], "only the attic is left"
        assert third.requests[0].tools == ("mark", "hold", "look"), "three hops are enough"
        assert "edge_call" in second.requests[0].tools
        (made,) = result.details["calls"]
        assert [inner["path"] for inner in made["calls"]] == [["pi", "desk"], ["pi", "desk"]]


async def test_only_the_edge_that_was_asked_can_call_and_only_while_it_answers(
    tmp_path: Path,
) -> None:
    model = Scripted(calls(("hold", {"text": "a"})), says("Held."))
    async with (
        open_fleet(tmp_path, "pi", "desk", start=False) as here,
        BrokerListener(here.broker) as ear,
    ):
        await start(here, pi=model)
        request_id = new_id()
        pipeline = of_run(here)
        asking = asyncio.create_task(ask(pipeline, request_id, agent_id="pi", query="Hold a."))
        await here.marks.waiting.wait()
        forged = NestedCall(request_id, 1, "edge_call", mark("desk", "forged")[1])
        dropped = here.orchestrator.nested_calls.counts
        _publish(here, forged, "desk")
        await until(lambda: dropped["no open prompt"] == 1)
        _publish(here, NestedCall(request_id, 1, "edge_call", mark("pi", "back")[1]), "pi")
        words = b"is already on the path of this call: pi"
        await until(lambda: any(words in message.payload for message in ear.heard))
        too_many = MAX_NESTED_CALLS + 1
        _publish(here, NestedCall(request_id, too_many, "edge_call", mark("desk", "c")[1]), "pi")
        words = b"calls at most"
        await until(lambda: any(words in message.payload for message in ear.heard))
        here.marks.gate.set()
        assert (await asking).text == "Held."
        _publish(here, forged, "pi")
        await until(lambda: dropped["no open prompt"] == 2)
        assert here.marks.made == ["a"]


async def test_calls_end_with_the_prompt_that_they_belong_to(tmp_path: Path) -> None:
    model = Scripted(calls(edge_call("desk", action="hold", params={"text": "a"})), says("never"))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        await start(here, pi=model)
        asking = asyncio.create_task(ask(of_run(here), agent_id="pi", query="Hold a."))
        await here.marks.waiting.wait()
        asking.cancel()
        await asyncio.wait([asking])
        desk = here.devices["desk"].edge
        assert desk is not None
        await until(lambda: not desk.calls.live)


async def test_a_nested_call_runs_once_though_the_orchestrator_is_restarted(
    tmp_path: Path,
) -> None:
    model = Scripted(calls(edge_call("desk", action="hold", params={"text": "a"})), says("Held."))
    async with open_fleet(tmp_path, "pi", "desk", start=False) as here:
        await start(here, pi=model)
        request_id = new_id()
        asking = asyncio.create_task(ask(of_run(here), request_id, agent_id="pi", query="Hold."))
        here.asking.add(asking)
        await here.marks.waiting.wait()
        await here.restart()
        await here.wait_online("pi", "desk")
        again = asyncio.create_task(
            ask(of_run(here), request_id, resumed=True, agent_id="pi", query="Hold.")
        )
        await until(lambda: request_id in here.orchestrator.nested_calls.open_prompts)
        here.marks.gate.set()
        assert (await again).text == "Held."
        assert results(model.requests[1])[0].text == "held a"
        assert here.marks.made == ["a"]


def test_results_need_a_grant() -> None:
    assert "nested_result" in QUICK_COMMANDS.keys() - UNSIGNED_COMMANDS


def _publish(here: FleetHarness, call: NestedCall, sender: str) -> None:
    report = Report(sender, "sensor", ReportType.CALL, as_payload(call))
    here.publish_as_edge(TopicKind.REPORTS, encode(report), sender)

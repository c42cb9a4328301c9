"""One run through the whole house as one trace: a real broker, a real edge, a real collector."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.tracing import trace_id_of
from tests.support.command_line import reply, shell
from tests.support.otlp_collector import CLIENT, INTERNAL, SERVER, Collector, Span, collector
from tests.support.up_process import SETTINGS, UpProcess, ok, start_run, up_process, wait_for_state

SECRET = "s3cr3t-canary-8842-value"
COMMAND = f"echo password={SECRET}"
CALLS = json.dumps({"agent_id": "local", "action": "bash", "params": {"command": COMMAND}})
ASKED = f"call edge_call {CALLS}\nsay Das sind Worte der Antwort"
CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Tree(Struct, frozen=True):
    """The spans of a trace, to be asked for by name."""

    spans: list[Span]

    def one(self, name: str) -> Span:
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, f"{name}: {[span.name for span in self.spans]}"
        return found[0]


def traced(up: UpProcess, traces: Collector, **more: str) -> None:
    up.shell.env.update({**traces.env, **more})


def is_within(inner: Span, outer: Span) -> bool:
    return outer.start <= inner.start <= inner.end <= outer.end


async def test_a_run_with_a_call_on_an_edge_is_one_trace(tmp_path: Path) -> None:
    async with collector() as traces, up_process(tmp_path) as up:
        traced(up, traces)
        up.configure()
        client = await up.start(edge=True)
        await up.wait_online(client)
        run_id = await start_run(client, ASKED)
        await wait_for_state(client, run_id)
        await traces.until(7)
        await up.stop()
        traces.write(tmp_path / "trace.jsonl")
    lines = (tmp_path / "trace.jsonl").read_bytes().splitlines()
    tree = Tree([msgspec.json.decode(line, type=Span) for line in lines])

    run, first, second = tree.one("invoke_agent evoclaw"), tree.one("turn 1"), tree.one("turn 2")
    call, there = tree.one("execute_tool edge_call"), tree.one("execute_tool bash")
    chats = [span for span in tree.spans if span.name == "chat qwen3-scripted"]
    assert len(tree.spans) == 7
    assert {span.trace_id for span in tree.spans} == {f"{trace_id_of(run_id):032x}"}
    assert run.parent_id == ""
    assert {first.parent_id, second.parent_id} == {run.span_id}
    assert [chat.parent_id for chat in chats] == [first.span_id, second.span_id]
    assert call.parent_id == first.span_id
    assert there.parent_id == call.span_id
    assert {run.kind, first.kind, second.kind, call.kind} == {INTERNAL}
    assert {chat.kind for chat in chats} == {CLIENT}
    assert there.kind == SERVER
    inside = [(there, call), (call, first), (chats[0], first), (chats[1], second)]
    for inner, outer in [*inside, (first, run), (second, run)]:
        assert is_within(inner, outer), f"{inner.name} in {outer.name}"
    assert chats[0].end <= call.start and first.end <= second.start
    _check_words(run_id, run, chats, call, there)
    assert not any(span.failed for span in tree.spans)
    for secret in (SECRET, "echo password", "Worte der Antwort"):
        assert secret.encode() not in traces.raw


def _check_words(run_id: str, run: Span, chats: list[Span], call: Span, there: Span) -> None:
    said = run.attributes
    assert said["gen_ai.operation.name"] == "invoke_agent"
    assert said["gen_ai.agent.name"] == "evoclaw"
    assert said["evoclaw.run_id"] == run_id
    assert said["evoclaw.stop"] == "completed"
    assert (said["evoclaw.turns"], said["evoclaw.calls"]) == (2, 1)
    assert said["gen_ai.usage.input_tokens"] == 20
    for chat, finish in zip(chats, ("tool_call", "stop"), strict=True):
        assert chat.attributes["gen_ai.operation.name"] == "chat"
        assert chat.attributes["gen_ai.provider.name"] == "vllm"
        assert chat.attributes["gen_ai.request.model"] == "qwen3-scripted"
        assert chat.attributes["gen_ai.response.model"] == "qwen3-scripted"
        assert chat.attributes["gen_ai.response.finish_reasons"] == [finish]
        assert chat.attributes["gen_ai.usage.output_tokens"] == 5
    assert call.attributes["gen_ai.tool.name"] == "edge_call"
    assert call.attributes["gen_ai.tool.type"] == "function"
    assert call.attributes["gen_ai.tool.call.id"]
    assert call.attributes["evoclaw.verdict"] == "allow"
    assert call.attributes["evoclaw.agent_id"] == "local"
    assert there.attributes["evoclaw.agent_id"] == "local"
    assert there.attributes["evoclaw.outcome"] == "success"
    assert there.attributes["evoclaw.isolation"]
    assert there.attributes["evoclaw.request_id"] == call.attributes["evoclaw.request_id"]
    assert (run.resource["service.name"], there.resource["service.name"]) == (
        "evoclaw",
        "evoclaw-edge",
    )


async def test_a_run_joins_the_trace_of_its_caller_and_a_sub_run_nests_below(
    tmp_path: Path,
) -> None:
    task = {"description": "a part", "prompt": "say done"}
    async with collector() as traces, up_process(tmp_path) as up:
        traced(up, traces, OTEL_SERVICE_NAME="our-brain")
        up.configure()
        client = await up.start()
        parent = f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"
        answer = await client.post(
            "/v1/runs",
            {"message": f"call task {json.dumps(task)}\nsay all done"},
            traceparent=parent,
        )
        await wait_for_state(client, str(ok(answer)["run_id"]))
        spans = await traces.until(9)
    above = next(span for span in spans if span.parent_id == CALLER_SPAN)
    call = Tree(spans).one("execute_tool task")
    below = next(span for span in spans if span.parent_id == call.span_id)
    assert above.name == below.name == "invoke_agent evoclaw"
    assert {span.trace_id for span in spans} == {CALLER_TRACE}
    assert {span.resource["service.name"] for span in spans} == {"our-brain"}
    assert below.attributes["evoclaw.run_id"] != above.attributes["evoclaw.run_id"]


async def test_a_waiting_run_continues_its_trace_in_another_process(tmp_path: Path) -> None:
    async with collector() as traces, up_process(tmp_path) as up:
        traced(up, traces)
        up.configure(SETTINGS.replace('"full"', '"supervised"'))
        client = await up.start(edge=True)
        await up.wait_online(client)
        run_id = await start_run(client, ASKED)
        await wait_for_state(client, run_id, "waiting")
        await up.stop()
        await traces.until(3)
        client = await up.start(edge=True)
        await up.wait_online(client)
        waiting = ok(await client.get("/v1/approvals"))["items"]
        ok(await client.post(f"/v1/approvals/{waiting[0]['id']}/answer", {"decision": "once"}))
        await wait_for_state(client, run_id)
        await up.stop()
        spans = await traces.until(9)
    first, second = [span for span in spans if span.name == "invoke_agent evoclaw"]
    assert {span.trace_id for span in spans} == {f"{trace_id_of(run_id):032x}"}
    assert first.attributes["evoclaw.stop"] == "waiting"
    assert second.attributes["evoclaw.resumed"] is True
    assert second.links == [first.span_id]
    call, there = Tree(spans).one("execute_tool edge_call"), Tree(spans).one("execute_tool bash")
    assert call.attributes["evoclaw.approval"] == "once"
    assert there.parent_id == call.span_id


async def test_a_run_at_the_terminal_is_traced(tmp_path: Path) -> None:
    answers = (reply("", ("read", {"path": "a.txt"})), reply("It says hello."))
    async with collector() as traces, shell(tmp_path, *answers) as here:
        (here.workspace / "a.txt").write_text("hello\n")
        here.env.update(traces.env)
        ran = await here.type("run", "what does a.txt say?")
        spans = traces.sorted
    assert (ran.code, ran.out) == (0, "It says hello.\n")
    names = [
        "invoke_agent",
        "turn 1",
        "chat qwen3-test",
        "execute_tool read",
        "turn 2",
        "chat qwen3-test",
    ]
    assert sorted(span.name for span in spans) == sorted(names)
    assert {span.trace_id for span in spans} == {spans[0].trace_id}


async def test_an_unsupported_otlp_protocol_is_an_error_before_the_run_starts(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path) as here:
        here.env.update({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        ran = await here.type("run", "what does a.txt say?")
    assert ran.code != 0
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'" in ran.err
    assert "Traceback" not in ran.err

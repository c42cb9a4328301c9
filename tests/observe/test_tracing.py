"""Spans out of records, as a collector gets them: judged by what came over its socket."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv.attributes import error_attributes, service_attributes

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import CallStarted, Record, ReplyRetried, RunFinished, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Reply, Usage, user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import AllowAll, Policy, Ports, Progress, Provider
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.core.tools import Call, Effect
from evoclaw.core.tracing import (
    TraceContext,
    call_span,
    current_trace,
    current_traceparent,
    enter_run_trace,
    read_traceparent,
    set_trace,
    span_id_of,
    trace_id_of,
    use_trace,
)
from evoclaw.executors.call_steps import TraceCall
from evoclaw.observe.tracing import attributes as attrs
from evoclaw.observe.tracing import spans
from evoclaw.observe.tracing.attributes import TracedRun
from evoclaw.observe.tracing.tracing import (
    CAPTURE_VARIABLE,
    FINAL_EXPORT_TIMEOUT_S,
    Tracing,
    configured_exporters,
    open_tracing,
)
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.providers.registry import ENDPOINTS
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import DenyingPolicy, Table, echo, fail, tool
from tests.support.otlp_collector import Collector, Span, collector

SECRET = "s3cr3t-canary-8842-value"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REGISTRY: Any = importlib.import_module(
    "opentelemetry.semconv._incubating.attributes.gen_ai_attributes"
)
COOK = TracedRun("cook", "kitchen", "acme")


@asynccontextmanager
async def tracing_to(
    traces: Collector, patch: pytest.MonkeyPatch, **more: str
) -> AsyncGenerator[Tracing]:
    """Tracing as a process opens it: by variables alone."""
    env = {**traces.env, **more}
    for name, value in env.items():
        patch.setenv(name, value)
    async with open_tracing(env, "evoclaw") as tracing:
        assert tracing is not None
        yield tracing


async def drive(
    tracing: Tracing,
    provider: Provider,
    table: Table | None = None,
    *,
    policy: Policy | None = None,
    run_id: str = "run",
    state: RunState | None = None,
    before: Sequence[Record] = (),
    until: type | None = None,
) -> list[Record]:
    """Run to the end, or until something happened."""
    state = state or new_run((user("do it"),), run_id)
    echoing = Table((tool("echo", effect=Effect.READ, resources=()), echo))
    executor = Pipeline([table or echoing], [TraceCall()])
    ports = Ports(provider, executor, policy or AllowAll())
    bus = Bus(state.run_id, [tracing.sink(COOK, before)], seq=before[-1].seq if before else 0)
    records: list[Record] = []
    stream = recorded(run_loop(state, ports, LoopSettings()), bus)
    async for record in stream:
        records.append(record)
        if until is not None and isinstance(record.event, until):
            await stream.aclose()
            break
    assert not bus.failures, bus.failures
    return records


def named(spans: Sequence[Span], name: str) -> Span:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, [span.name for span in spans]
    return found[0]


def words_of(module: object) -> set[str]:
    values = [value for name, value in vars(module).items() if name.isupper()]
    return {value for value in values if isinstance(value, str)}


def test_every_attribute_name_is_in_the_opentelemetry_registry() -> None:
    ours = words_of(attrs) | words_of(spans)
    known = words_of(REGISTRY) | words_of(error_attributes) | words_of(service_attributes)
    standard = {one for one in ours if one.startswith(("gen_ai.", "error.", "service."))}
    assert len(standard) > 20
    assert standard <= known
    assert {one for one in ours if one.startswith("evoclaw.")}.isdisjoint(known)
    source = inspect.getsource(REGISTRY)
    for name in dir(REGISTRY):
        if name.startswith("GEN_AI_") and getattr(REGISTRY, name) in standard:
            # The registry moved to a place of its own; what was renamed or dropped says so.
            about = source.partition(f"{name}: Final")[2].split('"""')[1].strip()
            assert not about.startswith(("Deprecated: Re", "Deprecated: Obs")), name


def test_every_operation_and_provider_name_is_in_the_opentelemetry_registry() -> None:
    operations = {one.value for one in REGISTRY.GenAiOperationNameValues}
    ours = {attrs.INVOKE_AGENT, attrs.CHAT, attrs.EXECUTE_TOOL}
    assert ours <= operations
    vendors = {one.value for one in REGISTRY.GenAiProviderNameValues}
    unknown_there = {"ollama", "openrouter", "together", "lmstudio", "vllm", "llamacpp"}
    for prefix in set(ENDPOINTS) - unknown_there:
        assert attrs.model_of(f"{prefix}/m")[attrs.PROVIDER] in vendors


async def test_denied_unknown_and_failed_calls_are_marked_on_their_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table((tool("echo"), echo), (tool("fail"), fail))
    asked = calls(("echo", {}), ("fail", {}), ("\x1b[31mmade\nup" + "x" * 500, {}))
    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            provider = Scripted(asked, says("done"))
            await drive(tracing, provider, table, policy=DenyingPolicy(frozenset({"echo"})))
        spans = traces.sorted
    denied, failed = named(spans, "execute_tool echo"), named(spans, "execute_tool fail")
    made_up = next(span for span in spans if "made" in span.name)
    assert denied.attributes["evoclaw.verdict"] == "deny"
    assert denied.attributes["evoclaw.verdict.code"] == "no"
    assert denied.attributes["error.type"] == "permission_denied"
    assert failed.attributes["evoclaw.verdict"] == "allow"
    assert failed.attributes["evoclaw.outcome"] == failed.attributes["error.type"]
    assert made_up.attributes["error.type"] == "not_found"
    assert made_up.name.isprintable() and len(made_up.name) < 200
    assert all(span.failed for span in (denied, failed, made_up))
    run = named(spans, "invoke_agent cook")
    assert not run.failed
    assert run.attributes["gen_ai.conversation.id"] == "kitchen"
    assert run.attributes["evoclaw.tenant"] == "acme"


class Flaky(Scripted):
    """Refuses once before it answers, or for good."""

    for_good = False

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        yield ReplyRetried("overloaded", f"no: {SECRET}", 1, 0.5)
        if self.for_good:
            kind = ProviderErrorKind.SERVER_ERROR
            raise ProviderError(kind, f"no: {SECRET}", usage=Usage(7, 0))
        async for piece in super().stream(request):
            yield piece


async def test_retries_are_span_events_and_a_failed_reply_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Flaky(says("never"))
    lost.for_good = True
    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            await drive(tracing, Flaky(says("done")), run_id="r1")
            await drive(tracing, lost, run_id="r2")
        spans = traces.sorted
    good, bad = (span for span in spans if span.name.startswith("chat "))
    retry = {"error.type": "overloaded", "evoclaw.attempt": 1, "evoclaw.wait_s": 0.5}
    assert good.events == bad.events == [("evoclaw.retried", retry)]
    assert not good.failed
    assert bad.failed and bad.attributes["error.type"] == "server_error"
    assert bad.attributes["gen_ai.usage.input_tokens"] == 7
    runs = [span for span in spans if span.name == "invoke_agent cook"]
    assert [run.attributes.get("error.type") for run in runs] == [None, "error"]
    assert SECRET.encode() not in traces.raw


async def test_concurrent_calls_each_have_their_own_span_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, str] = {}

    async def note(call: Call, progress: Progress) -> str:
        await asyncio.sleep(0)
        seen[call.id] = current_traceparent()
        return "noted"

    table = Table((tool("note", effect=Effect.READ, resources=()), note))
    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            asked = calls(("note", {}), ("note", {}), ("note", {}))
            await drive(tracing, Scripted(asked, says("done")), table)
            assert current_trace() is None
        spans = [span for span in traces.spans if span.name == "execute_tool note"]
    assert len({span.span_id for span in spans}) == 3
    for span in spans:
        parent = f"00-{span.trace_id}-{span.span_id}-01"
        assert seen[span.attributes["gen_ai.tool.call.id"]] == parent


async def test_an_interrupted_run_is_exported_and_its_resumed_call_has_one_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            script = Scripted(calls(("echo", {})))
            before = await drive(tracing, script, until=CallStarted)
        assert [span.attributes["evoclaw.cut_off"] for span in traces.spans if "chat" not in
                span.name] == [True, True]  # fmt: skip
        async with tracing_to(traces, monkeypatch) as tracing:
            await drive(tracing, Scripted(says("done")), state=fold(before), before=before)
        spans = traces.sorted
    first, second = (span for span in spans if span.name == "invoke_agent cook")
    assert second.links == [first.span_id]
    assert {span.trace_id for span in spans} == {f"{trace_id_of('run'):032x}"}
    call = named(spans, "execute_tool echo")
    began = next(record for record in before if isinstance(record.event, CallStarted))
    assert isinstance(began.event, CallStarted)
    assert call.span_id == f"{span_id_of(call_span(began.event.request_id)):016x}"
    assert call.start == int(began.at * 1e9)
    assert call.end <= second.end


async def test_content_is_captured_only_if_enabled_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = {"password": SECRET, "text": "sugar"}
    asked = calls(("echo", parameters), text="I shall stir")

    async def run(tracing: Tracing, run_id: str) -> None:
        state = new_run((user(f"bake a cake, password={SECRET}"),), run_id)
        await drive(tracing, Scripted(asked, says("eat it")), state=state)

    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            await run(tracing, "quiet")
        for word in (b"cake", b"sugar", b"stir", b"eat it", SECRET.encode()):
            assert word not in traces.raw
        traces.spans.clear()
        async with tracing_to(traces, monkeypatch, **{CAPTURE_VARIABLE: "true"}) as tracing:
            await run(tracing, "loud")
        spans = traces.sorted
    assert SECRET.encode() not in traces.raw
    chat = next(span for span in spans if span.name.startswith("chat"))
    said = json.loads(chat.attributes["gen_ai.input.messages"])
    assert said[0]["role"] == "user" and "bake a cake" in said[0]["parts"][0]["content"]
    replied = json.loads(chat.attributes["gen_ai.output.messages"])[0]
    assert replied["finish_reason"] == "tool_call"
    assert [part["type"] for part in replied["parts"]] == ["text", "tool_call"]
    call = named(spans, "execute_tool echo")
    assert json.loads(call.attributes["gen_ai.tool.call.arguments"])["text"] == "sugar"
    assert "gen_ai.tool.call.result" in call.attributes


async def test_an_unsampled_caller_produces_no_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            with use_trace(read_traceparent(PARENT[:-2] + "00")):
                await drive(tracing, Scripted(says("done")), run_id="quiet")
            with use_trace(read_traceparent(PARENT)):
                await drive(tracing, Scripted(says("done")), run_id="loud")
        spans = traces.sorted
    runs = [span for span in spans if "evoclaw.run_id" in span.attributes]
    assert [run.attributes["evoclaw.run_id"] for run in runs] == ["loud"]
    assert f"00-{runs[0].trace_id}-{runs[0].parent_id}-01" == PARENT
    assert {span.trace_id for span in spans} == {runs[0].trace_id}


@pytest.mark.parametrize("hangs", [False, True])
async def test_an_unreachable_collector_delays_no_run(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    async with collector() as traces:
        traces.answers.clear()
        if not hangs:
            traces.port = 9  # nobody is there
        began = time.monotonic()
        async with tracing_to(traces, monkeypatch) as tracing:
            for number in range(20):
                records = await drive(tracing, Scripted(says("done")), run_id=f"r{number}")
                assert isinstance(end := records[-1].event, RunFinished)
                assert end.stop is StopReason.COMPLETED
            ran = time.monotonic() - began
        closed = time.monotonic() - began - ran
    assert ran < 5
    assert closed < FINAL_EXPORT_TIMEOUT_S + 2


async def test_log_lines_of_a_run_contain_the_trace_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("evoclaw.tests.kitchen")

    async def warn(call: Call, progress: Progress) -> str:
        log.warning("the milk boils over")
        return "sorry"

    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        async with collector() as traces:
            async with tracing_to(traces, monkeypatch) as tracing:
                script = Scripted(calls(("warn", {})), says("done"))
                await drive(tracing, script, Table((tool("warn"), warn)))
                log.warning("nobody runs")
            call = named(traces.spans, "execute_tool warn")
        assert not root.handlers
    finally:
        root.handlers = handlers
    lines = capsys.readouterr().err.splitlines()
    assert f"the milk boils over trace_id={call.trace_id} span_id={call.span_id}" in lines
    assert "nobody runs" in lines


@pytest.mark.parametrize(
    ("env", "kinds"),
    [
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4318/v1/traces"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp")),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}, ()),
    ],
)
def test_only_the_standard_otel_variables_enable_tracing(
    env: dict[str, str], kinds: tuple[str, ...]
) -> None:
    assert tuple(configured_exporters(env)) == kinds


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "otlp, console or none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
    ],
)
def test_unsupported_otel_settings_are_errors(env: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configured_exporters(env)


async def test_without_the_otel_packages_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "evoclaw.observe.tracing.spans", None)
    monkeypatch.delitem(sys.modules, "evoclaw.observe.tracing.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(ConfigError, match=r"evoclaw\[otel\]"):
        async with open_tracing({"OTEL_TRACES_EXPORTER": "otlp"}, "evoclaw"):
            pass


@pytest.mark.process
def test_without_tracing_no_opentelemetry_module_is_loaded(tmp_path: Path) -> None:
    code = """
import asyncio, pathlib, sys
from evoclaw.config import write_agent_toml
from evoclaw.wiring.edge import open_edge
from evoclaw.wiring.governance import open_governance
home = pathlib.Path(sys.argv[1])
env = {"HOME": str(home), "EVOCLAW_HOME": str(home / "brain")}
values = {"agent_id": "pi", "workspace": str(home / "work"), "data": str(home / "pi"),
          "broker": {"url": "mqtt://127.0.0.1:1"}}
write_agent_toml(home / "agent.toml", values)
async def main():
    async with open_governance(env) as governance, open_edge(home / "agent.toml", env) as edge:
        assert governance.tracing is None
asyncio.run(main())
heavy = ("opentelemetry", "google.protobuf", "requests")
print([name for name in sys.modules if name.startswith(heavy)])
"""
    command = (sys.executable, "-c", code, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@given(st.text(max_size=80) | st.from_regex(r"[0-9a-f-]{50,60}", fullmatch=True))
def test_a_traceparent_round_trips_or_is_rejected(text: str) -> None:
    place = read_traceparent(text)
    assert place is None or read_traceparent(place.traceparent) == place


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (PARENT, True),
        ("cc" + PARENT[2:] + "-what-the-future-may-say", True),
        (PARENT + "-more", False),
        ("ff" + PARENT[2:], False),
        (PARENT.upper(), False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        (PARENT + "\n", False),
        ("", False),
    ],
)
def test_an_invalid_traceparent_starts_a_new_trace(text: str, good: bool) -> None:
    with use_trace(None):
        enter_run_trace("run", text)
        place = current_trace()
        assert place is not None
        assert (place.trace_id == int(PARENT[3:35], 16)) is good
        assert current_traceparent() == (PARENT if good else "")


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_span_context_round_trips_as_a_traceparent(trace: int, span: int, sampled: bool) -> None:
    place = TraceContext(trace, span, sampled)
    assert read_traceparent(place.traceparent) == place


def test_the_request_digest_ignores_the_traceparent() -> None:
    first, again = RunRequest("bake", traceparent=PARENT), RunRequest("bake", traceparent="")
    assert first.digest() == again.digest() == RunRequest("bake").digest()
    assert first.digest() != RunRequest("cook").digest()


def test_the_current_span_context_is_restored_on_exit() -> None:
    with use_trace(TraceContext(1, 2)):
        set_trace(TraceContext(3, 4))
    assert current_trace() is None


async def test_a_chat_span_has_usage_model_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as traces:
        async with tracing_to(traces, monkeypatch) as tracing:
            reply = Reply("half", usage=Usage(11, 3, 5, 2), model="scripted-2026", cost=0.25)
            await drive(tracing, Scripted(reply))
        chat = next(span for span in traces.spans if span.name.startswith("chat"))
    assert chat.attributes["gen_ai.usage.cache_read.input_tokens"] == 5
    assert chat.attributes["gen_ai.usage.cache_creation.input_tokens"] == 2
    assert chat.attributes["gen_ai.response.model"] == "scripted-2026"
    assert chat.attributes["evoclaw.cost"] == 0.25

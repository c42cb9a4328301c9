from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.encoding import json_digest
from evoclaw.core.labels import Label
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.tools import Tool
from evoclaw.edge.joining import JoinReply
from evoclaw.orchestrator.fleet.join_handler import JoinRequest
from evoclaw.transport.wire import (
    Advert,
    AdvertisedTool,
    CallProgress,
    Command,
    Heartbeat,
    Hello,
    ModelPush,
    ModelPushStatus,
    NestedCall,
    NestedResult,
    OutputChunk,
    Report,
    ReportType,
    Status,
    ToolPayload,
    Welcome,
    WireError,
    as_payload,
    encode,
    read_advert,
    read_command,
    read_report,
    read_status,
    tool_hash,
)

GOLDEN = Path(__file__).parent / "golden"
AGENT, WHEN = "living-room-pi", 1739635200.0
READERS: list[Callable[[bytes], object]] = [
    read_command,
    partial(read_report, AGENT),
    partial(read_status, AGENT),
    partial(read_advert, AGENT),
]


def report(kind: ReportType, payload: JSON) -> Report:
    return Report(AGENT, "monitor", kind, payload, WHEN)


WRITTEN: dict[str, Command | Report | Status | Advert] = {
    "command_tool": Command(
        "tool",
        as_payload(ToolPayload("bash", {"command": "vcgencmd measure_temp"}, 30000)),
        "0123456789abcdef0123456789abcdef.1.0.1",
        expires_at=WHEN,
        run_id="0123456789abcdef0123456789abcdef",
        epoch=1,
        args_sha256=json_digest({"command": "vcgencmd measure_temp"}),
        queue_ttl_ms=60000,
        label=Label(untrusted=True, sources=("webfetch",)),
        grant="eyJ9.c2ln",
    ),
    "command_prompt": Command("prompt", {"prompt": "How warm is it?"}, "r.1.0.1", hops=1),
    "command_prompt_with_tools": Command(
        "prompt",
        {"prompt": "How warm is the shed?", "tools": [{"name": "edge_call"}]},
        "r.1.0-garage#1.1",
        hops=2,
        path=["garage"],
    ),
    "command_nested_result": Command(
        "nested_result",
        as_payload(NestedResult("r.1.0.1", 1, {"status": "success", "result": "12 °C"})),
        "nested-1",
        grant="eyJ9.c2ln",
    ),
    "command_model_push": Command(
        "model_push",
        as_payload(
            ModelPush(
                "chunk",
                sha256(b"the model").hexdigest(),
                offset=4,
                data="bW9kZWw=",
                data_sha256=sha256(b"model").hexdigest(),
            )
        ),
        "model_push-1",
        queue_ttl_ms=30000,
        grant="eyJ9.c2ln",
    ),
    "command_model_push_start": Command(
        "model_push",
        as_payload(ModelPush("start", sha256(b"the model").hexdigest(), "tiny", 9)),
        "model_push-0",
        queue_ttl_ms=30000,
        grant="eyJ9.c2ln",
    ),
    "command_traced": Command(
        "tool",
        as_payload(ToolPayload("bash", {"command": "uptime"}, 30000)),
        "r.1.0.1",
        run_id="r",
        epoch=1,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        grant="eyJ9.c2ln",
    ),
    "command_cancel": Command("cancel", {"request_id": "r.1.0.1"}, "r.1.0.1.cancel"),
    "command_ping": Command("ping", {}, "p1"),
    "command_hello": Command("hello"),
    "command_joined": Command(
        "joined",
        as_payload(
            JoinReply("n1", "the-new-password", "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg")
        ),
    ),
    "command_welcome": Command(
        "welcome", as_payload(Welcome("b1", 2, WHEN, 3600.5, acks=["r.1.0.1"], cancels=["r.2.0.1"]))
    ),
    "command_welcome_signed": Command(
        "welcome", as_payload(Welcome("b1", 2, WHEN, 3600.5)), grant="eyJ9.c2ln"
    ),
    "command_result_ack_signed": Command(
        "result_ack", {"request_ids": ["r.1.0.1"]}, grant="eyJ9.c2ln"
    ),
    "command_result_ack": Command("result_ack", {"request_ids": ["r.1.0.1"]}),
    "report_result": report(
        ReportType.RESULT,
        {
            "status": "success",
            "tool": "bash",
            "result": "temp=45.6°C",
            "stderr": "",
            "exit_code": 0,
            "elapsed_ms": 123,
            "request_id": "r.1.0.1",
        },
    ),
    "report_model_push": report(
        ReportType.RESULT,
        {
            "status": "success",
            "result": as_payload(ModelPushStatus("receiving", have_bytes=9)),
            "request_id": "model_push-1",
        },
    ),
    "report_error": report(
        ReportType.ERROR,
        {
            "status": "error",
            "tool": "bash",
            "error": "Command timed out after 30000ms",
            "error_type": "timeout",
            "request_id": "r.1.0.1",
        },
    ),
    "report_chunk": report(ReportType.CHUNK, as_payload(OutputChunk("r.1.0.1", 3, "half of it"))),
    "report_progress": report(ReportType.PROGRESS, as_payload(CallProgress("r.1.0.1", "accepted"))),
    "report_heartbeat": report(
        ReportType.HEARTBEAT, as_payload(Heartbeat("b1", 2, 1, 0, 103, 12.5, 31.0, 3600.0))
    ),
    "report_hello": report(
        ReportType.HELLO,
        as_payload(
            Hello(
                "b1",
                2,
                "",
                ["r.2.0.1"],
                ["r.1.0.1"],
                room=103,
                journal="j1",
                heartbeat_s=30.0,
                asked=3600.5,
            )  # fmt: skip
        ),
    ),
    "report_join": report(
        ReportType.JOIN, as_payload(JoinRequest("one-time-token", "n1", key="A6EHv_POEL4dcN0Y50vA"))
    ),
    "report_call": report(
        ReportType.CALL,
        as_payload(NestedCall("r.1.0.1", 1, "edge_call", {"agent_id": "shed"}, 60000.0)),
    ),
    "report_metric": report(ReportType.METRIC, {"name": "cpu_temperature", "value": 45.6}),
    "status_online": Status(AGENT, "online", "b1", 2),
    "status_offline": Status(AGENT, "offline", "b1", 2),
    "advert": Advert(
        "alex-eye",
        "Pi sensor node — temperature, CPU/disk stats, camera",
        agent_type="monitor",
        os="linux",
        arch="aarch64",
        version="0.1.0",
        llm=True,
        tools=[AdvertisedTool("bash", "1", "0011223344556677")],
        genome="9f86d081884c7d65",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_wire_message_is_encoded_as_documented_and_round_trips(name: str) -> None:
    message = WRITTEN[name]
    expected = (GOLDEN / f"{name}.json").read_bytes()
    written = msgspec.json.format(encode(message), indent=2) + b"\n"
    assert written.decode() == expected.decode()
    match message:
        case Command():
            assert read_command(expected) == message
        case Report():
            assert read_report(AGENT, expected) == message
        case Status():
            assert read_status(AGENT, expected) == message
        case Advert():
            assert read_advert("alex-eye", expected) == message


def older(name: str) -> bytes:
    return (GOLDEN / "read" / f"{name}.json").read_bytes()


def test_a_command_of_an_older_orchestrator_is_read() -> None:
    command = read_command(older("command_tool"))
    assert command.command == "tool"
    assert command.request_id == "tool-1739635200000"
    assert command.payload["parameters"] == {"command": "vcgencmd measure_temp"}
    assert command.expires_at is None


def test_a_request_id_inside_the_payload_is_accepted() -> None:
    text = older("command_tool_inner_id")
    assert read_command(text).request_id == "req-1739635200000000000"


def test_a_bare_result_is_read_as_its_agents_report() -> None:
    report = read_report(AGENT, older("bare_result"))
    assert (report.agent_id, report.report_type) == (AGENT, ReportType.RESULT)
    assert report.payload["result"] == "temp=45.6°C"


def test_a_bare_error_is_read_as_its_agents_report() -> None:
    report = read_report(AGENT, older("bare_error"))
    assert report.report_type is ReportType.ERROR
    assert report.payload["error_type"] == "timeout"


def test_an_advert_of_an_older_edge_is_read() -> None:
    advert = read_advert("alex-eye", older("advert"))
    assert advert.capabilities == "Pi sensor node — temperature, CPU/disk stats, camera"
    assert advert.tools == []


def test_times_are_parsed_from_numbers_or_iso_8601_strings() -> None:
    text = b'{"command":"ping","request_id":"x","expires_at":"2025-02-15T16:00:00Z"}'
    assert read_command(text).expires_at == WHEN
    with pytest.raises(WireError, match="is not a time"):
        read_command(b'{"command":"ping","request_id":"x","expires_at":"soon"}')


def test_fault_24_extra_fields_are_ignored() -> None:
    assert read_command(b'{"command":"ping","request_id":"x","new":{"deep":[1]}}').command == "ping"


def test_fault_24_another_protocol_version_is_refused_with_range_and_request_id() -> None:
    with pytest.raises(WireError, match="supports 1") as caught:
        read_command(b'{"command":"tool","payload":{"request_id":"r"},"v":2}')
    assert caught.value.kind is ErrorKind.VERSION_MISMATCH
    assert caught.value.request_id == "r"


def test_fault_18_a_report_on_another_agents_topic_is_refused() -> None:
    text = encode(WRITTEN["report_result"])
    with pytest.raises(WireError, match="claims to be"):
        read_report("somebody-else", text)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff\x00", b"[]", b"null", b'"text"', b"{", b"[" * 100_000, b'{"payload":[]}'],
)
def test_garbage_raises_a_wire_error(garbage: bytes) -> None:
    for read in READERS[:2]:
        with pytest.raises(WireError):
            read(garbage)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(["command", "payload", "request_id", "v", "report_type", "status", "x"])


@given(st.dictionaries(KEYS, JSONS, max_size=6))
def test_any_json_object_is_parsed_or_refused(value: JSON) -> None:
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return
    for read in READERS:
        try:
            read(data)
        except WireError:
            continue


def test_a_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
    assert json_digest({"a": 1}) != json_digest({"a": 2})


def test_a_tool_hash_changes_with_the_tools_definition() -> None:
    tool = Tool("t", "does", {"type": "object"})
    assert tool_hash(tool) == tool_hash(Tool("t", "does", {"type": "object"}))
    assert tool_hash(tool) != tool_hash(Tool("t", "does more", {"type": "object"}))

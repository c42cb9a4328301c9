"""Runs as trajectories in Harbor's format; the public models judge them in `make interop`."""

from __future__ import annotations

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import (
    CallFinished,
    Event,
    Prompted,
    Record,
    Replied,
    RunFinished,
    RunStarted,
    StopReason,
    ToolsChanged,
)
from evoclaw.core.messages import (
    ErrorBlock,
    ErrorKind,
    ImageBlock,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    user,
)
from evoclaw.core.profile import Profile
from evoclaw.core.tools import Tool
from evoclaw.observe.trajectories import ATIF_VERSION, to_atif

READ = Tool("read", "Read a file.", {"type": "object"})
EARLIER = (SystemMessage("Be short."), user("Hi"), Reply("Hello."))
ASKED = UserMessage((TextBlock("What is it?"), ImageBlock("image/png", "aGk=")))
CALLS = (ToolCall("a", "read", '{"path": "x"}'), ToolCall("b", "read", "{broken"))
REPLY = Reply(
    "I look.", CALLS, usage=Usage(10, 5, cache_read=3), model="m-1", cost=0.5, reasoning="Hm."
)


def records(*events: Event) -> list[Record]:
    return [Record("run1", seq, 1_700_000_000.0 + seq, event) for seq, event in enumerate(events)]


def test_a_run_is_a_trajectory_with_one_step_for_each_message() -> None:
    broken = ErrorBlock(ErrorKind.INVALID_PARAMS, "not JSON")
    found = to_atif(
        records(
            RunStarted("p/m", (*EARLIER, ASKED), LoopSettings(), Profile()),
            ToolsChanged((READ,)),
            Replied(REPLY),
            CallFinished(ToolResult("a", "read", (TextBlock("a dot"),))),
            CallFinished(ToolResult("b", "read", (broken,), error=ErrorKind.INVALID_PARAMS)),
            Prompted(user("Go on."), "steer"),
            Replied(Reply("A dot.")),
            RunFinished(StopReason.COMPLETED, "A dot.", usage=Usage(20, 9), cost=None),
        ),
        session_id="s1",
    )
    assert (found["schema_version"], found["session_id"]) == (ATIF_VERSION, "s1")
    assert found["trajectory_id"] == "run1"
    assert found["agent"]["model_name"] == "p/m"
    assert found["agent"]["tool_definitions"][0]["function"]["name"] == "read"
    steps = found["steps"]
    assert [step["step_id"] for step in steps] == list(range(1, 8))
    assert [step["source"] for step in steps] == [
        "system", "user", "agent", "user", "agent", "user", "agent",
    ]  # fmt: skip
    assert steps[2]["is_copied_context"] is True
    assert steps[3]["message"] == "What is it?\n[image image/png]"
    made = steps[4]
    assert "is_copied_context" not in made
    assert (made["reasoning_content"], made["model_name"]) == ("Hm.", "m-1")
    assert made["metrics"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 3,
        "cost_usd": 0.5,
    }
    first, second = made["tool_calls"]
    assert first["arguments"] == {"path": "x"}
    assert (second["arguments"], second["extra"]) == ({}, {"malformed_arguments": "{broken"})
    assert made["observation"]["results"] == [
        {"source_call_id": "a", "content": "a dot"},
        {"source_call_id": "b", "content": "not JSON", "extra": {"error": "invalid_params"}},
    ]
    assert found["final_metrics"]["total_completion_tokens"] == 9
    assert "total_cost_usd" not in found["final_metrics"]
    assert found["extra"]["stop"] == "completed"


def test_an_unfinished_run_has_no_final_metrics() -> None:
    found = to_atif(records(RunStarted("p/m", (user("Hi"),), LoopSettings(), Profile())))
    assert "final_metrics" not in found
    assert len(found["steps"]) == 1

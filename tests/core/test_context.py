"""Trimming: the history stays whole, no call loses its result, the task stays in sight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import ContextTrimmed, ReplyEvent, StopReason
from evoclaw.core.history import History
from evoclaw.core.messages import (
    Message,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    UserMessage,
    user,
)
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile
from evoclaw.core.window import plan_trim, trimmed_view
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says
from tests.support.loop import echo_table, run

SMALL = Profile(context_tokens=1_000, max_output_tokens=200)


def conversation(sizes: list[int], width: int = 1) -> History:
    messages: list[Message] = [SystemMessage("be good"), user("the task")]
    for turn, size in enumerate(sizes):
        ids = [f"{turn}.{i}" for i in range(width)]
        messages.append(Reply(f"turn {turn}", tuple(ToolCall(i, "echo") for i in ids)))
        messages += [ToolResult(i, "echo", (TextBlock("x" * size),)) for i in ids]
    return History(messages)


def assert_sound(shown: History) -> None:
    """Every call is followed by its results, every result preceded by its call."""
    open_calls: list[str] = []
    for message in shown:
        if isinstance(message, ToolResult):
            assert open_calls
            assert open_calls.pop(0) == message.call_id
        else:
            assert not open_calls
            if isinstance(message, Reply):
                open_calls = [call.id for call in message.calls]
    assert not open_calls


@given(
    st.lists(st.integers(0, 3_000), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(100, 20_000),
)
def test_trimming_never_splits_a_call_from_its_result_or_drops_the_task(
    sizes: list[int], width: int, room: int
) -> None:
    history = conversation(sizes, width)
    shown = trimmed_view(history, plan_trim(history, 1, room=room), 1)
    assert_sound(shown)
    assert shown[0] == SystemMessage("be good")
    assert user("the task") in list(shown)
    heading = 30  # of the summary, which stands even for turns shorter than itself
    assert shown.size <= max(room, history.size) + heading


def test_older_results_are_elided_before_any_turn_is_dropped() -> None:
    history = conversation([1_000] * 5)
    plan = plan_trim(history, 1, room=3_000)
    assert plan.drop_before == 0
    shown = [m for m in trimmed_view(history, plan, 1) if isinstance(m, ToolResult)]
    assert "left out to save room" in shown[0].text
    assert shown[-1].text == "x" * 1_000


def test_a_result_larger_than_the_window_is_cut_in_the_middle() -> None:
    history = conversation([50_000])
    shown = trimmed_view(history, plan_trim(history, 1, room=2_000), 1)
    assert shown.size < 3_000
    assert "characters left out" in shown[-1].text  # type: ignore[union-attr]


async def test_a_long_run_is_trimmed_and_completes() -> None:
    tiny = Profile(context_tokens=300, max_output_tokens=50)

    def speak(asked: ScriptedRequest) -> Reply:
        if not asked.tools:
            return says("earlier: echoed a lot")
        turn = len(provider.requests)
        return calls(("echo", {"text": str(turn) * 150})) if turn < 20 else says("done")

    provider = Scripted(*[speak] * 40, profile=tiny)
    ran = await run(provider, settings=LoopSettings(max_turns=40))
    assert ran.end.text == "done"
    trims = [event for event in ran.events if isinstance(event, ContextTrimmed)]
    assert trims
    assert any("earlier: echoed a lot" in trim.summary for trim in trims)
    for asked in provider.requests:
        if asked.tools:
            assert_sound(History(asked.messages))
            assert user("do it") in asked.messages
    texts = [m.text for m in ran.state.history if isinstance(m, ToolResult)]
    assert all("left out" not in text for text in texts), "the history itself is whole"


async def test_an_outline_replaces_a_failed_summary() -> None:
    def speak(asked: ScriptedRequest) -> Reply | ProviderError:
        if not asked.tools:
            return ProviderError(ProviderErrorKind.SERVER_ERROR, "down")
        turn = len(provider.requests)
        return calls(("echo", {"text": str(turn) * 200})) if turn < 12 else says("done")

    provider = Scripted(*[speak] * 40, profile=Profile(context_tokens=250, max_output_tokens=50))
    ran = await run(provider, settings=LoopSettings(max_turns=40))
    summaries = [e.summary for e in ran.events if isinstance(e, ContextTrimmed) and e.summary]
    assert summaries
    assert "called echo" in summaries[0]


class Noted:
    """A writer that only notes what it was told."""

    def __init__(self) -> None:
        self.seen: list[Message] = []

    def add(self, message: Message) -> None:
        self.seen.append(message)


def test_each_message_is_encoded_once_per_dialect() -> None:
    history = conversation([1, 1])
    assert len(history.encoded("a", Noted).seen) == 6
    history.append(user("more"))
    assert len(history.encoded("a", Noted).seen) == 7
    assert history.encoded("a", Noted).seen == list(history)
    assert history.encoded("b", Noted).seen == list(history)


@pytest.mark.parametrize("room", [0, 1, -5])
def test_trimming_to_no_room_still_gives_a_valid_view(room: int) -> None:
    history = conversation([100, 100])
    shown = trimmed_view(history, plan_trim(history, 1, room=room), 1)
    assert_sound(shown)
    assert any(isinstance(message, UserMessage) for message in shown)


async def test_a_run_that_fits_is_never_trimmed() -> None:
    ran = await run(Scripted(calls(("echo", {})), says("ok"), profile=SMALL), echo_table())
    assert "ContextTrimmed" not in ran.kinds


async def test_a_run_can_be_cancelled_during_summarisation() -> None:
    deadline = Deadline()

    class Slow(Scripted):
        async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
            if not request.tools:
                asyncio.get_running_loop().call_soon(deadline.cancel)
                await asyncio.Event().wait()
            async for piece in super().stream(request):
                yield piece

    script = [calls(("echo", {"text": str(turn) * 200})) for turn in range(12)]
    provider = Slow(*script, profile=Profile(context_tokens=250, max_output_tokens=50))
    ran = await run(provider, settings=LoopSettings(max_turns=40), deadline=deadline)
    assert ran.end.stop is StopReason.CANCELLED

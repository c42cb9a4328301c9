"""Another message to a run that goes on: it is heard before the run decides whether it is done."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import Prompted, Record, RunFinished, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import UserMessage, user
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.core.replay import Replay
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import echo_table


async def steered(provider: Scripted, said: list[list[str]]) -> list[Record]:
    """Run, while a person says these things, each the next time that the loop listens."""

    def steering() -> Sequence[UserMessage]:
        return [user(text) for text in said.pop(0)] if said else ()

    state = new_run([user("begin")])
    ports = Ports(provider, echo_table(), AllowAll(), steering=steering)
    events = run_loop(state, ports, LoopSettings())
    return [record async for record in recorded(events, Bus(state.run_id))]


async def test_a_steering_message_is_answered_before_the_run_ends() -> None:
    provider = Scripted(says("first answer"), says("and in French: réponse"))
    records = await steered(provider, [[], ["in French, please"]])
    end = records[-1].event
    assert isinstance(end, RunFinished)
    assert (end.stop, end.text, end.turns) == (StopReason.COMPLETED, "and in French: réponse", 2)
    assert [e.why for r in records if isinstance(e := r.event, Prompted)] == ["steer"]


async def test_a_steering_message_waits_for_all_call_results() -> None:
    provider = Scripted(calls(("echo", {"text": "a"})), says("done"))
    await steered(provider, [[], ["also b"]])
    kinds = [type(message).__name__ for message in provider.requests[1].messages]
    assert kinds == ["UserMessage", "Reply", "ToolResult", "UserMessage"]


async def test_a_steered_run_replays_byte_for_byte() -> None:
    provider = Scripted(calls(("echo", {"text": "a"})), says("one"), says("two"))
    records = await steered(provider, [[], ["x", "y"], ["z"]])
    assert [record async for record in Replay(records).records()] == records

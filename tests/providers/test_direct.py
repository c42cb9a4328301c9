"""A run that is one call, with every rule of a run and no model."""

from __future__ import annotations

from evoclaw.core.messages import Reply, ToolCall, user
from evoclaw.core.ports import AllowAll, Ports
from evoclaw.core.run import run
from evoclaw.providers.scripted import DirectProvider
from tests.support.loop import echo_table


async def test_the_direct_provider_runs_a_call_and_returns_its_result() -> None:
    asked = Reply(calls=(ToolCall("one", "echo", '{"text": "hi"}'),))
    result = await run((user("a step"), asked), Ports(DirectProvider(), echo_table(), AllowAll()))
    assert (result.text, result.calls, result.cost) == ("echo(hi)", 1, 0.0)


async def test_the_direct_provider_without_a_call_does_nothing() -> None:
    result = await run("hello", Ports(DirectProvider(), echo_table(), AllowAll()))
    assert (result.text, result.calls) == ("There was nothing to do.", 0)

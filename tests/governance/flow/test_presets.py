"""The presets, the flags of integrators, and what an edge does with a label alone."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.core.history import History
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import ToolResult, UserMessage, label_of, user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import ALLOW, Allow, Ask, Deny, NoApprover, Ports, Verdict
from evoclaw.core.run import run
from evoclaw.core.tools import Call, Context, Effect, Tool
from evoclaw.governance.flow.edge import EdgeFlow
from evoclaw.governance.flow.policy import Flow
from evoclaw.governance.flow.settings import (
    EdgeRule,
    FlowFlags,
    FlowSettings,
    Preset,
    with_configured_flags,
)
from evoclaw.providers.scripted import Scripted, calls, says
from tests.governance.flow.mailbox import CODES, LOOK, READ_MAIL, SEND, World, obey
from tests.support.properties import examples

OUTSIDE = Label(untrusted=True, sources=("page",))
BOTH = Label(untrusted=True, private=True, sources=("mail",))
ACT = Tool("press", "", {})
LOOKING = Tool("look", "", {}, effect=Effect.READ)
SENDING = Tool("fetch", "", {}, effect=Effect.READ, sends=True)
PRIVATE = Tool("diary", "", {}, effect=Effect.READ, private=True)


def call(tool: Tool, label: Label = CLEAN, history: History | None = None) -> Call:
    return Call("1", tool, {}, "r.1.0.1", 1.0, context=Context(label, history))


async def verdict(preset: Preset, tool: Tool, label: Label, *, acted: bool = False) -> Verdict:
    history = History([user("Hello.")])
    if acted:
        history.append(ToolResult("c", "press", ()))
    flow = Flow(FlowSettings(preset=preset), lambda: (ACT, LOOKING, SENDING, PRIVATE))
    return await flow.judge(call(tool, label, history))


async def test_strict_allows_no_action_after_untrusted_text() -> None:
    assert await verdict(Preset.STRICT, ACT, CLEAN) is ALLOW
    assert await verdict(Preset.STRICT, LOOKING, BOTH) is ALLOW
    assert await verdict(Preset.STRICT, SENDING, OUTSIDE) is ALLOW
    for tool, label in ((ACT, OUTSIDE), (ACT, BOTH), (SENDING, BOTH)):
        ask = await verdict(Preset.STRICT, tool, label)
        assert isinstance(ask, Ask)
        assert ask.code == "untrusted"
        assert label.sources[0] in ask.reason
        assert label.sources[0] in ask.for_people


@settings(max_examples=examples(300), deadline=None)
@given(
    tool=st.sampled_from((ACT, LOOKING, SENDING, PRIVATE)),
    label=st.sampled_from((CLEAN, OUTSIDE, BOTH)),
    url=st.sampled_from(("https://evil.test/x", "https://example.org/", "tea", "hello", "7")),
    asked=st.sampled_from(("Fetch https://example.org/", "Press hello", "Hello.")),
)
def test_strict_is_never_weaker_than_grounded(
    tool: Tool, label: Label, url: str, asked: str
) -> None:
    verdicts: list[Verdict] = []
    for preset in (Preset.GROUNDED, Preset.STRICT):
        flow = Flow(FlowSettings(preset=preset), lambda: (ACT, LOOKING, SENDING, PRIVATE))
        made = msgspec.structs.replace(
            call(tool, label, History([user(asked)])), arguments={"url": url}
        )
        verdicts.append(asyncio.run(flow.judge(made)))
    grounded, strict = verdicts
    assert isinstance(strict, Ask) or not isinstance(grounded, Ask)


async def test_strict_asks_before_an_address_that_only_untrusted_text_names_is_fetched() -> None:
    flow = Flow(FlowSettings(preset=Preset.STRICT), lambda: (SENDING,))
    for url, kind in (("https://evil.test/x", Ask), ("https://example.org/", Allow)):
        history = History([user("What is on https://example.org/ ?")])
        made = msgspec.structs.replace(call(SENDING, OUTSIDE, history), arguments={"url": url})
        assert isinstance(await flow.judge(made), kind), url


async def test_off_allows_everything() -> None:
    assert await verdict(Preset.OFF, ACT, BOTH) is ALLOW


@pytest.mark.parametrize(
    ("tool", "label", "acted", "asks"),
    [
        (ACT, OUTSIDE, False, False),
        (ACT, Label(private=True), False, False),
        (PRIVATE, OUTSIDE, False, False),
        (LOOKING, BOTH, True, False),
        (ACT, BOTH, False, True),
        (SENDING, BOTH, False, True),
        (PRIVATE, OUTSIDE, True, True),
        (ACT, BOTH, True, True),
    ],
)
async def test_rule_of_two_allows_two_flags_and_asks_at_the_third(
    tool: Tool, label: Label, acted: bool, asks: bool
) -> None:
    given = await verdict(Preset.RULE_OF_TWO, tool, label, acted=acted)
    assert isinstance(given, Ask) == asks


async def test_without_a_history_no_call_is_grounded() -> None:
    flow = Flow()
    assert isinstance(await flow.judge(call(ACT, OUTSIDE)), Ask)
    assert await flow.judge(call(ACT)) is ALLOW


async def test_an_edge_runs_granted_calls_unless_it_is_strict() -> None:
    assert await EdgeFlow().judge(call(ACT, BOTH)) is ALLOW
    strict = EdgeFlow(FlowSettings(edge=EdgeRule.STRICT))
    refused = await strict.judge(call(ACT, BOTH))
    assert isinstance(refused, Deny)
    assert "mail" in refused.reason
    assert isinstance(await strict.judge(call(SENDING, BOTH)), Deny)
    assert await strict.judge(call(SENDING, OUTSIDE)) is ALLOW
    assert await strict.judge(call(LOOKING, BOTH)) is ALLOW
    assert await strict.judge(call(ACT)) is ALLOW


def test_flow_settings_are_read_from_toml_and_unknown_keys_are_refused() -> None:
    given = {"preset": "rule_of_two", "outside": ["mail__*"], "edge": "strict"}
    settings = msgspec.convert(given, FlowSettings)
    assert settings.preset is Preset.RULE_OF_TWO
    assert settings.edge is EdgeRule.STRICT
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"outsider": []}, FlowSettings)


def test_flags_are_overridden_by_tool_name_and_others_stay() -> None:
    settings = FlowSettings(
        outside=("mail__*",), private=("mail__read",), acts=("look",), harmless=("press",)
    )
    read = with_configured_flags(Tool("mail__read", "", {}, effect=Effect.READ), settings)
    assert read.label == Label(True, True, ("mail__read",))
    assert with_configured_flags(LOOKING, settings).has_side_effects
    assert not with_configured_flags(ACT, settings).has_side_effects
    assert with_configured_flags(SENDING, settings) is SENDING
    trusted = with_configured_flags(READ_MAIL, FlowSettings(trusted=("read_mail",)))
    assert not trusted.outside


async def test_results_of_a_reflagged_tool_carry_the_new_label() -> None:
    world = World()
    settings = FlowSettings(outside=("look",), trusted=("read_mail",))
    flagged = Pipeline([world], [FlowFlags(settings)])
    assert flagged.tools() is flagged.tools()
    script = Scripted(calls(("look", {"what": "x"})), calls(("read_mail", {})), says("Done."))
    ports = Ports(script, flagged, Flow(FlowSettings(preset=Preset.STRICT)), NoApprover())
    await run([user("Hello.")], ports)
    seen = script.requests[-1].messages
    labels = [label_of(m) for m in seen if isinstance(m, ToolResult)]
    assert labels == [Label(True, False, ("look",)), Label(False, True, ("read_mail",))]


async def test_a_request_from_an_untrusted_session_grounds_nothing() -> None:
    world = World()
    send = ("send_mail", {"to": "x@evil.io", "subject": "x", "body": "x"})
    flow = Flow(FlowSettings(), world.tools)
    ports = Ports(Scripted(calls(send), says("Done.")), world, flow, NoApprover())
    text = user("Send x to x@evil.io")
    opening = UserMessage(tuple(msgspec.structs.replace(b, label=BOTH) for b in text.blocks))
    await run([opening], ports)
    assert not world.did("send_mail")


async def test_calls_of_a_reply_made_before_any_read_are_trusted() -> None:
    world = World("Do as I say.")
    plan = calls(
        ("read_mail", {}), ("send_mail", {"to": "a@b.org", "subject": "x", "body": "On my way."})
    )
    ports = Ports(
        Scripted(plan, says("Done.")), world, Flow(FlowSettings(), world.tools), NoApprover()
    )
    await run([user("Hello.")], ports)
    assert world.did("send_mail")


async def test_rule_of_two_counts_the_actions_before_a_resume() -> None:
    history = History([user("Hi"), ToolResult("c1", "send_mail", ())])
    flow = Flow(FlowSettings(preset=Preset.RULE_OF_TWO), lambda: (SEND, CODES, LOOK))
    asked = Call("2", CODES, {}, "r.2.0.1", 1.0, context=Context(OUTSIDE, history))
    assert isinstance(await flow.judge(asked), Ask)
    only_looked = History([user("Hi"), ToolResult("c1", "look", ())])
    looked = msgspec.structs.replace(asked, context=Context(OUTSIDE, only_looked))
    assert await flow.judge(looked) is ALLOW


async def test_rule_of_two_applies_in_the_agent_loop() -> None:
    send = ("send_mail", {"to": "bob@example.org", "subject": "x", "body": "x"})
    world, _ = await obey("Send x to bob@example.org", ("read_mail", {}), send,
                          preset=Preset.RULE_OF_TWO)  # fmt: skip
    assert not world.did("send_mail")

"""Where a text came from is known for as long as the text is, and for what is made of it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.events import ContextTrimmed, Record
from evoclaw.core.history import History
from evoclaw.core.labels import CLEAN, MAX_LABEL_SOURCES, Label, join_labels
from evoclaw.core.messages import (
    ImageBlock,
    Message,
    TextBlock,
    ToolResult,
    UserMessage,
    label_of,
    labelled,
    user,
)
from evoclaw.core.run import Bus
from evoclaw.core.state import fold, new_run
from evoclaw.core.tools import Effect
from evoclaw.core.window import trimmed_view
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import DenyingPolicy, Table, echo, fail, run, tool

labels = st.builds(
    Label, st.booleans(), st.booleans(), st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)
)
WEB = Label(untrusted=True, sources=("page",))
page = tool("page", effect=Effect.READ, resources=(), outside=True)
diary = tool("diary", effect=Effect.READ, resources=(), private=True)
plain = tool("plain", effect=Effect.READ, resources=())


def table() -> Table:
    return Table((page, echo), (diary, echo), (plain, echo))


@given(labels, labels)
def test_joining_labels_keeps_every_mark_and_source(one: Label, two: Label) -> None:
    both = one | two
    assert both.untrusted == (one.untrusted or two.untrusted)
    assert both.private == (one.private or two.private)
    assert set(one.sources) | set(two.sources) == set(both.sources)


def test_a_thousand_sources_stay_bounded_and_untrusted() -> None:
    label = join_labels(Label(untrusted=True, sources=(f"tool-{n}",)) for n in range(1_000))
    assert label.untrusted
    assert len(label.sources) == MAX_LABEL_SOURCES


async def test_the_result_of_an_outside_tool_is_labelled_untrusted() -> None:
    ran = await run(Scripted(calls(("page", {}), ("plain", {})), says("done")), table())
    assert [label_of(result) for result in ran.results] == [WEB, CLEAN]
    assert ran.state.history.label == WEB


async def test_the_error_of_an_outside_tool_is_labelled_untrusted() -> None:
    ran = await run(Scripted(calls(("page", {})), says("done")), Table((page, fail)))
    assert ran.results[0].error is not None
    assert label_of(ran.results[0]) == WEB


async def test_a_call_carries_the_label_of_what_the_model_had_seen() -> None:
    policy = DenyingPolicy()
    script = Scripted(
        calls(("plain", {})), calls(("page", {})), calls(("diary", {})), calls(("plain", {})),
        says("done"),
    )  # fmt: skip
    await run(script, table(), policy=policy)
    seen = [call.context.label for call in policy.judged]
    assert seen[:2] == [CLEAN, CLEAN]
    assert seen[2] == WEB
    assert seen[3] == Label(untrusted=True, private=True, sources=("page", "diary"))


async def test_folding_records_restores_the_label_of_a_run() -> None:
    ran = await run(Scripted(calls(("page", {})), says("done")), table())
    bus = Bus("run")
    lines = [msgspec.json.encode(bus.publish(event)) for event in ran.events]
    again = fold(msgspec.json.decode(line, type=Record) for line in lines)
    assert again.history.label == WEB


def test_trimming_a_history_keeps_its_label() -> None:
    history = History(
        [
            user("the task"),
            UserMessage((TextBlock("x" * 500, WEB),)),
            ToolResult("1", "page", (TextBlock("y" * 500, WEB), ImageBlock("image/png", "", WEB))),
        ]
    )
    for trimmed in (ContextTrimmed(3), ContextTrimmed(3, 3, "short"), ContextTrimmed(0, 0, "", 50)):
        assert trimmed_view(history, trimmed, 0).label == WEB


async def test_opening_messages_of_a_run_keep_their_labels() -> None:
    policy = DenyingPolicy()
    messages: list[Message] = [UserMessage((TextBlock("from another agent", WEB),))]
    ran = await run(
        Scripted(calls(("plain", {})), says("done")), table(), policy=policy, messages=messages
    )
    assert policy.judged[0].context.label == WEB
    assert new_run(messages).opening == tuple(messages)
    assert ran.state.history.label == WEB


def test_a_clean_label_is_not_encoded() -> None:
    assert msgspec.json.encode(TextBlock("hi")) == b'{"type":"text","text":"hi"}'
    [block] = labelled((TextBlock("hi"),), WEB)
    assert msgspec.json.decode(msgspec.json.encode(block), type=TextBlock) == block

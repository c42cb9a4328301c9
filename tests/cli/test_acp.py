"""`evoclaw acp`: an editor uses sessions of this machine, through the SDK's own client."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_editor import WAIT_S, connected
from tests.support.command_line import reply, shell
from tests.support.lazy_imports import LazyModule
from tests.support.llm_servers import SSE, Peer, streamed

acp: Any = LazyModule("acp")
COMMAND = {"command": "echo made-$((40+2)) > made.txt && cat made.txt"}


def thinking(thought: str, text: str) -> Any:
    """A reply whose reasoning comes before its text."""
    deltas = [{"reasoning_content": thought}, *({"content": word} for word in text.split(" "))]
    chunks = [{"choices": [{"index": 0, "delta": delta}], "model": "m"} for delta in deltas]
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return streamed([*(f"data: {json.dumps(c)}\n\n" for c in [*chunks, end]), "data: [DONE]\n\n"])


async def stuck(peer: Peer) -> None:
    """A model that starts to answer, and never ends."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "Well"}}], "model": "m"}
    await peer.head(200, {"Content-Type": SSE, "Connection": "close"})
    await peer.send(f"data: {json.dumps(chunk)}\n\n".encode())
    await asyncio.Event().wait()


async def test_text_and_thoughts_are_streamed(tmp_path: Path) -> None:
    answer = thinking("I greet.", "Hello there friend")
    async with shell(tmp_path, answer) as typing, connected(typing) as made:
        about: Any = await made.agent.initialize(protocol_version=1)
        opened: Any = await made.agent.new_session(cwd=str(typing.workspace), mcp_servers=[])
        stop = await made.prompt(opened.session_id, "Greet me")

    assert about.protocol_version == 1 and about.agent_capabilities.load_session
    assert about.agent_info.name == "evoclaw"
    assert opened.modes.current_mode_id == "supervised"
    assert [mode.id for mode in opened.modes.available_modes] == [
        "supervised",
        "read_only",
        "full",
    ]
    assert stop == "end_turn"
    assert made.editor.text("agent_thought_chunk") == "I greet."
    assert made.editor.text() == "Hellotherefriend"
    assert len(made.editor.of("agent_message_chunk")) == 3


async def test_a_command_runs_after_permission_and_its_output_is_shown(tmp_path: Path) -> None:
    answers = [reply("", ("bash", COMMAND)), reply("Done.")]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing, answers=["allow_once"]) as made:
            session = await made.open(typing.workspace)
            assert await made.prompt(session, "Make it") == "end_turn"
        assert (typing.workspace / "made.txt").read_text() == "made-42\n"

    editor = made.editor
    [(shown, options)] = editor.asked
    [call] = editor.of("tool_call")
    assert shown.tool_call_id == call.tool_call_id and call.status == "pending"
    assert call.kind == "execute" and call.raw_input == COMMAND
    assert COMMAND["command"] in shown.content[0].content.text
    assert "Why you are asked:" in shown.content[-1].content.text
    assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]
    ended = editor.of("tool_call_update")[-1]
    assert ended.status == "completed" and "made-42" in ended.content[0].content.text
    assert editor.text() == "Done."


async def test_a_rejected_command_does_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    answers = [reply("", ("bash", COMMAND)), reply("As you wish.")]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing, answers=["reject_once"]) as made:
            session = await made.open(typing.workspace)
            assert await made.prompt(session, "Make it") == "end_turn"
        assert not (typing.workspace / "made.txt").exists()

    assert made.editor.ends() == ["failed"]
    assert made.editor.text() == "As you wish."


async def test_an_approval_for_the_session_covers_what_its_option_says(tmp_path: Path) -> None:
    other = {"path": "other.txt", "content": "2\n"}
    answers = [
        reply("", ("bash", COMMAND)),
        reply("", ("bash", COMMAND)),
        reply("", ("write", other)),
        reply("Done."),
    ]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing, answers=["allow_always", "reject_once"]) as made:
            session = await made.open(typing.workspace)
            assert await made.prompt(session, "Make them") == "end_turn"
        assert not (typing.workspace / "other.txt").exists()

    (_, options), (second, _) = made.editor.asked
    assert options[1].name.startswith("Always allow bash on this machine: ")
    assert "in this session" in options[1].name
    assert second.raw_input == other
    assert made.editor.ends() == ["completed", "completed", "failed"]


async def test_file_changes_are_shown_as_diffs_before_they_are_approved(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.txt\n-three\n+four\n*** End Patch\n"
    answers = [
        reply("", ("write", {"path": "a.txt", "content": "two\n"})),
        reply("", ("edit", {"path": "a.txt", "old_string": "two", "new_string": "three"})),
        reply("", ("apply_patch", {"patch": patch})),
        reply("Done."),
    ]
    async with shell(tmp_path, *answers) as typing:
        file = typing.workspace / "a.txt"
        file.write_text("one\n")
        async with connected(typing, answers=["allow_once"] * 3) as made:
            session = await made.open(typing.workspace)
            assert await made.prompt(session, "Count") == "end_turn"
        assert file.read_text() == "four\n"
        undone = await typing.type("undo", "--yes")
        assert undone.code == 0 and file.read_text() == "one\n", undone

    expected = [("one\n", "two\n"), ("two", "three"), ("three\n", "four\n")]
    calls = made.editor.of("tool_call")
    for shown in (calls, [call for call, _ in made.editor.asked]):
        assert [(call.content[0].old_text, call.content[0].new_text) for call in shown] == expected
        assert {call.content[0].path for call in shown} == {str(file)}
        assert [place.path for call in shown for place in call.locations] == [str(file)] * 3
        assert {call.kind for call in shown} == {"edit"}
    assert made.editor.ends() == ["completed"] * 3


async def test_a_cancelled_prompt_ends_and_the_session_goes_on(tmp_path: Path) -> None:
    answers = [stuck, reply("", ("bash", COMMAND)), reply("Here again.")]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing) as made:
            session = await made.open(typing.workspace)
            answering = asyncio.create_task(made.prompt(session, "Think"))
            await made.editor.until(lambda: made.editor.text() == "Well")
            with pytest.raises(acp.RequestError, match="another prompt"):
                await made.prompt(session, "Two at once")
            await made.agent.cancel(session_id=session)
            assert await answering == "cancelled"

            asking = asyncio.create_task(made.prompt(session, "Make it"))
            await made.editor.until(lambda: bool(made.editor.asked))
            await made.agent.cancel(session_id=session)
            assert await asking == "cancelled"
            assert made.editor.ends() == ["failed"]

            assert await made.prompt(session, "Are you there?") == "end_turn"
            assert made.editor.text() == "WellHere again."
            await made.agent.close_session(session_id=session)
            with pytest.raises(acp.RequestError, match="there is no session"):
                await made.prompt(session, "And now?")
        assert not (typing.workspace / "made.txt").exists()


async def test_an_editor_that_leaves_in_the_middle_ends_its_run(tmp_path: Path) -> None:
    slow = {"command": "echo started && sleep 600"}
    answers = [reply("", ("bash", slow)), reply("Welcome back.")]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing, answers=["allow_once"]) as made:
            session = await made.open(typing.workspace)
            leaving = asyncio.create_task(made.prompt(session, "Wait"))
            await made.editor.until(
                lambda: "in_progress" in [one.status for one in made.editor.of("tool_call_update")]
            )
        assert await leaving == "cancelled"
        async with connected(typing) as later:
            await later.agent.initialize(protocol_version=1)
            await later.agent.load_session(
                cwd=str(typing.workspace), session_id=session, mcp_servers=[]
            )
            assert later.editor.ends() == ["failed"]
            assert await later.prompt(session, "Hello again") == "end_turn"
            assert later.editor.text() == "Welcome back."


async def test_an_emergency_stop_cancels_the_prompt_and_says_so(tmp_path: Path) -> None:
    async with shell(tmp_path, stuck) as typing, connected(typing) as made:
        session = await made.open(typing.workspace)
        answering = asyncio.create_task(made.prompt(session, "Think"))
        await made.editor.until(lambda: made.editor.text() == "Well")
        assert (await typing.type("stop", "--all", "--reason", "enough")).code == 0
        assert await answering == "cancelled"
        assert "enough" in made.editor.text() and "evoclaw stop --list" in made.editor.text()


async def test_a_session_is_loaded_with_its_history_in_a_new_process(tmp_path: Path) -> None:
    answers = [
        reply("I write.", ("write", {"path": "a.txt", "content": "one\n"})),
        reply("Done."),
        reply("You asked me to write."),
    ]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing, answers=["allow_once"]) as made:
            session = await made.open(typing.workspace)
            await made.prompt(session, "Write it")
        async with connected(typing) as later:
            await later.agent.initialize(protocol_version=1)
            with pytest.raises(acp.RequestError, match="there is no session 'unknown'"):
                await later.agent.load_session(
                    cwd=str(typing.workspace), session_id="unknown", mcp_servers=[]
                )
            await later.agent.load_session(
                cwd=str(typing.workspace), session_id=session, mcp_servers=[]
            )
            shown, later.editor.updates = later.editor.updates, []
            assert await later.prompt(session, "What did I ask?") == "end_turn"

    def brief(updates: list[Any]) -> list[tuple[str, str]]:
        return [
            (one.session_update, getattr(one, "tool_call_id", None) or one.content.text)
            for one in updates
        ]

    assert brief(shown) == [("user_message_chunk", "Write it"), *brief(made.editor.updates)]
    assert later.editor.text() == "You asked me to write."


async def test_the_mode_decides_what_runs_without_asking(tmp_path: Path) -> None:
    write = {"path": "a.txt", "content": "one\n"}
    answers = [reply("", ("write", write)), reply("No."), reply("", ("write", write)), reply("Yes")]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing) as made:
            session = await made.open(typing.workspace)
            await made.agent.set_session_mode(session_id=session, mode_id="read_only")
            await made.prompt(session, "Write it")
            assert not (typing.workspace / "a.txt").exists()
            await made.agent.set_session_mode(session_id=session, mode_id="full")
            await made.prompt(session, "Write it")
            assert (typing.workspace / "a.txt").read_text() == "one\n"
        async with connected(typing, "--read-only") as strict:
            await strict.agent.initialize(protocol_version=1)
            opened: Any = await strict.agent.new_session(cwd=str(typing.workspace), mcp_servers=[])
            with pytest.raises(acp.RequestError, match="choose one of: read_only"):
                await strict.agent.set_session_mode(session_id=opened.session_id, mode_id="full")

    assert made.editor.asked == []
    assert made.editor.ends() == ["failed", "completed"]
    assert [mode.id for mode in opened.modes.available_modes] == ["read_only"]


async def test_what_cannot_be_done_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    from acp.helpers import image_block, resource_link_block, text_block

    answers = [reply("It says hello.")]
    async with shell(tmp_path, *answers) as typing:
        async with connected(typing) as made:
            session = await made.open(typing.workspace)
            for wrong, words in (
                (made.agent.new_session(cwd="relative", mcp_servers=[]), "absolute path"),
                (made.prompt("unknown", "x"), "there is no session 'unknown'"),
                (made.prompt(session, "  "), "the prompt is empty"),
                (
                    made.agent.prompt(session_id=session, prompt=[image_block("", "image/png")]),
                    "texts and links",
                ),
            ):
                with pytest.raises(acp.RequestError, match=words):
                    await wrong
            link = resource_link_block("a", (typing.workspace / "a b.txt").as_uri())
            done = await made.agent.prompt(
                session_id=session, prompt=[text_block("Read "), link, text_block("now")]
            )
            assert done.stop_reason == "end_turn"
        typing.env["EVOCLAW_MODEL"] = "nothing/at-all"
        async with connected(typing) as without:
            with pytest.raises(acp.RequestError, match="nothing") as raised:
                await without.open(typing.workspace)
    assert raised.value.code == -32603  # with -32000, an editor would ask for a login


GARBAGE = (
    b"not json",
    b"[" * 2_000,
    b"[]",
    b"7",
    b'"text"',
    b"{}",
    b"\xff\xfe",
    b'{"jsonrpc":"2.0","id":[1],"method":"initialize"}',
    b'{"jsonrpc":"2.0","id":5,"method":["initialize"]}',
    b'{"jsonrpc":"2.0","id":6,"error":7}',
)


async def test_garbage_is_answered_with_errors_and_serving_goes_on(tmp_path: Path) -> None:
    good = {"jsonrpc": "2.0", "id": 9, "method": "initialize", "params": {"protocolVersion": 1}}
    unknown: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 10,
        "method": "session/nothing",
        "params": {},
    }
    bad = {"jsonrpc": "2.0", "id": 11, "method": "session/new", "params": [1]}
    lines = [*GARBAGE, *(json.dumps(message).encode() for message in (unknown, bad, good))]
    async with shell(tmp_path, reply("Hello.")) as typing, asyncio.timeout(WAIT_S):
        process = await typing.start("acp", stdin=PIPE)
        out, err = await process.communicate(b"\n".join(lines) + b"\n\n")

    answers = [json.loads(line) for line in out.splitlines()]
    by_id = {answer["id"]: answer for answer in answers if answer["id"] is not None}
    assert process.returncode == 0, err.decode()
    assert len(answers) == len(lines)
    assert all("error" in answer for answer in answers if answer["id"] != 9)
    assert by_id[9]["result"]["protocolVersion"] == 1
    assert by_id[10]["error"]["code"] == -32601 and by_id[11]["error"]["code"] == -32602
    assert b"Traceback" not in err and b"Traceback" not in out

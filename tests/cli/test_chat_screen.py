"""What a user sees of `evoclaw chat`, on the screen of a real terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from evoclaw.cli.chat_screen import TYPED_AHEAD_S
from evoclaw.core.events import (
    CallFinished,
    CallOutput,
    CallStarted,
    Replied,
    StopReason,
    TextDelta,
)
from evoclaw.core.messages import Reply, TextBlock, ToolResult, Usage
from tests.support.stub_service import StubRun, StubService, serve_stub, shell_for
from tests.support.terminal import CTRL_C, TAB, terminal
from tests.support.waiting import until

MAX_TRIES = 10


async def runs_a_command(run: StubRun) -> None:
    """A call with much output, which ends when the run is steered."""
    run.emit(CallStarted("c1", "bash", {"command": "npm test"}, "r1", machine="garage"))
    for number in range(40):
        run.emit(CallOutput("c1", f"line {number}\n"))
    await run.steered.get()
    text = "".join(f"line {number}\n" for number in range(40))
    run.emit(CallFinished(ToolResult("c1", "bash", (TextBlock(text),))))
    run.says("All tests pass.")
    run.ends("All tests pass.")


@pytest.mark.parametrize("columns", [80, 40])
async def test_a_running_call_is_shown_apart_from_what_is_typed(
    tmp_path: Path, columns: int
) -> None:
    async with (
        serve_stub(runs_a_command) as fake,
        terminal(shell_for(fake, tmp_path), "chat", columns=columns) as here,
    ):
        await here.send_line("test it")
        await here.until("bash on garage · ")
        here.type("half a mess")
        screen = await here.until("> half a mess")
        *_, output, spinner, typed, status = screen.splitlines()
        assert output == "  │ line 39"
        assert spinner[2:].startswith("bash on garage · ") and "npm test" in spinner
        assert typed == "> half a mess" and status.startswith("running")
        here.type("age\r")
        await here.until("ready")
        shown = here.scrollback
        assert "> half a message\n" in shown
        assert "  │ … 34 more lines; /output shows all\n  │ line 34\n" in shown
        assert "✔ bash on garage" in shown
        assert "All tests pass." in shown
        assert "line 33" not in shown
        await here.send_line("/output")
        assert "line 0\n" in await here.expect("line 39\n")


async def test_an_unfinished_block_is_drawn_once_and_stays_when_it_is_finished(
    tmp_path: Path,
) -> None:
    async def writes(run: StubRun) -> None:
        for piece in ("# Res", "ult\n\n", "It is **4", "2**"):
            run.emit(TextDelta(piece))
        await run.steered.get()
        run.emit(TextDelta(".\n\n- one\n- two"))
        text = "# Result\n\nIt is **42**.\n\n- one\n- two"
        run.emit(Replied(Reply(text, usage=Usage(12_000, 3_000), cost=0.0125)))
        run.ends(text)

    async with (
        serve_stub(writes) as fake,
        terminal(shell_for(fake, tmp_path), "chat", rows=12) as here,
    ):
        await here.send_line("compute")
        await here.until("It is 42")
        here.type("go on\r")
        await here.until("ready")
        assert here.scrollback.split("> compute\n")[1].startswith(
            "Result\n> go on\n\nIt is 42.\n\n • one\n • two\ncompleted"
        ), here.scrollback
        await here.until("15k tokens · $0.0125")


async def test_nothing_typed_ahead_answers_an_approval(tmp_path: Path) -> None:
    for _ in range(MAX_TRIES):
        if await types_ahead(tmp_path):
            return
    raise AssertionError("this machine is too slow to type before the question can be answered")


async def types_ahead(tmp_path: Path) -> bool:
    """Type before a question can be answered; whether the keys can have come before that."""
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        await run.steered.get()
        fake_[0].asks(run, command="rm -r /tmp/x")
        said = await run.answered.get()
        run.resumes()
        run.ends(json.dumps(said))

    async with serve_stub(asks) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.send_line("go")
        await here.until("running")
        before = time.monotonic()
        here.type("ask\r")
        await here.until("wants to run")
        here.type("yes, and\r")
        took = time.monotonic() - before
        await until(lambda: "Allow?" in here.screen or "completed" in here.screen, 30)
        if fake.approvals[0]["standing"] != "waiting":
            assert took > TYPED_AHEAD_S, "keys that were typed ahead answered the question"
            return False
        here.type("n")
        await here.until("Why not?")
        here.type("use a trash folder\r")
        await here.expect("the user said: use a trash folder")
        await here.until("ready")
        assert "> yes, and" in here.screen, "it is still the draft of a message"
        return True


async def test_the_card_of_an_edit_shows_a_diff_in_colour(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].asks(
            run, tool="edit", machine="garage", path="a.py", old_string="a = 1", new_string="a = 2"
        )
        await run.cancelled.wait()
        run.ends("", StopReason.CANCELLED)

    async with (
        serve_stub(asks) as fake,
        terminal(shell_for(fake, tmp_path), "chat", columns=40, colour=True) as here,
    ):
        fake_.append(fake)
        await here.send_line("go")
        screen = await here.until("Allow?")
        assert "─ edit on garage wants to run ─" in screen
        lines = [line.strip("│ ") for line in screen.splitlines()]
        assert lines[lines.index("a.py") :][:4] == ["a.py", "@@ -1 +1 @@", "-a = 1", "+a = 2"]
        assert "\x1b[31m-a = 1" in here.raw and "\x1b[32m+a = 2" in here.raw
        here.type(CTRL_C)
        await here.until("ready")


async def test_a_call_is_edited_at_the_card_and_approved_as_edited(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].asks(run, command="rm -r build")
        said = await run.answered.get()
        run.resumes()
        run.ends(json.dumps(said))

    async with serve_stub(asks) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.send_line("go")
        await here.until("[e]dit")
        here.type("e")
        await here.until("> rm -r build")
        here.type("/old\r")
        answer = await here.expect("completed")
        assert '"decision": "once"' in answer
        assert '"arguments": {"command": "rm -r build/old"}' in answer.replace("\n", " ")


async def test_a_call_is_edited_in_the_editor_of_the_user(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].asks(run, tool="write", path="a", content="one\ntwo")
        said = await run.answered.get()
        run.resumes()
        run.ends(json.dumps(said))

    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nif [ -e once ]; then sed -i s/two/three/ "$1"; fi\n: > once\n')
    editor.chmod(0o700)
    async with serve_stub(asks) as fake:
        fake_.append(fake)
        shell = shell_for(fake, tmp_path)
        shell.env["EDITOR"] = str(editor)
        async with terminal(shell, "chat") as here:
            await here.send_line("go")
            await here.until("[e]dit")
            here.type("e")
            await here.expect("you changed nothing")
            await here.until("[e]dit")
            here.type("e")
            answer = await here.expect("completed")
            assert '"one\\nthree"' in answer


async def test_tab_completes_commands_agents_edges_models_and_files(tmp_path: Path) -> None:
    async def agents(_request: web.Request) -> web.Response:
        rows = [
            {"name": "evoclaw", "description": "", "model": "test/model"},
            {"name": "reviewer", "description": "Reads code", "model": "test/large"},
        ]
        return web.json_response({"agents": rows})

    async def fleet(_request: web.Request) -> web.Response:
        rows = [
            {"agent_id": "house", "online": True, "default": True},
            {"agent_id": "garage", "online": False},
        ]
        return web.json_response({"items": rows})

    more = [web.get("/v1/agents", agents), web.get("/v1/fleet", fleet)]
    async with serve_stub(more=more) as fake:
        shell = shell_for(fake, tmp_path)
        (shell.workspace / "notes").mkdir()
        (shell.workspace / "notes" / "today.md").write_text("x")
        async with terminal(shell, "chat") as here:
            await here.until("ready · evoclaw · on house")

            async def completes(typed: str, to: str) -> None:
                here.type(typed + TAB)
                await here.until(f"> {to}\n")
                here.type(CTRL_C)
                await here.until(">\nready")

            await completes("/sess", "/session")
            await completes("/agent rev", "/agent reviewer")
            await completes("/on gar", "/on garage")
            await completes("/model test/l", "/model test/large")
            await completes("see @no", "see @notes/")
            await completes("see @notes/to", "see @notes/today.md")


async def test_a_resumed_session_shows_its_last_exchange(tmp_path: Path) -> None:
    async with serve_stub() as fake:
        shell = shell_for(fake, tmp_path)
        async with terminal(shell, "chat", "--session", "Work") as here:
            await here.send_line("first")
            await here.send_line("what is **bold**?")
            await here.until("ready")
        async with terminal(shell, "chat", "--session", "Work") as here:
            screen = await here.until("ready")
            assert "> what is **bold**?\nYou said what is bold?." in screen
            assert "first" not in screen


async def test_a_message_uses_the_model_that_was_chosen(tmp_path: Path) -> None:
    sent: list[Any] = []

    @web.middleware
    async def keeps(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.method == "POST" and request.path == "/v1/runs":
            sent.append(await request.json())
        return await handler(request)

    async with (
        serve_stub(middlewares=[keeps]) as fake,
        terminal(shell_for(fake, tmp_path), "chat", "--model", "test/first") as here,
    ):
        await here.send_line("one")
        await here.send_line("/model test/second")
        await here.send_line("two")
        await here.send_line("/model default")
        await here.send_line("three")
        await here.until("ready")
    assert [body.get("model") for body in sent] == ["test/first", "test/second", None]

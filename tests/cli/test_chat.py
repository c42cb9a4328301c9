"""`evoclaw chat` as a person meets it: a real process at a real terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from evoclaw.core.events import CallFinished, CallStarted, Prompted, StopReason
from evoclaw.core.messages import TextBlock, ToolResult, user
from tests.support.stub_service import StubRun, StubService, serve_stub, shell_for
from tests.support.terminal import ALT_ENTER, CTRL_C, CTRL_D, CTRL_R, terminal


async def waits_to_be_cancelled(run: StubRun) -> None:
    run.says("Working …")
    await run.cancelled.wait()
    run.ends("", StopReason.CANCELLED)


async def test_chat_streams_answers_and_shows_calls(tmp_path: Path) -> None:
    async def script(run: StubRun) -> None:
        run.emit(CallStarted("c1", "read", {"path": "a.txt"}, "r1"))
        run.emit(CallFinished(ToolResult("c1", "read", (TextBlock("hello"),))))
        run.says("It says ", "hello.")
        run.ends("It says hello.")

    async with serve_stub(script) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.send_line("what does a.txt say?")
        await here.expect('▶ read path="a.txt"')
        await here.expect("✔ read")
        await here.expect("It says hello.\n")
        await here.send_line("and again?")
        await here.expect("You said and again?.")
        await here.send_line("/quit")
        await here.expect("to continue: evoclaw chat --session s1")
        assert await here.wait_exit() == 0
    assert [run.session_id for run in fake.runs.values()] == ["s1", "s1"]


async def test_ctrl_c_cancels_the_run_and_the_chat_continues(tmp_path: Path) -> None:
    async with (
        serve_stub(waits_to_be_cancelled) as fake,
        terminal(shell_for(fake, tmp_path), "chat") as here,
    ):
        await here.send_line("go")
        await here.expect("Working …")
        here.type(CTRL_C)
        await here.expect("cancelling")
        await here.expect("cancelled · ")
        await here.send_line("still there?")
        await here.expect("You said still there?.")
        await here.until("ready")
        here.type(CTRL_D)
        assert await here.wait_exit() == 0


async def test_a_second_ctrl_c_exits_although_the_run_has_not_ended(tmp_path: Path) -> None:
    async def stubborn(run: StubRun) -> None:
        run.says("Working …")
        await run.cancelled.wait()

    async with serve_stub(stubborn) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.send_line("go")
        await here.expect("Working …")
        here.type(CTRL_C)
        await here.expect("again to leave")
        here.type(CTRL_C)
        assert await here.wait_exit() == 130
        assert fake.runs["run00000001"].cancelled.is_set()


async def test_two_ctrl_c_at_the_prompt_exit_and_one_does_not(tmp_path: Path) -> None:
    async with serve_stub() as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.until("ready")
        here.type("a draft that is discarded")
        await here.until("> a draft")
        here.type(CTRL_C)
        await here.until(">\nready")
        await here.interrupt("again")
        await here.send_line("hello")
        await here.expect("You said hello.")
        await here.until("ready")
        await here.interrupt("again")
        await here.interrupt("to continue")
        assert await here.wait_exit() == 0


async def test_input_typed_during_a_run_steers_the_run(tmp_path: Path) -> None:
    async def listens(run: StubRun) -> None:
        run.says("Working …")
        heard = await run.steered.get()
        run.emit(Prompted(user(heard), "steer"))
        run.says(f"Heard: {heard}.")
        run.ends(f"Heard: {heard}.")

    async with serve_stub(listens) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.send_line("go")
        await here.expect("Working …")
        here.type("in French, please\n")
        await here.expect("Heard: in French, please.")
        await here.until("ready")
        assert len(fake.runs) == 1


async def test_input_typed_after_the_run_ended_is_the_next_message(tmp_path: Path) -> None:
    async def ends_unseen(run: StubRun) -> None:
        run.says("Working …")
        run.state = "ended"  # the service knows it, the watcher does not yet
        await run.cancelled.wait()
        run.ends("", StopReason.CANCELLED)

    async with serve_stub(ends_unseen) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.send_line("go")
        await here.expect("Working …")
        here.type("one more thing\n")
        here.type("/cancel\n")
        await here.expect("You said one more thing.")


async def test_an_approval_is_requested_and_the_run_continues(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].asks(run, command="touch a \x1b[2Jb")
        said = await run.answered.get()
        run.resumes()
        run.says(json.dumps(said))
        run.ends(json.dumps(said))

    async with serve_stub(asks) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.send_line("go")
        await here.until("Allow?")
        assert "─ bash wants to run ─" in here.screen
        assert "touch a b" in here.screen
        assert "why it writes" in here.screen
        assert "always covers every call of bash" in here.screen
        here.type("x")  # is no answer
        here.type("a")
        await here.expect('"decision": "session"')
        await here.until("ready")
        assert "\x1b[2J" not in here.raw


async def test_ctrl_c_at_an_approval_cancels_the_run(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].asks(run, command="rm -r .")
        await run.cancelled.wait()
        run.ends("", StopReason.CANCELLED)

    async with serve_stub(asks) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.send_line("go")
        await here.until("Allow?")
        here.type(CTRL_C)
        await here.expect("cancelled · ")
        await here.send_line("well?")
        await here.expect("You said well?.")
        assert fake.approvals[0]["standing"] == "waiting"


async def test_a_question_is_repeated_until_the_answer_is_valid(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].questions.append(
            {
                "id": "q1",
                "session_id": run.session_id,
                "run_id": run.run_id,
                "text": "Which colour?",
                "options": ["red", "blue"],
                "own_words": False,
            }
        )
        run.ends("asking", StopReason.WAITING)
        said = await run.answered.get()
        run.resumes()
        run.says(f"Chosen: {said['chosen']}")
        run.ends(f"Chosen: {said['chosen']}")

    async with serve_stub(asks) as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.send_line("paint it")
        await here.until("own words:")
        assert "2. blue" in here.screen
        here.type("green\n")
        await here.expect("one of the options must be chosen")
        await here.until("own words:")
        here.type("2\n")
        await here.expect("Chosen: ['blue']")


async def test_a_paste_of_several_lines_is_one_message(tmp_path: Path) -> None:
    async with serve_stub() as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.until("ready")
        here.type("\x1b[200~one\ntwo\nthree\x1b[201~\r")
        await here.expect("You said one\ntwo\nthree.")
        await here.until("ready")
        here.type("four\\\r")
        await here.until("> four\n…")
        here.type(f"five{ALT_ENTER}six\r")
        await here.expect("You said four\nfive\nsix.")
    assert [run.asked for run in fake.runs.values()] == ["one\ntwo\nthree", "four\nfive\nsix"]


async def test_input_history_is_restored_in_the_next_chat_and_stored_privately(
    tmp_path: Path,
) -> None:
    async with serve_stub() as fake:
        shell = shell_for(fake, tmp_path)
        async with terminal(shell, "chat") as here:
            await here.send_line("remember me")
            await here.expect("You said remember me.")
            await here.send_line(" not me")
            await here.expect("You said  not me.")
            await here.send_line("/quit")
            await here.wait_exit()
        kept = shell.home / ".evoclaw" / "chat_history"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert kept.read_text() == '"remember me"\n"/quit"\n'
        async with terminal(shell, "chat") as here:
            await here.until("ready")
            here.type("\x1b[A\x1b[A")
            await here.until("> remember me")
            here.type("\r")
            await here.expect("You said remember me.")
            await here.until("ready")
            here.type(f"{CTRL_R}ember")
            await here.until("> remember me")
            here.type("\r\r")
            await here.expect("You said remember me.")


async def test_slash_commands_list_rename_branch_and_switch_sessions(tmp_path: Path) -> None:
    async with serve_stub() as fake, terminal(shell_for(fake, tmp_path), "chat") as here:
        await here.send_line("first")
        await here.expect("You said first.")
        await here.send_line("/title On first things")
        await here.send_line("/new other")
        await here.send_line("second")
        await here.expect("You said second.")
        await here.send_line("/sessions")
        await here.expect("* s2  other")
        await here.expect("  s1  On")
        await here.send_line("/session s1")
        await here.send_line("/history")
        await here.expect("1  user     first")
        await here.expect("2  agent    You said first.")
        await here.send_line("/branch 1")
        await here.expect("you are now in session s1-1")
        await here.send_line("/nonsense")
        await here.expect("no such command")
        await here.send_line("//odd")
        await here.expect("You said /odd.")
    assert [run.session_id for run in fake.runs.values()] == ["s1", "s2", "s1-1"]


async def test_a_brief_service_outage_neither_loses_nor_repeats_output(tmp_path: Path) -> None:
    async with serve_stub() as fake:
        fake.cut_after, fake.drop_after, fake.lost = [2, -1], [-1, 1], 1
        async with terminal(shell_for(fake, tmp_path), "chat") as here:
            await here.send_line("hello")
            await here.expect("You said hello.\n")
            await here.expect("completed")
            await here.until("ready")
            assert here.scrollback.count("You said hello.") == 1
    assert len(fake.runs) == 1, "the key made it one run"
    assert fake.streams == ["", "2", "3"]


async def test_chat_continues_a_session_and_resumes_its_open_run(tmp_path: Path) -> None:
    async with serve_stub(waits_to_be_cancelled) as fake:
        shell = shell_for(fake, tmp_path)
        async with terminal(shell, "chat", "--session", "My work") as here:
            await here.send_line("go")
            await here.expect("Working …")
            here.process.send_signal(signal.SIGKILL)
            await here.wait_exit()
        assert fake.titles == {"s1": "My work"}
        async with terminal(shell, "chat", "--session", "My work") as here:
            await here.expect("resuming the unfinished run of this session: go")
            await here.expect("Working …")
            here.type(CTRL_C)
            await here.expect("cancelled · ")
            await here.send_line("next")
            await here.expect("You said next.")
    assert {run.session_id for run in fake.runs.values()} == {"s1"}


async def test_a_command_during_the_first_run_shows_something_and_keeps_the_session(
    tmp_path: Path,
) -> None:
    async with (
        serve_stub(waits_to_be_cancelled) as fake,
        terminal(shell_for(fake, tmp_path), "chat") as here,
    ):
        await here.send_line("go")
        await here.expect("Working …")
        here.type("/help\r")
        await here.expect("/quit")
        here.type("/new\r")
        await here.expect("during a run, you can type")
        here.type("/cancel\r")
        await here.expect("cancelled · ")
        await here.send_line("next")
        await here.until("You said next.")
    assert {run.session_id for run in fake.runs.values()} == {"s1"}


async def test_a_terminated_chat_restores_the_terminal(tmp_path: Path) -> None:
    async with (
        serve_stub(waits_to_be_cancelled) as fake,
        terminal(shell_for(fake, tmp_path), "chat") as here,
    ):
        await here.send_line("go")
        await here.expect("Working …")
        here.process.send_signal(signal.SIGTERM)
        assert await here.wait_exit() == 128 + signal.SIGTERM
        assert here.raw.rindex("\x1b[?2004l") > here.raw.rindex("\x1b[?2004h")
        assert not fake.runs["run00000001"].cancelled.is_set(), "the run continues"


async def test_in_a_pipe_each_line_is_a_message_and_stdout_holds_only_answers(
    tmp_path: Path,
) -> None:
    async with serve_stub() as fake:
        ran = await shell_for(fake, tmp_path).type("chat", stdin=b"one\n\ntwo\n")
    assert (ran.code, ran.out) == (0, "You said one.\nYou said two.\n")
    assert "\x1b" not in ran.err


async def test_in_a_pipe_a_run_that_waits_for_approval_ends_the_chat(tmp_path: Path) -> None:
    fake_: list[StubService] = []

    async def asks(run: StubRun) -> None:
        fake_[0].asks(run, command="touch a")

    async with serve_stub(asks) as fake:
        fake_.append(fake)
        ran = await shell_for(fake, tmp_path).type("chat", stdin=b"one\ntwo\n")
    assert ran.code == 4
    assert "answer it in a terminal: evoclaw chat --session s1" in ran.err
    assert len(fake.runs) == 1


async def test_chat_without_a_service_says_how_to_start_the_service(tmp_path: Path) -> None:
    async with serve_stub() as fake:
        shell = shell_for(fake, tmp_path)
    gone = await shell.type("chat", stdin=b"hello\n")
    (shell.home / ".evoclaw" / "api.json").unlink()
    none = await shell.type("chat", stdin=b"hello\n")
    assert gone.code == none.code == 2
    assert "start it with `evoclaw up`" in gone.err
    assert none.err == "evoclaw: the service is not running: start it with `evoclaw up`\n"

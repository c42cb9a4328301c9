"""`evoclaw chat` as a person meets it: a real process at a real terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from evoclaw.core.events import CallFinished, CallStarted, Prompted, StopReason
from evoclaw.core.messages import TextBlock, ToolResult, user
from tests.support.stub_service import FakeService, Served, serving, shell_of
from tests.support.terminal import CTRL_C, CTRL_D, terminal


async def waits_to_be_cancelled(run: Served) -> None:
    run.says("Working …")
    await run.cancelled.wait()
    run.ends("", StopReason.CANCELLED)


async def test_answers_stream_and_calls_are_shown_as_in_a_run(tmp_path: Path) -> None:
    async def script(run: Served) -> None:
        run.emit(CallStarted("c1", "read", {"path": "a.txt"}, "r1"))
        run.emit(CallFinished(ToolResult("c1", "read", (TextBlock("hello"),))))
        run.says("It says ", "hello.")
        run.ends("It says hello.")

    async with serving(script) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.says("what does a.txt say?")
        await here.sees('▶ read path="a.txt"')
        await here.sees("✔ read")
        await here.sees("It says hello.\n")
        await here.says("and again?")
        await here.sees("You said and again?.")
        await here.says("/quit")
        await here.sees("to continue: evoclaw chat --session s1")
        assert await here.ends() == 0
    assert [run.session_id for run in fake.runs.values()] == ["s1", "s1"]


async def test_ctrl_c_cancels_the_run_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with (
        serving(waits_to_be_cancelled) as fake,
        terminal(shell_of(fake, tmp_path), "chat") as here,
    ):
        await here.says("go")
        await here.sees("Working …")
        here.type(CTRL_C)
        await here.sees("cancelling")
        await here.sees("cancelled · ")
        await here.says("still there?")
        await here.sees("You said still there?.")
        await here.sees("> ")
        here.type(CTRL_D)
        assert await here.ends() == 0


async def test_a_second_ctrl_c_leaves_though_the_run_does_not_end(tmp_path: Path) -> None:
    async def stubborn(run: Served) -> None:
        run.says("Working …")
        await run.cancelled.wait()

    async with serving(stubborn) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.says("go")
        await here.sees("Working …")
        here.type(CTRL_C)
        await here.sees("again to leave")
        here.type(CTRL_C)
        assert await here.ends() == 130
        assert fake.runs["run00000001"].cancelled.is_set()


async def test_two_ctrl_c_at_the_prompt_leave_and_one_does_not(tmp_path: Path) -> None:
    async with serving() as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.sees("> ")
        await here.interrupts("again")
        await here.says("hello")
        await here.sees("You said hello.")
        await here.sees("> ")
        await here.interrupts("again")
        await here.sees("> ")
        await here.interrupts("to continue")
        assert await here.ends() == 0


async def test_what_is_typed_while_a_run_goes_on_steers_it(tmp_path: Path) -> None:
    async def listens(run: Served) -> None:
        run.says("Working …")
        heard = await run.steered.get()
        run.emit(Prompted(user(heard), "steer"))
        run.says(f"Heard: {heard}.")
        run.ends(f"Heard: {heard}.")

    async with serving(listens) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.says("go")
        await here.sees("Working …")
        here.type("in French, please\n")
        await here.sees("Heard: in French, please.")
        await here.sees("> ")
        assert len(fake.runs) == 1


async def test_what_is_typed_too_late_is_the_next_message(tmp_path: Path) -> None:
    async def ends_unseen(run: Served) -> None:
        run.says("Working …")
        run.state = "ended"  # the service knows it, the watcher does not yet
        await run.cancelled.wait()
        run.ends("", StopReason.CANCELLED)

    async with serving(ends_unseen) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.says("go")
        await here.sees("Working …")
        here.type("one more thing\n")
        here.type("/cancel\n")
        await here.sees("You said one more thing.")


async def test_an_approval_is_asked_for_and_the_run_goes_on(tmp_path: Path) -> None:
    fake_: list[FakeService] = []

    async def asks(run: Served) -> None:
        fake_[0].asks(run, command="touch a \x1b[2Jb")
        said = await run.answered.get()
        run.resumes()
        run.says(json.dumps(said))
        run.ends(json.dumps(said))

    async with serving(asks) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.says("go")
        await here.sees("bash wants to run:")
        await here.sees("command: touch a b")
        await here.sees("always: every call of bash")
        await here.sees("say why not: ")
        here.type("a\n")
        await here.sees('"decision": "session"')
        await here.sees("> ")
        assert "\x1b[2J" not in here.seen


async def test_ctrl_c_at_an_approval_cancels_the_run(tmp_path: Path) -> None:
    fake_: list[FakeService] = []

    async def asks(run: Served) -> None:
        fake_[0].asks(run, command="rm -r .")
        await run.cancelled.wait()
        run.ends("", StopReason.CANCELLED)

    async with serving(asks) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.says("go")
        await here.sees("say why not: ")
        here.type(CTRL_C)
        await here.sees("cancelled · ")
        await here.says("well?")
        await here.sees("You said well?.")
        assert fake.approvals[0]["standing"] == "waiting"


async def test_a_question_is_asked_until_the_answer_can_be_used(tmp_path: Path) -> None:
    fake_: list[FakeService] = []

    async def asks(run: Served) -> None:
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

    async with serving(asks) as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        fake_.append(fake)
        await here.says("paint it")
        await here.sees("2. blue")
        here.type("green\n")
        await here.sees("one of the options must be chosen")
        await here.sees("2. blue")
        here.type("2\n")
        await here.sees("Chosen: ['blue']")


async def test_a_paste_of_several_lines_is_one_message(tmp_path: Path) -> None:
    async with serving() as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.sees("> ")
        here.type("\x1b[200~one\ntwo\nthree\x1b[201~\n")
        await here.sees("You said one\ntwo\nthree.")
        await here.says("four\\")
        await here.sees("… ")
        here.type("five\n")
        await here.sees("You said four\nfive.")
    assert len(fake.runs) == 2


async def test_messages_are_called_back_in_the_next_chat_and_kept_privately(tmp_path: Path) -> None:
    async with serving() as fake:
        shell = shell_of(fake, tmp_path)
        async with terminal(shell, "chat") as here:
            await here.says("remember me")
            await here.sees("You said remember me.")
            await here.says(" not me")
            await here.sees("You said  not me.")
            await here.says("/quit")
            await here.ends()
        kept = shell.home / ".evoclaw" / "chat_history"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert kept.read_text() == '"remember me"\n"/quit"\n'
        async with terminal(shell, "chat") as here:
            await here.sees("> ")
            here.type("\x1b[A\x1b[A\n")
            await here.sees("You said remember me.")


async def test_slash_commands_find_name_branch_and_leave_conversations(tmp_path: Path) -> None:
    async with serving() as fake, terminal(shell_of(fake, tmp_path), "chat") as here:
        await here.says("first")
        await here.sees("You said first.")
        await here.says("/title On \x1bfirst things")
        await here.says("/new other")
        await here.says("second")
        await here.sees("You said second.")
        await here.says("/sessions")
        await here.sees("* s2  other")
        await here.sees("  s1  On")
        await here.says("/session s1")
        await here.says("/history")
        await here.sees("1  user     first")
        await here.sees("2  agent    You said first.")
        await here.says("/branch 1")
        await here.sees("this is now session s1-1")
        await here.says("/nonsense")
        await here.sees("no such command")
        await here.says("//odd")
        await here.sees("You said /odd.")
    assert [run.session_id for run in fake.runs.values()] == ["s1", "s2", "s1-1"]


async def test_the_service_going_away_for_a_moment_is_not_noticed(tmp_path: Path) -> None:
    async with serving() as fake:
        fake.cut_after, fake.drop_after, fake.lost = [2, -1], [-1, 1], 1
        async with terminal(shell_of(fake, tmp_path), "chat") as here:
            await here.says("hello")
            await here.sees("You said hello.\n")
            await here.sees("completed")
            await here.sees("> ")
            assert here.seen.count("You said hello.") == 1
    assert len(fake.runs) == 1, "the key made it one run"
    assert fake.streams == ["", "2", "3"]


async def test_a_session_is_gone_on_with_and_its_open_run_taken_up(tmp_path: Path) -> None:
    async with serving(waits_to_be_cancelled) as fake:
        shell = shell_of(fake, tmp_path)
        async with terminal(shell, "chat", "--session", "My work") as here:
            await here.says("go")
            await here.sees("Working …")
            here.process.send_signal(signal.SIGKILL)
            await here.ends()
        assert fake.titles == {"s1": "My work"}
        async with terminal(shell, "chat", "--session", "My work") as here:
            await here.sees("resuming the run of this session: go")
            await here.sees("Working …")
            here.type(CTRL_C)
            await here.sees("cancelled · ")
            await here.says("next")
            await here.sees("You said next.")
    assert {run.session_id for run in fake.runs.values()} == {"s1"}


async def test_in_a_pipe_each_line_is_a_message_and_answers_are_all_of_stdout(
    tmp_path: Path,
) -> None:
    async with serving() as fake:
        ran = await shell_of(fake, tmp_path).type("chat", stdin=b"one\n\ntwo\n")
    assert (ran.code, ran.out) == (0, "You said one.\nYou said two.\n")
    assert "\x1b" not in ran.err


async def test_in_a_pipe_a_run_that_waits_for_a_person_ends_the_chat(tmp_path: Path) -> None:
    fake_: list[FakeService] = []

    async def asks(run: Served) -> None:
        fake_[0].asks(run, command="touch a")

    async with serving(asks) as fake:
        fake_.append(fake)
        ran = await shell_of(fake, tmp_path).type("chat", stdin=b"one\ntwo\n")
    assert ran.code == 4
    assert "evoclaw approvals" in ran.err
    assert len(fake.runs) == 1


async def test_without_a_service_it_says_how_to_start_one(tmp_path: Path) -> None:
    async with serving() as fake:
        shell = shell_of(fake, tmp_path)
    gone = await shell.type("chat", stdin=b"hello\n")
    (shell.home / ".evoclaw" / "api.json").unlink()
    none = await shell.type("chat", stdin=b"hello\n")
    assert gone.code == none.code == 2
    assert "start it with `evoclaw up`" in gone.err
    assert none.err == "evoclaw: the service is not running: start it with `evoclaw up`\n"

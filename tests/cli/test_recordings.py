"""`evoclaw fork` and `evoclaw diff` on recordings that real runs made."""

from __future__ import annotations

import json
from pathlib import Path

from evoclaw.core.events import RunStarted
from evoclaw.core.messages import Reply, SystemMessage, ToolResult, UserMessage
from evoclaw.store.sessions.recordings import read_recording
from tests.support.command_line import Shell, reply, shell
from tests.support.stub_service import echo_message, serve_stub, shell_for

TASK = (
    reply("Looking.", ("read", {"path": "a.txt"})),
    reply("", ("read", {"path": "b.txt"})),
    reply("A and b."),
)


async def recorded(here: Shell, name: str, *arguments: str) -> Path:
    path = here.workspace / name
    for file in "ab":
        (here.workspace / f"{file}.txt").write_text(f"{file}\n")
    ran = await here.type(*arguments, "--record", str(path))
    assert ran.code == 0, ran.err
    return path


def opening(path: Path) -> RunStarted:
    event = read_recording(path)[0].event
    assert isinstance(event, RunStarted)
    return event


async def test_fork_keeps_the_messages_before_the_turn_and_asks_the_model_again(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, *TASK, reply("Forked.")) as here:
        old = await recorded(here, "old.jsonl", "run", "read both")
        new = await recorded(
            here, "new.jsonl", "fork", str(old), "--at", "2", "--model", "openai/b"
        )
        again = await here.type("replay", str(new))
    begun = opening(new)
    kinds = [type(message) for message in begun.messages]
    assert kinds == [SystemMessage, UserMessage, Reply, ToolResult]
    assert begun.model == "openai/b"
    assert (begun.messages[1].text, begun.messages[2].text) == ("read both", "Looking.")
    assert read_recording(new)[0].run_id != read_recording(old)[0].run_id
    assert again.out == "Forked.\n", "a fork is a recording like any other"


async def test_fork_can_replace_the_system_prompt_and_the_task(tmp_path: Path) -> None:
    async with shell(tmp_path, *TASK, reply("Other."), reply("More.")) as here:
        old = await recorded(here, "old.jsonl", "run", "read both")
        (here.workspace / "prompt.txt").write_text("Be brief.")
        first = await recorded(
            *(here, "first.jsonl", "fork", str(old), "--at", "1"),
            *("--prompt", "prompt.txt", "--message", "say other"),
        )
        more = await recorded(
            *(here, "more.jsonl", "fork", str(old), "--at", "4", "--message", "and more"),
        )
    system, task = opening(first).messages
    assert (system.text, task.text) == ("Be brief.", "say other")
    assert [m.text for m in opening(more).messages[-2:]] == ["A and b.", "and more"]


async def test_an_impossible_fork_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with shell(tmp_path, *TASK) as here:
        old = await recorded(here, "old.jsonl", "run", "read both")
        beyond = await here.type("fork", str(old), "--at", "5")
        ended = await here.type("fork", str(old), "--at", "4")
        nothing = await here.type("fork", "--at", "1")
    assert (beyond.code, ended.code, nothing.code) == (2, 2, 2)
    assert "turn 5 does not exist; choose 1 to 4" in beyond.err
    assert "--message" in ended.err
    assert "--run ID" in nothing.err


async def test_fork_accepts_a_run_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "llm").mkdir()
    async with serve_stub(echo_message) as fake, shell(tmp_path / "llm", reply("Forked.")) as llm:
        here = shell_for(fake, tmp_path)
        here.env.update(llm.env)
        assert (await here.type("chat", stdin=b"hello\n")).code == 0
        ran = await here.type("fork", "--run", "run00000001", "--at", "1")
    assert (ran.code, ran.out) == (0, "Forked.\n")
    assert "forked from run run00000 at turn 1" in ran.err


async def test_diff_finds_no_difference_between_equal_runs(tmp_path: Path) -> None:
    async with shell(tmp_path, *TASK, *TASK) as here:
        a = await recorded(here, "a.jsonl", "run", "read both")
        b = await recorded(here, "b.jsonl", "run", "read both")
        told = await here.type("diff", str(a), str(b))
        facts = json.loads((await here.type("diff", str(a), str(b), "--json")).out)
    assert (told.code, told.out) == (0, "the same, turn by turn\n")
    assert facts == {"same": True, "differences": []}


async def test_diff_reports_differences_turn_by_turn(tmp_path: Path) -> None:
    other = (TASK[0], reply("", ("read", {"path": "none.txt"})), reply("Only \x1b[2Ja."))
    async with shell(tmp_path, *TASK, *other) as here:
        a = await recorded(here, "a.jsonl", "run", "read both")
        b = await recorded(here, "b.jsonl", "run", "read both")
        told = await here.type("diff", str(a), str(b))
        facts = json.loads((await here.type("diff", str(a), str(b), "--json")).out)
        broken = await here.type("diff", str(a), "none.jsonl")
    assert (told.code, broken.code) == (1, 2)
    assert 'turn 2: calls\n  - [["read",{"path":"b.txt"}]]' in told.out
    assert "turn 3: text\n  - A and b.\n  + Only a.\n" in told.out
    found = {(one["turn"], one["what"]) for one in facts["differences"]}
    assert found == {(0, "answer"), (2, "calls"), (2, "results"), (3, "text")}

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import ANY_RESOURCE
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.shell import bash
from tests.support.tool_calls import use

pytestmark = pytest.mark.process


async def test_bash_returns_the_command_output(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    heard: list[str] = []

    result = await use(
        bash, tmp_path, command="pwd; echo careful >&2", workdir="sub", progress=heard.append
    )

    assert result.text == f"{tmp_path / 'sub'}\n[stderr]\ncareful"
    assert "".join(sorted(heard)) == f"{tmp_path / 'sub'}\ncareful\n"
    isolation = await LocalProcesses(tmp_path).isolation()
    assert result.details == {
        "exit_code": 0,
        "isolation": isolation,
        "stdout_bytes": len(str(tmp_path / "sub")) + 1,
        "stderr_bytes": 8,
        "stderr": "careful\n",
    }


async def test_bash_reports_a_command_without_output(tmp_path: Path) -> None:
    assert (await use(bash, tmp_path, command="true")).text == "(no output)"


async def test_a_failing_command_shows_exit_code_output_and_end_of_stderr(tmp_path: Path) -> None:
    command = "echo partial; seq 5000 >&2; echo the reason >&2; exit 4"

    with pytest.raises(ToolFailure) as failure:
        await use(bash, tmp_path, command=command)

    assert failure.value.kind is ErrorKind.EXECUTION_FAILED
    message = failure.value.message
    assert message.startswith("The command ended with exit code 4.\npartial\n[stderr (its end)]")
    assert message.endswith("the reason") and len(message) < 9_000
    assert failure.value.details["exit_code"] == 4


async def test_fault_31_a_killed_command_names_memory_as_the_likely_cause(tmp_path: Path) -> None:
    for command, words in (("kill -9 $$", "signal 9"), ("(exit 137)", "exit code 137")):
        with pytest.raises(ToolFailure, match=f"{words}.*memory"):
            await use(bash, tmp_path, command=command)


async def test_fault_29_any_output_is_valid_json_and_marked(tmp_path: Path) -> None:
    result = await use(bash, tmp_path, command=r"printf 'a\xff\x00\xed\xa0\x80b'")

    assert result.text.startswith("a\ufffd") and "not valid text" in result.text
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result


async def test_fault_28_long_output_is_truncated_in_the_middle(tmp_path: Path) -> None:
    result = await use(bash, tmp_path, command="seq 1000000")

    assert len(result.text) < 70_000
    assert result.text.startswith("1\n2\n") and result.text.endswith("\n1000000")
    assert "bytes left out" in result.text
    assert result.details["stdout_bytes"] == 6_888_896


async def test_fault_34_a_password_prompt_does_not_hang(tmp_path: Path) -> None:
    with pytest.raises(ToolFailure):
        await use(bash, tmp_path, command="read -rsp 'Password: ' secret")


async def test_a_cancelled_call_stops_the_command(tmp_path: Path) -> None:
    ready, pipe = asyncio.Event(), tmp_path / "pipe"
    os.mkfifo(pipe)
    command = "exec 3<>pipe; echo up; read -r line <&3; sleep 60"
    task = asyncio.create_task(use(bash, tmp_path, command=command, progress=lambda _: ready.set()))
    async with asyncio.timeout(30):
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.raises(OSError, match="No such device"):  # nobody has the pipe open any more
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


async def test_bash_runs_on_a_fake_machine() -> None:
    machine = FakeOps(commands={"date": "Monday\n"})

    assert (await use(bash, machine, exec=machine, command="date")).text == "Monday"
    with pytest.raises(ToolFailure, match="exit code 127"):
        await use(bash, machine, exec=machine, command="dtae")
    assert machine.ran == [("bash", "-c", "date"), ("bash", "-c", "dtae")]


def test_bash_locks_all_resources_and_may_run_five_minutes() -> None:
    made = bash.tool
    assert (made.resources, made.streams) == ((ANY_RESOURCE,), True)
    assert (made.timeout, made.max_timeout) == (30, 300)
    assert made.permissions == {"shell"}
    assert list(made.parameters["properties"]) == ["command", "workdir", "timeout_ms"]

from __future__ import annotations

import asyncio
import gc
import os
import resource
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.processes import LocalProcesses
from tests.support.processes import Isolation, alive, bash, make_processes, unique_seconds

BOTH = pytest.mark.parametrize("isolation", ["pid-namespace", "none"])


async def test_output_exit_code_and_isolation_are_reported(processes: LocalProcesses) -> None:
    done = await bash(processes, "echo out; echo err >&2; exit 3")

    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert (done.stdout_bytes, done.stderr_bytes) == (4, 4)
    assert done.isolation == await processes.isolation()


@pytest.mark.parametrize(
    ("command", "code"), [("kill -9 $$", -9), ("kill -SEGV $$", -11), ("exit 137", 137)]
)
async def test_death_by_signal_is_distinguished_from_an_exit_code(
    processes: LocalProcesses, command: str, code: int
) -> None:
    assert (await bash(processes, command)).exit_code == code


async def test_stdin_is_the_given_bytes_or_empty(processes: LocalProcesses) -> None:
    async with asyncio.timeout(30):
        assert (await processes.run(["cat"], stdin=b"given")).stdout == b"given"
        assert (await processes.run(["cat"])).stdout == b""


async def test_fault_34_reading_stdin_or_the_terminal_does_not_block(
    processes: LocalProcesses,
) -> None:
    done = await bash(processes, "read x; tty; echo password: > /dev/tty; exit 7")

    assert done.exit_code == 7
    assert done.stdout == b"not a tty\n"
    assert b"/dev/tty" in done.stderr


async def test_a_command_gets_only_the_configured_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    processes = LocalProcesses(tmp_path, env={"GREETING": "hello"})

    async with asyncio.timeout(30):
        done = await processes.run(["env"], env={"ONCE": "1"})

    names = {line.split("=")[0] for line in done.stdout.decode().splitlines()}
    assert names == {"PATH", "HOME", "LANG", "TERM", "GREETING", "ONCE"}
    assert b"TERM=dumb" in done.stdout


async def test_commands_inherit_no_file_descriptor(processes: LocalProcesses) -> None:
    ours = os.open("/etc/hostname", os.O_RDONLY)
    try:
        os.set_inheritable(ours, True)
        done = await bash(processes, "ls /proc/self/fd")
    finally:
        os.close(ours)

    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls itself, reading the folder


async def test_a_command_cannot_start_outside_the_root(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    processes = LocalProcesses(tmp_path)

    async with asyncio.timeout(30):
        assert (await processes.run(["pwd"], cwd="in")).stdout.decode().strip() == str(
            tmp_path / "in"
        )
        for folder in ("..", "/etc", "out", "/proc/self/root"):
            with pytest.raises(ToolFailure) as refused:
                await processes.run(["pwd"], cwd=folder)
            assert refused.value.kind is ErrorKind.PERMISSION_DENIED
        with pytest.raises(ToolFailure) as missing:
            await processes.run(["pwd"], cwd="nowhere")
        assert missing.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        ([], ErrorKind.INVALID_PARAMS),
        (["no-such-program-here"], ErrorKind.NOT_FOUND),
        (["./missing"], ErrorKind.NOT_FOUND),
        (["echo", "a\0b"], ErrorKind.INVALID_PARAMS),
        (["echo", "\ud800"], ErrorKind.INVALID_PARAMS),
        (["echo", "x" * 200_000], ErrorKind.TOO_LARGE),
    ],
)
async def test_a_command_that_cannot_be_started_is_refused(
    processes: LocalProcesses, argv: list[str], kind: ErrorKind
) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(ToolFailure) as refused:
            await processes.run(argv)
    assert refused.value.kind is kind


async def test_fault_41_arguments_are_never_parsed_as_launcher_options(
    processes: LocalProcesses, tmp_path: Path
) -> None:
    odd = ["--kill-child", "-exec", "--upload-pack=x", "a\nb", "$HOME", "-n", "--", "A=b"]
    program = tmp_path / "X=show"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)

    async with asyncio.timeout(30):
        done = await processes.run(["./X=show", *odd])

    assert done.stdout.decode() == "|".join(odd) + "|"


async def test_output_is_streamed_without_splitting_characters(
    processes: LocalProcesses,
) -> None:
    heard: list[str] = []
    async with asyncio.timeout(30):
        await processes.run(
            ["bash", "-c", r"printf '\xc3'; sleep 0.05; printf '\xa9'; printf '\xff'"],
            on_output=heard.append,
        )

    assert "".join(heard) == "é\ufffd"


async def test_long_output_keeps_head_and_tail_and_counts_the_rest(
    processes: LocalProcesses,
) -> None:
    heard: list[str] = []
    async with asyncio.timeout(30):
        done = await processes.run(
            ["bash", "-c", "seq 100000"], on_output=heard.append, max_output=1000
        )

    text = done.stdout.decode()
    assert done.stdout_bytes == 588_895
    assert text.startswith("1\n2\n") and text.endswith("99999\n100000\n")
    assert "[… 587,895 bytes left out …]" in text
    assert sum(map(len, heard)) < 1200


async def test_fault_28_a_hundred_megabytes_of_output_leave_memory_flat(
    processes: LocalProcesses,
) -> None:
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with asyncio.timeout(20):
        done = await processes.run(["head", "-c", "100000000", "/dev/zero"])

    assert done.stdout_bytes == 100_000_000
    assert len(done.stdout) < 1_100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


@BOTH
async def test_fault_28_endless_output_is_stopped_at_a_byte_cap(
    tmp_path: Path, isolation: Isolation
) -> None:
    processes = await make_processes(tmp_path, isolation, max_bytes=10 << 20)
    mark = unique_seconds()
    async with asyncio.timeout(30):
        with pytest.raises(ToolFailure) as stopped:
            await processes.run(["yes", mark])

    assert stopped.value.kind is ErrorKind.TOO_LARGE
    assert "was stopped" in stopped.value.message and mark in stopped.value.message
    assert stopped.value.details["stdout_bytes"] > 10 << 20
    assert alive(mark) == []


async def test_fault_29_output_bytes_are_passed_through_unchanged(
    processes: LocalProcesses,
) -> None:
    done = await bash(processes, r"printf '\xff\xfe\x00\xed\xa0\x80'; head -c 10000000 /dev/zero")

    assert done.stdout.startswith(b"\xff\xfe\x00\xed\xa0\x80")
    assert done.stdout_bytes == 10_000_006

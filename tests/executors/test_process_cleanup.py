from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from evoclaw.executors.processes import LocalProcesses
from tests.support.processes import (
    SOON,
    Isolation,
    alive,
    bash,
    cancelled_when_ready,
    children,
    make_processes,
    unique_seconds,
)

PYTHON = "/usr/bin/python3"
BOTH = pytest.mark.parametrize("isolation", ["pid-namespace", "none"])


async def test_fault_30_cancelling_kills_four_hundred_forked_processes(
    processes: LocalProcesses,
) -> None:
    mark = unique_seconds()
    command = f"for i in $(seq 400); do sleep {mark} & done; echo ready; wait"

    assert await cancelled_when_ready(processes, command) < SOON
    assert alive(mark) == []


async def test_fault_30_cancelling_kills_a_process_tree_that_keeps_forking(
    processes: LocalProcesses,
) -> None:
    mark = unique_seconds()
    forking = f"(while :; do sleep {mark} & sleep 0.002; done) &"

    assert await cancelled_when_ready(processes, f"{forking} {forking} echo ready; wait") < SOON
    assert alive(mark) == []


async def test_fault_32_grandchildren_in_other_sessions_do_not_survive_a_cancel(
    processes: LocalProcesses,
) -> None:
    mark = unique_seconds()
    command = (
        f"setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &)"
        f" ; (setsid env -i sleep {mark} >/dev/null 2>&1 &) ; echo ready; sleep {mark}"
    )

    assert await cancelled_when_ready(processes, command) < SOON
    assert alive(mark) == []


async def test_fault_32_background_processes_end_with_the_command(
    processes: LocalProcesses,
) -> None:
    mark = unique_seconds()
    done = await bash(
        processes, f"setsid sleep {mark} & (setsid env -i sleep {mark} &) ; echo done"
    )

    assert (done.exit_code, done.stdout) == (0, b"done\n")
    assert alive(mark) == []


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; echo ready; while :; do sleep {0}; done",
        "echo ready; kill -STOP $$; sleep {0}",
        "sleep {0} & kill -STOP $!; echo ready; wait",
        "(sleep 0.01 & exec sleep {0}) & echo ready; wait",
    ],
    ids=["ignores TERM", "stops itself", "stopped child", "zombie"],
)
async def test_fault_33_processes_that_ignore_sigterm_are_killed_and_reaped(
    processes: LocalProcesses, command: str
) -> None:
    before, mark = children(), unique_seconds()

    assert await cancelled_when_ready(processes, command.format(mark)) < SOON
    assert alive(mark) == []
    assert children() <= before


async def test_a_terminated_command_gets_time_to_clean_up(
    processes: LocalProcesses, tmp_path: Path
) -> None:
    command = "trap 'echo tidy > tidy; exit' TERM; echo ready; while :; do sleep 0.01; done"

    await cancelled_when_ready(processes, command)

    assert (tmp_path / "tidy").read_text() == "tidy\n"


async def test_a_timeout_leaves_no_process_running(processes: LocalProcesses) -> None:
    mark = unique_seconds()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await processes.run(["bash", "-c", f"setsid sleep {mark} & sleep {mark}"])

    assert alive(mark) == []


async def test_a_second_cancel_does_not_interrupt_the_cleanup(
    processes: LocalProcesses,
) -> None:
    mark = unique_seconds()
    command = f"trap '' TERM; echo ready; setsid sleep {mark} & while :; do sleep {mark}; done"
    ready = asyncio.Event()
    task = asyncio.create_task(
        processes.run(["bash", "-c", command], on_output=lambda _: ready.set())
    )
    async with asyncio.timeout(30):
        await ready.wait()
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=0.01)

    assert task.cancelled()
    assert alive(mark) == []


async def test_cancelling_during_the_start_leaves_no_process(
    processes: LocalProcesses,
) -> None:
    mark = unique_seconds()
    for step in range(12):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(step * 0.004):
                await processes.run(["bash", "-c", f"setsid sleep {mark} & sleep {mark}"])
        assert alive(mark) == []


async def test_many_commands_run_concurrently(processes: LocalProcesses) -> None:
    async with asyncio.timeout(20):
        done = await asyncio.gather(
            *(processes.run(["bash", "-c", f"echo {n}; exit {n}"]) for n in range(8))
        )

    assert [(one.exit_code, one.stdout) for one in done] == [
        (n, f"{n}\n".encode()) for n in range(8)
    ]


KILLED = """
import asyncio, sys
from evoclaw.executors.processes import LocalProcesses

async def main(root, isolation, mark):
    processes = LocalProcesses(root, isolation=isolation)
    command = f"setsid sleep {mark} & echo ready; sleep {mark}"
    await processes.run(["bash", "-c", command], on_output=lambda text: print(text, flush=True))

asyncio.run(main(*sys.argv[1:]))
"""


@BOTH
async def test_commands_die_when_the_parent_process_is_killed(
    tmp_path: Path, isolation: Isolation
) -> None:
    await make_processes(tmp_path, isolation)
    mark = unique_seconds()
    ours = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", KILLED, str(tmp_path), isolation, mark),
        stdout=asyncio.subprocess.PIPE,
    )
    assert ours.stdout is not None
    async with asyncio.timeout(20):
        try:
            assert await ours.stdout.readline() == b"ready\n"
            assert alive(mark)
        finally:
            ours.kill()
            await ours.wait()
        # The survivors would hold our pipe open: its end is the end of them all.
        await ours.stdout.read()
        while alive(mark):
            await asyncio.to_thread(os.sched_yield)


PLAIN_USER = """
import asyncio, os, sys
sys.path[:0] = {path!r}
import evoclaw.executors.processes, evoclaw.executors.supervisor_program
from evoclaw.executors.processes import LocalProcesses
import concurrent.futures.thread, encodings.idna
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.executable = {python!r}

async def main(root, isolation, mark):
    processes = LocalProcesses(root, isolation=isolation)
    try:
        print(await processes.isolation(), flush=True)
    except Exception as problem:
        print(getattr(problem, "kind", problem), flush=True)
        return
    done = await processes.run(["bash", "-c", "id -u; kill -9 $$"])
    print(done.exit_code, done.stdout.decode().strip(), flush=True)
    try:
        async with asyncio.timeout(0.5):
            command = f"trap '' TERM; setsid sleep {{mark}} & sleep {{mark}}"
            await processes.run(["bash", "-c", command])
    except TimeoutError:
        print("timeout", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@BOTH
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs a python that everybody may run")
def test_process_cleanup_works_for_an_unprivileged_user(
    public_folder: Path, isolation: Isolation
) -> None:
    shared = public_folder / "src"
    source = Path(__file__).parents[2] / "src"
    shutil.copytree(source, shared, ignore=shutil.ignore_patterns("__pycache__"))
    mark = unique_seconds()
    script = PLAIN_USER.format(path=[str(shared)], python=PYTHON)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(public_folder), isolation, mark],
        capture_output=True,
        timeout=20,
        check=False,
        cwd=public_folder,
    )
    lines = done.stdout.decode().split("\n")[:-1]
    if lines == ["sandbox_unavailable"]:
        pytest.skip("plain users may not make namespaces here")

    assert lines == [isolation, f"{-signal.SIGKILL} 65534", "timeout"], done.stderr.decode()
    assert alive(mark) == []


async def test_a_first_call_cancelled_twice_leaves_no_resource_open(tmp_path: Path) -> None:
    """The probe for a namespace starts processes too; its clean-up must not be cut short."""
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always", ResourceWarning)
        for wait in range(24):
            task = asyncio.create_task(LocalProcesses(tmp_path).run(("true",)))
            await asyncio.wait([task], timeout=wait / 2_000)
            task.cancel()
            await asyncio.wait([task], timeout=wait / 4_000)
            task.cancel()
            async with asyncio.timeout(30):
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            del task
            gc.collect()
    assert [str(warning.message) for warning in unclosed] == []

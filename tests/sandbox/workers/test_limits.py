"""A command that takes too much fails alone, and is told what it met."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.command_limits import limits_met
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import find_cgroups
from tests.support.sandboxes import MB, failure_of, output_of, policy, run, sandboxed

FORKS = """
import os, time
for _ in range(400):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
"""
EATEN = "python3 -c 'x = bytearray(600 << 20)'"
GROUPS = pytest.mark.parametrize(
    "groups",
    [
        pytest.param(
            True,
            id="groups",
            marks=pytest.mark.skipif(
                find_cgroups() is None, reason="no control groups for us here"
            ),
        ),
        pytest.param(False, id="limits of each process"),
    ],
)


@GROUPS
async def test_fault_30_a_fork_bomb_is_contained_and_reported(tmp_path: Path, groups: bool) -> None:
    (tmp_path / "bomb.py").write_text(FORKS)
    async with sandboxed(policy(tmp_path, processes=100), groups=groups) as processes:
        failed = await failure_of(processes, "python3 bomb.py")

        assert failed.kind is ErrorKind.RESOURCE
        assert failed.details["limits"] == ["processes"]
        assert failed.details["isolation"] == "bubblewrap"
        # The machine and the sandbox go on.
        assert await output_of(processes, "echo alive") == "alive"


@GROUPS
async def test_fault_31_a_memory_bomb_is_stopped_and_reported(tmp_path: Path, groups: bool) -> None:
    async with sandboxed(policy(tmp_path, memory=300 * MB), groups=groups) as processes:
        failed = await failure_of(processes, EATEN)

        assert failed.kind is ErrorKind.RESOURCE and failed.details["limits"] == ["memory"]
        assert await output_of(processes, "echo alive") == "alive"


@pytest.mark.skipif(find_cgroups() is None, reason="no control groups for us here")
async def test_fault_31_memory_of_many_processes_is_counted_together(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path, memory=200 * MB)) as processes:
        eat = "python3 -c 'import time; x = bytearray(100 << 20); time.sleep(30)'"
        failed = await failure_of(processes, f"{eat} & {eat} & {eat} & wait -n; exit 1")

    assert failed.kind is ErrorKind.RESOURCE and "memory" in failed.message


async def test_fault_31_a_sparse_file_bomb_is_stopped_and_reported(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path, file_size=10 * MB)) as processes:
        failed = await failure_of(processes, "truncate -s 1T bomb")
        assert failed.kind is ErrorKind.RESOURCE and failed.details["limits"] == ["file size"]

        failed = await failure_of(processes, "exec head -c 50000000 /dev/zero > bomb")
        assert failed.kind is ErrorKind.RESOURCE and failed.details["limits"] == ["file size"]

    assert (tmp_path / "bomb").stat().st_size <= 10 * MB


async def test_fault_31_a_full_temporary_folder_is_reported(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path, memory=64 * MB)) as processes:
        failed = await failure_of(processes, "head -c 60000000 /dev/zero > /tmp/big")
        assert failed.kind is ErrorKind.RESOURCE

        assert await output_of(processes, "ls /tmp | grep -c big || true") == "0"


MANY = "import os\nfor n in range(10**9): os.close(os.open(f'f{n}', os.O_CREAT))"


async def test_fault_31_a_million_files_are_stopped_and_reported(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path, files=2000)) as processes:
        (tmp_path / "many.py").write_text(MANY)
        failed = await failure_of(processes, "mkdir d; cd d; exec python3 ../many.py")

    assert failed.kind is ErrorKind.RESOURCE
    assert failed.details["limits"] == ["number of files"]


async def test_fault_31_open_files_are_limited(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path, open_files=64)) as processes:
        done = await run(processes, 'ulimit -n; for i in $(seq 3 99); do eval "exec $i</"; done')

    assert done.stdout == b"64\n" and b"Too many open files" in done.stderr


async def test_an_ordinary_failure_is_not_reported_as_a_limit(processes: LocalProcesses) -> None:
    assert (await run(processes, "echo no such thing >&2; exit 4")).exit_code == 4


def test_limits_are_reported_only_for_failed_commands() -> None:
    assert limits_met(0, b"MemoryError", ["memory"]) == []
    assert limits_met(1, b"MemoryError", []) == ["memory"]
    assert limits_met(153, b"", []) == ["file size"]
    assert limits_met(1, b"MemoryError", [], sandboxed=False) == []


async def test_limits_apply_to_concurrent_commands(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path, memory=300 * MB)) as processes, asyncio.timeout(30):
        outcomes = await asyncio.gather(
            *(run(processes, EATEN if n % 2 else "echo fine") for n in range(6)),
            return_exceptions=True,
        )

    failed = [one for one in outcomes if isinstance(one, ToolFailure)]
    assert [one.kind for one in failed] == [ErrorKind.RESOURCE] * 3

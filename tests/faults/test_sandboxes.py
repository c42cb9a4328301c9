"""The slow half of faults 28 to 36: every engine, as root and as a plain user, and real bombs."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.registry import package_engines
from tests.sandbox.engines.test_self_test import as_user, shared_folder
from tests.sandbox.workers.test_limits import FORKS
from tests.support.processes import alive, cancelled_when_ready, unique_seconds
from tests.support.sandbox_engines import PYTHON, make_accessible, unprivileged_user
from tests.support.sandboxes import MB, failure_of, output_of, owner, policy, run, sandboxed

ENGINES = ["bubblewrap", "bubblewrap, cold", "firejail", "podman"]


@pytest_asyncio.fixture(name="sandboxed_in", params=ENGINES)
async def _sandboxed_in(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[LocalProcesses]:
    name, _, how = str(request.param).partition(", ")
    bounds = policy(make_accessible(tmp_path), memory=512 * MB, processes=120, file_size=20 * MB)
    try:
        async with sandboxed(
            bounds, package_engines()[name], warm=how != "cold", max_bytes=10 * MB
        ) as processes:
            yield processes
    except ToolFailure as refused:
        if refused.kind is not ErrorKind.SANDBOX_UNAVAILABLE or name == "bubblewrap":
            raise
        pytest.skip(f"refused here, as it must be: {refused}")


async def test_fault_28_endless_output_is_stopped_in_every_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    mark = unique_seconds()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async with asyncio.timeout(60):
        with pytest.raises(ToolFailure) as stopped:
            await sandboxed_in.run(["yes", mark])

    assert stopped.value.kind is ErrorKind.TOO_LARGE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert alive(mark) == []


async def test_fault_30_a_fork_bomb_is_contained_in_every_engine(
    sandboxed_in: LocalProcesses, tmp_path: Path
) -> None:
    mark = unique_seconds()
    (tmp_path / "bomb.py").write_text(FORKS)

    failed = await failure_of(sandboxed_in, f"exec python3 bomb.py {mark}")

    assert failed.kind is ErrorKind.RESOURCE and "processes" in failed.details["limits"]
    assert alive(mark) == []
    assert await output_of(sandboxed_in, "echo alive") == "alive"


async def test_fault_31_exceeded_memory_and_file_limits_are_named_in_every_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    memory = await failure_of(sandboxed_in, "python3 -c 'x = bytearray(900 << 20)'")
    sparse = await failure_of(sandboxed_in, "truncate -s 1T bomb")

    assert memory.kind is ErrorKind.RESOURCE and "memory" in memory.details["limits"]
    assert sparse.kind is ErrorKind.RESOURCE and sparse.details["limits"] == ["file size"]


async def test_fault_32_no_process_survives_a_cancel_in_any_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    mark = unique_seconds()
    command = f"setsid sleep {mark} & (setsid env -i sleep {mark} &) ; echo ready; sleep {mark}"

    assert await cancelled_when_ready(sandboxed_in, command) < 8
    assert alive(mark) == []


async def test_fault_33_processes_that_ignore_sigterm_are_killed_in_every_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    mark = unique_seconds()
    for command in (
        "trap '' TERM; echo ready; while :; do sleep {0}; done",
        "echo ready; kill -STOP $$; sleep {0}",
    ):
        assert await cancelled_when_ready(sandboxed_in, command.format(mark)) < 8
        assert alive(mark) == []


async def test_fault_34_commands_have_no_terminal_input_in_any_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    done = await run(sandboxed_in, "read x; tty; (echo password: > /dev/tty) 2>/dev/null; exit 7")

    assert (done.exit_code, done.stdout) == (7, b"not a tty\n")


async def test_created_files_belong_to_the_workspace_owner_in_every_engine(
    sandboxed_in: LocalProcesses, tmp_path: Path
) -> None:
    assert await output_of(sandboxed_in, "id -u; touch made; pwd") != "0"

    assert owner(tmp_path / "made") == owner(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs a python that everybody may run")
def test_fault_36_podman_runs_as_an_unprivileged_user() -> None:
    with shared_folder() as shared:
        isolation, said_there, code = as_user(shared, "podman")

    if isolation == "sandbox_unavailable":
        pytest.skip(f"refused here, as it must be: {said_there}")
    assert (isolation, said_there, code) == ("podman", str(unprivileged_user()[0]), 0)

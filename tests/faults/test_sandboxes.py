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
from tests.support.processes import alive, cancelled_when_ready, token
from tests.support.sandbox_engines import PYTHON, open_up, somebody
from tests.support.sandboxes import MB, owner, policy, refusal, run, said, sandboxed

ENGINES = ["bubblewrap", "bubblewrap, cold", "firejail", "podman"]


@pytest_asyncio.fixture(name="sandboxed_in", params=ENGINES)
async def _sandboxed_in(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[LocalProcesses]:
    name, _, how = str(request.param).partition(", ")
    bounds = policy(open_up(tmp_path), memory=512 * MB, processes=120, file_size=20 * MB)
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
    mark = token()
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
    mark = token()
    (tmp_path / "bomb.py").write_text(FORKS)

    failed = await refusal(sandboxed_in, f"exec python3 bomb.py {mark}")

    assert failed.kind is ErrorKind.RESOURCE and "processes" in failed.details["limits"]
    assert alive(mark) == []
    assert await said(sandboxed_in, "echo alive") == "alive"


async def test_fault_31_bombs_are_named_in_every_engine(sandboxed_in: LocalProcesses) -> None:
    memory = await refusal(sandboxed_in, "python3 -c 'x = bytearray(900 << 20)'")
    sparse = await refusal(sandboxed_in, "truncate -s 1T bomb")

    assert memory.kind is ErrorKind.RESOURCE and "memory" in memory.details["limits"]
    assert sparse.kind is ErrorKind.RESOURCE and sparse.details["limits"] == ["file size"]


async def test_fault_32_nothing_survives_a_cancel_in_any_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    mark = token()
    command = f"setsid sleep {mark} & (setsid env -i sleep {mark} &) ; echo ready; sleep {mark}"

    assert await cancelled_when_ready(sandboxed_in, command) < 8
    assert alive(mark) == []


async def test_fault_33_the_stubborn_are_killed_in_every_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    mark = token()
    for command in (
        "trap '' TERM; echo ready; while :; do sleep {0}; done",
        "echo ready; kill -STOP $$; sleep {0}",
    ):
        assert await cancelled_when_ready(sandboxed_in, command.format(mark)) < 8
        assert alive(mark) == []


async def test_fault_34_nobody_is_asked_for_anything_in_any_engine(
    sandboxed_in: LocalProcesses,
) -> None:
    done = await run(sandboxed_in, "read x; tty; (echo password: > /dev/tty) 2>/dev/null; exit 7")

    assert (done.exit_code, done.stdout) == (7, b"not a tty\n")


async def test_files_belong_to_the_owner_in_every_engine(
    sandboxed_in: LocalProcesses, tmp_path: Path
) -> None:
    assert await said(sandboxed_in, "id -u; touch made; pwd") != "0"

    assert owner(tmp_path / "made") == owner(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs a python that everybody may run")
def test_fault_36_podman_as_a_plain_user() -> None:
    with shared_folder() as shared:
        isolation, said_there, code = as_user(shared, "podman")

    if isolation == "sandbox_unavailable":
        pytest.skip(f"refused here, as it must be: {said_there}")
    assert (isolation, said_there, code) == ("podman", str(somebody()[0]), 0)

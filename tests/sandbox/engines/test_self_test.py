"""Fault 36: the self_test gets out of nothing, or the engine is refused; as root and as a user."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox import self_test_program as probe
from evoclaw.sandbox.engines.registry import package_engines
from evoclaw.sandbox.self_test import SELF_TEST_ROWS, SandboxSelfTest
from tests.support.sandbox_engines import (
    PYTHON,
    inside,
    make_accessible,
    sandbox,
    unprivileged_user,
    workspace,
)
from tests.support.sandboxes import may_sandbox

QUICK = ["bubblewrap", "bubblewrap, cold", "firejail"]


@pytest.mark.parametrize("name", QUICK)
async def test_fault_36_every_escape_attempt_is_blocked_or_the_engine_is_refused(
    tmp_path: Path, name: str
) -> None:
    engine, _, how = name.partition(", ")
    if missing := package_engines()[engine].missing():
        pytest.skip(missing)
    bounds = workspace(make_accessible(tmp_path))
    found = sandbox(engine, bounds, warm=how != "cold")
    try:
        async with asyncio.timeout(30):
            done = await inside(found, bounds).run(("id", "-u"))
    except ToolFailure as refused:
        assert refused.kind is ErrorKind.SANDBOX_UNAVAILABLE
        if engine == "bubblewrap" and may_sandbox():
            raise
        pytest.skip(f"refused here, as it must be: {refused}")
    finally:
        await found.close()

    assert done.isolation == engine
    assert done.stdout.strip() != b"0"


async def test_fault_36_without_a_sandbox_the_self_test_escapes(tmp_path: Path) -> None:
    """Else it would prove nothing: each row that is open must be found open."""
    bounds = workspace(tmp_path)

    escapes = await SandboxSelfTest().find_escapes(
        bounds, LocalProcesses(tmp_path, isolation="none")
    )

    found = {"read a secret", "tcp", "udp", "unix socket", "abstract socket", "host pids"}
    found |= {"kill", "setuid", "protected paths", "write outside", "shared memory"}
    if _has_io_uring():
        found.add("io_uring")
    assert found <= set(escapes)
    if os.geteuid() == 0:
        assert {"rights", "raw socket", "mknod", "remount", "sysctl"} <= set(escapes)
    assert not any(name.startswith("self_test-") for name in os.listdir("/etc"))  # noqa: PTH208


def _has_io_uring() -> bool:
    """Whether this kernel lets this user make one."""
    ring = ctypes.CDLL(None).syscall(probe.IO_URING_SETUP, 1, (ctypes.c_uint32 * 32)())
    if ring >= 0:
        os.close(ring)
    return ring >= 0


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp"])
async def test_firejail_works_in_temporary_folders(place: str) -> None:
    engine = package_engines()["firejail"]
    if missing := engine.missing():
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        # As `mktemp -d` makes it: only its owner may pass through.
        work = Path(folder, "below")
        os.mkdir(work)  # noqa: PTH102
        bounds = SandboxPolicy(str(work))
        found = sandbox("firejail", bounds)
        try:
            await found.ready()
            done = await inside(found, bounds).run(("bash", "-c", "echo x > made; ls -A .."))
        except ToolFailure as refused:
            if "not allowed to use Firejail" in refused.message or not may_sandbox():
                pytest.skip(f"firejail cannot be used here: {refused}")
            raise
        finally:
            await found.close()
        assert done.stdout == b"below\n" and (work / "made").read_text() == "x\n"
        assert (work / "made").stat().st_uid == os.geteuid()


def test_the_self_test_evaluates_every_attempt() -> None:
    assert tuple(probe.ESCAPE_ATTEMPTS) == SELF_TEST_ROWS


async def test_the_self_test_detects_leaked_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hush")
    bounds = workspace(tmp_path)

    leaky = LocalProcesses(tmp_path, env={"SOME_API_KEY": "hush"})

    assert "SOME_API_KEY" in (await SandboxSelfTest().find_escapes(bounds, leaky))["environment"]


async def test_a_passed_self_test_is_not_repeated_for_the_same_sandbox(tmp_path: Path) -> None:
    bounds = workspace(tmp_path)
    self_test = SandboxSelfTest()
    runs: list[int] = []

    class Counting(SandboxSelfTest):
        async def find_escapes(self, policy: object, exec: object) -> dict[str, str]:
            runs.append(1)
            return {}

    self_test = Counting()
    engine, exec = package_engines()["bubblewrap"], LocalProcesses(tmp_path)
    await self_test.check(engine, bounds, exec)
    await self_test.check(engine, bounds, exec)
    assert len(runs) == 1

    other = workspace(tmp_path / "other") if (tmp_path / "other").mkdir() is None else bounds
    await self_test.check(engine, other, exec)
    assert len(runs) == 2


AS_USER = """
import asyncio, json, os, sys
sys.path[:0] = {path!r}
import concurrent.futures.thread, encodings.idna
from pathlib import Path
from evoclaw.core.errors import ToolFailure
import evoclaw.sandbox.engines.bubblewrap, evoclaw.sandbox.engines.firejail
import evoclaw.sandbox.engines.podman, evoclaw.sandbox.engines.registry
from tests.support.sandbox_engines import inside, sandbox, workspace

os.setgroups([]); os.setgid({uid}); os.setuid({uid})
sys.executable, sys.prefix, sys.base_prefix = {python!r}, "/usr", "/usr"
os.environ["HOME"] = {home!r}
os.chdir("/")

async def main(folder, name, how):
    bounds = workspace(Path(folder))
    found = sandbox(name, bounds, warm=how != "cold")
    try:
        done = await inside(found, bounds).run(("bash", "-c", "id -u; touch made"))
        print(json.dumps([done.isolation, done.stdout.decode().strip(), done.exit_code]))
    except ToolFailure as problem:
        print(json.dumps([str(problem.kind), problem.message, -1]))
    finally:
        await found.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(name="shared")
def _shared() -> Generator[Path]:
    with shared_folder() as folder:
        yield folder


@contextmanager
def shared_folder() -> Generator[Path]:
    """A folder that everybody may read, with our sources and a workspace of somebody's."""
    uid, _ = unprivileged_user()
    with tempfile.TemporaryDirectory(prefix="sandbox-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = Path(__file__).parents[3]
        for part in ("src", "tests"):
            ignore = shutil.ignore_patterns("__pycache__", "golden", "node_modules", "*.gguf")
            shutil.copytree(root / part, folder / part, ignore=ignore)
        (folder / "work").mkdir()
        os.chown(folder / "work", uid, uid)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs a python that everybody may run")
@pytest.mark.parametrize("name", QUICK)
def test_fault_36_engines_pass_the_self_test_as_an_unprivileged_user(
    shared: Path, name: str
) -> None:
    engine, _, how = name.partition(", ")
    isolation, said, code = as_user(shared, engine, how)

    if isolation == "sandbox_unavailable":
        if engine == "bubblewrap" and "not installed" not in said and may_sandbox():
            pytest.fail(said)
        pytest.skip(f"refused here, as it must be: {said}")
    assert (isolation, said, code) == (engine, str(unprivileged_user()[0]), 0)
    assert (shared / "work" / "made").stat().st_uid == unprivileged_user()[0]


def as_user(shared: Path, engine: str, how: str = "") -> tuple[str, str, int]:
    """What came of running something in an engine as a plain user."""
    uid, home = unprivileged_user()
    path = [str(shared / "src"), str(shared), *sys.path[1:]]
    script = AS_USER.format(path=path, uid=uid, home=home, python=PYTHON)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(shared / "work"), engine, how],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=shared,
    )
    assert done.stdout, done.stderr.decode()
    return tuple(json.loads(done.stdout))


@pytest.mark.parametrize(("variable", "what"), [("HOME", "home folder"), ("TMPDIR", "temporary")])
async def test_a_workspace_with_shared_folders_in_it_is_refused_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, what: str
) -> None:
    inner = tmp_path / "me"
    inner.mkdir()
    monkeypatch.setenv(variable, str(inner))
    monkeypatch.setattr(tempfile, "tempdir", None)
    engine = package_engines()["bubblewrap"]

    with pytest.raises(ToolFailure, match=f"{what}.*Start EvoClaw in a project folder") as refused:
        await SandboxSelfTest().check(
            engine, SandboxPolicy(str(tmp_path)), LocalProcesses(str(tmp_path))
        )

    assert refused.value.kind is ErrorKind.SANDBOX_UNAVAILABLE
    assert "escaped" not in str(refused.value) and str(inner) in str(refused.value)

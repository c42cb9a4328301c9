"""Fault 35: where an engine is missing, broken or nested, nothing is run, and never bare."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.sandboxes import SandboxEngine, SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.engines.firejail import Firejail
from evoclaw.sandbox.engines.podman import Podman
from evoclaw.sandbox.engines.registry import Unconfined
from evoclaw.sandbox.sandboxes import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.sandbox_engines import make_accessible, workspace
from tests.support.sandboxes import may_sandbox

ROOT = Path(__file__).parents[3]
FAKE = """#!/bin/sh
# Drops every option and runs the command as it is.
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
LYING = "#!/bin/sh\nexit 0\n"
BROKEN = "#!/bin/sh\necho 'no such feature' >&2\nexit 1\n"


def names(folder: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


async def refused(
    engine: SandboxEngine, bounds: SandboxPolicy, *, warm: bool = True
) -> ToolFailure:
    """The refusal of an engine, and that nothing was run."""
    sandbox = EngineSandbox(engine, bounds, self_test=SandboxSelfTest(), warm=warm)
    mark = Path(bounds.workspace, "ran")
    try:
        async with asyncio.timeout(60):
            with pytest.raises(ToolFailure) as caught:
                await LocalProcesses(bounds.workspace, sandbox=sandbox).run(("touch", str(mark)))
    finally:
        await sandbox.close()
    assert caught.value.kind is ErrorKind.SANDBOX_UNAVAILABLE
    assert "Nothing was run" in caught.value.message
    assert "ran" not in names(bounds.workspace)
    return caught.value


@pytest.mark.parametrize("engine", [Bubblewrap, Firejail, Podman])
async def test_fault_35_a_missing_engine_says_what_to_install(
    tmp_path: Path, engine: type[Bubblewrap] | type[Firejail] | type[Podman]
) -> None:
    failed = await refused(engine(program="no-such-program"), workspace(tmp_path))

    assert f"install the package {engine.name}" in failed.message


@pytest.mark.parametrize("script", [FAKE, LYING, BROKEN], ids=["fake", "lying", "broken"])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
async def test_fault_35_a_fake_bubblewrap_program_is_refused(
    tmp_path: Path, script: str, warm: bool
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(script)
    program.chmod(0o755)
    (make_accessible(tmp_path) / "work").mkdir()

    await refused(Bubblewrap(str(program)), workspace(tmp_path / "work"), warm=warm)


async def test_fault_35_a_fake_firejail_is_refused_with_its_escapes_listed(tmp_path: Path) -> None:
    program = tmp_path / "firejail"
    program.write_text(FAKE)
    program.chmod(0o755)
    (make_accessible(tmp_path) / "work").mkdir()

    failed = await refused(Firejail(str(program)), workspace(tmp_path / "work"))

    assert {"tcp", "udp", "shared memory"} <= set(failed.details["escapes"])


async def test_fault_35_the_engine_none_fails_the_self_test(tmp_path: Path) -> None:
    await refused(Unconfined(), workspace(tmp_path))


NESTED = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from evoclaw.core.errors import ToolFailure
from evoclaw.sandbox.engines.{engine} import {kind}
from tests.sandbox.engines.test_refusals import refused
from tests.support.sandbox_engines import workspace

print(asyncio.run(refused({kind}(), workspace(Path(sys.argv[1])))))
"""


@pytest.mark.skipif(shutil.which("firejail") is None, reason="firejail is not installed")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_fault_35_firejail_disabling_itself_in_a_container_is_refused(
    tmp_path: Path,
) -> None:
    if not may_sandbox():
        pytest.skip("no namespaces are allowed here")
    script = NESTED.format(path=[str(ROOT / "src"), str(ROOT)], engine="firejail", kind="Firejail")
    around = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]

    done = subprocess.run(
        [*around, sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stderr.decode()
    assert b"Nothing was run" in done.stdout


def test_fault_35_bubblewrap_without_nested_namespaces_is_refused(tmp_path: Path) -> None:
    if not may_sandbox() or Bubblewrap().missing():
        pytest.skip("no sandbox can be built here")
    script = NESTED.format(
        path=[str(ROOT / "src"), str(ROOT)], engine="bubblewrap", kind="Bubblewrap"
    )
    around = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--unshare-user", "--disable-userns"]

    done = subprocess.run(
        [*around, sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stderr.decode()
    assert b"Nothing was run" in done.stdout


async def test_firejail_refuses_a_workspace_that_it_cannot_show(tmp_path: Path) -> None:
    program = tmp_path / "firejail"
    program.write_text(FAKE)
    program.chmod(0o755)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        failed = await refused(Firejail(str(program)), SandboxPolicy(folder))
    assert "work in a folder outside /dev/shm" in failed.message

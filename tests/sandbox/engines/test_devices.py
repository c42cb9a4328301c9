"""Device nodes and /sys in a sandbox: only those that the settings name."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from evoclaw.core.sandboxes import SandboxEngine
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.engines.native.engine import NativeEngine
from evoclaw.sandbox.engines.registry import SandboxSettings, package_engines
from evoclaw.sandbox.sandboxes import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.sandbox_engines import make_accessible


@pytest.fixture
def node() -> Generator[str]:
    """A device node of the test's own: another name of /dev/zero."""
    path = Path(f"/dev/evoclaw-test-{secrets.token_hex(4)}")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        path.chmod(0o666)
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        path.unlink(missing_ok=True)
        pytest.skip("this user may not make device nodes")
    try:
        yield str(path)
    finally:
        path.unlink()


def engine(name: str) -> SandboxEngine:
    found = NativeEngine() if name == "native" else package_engines()[name]
    if why := found.missing():
        pytest.skip(why)
    return found


@pytest.mark.parametrize(
    ("name", "warm"),
    [("bubblewrap", True), ("bubblewrap", False), ("native", False), ("podman", False)],
)
async def test_a_command_uses_the_devices_that_are_named_and_reads_sys(
    tmp_path: Path, node: str, name: str, warm: bool
) -> None:
    settings = SandboxSettings(devices=(node,), preset="raspberry-pi")
    policy = settings.sandbox_policy(make_accessible(tmp_path))
    found = EngineSandbox(engine(name), policy, self_test=SandboxSelfTest(), warm=warm)
    script = (
        f"head -c 3 {node} | wc -c; ls /sys/class | wc -l; ls /dev; "
        "touch /sys/class/x || echo read-only"
    )
    try:
        run = LocalProcesses(policy.workspace, sandbox=found)
        done = await run.run(["/bin/sh", "-c", script])
    finally:
        await found.close()
    lines = done.stdout.decode().split()
    assert lines[0] == "3", done.stderr
    assert int(lines[1]) > 0
    assert Path(node).name in lines
    assert not {"kmsg", "fuse", "mem"} & set(lines)
    assert lines[-1] == "read-only"

"""A command is put under its limits; we are not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import Cgroup, CgroupFactory, find_cgroups
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.sandbox import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.sandboxes import policy, said, sandboxed

pytestmark = pytest.mark.skipif(find_cgroups() is None, reason="no control groups for us here")


def own() -> str:
    """The groups that we are in ourselves."""
    return Path("/proc/self/cgroup").read_text()


class SlowGroups(CgroupFactory):
    """Of a busy kernel: a worker is ready before its group is."""

    def __init__(self, groups: CgroupFactory) -> None:
        super().__init__({})
        self._groups, self.slow = groups, False

    def make(self, policy: SandboxPolicy) -> Cgroup:
        made = self._groups.make(policy)
        if self.slow:
            time.sleep(0.1)
        return made


async def test_a_command_is_under_its_limits_however_late_they_are_made(tmp_path: Path) -> None:
    async with sandboxed(policy(tmp_path)):
        pass  # where no sandbox can be built, this says so
    found = find_cgroups()
    assert found is not None
    before = own()
    groups = SlowGroups(found)
    sandbox = EngineSandbox(
        Bubblewrap(), policy(tmp_path), self_test=SandboxSelfTest(), groups=groups
    )
    try:
        await sandbox.ready()
        processes = LocalProcesses(str(tmp_path), sandbox=sandbox)
        groups.slow = True
        for _ in range(5):  # also those that were ready before
            shown = await said(processes, "cat /proc/self/cgroup")
            assert "evoclaw-" in shown
        assert own() == before
    finally:
        await sandbox.close()


def test_nobody_is_taken_for_us(tmp_path: Path) -> None:
    before = own()
    groups = find_cgroups()
    assert groups is not None
    group = groups.make(SandboxPolicy(str(tmp_path)))
    try:
        with pytest.raises(ProcessLookupError):
            group.add(0)
        assert own() == before
    finally:
        assert group.close()

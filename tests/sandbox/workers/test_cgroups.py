"""A command is put under its limits; we are not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import Cgroup, CgroupFactory, find_cgroups
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.sandboxes import EngineSandbox
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.sandboxes import output_of, policy, sandboxed

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


async def test_a_command_runs_in_its_cgroup_even_if_it_is_created_late(tmp_path: Path) -> None:
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
            shown = await output_of(processes, "cat /proc/self/cgroup")
            assert "evoclaw-" in shown
        assert own() == before
    finally:
        await sandbox.close()


def test_adding_pid_zero_to_a_cgroup_is_refused(tmp_path: Path) -> None:
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

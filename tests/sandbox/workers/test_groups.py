"""A command is put under its limits; we are not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evoclaw.core.sandboxes import Confines
from evoclaw.executors.processes import LocalProcesses
from evoclaw.sandbox.cgroups import Group, Groups, find_groups
from evoclaw.sandbox.engines.bubblewrap import Bubblewrap
from evoclaw.sandbox.sandbox import EngineCage
from evoclaw.sandbox.self_test import Canary
from tests.support.sandboxes import caged, confines, said

pytestmark = pytest.mark.skipif(find_groups() is None, reason="no control groups for us here")


def own() -> str:
    """The groups that we are in ourselves."""
    return Path("/proc/self/cgroup").read_text()


class SlowGroups(Groups):
    """Of a busy kernel: a cell is ready before its group is."""

    def __init__(self, groups: Groups) -> None:
        super().__init__({})
        self._groups, self.slow = groups, False

    def make(self, confines: Confines) -> Group:
        made = self._groups.make(confines)
        if self.slow:
            time.sleep(0.1)
        return made


async def test_a_command_is_under_its_limits_however_late_they_are_made(tmp_path: Path) -> None:
    async with caged(confines(tmp_path)):
        pass  # where no cage can be built, this says so
    found = find_groups()
    assert found is not None
    before = own()
    groups = SlowGroups(found)
    cage = EngineCage(Bubblewrap(), confines(tmp_path), prover=Canary(), groups=groups)
    try:
        await cage.ready()
        processes = LocalProcesses(str(tmp_path), cage=cage)
        groups.slow = True
        for _ in range(5):  # also those that were ready before
            shown = await said(processes, "cat /proc/self/cgroup")
            assert "evoclaw-" in shown
        assert own() == before
    finally:
        await cage.close()


def test_nobody_is_taken_for_us(tmp_path: Path) -> None:
    before = own()
    groups = find_groups()
    assert groups is not None
    group = groups.make(Confines(str(tmp_path)))
    try:
        with pytest.raises(ProcessLookupError):
            group.add(0)
        assert own() == before
    finally:
        assert group.close()

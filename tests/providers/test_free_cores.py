"""The free cores of machines whose `proc` and `sys` a test wrote."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from evoclaw.providers.free_cores import free_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="proc and sys are Linux's")

CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def machine(root: Path, **files: str) -> Path:
    """A machine without limits and load, and what these files say; `__` is a slash in a name."""
    usual = {
        "proc__loadavg": "0.00 0.00 0.00 1/100 1",
        "proc__self__cgroup": "0::/outer/inner\n",
    }
    for name, text in {**usual, **files}.items():
        path = root / name.replace("__", "/").replace("-dot-", ".").replace("-comma-", ",")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_limits_of_older_control_groups_count(tmp_path: Path) -> None:
    groups = {
        "proc__self__cgroup": "3:cpu,cpuacct:/box\n0::/\n",
        "sys__fs__cgroup__cpu-comma-cpuacct__box__cpu-dot-cfs_quota_us": "100000",
        "sys__fs__cgroup__cpu-comma-cpuacct__box__cpu-dot-cfs_period_us": "100000",
    }
    assert free_cores(machine(tmp_path, **groups)) == 1


def test_all_cores_of_an_idle_machine_are_free(tmp_path: Path) -> None:
    assert free_cores(machine(tmp_path)) == CORES


def test_the_quota_of_a_control_group_limits_the_cores(tmp_path: Path) -> None:
    quota = {"sys__fs__cgroup__outer__cpu-dot-max": "150000 100000"}
    assert free_cores(machine(tmp_path, **quota)) == 1


def test_busy_cores_are_not_free_but_one_is_always_used(tmp_path: Path) -> None:
    busy = machine(tmp_path / "busy", proc__loadavg="1.20 0.5 0.1 1/100 1")
    assert free_cores(busy) == max(1, CORES - 1)
    assert free_cores(machine(tmp_path / "full", proc__loadavg="99.0 9 9 1/9 1")) == 1


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    siblings = {
        f"sys__devices__system__cpu__cpu{cpu}__topology__thread_siblings_list": "0-63"
        for cpu in range(64)
    }
    assert free_cores(machine(tmp_path, **siblings)) == 1

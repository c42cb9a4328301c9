"""The free cores and the available memory of machines whose `proc` and `sys` a test wrote."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from evoclaw.providers.host_limits import available_memory, free_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="proc and sys are Linux's")

GIB = 2**30
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def machine(root: Path, **files: str) -> Path:
    """A machine without limits and load, and what these files say; `__` is a slash in a name."""
    usual = {
        "proc__loadavg": "0.00 0.00 0.00 1/100 1",
        "proc__meminfo": f"MemTotal: {16 * 2**20} kB\nMemAvailable:   {8 * 2**20} kB\n",
        "proc__self__cgroup": "0::/outer/inner\n",
    }
    for name, text in {**usual, **files}.items():
        path = root / name.replace("__", "/").replace("-dot-", ".").replace("-comma-", ",")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_available_memory_is_that_of_the_machine_without_other_limits(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path)) == 8 * GIB


def test_the_limit_of_any_control_group_above_the_process_counts(tmp_path: Path) -> None:
    groups = {
        "sys__fs__cgroup__outer__memory-dot-max": str(3 * GIB),
        "sys__fs__cgroup__outer__memory-dot-current": str(2 * GIB),
        "sys__fs__cgroup__outer__memory-dot-stat": f"anon 1\ninactive_file {GIB // 2}\n",
        "sys__fs__cgroup__outer__inner__memory-dot-max": "max",
        "sys__fs__cgroup__outer__inner__memory-dot-current": str(2 * GIB),
    }
    assert available_memory(machine(tmp_path, **groups)) == GIB + GIB // 2


def test_the_limits_of_older_control_groups_count(tmp_path: Path) -> None:
    groups = {
        "proc__self__cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n",
        "sys__fs__cgroup__memory__box__memory-dot-limit_in_bytes": str(2 * GIB),
        "sys__fs__cgroup__memory__box__memory-dot-usage_in_bytes": str(GIB),
        "sys__fs__cgroup__memory__memory-dot-limit_in_bytes": str(2**63 - 4096),
        "sys__fs__cgroup__memory__memory-dot-usage_in_bytes": str(9 * GIB),
        "sys__fs__cgroup__cpu-comma-cpuacct__box__cpu-dot-cfs_quota_us": "100000",
        "sys__fs__cgroup__cpu-comma-cpuacct__box__cpu-dot-cfs_period_us": "100000",
    }
    root = machine(tmp_path, **groups)
    assert (available_memory(root), free_cores(root)) == (GIB, 1)


def test_a_system_that_does_not_say_has_an_unknown_amount_of_memory(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


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

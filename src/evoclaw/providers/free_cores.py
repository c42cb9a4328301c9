"""The cores that this machine has left for a model server.

On Linux, the limits of the control group count as well: in a container, the machine has more than
this process may use. On other systems only the number of cores is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def free_cores(root: Path = _ROOT) -> int:
    """The cores that are not busy, of those that this process may use; at least 1.

    Args:
        root: Where `proc` and `sys` are; another folder in tests.
    """
    cores = min(_physical_cores(root), _cpu_quota(root))
    return max(1, cores - round(_load(root)))


def _physical_cores(root: Path) -> int:
    """The cores that this process may run on; two threads of one core compute no faster."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    folder = root / "sys/devices/system/cpu"
    threads = {
        _text(folder / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in usable
    }
    return len(threads)


def _cpu_quota(root: Path) -> int:
    """The cores that the control groups allow, rounded down."""
    cores = [os.cpu_count() or 1]
    for group in _groups(root, "cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        quota = quota or _text(group / "cpu.cfs_quota_us")
        period = period or _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            cores.append(int(quota) // int(period))
    return max(1, min(cores))


def _load(root: Path) -> float:
    """How many cores other programs use, on average over the last minute."""
    words = _text(root / "proc/loadavg").split()
    return float(words[0]) if words else 0.0


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control group of this process and those above it, in the hierarchy of a controller."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount / name.lstrip("/")
        # In a container the name is that on the host, where only the mount itself is visible.
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _text(path: Path) -> str:
    """The content of a file of the kernel; empty if it does not exist."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

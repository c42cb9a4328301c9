"""Control groups: limits on a command with all its processes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from evoclaw.core.sandboxes import SandboxPolicy

logger = logging.getLogger(__name__)

CGROUP_NAME = re.compile(r"evoclaw-(\d+)-\w+$")
LIMIT_FILES = {
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
}
"""The limit file of each controller in cgroup v1, which most devices still have."""
REMOVE_ATTEMPTS, REMOVE_RETRY_DELAY_S = 50, 0.01
SWAP_LIMIT_FILE = "memory.memsw.limit_in_bytes"


class Cgroup:
    """The group of one command, in every hierarchy that limits something."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def add(self, pid: int) -> None:
        """Add a process, and with it everything that it starts."""
        if pid < 1:
            # For pid 0 the kernel would add the calling process instead.
            raise ProcessLookupError(errno.ESRCH, f"no process has the pid {pid}")
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def files(self) -> list[str]:
        """The files that a process writes its pid to in order to enter."""
        return [str(folder / "cgroup.procs") for folder in dict.fromkeys(self._folders.values())]

    def met(self) -> list[str]:
        """The limits that were met: `memory`, `processes`."""
        found: list[str] = []
        memory, pids = self._folders["memory"], self._folders["pids"]
        killed = _count(memory / "memory.oom_control", "oom_kill")
        if killed or _count(memory / "memory.events", "oom_kill"):
            found.append("memory")
        if _count(pids / "pids.events", "max"):
            found.append("processes")
        return found

    def close(self) -> bool:
        """Remove it, once it is empty; whether it was removed."""
        removed = True
        for folder in set(self._folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                removed = False
        return removed


class CgroupFactory:
    """Makes control groups below that of this process, where the machine allows it."""

    def __init__(self, parents: Mapping[str, Path]) -> None:
        """Set the folder of this process's group in each hierarchy."""
        self._parents = parents
        self._closing: list[Cgroup] = []

    def make(self, policy: SandboxPolicy) -> Cgroup:
        """A group with the limits of this policy."""
        name = f"evoclaw-{os.getpid()}-{secrets.token_hex(4)}"
        folders = {kind: parent / name for kind, parent in self._parents.items()}
        for folder in set(folders.values()):
            folder.mkdir()
        group = Cgroup(folders)
        try:
            _limit(folders, policy)
        except OSError:
            group.close()
            raise
        return group

    def remove(self, group: Cgroup) -> None:
        """Remove a group; what the kernel still holds is removed with the next group."""
        self._closing.append(group)
        self.tidy()

    def tidy(self) -> bool:
        """Remove groups that could not be removed before; return whether all are removed."""
        self._closing = [group for group in self._closing if not group.close()]
        return not self._closing


async def wait_until_removed(groups: CgroupFactory | None) -> None:
    """Wait until the kernel has released all groups, a moment after their last process."""
    for _ in range(REMOVE_ATTEMPTS):
        if groups is None or groups.tidy():
            return
        await asyncio.sleep(REMOVE_RETRY_DELAY_S)


def find_cgroups(proc: str = "/proc/self") -> CgroupFactory | None:
    """A factory of control groups, found by making one; none where this machine forbids it."""
    try:
        parents = _parents(Path(proc))
        if set(parents) != {"memory", "pids"}:
            return None
        groups = CgroupFactory(parents)
        groups.make(SandboxPolicy("/")).close()
    except OSError as problem:
        logger.debug("control groups are not available: %s", problem)
        return None
    _remove_abandoned(parents)
    return groups


def _parents(proc: Path) -> dict[str, Path]:
    """The folder of this process's group, by controller."""
    mounts = _mounts((proc / "mountinfo").read_text())
    found: dict[str, Path] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, kinds, inner = line.split(":", 2)
        for kind in kinds.split(",") if kinds else ("memory", "pids"):
            mounted = mounts.get(kind if kinds else "")
            if kind not in LIMIT_FILES or mounted is None or (not kinds and kind in found):
                continue
            root, mount_point = mounted
            below = inner.removeprefix(root).lstrip("/") if inner.startswith(root) else ""
            folder = Path(mount_point, below)
            if kinds or _delegates(folder, kind):
                found[kind] = folder
    return found


def _delegates(folder: Path, kind: str) -> bool:
    """Whether groups below this cgroup v2 group can limit something."""
    control = folder / "cgroup.subtree_control"
    if kind in control.read_text().split():
        return True
    try:
        control.write_text(f"+{kind}")
    except OSError:
        # The group has processes, or this process may not delegate its controllers.
        return False
    return True


def _mounts(table: str) -> dict[str, tuple[str, str]]:
    """The root and the mount point of every hierarchy; that of cgroup v2 by an empty name."""
    found: dict[str, tuple[str, str]] = {}
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if kind[0] == "cgroup2":
            found.setdefault("", (words[3], words[4]))
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                found.setdefault(option, (words[3], words[4]))
    return found


def _limit(folders: Mapping[str, Path], policy: SandboxPolicy) -> None:
    memory, pids = folders["memory"], folders["pids"]
    # One for the first process of the worker itself.
    (pids / "pids.max").write_text(str(policy.processes + 1))
    if (memory / "memory.max").exists():
        (memory / "memory.max").write_text(str(policy.memory))
        with suppress(FileNotFoundError):
            (memory / "memory.swap.max").write_text("0")
        return
    (memory / LIMIT_FILES["memory"]).write_text(str(policy.memory))
    if (memory / SWAP_LIMIT_FILE).exists():
        (memory / SWAP_LIMIT_FILE).write_text(str(policy.memory))


def _count(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)


def _remove_abandoned(parents: Mapping[str, Path]) -> None:
    """Remove the empty groups of processes that were killed before they removed them."""
    for parent in set(parents.values()):
        for folder in parent.glob("evoclaw-*"):
            named = CGROUP_NAME.search(folder.name)
            if named and not Path(f"/proc/{named[1]}").exists():
                with suppress(OSError):
                    folder.rmdir()

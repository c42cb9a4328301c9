"""Control groups: limits on a whole command rather than on each of its processes."""

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

from evoclaw.core.sandboxes import Confines

logger = logging.getLogger(__name__)

NAME = re.compile(r"evoclaw-(\d+)-\w+$")
LIMITS = {
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
}
"""Of the older kind of groups, which most devices still have: the file of each controller."""
TRIES, PAUSE = 50, 0.01
SWAP = "memory.memsw.limit_in_bytes"


class Group:
    """The group of one command, in every hierarchy that limits something."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def add(self, pid: int) -> None:
        """Put a process into it, and with it everything that it starts."""
        if pid < 1:
            # The kernel would take it for ourselves.
            raise ProcessLookupError(errno.ESRCH, "nobody knows which process this is")
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def files(self) -> list[str]:
        """Where a process writes its pid to enter."""
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
        """Remove it, once it is empty; whether it is gone."""
        gone = True
        for folder in set(self._folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


class Groups:
    """Makes groups below our own, where this machine lets us."""

    def __init__(self, parents: Mapping[str, Path]) -> None:
        """Take the folder of our own group in each hierarchy."""
        self._parents = parents
        self._closing: list[Group] = []

    def make(self, confines: Confines) -> Group:
        """A group with the limits of these confines."""
        name = f"evoclaw-{os.getpid()}-{secrets.token_hex(4)}"
        folders = {kind: parent / name for kind, parent in self._parents.items()}
        for folder in set(folders.values()):
            folder.mkdir()
        group = Group(folders)
        try:
            _limit(folders, confines)
        except OSError:
            group.close()
            raise
        return group

    def remove(self, group: Group) -> None:
        """Remove a group; what the kernel still holds is tried again with the next one."""
        self._closing.append(group)
        self.tidy()

    def tidy(self) -> bool:
        """Remove what could not be removed before; whether nothing is left."""
        self._closing = [one for one in self._closing if not one.close()]
        return not self._closing


async def emptied(groups: Groups | None) -> None:
    """Wait until the kernel has let go of all groups, a moment after their last process."""
    for _ in range(TRIES):
        if groups is None or groups.tidy():
            return
        await asyncio.sleep(PAUSE)


def find_groups(proc: str = "/proc/self") -> Groups | None:
    """A way to make groups, found by making one; none where this machine does not let us."""
    try:
        parents = _parents(Path(proc))
        if set(parents) != {"memory", "pids"}:
            return None
        groups = Groups(parents)
        groups.make(Confines("/")).close()
    except OSError as problem:
        logger.debug("no control groups: %s", problem)
        return None
    _sweep(parents)
    return groups


def _parents(proc: Path) -> dict[str, Path]:
    """Where our own group is, by what it limits."""
    mounts = _mounts((proc / "mountinfo").read_text())
    found: dict[str, Path] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, kinds, inner = line.split(":", 2)
        for kind in kinds.split(",") if kinds else ("memory", "pids"):
            mounted = mounts.get(kind if kinds else "")
            if kind not in LIMITS or mounted is None or (not kinds and kind in found):
                continue
            root, place = mounted
            below = inner.removeprefix(root).lstrip("/") if inner.startswith(root) else ""
            folder = Path(place, below)
            if kinds or _delegates(folder, kind):
                found[kind] = folder
    return found


def _delegates(folder: Path, kind: str) -> bool:
    """Whether groups below this one (of the newer kind) can limit something."""
    control = folder / "cgroup.subtree_control"
    if kind in control.read_text().split():
        return True
    try:
        control.write_text(f"+{kind}")
    except OSError:
        # It has processes of its own, or is not ours to divide.
        return False
    return True


def _mounts(table: str) -> dict[str, tuple[str, str]]:
    """The root and the place of every hierarchy; of the newer kind by an empty name."""
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


def _limit(folders: Mapping[str, Path], confines: Confines) -> None:
    memory, pids = folders["memory"], folders["pids"]
    # One for the first process of the cell itself.
    (pids / "pids.max").write_text(str(confines.processes + 1))
    if (memory / "memory.max").exists():
        (memory / "memory.max").write_text(str(confines.memory))
        with suppress(FileNotFoundError):
            (memory / "memory.swap.max").write_text("0")
        return
    (memory / LIMITS["memory"]).write_text(str(confines.memory))
    if (memory / SWAP).exists():
        (memory / SWAP).write_text(str(confines.memory))


def _count(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)


def _sweep(parents: Mapping[str, Path]) -> None:
    """Remove the empty groups of those who were killed before they could."""
    for parent in set(parents.values()):
        for folder in parent.glob("evoclaw-*"):
            named = NAME.search(folder.name)
            if named and not Path(f"/proc/{named[1]}").exists():
                with suppress(OSError):
                    folder.rmdir()

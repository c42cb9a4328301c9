"""`Bubblewrap`: a root of its own, built from the system's programs and the folders named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from evoclaw.core.sandboxes import Confines
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines.launch import Plan, plan

USERS, GROUPS, INSIDE, HOSTS = 90, 91, 92, 93
"""Descriptors at which the cage's files of users, groups and hosts and its program are read."""
NAMES = "127.0.0.1 localhost cage\n::1 localhost\n"
HOST = "cage"


class Bubblewrap:
    """Namespaces for everything, no rights, a minimal root; it can keep warm workers."""

    name = "bubblewrap"

    def __init__(self, program: str = "bwrap") -> None:
        """Take the program's name or path."""
        self._program = program

    def missing(self) -> str:
        """Why it cannot be used here, and what to do about it."""
        if self.binary():
            return ""
        return "bubblewrap is not installed (no program 'bwrap'): install the package bubblewrap"

    def binary(self) -> str:
        """The program, if it is there."""
        return shutil.which(self._program) or ""

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        within = (*system.inside(confines, "once"), *argv)
        rights = ("--disable-userns", "--cap-drop", "ALL", "--chdir", cwd)
        return self._line(confines, rights, within)

    def nursery(self, confines: Confines) -> tuple[str, ...]:
        """The command line of a warm worker inside."""
        # It keeps the rights over its own namespaces, to make more of them; its cells keep none.
        rights = ("--cap-add", "ALL", "--chdir", "/")
        return self._line(confines, rights, system.inside(confines, "nursery"))

    def _line(
        self, confines: Confines, rights: tuple[str, ...], within: tuple[str, ...]
    ) -> tuple[str, ...]:
        first = plan(confines)
        users, groups = system.accounts(*first.ids)
        files = {str(USERS): users, str(GROUPS): groups}
        files |= {str(INSIDE): system.inside_source(), str(HOSTS): NAMES}
        whole = msgspec.structs.replace(first, files=files)
        options = (
            *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"),
            *("--hostname", HOST),
            *_system(),
            *_mounts(confines, whole),
            *("--remount-ro", "/dev", "--remount-ro", "/"),
        )
        return whole.command((self.binary() or self._program, *options, *rights, "--", *within))


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for path in map(Path, system.PROGRAMS):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in system.ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--ro-bind-data", str(USERS), "/etc/passwd")
    yield from ("--ro-bind-data", str(GROUPS), "/etc/group")
    yield from ("--ro-bind-data", str(HOSTS), "/etc/hosts")
    yield from ("--ro-bind-data", str(INSIDE), system.INSIDE)
    yield from ("--proc", "/proc", "--dev", "/dev")


def _mounts(confines: Confines, found: Plan) -> Iterator[str]:
    for place in system.FRESH:
        size = str(confines.memory // system.FRESH_PART)
        yield from ("--size", size, "--perms", "1777", "--tmpfs", place)
    writable = (confines.workspace, *confines.writable)
    paths = {path: "--bind" for path in (*writable, confines.proxy) if path}
    for path in system.readable(confines):
        if not any(system.below(path, one) for one in writable):
            paths[path] = "--ro-bind"
    # What lies in another is mounted after it.
    for path, how in sorted(paths.items()):
        yield from (how, found.source(path), path)
    for path, may_write in system.pinned(confines):
        yield from ("--bind" if may_write else "--ro-bind", found.source(path), path)
    for path in confines.hidden:
        yield from ("--tmpfs", path, "--remount-ro", path)

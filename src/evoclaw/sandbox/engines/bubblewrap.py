"""`Bubblewrap`: a private root, built from the system's programs and the policy's folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines.launch import LaunchPlan, plan_launch

USERS_FD, GROUPS_FD, WORKER_PROGRAM_FD, HOSTS_FD = 90, 91, 92, 93
"""Descriptors of the sandbox's passwd, group and hosts files and of its worker program."""
HOSTS_FILE = "127.0.0.1 localhost sandbox\n::1 localhost\n"
SANDBOX_HOSTNAME = "sandbox"


class Bubblewrap:
    """All namespaces, no capabilities, a minimal root; it can keep a worker pool."""

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
        """The path of the program; empty if it is not installed."""
        return shutil.which(self._program) or ""

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        within = (*system.worker_command(policy, "once"), *argv)
        rights = ("--disable-userns", "--cap-drop", "ALL", "--chdir", cwd)
        return self._line(policy, rights, within)

    def worker_pool_command(self, policy: SandboxPolicy) -> tuple[str, ...]:
        """The command line of a worker pool inside."""
        # It keeps its capabilities to make namespaces for workers; the workers keep none.
        rights = ("--cap-add", "ALL", "--chdir", "/")
        return self._line(policy, rights, system.worker_command(policy, "pool"))

    def _line(
        self, policy: SandboxPolicy, rights: tuple[str, ...], within: tuple[str, ...]
    ) -> tuple[str, ...]:
        first = plan_launch(policy)
        users, groups = system.account_files(*first.ids)
        files = {str(USERS_FD): users, str(GROUPS_FD): groups}
        files |= {str(WORKER_PROGRAM_FD): system.worker_program_source(), str(HOSTS_FD): HOSTS_FILE}
        plan = msgspec.structs.replace(first, files=files)
        options = (
            *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"),
            *("--hostname", SANDBOX_HOSTNAME),
            *_system(),
            *_mounts(policy, plan),
            *("--remount-ro", "/dev", "--remount-ro", "/"),
        )
        return plan.command((self.binary() or self._program, *options, *rights, "--", *within))


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for path in map(Path, system.PROGRAM_FOLDERS):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in system.ETC_NAMES:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--ro-bind-data", str(USERS_FD), "/etc/passwd")
    yield from ("--ro-bind-data", str(GROUPS_FD), "/etc/group")
    yield from ("--ro-bind-data", str(HOSTS_FD), "/etc/hosts")
    yield from ("--ro-bind-data", str(WORKER_PROGRAM_FD), system.WORKER_PROGRAM_PATH)
    yield from ("--proc", "/proc", "--dev", "/dev")


def _mounts(policy: SandboxPolicy, found: LaunchPlan) -> Iterator[str]:
    for folder in system.FRESH_FOLDERS:
        size = str(policy.memory // system.FRESH_MEMORY_DIVISOR)
        yield from ("--size", size, "--perms", "1777", "--tmpfs", folder)
    writable = (policy.workspace, *policy.writable)
    paths = {path: "--bind" for path in (*writable, policy.proxy) if path}
    for path in system.readable_paths(policy):
        if not any(system.is_below(path, folder) for folder in writable):
            paths[path] = "--ro-bind"
    # A folder inside another one is mounted after it.
    for path, how in sorted(paths.items()):
        yield from (how, found.source(path), path)
    for path, may_write in system.pinned_paths(policy):
        yield from ("--bind" if may_write else "--ro-bind", found.source(path), path)
    for path in policy.devices:
        yield from ("--dev-bind", path, path)
    for path in policy.hidden:
        yield from ("--tmpfs", path, "--remount-ro", path)

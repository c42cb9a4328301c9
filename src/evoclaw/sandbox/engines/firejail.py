"""`Firejail`: the machine's own root, most of it hidden and the rest read-only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from evoclaw.core.errors import ConfigError
from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines.launch import plan_launch

SHOWN_ROOT_FOLDERS = frozenset(
    {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "tmp", "run"}
)
"""Top-level folders that are not hidden as a whole."""
FIREJAIL_RUN_FOLDER = "firejail"
"""Firejail's own folder in /run."""
WORKER_PROGRAM_FILE = str(Path(system.__file__).with_name("worker_program.py"))
"""Sets the limits inside and filters system calls, such as io_uring: the filter of firejail itself
is empty on some architectures."""
UNSHOWN_FOLDER = "/dev/shm"
"""Every sandbox has its own: firejail cannot show a folder of the host there."""


class Firejail:
    """Namespaces, a system call filter and a hidden root; the program is setuid root.

    Inside other sandboxes and containers it disables itself and runs the command unconfined: the
    self-test detects that. It cannot keep a folder from being renamed, so a folder at the top of
    the workspace that holds something protected is read-only as a whole.
    """

    name = "firejail"

    def __init__(self, program: str = "firejail") -> None:
        """Take the program's name or path."""
        self._program = program

    def missing(self) -> str:
        """Why it cannot be used here, and what to do about it."""
        if self.binary():
            return ""
        return "firejail is not installed (no program 'firejail'): install the package firejail"

    def binary(self) -> str:
        """The path of the program; empty if it is not installed."""
        return shutil.which(self._program) or ""

    def command(self, policy: SandboxPolicy, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        for path in (policy.workspace, *policy.writable):
            if system.is_below(path, UNSHOWN_FOLDER):
                raise ConfigError(
                    f"firejail cannot show '{path}' in a sandbox: work in a folder outside "
                    f"{UNSHOWN_FOLDER}, or choose another engine"
                )
        policy = msgspec.structs.replace(policy, readable=(*policy.readable, WORKER_PROGRAM_FILE))
        found = plan_launch(policy, in_place=True)
        options = (
            *("--quiet", "--noprofile", "--net=none", "--caps.drop=all", "--nonewprivs"),
            *("--noroot", "--nogroups", "--seccomp", "--restrict-namespaces", "--private-dev"),
            *("--ipc-namespace",),
            *("--protocol=unix,inet,inet6,netlink", "--deterministic-exit-code"),
            *("--deterministic-shutdown", f"--private-cwd={cwd}", "--private-etc=" + _etc()),
            f"--rlimit-nproc={policy.processes}",
            f"--rlimit-fsize={policy.file_size}",
            f"--rlimit-nofile={policy.open_files}",
            f"--rlimit-as={policy.memory}",
            *_shown(policy),
            *_hidden(policy),
            "--read-only=/",
            *(f"--read-write={path}" for path in (policy.workspace, *policy.writable)),
            *(f"--read-only={path}" for path in _tops(policy)),
        )
        within = (*system.worker_command(policy, "once", WORKER_PROGRAM_FILE), *argv)
        return found.command((self.binary() or self._program, *options, "--", *within))


def _etc() -> str:
    names = (*system.ETC_NAMES, "passwd", "group")
    return ",".join(name for name in names if Path("/etc", name).exists())


def _shown(policy: SandboxPolicy) -> Iterator[str]:
    tops = {path.split("/")[1] for path in system.shown_paths(policy)}
    for path in system.shown_paths(policy):
        yield f"--whitelist={path}"
    if "tmp" not in tops:
        yield "--private-tmp"
    if any(system.is_below(path, "/var/tmp") for path in system.shown_paths(policy)):
        # Otherwise firejail mounts an empty folder over it, after the workspace.
        yield "--keep-var-tmp"


def _hidden(policy: SandboxPolicy) -> Iterator[str]:
    tops = {path.split("/")[1] for path in system.shown_paths(policy)} | SHOWN_ROOT_FOLDERS
    for path in sorted(Path("/").iterdir()):
        if path.name not in tops and not path.is_symlink():
            yield f"--blacklist={path}"
    for path in sorted(Path("/run").iterdir()):
        if path.name != FIREJAIL_RUN_FOLDER and not any(
            system.is_below(shown, str(path)) for shown in system.shown_paths(policy)
        ):
            yield f"--blacklist={path}"


def _tops(policy: SandboxPolicy) -> list[str]:
    """Entries at the top of a writable folder that are, or hold, something protected."""
    found: dict[str, None] = {}
    for path, may_write in system.pinned_paths(policy):
        homes = (policy.workspace, *policy.writable)
        home = max((home for home in homes if system.is_below(path, home)), key=len)
        if not may_write:
            found[home + "/" + path.removeprefix(home + "/").split("/")[0]] = None
    return list(found)

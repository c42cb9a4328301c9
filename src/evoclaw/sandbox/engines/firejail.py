"""`Firejail`: the machine's own root with most of it hidden and the rest read-only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from evoclaw.core.sandboxes import Confines
from evoclaw.sandbox.engines import host_view as system
from evoclaw.sandbox.engines.launch import plan

KEPT = frozenset(
    {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "tmp", "run"}
)
"""Folders of the root that are not hidden as a whole."""
OWN = "firejail"
"""In /run: firejail's own."""


class Firejail:
    """Namespaces, a system call filter and a hidden root; the program is setuid root.

    It sets itself aside inside other sandboxes and containers, and then runs the command bare: it
    is the canary that notices. It cannot pin a folder to its place, so a folder at the top of the
    workspace that holds something protected is read-only as a whole.
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
        """The program, if it is there."""
        return shutil.which(self._program) or ""

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The command line that runs `argv` inside."""
        found = plan(confines, in_place=True)
        options = (
            *("--quiet", "--noprofile", "--net=none", "--caps.drop=all", "--nonewprivs"),
            *("--noroot", "--nogroups", "--seccomp", "--restrict-namespaces", "--private-dev"),
            *("--protocol=unix,inet,inet6,netlink", "--deterministic-exit-code"),
            *("--deterministic-shutdown", f"--private-cwd={cwd}", "--private-etc=" + _etc()),
            f"--rlimit-nproc={confines.processes}",
            f"--rlimit-fsize={confines.file_size}",
            f"--rlimit-nofile={confines.open_files}",
            f"--rlimit-as={confines.memory}",
            *_shown(confines),
            *_hidden(confines),
            "--read-only=/",
            *(f"--read-write={path}" for path in (confines.workspace, *confines.writable)),
            *(f"--read-only={path}" for path in _tops(confines)),
        )
        return found.command((self.binary() or self._program, *options, "--", *argv))


def _etc() -> str:
    names = (*system.ETC, "passwd", "group")
    return ",".join(name for name in names if Path("/etc", name).exists())


def _shown(confines: Confines) -> Iterator[str]:
    tops = {path.split("/")[1] for path in system.shown(confines)}
    for path in system.shown(confines):
        yield f"--whitelist={path}"
    if "tmp" not in tops:
        yield "--private-tmp"


def _hidden(confines: Confines) -> Iterator[str]:
    tops = {path.split("/")[1] for path in system.shown(confines)} | KEPT
    for path in sorted(Path("/").iterdir()):
        if path.name not in tops and not path.is_symlink():
            yield f"--blacklist={path}"
    for path in sorted(Path("/run").iterdir()):
        if path.name != OWN and not any(
            system.below(one, str(path)) for one in system.shown(confines)
        ):
            yield f"--blacklist={path}"


def _tops(confines: Confines) -> list[str]:
    """What lies at the top of a writable folder and holds, or is, something protected."""
    found: dict[str, None] = {}
    for path, may_write in system.pinned(confines):
        homes = (confines.workspace, *confines.writable)
        home = max((one for one in homes if system.below(path, one)), key=len)
        if not may_write:
            found[home + "/" + path.removeprefix(home + "/").split("/")[0]] = None
    return list(found)

"""What every sandbox shows of the host, and the limits that its worker program sets."""

from __future__ import annotations

import os
import pwd
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.sandboxes import SandboxPolicy

PROGRAM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu")
"""Folders of programs besides /usr; some are links into it."""
ETC_NAMES = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "ssl", "pki", "crypto-policies"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone"),
    *("mime.types", "services", "protocols", "nsswitch.conf", "gai.conf", "fonts", "terminfo"),
    *("bash.bashrc", "inputrc", "login.defs", "magic", "debian_version", "os-release"),
    *("java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "python3", "perl", "xdg"),
)
"""Files of /etc that programs need and that reveal nothing of this machine or its users."""
FIRST_UID, UID_COUNT = 64000, 1000
"""Unused uids: if this process is root, sandboxed commands run as one of them."""
FRESH_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
WORKER_PROGRAM_PATH = "/run/evoclaw/worker_program.py"
FRESH_MEMORY_DIVISOR = 4
"""A quarter of the memory may be used by temporary folders."""


class WorkerLimits(Struct, frozen=True):
    """The settings of the program inside a sandbox; see `worker_program.py`."""

    rlimits: dict[str, int]
    fresh: dict[str, int] = {}
    """Folders that are new and empty for every command, and their bytes."""
    keep: tuple[str, ...] = ()
    """Paths below those folders that stay visible."""


def worker_limits(policy: SandboxPolicy) -> WorkerLimits:
    """The limits of one command."""
    return WorkerLimits(
        {
            "RLIMIT_NPROC": policy.processes,
            # RLIMIT_DATA limits memory without limiting address space.
            "RLIMIT_DATA": policy.memory,
            "RLIMIT_FSIZE": policy.file_size,
            "RLIMIT_NOFILE": policy.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 8 << 20,
            "RLIMIT_MSGQUEUE": 800 << 10,
        },
        fresh=dict.fromkeys(FRESH_FOLDERS, policy.memory // FRESH_MEMORY_DIVISOR),
        keep=tuple(_outermost(shown_paths(policy))),
    )


def worker_command(
    policy: SandboxPolicy, mode: str, program: str = WORKER_PROGRAM_PATH
) -> tuple[str, ...]:
    """The command line of the worker program inside a sandbox, up to the command it runs."""
    limits = msgspec.json.encode(worker_limits(policy)).decode()
    return (own_interpreter(), "-I", "-S", program, mode, limits)


def worker_program_source() -> str:
    """The source of that program, which the engine mounts at `WORKER_PROGRAM_PATH`."""
    return Path(__file__).with_name("worker_program.py").read_text(encoding="utf-8")


def own_interpreter() -> str:
    """The interpreter of this process, by its real path: the same in every sandbox."""
    return os.path.realpath(sys.executable)


def own_installations() -> list[str]:
    """The folders of this interpreter and its packages, if they are not below /usr."""
    found = (os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.prefix))
    return [path for path in dict.fromkeys(found) if not _is_system(path)]


def shown_paths(policy: SandboxPolicy) -> list[str]:
    """Every path of the policy that is mounted into a sandbox, writable ones first."""
    proxy = (policy.proxy,) if policy.proxy else ()
    return list(
        dict.fromkeys((policy.workspace, *policy.writable, *readable_paths(policy), *proxy))
    )


def readable_paths(policy: SandboxPolicy) -> list[str]:
    """The readable folders besides the system: the policy's, and EvoClaw's installation."""
    return [
        path
        for path in dict.fromkeys((*policy.readable, *own_installations()))
        if Path(path).exists() and not _is_system(path)
    ]


def _is_system(path: str) -> bool:
    return path == "/usr" or path.startswith("/usr/")


def _outermost(paths: Sequence[str]) -> list[str]:
    """The paths that are not below another of them."""
    return [
        path
        for path in dict.fromkeys(paths)
        if not any(path != other and is_below(path, other) for other in paths)
    ]


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def pinned_paths(policy: SandboxPolicy) -> list[tuple[str, bool]]:
    """Paths in writable folders that are mounted over themselves, and whether they are writable.

    A protected file is read-only. The folders above it are mounted over themselves as well, as a
    mount point cannot be renamed: otherwise a command could move the folder and replace it.
    """
    found: dict[str, bool] = {}
    homes = (policy.workspace, *policy.writable)
    for path in sorted((*policy.protected, *_own(policy))):
        home = max((home for home in homes if is_below(path, home)), key=len, default="")
        if not home or path == home or not os.path.lexists(path):
            continue
        for above in _between(home, path):
            found.setdefault(above, True)
        found[path] = False
    return sorted(found.items())


def _own(policy: SandboxPolicy) -> Iterator[str]:
    """EvoClaw's installation, if it is in a writable folder: no sandbox may change it."""
    for path in own_installations():
        if any(is_below(path, folder) for folder in (policy.workspace, *policy.writable)):
            yield path


def _between(home: str, path: str) -> list[str]:
    return [str(above) for above in Path(path).parents if str(above).startswith(home + "/")]


def tenant_uid(tenant: str) -> int:
    """The uid that the commands of a tenant run as if this process is root."""
    return FIRST_UID + zlib.crc32(tenant.encode()) % UID_COUNT


def account_files(uid: int, gid: int, home: str = "/tmp") -> tuple[str, str]:
    """The passwd and group files of a sandbox: its own user only, and `nobody`."""
    name = "evoclaw"
    nobody = "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"
    if uid == os.geteuid() != 0:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = "evoclaw"
    users = f"{name}:x:{uid}:{gid}:{name}:{home}:/bin/sh\n{nobody}\n"
    groups = f"{name}:x:{gid}:\n" + ("" if gid == 65534 else "nogroup:x:65534:\n")
    return users, groups

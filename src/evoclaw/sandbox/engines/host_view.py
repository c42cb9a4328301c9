"""What every cage shows of the machine, and the limits that the program inside it takes on."""

from __future__ import annotations

import os
import pwd
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.sandboxes import Confines

PROGRAMS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu")
"""Beside /usr; some are links into it."""
ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "ssl", "pki", "crypto-policies"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone"),
    *("mime.types", "services", "protocols", "nsswitch.conf", "gai.conf", "fonts", "terminfo"),
    *("bash.bashrc", "inputrc", "login.defs", "magic", "debian_version", "os-release"),
    *("java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "python3", "perl", "xdg"),
)
"""Of /etc: what programs need and what says nothing of this machine or its people."""
FIRST_UID, UIDS = 64000, 1000
"""Users of nobody: where we are root, what runs in a cage is one of them."""
FRESH = ("/tmp", "/var/tmp", "/dev/shm")
INSIDE = "/run/cage/inside.py"
FRESH_PART = 4
"""A quarter of the memory may lie in temporary folders."""


class Limits(Struct, frozen=True):
    """What the program inside a cage is told; see `inside.py`."""

    rlimits: dict[str, int]
    fresh: dict[str, int] = {}
    """Folders that are new and empty for every command, and their bytes."""
    keep: tuple[str, ...] = ()
    """What stays to be seen though it lies in one of those."""


def limits(confines: Confines) -> Limits:
    """The limits of one command."""
    return Limits(
        {
            "RLIMIT_NPROC": confines.processes,
            # Of the ways to bound memory by process the one that spares address space.
            "RLIMIT_DATA": confines.memory,
            "RLIMIT_FSIZE": confines.file_size,
            "RLIMIT_NOFILE": confines.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 8 << 20,
            "RLIMIT_MSGQUEUE": 800 << 10,
        },
        fresh=dict.fromkeys(FRESH, confines.memory // FRESH_PART),
        keep=tuple(_outermost(shown(confines))),
    )


def inside(confines: Confines, mode: str) -> tuple[str, ...]:
    """The command line, up to the program, of what settles commands inside a cage."""
    told = msgspec.json.encode(limits(confines)).decode()
    return (interpreter(), "-I", "-S", INSIDE, mode, told)


def inside_source() -> str:
    """The text of that program, which the engine puts at `INSIDE`."""
    return Path(__file__).with_name("worker_program.py").read_text(encoding="utf-8")


def interpreter() -> str:
    """The interpreter that runs us, by its real path: the same in every cage."""
    return os.path.realpath(sys.executable)


def installations() -> list[str]:
    """The folders of our interpreter and of our packages that lie outside the system's own."""
    found = (os.path.realpath(one) for one in (sys.base_prefix, sys.prefix))
    return [path for path in dict.fromkeys(found) if not _is_system(path)]


def shown(confines: Confines) -> list[str]:
    """Every path that is mounted into a cage on purpose, writable ones first."""
    proxy = (confines.proxy,) if confines.proxy else ()
    return list(
        dict.fromkeys((confines.workspace, *confines.writable, *readable(confines), *proxy))
    )


def readable(confines: Confines) -> list[str]:
    """What may be read beside the system: what was named, and what we run by."""
    return [
        path
        for path in dict.fromkeys((*confines.readable, *installations()))
        if Path(path).exists() and not _is_system(path)
    ]


def _is_system(path: str) -> bool:
    return path == "/usr" or path.startswith("/usr/")


def _outermost(paths: Sequence[str]) -> list[str]:
    """Those that lie in no other of them."""
    return [
        path
        for path in dict.fromkeys(paths)
        if not any(path != other and below(path, other) for other in paths)
    ]


def below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def pinned(confines: Confines) -> list[tuple[str, bool]]:
    """What is mounted over itself inside the writable folders, and whether it may be written.

    A protected file is read-only. The folders above it are mounted over themselves as well, for
    what is mounted cannot be renamed: else one would move the folder and make it anew.
    """
    found: dict[str, bool] = {}
    homes = (confines.workspace, *confines.writable)
    for path in sorted((*confines.protected, *_own(confines))):
        home = max((one for one in homes if below(path, one)), key=len, default="")
        if not home or path == home or not os.path.lexists(path):
            continue
        for above in _between(home, path):
            found.setdefault(above, True)
        found[path] = False
    return sorted(found.items())


def _own(confines: Confines) -> Iterator[str]:
    """What we run by, where it lies in a writable folder: nobody in a cage may change it."""
    for path in installations():
        if any(below(path, one) for one in (confines.workspace, *confines.writable)):
            yield path


def _between(home: str, path: str) -> list[str]:
    return [str(above) for above in Path(path).parents if str(above).startswith(home + "/")]


def tenant_uid(tenant: str) -> int:
    """The user as whom the commands of a tenant run where we are root ourselves."""
    return FIRST_UID + zlib.crc32(tenant.encode()) % UIDS


def accounts(uid: int, gid: int, home: str = "/tmp") -> tuple[str, str]:
    """The user and group files of a cage: they know its one user, and nobody else."""
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

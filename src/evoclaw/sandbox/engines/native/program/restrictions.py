"""The restrictions that a native sandbox sets on its own process: rlimits, Landlock, seccomp."""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH116, PTH208
import ctypes
import os
import stat

from evoclaw.sandbox.engines.native.program.kernel import (
    ADD_RULE,
    CREATE_RULESET,
    FILTER,
    NO_NEW_PRIVILEGES,
    RESTRICT_SELF,
    SET_SECCOMP,
    Kernel,
)

DATA, FSIZE, CORE, NPROC, NOFILE, AS = 2, 1, 4, 6, 7, 9
ADDRESS_SPACE_FACTOR = 8
"""Address space per byte of memory: runtimes reserve far more than they use."""
FILE_RIGHTS = 0x1 | 0x2 | 0x4 | 1 << 14 | 1 << 15
"""Execute, write, read, truncate, ioctl: the rights that a rule for a single file may have."""
USE_RIGHTS, LIST_RIGHTS, DEVICE_RIGHTS = 0x1 | 0x4 | 0x8, 0x8, 0x2 | 0x4 | 1 << 14
IOCTL_RIGHT = 1 << 15
"""On the devices that the settings name; older kernels do not restrict it."""
CHANGE_RIGHTS = ((1 << 15) - 1) & ~(1 << 6 | 1 << 11)
"""All rights but creating devices and ioctl on them."""
PROC_FILES = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys")


def set_limits(
    kernel: Kernel, *, memory: int, processes: int, file_size: int, open_files: int
) -> None:
    """Set the resource limits of one process, and of one user."""
    kernel.limit("limit memory", DATA, memory)
    kernel.limit("limit address space", AS, memory * ADDRESS_SPACE_FACTOR)
    kernel.limit("limit processes", NPROC, processes)
    kernel.limit("limit file size", FSIZE, file_size)
    kernel.limit("limit open files", NOFILE, open_files)
    kernel.limit("limit core dumps", CORE, 0)


def tasks_of(uid: int) -> int:
    """How many threads a user has now: the kernel's limit counts all of them."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    found += os.stat(f"/proc/{name}/task").st_nlink - 2
            except FileNotFoundError:
                continue
    return found


def restrict(kernel: Kernel, abi: int, grants: list[tuple[str, int]], *, network: bool) -> None:
    """Restrict by Landlock: only granted paths can be opened, no process outside signalled."""
    every = (1 << (16 if abi >= 5 else 15)) - 1
    attributes = (ctypes.c_uint64 * 3)(every, 0 if network else 0x3, 0x3)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = kernel.call("make a Landlock ruleset", CREATE_RULESET, attributes, size, 0)
    for path, rights in grants:
        _grant(kernel, ruleset, path, rights & every)
    kernel.process("give up new privileges", NO_NEW_PRIVILEGES, 1)
    kernel.call("enter the Landlock ruleset", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _grant(kernel: Kernel, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        # Skipping a grant only restricts further.
        return
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):
            return
        if not stat.S_ISDIR(mode):
            rights &= FILE_RIGHTS
        rule = rights.to_bytes(8, "little") + place.to_bytes(4, "little")
        kernel.call(f"grant '{path}'", ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(place)


def filter_calls(kernel: Kernel, code: bytes) -> None:
    """Install the seccomp filter; must be the last restriction."""

    class _FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    program = _FilterProgram(len(code) // 8, code)
    what = "enter the seccomp filter"
    kernel.libc(what, "prctl", SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0)

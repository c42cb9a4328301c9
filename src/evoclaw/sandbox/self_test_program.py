"""The self-test: a standalone program that runs inside a sandbox and tries every known escape.

`python -I -S self_test_program.py PLAN`, where PLAN is a JSON object (`Decoys` in `self_test.py`
writes it). It prints a line as soon as it runs, then one JSON object: each attempt, with an empty
text if it was blocked and else what it reached. It harms nothing. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import stat
import sys

# Importing typing and pathlib would take longer than the rest of the program.
# ruff: noqa: PTH104, PTH108, PTH112, PTH118, PTH120, PTH123, PTH208
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEWUSER, REMOUNT, BIND, NOSUID = 0x10000000, 32, 4096, 2
PTRACE_SEIZE, PTRACE_ATTACH, PTRACE_DETACH = 0x4206, 16, 17
SYSCALL_NUMBERS = {
    "x86_64": {"keyctl": 250, "bpf": 321, "perf": 298, "clone": 56, "raw": 41},
    "aarch64": {"keyctl": 219, "bpf": 280, "perf": 241, "clone": 220, "raw": 198},
}
SESSION_RINGS = (-3, -4, -5)
"""Keyrings: of the session, of the user, of the user's sessions."""
KEYCTL_SEARCH = 10
IO_URING_SETUP = 425
"""The same number on every architecture."""
PLAIN_DEVICES = frozenset(
    {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts", "shm", "fd"}
    | {"stdin", "stdout", "stderr", "core", "mqueue", "log", "hugepages", "dri", "kmsg"}
)
CONNECT_TIMEOUT_S = 0.5

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Try every escape, then print the report."""
    plan = json.loads(sys.argv[1])
    os.write(1, b"started\n")
    found = {row: attempt(way, plan) for row, way in ESCAPE_ATTEMPTS.items()}
    environment = dict(os.environ)
    report = {"rows": found, "environment": environment, "uid": os.getuid()}
    os.write(1, json.dumps(report).encode() + b"\n")


def attempt(way: Callable[[dict[str, Any]], str], plan: dict[str, Any]) -> str:
    """What one attempt reached; empty: it was blocked."""
    try:
        return way(plan) or ""
    except (OSError, ValueError):
        return ""


def workspace(plan: dict[str, Any]) -> str:
    """Write the workspace: the one attempt that must succeed."""
    path = os.path.join(str(plan["workspace"]), str(plan["token"]))
    try:
        with open(path, "w") as file:
            file.write("x")
        os.unlink(path)
    except OSError as problem:
        return f"the workspace cannot be written: {problem.strerror}"
    return ""


def write(plan: dict[str, Any]) -> str:
    """Write files; `EscapeDetector` checks outside whether they arrived."""
    for folder in plan["folders"]:
        path = os.path.join(str(folder), str(plan["token"]))
        try:
            with open(path, "w"):
                pass
        except OSError:
            continue
    return ""


def secret(plan: dict[str, Any]) -> str:
    """Read a secret file."""
    for path in plan["secrets"]:
        try:
            with open(path, "rb") as file:
                if file.read(1):
                    return f"read {path}"
        except OSError:
            continue
    return ""


def connected(kind: int, family: int, address: str | tuple[str, int]) -> str:
    """Connect and send; what was reached."""
    with socket.socket(family, kind) as line:
        line.settimeout(CONNECT_TIMEOUT_S)
        line.connect(address)
        line.send(b"self_test")
    return f"reached {address!r}"


def tcp(plan: dict[str, Any]) -> str:
    """Reach a port of the machine."""
    return connected(socket.SOCK_STREAM, socket.AF_INET, ("127.0.0.1", plan["tcp"]))


def udp(plan: dict[str, Any]) -> str:
    """Send to a port of the machine."""
    # A successful send proves nothing: the decoy outside checks whether it arrives.
    connected(socket.SOCK_DGRAM, socket.AF_INET, ("127.0.0.1", plan["udp"]))
    return ""


def unix(plan: dict[str, Any]) -> str:
    """Reach a socket that lies in a folder outside."""
    return connected(socket.SOCK_STREAM, socket.AF_UNIX, plan["unix"])


def abstract(plan: dict[str, Any]) -> str:
    """Reach a socket that lies in no folder."""
    return connected(socket.SOCK_STREAM, socket.AF_UNIX, "\0" + plan["abstract"])


def raw(plan: dict[str, Any]) -> str:
    """Open a socket that sees or forges packets."""
    for family, kind, protocol in ((2, 3, 1), (10, 3, 58), (17, 3, 0x300)):
        try:
            socket.socket(family, kind, protocol).close()
        except OSError:
            continue
        return f"opened a raw socket of family {family}"
    return ""


def netlink(plan: dict[str, Any]) -> str:
    """See the machine's interfaces."""
    seen = [name for _, name in socket.if_nameindex() if name in plan["interfaces"]]
    return f"sees the interface {seen[0]}" if seen else ""


def dns(plan: dict[str, Any]) -> str:
    """Find a route to any name server, by a reserved address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(("192.0.2.53", 53))
    return "has a route to the outside"


def vsock(plan: dict[str, Any]) -> str:
    """Reach the host of this virtual machine."""
    with socket.socket(40, socket.SOCK_STREAM) as line:
        line.setblocking(False)
        problem = line.connect_ex((2, 1))
    closed = (errno.ENODEV, errno.ENETUNREACH, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)
    return "" if problem in closed else "reached the host of this virtual machine"


def pids(plan: dict[str, Any]) -> str:
    """See a process outside."""
    own, sought = str(os.getpid()), plan["decoy_token"][::-1].encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and name != own:
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    line = file.read()
            except OSError:
                continue
            if sought in line:
                return f"sees process {name} of the machine"
    return ""


def kill(plan: dict[str, Any]) -> str:
    """Signal a process outside."""
    os.kill(plan["decoy"], 0)
    return f"may signal process {plan['decoy']} of the machine"


def ptrace(plan: dict[str, Any]) -> str:
    """Trace a process outside."""
    target = plan["decoy"]
    if libc.ptrace(PTRACE_SEIZE, target, None, None) == 0:
        libc.ptrace(PTRACE_DETACH, target, None, None)
        return f"traced process {target} of the machine"
    return ""


def remount(plan: dict[str, Any]) -> str:
    """Change what is mounted."""
    for place in (b"/", b"/usr", b"/etc", os.fsencode(plan["workspace"])):
        if libc.mount(None, place, None, ctypes.c_ulong(REMOUNT | BIND), None) == 0:
            return f"remounted {place.decode()}"
    if libc.mount(b"tmpfs", b"/usr", b"tmpfs", ctypes.c_ulong(NOSUID), None) == 0:
        libc.umount2(b"/usr", 2)
        return "mounted something over /usr"
    return ""


def mknod(plan: dict[str, Any]) -> str:
    """Create a disk's device node and open it."""
    path = os.path.join(str(plan["workspace"]), str(plan["token"]) + ".node")
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(*plan["disk"]))
    try:
        os.close(os.open(path, os.O_RDONLY))
    finally:
        os.unlink(path)
    return "created a disk's device node and opened it"


def devices(plan: dict[str, Any]) -> str:
    """Open a disk, or memory."""
    for name in os.listdir("/dev"):
        path = "/dev/" + name
        kind = os.lstat(path).st_mode
        if name in PLAIN_DEVICES or not (stat.S_ISBLK(kind) or name in ("mem", "kmem", "port")):
            continue
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        return f"opened {path}"
    return ""


def user_namespace(plan: dict[str, Any]) -> str:
    """Become root in a user namespace, and so regain capabilities."""
    if in_child(lambda: libc.unshare(NEWUSER) == 0):
        return "made a user namespace"
    number = numbers().get("clone")
    if number is None:
        return ""
    pid = libc.syscall(number, ctypes.c_ulong(NEWUSER | 17), None, None, None, None)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
        return "started a process in a user namespace"
    return ""


def in_child(try_it: Callable[[], bool]) -> bool:
    """Try it in a child process, as it cannot be undone."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if try_it() else 1)
    return os.waitpid(pid, 0)[1] == 0


def rights(plan: dict[str, Any]) -> str:
    """Have privileges from the start."""
    if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()):
        return "runs as root"
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        if int(lines[name], 16):
            return f"has capabilities ({name} {lines[name].strip()})"
    if 0 in os.getgroups():
        return "is in root's group"
    return ""


def setuid(plan: dict[str, Any]) -> str:
    """Whether a setuid program could give it privileges: not if NoNewPrivs is set."""
    with open("/proc/self/status") as file:
        kept = "NoNewPrivs:\t1" in file.read()
    return "" if kept else "setuid programs may give it privileges"


def descriptors(plan: dict[str, Any]) -> str:
    """Use an inherited descriptor."""
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        more = [int(name) for name in os.listdir(listing) if int(name) > 2]
    finally:
        os.close(listing)
    for number in more:
        try:
            os.fstat(number)
        except OSError:
            continue
        return f"inherited descriptor {number}"
    return ""


def sysctl(plan: dict[str, Any]) -> str:
    """Change the kernel's settings."""
    for path in (
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger"),
        *("/proc/sys/vm/drop_caches", "/sys/kernel/uevent_helper"),
    ):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError:
            continue
        return f"may write {path}"
    return ""


def protected(plan: dict[str, Any]) -> str:
    """Change what is protected in the workspace."""
    for path in plan["protected"]:
        done = changed(path, plan["workspace"], plan["token"])
        if done:
            return done
    return ""


def changed(path: str, workspace: str, token: str) -> str:
    """How a protected file, or a folder above it, could be changed."""
    above = path
    while above.startswith(workspace + "/"):
        aside = above + "." + token
        try:
            os.rename(above, aside)
        except OSError:
            above = os.path.dirname(above)
            continue
        os.rename(aside, above)
        return f"moved {above}"
    inner = os.path.join(path, token) if os.path.isdir(path) else path
    try:
        os.close(os.open(inner, os.O_WRONLY | (os.O_CREAT if inner != path else 0)))
    except OSError:
        return ""
    if inner != path:
        os.unlink(inner)
    return f"may write {path}"


def keys(plan: dict[str, Any]) -> str:
    """Find a key in the keyrings of the process outside."""
    number = numbers().get("keyctl")
    name = plan["key"].encode()
    for ring in SESSION_RINGS if number is not None else ():
        if libc.syscall(number, KEYCTL_SEARCH, ring, b"user", name, 0) > 0:
            return f"found a key of ours in keyring {ring}"
    return ""


def bpf(plan: dict[str, Any]) -> str:
    """Load a BPF map into the kernel."""
    number = numbers().get("bpf")
    # A map of one entry.
    told = (ctypes.c_uint32 * 18)(2, 4, 4, 1)
    if number is not None and libc.syscall(number, 0, told, ctypes.sizeof(told)) >= 0:
        return "may load programs into the kernel"
    return ""


def perf(plan: dict[str, Any]) -> str:
    """Monitor a process outside through perf."""
    number = numbers().get("perf")
    told = (ctypes.c_uint32 * 32)(1, 128)
    if number is not None and libc.syscall(number, told, plan["decoy"], -1, -1, 0) >= 0:
        return "may monitor other processes"
    return ""


def shared_memory(plan: dict[str, Any]) -> str:
    """Open shared memory (System V) of a process outside."""
    number = libc.shmget(plan["shared_memory"], 0, 0)
    return "opened shared memory of the machine" if number >= 0 else ""


def io_uring(plan: dict[str, Any]) -> str:
    """Make system calls that no filter sees."""
    # One entry, and the kernel's `struct io_uring_params`.
    ring = libc.syscall(IO_URING_SETUP, 1, (ctypes.c_uint32 * 32)())
    if ring < 0:
        return ""
    os.close(ring)
    return "made an io_uring, which bypasses the system call filter"


def numbers() -> dict[str, int]:
    """The numbers of system calls that Python has no names for."""
    return SYSCALL_NUMBERS.get(os.uname().machine, {})


ESCAPE_ATTEMPTS = {
    "workspace": workspace,
    "write outside": write,
    "read a secret": secret,
    "tcp": tcp,
    "udp": udp,
    "unix socket": unix,
    "abstract socket": abstract,
    "raw socket": raw,
    "netlink": netlink,
    "dns": dns,
    "vsock": vsock,
    "host pids": pids,
    "kill": kill,
    "ptrace": ptrace,
    "remount": remount,
    "mknod": mknod,
    "devices": devices,
    "user namespace": user_namespace,
    "rights": rights,
    "setuid": setuid,
    "descriptors": descriptors,
    "sysctl": sysctl,
    "protected paths": protected,
    "keys": keys,
    "bpf": bpf,
    "perf": perf,
    "shared memory": shared_memory,
    "io_uring": io_uring,
}

if __name__ == "__main__":
    main()

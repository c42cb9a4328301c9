"""A standalone program that runs commands inside a sandbox: a single one, or a pool of workers.

`python -I -S worker_program.py once LIMITS PROGRAM ARGUMENT...` sets the limits and execs the
program. `python -I -S worker_program.py pool LIMITS` stays: it forks workers on request, over the
socket that is its stdin. A worker is the first process of a pid namespace, with its own mounts,
shared memory and temporary folder; it runs one command, and when it ends the kernel kills whatever
the command started. No worker is used twice, and the pool never runs a command itself, so it holds
no data of any command. LIMITS is a JSON object (`WorkerLimits` in `host_view.py` writes it).
Standard library only: EvoClaw's packages may not be visible here.
"""

from __future__ import annotations

import ctypes
import gc
import json
import marshal
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys

# Importing typing and pathlib would take longer than the rest of the program.
# ruff: noqa: PTH103, PTH112, PTH120, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWPID = 0x00020000, 0x04000000, 0x08000000, 0x20000000
NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
DUMPABLE, CAPBSET_DROP, PDEATHSIG, NO_NEW_PRIVS, SUBREAPER, AMBIENT = 4, 24, 1, 38, 36, 47
SECCOMP, FILTER, CLEAR_ALL = 22, 2, 4
LAST_CAPABILITY = 63
JOIN_SESSION_KEYRING = 1
KEYCTL = {"x86_64": 250, "aarch64": 219}
SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""Allowed socket families: unix, inet, inet6, netlink. Others (vsock) ignore namespaces."""
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SOCKET_SYSCALLS = {"x86_64": 41, "aarch64": 198}
REFUSED_SYSCALLS = {
    "x86_64": (
        *(155, 165, 166, 167, 168, 169, 175, 176, 246, 248, 249, 250, 272, 298, 304, 308, 310),
        *(311, 313, 320, 321, 323, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442),
    ),
    "aarch64": (
        *(39, 40, 41, 97, 104, 105, 106, 142, 217, 218, 219, 224, 225, 241, 265, 268, 270, 271),
        *(273, 280, 282, 294, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442),
    ),
}
"""System calls that change mounts, namespaces, keys or the kernel, or inspect other processes."""
X32_SYSCALL_BIT = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run in the mode that the first argument names."""
    mode, limits = sys.argv[1], json.loads(sys.argv[2])
    if mode == "pool":
        serve_pool(limits)
        return
    drop_rights(limits)
    program = sys.argv[3:]
    try:
        os.execvpe(program[0], program, os.environ)
    except OSError as problem:
        os.write(2, f"{program[0]}: {problem.strerror}\n".encode())
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def check(answer: int, what: str) -> None:
    """Raise `OSError` if a call of the C library failed."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, *more: int) -> int:
    """Change something of this process."""
    rest = [ctypes.c_ulong(value) for value in (*more, 0, 0, 0, 0)[:4]]
    return libc.prctl(option, *rest)


def drop_rights(limits: dict[str, Any]) -> None:
    """Drop every capability and set the limits, for good."""
    for number in range(LAST_CAPABILITY + 1):
        prctl(CAPBSET_DROP, number)
    prctl(AMBIENT, CLEAR_ALL)
    check(prctl(NO_NEW_PRIVS, 1), "no new privileges")
    for name, most in limits["rlimits"].items():
        set_limit(getattr(resource, name), most)
    machine = platform.machine()
    if machine in KEYCTL:
        # Fails on a kernel without keyrings, which has no keys to leak.
        libc.syscall(KEYCTL[machine], JOIN_SESSION_KEYRING, None)
    drop_capabilities()
    if machine in AUDIT_ARCHITECTURES:
        check(install_filter(machine), "system call filter")
    os.umask(0o022)


def set_limit(kind: int, most: int) -> None:
    """Lower one limit, never raise it."""
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))


def drop_capabilities() -> None:
    """Empty all three capability sets."""
    header = struct.pack("II", 0x20080522, 0)
    check(libc.capset(header, bytes(24)), "capabilities")


def install_filter(machine: str) -> int:
    """Install the seccomp filter that refuses `REFUSED_SYSCALLS` and other socket families."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse, allow = 0x00050000 | 1, 0x7FFF0000
    numbers, kinds = REFUSED_SYSCALLS[machine], SOCKET_FAMILIES
    # Jumps count from the next instruction; the two verdicts are at the end.
    body: list[tuple[int, int, str, str]] = [
        (load, 4, "", ""),
        (equal, AUDIT_ARCHITECTURES[machine], "", "refuse"),
        (load, 0, "", ""),
        (at_least, X32_SYSCALL_BIT, "refuse", ""),
        *((equal, number, "refuse", "") for number in numbers),
        (equal, SOCKET_SYSCALLS[machine], "", "allow"),
        (load, 16, "", ""),
        *((equal, kind, "allow", "") for kind in kinds),
    ]
    places = {"refuse": len(body), "allow": len(body) + 1}
    steps = [
        (
            code,
            places[yes] - index - 1 if yes else 0,
            places[no] - index - 1 if no else 0,
            value,
        )
        for index, (code, value, yes, no) in enumerate(body)
    ]
    steps += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(text := buffer(code)))
    done = libc.prctl(
        SECCOMP, ctypes.c_ulong(FILTER), program, ctypes.c_ulong(0), ctypes.c_ulong(0)
    )
    del text
    return done


def buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """A C buffer with a fixed address."""
    return ctypes.create_string_buffer(data, len(data))


def serve_pool(limits: dict[str, Any]) -> None:
    """Fork a worker for each request, and close its exit pipe when it is dead."""
    control = socket.socket(fileno=os.dup(0))
    # Keep descriptors 0 to 2 in use, so that those sent to a worker never get these numbers.
    os.dup2(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), 0)
    prctl(PDEATHSIG, signal.SIGKILL)
    prctl(SUBREAPER, 1)
    prctl(DUMPABLE, 0)
    forbid_user_namespaces()
    # The collector would touch, and so copy, shared pages in every worker.
    gc.disable()
    woken = wake_pipe()
    exit_pipes: dict[int, int] = {}
    control.send(b"up")
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            reap_workers(exit_pipes)
        if control in readable:
            given = receive(control, 2)
            if not given:
                # The parent has closed the socket: exit, and the kernel ends everything here.
                os._exit(0)
            worker, exit_pipe = given
            foreign = [control.fileno(), woken, exit_pipe, *exit_pipes.values()]
            pid = make_worker(limits, worker, foreign)
            os.close(worker)
            exit_pipes[pid] = exit_pipe


def forbid_user_namespaces() -> None:
    """Forbid user namespaces, in which a command would hold all capabilities."""
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def wake_pipe() -> int:
    """A descriptor that becomes readable when a child ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return woken


def receive(control: socket.socket, most: int) -> list[int]:
    """The descriptors of the next message; none: the other end is closed."""
    room = socket.CMSG_SPACE(most * 4)
    data, extra, _, _ = control.recvmsg(16, room, socket.MSG_CMSG_CLOEXEC)
    found: list[int] = []
    for level, kind, body in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found += struct.unpack(f"{len(body) // 4}i", body[: len(body) // 4 * 4])
    return found if data else []


def reap_workers(exit_pipes: dict[int, int]) -> None:
    """Reap dead workers; a closed exit pipe reports that a worker and all in it are dead."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        exit_pipe = exit_pipes.pop(pid, None)
        if exit_pipe is not None:
            os.close(exit_pipe)


def make_worker(limits: dict[str, Any], control: int, foreign: list[int]) -> int:
    """Fork the first process of a new pid namespace; its pid here."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            check(libc.unshare(NEWPID), "pid namespace")
            pid = os.fork()
            if pid == 0:
                for descriptor in (*foreign, reader, writer):
                    os.close(descriptor)
                run_worker(limits, socket.socket(fileno=control))
            os.write(writer, struct.pack("i", pid))
        finally:
            os._exit(0)
    os.close(writer)
    data = os.read(reader, 4)
    os.close(reader)
    os.waitpid(between, 0)
    # No process has pid 0: the exit pipe of a worker that failed is closed with the next one.
    return struct.unpack("i", data)[0] if data else 0


def run_worker(limits: dict[str, Any], control: socket.socket) -> None:
    """Run as a worker: isolate itself, run one command, report its exit status."""
    try:
        os.setsid()
        mount_fresh_folders(limits)
        drop_rights(limits)
        prctl(DUMPABLE, 0)
        woken = wake_pipe()
        control.send(b"R")
        given = receive(control, 4)
        if given:
            run(control, woken, given)
    except OSError as problem:
        control.send(f"X{problem}".encode()[:4096])
    finally:
        os._exit(0)


def mount_fresh_folders(limits: dict[str, Any]) -> None:
    """Mount the folders that no two commands may share."""
    check(libc.unshare(NEWNS | NEWIPC | NEWUTS), "namespaces")
    for place, size in limits["fresh"].items():
        within = [path for path in limits["keep"] if path.startswith(place + "/")]
        kept = [(os.open(path, os.O_PATH | os.O_CLOEXEC), path) for path in within]
        mount(b"tmpfs", place, b"tmpfs", NOSUID | NODEV, f"mode=1777,size={size}".encode())
        for held, path in kept:
            put_back(held, path)
    mount(b"proc", "/proc", b"proc", NOSUID | NODEV | NOEXEC, None)


def put_back(held: int, path: str) -> None:
    """Mount again what the new folder hid."""
    source = f"/proc/self/fd/{held}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    mount(source.encode(), path, None, BIND | REC, None)
    os.close(held)


def mount(source: bytes, place: str, kind: bytes | None, flags: int, options: bytes | None) -> None:
    """Mount one thing."""
    check(libc.mount(source, os.fsencode(place), kind, ctypes.c_ulong(flags), options), place)


def run(control: socket.socket, woken: int, given: list[int]) -> None:
    """Start the command, and serve the control socket until it ends."""
    job, *streams = given
    size = os.fstat(job).st_size
    argv, cwd, env = marshal.loads(os.pread(job, size, 0))
    os.close(job)
    try:
        os.chdir(cwd)
        actions = [(os.POSIX_SPAWN_DUP2, stream, place) for place, stream in enumerate(streams)]
        pid = os.posix_spawn(
            *(argv[0], argv, env),
            file_actions=actions,
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    except OSError as problem:
        control.send(b"E" + struct.pack("i", problem.errno or 0))
        return
    for stream in streams:
        os.close(stream)
    status = watch(control, woken, pid)
    if status is not None:
        kind = b"S" if kill_leftovers() else b"L"
        control.send(kind + struct.pack("i", os.waitstatus_to_exitcode(status)))


def kill_leftovers() -> bool:
    """Kill the processes that the command left; whether there were none.

    Every process of a pid namespace descends from its first process, which is this one: without
    children there are no others.
    """
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return True
    return False


def watch(control: socket.socket, woken: int, pid: int) -> int | None:
    """The command's status; none if the parent closed the control socket."""
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if control in readable:
            if control.recv(16) != b"T":
                return None
            # Every process here but this one; a stopped process must continue to get the signal.
            for number in (signal.SIGTERM, signal.SIGCONT):
                try:
                    os.kill(-1, number)
                except ProcessLookupError:
                    break
        if woken in readable:
            os.read(woken, 4096)
            found = reap(pid)
            if found is not None:
                return found


def reap(pid: int) -> int | None:
    """Reap every child that ended; the command's status if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


if __name__ == "__main__":
    main()

"""A standalone program: runs one command and leaves none of its processes behind.

`python -I -S supervisor_program.py CONTROL PROGRAM ARGUMENT...`, where CONTROL is a descriptor: the
byte `T` asks everything politely to end, its closing ends everything. Used where no pid namespace
is available. As a subreaper it inherits every orphan of the command, so whatever the command
started, in whatever session, stays its descendant; that it has no children left is the proof that
everything is dead. It then ends exactly as the command did.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
SWEEP_TIMEOUT_S = 4.0
"""Seconds of killing after which the remaining processes count as unkillable."""


def main() -> None:
    """Run the command; wait until it ends or the control descriptor closes."""
    control, program = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(control, False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignored)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignored)
    try:
        pid = os.posix_spawn(program[0], program, os.environ, setsigdef=_defaults())
    except OSError as problem:
        os.write(2, f"{program[0]}: {problem.strerror}\n".encode())
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)
    status = _watch(pid, control, woken)
    _sweep()
    _end_like(status)


def _ignored(_number: int, _frame: object) -> None:
    """Exists so that the signal wakes us; unlike SIG_IGN, a handler is not inherited."""


def _defaults() -> list[int]:
    return [signal.SIGPIPE, signal.SIGXFSZ]


def _watch(pid: int, control: int, woken: int) -> int:
    """The command's status, or that of a killed process if the control descriptor closed."""
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if control in readable:
            if os.read(control, 1) != b"T":
                return signal.SIGKILL
            _signal(_descendants(), signal.SIGTERM)
            _signal(_descendants(), signal.SIGCONT)
        if woken in readable:
            os.read(woken, 4096)
            status = _reap(pid)
            if status is not None:
                return status


def _reap(pid: int) -> int | None:
    """Reap every process that ended; return the command's status if it is among them."""
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


def _sweep() -> None:
    """Freeze and kill all descendants until there are none."""
    give_up = time.monotonic() + SWEEP_TIMEOUT_S
    while time.monotonic() < give_up:
        frozen: set[int] = set()
        # A stopped process cannot fork, so the set stops growing.
        while more := _descendants() - frozen:
            _signal(more, signal.SIGSTOP)
            frozen |= more
        _signal(frozen, signal.SIGKILL)
        _reap(0)
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        select.select([], [], [], 0.002)


def _descendants() -> set[int]:
    """Every living process below this one."""
    children: dict[int, list[int]] = {}
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        try:
            state, parent = _stat(pid)
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(pid)
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found.update(below)
        todo.extend(below)
    return found


def _stat(pid: int) -> list[bytes]:
    """The state and the parent of a process."""
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(file, 4096).rpartition(b")")[2].split()[:2]
    finally:
        os.close(file)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            # Already dead, or not ours.
            continue


def _end_like(status: int) -> None:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()

"""The processes around a sandboxed command: they forward signals and its status, and clean up."""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH106

import os

from evoclaw.sandbox.engines.native.program.kernel import CHLD, KILL, TERM, Kernel


def outside(kernel: Kernel, first: int, status_reader: int) -> None:
    """Wait for the sandbox's first process, and exit as the command did."""
    status = _wait(kernel, first, first)
    data = os.read(status_reader, 16)
    end_like(kernel, int(data) if data else status)


def inside(kernel: Kernel, command: int, status_writer: int) -> None:
    """Run as the sandbox's first process: reap until the command ends; the kernel ends the rest."""
    status = _wait(kernel, command, -1)
    os.write(status_writer, str(status).encode())
    os._exit(0)


def tidying(kernel: Kernel, command: int, folder: str) -> None:
    """Wait for the command, remove its temporary folder, and exit as the command did."""
    status = _wait(kernel, command, command)
    try:
        _remove(folder)
    finally:
        # What cannot be removed stays: no other user can read it.
        end_like(kernel, status)


def _remove(folder: str) -> None:
    """Remove a folder that other processes may still be changing: no link is followed."""
    for _, folders, files, here in os.fwalk(folder, topdown=False):
        for name in files:
            os.unlink(name, dir_fd=here)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=here)
            except NotADirectoryError:
                os.unlink(name, dir_fd=here)
    os.rmdir(folder)


def _wait(kernel: Kernel, command: int, asked: int) -> int:
    """The status of a command; SIGTERM is forwarded to `asked`, where -1 is every process."""
    while True:
        if kernel.next_signal() != CHLD:
            os.kill(asked, TERM)
            continue
        # One signal may report several children.
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == command:
                return status
            if ended == 0:
                break


def end_like(kernel: Kernel, status: int) -> None:
    """Exit with the status of another process."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number != KILL:
        kernel.reset_signal(number)
        kernel.hold_signals(hold=False)
    os.kill(os.getpid(), number)
    os._exit(128 + number)

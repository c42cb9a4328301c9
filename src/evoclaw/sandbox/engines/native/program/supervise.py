"""The processes around a caged command: they pass on signals and how it ended, and tidy up."""

# Loading pathlib would make every start slower.
# ruff: noqa: PTH106

import os

from evoclaw.sandbox.engines.native.program.kernel import CHLD, KILL, TERM, Kernel


def outside(kernel: Kernel, first: int, says: int) -> None:
    """Wait for the cage's first process, and end as the command did."""
    status = _wait(kernel, first, first)
    told = os.read(says, 16)
    end_like(kernel, int(told) if told else status)


def inside(kernel: Kernel, command: int, told: int) -> None:
    """As the first process of the cage: reap until the command ends; then the kernel ends all."""
    status = _wait(kernel, command, -1)
    os.write(told, str(status).encode())
    os._exit(0)


def tidying(kernel: Kernel, command: int, folder: str) -> None:
    """Wait for the command, take its temporary folder away, and end as it did."""
    status = _wait(kernel, command, command)
    try:
        _remove(folder)
    finally:
        # What it made unremovable stays: nobody else can read it.
        end_like(kernel, status)


def _remove(folder: str) -> None:
    """Remove a folder that somebody may still be changing: no link is followed."""
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
    """The status of a command; `asked` is told when we are asked to end, -1 being everybody."""
    while True:
        if kernel.next_signal() != CHLD:
            os.kill(asked, TERM)
            continue
        # One signal may stand for several that ended.
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == command:
                return status
            if ended == 0:
                break


def end_like(kernel: Kernel, status: int) -> None:
    """End as another process did."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number != KILL:
        kernel.reset_signal(number)
        kernel.hold_signals(hold=False)
    os.kill(os.getpid(), number)
    os._exit(128 + number)

"""The limits of a command: which one it reached, and those that a sandbox cannot enforce itself."""

from __future__ import annotations

import asyncio
import os
import signal

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.process_output import ProcessWatch
from evoclaw.executors.protected_paths import absent_protected_names, set_aside

MEMORY, PROCESSES, FILE_SIZE, DISK = "memory", "processes", "file size", "disk"
FILES = "number of files"
LIMIT_MESSAGES = (
    (b"cannot fork", PROCESSES),
    (b"fork: retry", PROCESSES),
    (b"fork: Resource temporarily unavailable", PROCESSES),
    (b"can't start new thread", PROCESSES),
    (b"BlockingIOError: [Errno 11] Resource temporarily unavailable", PROCESSES),
    (b"Cannot fork", PROCESSES),
    (b"Cannot allocate memory", MEMORY),
    (b"MemoryError", MEMORY),
    (b"std::bad_alloc", MEMORY),
    (b"Out of memory", MEMORY),
    (b"memory exhausted", MEMORY),
    (b"virtual memory exhausted", MEMORY),
    (b"File too large", FILE_SIZE),
    (b"File size limit exceeded", FILE_SIZE),
    (b"No space left on device", DISK),
    (b"Disk quota exceeded", DISK),
)
"""What programs print at a per-process limit, which the kernel does not report."""
MAX_SCANNED_STDERR_BYTES = 16 << 10
FILE_SIZE_EXIT_CODES = frozenset({-int(signal.SIGXFSZ), 128 + int(signal.SIGXFSZ)})


def limits_met(code: int, errors: bytes, seen: list[str], *, sandboxed: bool = True) -> list[str]:
    """The limits that made a command fail; none if it succeeded, or failed otherwise.

    Args:
        code: Its exit code.
        errors: Its stderr.
        seen: The limits that the kernel reported.
        sandboxed: Whether it ran in a sandbox; without one there are no limits.
    """
    if code == 0 or not sandboxed:
        return []
    found = dict.fromkeys(seen)
    if code in FILE_SIZE_EXIT_CODES:
        found[FILE_SIZE] = None
    tail = errors[-MAX_SCANNED_STDERR_BYTES:]
    for saying, limit in LIMIT_MESSAGES:
        if saying in tail:
            found[limit] = None
    return list(found)


DISK_POLL_INTERVAL_S = 0.25
"""How often the use of the disk is checked."""


class WorkspaceWatch:
    """Watches the disk fill up, and protected files appear that did not exist before.

    The kernel does not count the files of a process: this looks at the file system of the
    workspace, where the writes of other processes count too, so the limits are generous. And a
    file that does not exist cannot be made read-only: one that appears is renamed when the command
    ends.
    """

    def __init__(self, policy: SandboxPolicy, watch: ProcessWatch) -> None:
        self._policy, self._watch = policy, watch
        self._bytes, self._files = _used(policy.workspace)
        self._absent = absent_protected_names(policy.workspace)
        self._met: list[str] = []
        self.made: list[str] = []
        """Protected files that the command created, and their new names."""
        self.grown = False
        """Whether there is something new to protect from the next command."""
        self._timer = asyncio.get_running_loop().call_later(DISK_POLL_INTERVAL_S, self._look)

    def _look(self) -> None:
        used, files = _used(self._policy.workspace)
        grown, made = used - self._bytes, files - self._files
        if grown > self._policy.disk or made > self._policy.files:
            self._met = [DISK if grown > self._policy.disk else FILES]
            self._watch.wake.set()
            return
        self._timer = asyncio.get_running_loop().call_later(DISK_POLL_INTERVAL_S, self._look)

    def stop(self) -> list[str]:
        """Stop watching, rename what was created, and return the limits that were reached."""
        self._timer.cancel()
        for name in self._absent:
            if not os.path.lexists(f"{self._policy.workspace}/{name}"):
                continue
            if new_name := set_aside(self._policy.workspace, name):
                self.made.append(f"{name} (now {new_name})")
            else:
                self.grown = True
        return self._met


def _used(path: str) -> tuple[int, int]:
    """Bytes and files in use on a file system."""
    seen = os.statvfs(path)
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_files - seen.f_ffree

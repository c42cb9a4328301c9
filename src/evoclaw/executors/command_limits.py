"""The limits of a command: which one it reached, and those that a sandbox cannot enforce itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from evoclaw.core.sandboxes import SandboxPolicy
from evoclaw.executors.process_output import ProcessWatch
from evoclaw.executors.workspace.guard import WorkspaceGuard
from evoclaw.executors.workspace.snapshot import WorkspaceSnapshot

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


logger = logging.getLogger(__name__)

DISK_POLL_INTERVAL_S = 0.25
"""How often the use of the disk is checked."""
SCAN_INTERVAL_S = 1.0
"""How often the workspace is scanned while a command runs; less often where a scan takes long."""


class WorkspaceWatch:
    """Watches the disk fill up, and files appear that programs run by themselves.

    The kernel does not count the files of a process: this looks at the file system of the
    workspace, where the writes of other processes count too, so the limits are generous. And a
    file that does not exist cannot be made read-only: one that appears is renamed when the command
    ends. While a command runs, the workspace is scanned from time to time: a command that leaves
    such a file there is stopped.
    """

    def __init__(
        self,
        policy: SandboxPolicy,
        watch: ProcessWatch,
        guard: WorkspaceGuard,
        before: WorkspaceSnapshot,
    ) -> None:
        self._policy, self._watch, self._guard, self._before = policy, watch, guard, before
        self._bytes, self._files = _used(policy.workspace)
        self._met: list[str] = []
        self.refused: list[str] = []
        """What the command left that programs run by themselves, and what was done with it."""
        self._watching = asyncio.create_task(self._look())

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        next_scan, suspected = loop.time() + SCAN_INTERVAL_S, frozenset[str]()
        while True:
            await asyncio.sleep(DISK_POLL_INTERVAL_S)
            used, files = _used(self._policy.workspace)
            grown, made = used - self._bytes, files - self._files
            if grown > self._policy.disk or made > self._policy.files:
                self._met = [DISK if grown > self._policy.disk else FILES]
                self._watch.wake.set()
                return
            if loop.time() < next_scan:
                continue
            started = loop.time()
            found = frozenset(await asyncio.to_thread(self._planted))
            # Twice: git writes some files in several steps.
            if found & suspected:
                self._watch.wake.set()
                return
            suspected = found
            next_scan = loop.time() + max(SCAN_INTERVAL_S, 10 * (loop.time() - started))

    def _planted(self) -> list[str]:
        after = self._guard.scan()
        found = self._guard.planted(self._before, after, self._policy.protected)
        return [path for path in found if self._guard.is_urgent(path, self._before, after)]

    async def stop(self) -> list[str]:
        """Stop watching, rename what was left, and return the limits that were reached."""
        self._watching.cancel()
        await asyncio.wait([self._watching])
        await asyncio.to_thread(self._refuse)
        return self._met

    def _refuse(self) -> None:
        after = self._guard.scan(self._before)
        for path in self._guard.planted(self._before, after, self._policy.protected):
            try:
                done = self._guard.refuse(path)
            except FileNotFoundError:
                continue
            except OSError as problem:
                done = f"could not be renamed: {problem.strerror}; remove it"
            self.refused.append(f"{self._guard.relative(path)} ({done})")
        for folder, signature in after.unreadable.items():
            if self._before.unreadable.get(folder, ()) != signature:
                self.refused.append(
                    f"{self._guard.relative(folder)} (could not be read and checked; remove it)"
                )
        if self.refused:
            logger.warning("a sandboxed command left protected files: %s", ", ".join(self.refused))


def _used(path: str) -> tuple[int, int]:
    """Bytes and files in use on a file system."""
    seen = os.statvfs(path)
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_files - seen.f_ffree

"""Which limit a command reached, from its exit code and its stderr."""

from __future__ import annotations

import signal

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

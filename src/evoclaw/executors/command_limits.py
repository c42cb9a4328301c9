"""Which limit a command met, from how it ended and what it said."""

from __future__ import annotations

import signal

MEMORY, PROCESSES, FILE_SIZE, DISK = "memory", "processes", "file size", "disk"
FILES = "number of files"
SAYINGS = (
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
"""What programs say at a limit that belongs to each process, which the kernel does not count."""
LOOKED_AT = 16 << 10
TOO_LARGE = frozenset({-int(signal.SIGXFSZ), 128 + int(signal.SIGXFSZ)})


def limits_met(code: int, errors: bytes, seen: list[str], *, caged: bool = True) -> list[str]:
    """The limits that made a command fail, in words; none if it went well, or failed otherwise.

    Args:
        code: How it ended.
        errors: What it wrote about it.
        seen: What the kernel counted.
        caged: Without limits of ours there are none to meet.
    """
    if code == 0 or not caged:
        return []
    found = dict.fromkeys(seen)
    if code in TOO_LARGE:
        found[FILE_SIZE] = None
    tail = errors[-LOOKED_AT:]
    for saying, limit in SAYINGS:
        if saying in tail:
            found[limit] = None
    return list(found)

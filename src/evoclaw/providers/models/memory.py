"""How much memory this machine has for a model, and how much a model needs."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

MIN_CONTEXT_TOKENS = 4_096
"""A shorter context has no room for the tools and the question."""
BATCH_TOKENS = 256
"""Tokens for which the server holds a result for each word of the vocabulary."""
SERVER_BYTES = 96 * 2**20
"""Of the server itself: the estimate is above what servers of two models were seen to hold."""
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class MachineMemory(Struct, frozen=True):
    """The memory of this machine, or of the container that this process runs in."""

    total_bytes: int
    """0 if it is not known."""
    free_bytes: int
    """What programs can still use; 0 if it is not known."""


def memory_needed(
    *, size_bytes: int, context_tokens: int, cache_bytes_per_token: int, vocabulary: int
) -> int:
    """The bytes that a server needs for a model file with a context of so many tokens."""
    batch = BATCH_TOKENS * vocabulary * 4
    return size_bytes + context_tokens * cache_bytes_per_token + batch + SERVER_BYTES


def fitting_context(
    wanted_tokens: int, *, size_bytes: int, cache_bytes_per_token: int, vocabulary: int, free: int
) -> int:
    """The longest context up to the wanted one that fits; the shortest usable one if none does."""
    context = wanted_tokens
    while context > MIN_CONTEXT_TOKENS and free:
        needed = memory_needed(
            size_bytes=size_bytes,
            context_tokens=context,
            cache_bytes_per_token=cache_bytes_per_token,
            vocabulary=vocabulary,
        )
        if needed <= free:
            break
        context = max(MIN_CONTEXT_TOKENS, context // 2)
    return context


def machine_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> MachineMemory:
    """The memory of this machine, limited by the control groups of this process."""
    total, free = _meminfo(proc / "meminfo")
    for limit, used in _cgroup_limits(proc / "self" / "cgroup", cgroups):
        total = min(total or limit, limit)
        free = min(free or limit, max(0, limit - used))
    return MachineMemory(total, free)


def _meminfo(file: Path) -> tuple[int, int]:
    """The total and the available memory."""
    fields: dict[str, int] = {}
    for line in _lines(file):
        name, _, value = line.partition(":")
        number = value.split()[0] if value.split() else ""
        fields[name] = int(number) * 1024 if number.isdecimal() else 0
    if "MemTotal" in fields:
        return fields["MemTotal"], fields.get("MemAvailable", 0)
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0, 0
    # Not Linux: how much of it is free is not known, so half is assumed.
    return total, total // 2


def _cgroup_limits(own: Path, cgroups: Path) -> list[tuple[int, int]]:
    """The limit and the use of each group that contains this process, of either version."""
    groups: list[tuple[Path, str, str]] = []
    for line in _lines(own):
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        parts = Path(path.strip().lstrip("/"))
        chain = [parts, *parts.parents]
        if not controllers:
            groups += [(cgroups / part, "memory.max", "memory.current") for part in chain]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            groups += [(cgroups / "memory" / part, *names) for part in chain]
    found: list[tuple[int, int]] = []
    for folder, limit_file, used_file in groups:
        limit = _integer(folder / limit_file)
        if limit is not None:
            # Files that the kernel has cached make room when memory is needed.
            cached = _statistic(folder / "memory.stat", "inactive_file")
            found.append((limit, max(0, (_integer(folder / used_file) or 0) - cached)))
    return found


def _statistic(file: Path, name: str) -> int:
    values = (line.split() for line in _lines(file))
    return next((int(v[1]) for v in values if len(v) == 2 and v[0] == name and v[1].isdecimal()), 0)


def _integer(file: Path) -> int | None:
    """The number in a file; None if there is none, such as for the word `max`."""
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def format_bytes(count: int) -> str:
    """A size for people, such as `491 MB` or `1.1 GB`."""
    if count < 10**9:
        return f"{max(1, round(count / 10**6)):,} MB" if count else "0 MB"
    return f"{count / 10**9:,.1f} GB"

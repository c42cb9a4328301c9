"""Process identity: names a process so that others on the same machine can see whether it is alive.

A silent process loses its runs when its lease ends. A process that is certainly dead need not be
waited for: an orchestrator that was killed continues its runs at once when it is started again.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_PROC = Path("/proc")


def current_process_identity() -> str:
    """A name for this process that no other process ever has."""
    return f"{_machine_id()}/{os.getpid()}/{_start_ticks(os.getpid())}/{secrets.token_hex(4)}"


def is_process_dead(identity: str) -> bool:
    """Whether the process of that name is certainly dead; False if in doubt."""
    parts = identity.split("/")
    if len(parts) != 4 or not parts[0] or parts[0] != _machine_id() or not parts[1].isdigit():
        return False
    started = _start_ticks(int(parts[1]))
    return started != parts[2]


def _machine_id() -> str:
    """The boot and PID namespace in which process ids are comparable; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started

"""Who holds a run: a process, named so that others on its machine can see whether it lives.

Who is silent is given up in any case. But whoever is certainly gone need not be waited for: an
orchestrator that was killed goes on at once when it is started again.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_PROC = Path("/proc")


def this_process() -> str:
    """A name for this process that no other one has, now or later."""
    return f"{_machine()}/{os.getpid()}/{_begun(os.getpid())}/{secrets.token_hex(4)}"


def is_gone(holder: str) -> bool:
    """Whether the process of that name certainly does not run any more; if in doubt, it may."""
    parts = holder.split("/")
    if len(parts) != 4 or not parts[0] or parts[0] != _machine() or not parts[1].isdigit():
        return False
    begun = _begun(int(parts[1]))
    return begun != parts[2]


def _machine() -> str:
    """Within which process ids mean the same, since it was started; empty where none can be had."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _begun(pid: int) -> str:
    """When a process was started, in ticks since the machine was; empty if there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    state, begun = fields[0], fields[19]
    return "" if state in "ZX" else begun

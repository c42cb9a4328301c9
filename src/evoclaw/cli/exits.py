"""The exit codes of the `evoclaw` command."""

from __future__ import annotations

from collections.abc import Mapping

OK = 0
FAILED = 1
"""The run ended in an error, or a recording did not replay."""
MISUSED = 2
"""The command line or the configuration is wrong; nothing was run."""
STOPPED = 3
"""A limit ended the run: turns, time, budget or a detected loop."""
WAITING = 4
"""The run waits for a person."""
CANCELLED = 130
"""Ctrl-C."""

BY_STOP: Mapping[str, int] = {
    "completed": OK,
    "error": FAILED,
    "max_iterations": STOPPED,
    "budget_exceeded": STOPPED,
    "duration_exceeded": STOPPED,
    "loop_detected": STOPPED,
    "waiting": WAITING,
    "cancelled": CANCELLED,
}
"""By `StopReason`; as text, so that `evoclaw --version` does not load the events."""

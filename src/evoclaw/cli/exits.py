"""What the command's exit codes mean: one table."""

from __future__ import annotations

from evoclaw.core.events import StopReason

OK = 0
FAILED = 1
"""The run ended in an error, or a recording did not replay."""
MISUSED = 2
"""What was typed or configured cannot work; nothing was run."""
STOPPED = 3
"""A limit ended the run: turns, time, budget, or it was repeating itself."""
WAITING = 4
"""The run waits for a person."""
CANCELLED = 130
"""Ctrl-C."""

BY_STOP = {
    StopReason.COMPLETED: OK,
    StopReason.ERROR: FAILED,
    StopReason.MAX_ITERATIONS: STOPPED,
    StopReason.BUDGET_EXCEEDED: STOPPED,
    StopReason.DURATION_EXCEEDED: STOPPED,
    StopReason.LOOP_DETECTED: STOPPED,
    StopReason.WAITING: WAITING,
    StopReason.CANCELLED: CANCELLED,
}

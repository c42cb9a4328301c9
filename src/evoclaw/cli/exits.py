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

MEANINGS: Mapping[int, str] = {
    OK: "It worked; a run completed",
    FAILED: "It failed: a run ended in an error, or something that was checked is not in order",
    MISUSED: "The command line or the settings are wrong, or the service refused the request",
    STOPPED: "A limit ended the run: turns, time, budget or a detected loop",
    WAITING: "The run waits for a person: see `evoclaw approvals`",
    CANCELLED: "It was cancelled, such as with Ctrl-C",
}
"""What each exit code means, for people and scripts."""
BY_SIGNAL = "A signal ended the command: 128 and the number of the signal, such as 143 for SIGTERM"

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

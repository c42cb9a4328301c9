"""The results of calls that are refused, with the reason in words."""

from __future__ import annotations

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.edge.plans import refused
from evoclaw.edge.running_call import RunningCall
from evoclaw.store.calls.journal import JournalRow
from evoclaw.transport.wire import MAX_HOPS, Command, WireError, read_command

NEVER_STARTED_DIGEST = ""
"""In place of the digest of a call that was cancelled before it arrived."""


def check(command: Command, now: float, window: float) -> None:
    """Refuse a command that outlives the deduplication window, or is delegated in a circle."""
    if command.expires_at is not None and command.expires_at - now > window:
        text = f"The call may wait longer than the {window:g}s that this device remembers calls."
        raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
    if command.hops > MAX_HOPS:
        text = f"The command was delegated by more than {MAX_HOPS} agents."
        raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)


def expired(command: Command) -> ToolResult:
    """It arrived, or got its slot, too late."""
    text = "The call reached the device after its deadline, so it was not run."
    return refused(command, ErrorKind.EXPIRED, text)


def cancelled(command: Command) -> ToolResult:
    """It was cancelled while it waited."""
    return refused(command, ErrorKind.CANCELLED, "The call was cancelled before it started.")


def conflict(command: Command) -> ToolResult:
    """Its id belongs to another call."""
    text = "An earlier call had the same id and other arguments; nothing was run."
    return refused(command, ErrorKind.CONFLICT, text)


def fenced(command: Command) -> ToolResult:
    """Its run belongs to another orchestrator by now."""
    text = "Another orchestrator has taken over this run; commands of this one are refused."
    return refused(command, ErrorKind.CONFLICT, text, fenced=True)


def queue_full(command: Command, waiting: int) -> ToolResult:
    """There are too many."""
    text = f"The device already has {waiting} waiting calls. Try again later."
    return refused(command, ErrorKind.QUEUE_FULL, text)


def too_many_jobs(command: Command, running: int) -> ToolResult:
    """There are too many jobs."""
    text = f"The device already runs {running} jobs. Wait for one to end, or cancel one."
    return refused(command, ErrorKind.QUEUE_FULL, text)


def no_journal(command: Command, problem: EvoClawError) -> ToolResult:
    """A call that cannot be journaled is not started."""
    text = f"The device cannot write its journal ({problem}), so it runs nothing."
    return refused(command, ErrorKind.INTERNAL, text)


def reported_before(command: Command, row: JournalRow) -> ToolResult:
    """It ended, its result was acknowledged, and it is no longer stored."""
    if row.digest == NEVER_STARTED_DIGEST:
        return cancelled(command)
    text = "This call ended earlier; its result was acknowledged and is no longer stored."
    return refused(command, ErrorKind.UNKNOWN, text, state=str(row.state))


def silent(live: RunningCall) -> ToolResult:
    """It ran, and was ended because it wrote no output for too long."""
    idle = 0.0 if live.plan is None or live.plan.idle is None else live.plan.idle
    text = f"The job wrote no output for {idle:g}s and was stopped. Its last output:\n{live.said}"
    return refused(live.command, ErrorKind.TIMEOUT, text, idle=True)


def recovered(row: JournalRow) -> Command:
    """The command of a row; one that cannot be read any more keeps its id."""
    try:
        return read_command(row.command)
    except WireError:
        return Command("tool", {"tool": "unreadable"}, row.request_id)

"""Request and read a model's reply: admission, stream, confirmation, call ids."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from enum import Enum

import msgspec

from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, RunEnded, RunSuspended
from evoclaw.core.events import ReplyEvent, StopReason
from evoclaw.core.messages import Reply, ToolCall
from evoclaw.core.ports import Allow, Ask, Decision, Deny, Ports, Provider
from evoclaw.core.tools import Call, Context, Effect, Tool

_MARKER = re.compile(r"\A[\s*_#>`]*(COMPLETED|CONTINUE)[*_`]*\s*:[*_`]*[ \t]*", re.IGNORECASE)

ONE_MORE_REPLY = Tool(
    "one_more_reply", "Ask the model for one more reply.", {"type": "object"},
    effect=Effect.READ, resources=(),
)  # fmt: skip
"""The tool of the pseudo-call by which a person approves another reply; never offered."""


async def admit(ports: Ports, deadline: Deadline, turn: int, run_id: str = "") -> None:
    """Ask the policy for one more reply; raise `RunEnded` if it is denied.

    An `Ask` goes to the approver as if it were a call, always with the same request id: a run that
    ended as waiting asks the same question again when it is resumed.
    """
    try:
        verdict = await deadline.bound(ports.policy.admit(turn))
    except TimeoutError:
        raise interrupted(deadline) from None
    except (RunEnded, RunSuspended):
        raise
    except Exception as error:
        # A policy that fails does not allow the reply.
        text = f"a policy failed ({type(error).__name__}: {error})"
        raise RunEnded(StopReason.ERROR, text) from error
    if isinstance(verdict, Allow):
        return
    if isinstance(verdict, Deny):
        spent = verdict.code.startswith("budget")
        stop = StopReason.BUDGET_EXCEEDED if spent else StopReason.CANCELLED
        raise RunEnded(stop, verdict.for_people or verdict.reason)
    await _approve(ports, deadline, f"{run_id}.{turn}.reply.1", verdict)


async def _approve(ports: Ports, deadline: Deadline, request_id: str, ask: Ask) -> None:
    """Ask the approver for one more reply; raise `RunEnded` unless it is approved."""
    context = Context(principal=ports.principal)
    call = Call(request_id, ONE_MORE_REPLY, {}, request_id, ONE_MORE_REPLY.timeout, context=context)
    try:
        approval = await deadline.bound(ports.approver.approve(call, ask))
    except TimeoutError:
        raise interrupted(deadline) from None
    except RunSuspended:
        raise
    except Exception as error:
        text = f"{ask.reason}, and the approval request failed ({type(error).__name__})"
        raise RunEnded(StopReason.BUDGET_EXCEEDED, text) from error
    if approval.decision is Decision.PENDING:
        raise RunEnded(StopReason.WAITING, approval.reason or ask.reason)
    if approval.decision is Decision.DENY:
        text = f"{ask.reason}: {approval.reason or 'the user refused to continue'}"
        raise RunEnded(StopReason.BUDGET_EXCEEDED, text)


async def next_reply_event(
    provider: Provider, pieces: AsyncGenerator[ReplyEvent, None], deadline: Deadline
) -> ReplyEvent:
    """The next event of a provider; every other outcome becomes a `ProviderError`."""
    try:
        return await deadline.bound(anext(pieces))
    except TimeoutError:
        if deadline.over:
            raise interrupted(deadline) from None
        kind = ProviderErrorKind.TIMEOUT
        raise ProviderError(kind, f"{provider.model} did not answer in time") from None
    except (ProviderError, RunSuspended):
        raise
    except StopAsyncIteration:
        kind = ProviderErrorKind.SERVER_ERROR
        raise ProviderError(
            kind, f"{provider.model} ended its stream before the reply was complete"
        ) from None
    except Exception as error:
        # A bug in a provider ends the run with a reason, not with a traceback.
        text = f"{provider.model}: internal error ({type(error).__name__}: {error})"
        raise ProviderError(ProviderErrorKind.UNKNOWN, text) from error


def interrupted(deadline: Deadline) -> RunEnded:
    """Why a deadline is over: it was cancelled, or the time is up."""
    if deadline.cancelled:
        return RunEnded(StopReason.CANCELLED)
    return RunEnded(StopReason.DURATION_EXCEEDED)


class Confirmation(Enum):
    """The answer to the checklist of double confirmation."""

    COMPLETED = "completed"
    CONTINUE = "continue"
    PLAIN = "plain"
    """Neither keyword: taken as confirmed."""


def read_confirmation(text: str) -> tuple[Confirmation, str]:
    """Parse `COMPLETED: answer` or `CONTINUE: what is left`; return the rest of the text too."""
    marker = _MARKER.match(text)
    if marker is None:
        return Confirmation.PLAIN, text.strip()
    return Confirmation(marker.group(1).lower()), text[marker.end() :].strip()


def with_unique_call_ids(reply: Reply, turn: int, taken: set[str]) -> Reply:
    """Replace call ids that are empty or already used in this run; deterministic."""
    ids = {call.id for call in reply.calls}
    if len(ids) == len(reply.calls) and "" not in ids and ids.isdisjoint(taken):
        return reply
    seen: set[str] = set()
    calls: list[ToolCall] = []
    for index, call in enumerate(reply.calls):
        name = call.id
        if not name or name in seen or name in taken:
            name = f"call_{turn}_{index}"
            while name in seen or name in taken:
                name += "_"
        seen.add(name)
        calls.append(call if name == call.id else ToolCall(name, call.name, call.arguments))
    return _with_calls(reply, tuple(calls))


def without_calls(reply: Reply) -> Reply:
    """Drop the calls of a reply to a request without tools."""
    return _with_calls(reply, ()) if reply.calls else reply


def _with_calls(reply: Reply, calls: tuple[ToolCall, ...]) -> Reply:
    return msgspec.structs.replace(reply, calls=calls)

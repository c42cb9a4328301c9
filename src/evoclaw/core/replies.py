"""Getting and reading a model's reply: may it be asked for, what came, and what it says."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from enum import Enum

from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ProviderError, ProviderErrorKind, RunEnded, Standstill
from evoclaw.core.events import ReplyEvent, StopReason
from evoclaw.core.messages import Reply, ToolCall
from evoclaw.core.ports import Allow, Ask, Decision, Deny, Ports, Provider
from evoclaw.core.tools import Call, Context, Effect, Tool

_MARKER = re.compile(r"\A[\s*_#>`]*(COMPLETED|CONTINUE)[*_`]*\s*:[*_`]*[ \t]*", re.IGNORECASE)

ONE_MORE = Tool(
    "one_more_reply", "Ask the model for one more reply.", {"type": "object"},
    effect=Effect.READ, resources=(),
)  # fmt: skip
"""What a person is asked about when a policy is in doubt about a reply; no model is offered it."""


async def admit(ports: Ports, deadline: Deadline, turn: int, run_id: str = "") -> None:
    """Ask the policy for one more reply; raise `RunEnded` when there is to be none.

    What the policy leaves to a person is asked as if it were a call, always with the same request
    id: a run that ended as waiting asks the same again when it is resumed.
    """
    try:
        verdict = await deadline.bound(ports.policy.admit(turn))
    except TimeoutError:
        raise interrupted(deadline) from None
    except (RunEnded, Standstill):
        raise
    except Exception as error:
        # A rule that cannot be evaluated does not allow.
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
    """Ask a person for one more reply; raise `RunEnded` if there is no yes."""
    context = Context(principal=ports.principal)
    about = Call(request_id, ONE_MORE, {}, request_id, ONE_MORE.timeout, context=context)
    try:
        approval = await deadline.bound(ports.approver.approve(about, ask))
    except TimeoutError:
        raise interrupted(deadline) from None
    except Standstill:
        raise
    except Exception as error:
        text = f"{ask.reason}, and asking failed ({type(error).__name__})"
        raise RunEnded(StopReason.BUDGET_EXCEEDED, text) from error
    if approval.decision is Decision.PENDING:
        raise RunEnded(StopReason.WAITING, approval.reason or ask.reason)
    if approval.decision is Decision.DENY:
        text = f"{ask.reason}: {approval.reason or 'the user refused to go on'}"
        raise RunEnded(StopReason.BUDGET_EXCEEDED, text)


async def next_piece(
    provider: Provider, pieces: AsyncGenerator[ReplyEvent, None], deadline: Deadline
) -> ReplyEvent:
    """The next thing a provider says, held to its contract: an event or a `ProviderError`."""
    try:
        return await deadline.bound(anext(pieces))
    except TimeoutError:
        if deadline.over:
            raise interrupted(deadline) from None
        kind = ProviderErrorKind.TIMEOUT
        raise ProviderError(kind, f"{provider.model} did not answer in time") from None
    except (ProviderError, Standstill):
        raise
    except StopAsyncIteration:
        kind = ProviderErrorKind.SERVER_ERROR
        raise ProviderError(kind, f"{provider.model} broke off its reply") from None
    except Exception as error:
        # A provider's own fault ends the run with an honest answer, not with a traceback.
        text = f"{provider.model} failed inside ({type(error).__name__}: {error})"
        raise ProviderError(ProviderErrorKind.UNKNOWN, text) from error


def interrupted(deadline: Deadline) -> RunEnded:
    """Say which of its two reasons a deadline had."""
    if deadline.cancelled:
        return RunEnded(StopReason.CANCELLED)
    return RunEnded(StopReason.DURATION_EXCEEDED)


class Confirmation(Enum):
    """What a reply to the checklist says."""

    COMPLETED = "completed"
    CONTINUE = "continue"
    PLAIN = "plain"
    """Neither word: taken as confirmed."""


def read_confirmation(text: str) -> tuple[Confirmation, str]:
    """Read `COMPLETED: answer` or `CONTINUE: what is left`; the rest of the text comes along."""
    marker = _MARKER.match(text)
    if marker is None:
        return Confirmation.PLAIN, text.strip()
    return Confirmation(marker.group(1).lower()), text[marker.end() :].strip()


def with_sound_ids(reply: Reply, turn: int, taken: set[str]) -> Reply:
    """Replace call ids that are empty or already used in this run, the same way every time."""
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
    """Drop the calls of a reply that was not offered any tool."""
    return _with_calls(reply, ()) if reply.calls else reply


def _with_calls(reply: Reply, calls: tuple[ToolCall, ...]) -> Reply:
    return Reply(
        reply.text, calls, reply.finish, reply.usage, reply.model, reply.cost, reply.reasoning
    )

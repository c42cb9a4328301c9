"""The calls of one turn: judged in order, run concurrently, each answered exactly once."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import UNSET, Struct, json
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.arguments import BadArguments, parse_arguments
from evoclaw.core.conflicts import conflict
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import RunSuspended, ToolFailure
from evoclaw.core.events import (
    ApprovalAnswered,
    CallDelayed,
    CallFinished,
    CallJudged,
    CallOutput,
    CallStarted,
    Event,
)
from evoclaw.core.labels import CLEAN
from evoclaw.core.messages import (
    JSON,
    ErrorBlock,
    ErrorKind,
    Finish,
    ImageBlock,
    TextBlock,
    ToolCall,
    ToolResult,
    labelled,
)
from evoclaw.core.ports import (
    ALLOW,
    Allow,
    Approval,
    Ask,
    Decision,
    Delay,
    Deny,
    Ports,
    Verdict,
    locator,
)
from evoclaw.core.schema import describe_problems
from evoclaw.core.state import RunState
from evoclaw.core.tools import EMPTY_CONTEXT, WAITING_PERMISSIONS, Call, Context, failure
from evoclaw.core.toolset import Toolset
from evoclaw.core.truncate import truncate_middle
from evoclaw.core.wording import (
    crashed,
    denied,
    edited_by_user,
    invalid_parameters,
    not_executed,
    outcome_unknown,
    timed_out,
    tool_not_found,
)

TIMEOUT_OUTPUT_TAIL_CHARS = 2_000
"""Characters at the end of a call's output that the model is shown when the call times out."""


class Turn(Struct, frozen=True):
    """What all calls of one turn share: ports, settings, tools and deadline."""

    ports: Ports
    settings: LoopSettings
    tools: Toolset
    deadline: Deadline


async def run_calls(state: RunState, turn: Turn) -> AsyncGenerator[Event, None]:
    """Answer the open calls of the last reply; calls that wait for an approval stay open."""
    ready: list[Call] = []
    context = Context(state.history.label, state.history, turn.ports.principal)
    for index, tool_call in state.unanswered:
        async with aclosing(_admit(state, index, tool_call, turn, context)) as steps:
            async for step in steps:
                if isinstance(step, Call):
                    ready.append(step)
                else:
                    yield step
    if len(ready) == 1 and not ready[0].tool.streams and not ready[0].machine:
        # A single call that reports nothing while it runs needs neither a task nor a queue.
        call = ready[0]
        emitted: list[Event] = []
        yield _started(call)
        result = await perform(call, turn, emitted.append)
        for event in emitted:
            yield event
        yield CallFinished(_mark_edited(result, state))
    elif ready:
        async with aclosing(_run_concurrently(ready, turn)) as events:
            async for event in events:
                if state.edited and isinstance(event, CallFinished):
                    event = CallFinished(_mark_edited(event.result, state))
                yield event


async def _admit(
    state: RunState, index: int, tool_call: ToolCall, turn: Turn, context: Context
) -> AsyncGenerator[Event | Call, None]:
    """Judge one call: yield the events of that, and the call itself if it may run.

    A call that a person edits is judged again, with the new arguments. The person has approved
    exactly these, so that only a denial stops it.
    """
    if (edited := state.edited.get(tool_call.id)) is not None:
        tool_call = replace(tool_call, arguments=json.encode(edited).decode())
    prepared = _skip_call(state, index, tool_call, turn.settings) or prepare(
        tool_call,
        turn.tools,
        request_id=f"{state.run_id}.{state.turn}.{index}.1",
        resumed=tool_call.id in state.running,
        epoch=state.epoch,
        context=context,
    )
    if not isinstance(prepared, Call):
        yield CallFinished(_unknown_if_started(_mark_edited(prepared, state), state))
        return
    prepared = await _located(_within_limit(prepared, turn.settings), turn)
    verdict = await judge(prepared, turn)
    yield _judged(prepared, verdict)
    if isinstance(verdict, Ask):
        if edited is not None:
            verdict = ALLOW
        else:
            answered, verdict = await _approve(prepared, verdict, turn)
            yield answered
            if answered.arguments is not None:
                async with aclosing(_admit(state, index, tool_call, turn, context)) as again:
                    async for step in again:
                        yield step
                return
    if isinstance(verdict, Allow):
        yield prepared
    elif isinstance(verdict, Deny):
        denied_result = _mark_edited(_denied(prepared, verdict), state)
        yield CallFinished(_unknown_if_started(denied_result, state))


def _mark_edited(result: ToolResult, state: RunState) -> ToolResult:
    """Tell the model that a person edited the call; a recorded result is marked already."""
    arguments = state.edited.get(result.call_id)
    if arguments is None or (note := edited_by_user(arguments)) in result.text:
        return result
    first = result.blocks[0] if result.blocks else None
    if isinstance(first, ErrorBlock):
        marked = replace(first, text=f"{first.text}\n{note}")
        return replace(result, blocks=(marked, *result.blocks[1:]))
    return replace(result, blocks=(TextBlock(note), *result.blocks))


def _unknown_if_started(refused: ToolResult, state: RunState) -> ToolResult:
    """Report an unknown outcome if the orchestrator that drove the run before started the call."""
    if refused.call_id not in state.running:
        return refused
    text = outcome_unknown(refused.name)
    return failure(refused.call_id, refused.name, ErrorKind.UNKNOWN, text)


def unanswered_result(call: ToolCall, state: RunState) -> ToolResult:
    """The result of a call that is open when its run ends."""
    why = not_executed("the run has ended")
    return _unknown_if_started(failure(call.id, call.name, ErrorKind.CANCELLED, why), state)


def _skip_call(
    state: RunState, index: int, tool_call: ToolCall, settings: LoopSettings
) -> ToolResult | None:
    if state.open_reply is not None and state.open_reply.finish is Finish.LENGTH:
        why = "the reply was cut off at the output limit, so its calls may be incomplete"
        return failure(tool_call.id, tool_call.name, ErrorKind.INVALID_PARAMS, not_executed(why))
    if index >= settings.max_calls_per_turn:
        why = f"only {settings.max_calls_per_turn} calls are run in one turn"
        return failure(tool_call.id, tool_call.name, ErrorKind.QUEUE_FULL, not_executed(why))
    return None


def prepare(
    tool_call: ToolCall,
    tools: Toolset,
    *,
    request_id: str,
    resumed: bool = False,
    epoch: int = 1,
    context: Context = EMPTY_CONTEXT,
) -> Call | ToolResult:
    """Check one call: the tool exists, the arguments parse, and they match the schema.

    A resumed call is not validated again: a schema that lists the edges online may have changed.
    """
    try:
        arguments: dict[str, JSON] | BadArguments = parse_arguments(tool_call.arguments)
    except BadArguments as error:
        arguments = error
    return prepare_parsed(
        tool_call.id,
        tool_call.name,
        arguments,
        tools,
        request_id=request_id,
        resumed=resumed,
        epoch=epoch,
        context=context,
    )


def prepare_parsed(
    call_id: str,
    name: str,
    arguments: dict[str, JSON] | BadArguments,
    tools: Toolset,
    *,
    request_id: str,
    resumed: bool = False,
    epoch: int = 1,
    context: Context = EMPTY_CONTEXT,
) -> Call | ToolResult:
    """Check one call whose arguments are parsed already, such as those of a wire command."""
    found = tools.find(name)
    if found is None:
        text = tool_not_found(name, tools.names)
        return failure(call_id, name, ErrorKind.NOT_FOUND, text)
    tool, validator = found
    if isinstance(arguments, BadArguments):
        text = invalid_parameters(tool, f"the arguments are {arguments}")
        return failure(call_id, name, ErrorKind.INVALID_PARAMS, text)
    if not resumed and not validator.is_valid(arguments):
        text = invalid_parameters(tool, describe_problems(validator, arguments))
        return failure(call_id, name, ErrorKind.INVALID_PARAMS, text)
    timeout = tool.timeout
    timeout_ms = arguments.get("timeout_ms")
    if timeout_ms is not None and isinstance(timeout_ms, (int, float)) and timeout_ms > 0:
        timeout = min(timeout_ms / 1000, tool.max_timeout)
    return Call(call_id, tool, arguments, request_id, timeout, resumed, epoch, context)


def _within_limit(call: Call, settings: LoopSettings) -> Call:
    """The call with a timeout that is not above the run's limit of one call."""
    limit = settings.max_call_seconds
    if limit is UNSET or call.timeout <= limit or call.tool.permissions & WAITING_PERMISSIONS:
        return call
    return replace(call, timeout=limit)


async def _located(call: Call, turn: Turn) -> Call:
    """The call with the machine that will run it: policies and people must know it before."""
    locate = locator(turn.ports.executor)
    if locate is None:
        return call
    try:
        machine = await turn.deadline.bound(locate(call))
    except TimeoutError:
        return call  # the run is over; so is the call
    except RunSuspended:
        raise
    except Exception:  # the executor fails again when it runs the call, and that is its result
        return call
    return replace(call, machine=machine) if machine else call


async def judge(call: Call, turn: Turn) -> Verdict:
    """Ask the policy for its verdict on one call."""
    try:
        return await turn.deadline.bound(turn.ports.policy.judge(call))
    except TimeoutError:
        return Deny("interrupted", "the run ended before the policies judged the call")
    except RunSuspended:
        raise
    except Exception as error:
        # A policy that fails does not allow the call.
        return Deny(
            "policy_failed", f"a policy failed ({type(error).__name__})", _format_traceback(error)
        )


async def _approve(call: Call, ask: Ask, turn: Turn) -> tuple[ApprovalAnswered, Verdict]:
    """Ask the approver; the verdict stays `Ask` while the answer is pending."""
    try:
        approval = await turn.deadline.bound(turn.ports.approver.approve(call, ask))
    except TimeoutError:
        approval = Approval(Decision.DENY, "the run ended before a person answered")
    except RunSuspended:
        raise
    except Exception as error:
        approval = Approval(Decision.DENY, f"the approval request failed ({type(error).__name__})")
    match approval.decision:
        case Decision.PENDING:
            reason, verdict = approval.reason or ask.reason, ask
        case Decision.DENY:
            reason = approval.reason or "the user refused it"
            # With the reason of the `Ask`: the model learns what it must do without.
            verdict = Deny("refused", f"{ask.reason} ({reason})")
        case Decision.ONCE | Decision.SESSION:
            reason, verdict = approval.reason, ALLOW
    edited = approval.arguments if approval.decision is Decision.ONCE else None
    return ApprovalAnswered(call.id, approval.decision, reason, edited), verdict


def _denied(call: Call, verdict: Deny) -> ToolResult:
    reason = verdict.reason
    text = reason if reason.startswith("Error:") else denied(call, reason)
    return call.failed(ErrorKind.PERMISSION_DENIED, text)


def _judged(call: Call, verdict: Verdict) -> CallJudged:
    if isinstance(verdict, Allow):
        return CallJudged(call.id, "allow", verdict.code, machine=call.machine)
    decided = "ask" if isinstance(verdict, Ask) else "deny"
    reason = verdict.for_people or verdict.reason
    return CallJudged(call.id, decided, verdict.code, reason, call.machine)


def _started(call: Call) -> CallStarted:
    return CallStarted(call.id, call.tool.name, call.arguments, call.request_id, call.machine)


class _EventQueue:
    """The events of concurrent calls for one consumer; an `asyncio.Queue` without locks."""

    __slots__ = ("_events", "_waiting")

    def __init__(self) -> None:
        self._events: deque[Event | RunSuspended] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, event: Event | RunSuspended) -> None:
        self._events.append(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> Event:
        while not self._events:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        event = self._events.popleft()
        if isinstance(event, RunSuspended):
            raise event
        return event


async def _run_concurrently(ready: Sequence[Call], turn: Turn) -> AsyncGenerator[Event, None]:
    outbox = _EventQueue()
    slots = asyncio.Semaphore(turn.settings.max_parallel)
    tasks: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    recorded = {call.id: loop.create_future() for call in ready}

    async def run_one(call: Call, before: Sequence[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        async with slots:
            outbox.put(_started(call))
            # The consumer has stored `CallStarted` when it asks for the next event: a call never
            # runs before its start is on record.
            await recorded[call.id]
            try:
                outbox.put(CallFinished(await perform(call, turn, outbox.put)))
            except RunSuspended as suspended:
                outbox.put(suspended)

    for index, call in enumerate(ready):
        before = [tasks[i] for i in range(index) if conflict(ready[i], call)]
        tasks.append(asyncio.create_task(run_one(call, before), name=call.request_id))
    unfinished = len(tasks)
    try:
        while unfinished:
            event = await outbox.get()
            unfinished -= isinstance(event, CallFinished)
            yield event
            if isinstance(event, CallStarted):
                recorded[event.call_id].set_result(None)
    finally:
        if running := [task for task in tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running)


class _Output:
    """Emits the output of a running call as events, and keeps its end."""

    __slots__ = ("_call_id", "_emit", "tail")

    def __init__(self, call_id: str, emit: Callable[[Event], None]) -> None:
        self._call_id, self._emit, self.tail = call_id, emit, ""

    def __call__(self, text: str) -> None:
        if isinstance(text, Delay):
            self._emit(CallDelayed(self._call_id, text.machine, text.seconds))
            return
        self.tail = (self.tail + text)[-TIMEOUT_OUTPUT_TAIL_CHARS:]
        self._emit(CallOutput(self._call_id, text))


async def perform(call: Call, turn: Turn, emit: Callable[[Event], None]) -> ToolResult:
    """Run one call; every outcome becomes a result, labelled with where its content came from."""
    output, deadline = _Output(call.id, emit), turn.deadline
    if deadline.over:
        return call.failed(ErrorKind.CANCELLED, not_executed("the run has ended"))
    try:
        work = turn.ports.executor.execute(call, output)
        result = await deadline.bound(work, call.timeout + call.tool.slack)
        result = _truncate_result(call, result, turn.settings.max_result_chars)
    except TimeoutError:
        if deadline.cancelled:
            why = "The run was cancelled while this call ran."
            result = call.failed(ErrorKind.CANCELLED, why)
        else:
            result = call.failed(ErrorKind.TIMEOUT, timed_out(call, output.tail))
    except RunSuspended:
        raise  # the outcome is not known yet; it will be when the run resumes
    except ToolFailure as error:
        block = ErrorBlock(error.kind, error.message)
        result = ToolResult(call.id, call.name, (block,), error.kind, dict(error.details))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # The tool cancelled itself; this task was not cancelled.
        result = call.failed(ErrorKind.CANCELLED, "The tool was cancelled before it finished.")
    except Exception as error:
        result = call.failed(
            ErrorKind.INTERNAL, crashed(call.name, error), traceback=_format_traceback(error)
        )
    label = call.tool.label
    return result if label is CLEAN else replace(result, blocks=labelled(result.blocks, label))


def _truncate_result(call: Call, result: ToolResult, limit: int) -> ToolResult:
    """Truncate what the model sees, and make sure that the result names the right call."""
    size, blocks = 0, result.blocks
    for block in blocks:
        if isinstance(block, TextBlock) or not isinstance(block, ImageBlock):
            size += len(block.text)
    if size <= limit and result.call_id == call.id and result.name == call.tool.name:
        return result
    cut = tuple(
        block
        if isinstance(block, ImageBlock)
        else replace(block, text=truncate_middle(block.text, limit))
        for block in blocks
    )
    return ToolResult(call.id, call.name, cut, result.error, result.details)


def _format_traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-4_000:]

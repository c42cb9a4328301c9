"""The agent loop: alternate replies and calls until the model is done or a limit is met.

History in, events out. The loop has no state of its own: every decision reads `RunState`, which is
a fold over the events, so a run that stopped at any point resumes from its records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from evoclaw.core import evidence, wording
from evoclaw.core.agent import LoopSettings
from evoclaw.core.calls import Turn, run_calls, unanswered_result
from evoclaw.core.context import TRIM_ABOVE_SHARE, max_history_chars, trim
from evoclaw.core.deadline import Deadline
from evoclaw.core.endings import ending, follow_up
from evoclaw.core.errors import ProviderError, ProviderErrorKind, RunEnded
from evoclaw.core.events import (
    CallFinished,
    Event,
    Prompted,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.messages import Reply, user
from evoclaw.core.output import parse_output
from evoclaw.core.ports import Ports, Request
from evoclaw.core.profile import CallStyle
from evoclaw.core.replies import (
    admit,
    next_reply_event,
    read_confirmation,
    with_unique_call_ids,
    without_calls,
)
from evoclaw.core.state import RunState
from evoclaw.core.tools import Tool
from evoclaw.core.toolset import NO_TOOLS, Toolset


async def run_loop(
    state: RunState, ports: Ports, settings: LoopSettings, deadline: Deadline | None = None
) -> AsyncGenerator[Event, None]:
    """Start or resume a run. The last event is `RunFinished`, unless the caller stops reading.

    Cancel it through the deadline: the run then still answers every call and reports its end.
    Closing the generator instead leaves nothing running, and the run can resume from its records.
    """
    loop = _Loop(state, ports, settings, deadline or Deadline(settings.max_seconds))
    try:
        loop.deadline.start()
        event = loop.opening()
        state.apply(event)
        yield event
        end = None
        while end is None:
            if loop.tools_changed():
                event = ToolsChanged(tuple(loop.tools))
                state.apply(event)
                yield event
            for event in loop.steered():
                state.apply(event)
                yield event
            end = ending(state, settings, loop.deadline, loop.tools)
            try:
                events = loop.step(end)
                try:
                    async for event in events:
                        state.apply(event)
                        yield event
                finally:
                    await events.aclose()
            except ProviderError as error:
                end = end or RunEnded(StopReason.ERROR, str(error))
                event = ReplyFailed(error.kind, str(error), error.usage)
                state.apply(event)
                yield event
            except RunEnded as ended:
                end = end or ended
        event = loop.finished(end)
        state.apply(event)
        yield event
    finally:
        loop.deadline.release()


@dataclass(slots=True)
class _Loop:
    """The dependencies of a run, and its steps."""

    state: RunState
    ports: Ports
    settings: LoopSettings
    deadline: Deadline
    tools: Toolset = NO_TOOLS
    seen_tools: Sequence[Tool] = ()

    def opening(self) -> Event:
        provider, state, settings = self.ports.provider, self.state, self.settings
        if state.started:
            return RunResumed(provider.model, settings, provider.profile)
        return RunStarted(provider.model, state.opening, settings, provider.profile)

    def steered(self) -> Sequence[Prompted]:
        """New steering messages; they wait until every call has its result."""
        state = self.state
        if state.open_reply is not None or state.closing:
            return ()
        messages = self.ports.steering()
        return [Prompted(message, "steer") for message in messages] if messages else ()

    def step(self, end: RunEnded | None) -> AsyncGenerator[Event, None]:
        """Take the next step: run calls, ask the model, or close the run."""
        if end is not None:
            return self.close(end)
        if self.state.open_reply is None:
            return self.ask(offer_tools=True)
        turn = Turn(self.ports, self.settings, self.tools, self.deadline)
        calls = run_calls(self.state, turn)
        return (
            evidence.show_receipt_ids(calls, self.state, self.tools)
            if self.settings.evidence
            else calls
        )

    async def ask(self, *, offer_tools: bool) -> AsyncGenerator[Event, None]:
        """Ask the model for one reply."""
        state, settings, provider = self.state, self.settings, self.ports.provider
        await admit(self.ports, self.deadline, state.turn + 1, state.run_id)
        if offer_tools and (prompt := follow_up(state, settings, self.tools)) is not None:
            yield prompt
        if state.window.size > TRIM_ABOVE_SHARE * max_history_chars(
            state, provider, settings, self.tools.size
        ):
            async for event in self.trim():
                yield event
        offer_tools = offer_tools and bool(self.tools)
        yield TurnStarted(state.turn + 1, offer_tools, state.window.size + self.tools.size)
        for last_try in (False, True):
            request = Request(
                state.window, self.tools, offer_tools, settings.temperature, settings.max_tokens,
                tool_prompt=settings.tool_prompt or "",
                max_retries=settings.model_retries,
            )  # fmt: skip
            pieces = provider.stream(request)
            try:
                while not isinstance(
                    piece := await next_reply_event(provider, pieces, self.deadline), Replied
                ):
                    yield piece
                yield Replied(self.sanitise(piece.reply, offer_tools))
                return
            except ProviderError as error:
                if last_try or error.kind is not ProviderErrorKind.CONTEXT_TOO_LONG:
                    raise
                yield ReplyRetried(error.kind, str(error), 1, 0.0)
            finally:
                await pieces.aclose()
            # The server rejected what our estimate allowed: send clearly less.
            async for event in self.trim(force=True):
                yield event

    def trim(self, *, force: bool = False) -> AsyncGenerator[Event, None]:
        room = max_history_chars(self.state, self.ports.provider, self.settings, self.tools.size)
        return trim(self.state, self.ports.provider, self.deadline, room=room, force=force)

    def sanitise(self, reply: Reply, offer_tools: bool) -> Reply:
        """Drop calls if no tools were offered, and replace call ids that are empty or repeated."""
        reply = reply if offer_tools else without_calls(reply)
        return with_unique_call_ids(reply, self.state.turn + 1, self.state.call_ids)

    async def close(self, end: RunEnded) -> AsyncGenerator[Event, None]:
        """Answer every open call; if there is no answer for the user, ask the model for one.

        Only `max_iterations` and an empty final text justify that last reply without tools.
        """
        state, reply = self.state, self.state.last
        if end.stop is not StopReason.WAITING:
            for _, call in state.unanswered:
                yield CallFinished(unanswered_result(call, state))
        empty = isinstance(reply, Reply) and not reply.text.strip()
        needs_reply = end.stop is StopReason.MAX_ITERATIONS or (
            end.stop is StopReason.COMPLETED and empty
        )
        if not needs_reply or (state.closing and isinstance(reply, Reply)):
            return
        if not state.closing:
            yield Prompted(user(wording.CLOSING), "closing")
        async with aclosing(self.ask(offer_tools=False)) as events:
            async for event in events:
                yield event

    def finished(self, end: RunEnded) -> RunFinished:
        """The last event; its text is truthful for the user, whatever ended the run."""
        state, reply = self.state, self.state.last
        text = ""
        answers = (StopReason.COMPLETED, StopReason.MAX_ITERATIONS)
        if end.stop in answers and isinstance(reply, Reply):
            text = read_confirmation(reply.text)[1] if state.confirms else reply.text
        text = text if text.strip() else wording.ending(end.stop, end.reason)
        output = parse_output(text, self.settings.output_fields)
        if self.settings.evidence:
            output = parse_output(evidence.strip_evidence_line(text), self.settings.output_fields)
            text = evidence.append_evidence_summary(
                text, state, self.tools, answered=end.stop in answers
            )
        return RunFinished(
            end.stop,
            text,
            output,
            end.reason,
            state.turn,
            state.calls,
            tuple(state.tools_used),
            state.usage,
            state.cost,
        )

    def tools_changed(self) -> bool:
        """Update the tools, and return whether they changed: edges connect and disconnect."""
        tools = self.ports.executor.tools()
        if tools is self.seen_tools or self.ports.provider.profile.calls is CallStyle.NONE:
            return False
        self.seen_tools, self.tools = tools, Toolset.of(tools)
        return True

"""Starts and resumes the runs that answer OpenAI's requests, for both of its APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from litestar import Request
from msgspec.structs import replace

from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import require
from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.messages import earlier_calls, trailing_results
from evoclaw.api.openai.requests import ParsedChatRequest
from evoclaw.api.openai.schemas import ChatRequest
from evoclaw.api.routes.runs import is_own
from evoclaw.core.agent import Agent
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import StopReason
from evoclaw.core.tools import missing_permissions
from evoclaw.orchestrator.people.access import Caller
from evoclaw.orchestrator.runs.reply_options import ReplyOptions, caller_name
from evoclaw.orchestrator.runs.requests import (
    Draining,
    RunRequest,
    RunView,
    decode_run_request,
)
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.caller_tools import (
    CallerCallStore,
    CallPosition,
    ResultsMissing,
    ResultsUnknown,
    parse_call_id,
)
from evoclaw.orchestrator.sessions.conversations import Conversations, SessionNotFound

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
DETACHED_HEADER = "x-evoclaw-detached"
"""The request header that keeps the run alive when the client disconnects."""


@dataclass(frozen=True, slots=True)
class ChatContext:
    """The dependencies of one chat request."""

    parts: ApiDependencies
    caller: Caller
    runs: Runs
    conversations: Conversations

    @property
    def tenant(self) -> str:
        """The tenant of the caller."""
        return self.caller.tenant

    def agent(self, name: str) -> Agent:
        """The agent of a name; raises `AgentNotFound`."""
        found = self.conversations.agents.get(name)
        if found is None:
            raise AgentNotFound(name, tuple(self.conversations.agents))
        return found

    def tool_names(self, agent: Agent) -> Sequence[str]:
        """The names of the agent's own tools."""
        offered = self.parts.tools() if self.parts.tools is not None else ()
        held = agent.capabilities
        return [tool.name for tool in offered if not missing_permissions(tool, held)]

    async def owns(self, session_id: str) -> bool:
        """Whether the caller may use a session."""
        listed = await self.conversations.store.summary(session_id)
        return listed is not None and is_own(self.caller, listed.session.owner)


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that answers a request: a new one, or one that was resumed."""

    view: RunView
    options: ReplyOptions | None = None
    """The reply options that it was started with."""
    answered: frozenset[CallPosition] = frozenset()


def chat_context(parts: ApiDependencies, caller: Caller) -> ChatContext:
    """The dependencies of a request of this caller."""
    talks = require(parts.conversations, "agents").of(caller.tenant)
    return ChatContext(parts, caller, require(parts.runs, "runs"), talks)


async def check_session(context: ChatContext, session_id: str, agent: Agent) -> None:
    """Raise an error unless the caller may continue the session with this agent."""
    listed = await context.conversations.store.summary(session_id)
    if listed is None or not is_own(context.caller, listed.session.owner):
        raise SessionNotFound(session_id)
    if listed.session.agent != agent.name:
        raise BadRequest(
            f"The session belongs to the agent {listed.session.agent!r}. Use it as the model.",
            "model",
        )


async def start_or_resume(
    context: ChatContext, body: ChatRequest, chat_request: ParsedChatRequest, key: str
) -> StartedRun:
    """Resume the run that waits for these results, or start a new one."""
    stateless = not chat_request.run_request.session_id
    found = await _resume(context, body, chat_request) if stateless else None
    if found is not None:
        return found
    view, _ = await context.runs.start(context.caller.principal, chat_request.run_request, key=key)
    if stateless and (calls := earlier_calls(body.messages)):
        # The conversation continued without these results: the run would wait forever.
        abandoned = await CallerCallStore(context.conversations.store.questions).waiting_run(
            calls, context.owns
        )
        if abandoned:
            await context.runs.cancel(context.tenant, abandoned)
    return StartedRun(view, chat_request.run_request.reply_options)


async def _resume(
    context: ChatContext, body: ChatRequest, chat_request: ParsedChatRequest
) -> StartedRun | None:
    """Resume the run that waits for the results at the end of the conversation, if there is one."""
    results = trailing_results(body.messages)
    if not results:
        return None
    if context.runs.draining:
        raise Draining
    view = await _find_run(context, results)
    if view is None:
        return None
    stored = decode_run_request(await context.conversations.store.run_request(view.run_id))
    if not _can_resume(view, stored, chat_request):
        return None  # checked before the results are stored, which would resume the run
    try:
        parked = await CallerCallStore(context.conversations.store.questions).deliver(
            results, context.owns
        )
    except (ResultsMissing, ResultsUnknown) as error:
        raise BadRequest(str(error), "messages", "tool_results") from None
    if parked is None:
        return None
    await context.runs.resume(context.tenant, parked.run_id)
    return StartedRun(view, stored.reply_options, parked.positions)


async def _find_run(context: ChatContext, call_ids: Iterable[str]) -> RunView | None:
    """The run that made these calls."""
    for call_id in call_ids:
        place = parse_call_id(context.tenant, call_id)
        view = None if place is None else await context.runs.get(context.tenant, place.run_id)
        if view is not None:
            return view
    return None


def _can_resume(view: RunView, stored: RunRequest, chat_request: ParsedChatRequest) -> bool:
    """Whether a run can still take these results, and was started with the same options."""
    request = chat_request.run_request
    is_open = view.agent == request.agent and view.stop is not StopReason.CANCELLED
    return is_open and _choice(stored.reply_options) == _choice(request.reply_options)


def _choice(options: ReplyOptions | None) -> ReplyOptions:
    """The options by the caller's names: the agent's tools may have changed meanwhile."""
    found = options or ReplyOptions()
    return replace(found, only=tuple(caller_name(options, name) for name in found.only), names={})


async def unless_disconnected(request: AnyRequest, work: Awaitable[T]) -> T:
    """Await something; cancel it if the client disconnects."""
    working, leaving = (
        asyncio.ensure_future(work),
        asyncio.create_task(_wait_for_disconnect(request)),
    )
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise BadRequest("The client disconnected.", status=499)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))


async def _wait_for_disconnect(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

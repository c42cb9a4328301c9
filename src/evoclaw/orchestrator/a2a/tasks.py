"""The tasks of one caller: a task is a run, a context is a session.

Nothing of a task is stored beside its run: its id is that of the run, and its messages, state and
artifacts are made from the run's records.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.messages import JSON, is_object
from evoclaw.orchestrator.a2a.errors import (
    A2aError,
    A2aErrorKind,
    forbidden,
    invalid_params,
    task_not_found,
)
from evoclaw.orchestrator.a2a.events import (
    A2aEventWriter,
    agent_message,
    answer_artifact,
    state_of,
)
from evoclaw.orchestrator.a2a.input_requests import InputRequests
from evoclaw.orchestrator.a2a.message_parts import read_parts
from evoclaw.orchestrator.a2a.schemas import (
    TERMINAL_STATES,
    A2aEvent,
    A2aGetRequest,
    A2aListRequest,
    A2aMessage,
    A2aRole,
    A2aSendRequest,
    A2aStatusUpdate,
    A2aTask,
    A2aTaskList,
    A2aTaskRequest,
    A2aTaskState,
    A2aTaskStatus,
    text_part,
    timestamp,
)
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.orchestrator.runs.requests import (
    MAX_TITLE_CHARS,
    RunRequest,
    RunStatus,
    RunView,
    decode_run_request,
)
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.runs.views import status_of
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.run_ids import tenant_run_id
from evoclaw.store.sessions.sessions import StoredRun

A2A_KEY = "a2a"
"""The key of a run request's `api_data` with the id of the message that started the run."""
REPLY_KEY = "reply_to"
"""The key beside that of the message's id: where the reply goes, if a restart must not lose it."""
MAX_LISTED_TASKS = 1_000
"""The newest tasks, among which `ListTasks` filters and sorts."""
LIST_PAGE_SIZE = 500
_CONTEXT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,127}")
"""A context that a client may make: long enough that two clients do not choose the same."""
CANCEL_TIMEOUT_S = 10.0
"""How long `CancelTask` waits until the run has ended; then it shows the state so far."""


@dataclass(frozen=True, slots=True)
class A2aParts:
    """What tasks are made of."""

    runs: Runs
    conversations: Conversations
    approvals: CallApprovals | None
    image_problem: Callable[[str, str], str]
    """Why an agent, with a model that replaces its own, cannot see images; empty if it can."""

    def tasks(self, caller: Caller, agent: str = "") -> A2aTasks:
        """The tasks of a caller at an agent; without an agent, at all of them."""
        of_tenant = self.conversations.of(caller.tenant)
        return A2aTasks(self, of_tenant, caller, agent)


@dataclass(frozen=True, slots=True)
class FollowedTask:
    """A task to follow: its run as it was, and the number of the last record before that."""

    run: RunView
    after: int = 0


@dataclass(frozen=True, slots=True)
class A2aTasks:
    """The operations of A2A for one caller, at one agent or at all agents."""

    parts: A2aParts
    conversations: Conversations
    caller: Caller
    agent: str = ""
    """The agent of new contexts, and of all tasks that are shown; empty: the default one, all."""

    async def send(
        self,
        request: A2aSendRequest,
        *,
        choose_id: bool = False,
        reply_to: dict[str, JSON] | None = None,
    ) -> FollowedTask:
        """Start a task, or send a message to one; stored when this returns.

        Args:
            request: The message.
            choose_id: Whether a task id that does not exist is the id for a new task, as over MQTT.
            reply_to: Where the reply goes; stored with a new task whose id the client chose.
        """
        self._check_scope(TokenScope.AGENTS_INVOKE)
        self._check_tenant(request.tenant)
        if request.configuration.task_push_notification_config:
            raise push_not_supported()
        message = request.message
        if message.task_id:
            view = await self._find(message.task_id)
            if view is not None:
                return await self._continue(view, message)
            if not choose_id:
                raise task_not_found(message.task_id)
        return await self._start(message, reply_to if message.task_id else None)

    async def _start(self, message: A2aMessage, reply_to: dict[str, JSON] | None) -> FollowedTask:
        content, agent = read_parts(message), self.agent
        if message.context_id:
            agent = await self._context_agent(message.context_id, content.text)
        if content.images and (
            why := self.parts.image_problem(agent or self.parts.runs.default_agent, "")
        ):
            raise A2aError(
                A2aErrorKind.CONTENT_TYPE_NOT_SUPPORTED, f"The images cannot be sent: {why}."
            )
        run_request = RunRequest(
            message=content.text,
            images=content.images,
            session_id=message.context_id,
            agent=agent,
            api_data={
                A2A_KEY: {
                    "messageId": message.message_id,
                    **({} if reply_to is None else {REPLY_KEY: reply_to}),
                }
            },
        )
        view, _ = await self.parts.runs.start(
            self.caller.principal,
            run_request,
            key=f"a2a {message.context_id} {message.message_id}",
            run_id=message.task_id,
        )
        return FollowedTask(view)

    async def _continue(self, view: RunView, message: A2aMessage) -> FollowedTask:
        """Send a message to a task: an answer if it waits for one, else a steering message."""
        if message.context_id not in ("", view.session_id):
            raise invalid_params("message.contextId is not the context of the task.")
        if view.state is RunStatus.ENDED:
            if await self._has_started(view, message):
                return FollowedTask(view)  # sent again: the first answer was lost
            raise A2aError(
                A2aErrorKind.UNSUPPORTED_OPERATION,
                "The task has ended and takes no more messages. Send the message without a taskId, "
                "with the contextId of the task.",
            )
        if await self._has_started(view, message):
            return FollowedTask(view)
        last = await self.conversations.store.last_record(view.run_id)
        working = msgspec.structs.replace(view, state=RunStatus.RUNNING, stop=None)
        followed = FollowedTask(working, 0 if last is None else last.seq)
        if view.state is RunStatus.WAITING:
            self._check_scope(TokenScope.HUMAN)
            await self._input_requests(view).answer(message, self.caller.answerer())
            await self.parts.runs.resume(self.caller.tenant, view.run_id)
        else:
            content = read_parts(message)
            if content.images:
                raise A2aError(
                    A2aErrorKind.CONTENT_TYPE_NOT_SUPPORTED,
                    "A task that works takes text only. Send images with a new task.",
                )
            await self.parts.runs.steer(self.caller.tenant, view.run_id, content.text)
        return followed

    async def _has_started(self, view: RunView, message: A2aMessage) -> bool:
        """Whether this message is the one that started the run."""
        return await self._first_message_id(view.run_id) == message.message_id

    async def _context_agent(self, context_id: str, text: str) -> str:
        """The agent of a context of the caller; a context that does not exist is made."""
        if _CONTEXT_ID.fullmatch(context_id) is None:
            raise invalid_params(
                "A contextId has 8 to 128 letters, digits, '.', '_' and '-'; use a UUID, or none."
            )
        session = await self.conversations.store.session(context_id)
        if session is None:
            agent, user = self.agent or self.parts.runs.default_agent, self.caller.principal.user
            title = one_line(text, MAX_TITLE_CHARS)
            session = await self.conversations.open(
                agent, session_id=context_id, owner=user, title=title
            )
        if not self._owns(session.owner):
            raise invalid_params("The contextId cannot be used. Use another one, or none.")
        if self.agent not in ("", session.agent):
            raise invalid_params("The context belongs to another agent.")
        return session.agent

    async def get(self, request: A2aGetRequest) -> A2aTask:
        """A task with its state, its messages and its artifacts."""
        self._check_tenant(request.tenant)
        view = await self._require(request.id)
        return await self._task(view, request.history_length)

    async def cancel(self, request: A2aTaskRequest) -> A2aTask:
        """Cancel a task; it is shown once its run has ended, or after some seconds."""
        self._check_tenant(request.tenant)
        view = await self._require(request.id, TokenScope.RUNS_WRITE)
        tenant, run_id = self.caller.tenant, view.run_id
        if view.state is RunStatus.ENDED or not await self.parts.runs.cancel(tenant, run_id):
            raise A2aError(A2aErrorKind.TASK_NOT_CANCELABLE, "The task has already ended.")
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self.parts.runs.result(tenant, run_id)
        return await self._task(await self._require(request.id))

    async def subscribe(self, request: A2aTaskRequest) -> FollowedTask:
        """Follow a task that has not ended."""
        self._check_tenant(request.tenant)
        run_id = tenant_run_id(self.caller.tenant, request.id)
        last = await self.conversations.store.last_record(run_id)
        view = await self._require(request.id)
        if view.state is RunStatus.ENDED:
            raise A2aError(
                A2aErrorKind.UNSUPPORTED_OPERATION, "The task has ended. Use GetTask to read it."
            )
        return FollowedTask(view, 0 if last is None else last.seq)

    async def list(self, request: A2aListRequest) -> A2aTaskList:
        """The tasks of the caller, the last changed first."""
        self._check_tenant(request.tenant)
        found = [run for run in await self._stored_runs(request) if _is_wanted(run, request)]
        if not self.caller.may(TokenScope.RUNS_READ):
            found = [run for run in found if await self._first_message_id(run.id)]
        found.sort(key=_page_position, reverse=True)
        rest = found
        if request.page_token:
            start = _read_page_token(request.page_token)
            rest = [run for run in found if _page_position(run) < start]
        page = rest[: request.page_size]
        tasks: list[A2aTask] = []
        for run in page:
            view = await self.parts.runs.get(self.caller.tenant, run.id)
            if view is not None:
                task = await self._task(view, request.history_length)
                artifacts = task.artifacts or () if request.include_artifacts else UNSET
                tasks.append(msgspec.structs.replace(task, artifacts=artifacts))
        token = _write_page_token(page[-1]) if len(rest) > len(page) else ""
        return A2aTaskList(tuple(tasks), token, len(tasks), len(found))

    async def _stored_runs(self, request: A2aListRequest) -> Sequence[StoredRun]:
        store, before = self.conversations.store, ""
        owner = None if self.caller.may(TokenScope.ADMIN) else self.caller.principal.user
        found: list[StoredRun] = []
        while len(found) < MAX_LISTED_TASKS:
            page = await store.runs(
                session_id=request.context_id,
                owner=owner,
                agent=self.agent,
                before=before,
                limit=LIST_PAGE_SIZE,
            )
            found += page
            if len(page) < LIST_PAGE_SIZE:
                break
            before = page[-1].id
        return found[:MAX_LISTED_TASKS]

    async def events(
        self, followed: FollowedTask, history_length: int | None = None
    ) -> AsyncGenerator[A2aEvent, None]:
        """The task as it is, then what happens, until it ends or needs an input."""
        tenant, run_id = self.caller.tenant, followed.run.run_id
        task = await self._task(followed.run, history_length)
        yield A2aEvent(task=task)
        if task.status.state in TERMINAL_STATES:
            return
        writer = A2aEventWriter(task.id, task.context_id)
        records = self.parts.runs.records(tenant, run_id, after=followed.after, follow=True)
        async with aclosing(records):
            async for record in records:
                for event in writer.read(record):
                    yield event
                if writer.end is not None:
                    break
        status = (await self._last_task(run_id, task)).status
        yield A2aEvent(status_update=A2aStatusUpdate(task.id, task.context_id, status))

    async def result(self, followed: FollowedTask, history_length: int | None = None) -> A2aTask:
        """Wait until the task ends or needs an input, and show it."""
        async with aclosing(self.events(followed, history_length)) as events:
            async for _ in events:
                pass
        return await self.shown(followed, history_length)

    async def shown(self, followed: FollowedTask, history_length: int | None = None) -> A2aTask:
        """A followed task as it is now."""
        run_id = followed.run.run_id
        view = await self.parts.runs.get(self.caller.tenant, run_id)
        if view is None:
            raise task_not_found(self.task_id(run_id))
        return await self._task(view, history_length)

    async def awaited_reply(self, task_id: str) -> tuple[FollowedTask, dict[str, JSON]] | None:
        """A task whose reply a restart may have lost, and where the reply goes."""
        view = await self._find(task_id)
        if view is None:
            return None
        blob = await self.conversations.store.run_request(view.run_id)
        data = decode_run_request(blob).api_data.get(A2A_KEY)
        found = data.get(REPLY_KEY) if is_object(data) else None
        return (FollowedTask(view), found) if is_object(found) else None

    async def _last_task(self, run_id: str, before: A2aTask) -> A2aTask:
        """The task after its last record; as cancelled if it was deleted meanwhile."""
        view = await self.parts.runs.get(self.caller.tenant, run_id)
        if view is None:
            return msgspec.structs.replace(before, status=A2aTaskStatus(A2aTaskState.CANCELED))
        return await self._task(view)

    async def _task(self, view: RunView, history_length: int | None = None) -> A2aTask:
        task_id, context_id = self.task_id(view.run_id), view.session_id
        since = timestamp(view.ended_at or view.began_at)
        history: tuple[A2aMessage, ...] = ()
        if history_length != 0:
            first = await self._first_message_id(view.run_id) or f"{task_id}-message"
            asked = (text_part(view.asked),)
            history = (A2aMessage(first, A2aRole.USER, asked, context_id, task_id),)
        status, artifacts = A2aTaskStatus(A2aTaskState.WORKING, timestamp=since), UNSET
        match view.state:
            case RunStatus.QUEUED:
                status = A2aTaskStatus(A2aTaskState.SUBMITTED, timestamp=since)
            case RunStatus.WAITING:
                parts = await self._input_requests(view).parts() or (text_part(view.text),)
                asked = agent_message(f"{task_id}-input", task_id, context_id, parts)
                status = A2aTaskStatus(A2aTaskState.INPUT_REQUIRED, asked, since)
            case RunStatus.ENDED if view.stop is not None:
                state, message = state_of(view.stop), None
                if state is A2aTaskState.COMPLETED:
                    artifacts = (answer_artifact(view.text),)
                elif why := view.text or view.reason:
                    parts = (text_part(why),)
                    message = agent_message(f"{task_id}-end", task_id, context_id, parts)
                status = A2aTaskStatus(state, message, since)
            case _:
                pass
        metadata: dict[str, JSON] = {"agent": view.agent}
        return A2aTask(task_id, context_id, status, artifacts, history, metadata)

    def _input_requests(self, view: RunView) -> InputRequests:
        return InputRequests(
            self.conversations.questions, self.parts.approvals, self.caller.tenant, view
        )

    async def _find(self, task_id: str) -> RunView | None:
        """A run of the caller; None for any other."""
        run_id = tenant_run_id(self.caller.tenant, task_id)
        view = await self.parts.runs.get(self.caller.tenant, run_id)
        if view is None:
            return None
        if not self._owns(view.owner) or self.agent not in ("", view.agent):
            raise task_not_found(task_id)
        return view

    async def _require(self, task_id: str, scope: TokenScope = TokenScope.RUNS_READ) -> RunView:
        """A task of the caller; one that was not started over A2A needs the scope of its runs."""
        self._check_scope(TokenScope.AGENTS_INVOKE)
        view = await self._find(task_id)
        if view is None or not (
            self.caller.may(scope) or await self._first_message_id(view.run_id)
        ):
            raise task_not_found(task_id)
        return view

    async def _first_message_id(self, run_id: str) -> str:
        """The id of the message that started a run over A2A; empty for other runs."""
        blob = await self.conversations.store.run_request(run_id)
        data = decode_run_request(blob).api_data.get(A2A_KEY)
        return str(data["messageId"]) if is_object(data) else ""

    def task_id(self, run_id: str) -> str:
        """The id of a task: that of its run, without the mark of the tenant."""
        mark = tenant_run_id(self.caller.tenant, "")
        return run_id.removeprefix(mark)

    def _owns(self, owner: str) -> bool:
        return owner == self.caller.principal.user or self.caller.may(TokenScope.ADMIN)

    def _check_scope(self, scope: TokenScope) -> None:
        if not self.caller.may(scope):
            raise forbidden(scope)

    def _check_tenant(self, tenant: str) -> None:
        if tenant:
            raise invalid_params("This agent card names no tenant. Send the request without one.")


def push_not_supported() -> A2aError:
    """The error for push notifications."""
    return A2aError(
        A2aErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED,
        "Push notifications are not supported. Stream the task, subscribe to it, or poll it.",
    )


def _is_wanted(run: StoredRun, request: A2aListRequest) -> bool:
    if request.status not in (A2aTaskState.UNSPECIFIED, _stored_state(run)):
        return False
    since = request.status_timestamp_after
    return since is None or _changed_at(run) >= since.timestamp()


def _stored_state(run: StoredRun) -> A2aTaskState:
    match status_of(run):
        case RunStatus.QUEUED:
            return A2aTaskState.SUBMITTED
        case RunStatus.RUNNING:
            return A2aTaskState.WORKING
        case RunStatus.WAITING:
            return A2aTaskState.INPUT_REQUIRED
        case RunStatus.ENDED:
            assert run.stop is not None
            return state_of(run.stop)


def _changed_at(run: StoredRun) -> float:
    return run.ended_at or run.began_at


def _page_position(run: StoredRun) -> tuple[float, str]:
    return _changed_at(run), run.id


def _write_page_token(run: StoredRun) -> str:
    return encode_base64url(msgspec.json.encode(_page_position(run)))


def _read_page_token(token: str) -> tuple[float, str]:
    try:
        return msgspec.json.decode(decode_base64url(token), type=tuple[float, str])
    except (ValueError, msgspec.DecodeError):
        raise invalid_params(
            "pageToken is not a nextPageToken of this service. Start again without one."
        ) from None

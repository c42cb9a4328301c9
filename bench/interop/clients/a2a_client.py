"""The client of the official A2A SDK uses an agent; its last line of output is JSON.

a2a_client.py URL TOKEN               all checks, and the problem of each
a2a_client.py URL TOKEN start TEXT    starts a task and does not wait: its id
a2a_client.py URL TOKEN follow ID     subscribes to a task until it ends: its states and text
a2a_client.py URL TOKEN show ID       reads a task: its state and text
a2a_client.py URL TOKEN cancel ID     cancels a task: its state
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import get_artifact_text, new_raw_part, new_text_part
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

URL, TOKEN = sys.argv[1:3]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c636460f85f0f00028701805a347d6b0000000049454e44ae426082"
)
BINDINGS = ("JSONRPC", "HTTP+JSON")


def sent(*parts: Part | str, wait: bool = True, **more: str) -> SendMessageRequest:
    made = [new_text_part(part) if isinstance(part, str) else part for part in parts]
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=made, **more)
    options = SendMessageConfiguration(return_immediately=not wait)
    return SendMessageRequest(message=message, configuration=options)


@asynccontextmanager
async def connected(
    binding: str = "JSONRPC", *, streaming: bool = False, version: str = "1.0", path: str = ""
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, URL + path).get_agent_card()
        wanted = [each for each in card.supported_interfaces if each.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(wanted)
        config = ClientConfig(
            streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding]
        )
        yield ClientFactory(config).create(card)


async def answered(client: Client, request: SendMessageRequest) -> Task:
    """The task of a message, sent without streaming."""
    found = [event async for event in client.send_message(request)]
    assert len(found) == 1 and found[0].HasField("task"), found
    return found[0].task


def text_of(task: Task) -> str:
    return "".join(get_artifact_text(artifact) for artifact in task.artifacts)


def streamed(events: list[StreamResponse]) -> tuple[list[str], str]:
    """The states that a stream shows, and the text of the artifact in the end."""
    states, text = [], ""
    for event in events:
        if event.HasField("task"):
            states.append(TaskState.Name(event.task.status.state))
        elif event.HasField("status_update"):
            states.append(TaskState.Name(event.status_update.status.state))
        elif event.HasField("artifact_update"):
            piece = get_artifact_text(event.artifact_update.artifact)
            text = text + piece if event.artifact_update.append else piece
    return states, text


async def raises(error: type[Exception], work: Any) -> None:
    try:
        await work
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


async def public_card() -> None:
    async with httpx.AsyncClient() as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
    assert card.capabilities.streaming and not card.capabilities.push_notifications
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "Bearer"
    assert card.skills and "lead" not in str(card)


async def extended_card(binding: str) -> None:
    async with connected(binding) as client:
        card: AgentCard = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert {"lead", "talker"} <= {skill.id for skill in card.skills}


async def card_of_an_agent(binding: str) -> None:
    async with connected(binding, path="/a2a/agents/talker") as client:
        task = await answered(client, sent("Say hi"))
        assert task.metadata["agent"] == "talker"


async def message(binding: str) -> None:
    async with connected(binding) as client:
        task = await answered(client, sent("Say hello there"))
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert text_of(task) == "hello there", text_of(task)


async def streaming(binding: str) -> None:
    async with connected(binding, streaming=True) as client:
        events = [event async for event in client.send_message(sent("Say one two three"))]
    states, text = streamed(events)
    assert events[0].HasField("task") and states[-1] == "TASK_STATE_COMPLETED", states
    assert text == "one two three", text


async def calls_of_tools(binding: str) -> None:
    async with connected(binding, streaming=True) as client:
        request = sent('Call work {"what": "it"}')
        events = [event async for event in client.send_message(request)]
    assert streamed(events)[1] == "The result is worked on it", events


async def tasks(binding: str) -> None:
    async with connected(binding) as client:
        made = await answered(client, sent("Say one"))
        assert await client.get_task(GetTaskRequest(id=made.id)) == made
        listed = await client.list_tasks(ListTasksRequest(context_id=made.context_id))
        assert [task.id for task in listed.tasks] == [made.id] and listed.total_size == 1
        page = await client.list_tasks(ListTasksRequest(page_size=1, include_artifacts=True))
        assert page.tasks[0].artifacts and page.total_size >= 1


async def conversation(binding: str) -> None:
    async with connected(binding) as client:
        first = await answered(client, sent("Say one"))
        second = await answered(client, sent("Say two", context_id=first.context_id))
    assert second.context_id == first.context_id and second.id != first.id


async def image(binding: str) -> None:
    async with connected(binding) as client:
        pixel = new_raw_part(PIXEL, media_type="image/png")
        assert text_of(await answered(client, sent("Say a dot", pixel))) == "a dot"


async def errors(binding: str) -> None:
    async with connected(binding) as client:
        done = await answered(client, sent("Say one"))
        missing, ended = GetTaskRequest(id="none"), CancelTaskRequest(id=done.id)
        await raises(TaskNotFoundError, client.get_task(missing))
        await raises(TaskNotCancelableError, client.cancel_task(ended))
        again = sent("Say two", task_id=done.id)
        await raises(UnsupportedOperationError, answered(client, again))
        await raises(TaskNotFoundError, answered(client, sent("Say two", task_id="none")))
        await raises(InvalidParamsError, answered(client, sent("Say two", context_id="none")))
        archive = new_raw_part(b"PK", media_type="application/zip")
        await raises(ContentTypeNotSupportedError, answered(client, sent("Say", archive)))
        listing = ListTaskPushNotificationConfigsRequest(task_id=done.id)
        # The client itself refuses what the card does not offer.
        client._card.capabilities.push_notifications = True  # type: ignore[attr-defined]
        refused = client.list_task_push_notification_configs(listing)
        await raises(PushNotificationNotSupportedError, refused)


async def version_0_3() -> None:
    async with connected(version="0.3") as client:
        task = await answered(client, sent("Say old"))
        assert text_of(task) == "old"
        assert text_of(await client.get_task(GetTaskRequest(id=task.id))) == "old"


async def streaming_of_0_3() -> None:
    async with connected(version="0.3", streaming=True) as client:
        events = [event async for event in client.send_message(sent("Say old words"))]
    states, text = streamed(events)
    assert (states[-1], text) == ("TASK_STATE_COMPLETED", "old words"), (states, text)


async def start(text: str) -> dict[str, Any]:
    async with connected() as client:
        return {"task": (await answered(client, sent(text, wait=False))).id}


async def follow(task_id: str) -> dict[str, Any]:
    async with connected(streaming=True) as client:
        request = SubscribeToTaskRequest(id=task_id)
        states, text = streamed([event async for event in client.subscribe(request)])
    return {"states": states, "text": text}


async def show(task_id: str) -> dict[str, Any]:
    async with connected() as client:
        task = await client.get_task(GetTaskRequest(id=task_id))
    return {"state": TaskState.Name(task.status.state), "text": text_of(task)}


async def cancel(task_id: str) -> dict[str, Any]:
    async with connected() as client:
        task = await client.cancel_task(CancelTaskRequest(id=task_id))
    return {"state": TaskState.Name(task.status.state)}


IN_BINDINGS = (
    extended_card,
    card_of_an_agent,
    message,
    streaming,
    calls_of_tools,
    tasks,
    conversation,
    image,
    errors,
)
ACTIONS = {"start": start, "follow": follow, "show": show, "cancel": cancel}


async def checked() -> dict[str, str]:
    work = {f"{check.__name__} ({name})": check(name) for check in IN_BINDINGS for name in BINDINGS}
    work |= {check.__name__: check() for check in (public_card, version_0_3, streaming_of_0_3)}
    problems: dict[str, str] = {}
    for name, check in work.items():
        try:
            await check
            problems[name] = ""
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"[:2_000]
    return problems


if len(sys.argv) > 3:
    found: dict[str, Any] = asyncio.run(ACTIONS[sys.argv[3]](sys.argv[4]))
else:
    found = asyncio.run(checked())
sys.stdout.write(json.dumps(found) + "\n")

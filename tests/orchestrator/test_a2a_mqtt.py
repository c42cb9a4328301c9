"""A2A on the broker: retained cards, requests with tokens, replies, retries and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Provider
from evoclaw.orchestrator.a2a.mqtt import AUTHORIZATION, REQUEST_CONCURRENCY, A2aMqttAgent
from evoclaw.orchestrator.a2a.settings import A2aSettings, check_a2a
from evoclaw.orchestrator.a2a.tasks import A2aParts
from evoclaw.orchestrator.people.access import AccessControl
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.transport.link import Incoming, Link, MessageProperties, Will
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.mqtt import MqttLink
from tests.support.brokers import Broker, mosquitto, nats
from tests.support.service import AGENT, ServiceHarness, build_service
from tests.support.waiting import until

pytestmark = pytest.mark.process
SETTINGS = A2aSettings(mqtt=True, org="acme", unit="lab")
CARD, REQUEST = "$a2a/v1/discovery/acme/lab/helper", "$a2a/v1/request/acme/lab/helper"
REPLY = "$a2a/v1/reply/acme/lab/ann/1"


@dataclass
class Requester:
    """A client on the broker."""

    link: Link
    token: str = ""
    replies: list[Incoming] = field(default_factory=list[Incoming])
    cards: list[Incoming] = field(default_factory=list[Incoming])
    client_id: str = field(default_factory=lambda: f"ann-{uuid4().hex}")
    subscriptions: Sequence[str] = (REPLY, "$a2a/v1/discovery/acme/lab/+")

    def will(self) -> Will | None:
        return None

    async def connected(self) -> None:
        pass

    def disconnected(self, reason: str) -> None:
        pass

    def received(self, message: Incoming) -> None:
        (self.cards if message.topic == CARD else self.replies).append(message)

    async def send(self, payload: bytes, correlation: bytes = b"c", reply: str = REPLY) -> None:
        user = ((AUTHORIZATION, f"Bearer {self.token}"),) if self.token else ()
        properties = MessageProperties(reply, correlation, user=user)
        await self.link.publish(REQUEST, payload, properties=properties)

    async def ask(self, method: str, number: int = 1, **params: JSON) -> JSON:
        """The last of so many replies to a request."""
        correlation, before = uuid4().bytes, len(self.replies)
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        await self.send(json.dumps(body).encode(), correlation)
        await until(lambda: len(self.replies) >= before + number, say=f"{method} is answered")
        found = self.replies[before : before + number]
        assert {_correlation(reply) for reply in found} == {correlation}
        return json.loads(found[-1].payload)

    @property
    def status(self) -> str:
        found = self.cards[-1].properties
        return "" if found is None else found.user_value("a2a-status")


def _correlation(message: Incoming) -> bytes:
    return b"" if message.properties is None else message.properties.correlation


@dataclass
class Setup:
    """An agent on a broker, and a client of it."""

    house: ServiceHarness
    agent: A2aMqttAgent
    requester: Requester
    serving: asyncio.Task[None]


@asynccontextmanager
async def served(
    folder: Path,
    links: tuple[Link, Link],
    provider: Provider | None = None,
    *,
    is_held: bool = False,
) -> AsyncGenerator[Setup]:
    async with AsyncExitStack() as stack:
        house, _ = await stack.enter_async_context(build_service(folder, provider))
        if is_held:
            house.may_go_on.clear()
        await stack.enter_async_context(house.runs.serving())
        parts = A2aParts(house.runs, house.talks, house.approvals, lambda agent, model: "")
        access, url = AccessControl(house.tokens), "mqtt://127.0.0.1"
        agent = A2aMqttAgent(SETTINGS, links[0], AGENT, parts, access, broker_url=url)
        requester = Requester(links[1], await house.token("agents:invoke", "human"))
        serving = asyncio.create_task(agent.run())
        asking = asyncio.create_task(links[1].run(requester))
        try:
            await until(lambda: requester.cards and links[1].is_up, say="the card is published")
            yield Setup(house, agent, requester, serving)
        finally:
            for task in (serving, asking):
                task.cancel()
            await asyncio.wait((serving, asking))


def mqtt_links(broker: Broker) -> tuple[Link, Link]:
    return MqttLink(broker.address), MqttLink(broker.address)


def memory_links() -> tuple[MemoryLink, MemoryLink]:
    broker = MemoryBroker()
    return MemoryLink(broker), MemoryLink(broker)


def message(text: str = "Go", **more: JSON) -> dict[str, JSON]:
    return {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **more}


async def test_a_card_is_retained_on_mosquitto_and_a_request_is_answered(tmp_path: Path) -> None:
    async with (
        mosquitto() as broker,
        served(tmp_path, mqtt_links(broker), Scripted(says("Hello."))) as setup,
    ):
        requester = setup.requester
        card = json.loads(requester.cards[-1].payload)
        assert card["name"] == "helper" and requester.status == "online"
        assert card["supportedInterfaces"][0]["protocolBinding"] == "MQTTv5+JSONRPCv2"
        chosen: JSON = {"taskId": str(uuid4()), "contextId": str(uuid4())}
        answer = await requester.ask("SendMessage", message=message(**chosen))
        task = answer["result"]["task"]
        assert (task["id"], task["contextId"]) == (chosen["taskId"], chosen["contextId"])
        assert task["artifacts"][0]["parts"][0]["text"] == "Hello."
        again = await requester.ask("GetTask", id=chosen["taskId"])
        assert again["result"] == task
        setup.serving.cancel()
        await until(lambda: requester.status == "offline", say="the card says that it is offline")


async def test_a_lost_connection_marks_the_card_as_offline(tmp_path: Path) -> None:
    links = memory_links()
    async with served(tmp_path, links) as setup:
        links[0].unplug()
        await until(lambda: setup.requester.status == "offline")
        links[0].plug()
        await until(lambda: setup.requester.status == "online")


async def test_a_stream_is_one_message_for_each_event(tmp_path: Path) -> None:
    async with (
        mosquitto() as broker,
        served(tmp_path, mqtt_links(broker), Scripted(says("Hello."))) as setup,
    ):
        requester, task_id = setup.requester, str(uuid4())
        body: JSON = {"message": message(taskId=task_id)}
        request = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": body}
        await requester.send(json.dumps(request).encode())

        def events() -> list[JSON]:
            return [json.loads(reply.payload)["result"] for reply in requester.replies]

        def is_over() -> bool:
            return any(
                event.get("statusUpdate", {}).get("status", {}).get("state")
                == "TASK_STATE_COMPLETED"
                for event in events()
            )

        await until(is_over, say="the stream ends")
        assert events()[0]["task"]["id"] == task_id
        assert any("artifactUpdate" in event for event in events())


async def test_a_request_that_is_repeated_starts_one_task(tmp_path: Path) -> None:
    script = Scripted(says("Once."))
    async with served(tmp_path, memory_links(), script) as setup:
        sent = message(taskId=str(uuid4()))
        first = await setup.requester.ask("SendMessage", message=sent)
        assert await setup.requester.ask("SendMessage", message=sent) == first
        assert len(await setup.house.runs.list("local")) == 1


async def test_a_question_is_answered_over_the_broker(tmp_path: Path) -> None:
    script = Scripted(calls(("question", {"question": "Which?"})), says("Done."))
    async with served(tmp_path, memory_links(), script) as setup:
        task_id = str(uuid4())
        asked = await setup.requester.ask("SendMessage", message=message(taskId=task_id))
        assert asked["result"]["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        answer = await setup.requester.ask("SendMessage", message=message("That", taskId=task_id))
        assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_reply_waits_for_the_broker(tmp_path: Path) -> None:
    links = memory_links()
    script = Scripted(calls(("work", {"what": "it"})), says("Late."))
    async with served(tmp_path, links, script) as setup:
        setup.house.may_go_on.clear()
        asking = asyncio.create_task(
            setup.requester.ask("SendMessage", message=message(taskId=str(uuid4())))
        )
        await until(lambda: script.requests, say="the run has started")
        links[0].unplug()
        setup.house.may_go_on.set()
        await until(lambda: len(script.requests) == 2, say="the run goes on without the broker")
        links[0].plug()
        answer = await asking
        assert answer["result"]["task"]["artifacts"][0]["parts"][0]["text"] == "Late."


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_reply_is_sent_after_a_restart(tmp_path: Path, method: str) -> None:
    broker, task_id = MemoryBroker(), str(uuid4())
    script = Scripted(calls(("work", {"what": "it"})))
    links = MemoryLink(broker), MemoryLink(broker)
    async with served(tmp_path, links, script, is_held=True) as setup:
        params: JSON = {"message": message(taskId=task_id)}
        call: JSON = {"jsonrpc": "2.0", "id": "x-1", "method": method, "params": params}
        await setup.requester.send(json.dumps(call).encode(), b"the first")
        await until(lambda: script.requests, say="the run has started")
    links = MemoryLink(broker), MemoryLink(broker)
    async with served(tmp_path, links, Scripted(says("Late.")), is_held=True) as setup:
        setup.house.may_go_on.set()

        def ended() -> bool:
            return any(b"TASK_STATE_COMPLETED" in m.payload for m in setup.requester.replies)

        await until(ended, say="the reply comes")
        assert {_correlation(reply) for reply in setup.requester.replies} == {b"the first"}
        last = json.loads(setup.requester.replies[-1].payload)
        assert last["id"] == "x-1" and task_id in json.dumps(last["result"])


async def test_requests_without_a_valid_token_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path, memory_links()) as setup:
        for token in ("", "ec_no_no", "x" * 9_000):
            setup.requester.token = token
            found = (await setup.requester.ask("ListTasks"))["error"]
            assert found["data"][0]["reason"] == "UNAUTHENTICATED"
            assert not token or token not in json.dumps(found)
        setup.requester.token = await setup.house.token("runs:read")
        found = (await setup.requester.ask("SendMessage", message=message()))["error"]
        assert found["data"][0]["reason"] == "FORBIDDEN"
        assert await setup.house.runs.list("local") == []


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"[" * 2_000, -32700),
        (b"", -32700),
        (b"\xff", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"Nothing"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":7}}', -32602),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m",'
            b'"role":"ROLE_USER","parts":[{"text":"x"}],"taskId":"../../etc"}}}',
            -32602,
        ),
    ],
)
async def test_bad_input_on_the_broker_is_a_protocol_error(
    tmp_path: Path, payload: bytes, code: int
) -> None:
    async with served(tmp_path, memory_links()) as setup:
        await setup.requester.send(payload)
        await until(lambda: setup.requester.replies, say="it is answered")
        assert json.loads(setup.requester.replies[0].payload)["error"]["code"] == code


async def test_replies_go_to_reply_topics_only(tmp_path: Path) -> None:
    links = memory_links()
    async with served(tmp_path, links) as setup:
        topics = ("evoclaw/agents/pi/commands", CARD, "$a2a/v1/reply/+/x", "", "$a2a/v1/reply")
        for topic in topics:
            await setup.requester.send(b"{}", reply=topic)
        await setup.requester.send(b"{}", correlation=b"")
        await setup.requester.link.publish(REQUEST, b"{}")
        await until(lambda: setup.agent.counts["no reply topic"] == len(topics) + 2)
        assert setup.requester.replies == []


async def test_too_many_requests_at_once_are_told_to_try_later(tmp_path: Path) -> None:
    links = memory_links()
    script = Scripted(*[calls(("work", {"what": "it"}))] * (REQUEST_CONCURRENCY + 1))
    async with served(tmp_path, links, script) as setup:
        setup.house.may_go_on.clear()
        for _ in range(REQUEST_CONCURRENCY + 1):
            body = {"message": message(taskId=str(uuid4()))}
            call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": body}
            await setup.requester.send(json.dumps(call).encode())
        await until(lambda: setup.requester.replies, say="one is refused")
        found = json.loads(setup.requester.replies[0].payload)["error"]
        assert found["data"] == {"a2a_error": "responder_unavailable"}


async def test_a_broker_of_mqtt_3_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with nats() as broker, build_service(tmp_path) as (house, _):
        parts = A2aParts(house.runs, house.talks, house.approvals, lambda agent, model: "")
        access, url = AccessControl(house.tokens), "mqtt://127.0.0.1"
        settings = A2aSettings(mqtt=True, prefix="a2a")
        link = MqttLink(broker.address)
        agent = A2aMqttAgent(settings, link, AGENT, parts, access, broker_url=url)
        serving = asyncio.create_task(agent.run())
        try:
            await until(lambda: "only speaks MQTT 3.1.1" in caplog.text, say="it is reported")
        finally:
            serving.cancel()
            await asyncio.wait([serving])


@pytest.mark.parametrize(
    "settings",
    [
        A2aSettings(org="a/b"),
        A2aSettings(unit=""),
        A2aSettings(prefix="a/+"),
        A2aSettings(prefix="/a"),
        A2aSettings(prefix="a$b"),
    ],
)
def test_names_that_fit_no_topic_are_refused(settings: A2aSettings) -> None:
    with pytest.raises(ConfigError, match=r"a2a\."):
        check_a2a(settings)

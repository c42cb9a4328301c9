"""A2A over MQTT: one agent on the broker, with its card, its requests and its replies.

After the profile "A2A over MQTT" 0.1: <https://github.com/emqx/mqtt-for-ai>. Each agent has a
connection of its own, because the profile names it in the client id and in the will.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from secrets import token_hex
from uuid import UUID

import msgspec

from evoclaw.core.agent import Agent
from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, is_object
from evoclaw.orchestrator.a2a.cards import CardInterface, agent_card
from evoclaw.orchestrator.a2a.errors import A2aError, A2aErrorKind, invalid_params, to_a2a_error
from evoclaw.orchestrator.a2a.jsonrpc import (
    JsonRpcHandler,
    RpcAnswer,
    RpcCall,
    RpcRefused,
    RpcStream,
    encode_error,
    read_call,
)
from evoclaw.orchestrator.a2a.settings import A2aSettings
from evoclaw.orchestrator.a2a.tasks import A2aParts, FollowedTask
from evoclaw.orchestrator.people.access import AccessControl, Caller, TokenScope
from evoclaw.transport.link import (
    Incoming,
    Link,
    LinkDown,
    MessageProperties,
    TooLarge,
    Will,
    topic_bytes,
)
from evoclaw.transport.mqtt import MqttLink
from evoclaw.transport.topics import A2aTopic, a2a_topic

logger = logging.getLogger(__name__)
BINDING = "MQTTv5+JSONRPCv2"
"""The name of this binding in agent cards."""
AUTHORIZATION = "a2a-authorization"
"""The user property with the token of a request."""
STATUS, STATUS_SOURCE = "a2a-status", "a2a-status-source"
REQUEST_CONCURRENCY = 100
"""Requests of one agent in progress; further ones are answered with `responder_unavailable`."""
MAX_REPLIES_IN_DOUBT = 20
"""Replies that say that a request was not taken, at the same time."""
REPLY_RETENTION_S = 3_600.0
"""How long a reply waits for the broker."""
RECENT_END_S, MAX_RESUMED_REPLIES = 120.0, 10_000
"""How long ago a task may have ended whose reply is published again after a restart, and how many
tasks are looked at."""
MAX_CORRELATION_BYTES = 1_024
JSON_TYPE = "application/json"


class A2aMqttAgent:
    """One agent as a responder on the broker."""

    def __init__(
        self,
        settings: A2aSettings,
        link: Link,
        agent: Agent,
        parts: A2aParts,
        access: AccessControl,
        *,
        broker_url: str,
        http_interfaces: Sequence[CardInterface] = (),
        is_shared: bool = False,
    ) -> None:
        """Prepare to serve.

        Args:
            settings: The names in the topics.
            link: Its own connection to the broker.
            agent: The agent.
            parts: What its tasks are made of.
            access: Authenticates the tokens of requests.
            broker_url: The address of the broker, for its card.
            http_interfaces: Other ways to reach the agent, for its card.
            is_shared: Whether another orchestrator may serve the same agent on this broker: then
                the client id is unique, so that they do not disconnect each other.
        """
        self._link, self._agent, self._parts, self._access = link, agent, parts, access
        levels = settings.org, settings.unit, agent.name
        self._client_id = "/".join(levels) + (f"/{token_hex(8)}" if is_shared else "")
        self._card_topic = a2a_topic(A2aTopic.DISCOVERY, *levels, prefix=settings.prefix)
        self._request_topic = a2a_topic(A2aTopic.REQUEST, *levels, prefix=settings.prefix)
        self._reply_prefix = a2a_topic(A2aTopic.REPLY, "", prefix=settings.prefix)
        interfaces = (CardInterface(broker_url, BINDING), *http_interfaces)
        self._card: dict[str, JSON] = agent_card(agent, interfaces)
        self._encoded_card = msgspec.json.encode(self._card)
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubtful = 0
        self.counts: Counter[str] = Counter()
        """Requests that were dropped or refused, by reason."""

    async def run(self) -> None:
        """Serve until cancelled; then say that the agent is offline."""
        serving = asyncio.create_task(self._link.run(self))
        try:
            try:
                await self._resume_replies()
            except EvoClawError as problem:
                logger.warning("replies to earlier requests over MQTT are lost: %s", problem)
            await asyncio.shield(serving)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            try:
                await self._publish_card("offline")
            except LinkDown:
                self.counts["offline status not published"] += 1
            serving.cancel()
            await asyncio.wait([serving])

    @property
    def client_id(self) -> str:
        """The names of organisation, unit and agent, as the profile says."""
        return self._client_id

    @property
    def subscriptions(self) -> Sequence[str]:
        """The requests to this agent."""
        return (self._request_topic,)

    def will(self) -> Will | None:
        """The card, marked as offline."""
        return Will(self._card_topic, self._encoded_card, _status("offline", "lwt"))

    async def connected(self) -> None:
        """Publish the card, and the replies that wait."""
        if isinstance(self._link, MqttLink) and not self._link.speaks_mqtt5:
            logger.warning(
                "A2A over MQTT does not work: the broker only speaks MQTT 3.1.1. Use a broker with "
                "MQTT 5, such as Mosquitto, or set a2a.mqtt = false."
            )
        self._connected.set()
        await self._publish_card("online")

    def disconnected(self, reason: str) -> None:
        """Record it; the link reconnects."""
        self._connected.clear()
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Take a request."""
        asked = message.properties
        if message.retained or message.topic != self._request_topic:
            self.counts["no request"] += 1  # a retained request may be old
        elif asked is None or not self._can_reply(asked):
            # There is no topic that a reply may be sent to.
            self.counts["no reply topic"] += 1
        elif len(self._tasks) - self._doubtful < REQUEST_CONCURRENCY:
            self._spawn(self._serve(message.payload, asked))
        elif self._doubtful < MAX_REPLIES_IN_DOUBT:
            self.counts["too much at once"] += 1
            self._doubtful += 1
            self._spawn(self._refuse_for_now(asked))
        else:
            self.counts["dropped"] += 1

    def _can_reply(self, asked: MessageProperties) -> bool:
        """Whether the reply goes to a reply topic: others could be commands to edges."""
        if not asked.response_topic.startswith(self._reply_prefix) or not asked.correlation:
            return False
        if len(asked.correlation) > MAX_CORRELATION_BYTES:
            return False
        try:
            topic_bytes(asked.response_topic)
        except ValueError:
            return False
        return True

    async def _serve(self, payload: bytes, asked: MessageProperties) -> None:
        try:
            call = read_call(payload)
        except RpcRefused as refused:
            self.counts["refused: no request"] += 1
            return await self._reply(asked, refused.answer.body)
        try:
            caller = await self._authenticated(asked)
            _check_new_task(call)
            reply_to: dict[str, JSON] = {
                "topic": asked.response_topic,
                "correlation": encode_base64url(asked.correlation),
            }
            handler = JsonRpcHandler(
                self._parts.tasks(caller, self._agent.name),
                lambda: self._card,
                choose_ids=True,
                reply_to=reply_to,
            )
            found = await handler.handle(call)
        except EvoClawError as error:
            refused = to_a2a_error(error)
            self.counts[f"refused: {refused.kind.name}"] += 1
            return await self._reply(asked, encode_error(call.id, refused))
        return await self._reply_all(asked, found)

    async def _reply_all(self, asked: MessageProperties, found: RpcAnswer | RpcStream) -> None:
        if isinstance(found, RpcAnswer):
            return await self._reply(asked, found.body)
        async with aclosing(found):
            async for body in found:
                await self._reply(asked, body)
        return None

    async def _resume_replies(self) -> None:
        """Reply to the requests that were taken before this process started.

        A reply that was published just before is published again: clients expect repeated replies.
        """
        since = time.time() - RECENT_END_S
        for tenant, run_id in await self._parts.runs.unfinished_since(since, MAX_RESUMED_REPLIES):
            # On behalf of the service: each task says itself where its reply goes.
            caller = Caller(
                Principal(tenant), frozenset({TokenScope.AGENTS_INVOKE, TokenScope.ADMIN}), "a2a"
            )
            tasks = self._parts.tasks(caller, self._agent.name)
            try:
                found = await tasks.awaited_reply(run_id)
            except A2aError:
                continue  # a task of another agent
            if found is not None:
                followed, reply_to = found
                asked = MessageProperties(
                    str(reply_to.get("topic", "")),
                    decode_base64url(str(reply_to.get("correlation", ""))),
                )
                if self._can_reply(asked):
                    handler = JsonRpcHandler(tasks, lambda: self._card)
                    self._spawn(self._reply_again(handler, asked, followed, reply_to))

    async def _reply_again(
        self,
        handler: JsonRpcHandler,
        asked: MessageProperties,
        followed: FollowedTask,
        reply_to: dict[str, JSON],
    ) -> None:
        try:
            await self._reply_all(asked, await handler.reply_again(followed, reply_to))
        except EvoClawError as problem:
            self.counts["reply lost"] += 1
            logger.warning("a reply to a request over MQTT is lost: %s", problem)

    async def _authenticated(self, asked: MessageProperties) -> Caller:
        kind, _, bearer = asked.user_value(AUTHORIZATION).partition(" ")
        caller = None
        if kind.lower() == "bearer":
            caller = await self._access.authenticate(bearer.strip())
        if caller is None:
            raise A2aError(
                A2aErrorKind.UNAUTHENTICATED,
                f"The token is missing or invalid. Send the user property {AUTHORIZATION!r} with "
                "'Bearer ec_…'; see `evoclaw token`.",
            )
        return caller

    async def _refuse_for_now(self, asked: MessageProperties) -> None:
        try:
            error = {
                "code": -32004,
                "message": "The agent has too many requests. Try again later.",
                "data": {"a2a_error": "responder_unavailable"},
            }
            body = {"jsonrpc": "2.0", "id": None, "error": error}
            await self._reply(asked, msgspec.json.encode(body))
        finally:
            self._doubtful -= 1

    async def _reply(self, asked: MessageProperties, body: bytes) -> None:
        """Publish a reply; wait for the broker if it is unreachable."""
        properties = MessageProperties(
            correlation=asked.correlation,
            content_type=JSON_TYPE,
            user=(("a2a-responder-agent-id", self._agent.name),),
        )
        try:
            async with asyncio.timeout(REPLY_RETENTION_S):
                while True:
                    await self._connected.wait()
                    try:
                        return await self._link.publish(
                            asked.response_topic, body, properties=properties
                        )
                    except LinkDown:
                        self._connected.clear()
                        self.counts["reply waits"] += 1
                    except TooLarge as problem:
                        self.counts["reply too large"] += 1
                        body = encode_error(
                            _id_of(body), A2aError(A2aErrorKind.INTERNAL, f"{problem}. Use HTTP.")
                        )
        except TimeoutError:
            self.counts["reply dropped"] += 1

    async def _publish_card(self, status: str) -> None:
        properties = _status(status, "agent")
        await self._link.publish(
            self._card_topic, self._encoded_card, retain=True, properties=properties
        )

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _status(status: str, source: str) -> MessageProperties:
    return MessageProperties(
        content_type=JSON_TYPE, user=((STATUS, status), (STATUS_SOURCE, source))
    )


def _check_new_task(call: RpcCall) -> None:
    """A client of this binding chooses the ids of its tasks, as UUIDs, so that it can retry."""
    message = call.params.get("message")
    task_id = message.get("taskId") if is_object(message) else None
    if not isinstance(task_id, str) or not task_id:
        return  # made by the service; a message that is sent again is known by its messageId
    try:
        UUID(task_id)  # the ids that the service makes have this form too
    except ValueError:
        raise invalid_params("message.taskId must be a UUID over MQTT.") from None


class _Identified(msgspec.Struct):
    id: str | int | None = None


def _id_of(body: bytes) -> str | int | None:
    return msgspec.json.decode(body, type=_Identified).id

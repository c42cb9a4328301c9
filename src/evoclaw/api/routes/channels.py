"""Routes of channels: their state and their senders, signed webhooks, and failed deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import PUBLIC, InjectedCaller
from evoclaw.api.errors import ApiError, not_found
from evoclaw.api.routes.parameters import ChannelName, path_id
from evoclaw.orchestrator.channels import inbound
from evoclaw.orchestrator.channels.chat.channel import ChatChannel
from evoclaw.orchestrator.channels.chat.pairing import CODE_VALIDITY_S
from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher, DeadLetter
from evoclaw.orchestrator.channels.status import ChannelView
from evoclaw.orchestrator.channels.webhooks import MAX_BODY_BYTES, WebhookChannel, WebhookResponse
from evoclaw.orchestrator.people.access import Caller, TokenScope

CHANNEL_PATH_PREFIX = "/v1/channels/"
"""The path prefix of the webhooks, which authenticate requests by their signature."""
_STATUS_BY_REASON: Mapping[str, int] = {
    "unsigned": 401,
    "stale": 401,
    "unknown_sender": 403,
    "conflict": 409,
    "too_large": 413,
    "unreadable": 422,
    "too_many": 429,
    "not_serving": 503,
}
"""The status of each reason for refusing a message."""
RETRY_AFTER_S = 30
"""The `Retry-After` of a message that was refused with 429 or 503."""
TAGS = ["channels"]


class FailedDeliveryList(Struct, frozen=True):
    """Replies that could not be delivered, the newest first."""

    items: tuple[DeadLetter, ...]
    """The deliveries."""


class RetriedDelivery(Struct, frozen=True):
    """A failed delivery that is tried again."""

    id: str
    """The id of the delivery."""


class ChannelList(Struct, frozen=True):
    """The channels of a tenant."""

    items: tuple[ChannelView, ...]
    """The channels, in the order of the settings."""


class NewChannelPairing(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a pairing code adds."""

    user: Annotated[str, Meta(max_length=200)] = ""
    """The user that the sender becomes; empty: a user of its own."""


class ChannelPairingCode(Struct, frozen=True):
    """A code that adds the first sender who sends it."""

    code: str
    """What the sender sends after `/pair`."""
    valid_s: float
    """Seconds in which it is valid."""


class ChannelSender(Struct, frozen=True, forbid_unknown_fields=True):
    """A sender of a channel."""

    sender: Annotated[str, Meta(min_length=1, max_length=200)]
    """The sender, as the list of channels names it."""


def chat_channel_routes(channels: Sequence[ChatChannel]) -> Sequence[HTTPRouteHandler]:
    """The routes that add senders to chat channels, for administrators."""

    def find(caller: Caller, name: str) -> ChatChannel:
        for channel in channels:
            if channel.name == name and channel.settings.tenant == caller.tenant:
                return channel
        raise not_found("chat channel")

    @post("/v1/channel-pairings/{name:str}", scope=TokenScope.ADMIN, status_code=201, tags=TAGS)
    async def pair(
        caller: InjectedCaller, name: ChannelName, data: JSONBody[NewChannelPairing]
    ) -> ChannelPairingCode:
        """Make a one-time code: who sends it to the channel first may use the channel."""
        code = await find(caller, name).pairing.new_code(data.user)
        return ChannelPairingCode(code, CODE_VALIDITY_S)

    @post("/v1/channel-pairings/{name:str}/remove", scope=TokenScope.ADMIN, tags=TAGS)
    async def unpair(
        caller: InjectedCaller, name: ChannelName, data: JSONBody[ChannelSender]
    ) -> ChannelSender:
        """Remove a sender that was added with a code."""
        if not await find(caller, name).pairing.remove(data.sender):
            raise not_found("paired sender")
        return data

    return [pair, unpair]


def channel_routes(
    dispatcher: ChannelDispatcher, webhooks: Sequence[WebhookChannel]
) -> Sequence[HTTPRouteHandler]:
    """The webhooks; for administrators, the state of all channels and failed deliveries."""
    by_name = {hook.name: hook for hook in webhooks}

    @get("/v1/channels", scope=TokenScope.ADMIN, tags=TAGS)
    async def list_channels(caller: InjectedCaller) -> ChannelList:
        """List the channels of your tenant: their connections, last messages and senders."""
        return ChannelList(tuple(await dispatcher.views(caller.tenant)))

    @post(f"{CHANNEL_PATH_PREFIX}{{name:str}}", scope=PUBLIC, status_code=202, tags=TAGS)
    async def post_message(
        request: Request[Any, Any, Any], name: ChannelName
    ) -> Response[WebhookResponse | str]:
        """Send a message to an agent through a webhook; see the guide about channels."""
        hook = by_name.get(name)
        if hook is None:
            # Answered like a wrong signature, so that channel names cannot be probed.
            raise ApiError(
                401,
                "unsigned",
                "the signature is missing or wrong; sign the exact bytes of the body",
            )
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            received = await hook.post(headers, await _body(request))
        except inbound.MessageRefused as problem:
            status = _STATUS_BY_REASON.get(problem.reason, 400)
            wait = RETRY_AFTER_S if status in (429, 503) else None
            raise ApiError(status, problem.reason, str(problem), retry_after=wait) from None
        if received.challenge:
            return Response(received.challenge, status_code=200, media_type="text/plain")
        ignored = received.state == "ignored"
        return Response(received, status_code=200 if ignored else 202)

    @get("/v1/deliveries/given-up", scope=TokenScope.ADMIN, tags=TAGS)
    async def list_given_up(caller: InjectedCaller) -> FailedDeliveryList:
        """List the replies of your tenant that could not be delivered."""
        return FailedDeliveryList(tuple(await dispatcher.dead_letters(caller.tenant)))

    @post("/v1/deliveries/{id:str}/revive", scope=TokenScope.ADMIN, status_code=202, tags=TAGS)
    async def revive(
        caller: InjectedCaller, id: Annotated[str, path_id("The id of the delivery.")]
    ) -> RetriedDelivery:
        """Retry a failed delivery."""
        if not await dispatcher.redeliver(caller.tenant, id):
            raise not_found("delivery")
        return RetriedDelivery(id)

    return [list_channels, post_message, list_given_up, revive]


async def _body(request: Request[Any, Any, Any]) -> bytes:
    """The raw body, which the signature covers; `ApiError` 413 if it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(
                413,
                "too_large",
                f"The message is larger than {MAX_BODY_BYTES:,} bytes. Send a shorter one.",
            )
    return bytes(body)

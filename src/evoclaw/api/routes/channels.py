"""Routes of channels: signed webhooks that deliver messages to agents, and failed deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from evoclaw.api.auth import PUBLIC, InjectedCaller
from evoclaw.api.errors import ApiError, not_found
from evoclaw.api.routes.parameters import (
    path_id,
)
from evoclaw.orchestrator.channels import inbound
from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher, DeadLetter
from evoclaw.orchestrator.channels.webhooks import MAX_BODY_BYTES, WebhookChannel, WebhookResponse
from evoclaw.orchestrator.people.access import TokenScope

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


def channel_routes(
    dispatcher: ChannelDispatcher, webhooks: Sequence[WebhookChannel]
) -> Sequence[HTTPRouteHandler]:
    """The routes of the webhooks, and of failed deliveries for administrators."""
    by_name = {hook.name: hook for hook in webhooks}

    @post(f"{CHANNEL_PATH_PREFIX}{{name:str}}", scope=PUBLIC, status_code=202, tags=TAGS)
    async def post_message(
        request: Request[Any, Any, Any], name: Annotated[str, path_id("The name of the channel.")]
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

    return [post_message, list_given_up, revive]


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

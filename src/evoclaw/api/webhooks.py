"""Where others' programs post what people say to agents: signed, not with a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from evoclaw.api.auth import ANYBODY, Who
from evoclaw.api.errors import Refused, not_found
from evoclaw.api.routes.shapes import Id
from evoclaw.orchestrator.channels import letters
from evoclaw.orchestrator.channels.front_desk import FrontDesk, GivenUp
from evoclaw.orchestrator.channels.webhooks import MAX_BODY, Received, Webhook
from evoclaw.orchestrator.people.access import Scope

BELOW = "/v1/channels/"
"""Under which letters are posted: these routes check by themselves who comes."""
_STATUS: Mapping[str, int] = {
    "unsigned": 401,
    "stale": 401,
    "unknown_sender": 403,
    "conflict": 409,
    "too_large": 413,
    "unreadable": 422,
    "too_many": 429,
    "not_serving": 503,
}
"""The answer to each reason for which a letter is refused."""
RETRY = 30
"""Seconds after which a letter may come again that was refused for want of room."""
TAGS = ["channels"]


class GivenUpList(Struct, frozen=True):
    """Answers that could not be delivered, the newest first."""

    items: tuple[GivenUp, ...]


class Revived(Struct, frozen=True):
    """An answer that is tried again."""

    id: str


def channel_routes(desk: FrontDesk, hooks: Sequence[Webhook]) -> Sequence[HTTPRouteHandler]:
    """The routes of these webhooks, and those for whoever looks after the channels."""
    named = {hook.name: hook for hook in hooks}

    @post(f"{BELOW}{{name:str}}", scope=ANYBODY, status_code=202, tags=TAGS)
    async def post_letter(request: Request[Any, Any, Any], name: Id) -> Response[Received | str]:
        """Say something to an agent over a webhook; see the guide about channels."""
        hook = named.get(name)
        if hook is None:
            # As if it were not signed: names of channels are nobody's business.
            raise Refused(401, "unsigned", "the signature is missing or wrong")
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            received = await hook.post(headers, await _body(request))
        except letters.Refused as problem:
            status = _STATUS.get(problem.reason, 400)
            wait = RETRY if status in (429, 503) else None
            raise Refused(status, problem.reason, str(problem), retry_after=wait) from None
        if received.challenge:
            return Response(received.challenge, status_code=200, media_type="text/plain")
        ignored = received.state == "ignored"
        return Response(received, status_code=200 if ignored else 202)

    @get("/v1/deliveries/given-up", scope=Scope.ADMIN, tags=TAGS)
    async def list_given_up(caller: Who) -> GivenUpList:
        """Answers to people of the caller's tenant that could not be delivered."""
        return GivenUpList(tuple(await desk.given_up(caller.tenant)))

    @post("/v1/deliveries/{id:str}/revive", scope=Scope.ADMIN, status_code=202, tags=TAGS)
    async def revive(caller: Who, id: Id) -> Revived:
        """Try again to deliver an answer that was given up."""
        if not await desk.revive(caller.tenant, id):
            raise not_found("delivery")
        return Revived(id)

    return [post_letter, list_given_up, revive]


async def _body(request: Request[Any, Any, Any]) -> bytes:
    """The body as it came, to the byte, as long as it is not too long."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise Refused(413, "too_large", f"a letter has at most {MAX_BODY:,} bytes")
    return bytes(body)

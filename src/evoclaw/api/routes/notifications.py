"""Routes of notifications: notifiers, push subscriptions, and the pages of one-tap answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from litestar import Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter
from msgspec import Meta, Struct

from evoclaw.api.answer_page import content_security_policy, render_answer_page
from evoclaw.api.auth import PUBLIC, InjectedCaller
from evoclaw.api.errors import ApiError, not_found
from evoclaw.api.routes.parameters import (
    path_id,
)
from evoclaw.orchestrator.notifications.answers import ANSWER_PATH, AnswerPage, AnswerProblem
from evoclaw.orchestrator.notifications.push_subscriptions import (
    InvalidSubscription,
    PushSubscriptions,
)
from evoclaw.orchestrator.notifications.service import Notifications, NotifierCheck, NotifierView
from evoclaw.orchestrator.people.access import Caller, TokenScope

TAGS = ["notifications"]
_STATUS_BY_PROBLEM = {
    None: 200,
    AnswerProblem.INVALID: 404,
    AnswerProblem.EXPIRED: 410,
    AnswerProblem.ANSWERED: 409,
}
AnswerToken = Annotated[
    str, PathParameter(pattern=r"^[A-Za-z0-9._-]{1,1000}$", description="The token of the link.")
]
PushKeyText = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+=*$", max_length=200)]
Endpoint = Annotated[str, Meta(pattern="^https?://", max_length=2_000)]


class NotifierList(Struct, frozen=True):
    """The notifiers of a tenant."""

    items: tuple[NotifierView, ...]
    """The notifiers."""


class PushKey(Struct, frozen=True):
    """The public key that a browser subscribes with."""

    key: str
    """The key, in base64 for URLs."""


class PushKeys(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a push subscription, in base64 for URLs."""

    p256dh: PushKeyText
    """The public key of the browser."""
    auth: PushKeyText
    """The authentication secret of the browser."""


class NewPushSubscription(Struct, frozen=True, forbid_unknown_fields=True):
    """The push subscription of a browser."""

    endpoint: Endpoint
    """The URL of the browser's push service."""
    keys: PushKeys
    """The keys that encrypt messages for the browser."""


class PushEndpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Names the push subscription of a browser."""

    endpoint: Endpoint
    """The URL of the browser's push service."""


class PushSubscriptionView(Struct, frozen=True):
    """A stored push subscription."""

    id: str
    """The id of the subscription."""


def notification_routes(notifications: Notifications) -> Sequence[HTTPRouteHandler]:
    """The routes of the notifications of a process."""
    return [
        *_notifier_routes(notifications),
        *_push_routes(notifications.subscriptions),
        *_answer_routes(notifications),
    ]


def _notifier_routes(notifications: Notifications) -> Sequence[HTTPRouteHandler]:
    @get("/v1/notify", scope=TokenScope.ADMIN, tags=TAGS)
    async def list_notifiers(caller: InjectedCaller) -> NotifierList:
        """List the notifiers of your tenant, and the state of the last message of each."""
        return NotifierList(tuple(await notifications.views(caller.tenant)))

    @post("/v1/notify/{name:str}/test", scope=TokenScope.ADMIN, tags=TAGS, status_code=200)
    async def test_notifier(
        caller: InjectedCaller, name: Annotated[str, path_id("The name of the notifier.")]
    ) -> NotifierCheck:
        """Send a test message with a notifier, and report the outcome."""
        result = await notifications.test(caller.tenant, name)
        if result is None:
            raise not_found("notifier")
        return result

    return [list_notifiers, test_notifier]


def _push_routes(subscriptions: PushSubscriptions) -> Sequence[HTTPRouteHandler]:
    def check_enabled(caller: Caller) -> None:
        if not subscriptions.is_enabled(caller.tenant):
            raise ApiError(
                404,
                "not_found",
                "Web Push is not configured. Add a [[notify]] table of kind 'webpush' to "
                "evoclaw.toml.",
            )

    @get("/v1/push/key", scope=TokenScope.APPROVALS_READ, tags=TAGS)
    async def push_key(caller: InjectedCaller) -> PushKey:
        """Show the public key with which a browser subscribes to notifications."""
        check_enabled(caller)
        return PushKey((await subscriptions.key()).public_text)

    @post("/v1/push/subscriptions", scope=TokenScope.APPROVALS_READ, tags=TAGS)
    async def subscribe(
        caller: InjectedCaller, data: JSONBody[NewPushSubscription]
    ) -> PushSubscriptionView:
        """Send notifications to your browser."""
        check_enabled(caller)
        try:
            id_ = await subscriptions.add(caller, data.endpoint, data.keys.p256dh, data.keys.auth)
        except InvalidSubscription as problem:
            raise ApiError(422, "invalid", str(problem)) from None
        return PushSubscriptionView(id_)

    @delete("/v1/push/subscriptions", scope=TokenScope.APPROVALS_READ, tags=TAGS, status_code=204)
    async def unsubscribe(caller: InjectedCaller, data: JSONBody[PushEndpoint]) -> None:
        """Send no more notifications to your browser."""
        if not await subscriptions.remove(caller, data.endpoint):
            raise not_found("push subscription")

    return [push_key, subscribe, unsubscribe]


def _answer_routes(notifications: Notifications) -> Sequence[HTTPRouteHandler]:
    path = f"{ANSWER_PATH}{{token:str}}"

    @get(path, scope=PUBLIC, include_in_schema=False)
    async def show_answer(token: AnswerToken) -> Response[str]:
        """Show what the link of a notification answers; answers nothing."""
        return _page(await notifications.answers.show(token), asks=True)

    @post(path, scope=PUBLIC, include_in_schema=False)
    async def answer(token: AnswerToken) -> Response[str]:
        """Answer the approval of a link."""
        return _page(await notifications.answers.answer(token), asks=False)

    return [show_answer, answer]


def _page(page: AnswerPage, *, asks: bool) -> Response[str]:
    headers = {
        "content-security-policy": content_security_policy(),
        # Not `no-referrer`: then browsers would hide the origin of the form, which is checked.
        "referrer-policy": "same-origin",
        "x-robots-tag": "noindex",
    }
    return Response(
        render_answer_page(page, asks=asks),
        status_code=_STATUS_BY_PROBLEM[page.problem],
        media_type="text/html",
        headers=headers,
    )

"""The browsers that receive notifications by Web Push, each added by its user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.executors.url_guard import read_url
from evoclaw.orchestrator.notifications.settings import NotifySettings
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.store.notifications import NotificationStore, StoredSubscription
from evoclaw.trust.web_push import VapidKey, check_keys

MAX_DEVICES_OF_USER = 20
VAPID_KEY = "web push"
"""The name of the key that identifies this service at push services."""


class PushSubscription(Struct, frozen=True):
    """A browser, as its push service knows it, and what its user may do."""

    endpoint: str
    p256dh: str
    auth: str
    user: str
    """The name of the person, for the audit."""
    sees_all: bool
    """Whether the user sees the approvals and runs of the whole tenant."""
    may_answer: bool
    """Whether the user may approve and deny."""
    token: str = ""
    """The id of the API token that added it: with the token, the subscription ends."""


class InvalidSubscription(EvoClawError):
    """A push subscription cannot be used."""


class PushSubscriptions:
    """The push subscriptions of all tenants."""

    def __init__(
        self,
        store: NotificationStore,
        notifiers: Sequence[NotifySettings],
        is_revoked: Callable[[str], Awaitable[bool]],
    ) -> None:
        """Prepare to serve the browsers of all tenants.

        Args:
            store: Where subscriptions are stored.
            notifiers: The configured notifiers.
            is_revoked: Whether the API token with an id was revoked, or has expired.
        """
        self._store, self._is_revoked = store, is_revoked
        self._tenants = {notifier.tenant for notifier in notifiers if notifier.kind == "webpush"}

    async def key(self) -> VapidKey:
        """The key pair of this service; every orchestrator of a store has the same."""
        return VapidKey(await self._store.key(VAPID_KEY, VapidKey.generate))

    def is_enabled(self, tenant: str) -> bool:
        """Whether a tenant has a notifier that uses Web Push."""
        return tenant in self._tenants

    async def add(self, caller: Caller, endpoint: str, p256dh: str, auth: str) -> str:
        """Store the subscription of a caller's browser; return its id.

        Raises `InvalidSubscription`.
        """
        try:
            check_keys(p256dh, auth)
            url = str(read_url(endpoint))
        except (EvoClawError, ToolFailure) as problem:
            raise InvalidSubscription(f"the push subscription is invalid: {problem}") from None
        answerer = caller.answerer()
        subscription = PushSubscription(
            url,
            p256dh,
            auth,
            answerer.name,
            caller.may(TokenScope.ADMIN),
            answerer.kind == "person",
            caller.token,
        )
        id_ = subscription_id(caller.tenant, endpoint)
        stored = StoredSubscription(
            id_, caller.tenant, caller.principal.user, msgspec.json.encode(subscription)
        )
        if not await self._store.subscribe(stored, MAX_DEVICES_OF_USER):
            raise InvalidSubscription(
                f"you have {MAX_DEVICES_OF_USER} devices; remove one of them first"
            )
        return id_

    async def remove(self, caller: Caller, endpoint: str) -> bool:
        """Delete the subscription of a caller's browser; False if there is none."""
        id_ = subscription_id(caller.tenant, endpoint)
        return await self._store.unsubscribe(id_, caller.tenant, caller.principal.user)

    async def forget(self, tenant: str, id_: str) -> None:
        """Delete a subscription that its push service no longer knows."""
        await self._store.unsubscribe(id_, tenant)

    async def all(self, notifier: NotifySettings) -> dict[str, PushSubscription]:
        """The subscriptions that a notifier serves, by id."""
        return {id_: found for id_, _, found in await self._valid(notifier)}

    async def targets(self, notifier: NotifySettings) -> Sequence[tuple[str, str | None]]:
        """The receivers of a notifier, and the user whose subjects each gets; None is all."""
        if notifier.kind != "webpush":
            return (("", None),)
        return [
            (id_, None if found.sees_all else user)
            for id_, user, found in await self._valid(notifier)
        ]

    async def _valid(self, notifier: NotifySettings) -> Sequence[tuple[str, str, PushSubscription]]:
        """The id, the user and the subscription of each browser of a notifier."""
        if notifier.kind != "webpush":
            return ()
        valid: list[tuple[str, str, PushSubscription]] = []
        for stored in await self._store.subscriptions(notifier.tenant):
            if notifier.users and stored.user not in notifier.users:
                continue
            found = msgspec.json.decode(stored.subscription, type=PushSubscription)
            if not await self._is_revoked(found.token):
                valid.append((stored.id, stored.user, found))
        return valid

    async def person_of(self, notifier: NotifySettings, target: str) -> str | None:
        """The person who answers with the links of a receiver; None if it may not answer."""
        if notifier.kind != "webpush":
            return notifier.users[0] if len(notifier.users) == 1 else f"notifier:{notifier.name}"
        subscription = (await self.all(notifier)).get(target)
        if subscription is None or not subscription.may_answer:
            return None
        return subscription.user


def subscription_id(tenant: str, endpoint: str) -> str:
    """The id of a browser: its endpoint is a secret."""
    return sha256(f"{tenant}\n{endpoint}".encode()).hexdigest()[:40]

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import pytest

from evoclaw.store.notifications import (
    NOTIFICATION_RETENTION_S,
    RATE_WINDOW_S,
    SCHEMA,
    NewNotification,
    NotificationStore,
    StoredNotification,
    StoredSubscription,
)
from tests.support.databases import Place


class Clock:
    """Stands still until a test moves it."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(place: Place, clock: Clock) -> AsyncIterator[NotificationStore]:
    database = await place.open(SCHEMA)
    try:
        yield NotificationStore(database, clock)
    finally:
        await database.close()


def new(subject: str, notifier: str = "phone", target: str = "") -> NewNotification:
    return NewNotification("local", notifier, target, subject, subject.encode())


def summarize(rest: Sequence[StoredNotification]) -> NewNotification:
    return new(f"summary of {len(rest)}")


async def released(
    store: NotificationStore, limit: int = 20, unneeded: Sequence[int] = ()
) -> tuple[int, int]:
    return await store.release("phone", "", limit, unneeded, summarize)


async def claimed(store: NotificationStore) -> list[str]:
    found, _ = await store.claim_deliveries(("phone",), 60, 100)
    for item in found:
        await store.settle_delivery(item, "sent")
    return [item.subject for item in found]


async def test_the_same_subject_is_stored_once_for_each_receiver(store: NotificationStore) -> None:
    await store.add([new("a"), new("a", target="laptop")])
    await store.add([new("a"), new("b")])
    assert [item.subject for item in await store.held("phone", "")] == ["a", "b"]
    assert [item.subject for item in await store.held("phone", "laptop")] == ["a"]
    assert await store.known("phone", "", ["a", "c"]) == {"a"}


async def test_two_processes_send_a_notification_once(place: Place, clock: Clock) -> None:
    if place.is_file:
        pytest.skip("a SQLite file belongs to one process")
    async with AsyncExitStack() as stack:
        stores: list[NotificationStore] = []
        for _ in range(3):
            database = await place.open(SCHEMA)
            stack.push_async_callback(database.close)
            stores.append(NotificationStore(database, clock))
        subjects = [f"approval-{number}" for number in range(8)]

        async def work(store: NotificationStore) -> list[str]:
            await store.add([new(subject) for subject in subjects])
            await released(store, limit=5)
            return await claimed(store)

        sent = [name for names in await asyncio.gather(*map(work, stores)) for name in names]
        assert sorted(sent) == [*subjects[:4], "summary of 4"]


async def test_more_than_the_limit_are_one_summary(store: NotificationStore, clock: Clock) -> None:
    await store.add([new(name) for name in "abcde"])
    assert await released(store, limit=3) == (3, 0)
    assert await claimed(store) == ["a", "b", "summary of 3"]
    await store.add([new("f"), new("g")])
    assert await released(store, limit=3) == (0, 2)
    assert await claimed(store) == []
    clock.now += RATE_WINDOW_S
    assert await released(store, limit=3) == (2, 0)
    assert await claimed(store) == ["f", "g"]


async def test_a_held_notification_that_is_no_longer_needed_is_left_out(
    store: NotificationStore,
) -> None:
    await store.add([new(name) for name in "abc"])
    first = (await store.held("phone", ""))[0]
    assert await released(store, unneeded=[first.seq]) == (2, 0)
    assert await claimed(store) == ["b", "c"]
    # It is not reported again.
    await store.add([new("a")])
    assert await released(store) == (0, 0)


async def test_a_failed_attempt_is_due_again(store: NotificationStore, clock: Clock) -> None:
    await store.add([new("a")])
    await released(store)
    (item,), _ = await store.claim_deliveries(("phone",), 60, 10)
    assert (await store.claim_deliveries(("phone",), 60, 10))[0] == []
    await store.settle_delivery(item, "due", "busy", clock.now + 5)
    assert await store.last_result("phone") == ("due", "busy", clock.now)
    assert (await store.claim_deliveries(("phone",), 60, 10))[1] == clock.now + 5
    clock.now += 5
    assert await claimed(store) == ["a"]
    assert await store.last_result("phone") == ("sent", "", clock.now)


async def test_a_notifier_keeps_the_time_when_it_was_first_configured(
    store: NotificationStore, clock: Clock
) -> None:
    first = await store.register(["phone"])
    clock.now += 100
    assert await store.register(["phone", "mail"]) == {**first, "mail": clock.now}


async def test_all_processes_have_the_same_key(store: NotificationStore) -> None:
    assert await store.key("answers", lambda: b"one") == b"one"
    assert await store.key("answers", lambda: b"two") == b"one"
    assert await store.key("push", lambda: b"two") == b"two"


async def test_old_notifications_are_deleted(store: NotificationStore, clock: Clock) -> None:
    await store.add([new("a"), new("b")])
    await released(store, limit=1)
    await claimed(store)
    clock.now += NOTIFICATION_RETENTION_S + 1
    await store.add([new("c")])
    assert await store.prune() == 3
    assert [item.subject for item in await store.held("phone", "")] == ["c"]


async def test_a_push_subscription_belongs_to_a_user_of_a_tenant(store: NotificationStore) -> None:
    def subscription(id_: str, user: str, tenant: str = "local") -> StoredSubscription:
        return StoredSubscription(id_, tenant, user, b"{}")

    assert await store.subscribe(subscription("1", "ann"), 2)
    assert await store.subscribe(subscription("1", "ann"), 2)
    assert await store.subscribe(subscription("2", "ann"), 2)
    assert not await store.subscribe(subscription("3", "ann"), 2)
    assert await store.subscribe(subscription("4", "bob", "acme"), 2)
    assert [found.id for found in await store.subscriptions("local")] == ["1", "2"]
    assert not await store.unsubscribe("1", "local", "bob")
    assert not await store.unsubscribe("1", "acme")
    assert await store.unsubscribe("1", "local", "ann")
    assert await store.unsubscribe("2", "local")
    assert await store.subscriptions("local") == []

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bench.growth.measure import steps_of

from evoclaw.store.channels import (
    DEAD,
    DONE,
    DUE,
    FAILED,
    SCHEMA,
    SENT,
    ChannelStore,
    NewInboundMessage,
    StoredDelivery,
    StoredInboundMessage,
)
from tests.support.databases import Place


class Clock:
    """Stands still until it is turned."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(place: Place, clock: Clock) -> AsyncIterator[ChannelStore]:
    database = await place.open(SCHEMA)
    try:
        yield ChannelStore(database, clock)
    finally:
        await database.close()


def new(
    id_: str = "m1", *, tenant: str = "local", sender: str = "ann", says: str = "hi", to: str = "c1"
) -> NewInboundMessage:
    return NewInboundMessage(
        tenant, "box", sender, id_, to, says, says.encode(), f"new session {id_}"
    )


async def kept(store: ChannelStore, id_: str = "m1", **more: str) -> StoredInboundMessage:
    letter, fresh = await store.add_message(new(id_, **more))
    assert fresh
    return letter


async def claimed(store: ChannelStore, most: int = 10) -> list[StoredDelivery]:
    found, _ = await store.claim_deliveries(("box",), 60.0, most)
    return list(found)


async def test_an_inbound_message_is_stored_once_and_recognised_when_repeated(
    store: ChannelStore,
) -> None:
    first = await kept(store)
    again, fresh = await store.add_message(new(says="something else"))

    assert not fresh
    assert again == first
    assert again.message == b"hi"


async def test_a_conversation_keeps_its_session(store: ChannelStore) -> None:
    one, two = await kept(store, "m1"), await kept(store, "m2")
    assert one.session_id == two.session_id == "new session m1"
    assert (await kept(store, "m3", to="c2")).session_id == "new session m3"
    assert (await kept(store, "m4", sender="bob")).session_id == "new session m4"
    assert (await kept(store, "m5", tenant="other")).session_id == "new session m5"


async def test_a_conversation_moves_to_a_new_session(store: ChannelStore) -> None:
    first = await kept(store)
    await store.move_conversation(first, "c1", "another session")
    assert (await kept(store, "m2")).session_id == "another session"
    assert (await kept(store, "m3", sender="bob")).session_id == "new session m3"


async def test_a_channel_stores_values_of_its_own(store: ChannelStore) -> None:
    assert await store.read_state("box", "cursor") == ""
    await store.write_state("box", "cursor", "7")
    await store.write_state("box", "cursor", "8")
    assert await store.read_state("box", "cursor") == "8"
    assert await store.read_state("other", "cursor") == ""
    assert await store.add_state("box", "paired/ann", "ann")
    assert not await store.add_state("box", "paired/ann", "eve")
    assert await store.list_state("box", "paired/") == {"paired/ann": "ann"}
    assert await store.delete_state("box", "paired/ann")
    assert not await store.delete_state("box", "paired/ann")


async def test_a_failed_message_can_be_retried_only_with_the_same_content(
    store: ChannelStore,
) -> None:
    letter = await kept(store)
    await store.add_delivery(letter, "a1", b"no", message_state=FAILED)

    _, other = await store.add_message(new(says="something else"))
    _, same = await store.add_message(new())
    _, third = await store.add_message(new())
    assert (other, same, third) == (False, True, False)


async def test_messages_without_a_final_answer_are_open_after_a_restart(
    store: ChannelStore,
) -> None:
    one, two, three = [await kept(store, id_) for id_ in ("m1", "m2", "m3")]
    await store.mark_started(two.seq, "run 2")
    await store.add_delivery(three, "a3", b"done", message_state=DONE)

    found = await store.open_messages(("box",))
    assert [(letter.id, letter.run_id) for letter in found] == [("m1", ""), ("m2", "run 2")]
    assert one.seq == found[0].seq
    assert not await store.open_messages(("other",))
    assert not await store.open_messages(())


async def test_a_delivery_is_added_once_and_claimed_by_one_process(
    store: ChannelStore, clock: Clock
) -> None:
    letter = await kept(store)
    assert await store.add_delivery(letter, "a1", b"twelve")
    assert not await store.add_delivery(letter, "a1", b"twelve")

    (mine,) = await claimed(store)
    assert (mine.answer, mine.message, mine.attempts) == (b"twelve", b"hi", 0)
    assert not await claimed(store)
    clock.now += 61  # whoever had it has died
    (again,) = await claimed(store)
    assert again.attempts == 1
    await store.settle_delivery(again, SENT)
    clock.now += 61
    assert not await claimed(store)


async def test_deliveries_for_one_message_are_claimed_in_order(store: ChannelStore) -> None:
    letter, other = await kept(store), await kept(store, "m2")
    for id_ in ("a1", "a2"):
        await store.add_delivery(letter, id_, id_.encode())
    await store.add_delivery(other, "b1", b"b1")

    first, beside = await claimed(store)
    assert (first.id, beside.id) == ("a1", "b1")
    assert not await claimed(store)
    await store.settle_delivery(first, SENT)
    assert [one.id for one in await claimed(store)] == ["a2"]


async def test_a_postponed_delivery_is_due_later_or_after_retry_now(
    store: ChannelStore, clock: Clock
) -> None:
    await store.add_delivery(await kept(store), "a1", b"twelve")
    (owed,) = await claimed(store)
    await store.settle_delivery(owed, DUE, "not now", clock.now + 100)

    found, next_at = await store.claim_deliveries(("box",), 60.0, 10)
    assert (list(found), next_at) == ([], 1_100.0)
    assert await store.count_due() == 1
    await store.retry_now("box")
    (again,) = await claimed(store)
    assert again.problem == "not now"


async def test_a_dead_delivery_is_visible_to_its_tenant_and_can_be_revived(
    store: ChannelStore,
) -> None:
    await store.add_delivery(await kept(store), "a1", b"twelve")
    (owed,) = await claimed(store)
    await store.settle_delivery(owed, DEAD, "nobody there")

    (dead,) = await store.deliveries("local")
    assert (dead.problem, dead.state) == ("nobody there", DEAD)
    assert not await store.deliveries("other")
    assert not await store.retry_dead("other", "a1")
    assert await store.retry_dead("local", "a1")
    assert not await store.retry_dead("local", "a1")
    assert [one.attempts for one in await claimed(store)] == [0]


async def test_the_last_delivery_can_be_redelivered(store: ChannelStore) -> None:
    letter = await kept(store)
    assert not await store.redeliver_last(letter)
    for id_ in ("a1", "a2"):
        await store.add_delivery(letter, id_, id_.encode())
        (owed,) = await claimed(store)
        await store.settle_delivery(owed, SENT)

    assert await store.redeliver_last(letter)
    assert [one.id for one in await claimed(store)] == ["a2"]


async def test_where_messages_can_come_again_only_generated_ids_are_forgotten(
    store: ChannelStore, clock: Clock
) -> None:
    for id_ in ("m1", "text-1"):
        letter = await kept(store, id_)
        await store.add_delivery(letter, f"a {id_}", b"x", message_state=DONE)
    for owed in await claimed(store):
        await store.settle_delivery(owed, SENT)
    clock.now += 400 * 86_400

    assert await store.prune(clock.now, ()) == 1
    assert await store.find_message("local", "box", "ann", "text-1") is None
    _, fresh = await store.add_message(new("m1"))
    assert not fresh, "however late it comes again"


async def test_only_messages_whose_answers_were_delivered_are_deleted(
    store: ChannelStore, clock: Clock
) -> None:
    for id_ in ("m1", "m2"):
        letter = await kept(store, id_)
        await store.add_delivery(letter, f"a {id_}", b"x", message_state=DONE)
    (first, _) = await claimed(store)
    await store.settle_delivery(first, SENT)
    clock.now += 100

    assert await store.prune(clock.now - 200, ("box",)) == 0
    assert await store.prune(clock.now, ()) == 0
    assert await store.prune(clock.now, ("box",)) == 1
    _, fresh = await store.add_message(new("m1"))
    assert fresh  # it is not known any more
    _, fresh = await store.add_message(new("m2"))
    assert not fresh  # its answer is still owed


async def test_more_messages_than_one_transaction_deletes_are_deleted(
    store: ChannelStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoclaw.store.channels.DELETE_BATCH_ROWS", 2)
    for number in range(5):
        letter = await kept(store, f"m{number}")
        await store.add_delivery(letter, f"a{number}", b"x", message_state=DONE)
    for owed in await claimed(store):
        await store.settle_delivery(owed, SENT)
    clock.now += 100

    assert await store.prune(clock.now, ("box",)) == 5
    assert await store.prune(clock.now, ("box",)) == 0


async def test_looking_for_old_messages_does_not_grow_with_those_that_stay(
    tmp_path: Path, clock: Clock
) -> None:
    database = await Place(tmp_path / "evoclaw.db").open(SCHEMA)
    store, found = ChannelStore(database, clock), list[int]()
    for first, last in ((0, 10), (10, 100)):
        for number in range(first, last):
            for id_, at in ((f"m{number}", 1_000.0), (f"text-{number}", 9_000.0)):
                clock.now = at
                letter = await kept(store, id_)
                await store.add_delivery(letter, f"a {id_}", b"x", message_state=DONE)
                (owed,) = await claimed(store)
                clock.now = 9_000.0
                await store.settle_delivery(owed, SENT)
        async with steps_of(database) as steps:
            assert await store.prune(5_000.0, ("another",)) == 0
            found.append(steps())
    assert found[1] <= found[0] + 20, found
    await database.close()


async def test_two_processes_never_claim_the_same_delivery(place: Place, clock: Clock) -> None:
    one, two = await place.open(SCHEMA), await place.open(SCHEMA)
    try:
        stores = ChannelStore(one, clock), ChannelStore(two, clock)
        for number in range(20):
            letter = await kept(stores[number % 2], f"m{number}")
            await stores[0].add_delivery(letter, f"a{number}", b"x")
        rounds = await asyncio.gather(*(claimed(store, 20) for store in stores))

        claims = [delivery.id for claim in rounds for delivery in claim]
        assert sorted(claims) == sorted(f"a{number}" for number in range(20))
    finally:
        await one.close()
        await two.close()

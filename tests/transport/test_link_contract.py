"""What every link must do, the one inside the process included."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from evoclaw.transport.link import MAX_PAYLOAD_BYTES, Incoming, LinkDown, TooLarge, Will
from tests.support.brokers import Broker, mosquitto, nats
from tests.support.links import MemoryNet, MqttNet, Net
from tests.support.parties import Recorder, connected_link, running_link


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "mosquitto", "nats"])
async def broker(request: pytest.FixtureRequest) -> AsyncGenerator[Broker | None]:
    """Started once; tests use topics and names of their own."""
    if request.param == "memory":
        yield None
    else:
        async with (mosquitto if request.param == "mosquitto" else nats)() as started:
            yield started


@pytest_asyncio.fixture
async def net(broker: Broker | None) -> AsyncIterator[Net]:
    async with AsyncExitStack() as stack:
        yield MemoryNet() if broker is None else MqttNet(broker, stack)


@pytest.fixture
def here() -> str:
    """The beginning of topics that no other test uses."""
    return f"test/{secrets.token_hex(6)}"


async def test_messages_arrive_in_the_order_they_were_published(net: Net, here: str) -> None:
    sender, listener = Recorder(), Recorder(f"{here}/a")
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, sender), connected_link(far.link, listener):
        for number in range(50):
            await near.link.publish(f"{here}/a", b"%d" % number)
        await near.link.publish(f"{here}/b", b"for nobody")
        got = await listener.wait_messages(50)

    assert got == [b"%d" % number for number in range(50)]
    assert {(m.topic, m.retained) for m in listener.messages} == {(f"{here}/a", False)}


async def test_a_burst_of_a_thousand_messages_arrives_whole(net: Net, here: str) -> None:
    sender, listener = Recorder(), Recorder(f"{here}/a")
    near, far = await net.end(), await net.end()
    payloads = [b"%d " % number * 50 for number in range(1000)]

    async with connected_link(near.link, sender), connected_link(far.link, listener):
        await asyncio.gather(*(near.link.publish(f"{here}/a", p) for p in payloads))
        got = await listener.wait_messages(1000)

    assert got == payloads


async def test_a_client_receives_its_own_messages(net: Net, here: str) -> None:
    party, end = Recorder(f"{here}/a"), await net.end()

    async with connected_link(end.link, party):
        await end.link.publish(f"{here}/a", b"hello")

        assert await party.wait_messages(1) == [b"hello"]


async def test_a_plus_wildcard_matches_one_topic_level(net: Net, here: str) -> None:
    party, end = Recorder(f"{here}/+/reports", f"{here}/all"), await net.end()
    topics = ("x/reports", "x/y/reports", "reports", "x/commands", "y/reports", "all")

    async with connected_link(end.link, party):
        for name in topics:
            await end.link.publish(f"{here}/{name}", b"")
        await party.wait_messages(3)

    heard = sorted(m.topic.removeprefix(f"{here}/") for m in party.messages)
    assert heard == ["all", "x/reports", "y/reports"]


async def test_a_retained_message_is_delivered_to_later_subscribers(net: Net, here: str) -> None:
    early, late = Recorder(f"{here}/+"), Recorder(f"{here}/+")
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, early):
        await near.link.publish(f"{here}/kept", b"old", retain=True)
        await near.link.publish(f"{here}/kept", b"new", retain=True)
        await near.link.publish(f"{here}/gone", b"lost")
        await early.wait_messages(3)
        async with connected_link(far.link, late):
            assert await late.wait_messages(1) == [b"new"]

    assert late.messages == [Incoming(f"{here}/kept", b"new", retained=True)]
    assert [m.retained for m in early.messages] == [False, False, False]


async def test_an_empty_retained_message_clears_the_previous_one(net: Net, here: str) -> None:
    early, late = Recorder(f"{here}/a"), Recorder(f"{here}/+")
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, early):
        await near.link.publish(f"{here}/a", b"kept", retain=True)
        await near.link.publish(f"{here}/a", b"", retain=True)
        await early.wait_messages(2)
        async with connected_link(far.link, late):
            await near.link.publish(f"{here}/b", b"first")

            assert await late.wait_messages(1) == [b"first"]


async def test_the_connected_callback_runs_before_any_message_is_delivered(
    net: Net, here: str
) -> None:
    party = Recorder(f"{here}/a", f"{here}/answer")
    near, far = await net.end(), await net.end()

    async def greet() -> None:
        # Both: publishing while greeted, and waiting for an answer to it.
        await far.link.publish(f"{here}/answer", b"answer")
        await party.until(lambda: b"answer" in party.payloads)

    party.on_connected = greet
    async with connected_link(near.link, Recorder()):
        await near.link.publish(f"{here}/a", b"kept", retain=True)
        async with running_link(far.link, party):
            assert sorted(await party.wait_messages(2)) == [b"answer", b"kept"]

    assert party.log == ["connected", "received", "received"]


async def test_the_last_will_is_published_when_a_connection_breaks(net: Net, here: str) -> None:
    will = Will(f"{here}/status", b"offline")
    watcher, party = Recorder(f"{here}/status"), Recorder(will=will)
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, watcher), connected_link(far.link, party):
        far.down()
        assert await watcher.wait_messages(1) == [b"offline"]
        late = Recorder(f"{here}/status")
        async with connected_link((await net.end()).link, late):
            await late.wait_messages(1)

    assert late.messages == [Incoming(f"{here}/status", b"offline", retained=True)]


async def test_no_last_will_is_published_on_a_clean_disconnect(net: Net, here: str) -> None:
    watcher = Recorder(f"{here}/+")
    party = Recorder(will=Will(f"{here}/status", b"offline"))
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, watcher):
        async with connected_link(far.link, party):
            await far.link.publish(f"{here}/last", b"last word")
        # What was said before leaving arrives, and nothing after it but what we say.
        await watcher.wait_messages(1)
        await near.link.publish(f"{here}/end", b"end")

        assert await watcher.wait_messages(2) == [b"last word", b"end"]
    assert party.reasons == []


async def test_a_lost_connection_is_restored_with_its_subscriptions(net: Net, here: str) -> None:
    sender, party = Recorder(), Recorder(f"{here}/+/x", f"{here}/y")
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, sender), connected_link(far.link, party):
        for times in (1, 2):
            far.drop()
            assert await party.wait_disconnected(times)
            await party.wait_connected(times + 1)
            assert far.link.is_up
            await near.link.publish(f"{here}/a/x", b"x%d" % times)
            await near.link.publish(f"{here}/y", b"y%d" % times)
            await party.wait_messages(2 * times)

    # NATS keeps the order within a subscription only.
    assert sorted(party.payloads) == [b"x1", b"x2", b"y1", b"y2"]


async def test_the_last_will_is_requested_for_each_connection(net: Net, here: str) -> None:
    watcher = Recorder(f"{here}/status")
    party = Recorder(will=Will(f"{here}/status", b"first"))
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, watcher), connected_link(far.link, party):
        party.next_will = Will(f"{here}/status", b"second")
        far.drop()
        await party.wait_connected(2)
        party.next_will = None
        far.drop()
        await party.wait_connected(3)

        assert await watcher.wait_messages(2) == [b"first", b"second"]


async def test_publishing_while_the_link_is_down_raises_link_down(net: Net, here: str) -> None:
    party, end = Recorder(), await net.end()

    assert not end.link.is_up
    with pytest.raises(LinkDown):
        await end.link.publish(f"{here}/a", b"")
    async with connected_link(end.link, party):
        assert end.link.is_up
        end.down()
        await party.wait_disconnected(1)
        assert not end.link.is_up
        with pytest.raises(LinkDown):
            await end.link.publish(f"{here}/a", b"")
        end.up()
        await party.wait_connected(2)
        await end.link.publish(f"{here}/a", b"")
    with pytest.raises(LinkDown):
        await end.link.publish(f"{here}/a", b"")


async def test_a_link_that_cannot_connect_at_first_connects_later(net: Net) -> None:
    party, end = Recorder(), await net.end()
    end.down()

    async with running_link(end.link, party):
        await party.wait_disconnected(1)
        end.up()
        await party.wait_connected(1)


async def test_the_connected_callback_is_cancelled_when_the_connection_ends(
    net: Net, here: str
) -> None:
    party, end = Recorder(), await net.end()
    ended: list[str] = []

    async def greet() -> None:
        if party.births > 1:
            return
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("greeting")

    party.on_connected = greet
    async with connected_link(end.link, party):
        end.drop()
        await party.wait_connected(2)
        await end.link.publish(f"{here}/a", b"")

    assert ended == ["greeting"]


async def test_link_down_in_the_connected_callback_is_not_an_error(net: Net, here: str) -> None:
    party, end = Recorder(), await net.end()

    async def greet() -> None:
        if party.births == 1:
            end.drop()
            await asyncio.Event().wait()
        await end.link.publish(f"{here}/a", b"")
        if party.births == 2:
            raise LinkDown

    party.on_connected = greet
    async with connected_link(end.link, party):
        await party.wait_connected(3)


async def test_an_exception_in_the_connected_callback_ends_the_link(net: Net) -> None:
    party, end = Recorder(), await net.end()

    async def greet() -> None:
        raise KeyError("a bug")

    party.on_connected = greet
    async with asyncio.timeout(20):
        with pytest.raises(KeyError):
            await end.link.run(party)
    assert not end.link.is_up


async def test_an_exception_while_receiving_is_reported_and_the_next_message_received(
    net: Net, here: str
) -> None:
    party, end = Recorder(f"{here}/a"), await net.end()
    told: list[object] = []

    def fail(message: Incoming) -> None:
        if message.payload == b"bad":
            raise KeyError("a bug")

    party.on_received = fail
    asyncio.get_running_loop().set_exception_handler(lambda _, c: told.append(c["exception"]))
    async with connected_link(end.link, party):
        for payload in (b"bad", b"good"):
            await end.link.publish(f"{here}/a", payload)

        assert await party.wait_messages(2) == [b"bad", b"good"]
    assert [str(problem) for problem in told] == ["'a bug'"]
    assert party.births == 1


async def test_a_message_that_is_too_large_is_refused_and_the_link_stays_up(
    net: Net, here: str
) -> None:
    party, end = Recorder(f"{here}/a"), await net.end()

    async with connected_link(end.link, party):
        limit = end.link.max_payload
        assert 0 < limit <= MAX_PAYLOAD_BYTES
        with pytest.raises(TooLarge) as refused:
            await end.link.publish(f"{here}/a", bytes(limit + 1))
        await end.link.publish(f"{here}/a", b"x" * limit)
        await end.link.publish(f"{here}/a", b"small")

        assert await party.wait_messages(2) == [b"x" * limit, b"small"]
    assert (refused.value.size, refused.value.limit) == (limit + 1, limit)
    assert party.births == 1


@pytest.mark.parametrize("topic", ["", "a/+/b", "a/#", "a\0b", "a" * 600, "\ud800"])
async def test_publishing_to_an_invalid_topic_is_refused(net: Net, topic: str) -> None:
    party, end = Recorder(), await net.end()

    async with connected_link(end.link, party):
        with pytest.raises(ValueError):
            await end.link.publish(topic, b"")
        assert end.link.is_up


async def test_a_second_client_with_the_same_id_ends_the_first_connection(net: Net) -> None:
    first, second = Recorder(client_id="twin"), Recorder(client_id="twin")
    near, far = await net.end(), await net.end()

    async with connected_link(near.link, first):
        task = asyncio.create_task(far.link.run(second))
        try:
            await second.wait_connected(1)
            assert await first.wait_disconnected(1)
        finally:
            task.cancel()
            await asyncio.wait((task,))
        await first.wait_connected(2)


@pytest.mark.parametrize("when", ["before it connects", "connected", "greeted", "down"])
async def test_a_cancelled_link_leaves_no_tasks(net: Net, when: str) -> None:
    party, end = Recorder(), await net.end()
    before = asyncio.all_tasks()

    async def greet() -> None:
        await asyncio.Event().wait()

    if when == "greeted":
        party.on_connected = greet
    if when == "down":
        end.down()
    task = asyncio.create_task(end.link.run(party))
    if when == "before it connects":
        await asyncio.sleep(0)
    elif when == "down":
        await party.wait_disconnected(1)
    else:
        await party.wait_connected(1)
    task.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait((task,))

    assert task.cancelled()
    assert not end.link.is_up
    left = asyncio.all_tasks() - before
    assert [task for task in left if "tests/support/fault_proxy.py" not in repr(task)] == []

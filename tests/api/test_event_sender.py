"""An event stream leaves in order, as much at once as there is, and waits only for who is slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evoclaw.api import event_sender
from evoclaw.api.event_sender import HEARTBEAT_FRAME, MAX_BUFFERED_FRAMES, EventSender

LIMIT = 20.0


class Client:
    """Takes what is sent; one that is shut does not read."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.told = asyncio.Event()

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message["body"])
        self.ended = not message["more_body"]
        self.told.set()


async def test_queued_chunks_are_sent_together_and_then_the_end() -> None:
    client = Client()
    line = EventSender(client.send, LIMIT)
    for piece in (b"a", b"b", b"c"):
        line.put(piece)
    assert client.sent == []
    async with asyncio.timeout(LIMIT):
        await client.told.wait()
        assert client.sent == [b"abc"]
        line.put(b"d")
        await line.finish()
    assert client.sent == [b"abc", b"d", b""]
    assert client.ended
    await line.close()


async def test_a_slow_reader_gets_every_chunk_in_order() -> None:
    client = Client()
    client.reads.clear()
    line = EventSender(client.send, LIMIT)
    async with asyncio.timeout(LIMIT):
        for number in range(3 * MAX_BUFFERED_FRAMES):
            line.put(b"%d," % number)
            if line.is_full:
                client.reads.set()
                await line.wait_for_space()
                client.reads.clear()
        client.reads.set()
        await line.finish()
    assert b"".join(client.sent) == b"".join(
        b"%d," % number for number in range(3 * MAX_BUFFERED_FRAMES)
    )
    assert not line.failed.done()
    await line.close()


async def test_a_reader_that_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sender, "SEND_TIMEOUT_S", 0.01)
    client = Client()
    client.reads.clear()
    line = EventSender(client.send, LIMIT)
    line.put(b"a")
    async with asyncio.timeout(LIMIT):
        await line.failed
        line.put(b"b")
        await line.finish()
    await line.close()
    assert client.sent == []


async def test_a_keepalive_is_sent_when_the_stream_is_idle() -> None:
    client = Client()
    line = EventSender(client.send, 0.01)
    async with asyncio.timeout(LIMIT):
        await client.told.wait()
    await line.close()
    assert set(client.sent) == {HEARTBEAT_FRAME}


async def test_closing_a_blocked_sender_leaves_no_task() -> None:
    client = Client()
    client.reads.clear()
    before = asyncio.all_tasks()
    line = EventSender(client.send, LIMIT)
    line.put(b"a")
    await asyncio.sleep(0)
    await line.close()
    assert asyncio.all_tasks() == before
    assert client.sent == []


async def test_nothing_is_sent_after_a_failed_send() -> None:
    async def fails(message: Any) -> None:
        raise RuntimeError("broken")

    line = EventSender(fails, LIMIT)
    line.put(b"a")
    with pytest.raises(RuntimeError, match="broken"):
        await line.finish()
    assert line.failed.done()
    await line.close()


async def test_frames_that_come_quickly_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sender, "MIN_SEND_INTERVAL_S", LIMIT)
    client = Client()
    line = EventSender(client.send, LIMIT)
    async with asyncio.timeout(LIMIT):
        line.put(b"first")
        await client.told.wait()
        assert client.sent == [b"first"], "the first one is not held back"
        line.put(b"a")
        line.put(b"b")
        for _ in range(3):
            await asyncio.sleep(0)
        assert client.sent == [b"first"]
        for _ in range(MAX_BUFFERED_FRAMES - 2):
            line.put(b".")
        assert client.sent[1:] == [b"ab" + b"." * (MAX_BUFFERED_FRAMES - 2)], "but never too many"
        line.put(b"last")
        await line.finish()
    assert client.sent[2:] == [b"last", b""]
    await line.close()


async def test_no_keepalive_is_sent_after_the_end() -> None:
    client = Client()
    line = EventSender(client.send, 0.001)
    async with asyncio.timeout(LIMIT):
        await client.told.wait()  # a first one was
        await line.finish()
        sent = list(client.sent)
        await asyncio.sleep(0.02)
    assert client.sent == sent
    assert client.ended
    await line.close()

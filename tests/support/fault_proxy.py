"""A bad network: a TCP proxy on loopback that delays, cuts, and loses MQTT messages when told."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

PUBLISH, PUBACK, CONNECT = 0x30, 0x40, 0x10
HOLD_SECONDS = 0.2
"""How long a reordered message waits for one to let pass."""
QUEUED = 256
"""Packets under way in one direction of a connection; then the proxy reads no more."""

Topic = Callable[[str], bool]
Fault = Literal["drop", "duplicate", "reorder"]


@dataclass
class _Rule:
    fault: Fault
    left: int
    fraction: float
    topic: Topic | None
    ack: bool


@dataclass
class Direction:
    """The faults of messages that go one way; `next` ones, or a `fraction` of all."""

    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter[str])
    """How many messages passed, and how many suffered which fault."""
    rules: list[_Rule] = field(default_factory=list[_Rule])
    rewrite: Callable[[str, bytes], bytes] | None = None
    """Changes the JSON of each message: its topic and its payload in, another payload out."""

    def drop(
        self, *, next: int = 0, fraction: float = 0.0, topic: Topic | None = None, ack: bool = True
    ) -> None:
        """Lose messages; with `ack` the sender is told that they arrived, as a bad broker would."""
        self.rules.append(_Rule("drop", next, fraction, topic, ack))

    def duplicate(
        self, *, next: int = 0, fraction: float = 0.0, topic: Topic | None = None
    ) -> None:
        """Deliver messages twice; the sender sees one acknowledgement."""
        self.rules.append(_Rule("duplicate", next, fraction, topic, False))

    def reorder(self, *, next: int = 0, fraction: float = 0.0, topic: Topic | None = None) -> None:
        """Deliver messages after the one that follows, or a little later if none does."""
        self.rules.append(_Rule("reorder", next, fraction, topic, False))

    def clear(self) -> None:
        """No more faults."""
        self.rules.clear()

    def judge(self, topic: str) -> _Rule | None:
        """The fault of this message, if any."""
        self.counts["passed"] += 1
        for rule in self.rules:
            if rule.topic is not None and not rule.topic(topic):
                continue
            if rule.left > 0 or self.chance.random() < rule.fraction:
                rule.left -= 1
                self.counts[rule.fault] += 1
                return rule
        return None


class FaultProxy:
    """Stands before a broker; use as `async with`. Faults may be set while connections live."""

    def __init__(self, upstream_host: str, upstream_port: int, *, seed: int = 0) -> None:
        self._upstream = upstream_host, upstream_port
        # One each: what happens one way must not change what happens the other way.
        self._chance, there, back = (random.Random(seed * 3 + number) for number in range(3))
        self.to_broker, self.to_client = Direction(there), Direction(back)
        self.host, self.port = "127.0.0.1", 0
        self.accepted = 0
        """Connections so far."""
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._news = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._seconds = self._jitter = 0.0
        self._rate: float | None = None
        self._refusing = False

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        """How many live now."""
        return len(self._serving)

    async def until_accepted(self, count: int) -> None:
        """Wait for so many connections in all."""
        while self.accepted < count:
            self._news.clear()
            await self._news.wait()

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold everything back so long, and up to `jitter` longer; the order stays."""
        self._seconds, self._jitter = seconds, jitter

    def throttle(self, bytes_per_second: float | None) -> None:
        """Let only so much through, per connection and direction."""
        self._rate = bytes_per_second

    def freeze(self) -> None:
        """Let nothing through and tell nobody: connections are half open until `thaw`."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Let everything through, what was sent meanwhile included."""
        self._thawed.set()

    def refuse(self, refusing: bool) -> None:
        """Reset new connections at once."""
        self._refusing = refusing

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        for writers in list(self._serving.values()):
            for writer in writers:
                _reset(writer)

    async def passes(self) -> None:
        """Return when nothing is frozen."""
        await self._thawed.wait()

    def due(self) -> float:
        """When what comes now may leave."""
        late = self._seconds + self._chance.uniform(0.0, self._jitter)
        return asyncio.get_running_loop().time() + late

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, float]]:
        """What to write, and the seconds to wait after each piece."""
        if self._rate is None:
            yield data, 0.0
            return
        size = max(1, int(self._rate / 20))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield piece, len(piece) / self._rate

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._news.set()
        if self._refusing:
            return _reset(writer)
        writers = [writer]
        task = asyncio.create_task(self._serve(reader, writers))
        self._serving[task] = writers
        return task.add_done_callback(self._serving.pop)

    async def _serve(
        self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]
    ) -> None:
        try:
            await self.passes()
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
            writers.append(far_writer)
            there = _Pump(self, self.to_broker, reader, far_writer)
            back = _Pump(self, self.to_client, far_reader, writers[0])
            there.back, back.back = back, there
            async with asyncio.TaskGroup() as group:
                for pump in (there, back):
                    group.create_task(pump.read())
                    group.create_task(pump.write())
        except* OSError:
            pass  # One end is gone, and so is the other in a moment.
        finally:
            for writer in writers:
                writer.transport.abort()


class _Pump:
    """One direction of one connection."""

    def __init__(
        self,
        proxy: FaultProxy,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.back = self
        self._proxy, self._direction = proxy, direction
        self._reader, self._writer = reader, writer
        self._queue: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._rest = b""
        self._is_mqtt: bool | None = None
        self._last_due = 0.0
        self._held: bytes | None = None
        self._swallow: Counter[int] = Counter()

    async def read(self) -> None:
        while data := await self._reader.read(65536):
            await self._proxy.passes()
            for packet in self._packets(data):
                self._take(packet)
            while self._queue.qsize() > QUEUED:
                self._room.clear()
                await self._room.wait()
        self._let_go()
        self._queue.put_nowait(None)

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while (item := await self._queue.get()) is not None:
            self._room.set()
            due, data = item
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            for piece, pause in self._proxy.pieces(data):
                await self._proxy.passes()
                self._writer.write(piece)
                await self._writer.drain()
                if pause:
                    await asyncio.sleep(pause)
        self._writer.close()

    def put(self, data: bytes) -> None:
        self._last_due = max(self._last_due, self._proxy.due())
        self._queue.put_nowait((self._last_due, data))

    def _packets(self, data: bytes) -> Iterator[bytes]:
        """What is whole; anything that is not MQTT as it comes."""
        if self._is_mqtt is None:
            # The client speaks first, in plain MQTT or not.
            self._is_mqtt = self.back._is_mqtt = data[0] == CONNECT
        if not self._is_mqtt:
            yield data
            return
        self._rest += data
        while (size := packet_size(self._rest)) and size <= len(self._rest):
            packet, self._rest = self._rest[:size], self._rest[size:]
            yield packet

    def _take(self, packet: bytes) -> None:
        kind = packet[0] & 0xF0 if self._is_mqtt else 0
        if kind == PUBLISH:
            self._publish(packet)
        elif kind == PUBACK and self._swallow[number := int.from_bytes(packet[2:4], "big")] > 0:
            self._swallow[number] -= 1
        else:
            self.put(packet)

    def _publish(self, packet: bytes) -> None:
        topic, number = read_publish(packet)
        packet = self._rewritten(topic, packet)
        rule = self._direction.judge(topic)
        fault = None if rule is None else rule.fault
        if rule is not None and fault == "drop":
            if rule.ack and number:
                self.back.put(struct.pack("!BBH", PUBACK, 2, number))
        elif fault == "reorder" and self._held is None:
            self._held = packet
            asyncio.get_running_loop().call_later(HOLD_SECONDS, self._let_go)
        else:
            self.put(packet)
            if fault == "duplicate":
                # Its DUP flag says that it was sent before.
                self.put(bytes([packet[0] | 0x08]) + packet[1:])
                self.back._swallow[number] += 1
            self._let_go()

    def _rewritten(self, topic: str, packet: bytes) -> bytes:
        change, start = self._direction.rewrite, packet.find(b"{")
        if change is None or start < 0:
            return packet
        size = len(packet) - packet_size(packet[:5]) + 1
        while packet[size] & 128:
            size += 1
        body = packet[size + 1 : start] + change(topic, packet[start:])
        length, digits = len(body), bytearray()
        while length > 127:
            digits.append(length & 127 | 128)
            length >>= 7
        self._direction.counts["rewritten"] += 1
        return bytes([packet[0], *digits, length]) + body

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self.put(held)


def packet_size(head: bytes) -> int:
    """The size of the packet that begins so; 0 if that much is not known yet."""
    size = 0
    for index, byte in enumerate(head[1:5]):
        size += (byte & 127) << (7 * index)
        if byte < 128:
            return size + index + 2
    return 0


def read_publish(packet: bytes) -> tuple[str, int]:
    """The topic and the packet id, 0 if it has none, of a whole PUBLISH."""
    start = 1
    while packet[start] & 128:
        start += 1
    length = int.from_bytes(packet[start + 1 : start + 3], "big")
    end = start + 3 + length
    number = int.from_bytes(packet[end : end + 2], "big") if packet[0] & 0x06 else 0
    return packet[start + 3 : end].decode(errors="replace"), number


def _reset(writer: asyncio.StreamWriter) -> None:
    where: socket.socket | None = writer.get_extra_info("socket")
    if where is not None and where.fileno() >= 0:
        where.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

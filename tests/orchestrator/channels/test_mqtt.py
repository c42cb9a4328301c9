"""People's boxes on a broker: the in-memory one, and real ones with accounts."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evoclaw.core.messages import Reply
from evoclaw.orchestrator.channels.dispatcher import ChannelDispatcher
from evoclaw.orchestrator.channels.mqtt import MqttChannel
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.orchestrator.channels.status import channel_view
from evoclaw.providers.scripted import ScriptedRequest, says
from evoclaw.transport.broker import EmbeddedBroker
from evoclaw.transport.broker_accounts import BrokerRole
from evoclaw.transport.link import Link
from evoclaw.transport.mailboxes import MailboxState, OutboxMessage
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.mqtt import Address, MqttLink
from tests.support.channels import ChannelHarness, open_channel_harness
from tests.support.parties import Recorder, connected_link
from tests.support.waiting import until

INBOX = "evoclaw/agents/cook/inbox/ann"
ALL = ChannelSettings(name="boxes", kind="mqtt", senders={"ann": "ann", "bob": ""})
ACCEPTED, ANSWER, REFUSED = MailboxState.ACCEPTED, MailboxState.ANSWER, MailboxState.REFUSED
NO_MOSQUITTO = pytest.mark.skipif(
    shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin") is None,
    reason="mosquitto is not installed",
)


class Person:
    """Somebody with an outbox."""

    def __init__(self, link: Link, name: str) -> None:
        self._link, self.name = link, name
        self.ear = Recorder(f"evoclaw/agents/+/outbox/{name}")

    async def says(self, payload: bytes | dict[str, Any], agent: str = "cook") -> None:
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        await self._link.publish(f"evoclaw/agents/{agent}/inbox/{self.name}", data)

    async def hears(self, count: int) -> list[OutboxMessage]:
        heard = await self.ear.wait_messages(count)
        return [msgspec.json.decode(one, type=OutboxMessage) for one in heard]


@asynccontextmanager
async def person(link: Link, name: str = "ann") -> AsyncGenerator[Person]:
    one = Person(link, name)
    async with connected_link(link, one.ear):
        yield one


@asynccontextmanager
async def served(
    made: ChannelHarness, channel: MqttChannel, link: Link
) -> AsyncGenerator[ChannelDispatcher]:
    desk = made.dispatcher([channel])
    async with desk.serving():
        await until(partial(_is_up, link))
        yield desk


async def _is_up(link: Link) -> bool:
    return link.is_up


@asynccontextmanager
async def memory_house(
    folder: Path, *answers: str, settings: ChannelSettings = ALL
) -> AsyncGenerator[tuple[Person, MqttChannel, MemoryLink, ChannelHarness]]:
    broker = MemoryBroker()
    link = MemoryLink(broker)
    channel = MqttChannel(settings, link)
    async with (
        open_channel_harness(folder, *(says(one) for one in answers)) as made,
        served(made, channel, link),
        person(MemoryLink(broker)) as ann,
    ):
        yield ann, channel, link, made


@pytest.mark.process
@pytest.mark.parametrize("engine", ["nats", pytest.param("mosquitto", marks=NO_MOSQUITTO)])
async def test_a_broker_user_is_answered_over_a_real_broker(tmp_path: Path, engine: str) -> None:
    async with EmbeddedBroker(tmp_path / "broker", engine=engine) as broker:

        async def link(name: str, role: BrokerRole) -> MqttLink:
            password = await broker.add(name, role)
            return MqttLink(Address("127.0.0.1", broker.port, username=name, password=password))

        brain = await link("brain", BrokerRole.ORCHESTRATOR)
        channel = MqttChannel(ALL, brain)
        async with (
            open_channel_harness(tmp_path, says("twelve minutes")) as made,
            served(made, channel, brain),
            person(await link("ann", BrokerRole.USER)) as ann,
        ):
            await ann.says({"message": "how long?", "message_id": "m1", "session": "eggs"})
            accepted, answer = await ann.hears(2)

    assert (accepted.state, accepted.message_id) == (ACCEPTED, "m1")
    assert (answer.state, answer.text) == (ANSWER, "twelve minutes")
    assert (answer.message_id, answer.session) == ("m1", "eggs")
    assert answer.run_id == accepted.run_id


async def test_a_plain_text_message_is_accepted(tmp_path: Path) -> None:
    async with memory_house(tmp_path, "twelve") as (ann, _, _, _):
        await ann.says(b"how long?")
        heard = await ann.hears(2)

    assert [one.text for one in heard if one.state is ANSWER] == ["twelve"]


async def test_a_repeated_message_runs_once_and_its_answer_is_sent_again(
    tmp_path: Path,
) -> None:
    async with memory_house(tmp_path, "one", "two") as (ann, _, _, made):
        said = {"message": "how long?", "message_id": "m1"}
        await ann.says(said)
        first = await ann.hears(2)
        await ann.says(said)
        heard = await ann.hears(4)

        assert len(made.model.requests) == 1
    assert {one.id for one in heard if one.state is ANSWER} == {
        one.id for one in first if one.state is ANSWER
    }
    assert sum(one.state is ANSWER for one in heard) == 2


async def test_identical_plain_text_sent_twice_in_a_row_starts_one_run(tmp_path: Path) -> None:
    async with memory_house(tmp_path, "one", "two") as (ann, _, _, made):
        await ann.says(b"how long?")
        await ann.says(b"how long?")
        await ann.hears(3)

        assert len(await made.runs.list("local")) == 1


@pytest.mark.parametrize(
    ("payload", "reason", "id_"),
    [
        (b'{"message": "", "message_id": "m1"}', "invalid_params", "m1"),
        (b"{broken", "invalid_params", ""),
        (b"\xff", "invalid_params", ""),
        (b"x" * 70_000, "too_large", ""),
    ],
)
async def test_an_unreadable_message_is_refused_with_a_reason(
    tmp_path: Path, payload: bytes, reason: str, id_: str
) -> None:
    async with memory_house(tmp_path) as (ann, channel, _, _):
        await ann.says(payload)
        (told,) = await ann.hears(1)

    assert (told.state, told.reason, told.message_id) == (REFUSED, reason, id_)
    assert channel.counts[f"refused: {reason}"] == 1


async def test_an_unknown_sender_is_refused_and_counted(tmp_path: Path) -> None:
    broker = MemoryBroker()
    link = MemoryLink(broker)
    channel = MqttChannel(ALL, link)
    async with (
        open_channel_harness(tmp_path) as made,
        served(made, channel, link),
        person(MemoryLink(broker), "mallory") as mallory,
    ):
        await mallory.says({"message": "let me in", "message_id": "m1"})
        (told,) = await mallory.hears(1)

    assert (told.state, told.reason, told.message_id) == (REFUSED, "unknown_sender", "m1")
    assert channel.counts["refused: unknown_sender"] == 1


async def test_a_channel_with_a_fixed_agent_refuses_messages_to_other_agents(
    tmp_path: Path,
) -> None:
    only = ChannelSettings(name="boxes", kind="mqtt", agent="baker", senders=("ann",))
    async with memory_house(tmp_path, settings=only) as (ann, _, _, _):
        await ann.says(b"how long?")
        (told,) = await ann.hears(1)

    assert (told.state, told.reason) == (REFUSED, "no_agent")


async def test_a_message_to_an_unknown_agent_fails_with_the_known_agents(tmp_path: Path) -> None:
    async with memory_house(tmp_path) as (ann, _, _, _):
        await ann.says(b"how long?", agent="nobody")
        (told,) = await ann.hears(1)

    assert (told.state, told.reason) == (MailboxState.FAILED, "no_agent")
    assert "known agents: cook, baker" in told.text


async def test_each_agent_answers_from_its_own_mailbox(tmp_path: Path) -> None:
    async with memory_house(tmp_path, "boiled", "baked") as (ann, _, _, made):
        for number, agent in enumerate(("cook", "baker"), 1):
            await ann.says({"message": "who?", "message_id": agent}, agent=agent)
            await ann.hears(2 * number)

        heard = await ann.hears(4)
        answers = {one.agent_id: one.text for one in heard if one.state is ANSWER}
        assert answers == {"cook": "boiled", "baker": "baked"}
        assert {run.agent for run in await made.runs.list("local")} == {"cook", "baker"}


def test_the_ids_of_mqtt_messages_are_never_forgotten() -> None:
    """They are not signed: a bridge or a hostile broker may deliver them again after a year."""
    assert MqttChannel(ALL, MemoryLink(MemoryBroker())).replayable


async def test_a_retained_mqtt_message_is_ignored(tmp_path: Path) -> None:
    broker = MemoryBroker()
    link = MemoryLink(broker)
    broker.publish(INBOX, b"from long ago", retain=True)
    channel = MqttChannel(ALL, link)
    async with (
        open_channel_harness(tmp_path, says("now")) as made,
        served(made, channel, link),
        person(MemoryLink(broker)) as ann,
    ):
        await ann.says(b"from now")
        await ann.hears(2)

        assert [run.asked for run in await made.runs.list("local")] == ["from now"]
    assert channel.counts["no message"] == 1


async def test_the_state_of_the_channel_follows_its_link(tmp_path: Path) -> None:
    async with memory_house(tmp_path) as (_, channel, link, made):
        up = await channel_view(channel, made.letters)
        assert (up.kind, up.state, up.problem, up.fix) == ("mqtt", "connected", "", "")

        link.unplug()
        await until(lambda: channel.status.state == "failed")
        down = await channel_view(channel, made.letters)
        assert down.problem
        assert "evoclaw doctor" in down.fix
        assert down.changed_at >= up.changed_at

        link.plug()
        await until(lambda: channel.status.state == "connected")
        again = await channel_view(channel, made.letters)
        assert (again.problem, again.last_problem) == ("", down.problem)


async def test_an_answer_is_delivered_after_the_link_reconnects(tmp_path: Path) -> None:
    broker = MemoryBroker()
    link = MemoryLink(broker)
    channel = MqttChannel(ALL, link)

    def cut_off(_: ScriptedRequest) -> Reply:
        link.unplug()
        return says("twelve")

    async with (
        open_channel_harness(tmp_path, cut_off) as made,
        served(made, channel, link) as desk,
        person(MemoryLink(broker)) as ann,
    ):
        await ann.says({"message": "how long?", "message_id": "m1"})
        await until(partial(_has_failed, desk))
        before = len(ann.ear.messages)
        link.plug()
        heard = await ann.hears(before + 1)

    assert [one.text for one in heard if one.state is ANSWER] == ["twelve"]
    assert heard[-1].state is ANSWER
    assert channel.counts["disconnected"] >= 1


async def _has_failed(desk: ChannelDispatcher) -> bool:
    return desk.counts["not delivered"] > 0


async def test_an_answer_too_large_for_the_broker_is_truncated_with_a_notice(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker(max_payload=2_000)
    link = MemoryLink(broker)
    async with (
        open_channel_harness(tmp_path, says("é\n" * 5_000)) as made,
        served(made, MqttChannel(ALL, link), link),
        person(MemoryLink(broker)) as ann,
    ):
        await ann.says(b"how long?")
        heard = await ann.hears(2)

    (answer,) = [one for one in heard if one.state is ANSWER]
    assert "[Truncated" in answer.text
